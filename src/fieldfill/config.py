"""Settings, and the registries that turn names into objects. Nothing below this module sees a name.

`Settings` describe a model completely but for the data and the seed. To add a network, an estimator, a mask or a
simulator, write its class and add one line to `NETWORKS`, `ESTIMATORS`, `MASKS` or `SIMULATORS`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
import xarray as xr
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from fieldfill.data.finite import standardised
from fieldfill.data.holdout import HoldOutSettings
from fieldfill.data.transforms import Normaliser
from fieldfill.diffusion.denoiser import PREDICTIONS, Denoiser
from fieldfill.diffusion.networks.fno import FNO
from fieldfill.diffusion.networks.network import NetworkBuilder
from fieldfill.diffusion.networks.refiner import Refiner
from fieldfill.diffusion.networks.space_time import SpaceTimeUNet
from fieldfill.diffusion.networks.unet import FoldedUNet
from fieldfill.diffusion.scales import Scales, noise_levels
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.errors import InputError
from fieldfill.estimators.base import Estimator
from fieldfill.estimators.chain import Chain, ChainSettings
from fieldfill.estimators.climatology import ClimatologySettings, ZeroAnomaly
from fieldfill.estimators.drift import Drift, DriftSettings
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.learning import GaussianSettings
from fieldfill.estimators.motion import Motion, MotionSettings
from fieldfill.estimators.neighbourhood import Neighbourhood, NeighbourhoodSettings
from fieldfill.estimators.propagator import WavesSettings
from fieldfill.estimators.pull_push import PullPush
from fieldfill.estimators.standing import Standing, StandingSettings
from fieldfill.estimators.waves import Waves
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    FrameDropout,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    VariableDropout,
)
from fieldfill.partition import (
    AllObserved,
    BlockPartition,
    FramePartition,
    HideMore,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
    VariablePartition,
    WithSideInputs,
    varying_variables,
)
from fieldfill.partition.exposure.estimate import AuditSettings
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.simulate.store import Simulator

__all__ = [
    "ESTIMATORS",
    "LEAST_CROP",
    "MASKS",
    "NETWORKS",
    "Settings",
    "build_denoiser",
    "build_mask",
    "build_partition",
    "build_simulator",
    "candidate_partitions",
    "simulator_of",
    "static_features",
]


# Networks by name. To add one, write a module with a `Network` in diffusion/networks/ and add a line here.
NETWORKS: dict[str, NetworkBuilder] = {
    "refiner": Refiner,
    "unet": FoldedUNet,
    "space-time-unet": SpaceTimeUNet,
    "karras-unet": partial(SpaceTimeUNet, magnitude_preserving=True),
    "fno": FNO,
}
# Networks that fold patches of cells into channels: add the name here if the constructor takes ``patch``.
PATCHED = ("refiner", "unet")


@dataclass(frozen=True)
class CropShape:
    """What an estimator is built for.

    Variables, frames, rows and columns of a crop, periodic axes, number of maps, whether the record has other times,
    and the settings.
    """

    variables: int
    frames: int
    grid: tuple[int, int]
    periodic: tuple[bool, bool]
    maps: int
    others: bool
    settings: "Settings"

    @cached_property
    def field(self) -> LearntField:
        """The Gaussian field of all crops, which several estimators share."""
        steps = self.settings.solver_steps
        return LearntField(self.variables, self.frames, self.grid, self.periodic, steps=steps)


# Estimators by name, each with how it is built for crops of a `CropShape`. To add one, write a module with a `Source`
# or a `Correction` in estimators/ and add a line here; the docs have a tutorial.
ESTIMATORS: dict[str, Callable[[CropShape], Estimator]] = {
    "climatology": lambda shape: ZeroAnomaly(),
    "pull-push": lambda shape: PullPush(),
    "gaussian": lambda shape: Gaussian(shape.field, shape.settings.gaussian),
    "drift": lambda shape: Drift(shape.field, shape.settings.drift, shape.settings.gaussian),
    "waves": lambda shape: Waves(shape.field, shape.settings.waves),
    "motion": lambda shape: Motion(shape.variables, shape.periodic, shape.settings.motion),
    "standing": lambda shape: Standing(shape.variables, shape.periodic, shape.settings.standing),
    "neighbourhood": lambda shape: Neighbourhood(
        shape.variables, shape.maps, shape.periodic, shape.settings.neighbourhood
    ),
}
# Estimators that refine the field of another one, which must come before them: add the name here if yours does.
NEEDED = {"drift": "gaussian", "waves": "gaussian"}
# Estimators that compare frames and are left out of crops of a single frame: add the name here if yours does.
OF_SEQUENCES = ("motion",)
# Estimators that look beyond a crop in time and are left out where there is nothing: add the name here if yours does.
OF_OTHER_TIMES = ("standing",)


# Rows and columns of the smallest crop that networks and estimators can work on.
LEAST_CROP = 4
# Steps of a training that only its minutes end.
UNLIMITED_STEPS = 10**6


class Settings(BaseModel):
    """Everything that determines a model besides the data and the seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int | None = Field(None, ge=1, description="frames seen together; by default chosen from the record")
    crop: int | None = Field(
        None, ge=LEAST_CROP, description="rows and columns seen together; by default chosen from the record"
    )
    partition: str = Field("auto", description="how contexts are drawn; auto follows the exposure audit")
    keep: tuple[float, float] = Field((0.5, 1.0), description="share of the observed cells in a training context")
    inputs: tuple[str, ...] = Field((), description="more for the network: coordinates, day-of-year, names of maps")
    log: tuple[str, ...] = Field((), description="positive variables that are learnt in their logarithm")
    estimators: tuple[str, ...] = Field(
        ("climatology", "gaussian", "drift", "waves", "motion", "standing", "neighbourhood"),
        description="steps of the first estimate, in order; each is used where held-out cells gain by it",
    )
    solver_steps: int = Field(24, ge=2, description="conjugate-gradient steps of the Gaussian estimator")
    network: str = Field("refiner", description="name of the network")
    base: int = Field(32, ge=8, description="channels of the finest level")
    levels: int = Field(3, ge=1, description="resolutions of the network, or blocks of the 'refiner'")
    prediction: str = Field("data", description="what the network predicts: the field, the noise or their velocity")
    spread: bool = Field(True, description="let the network predict its own variance")
    patch: int = Field(
        2, ge=1, description="cells per side folded into channels by 'refiner' and 'unet'; others do not"
    )
    contexts: int = Field(10, ge=0, description="contexts averaged in a fill; 0 = all observations at once")
    choose_contexts: bool = Field(True, description="let validation choose between contexts and all observations")
    hold_out: float = Field(0.1, gt=0, lt=1, description="share of the crops with held-out cells")
    minutes: float | None = Field(None, gt=0, description="time of the whole fit, from opening to calibration")
    training: TrainSettings = TrainSettings()
    validation: HoldOutSettings = HoldOutSettings()
    audit: AuditSettings = AuditSettings()
    chain: ChainSettings = ChainSettings()
    climatology: ClimatologySettings = ClimatologySettings()
    gaussian: GaussianSettings = GaussianSettings()
    drift: DriftSettings = DriftSettings()
    waves: WavesSettings = WavesSettings()
    motion: MotionSettings = MotionSettings()
    standing: StandingSettings = StandingSettings()
    neighbourhood: NeighbourhoodSettings = NeighbourhoodSettings()

    @field_validator("network")
    @classmethod
    def _network_exists(cls, name: str) -> str:
        return _known("network", name, NETWORKS)

    @field_validator("prediction")
    @classmethod
    def _prediction_exists(cls, name: str) -> str:
        return _known("prediction", name, PREDICTIONS)

    @field_validator("estimators")
    @classmethod
    def _estimators_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for i, name in enumerate(names):
            _known("estimator", name, ESTIMATORS)
            if name in names[:i]:
                raise InputError(f"the estimator '{name}' is named twice; name each once")
            if name in NEEDED and NEEDED[name] not in names[:i]:
                raise InputError(f"the estimator '{name}' needs '{NEEDED[name]}' before it")
        return names

    @field_validator("partition")
    @classmethod
    def _partition_exists(cls, name: str) -> str:
        if name != "auto":
            check_partition(name)
        return name


