"""Names ↔ objects: the only place where strings become classes.

A `Config` is a frozen, serialisable description of a model; the builders below turn its names into the objects that
all lower layers work with. Presets are configurations with a purpose.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from fieldfill.denoise import PREDICTIONS, Denoiser, Skip
from fieldfill.errors import InputError
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
from fieldfill.nn import (
    FNO,
    FoldedUNet,
    GaussianSkip,
    LocalRegression,
    PullPush,
    Refiner,
    Scales,
    SpaceTimeUNet,
    Transport,
    zero_skip,
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
from fieldfill.pde import Advection, NavierStokes, ShallowWater
from fieldfill.pde.gaussian import GaussianField
from fieldfill.pde.store import Simulator
from fieldfill.schedule import VPSchedule
from fieldfill.train import TrainSettings
from fieldfill.windows import Normaliser

__all__ = [
    "PRESETS",
    "Config",
    "adjusted",
    "build_denoiser",
    "build_mask",
    "build_partition",
    "build_simulator",
    "candidate_partitions",
    "preset",
    "static_features",
]


class Config(BaseModel):
    """Everything that determines a model besides the data and the seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int = Field(8, ge=1, description="frames seen together")
    partition: str = Field("auto", description="how contexts are drawn; auto asks the exposure audit")
    keep: tuple[float, float] = Field((0.5, 1.0), description="share of the observed cells in a training context")
    inputs: tuple[str, ...] = Field((), description="coordinates, day-of-year, or names of maps that the network knows")
    log: tuple[str, ...] = Field((), description="positive variables that are learnt in their logarithm")
    climatology: bool = Field(True, description="give cells a mean and spread of their own where that pays")
    network: str = Field("refiner", description="name of the network")
    base: int = Field(32, ge=8, description="channels of the finest level")
    levels: int = Field(3, ge=1, description="resolutions of the network, or blocks of the 'refiner'")
    prediction: str = Field("data", description="what the network predicts: the field, the noise or their velocity")
    spread: bool = Field(True, description="let the network say how sure it is")
    patch: int = Field(
        2, ge=1, description="cells per side folded into channels by 'refiner' and 'unet'; others do not"
    )
    skip: str = Field("gaussian", description="linear estimate that the network corrects")
    transport: bool = Field(True, description="add to the skip what the motion of a window carries into its gaps")
    local: bool = Field(True, description="add to the skip what maps and the neighbourhood of a cell say")
    skip_steps: int = Field(24, ge=2, description="conjugate-gradient steps of the Gaussian skip")
    contexts: int = Field(10, ge=0, description="contexts averaged in a fill; 0 = all observations at once")
    choose_contexts: bool = Field(True, description="let validation choose between contexts and all observations")
    hold_out: float = Field(0.1, gt=0, lt=1, description="share of the windows with held-out cells")
    training: TrainSettings = TrainSettings()


PRESETS: dict[str, Config] = {
    "fast": Config(),
    "standard": Config(base=64, levels=4, training=TrainSettings(steps=10_000, batch=8, ema=0.999, validate_every=250)),
    "paper": Config(
        keep=(0.7, 0.7),
        climatology=False,
        network="space-time-unet",
        base=32,
        spread=False,
        skip="none",
        transport=False,
        local=False,
        choose_contexts=False,
        training=TrainSettings(steps=20000, time_power=1.0, batch=8, rate=1e-3, decay=0.0, shrink=False),
    ),
}


def preset(name: str, window: int, partition: str, steps: int | None, minutes: float | None) -> Config:
    """A preset with the few settings that everybody changes."""
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}'; choose one of {', '.join(PRESETS)}")
    if window < 1:
        raise InputError(f"window={window}; a window has one frame or more")
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps}; train for one step or more")
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes={minutes}; give a time above 0")
    base = PRESETS[name]
    training = replace(base.training, steps=steps or base.training.steps, minutes=minutes)
    return base.model_copy(update={"window": window, "partition": partition, "training": training})


def adjusted(config: Config, changes: Sequence[str]) -> Config:
    """``config`` with settings changed by ``name=value``, such as ``network=fno`` or ``training.batch=64``."""
    values = config.model_dump()
    for change in changes:
        name, equals, text = change.partition("=")
        place = values["training"] if name.startswith("training.") else values
        key = name.removeprefix("training.")
        if not equals or key not in place or key == "training":
            names = [*(n for n in values if n != "training"), *(f"training.{n}" for n in values["training"])]
            raise InputError(f"cannot set '{change}'; write name=value with a name out of {', '.join(names)}")
        place[key] = tuple(text.split(",")) if isinstance(place[key], tuple) else text
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(f"cannot set {name} to '{first['input']}': {first['msg']}") from None


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "refiner": Refiner,
    "unet": FoldedUNet,
    "space-time-unet": SpaceTimeUNet,
    "karras-unet": partial(SpaceTimeUNet, magnitude_preserving=True),
    "fno": FNO,
}
PATCHED = ("refiner", "unet")
LEVELS = 8  # of noise, at which the errors of first estimates are measured
SKIPS = ("gaussian", "pull-push", "none")


def static_features(domain: Tensor, normaliser: Normaliser | None = None) -> Tensor:
    """What a network knows of every cell (K, H, W).

    The domain (C, H, W), unless the field exists everywhere; mean and log-spread of each cell, standardised, if the
    normaliser has maps of these: they tell land from sea and hill from valley.
    """
    maps = [] if domain.all() else [domain.float()]
    statistics = () if normaliser is None else (normaliser.mean, np.log(normaliser.std))
    for values in statistics:
        for c, known in enumerate(domain if values.ndim == 3 and values.shape[1:] == domain.shape[1:] else ()):
            one = torch.from_numpy(values[c]).float()
            spread = one[known].std()
            if spread > 0:
                maps.append(torch.where(known, (one - one[known].mean()) / spread, 0)[None])
    return torch.cat(maps) if maps else torch.zeros((0, *domain.shape[1:]))


