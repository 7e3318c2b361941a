"""What tests share: small seeded data made on the fly, crops and fields of them; the real ERA5 file where present."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Generator, Tensor, nn

from chromium import Browser
from fieldfill.cli.main import main
from fieldfill.config import Settings, build_denoiser, static_features
from fieldfill.data.crops import Crops
from fieldfill.data.holdout import HoldOutSettings, hold_out
from fieldfill.data.record import open_record
from fieldfill.data.transforms import Normaliser
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.diffusion.team import ALONE, Team
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.training import Training
from fieldfill.estimators.base import Given, Lesson
from fieldfill.estimators.chain import ChainSettings
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.learning import GaussianSettings
from fieldfill.estimators.gaussian.pairs import factorise
from fieldfill.partition import Partition, PixelPartition
from fieldfill.partition.exposure.estimate import AuditSettings
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.simulate.store import Simulator

ERA5 = Path(os.environ.get("FIELDFILL_ERA5", Path(__file__).parents[2] / "shared/data/era5-2mt-2019-03-uk.grib"))
# Steps of a first estimate that is learnt in no time.
NO_COVARIANCE = ("climatology", "pull-push", "motion", "neighbourhood")
# Cells without a field in `cloudy_dataset`.
LAND = np.zeros((10, 12), bool)
LAND[:4, :3] = True
# Two test processes share two cores; more threads each would only make them wait for one another.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
# A Gaussian law that is learnt in a few rounds.
BRIEF = GaussianSettings(rounds=3, tapers=(9.0,), memory_parts=(), pattern_rounds=0)
# A fit that takes no time, of everything that a fit consists of; what it learns is accordingly coarse.
QUICK = Settings(
    window=4,
    partition="swap",
    base=8,
    levels=1,
    solver_steps=4,
    contexts=2,
    training=TrainSettings(steps=2, batch=2, validate_every=2),
    validation=HoldOutSettings(wanted=8),
    audit=AuditSettings(crops=32, cells=4000, epochs=2),
    chain=ChainSettings(examples=6, efforts=()),
    gaussian=GaussianSettings(rounds=1, tapers=(9.0,), memory_parts=()),
)


@pytest.fixture(scope="session")
def era5() -> Path:
    if not ERA5.exists():
        pytest.skip(f"no ERA5 file at {ERA5}: set FIELDFILL_ERA5 to a GRIB file of hourly 2 m temperature")
    return ERA5


# Numbers


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=seeded(seed))


def rms(x: Tensor) -> float:
    """Root mean square."""
    return x.square().mean().sqrt().item()


def no_maps(x: Tensor) -> Tensor:
    """Maps (B, 0, H, W) of fields x (B, C, T, H, W) that have none."""
    return x.new_zeros(len(x), 0, *x.shape[-2:])


def double(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def stir(module: nn.Module, size: float = 0.1, seed: int = 1) -> None:
    """Adds random numbers to all weights: an untrained network is silent."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator))


# Data sets and their crops