def _known(kind: str, name: str, registry: Iterable[str]) -> str:
    if name not in registry:
        raise InputError(f"unknown {kind} '{name}'; choose one of {', '.join(registry)}")
    return name


def static_features(domain: Tensor, normaliser: Normaliser | None = None) -> Tensor:
    """Static features of every cell for a network (K, H, W).

    The domain (C, H, W), unless the field exists everywhere; mean and log-spread of each cell, standardised, if the
    normaliser has maps of these: they distinguish land from sea and hill from valley.
    """
    maps = [] if domain.all() else [domain.float()]
    statistics = () if normaliser is None else (normaliser.mean, np.log(normaliser.std))
    for values in statistics:
        for c, known in enumerate(domain if values.ndim == 3 and values.shape[1:] == domain.shape[1:] else ()):
            found = standardised(values[c], known.numpy())
            if found.any():
                maps.append(torch.from_numpy(found).float()[None])
    return torch.cat(maps) if maps else torch.zeros((0, *domain.shape[1:]))


def build_denoiser(
    settings: Settings,
    crop: tuple[int, int, int],
    variables: int,
    periodic: tuple[bool, bool],
    seed: int,
    maps: int = 0,
    others: bool = False,
) -> Denoiser:
    """An untrained denoiser for crops of (frames, rows, columns) with so many maps.

    With ``others`` crops have maps of other times besides (`fieldfill.data.other_times`). The global random state stays
    as it was.
    """
    patch = {"patch": settings.patch} if settings.network in PATCHED else {}
    chain = build_chain(settings, crop, variables, periodic, maps, others)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[settings.network](
            features=(3 + chain.features + 2 * others) * variables + maps,
            variables=2 * variables if settings.spread else variables,
            frames=crop[0],
            base=settings.base,
            levels=settings.levels,
            periodic=periodic,
            **patch,
        )
    schedule = VPSchedule()
    scaled = bool(set(settings.estimators) - {ZeroAnomaly.name}) and settings.prediction == "data"
    scales = Scales(variables, noise_levels(schedule)) if scaled else None
    return Denoiser(network, schedule, chain, settings.prediction, settings.spread, scales)


