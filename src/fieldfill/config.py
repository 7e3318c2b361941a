"""Names ↔ objects: the only place where strings become classes.

A `Config` is a frozen, serialisable description of a model; the builders below turn its names into the objects that
all lower layers work with. Presets are configurations with a purpose.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fieldfill.denoise import Denoiser, Skip
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
from fieldfill.nn import FoldedUNet, GaussianSkip, PullPush, zero_skip
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
)
from fieldfill.pde import Advection, NavierStokes, ShallowWater
from fieldfill.pde.gaussian import GaussianField
from fieldfill.pde.store import Simulator
from fieldfill.schedule import VPSchedule
from fieldfill.train import TrainSettings

__all__ = [
    "PRESETS",
    "Config",
    "build_denoiser",
    "build_mask",
    "build_partition",
    "build_simulator",
    "candidate_partitions",
    "preset",
]


class Config(BaseModel):
    """Everything that determines a model besides the data and the seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int = Field(8, ge=1, description="frames seen together")
    partition: str = Field("auto", description="how contexts are drawn; auto asks the exposure audit")
    keep: tuple[float, float] = Field((0.5, 1.0), description="share of the observed cells in a training context")
    network: str = Field("unet", description="name of the network")
    base: int = Field(32, ge=8, description="channels of the finest level")
    levels: int = Field(4, ge=1, description="resolutions of the network")
    skip: str = Field("gaussian", description="linear estimate that the network corrects")
    skip_steps: int = Field(60, ge=2, description="conjugate-gradient steps of the Gaussian skip")
    contexts: int = Field(10, ge=0, description="contexts averaged in a fill; 0 = all observations at once")
    choose_contexts: bool = Field(True, description="let validation choose between contexts and all observations")
    hold_out: float = Field(0.1, gt=0, lt=1, description="share of the windows with held-out cells")
    training: TrainSettings = TrainSettings()


PRESETS: dict[str, Config] = {
    "fast": Config(),
    "standard": Config(base=64, training=TrainSettings(steps=6000, ema=0.999, validate_every=250)),
    "paper": Config(
        keep=(0.7, 0.7),
        skip="none",
        choose_contexts=False,
        training=TrainSettings(steps=20000, time_power=1.0, batch=8, rate=1e-3, decay=0.0),
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


NETWORKS: dict[str, Callable[..., nn.Module]] = {"unet": FoldedUNet}
SKIPS = ("gaussian", "pull-push", "none")


def build_denoiser(config: Config, domain: Tensor, periodic: tuple[bool, bool], seed: int) -> Denoiser:
    """An untrained denoiser for fields on ``domain`` (C, H, W) bool; leaves the global random state as it was."""
    if config.network not in NETWORKS:
        raise InputError(f"unknown network '{config.network}'; choose one of {', '.join(NETWORKS)}")
    static = domain.float() if not domain.all() else domain.new_zeros((0, *domain.shape[1:]), dtype=torch.float32)
    variables = domain.shape[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[config.network](
            features=3 * variables + len(static),
            variables=variables,
            frames=config.window,
            base=config.base,
            levels=config.levels,
            periodic=periodic,
        )
    skip = _build_skip(config, domain, periodic)
    return Denoiser(network, VPSchedule(), skip, static)


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

    ``block:3x3`` names the block grid; the other names take no argument.
    """
    kind, _, argument = name.partition(":")
    if kind == "block":
        return _block_partition(name, argument)
    builders = _builders(bank, keep)
    if kind not in builders or argument:
        raise InputError(f"unknown partition '{name}'; choose one of auto, block:3x3, {', '.join(builders)}")
    return builders[kind]()


def _builders(bank: Tensor, keep: tuple[float, float]) -> dict[str, Callable[[], Partition]]:
    return {
        "swap": lambda: MaskSwap(bank, keep=keep),
        "pixel": lambda: PixelPartition(context=keep),
        "station": lambda: StationPartition(),
        "frame": lambda: FramePartition(),
        "variable": lambda: VariablePartition(),
        "all-observed": lambda: AllObserved(),
        "hide-more": lambda: HideMore(structure=PixelPartition(context=keep)),
    }


def _block_partition(name: str, argument: str) -> BlockPartition:
    rows, _, columns = argument.partition("x")
    if not (rows.isdigit() and columns.isdigit()):
        raise InputError(f"partition '{name}' must name its grid, such as block:3x3")
    return BlockPartition(int(rows), int(columns))


def candidate_partitions(bank: Tensor, keep: tuple[float, float]) -> dict[str, Partition]:
    """What the audit chooses from when nobody says how the gaps came about."""
    builders = _builders(bank, keep)
    names = ["swap", "pixel", "station", "frame"] + (["variable"] if bank.shape[1] > 1 else [])
    return {name: builders[name]() for name in names}


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