def gappy_dataset(
    frames: int = 20,
    rows: int = 9,
    columns: int = 12,
    dtype: str = "float32",
    seed: int = 0,
    names: str = "sst",
) -> xr.Dataset:
    """Smooth moving waves with random gaps; the first column is land."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(np.arange(frames), np.arange(rows), np.arange(columns), indexing="ij")
    variables = {}
    for i, name in enumerate(names.split(",")):
        field = 10 + np.sin(0.6 * x + 0.3 * t + i) + np.cos(0.5 * y - 0.2 * t)
        field[rng.random(field.shape) < 0.4] = np.nan
        field[:, :, 0] = np.nan
        variables[name] = (
            ("time", "lat", "lon"),
            field.astype(dtype),
            {"units": "degC", "long_name": f"test {name}"},
        )
    time = np.datetime64("2020-01-01", "ns") + np.arange(frames) * np.timedelta64(1, "D")
    return xr.Dataset(
        variables,
        coords={
            "time": time,
            "lat": ("lat", np.linspace(50, 40, rows), {"units": "degrees_north"}),
            "lon": ("lon", np.linspace(0, 5.5, columns), {"units": "degrees_east"}),
        },
        attrs={"title": "test", "history": "made by a test"},
    )


def cloudy_dataset(
    dtype: str = "float64", names: str = "sst", samples: int = 0, static: bool = False, seed: int = 0
) -> xr.Dataset:
    """A moving field with land, clouds of half the sea, and one frame without any observation."""
    generator = seeded(seed)
    law = GaussianField(size=LAND.shape, frames=14, periodic=False)
    fields, clouds = (law.simulate(max(samples, 1) * 2, generator)[0].numpy()[:, 0] for _ in range(2))
    if static:
        clouds[:] = clouds[:, :1]
    variables = {}
    for c, name in enumerate(names.split(",")):
        part = slice(c % 2, None, 2)
        x = np.where((clouds[part] > 0) & ~LAND, fields[part] + 0.0, np.nan)
        if not static:
            x[0, 5] = np.nan
        x = x if samples else x[0]
        dims = ("sample", "time", "lat", "lon")[-x.ndim :]
        variables[name] = (dims, x.astype(dtype), {"units": "degC"})
    coords = {"time": np.arange(14) * 2.0, "lat": np.arange(LAND.shape[0]) * 1.0, "lon": np.arange(LAND.shape[1]) * 0.5}
    return xr.Dataset(variables, coords=coords, attrs={"title": "test"})


def simulated_dataset(simulator: Simulator, values: Tensor, observed: Tensor) -> xr.Dataset:
    """Values (B, C, T, H, W) of a simulator's variables on its grid, NaN where they are not observed."""
    coordinates = {name: (name, axis, attrs) for name, (axis, attrs) in simulator.coordinates().items()}
    dims = ("sample", "time", *list(coordinates)[-2:])
    gappy = values.masked_fill(~observed, torch.nan).numpy()
    return xr.Dataset({name: (dims, gappy[:, i]) for i, name in enumerate(simulator.variables)}, coordinates)


def gappy_record(values: np.ndarray, share: float = 0.5, seed: int = 1) -> xr.Dataset:
    """One variable (T, H, W) of which a share of the cells is observed at random."""
    seen = np.random.default_rng(seed).random(values.shape) < share
    return xr.Dataset({"v": (("time", "lat", "lon"), np.where(seen, values, np.nan))})


def crops_of(
    ds: xr.Dataset,
    frames: int,
    held: float = 0.3,
    *,
    size: tuple[int, int] | None = None,
    unit: bool = False,
    domain: np.ndarray | None = None,
    maps: Tensor | None = None,
    seed: int = 0,
) -> Crops:
    """Crops of a data set of which a share has held-out cells.

    ``size`` are the rows and columns of a crop, by default all of them; ``unit`` leaves the values as they are.
    """
    record = open_record(ds, domain=domain)
    none, one = np.zeros(len(record.mean)), np.ones(len(record.mean))
    normaliser = Normaliser(none, one) if unit else Normaliser(record.mean, record.std)
    crops = Crops(record, normaliser, (frames, *(size or record.shape[-2:])), maps=maps)
    if held:
        crops.held = hold_out(crops, held, seeded(seed))
    return crops


def with_hidden_values(crops: Crops, change: Callable[[np.ndarray], np.ndarray]) -> Crops:
    """The same crops of a record whose values at the held-out cells are others; a crop is a run of whole frames."""
    record = crops.record
    values, _ = record.arrays()
    for (sample, start, _, _), mask in zip(crops.held.places, crops.held.masks):
        part = values[sample, :, start : start + crops.length]
        part[mask.numpy()] = change(part[mask.numpy()])
    parts = {name: record.ds[name] for name in record.variables}
    changed = {name: part.copy(data=values[:, i].reshape(part.shape)) for i, (name, part) in enumerate(parts.items())}
    return replace(crops, record=replace(record, ds=record.ds.assign(changed)))


# Estimators