def build_denoiser(
    config: Config, domain: Tensor, periodic: tuple[bool, bool], seed: int, static: Tensor | None = None
) -> Denoiser:
    """An untrained denoiser for fields on ``domain`` (C, H, W) bool; leaves the global random state as it was.

    ``static`` (K, H, W) are maps that the network knows; by default the domain.
    """
    if config.network not in NETWORKS:
        raise InputError(f"unknown network '{config.network}'; choose one of {', '.join(NETWORKS)}")
    if config.prediction not in PREDICTIONS:
        raise InputError(f"unknown prediction '{config.prediction}'; choose one of {', '.join(PREDICTIONS)}")
    patch = {"patch": config.patch} if config.network in PATCHED else {}
    static = static_features(domain) if static is None else static
    variables = domain.shape[0]
    moving = config.transport and config.window > 1 and config.skip != "none"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[config.network](
            features=(5 if moving else 3) * variables + len(static),
            variables=2 * variables if config.spread else variables,
            frames=config.window,
            base=config.base,
            levels=config.levels,
            periodic=periodic,
            **patch,
        )
    skip = _build_skip(config, domain, periodic)
    transport = Transport(variables, periodic) if moving else None
    local = LocalRegression(variables, len(static), periodic) if config.local and config.skip != "none" else None
    schedule = VPSchedule()
    scaled = config.skip != "none" and config.prediction == "data"
    scales = Scales(variables, schedule.log_snr(schedule.times(LEVELS, "snr")).float()) if scaled else None
    return Denoiser(network, schedule, skip, static, config.prediction, config.spread, transport, local, scales)


def _build_skip(config: Config, domain: Tensor, periodic: tuple[bool, bool]) -> Skip:
    if config.skip == "gaussian":
        variables, rows, columns = domain.shape
        return GaussianSkip(variables, config.window, (rows, columns), periodic, steps=config.skip_steps)
    if config.skip == "pull-push":
        return PullPush()
    if config.skip == "none":
        return zero_skip
    raise InputError(f"unknown skip '{config.skip}'; choose one of {', '.join(SKIPS)}")


def build_partition(name: str, bank: Tensor, keep: tuple[float, float]) -> Partition:
    """A partition by name; ``bank`` (N, C, T, H, W) holds observation masks of the data set's own windows.

    ``block:3x3`` names the block grid, ``hide-more:block:3x3`` what is hidden together; the other names take no
    argument. Variables without changing gaps stay outside of it, always shown.
    """
    varying = varying_variables(bank)
    partition = _partition(name, bank[:, varying], keep)
    return partition if varying.all() else WithSideInputs(partition, varying)


def _partition(name: str, bank: Tensor, keep: tuple[float, float]) -> Partition:
    kind, _, argument = name.partition(":")
    if kind == "block":
        return _block_partition(name, argument)
    if kind == "hide-more":
        return HideMore(structure=_partition(argument or "pixel", bank, keep))
    builders: dict[str, Callable[[], Partition]] = {
        "swap": lambda: MaskSwap(bank, keep=keep),
        "pixel": lambda: PixelPartition(context=keep),
        "station": lambda: StationPartition(),
        "frame": lambda: FramePartition(),
        "variable": lambda: VariablePartition(),
        "all-observed": lambda: AllObserved(),
    }
    if kind not in builders or argument:
        raise InputError(
            f"unknown partition '{name}'; choose one of auto, block:3x3, hide-more:block:3x3, {', '.join(builders)}"
        )
    return builders[kind]()


def _block_partition(name: str, argument: str) -> BlockPartition:
    rows, _, columns = argument.partition("x")
    if not (rows.isdigit() and columns.isdigit()):
        raise InputError(f"partition '{name}' must name its grid, such as block:3x3")
    return BlockPartition(int(rows), int(columns))


def candidate_partitions(bank: Tensor, keep: tuple[float, float]) -> dict[str, Partition]:
    """What the audit chooses from when nobody says how the gaps came about."""
    names = ["swap", "pixel", "station", "frame"] + (["variable"] if varying_variables(bank).sum() > 1 else [])
    return {name: build_partition(name, bank, keep) for name in names}


def build_mask(name: str, observed: float, grid: tuple[int, int]) -> MaskModel:
    """A mask model by name that leaves about the share ``observed`` of the cells of ``grid`` (rows, columns)."""
    if not 0 < observed < 1:
        raise InputError(f"observed={observed}: the share of observed cells lies between 0 and 1")
    swath, track = SwathMask(), TrackMask()
    builders: dict[str, Callable[[], MaskModel]] = {
        "pixel": lambda: PixelMask(observed),
        "pixel-moving": lambda: PixelMask(observed, static=False),
        "block": lambda: BlockMask(3, 3, max(1, min(8, round(9 * observed)))),
        "sensor": lambda: SensorMask(stations=max(2, round(observed * grid[0] * grid[1] / 0.9)), fixed=True),
        "track": lambda: replace(track, spacing=track.width / observed),
        "swath": lambda: replace(swath, width=swath.spacing * observed),
        "cloud": lambda: CloudMask(observed),
        "frame": lambda: FrameDropout(observed),
        "variable": lambda: VariableDropout(observed),
    }
    if name not in builders:
        raise InputError(f"unknown mask pattern '{name}'; choose one of {', '.join(builders)}")
    return builders[name]()


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