def build_chain(
    settings: Settings,
    crop: tuple[int, int, int],
    variables: int,
    periodic: tuple[bool, bool],
    maps: int,
    others: bool = False,
) -> Chain:
    """The estimators of ``settings`` for crops of (frames, rows, columns) with so many maps, before they learn."""
    frames, rows, columns = crop
    shape = CropShape(variables, frames, (rows, columns), periodic, maps, others, settings)
    without = (() if frames > 1 else OF_SEQUENCES) + (() if others else OF_OTHER_TIMES)
    return Chain([ESTIMATORS[name](shape) for name in settings.estimators if name not in without], settings.chain)


def build_partition(name: str, bank: Tensor, keep: tuple[float, float]) -> Partition:
    """A partition by name; ``bank`` (N, C, T, H, W) holds observation masks of the data set's own crops.

    ``block:3x3`` names the block grid, ``hide-more:block:3x3`` what is hidden together; the other names take no
    argument. Variables without changing gaps stay outside of it, always shown.
    """
    varying = varying_variables(bank)
    partition = _partition(name, bank[:, varying], keep)
    return partition if varying.all() else WithSideInputs(partition, varying)


# Partitions by name, each with how it is built from a bank of masks and the share of the context. To add one, write
# its class in partition/ and add a line here. `_partition` builds those whose name takes an argument.
PARTITIONS: dict[str, Callable[[Tensor, tuple[float, float]], Partition]] = {
    "swap": lambda bank, keep: MaskSwap(bank, keep=keep),
    "pixel": lambda bank, keep: PixelPartition(context=keep),
    "station": lambda bank, keep: StationPartition(),
    "frame": lambda bank, keep: FramePartition(),
    "variable": lambda bank, keep: VariablePartition(),
    "all-observed": lambda bank, keep: AllObserved(),
}