def given_of(y: Tensor, context: Tensor, noise: float | Tensor = 0.0, maps: Tensor | None = None) -> Given:
    """Crops seen at a context, with noise of one variance; ``maps`` (K, H, W) are those of all of them."""
    maps = y.new_zeros(0, *y.shape[-2:]) if maps is None else maps
    return Given(y, context, torch.as_tensor(noise), maps.expand(len(y), *maps.shape[-3:]))


def lesson_of(crops: Crops, partition: Partition | None = None, seed: int = 0) -> Lesson:
    """What estimators learn from, at the noise of a fill."""
    return Lesson(crops, partition or PixelPartition(), VPSchedule().least_noise, seed, seeded(seed))


def covariance_table(law: GaussianField, frames: int | None = None) -> Tensor:
    """The true covariance (1, 1, T, rows, columns) of a periodic field in the layout of an estimated one."""
    return torch.stack([law.covariance(lag) for lag in range(frames or law.frames)]).float()[None, None]


def dense_covariance(field: GaussianField, frames: int) -> Tensor:
    """Covariance of all cells (T H W, T H W), entry by entry from ``covariance`` by separation."""
    height, width = field.shape
    cells = [(t, i, j) for t in range(frames) for i in range(height) for j in range(width)]
    tables = {lag: field.covariance(lag) for lag in range(1 - frames, frames)}
    shift = (0, 0) if field.periodic else (height - 1, width - 1)
    out = torch.empty(len(cells), len(cells), dtype=torch.float64)
    for a, (t, i, j) in enumerate(cells):
        for b, (s, k, l) in enumerate(cells):
            out[a, b] = tables[t - s][i - k + shift[0], j - l + shift[1]]
    return out


def field_of(law: GaussianField, steps: int = 200, tolerance: float = 1e-14, frames: int | None = None) -> LearntField:
    """A periodic field that has the true covariance and the true noise of a law."""
    frames = frames or law.frames
    field = LearntField(1, frames, law.shape, (True, True), steps=steps, tolerance=tolerance).eval()
    field.set_covariance(factorise(covariance_table(law, frames), field))
    field.nugget.fill_(law.noise_std**2)
    return field


# Training


def make_training(
    settings: TrainSettings | None = None,
    seed: int = 0,
    ds: xr.Dataset | None = None,
    partition: Partition | None = None,
    team: Team = ALONE,
) -> Training:
    """A short training of a small network on crops of six whole frames; its first estimate has learnt nothing."""
    crops = crops_of(gappy_dataset(frames=40) if ds is None else ds, 6, seed=seed)
    crops.maps = static_features(crops.domain)
    settings = settings or TrainSettings(steps=12, batch=4, validate_every=4)
    config = Settings(window=6, base=8, levels=2, training=settings)
    variables = len(crops.record.variables)
    denoiser = build_denoiser(config, crops.shape, variables, crops.periodic, seed, len(crops.maps))
    return Training(denoiser, crops, partition or PixelPartition(), settings, seed, team)


# Files


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# Processes


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    profile = tempfile.mkdtemp()
    running = Browser(Path(profile))
    yield running
    running.close()
    shutil.rmtree(profile, ignore_errors=True)


def exit_code(*arguments: object) -> int:
    """Exit code of the command line, called in this process."""
    before = sys.argv
    sys.argv = ["fieldfill", *map(str, arguments)]
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    finally:
        sys.argv = before
    raise AssertionError("the command did not exit")


def run_fieldfill(*arguments: object, check: int | None = 0) -> subprocess.CompletedProcess:
    """The command line in this process; ``check`` is the exit code that it must have."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
        code = exit_code(*arguments)
    if check is not None:
        assert code == check, said.getvalue()
    return subprocess.CompletedProcess([*map(str, arguments)], code, out.getvalue(), said.getvalue())


def run_process(*arguments: object, check: int | None = 0) -> subprocess.CompletedProcess:
    """The same in a process of its own, which takes seconds to begin."""
    command = [sys.executable, "-m", "fieldfill", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if check is not None:
        assert done.returncode == check, done.stderr
    return done