def check_partition(name: str) -> None:
    """Refuses a name that `build_partition` could not build."""
    kind, _, argument = name.partition(":")
    if kind == "block":
        rows, _, columns = argument.partition("x")
        if not (rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
            raise InputError(f"partition '{name}' must name its grid, such as block:3x3")
    elif kind == "hide-more":
        check_partition(argument or "pixel")
    elif kind not in PARTITIONS or argument:
        raise InputError(
            f"unknown partition '{name}'; choose one of auto, block:3x3, hide-more:block:3x3, {', '.join(PARTITIONS)}"
        )


def _partition(name: str, bank: Tensor, keep: tuple[float, float]) -> Partition:
    check_partition(name)
    kind, _, argument = name.partition(":")
    if kind == "block":
        rows, _, columns = argument.partition("x")
        return BlockPartition(int(rows), int(columns))
    if kind == "hide-more":
        return HideMore(structure=_partition(argument or "pixel", bank, keep))
    return PARTITIONS[kind](bank, keep)


def candidate_partitions(bank: Tensor, keep: tuple[float, float]) -> dict[str, Partition]:
    """The partitions that the audit chooses from when none is given."""
    names = ["swap", "pixel", "station", "frame"] + (["variable"] if varying_variables(bank).sum() > 1 else [])
    return {name: build_partition(name, bank, keep) for name in names}


# Models of gaps by name, each with how it is built for a share of observed cells on a grid (rows, columns). To add one,
# write its class in masks/ and add a line here; the docs have a tutorial.
MASKS: dict[str, Callable[[float, tuple[int, int]], MaskModel]] = {
    "pixel": lambda observed, grid: PixelMask(observed),
    "pixel-moving": lambda observed, grid: PixelMask(observed, static=False),
    "block": lambda observed, grid: BlockMask(3, 3, max(1, min(8, round(9 * observed)))),
    "sensor": lambda observed, grid: SensorMask(max(2, round(observed * grid[0] * grid[1] / 0.9)), fixed=True),
    "track": lambda observed, grid: TrackMask(spacing=TrackMask.width / observed),
    "swath": lambda observed, grid: SwathMask(width=SwathMask.spacing * observed),
    "cloud": lambda observed, grid: CloudMask(observed),
    "frame": lambda observed, grid: FrameDropout(observed),
    "variable": lambda observed, grid: VariableDropout(observed),
}


def build_mask(name: str, observed: float, grid: tuple[int, int]) -> MaskModel:
    """A mask model by name that leaves about the share ``observed`` of the cells of ``grid`` (rows, columns).

    >>> build_mask("block", observed=0.5, grid=(32, 32))
    BlockMask(rows=3, cols=3, observed=4, static=True, shared=True)
    """
    if not 0 < observed < 1:
        raise InputError(
            f"observed={observed}: the share of observed cells must lie strictly between 0 and 1, such as 0.3"
        )
    return MASKS[_known("mask pattern", name, MASKS)](observed, grid)


# Simulators by name. To add one, write a module in simulate/ with a class that takes ``size`` and ``frames`` and has
# the methods of `Simulator`, and add a line here.
SIMULATORS: dict[str, Callable[..., Simulator]] = {
    "advection": Advection,
    "shallow-water": ShallowWater,
    "navier-stokes": NavierStokes,
    "kolmogorov": NavierStokes.kolmogorov,
    "gaussian": GaussianField,
}


def build_simulator(name: str, size: int | None, frames: int | None) -> Simulator:
    """A simulator by name on a square of ``size`` cells; None takes the paper's size."""
    if name not in SIMULATORS:
        raise InputError(f"unknown equation '{name}'; choose one of {', '.join(SIMULATORS)}")
    given = {"size": size, "frames": frames}
    return SIMULATORS[name](**{key: value for key, value in given.items() if value is not None})


def simulator_of(truth: xr.Dataset) -> Simulator | None:
    """The simulator that wrote a data set; None if it does not name one."""
    if "simulator" not in truth.attrs:
        return None
    known = {builder.__name__: builder for builder in SIMULATORS.values() if isinstance(builder, type)}
    name, settings = truth.attrs["simulator"], truth.attrs.get("settings", "")
    if name not in known:
        raise InputError(f"the truth names the simulator '{name}', which is unknown; known are {', '.join(known)}")
    try:
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(settings).items()}
        return known[name](**given)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"cannot rebuild {name} from settings={settings!r} of the truth: {error}; simulate it again"
        ) from error
