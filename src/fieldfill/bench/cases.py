"""The data of the benchmark: complete fields, the gaps put into them, and three scales.

A case is one data set under one law of gaps. Its samples are split once: the *training* samples are given to a method
with their gaps, and what a method chooses for itself (hold-out, rank, contexts) it chooses inside them; the *test*
samples are other samples with gaps of their own, filled and scored against the truth. Masks are drawn per sample and,
but for clouds, constant over its frames.

Complete fields are simulated once per scale, whatever the case and the seed, and kept in a cache; the seed of a row
sets the masks, the observation noise and the training.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from fieldfill.api import hide
from fieldfill.bench.real_records import REAL_RECORDS, gappy_and_truth
from fieldfill.config import simulator_of
from fieldfill.data.axes import find_axes
from fieldfill.data.io import open_dataset
from fieldfill.errors import InputError
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.simulate.store import Simulator, write

__all__ = ["CASES", "SCALES", "UNET", "Case", "Data", "Scale", "Unavailable", "load"]

# Environment variable that names the ERA5 file, and its default relative to the project.
ERA5_FILE = "FIELDFILL_ERA5"
ERA5_PLACE = "../shared/data/era5-2mt-2019-03-uk.grib"
# Hours of a window of ERA5.
ERA5_HOURS = 3
# The energy of a mode of the Gaussian fields falls as (4 + k²)^(-POWER).
POWER = 1.5


class Unavailable(Exception):
    """A data file, a package or a setting that a row needs is missing. The row holds the reason and is tried again."""


@dataclass(frozen=True)
class Case:
    """A data set and its gaps.

    Attributes
    ----------
    pattern, observed
        Mask model and share observed, as in `fieldfill.masks.hiding.hide`.
    record
        Whether the data are one long record that is learnt from and filled, instead of samples.
    real
        Whether it is one of `fieldfill.bench.real_records`, which have ways of their own to hide cells.
    """

    name: str
    data: str
    pattern: str
    observed: float
    record: bool = False
    real: bool = False

    @property
    def unit(self) -> str:
        """The partition whose contexts have the structure of the gaps."""
        return {"pixel": "pixel", "block": "block:3x3", "cloud": "swap"}[self.pattern]


def _case(data: str, pattern: str, observed: float, record: bool = False) -> Case:
    share = f"{round(9 * observed)}of9" if pattern == "block" else f"{round(100 * observed)}"
    kind = "record-" if record else ""
    return Case(f"{data}-{kind}{pattern}{share}", data, pattern, observed, record)


# Every case: data, gaps and share of observed cells; a new one is a line here.
_ALL = [
    *(_case("navier-stokes", "pixel", share) for share in (0.8, 0.6, 0.2)),
    *(_case("era5", "pixel", share) for share in (0.2, 0.1, 0.01)),
    *(_case(data, "block", kept / 9) for data in ("shallow-water", "advection") for kept in (8, 5)),
    _case("navier-stokes", "block", 8 / 9),
    *(_case(data, "pixel", share) for data in ("shallow-water", "advection") for share in (0.8, 0.3)),
    _case("gaussian", "cloud", 0.4),
    *(_case("era5", "pixel", share, record=True) for share in (0.2, 0.1, 0.01)),
    *(Case(name, name, "own", np.nan, record=True, real=True) for name in REAL_RECORDS),
]
CASES: dict[str, Case] = {case.name: case for case in _ALL}


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes
    ----------
    simulators
        One for each simulated data set.
    samples
        Training and test samples of each simulated data set.
    crop
        Rows and columns kept of the ERA5 file and of real records; None keeps all.
    frames
        Frames kept of real records; None keeps all.
    network
        Settings of `fieldfill.config.Settings` that the learnt methods share: one backbone of one size.
    ours
        Settings in place of the defaults of `fieldfill`, which brings its own network and batches.
    minutes, steps
        Budget of a training, in minutes of all processors together; the first to be used up ends it.
    fit_minutes
        Budget of the whole fit of a real record, in minutes on the clock; None leaves it to ``steps``.
    batch
        Samples per training step of the others for each data set.
    window
        Frames that a network sees at once; `fieldfill` sees all frames of a sample.
    sizes
        Frames and cells per side at which the networks are timed.
    heavy
        Cells per side up to which the slower networks are timed; None times them at all sizes.
    solver_steps, realised
        Steps of the differential equation in a multi-step fill, and test samples that are filled so; None fills all.
    """

    name: str
    simulators: Mapping[str, Simulator]
    samples: Mapping[str, tuple[int, int]]
    crop: int | None
    network: Mapping[str, Any]
    ours: Mapping[str, Any]
    minutes: float | None
    steps: int
    batch: Mapping[str, int]
    window: int
    sizes: tuple[tuple[int, int], ...]
    solver_steps: int
    heavy: int | None = None
    realised: int | None = None
    validate_every: int = 50
    frames: int | None = None
    fit_minutes: float | None = None


# The network that all learnt methods but ours share on two cores.
UNET = {"network": "unet", "base": 48, "levels": 3, "patch": 2}
DATA = ("advection", "shallow-water", "navier-stokes", "gaussian", "era5")

# How large each scale is.
_SCALES = [
    Scale(
        "smoke",
        {
            "advection": Advection(size=12, frames=4),
            "shallow-water": ShallowWater(size=12, frames=4),
            "navier-stokes": NavierStokes(size=12, frames=4, resolution=12, warmup=0.1),
            "gaussian": GaussianField(size=12, frames=4, slope=POWER),
        },
        dict.fromkeys(DATA, (12, 3)),
        crop=12,
        network={"network": "unet", "base": 8, "levels": 2},
        ours={"base": 8, "levels": 2, "solver_steps": 3},
        minutes=None,
        steps=3,
        batch=dict.fromkeys(DATA, 4),
        window=3,
        sizes=((2, 8), (2, 12)),
        solver_steps=3,
        validate_every=2,
        frames=120,
    ),
    Scale(
        "cpu",
        {
            "advection": Advection(),
            "shallow-water": ShallowWater(),
            # Twenty of the paper's hundred frames, computed on 128 cells a side in place of 160: all of them would cost
            # five times as much to simulate, and the Gaussian estimator as much more for each training step.
            "navier-stokes": NavierStokes(frames=20, resolution=128),
            "gaussian": GaussianField(slope=POWER),
        },
        {"advection": (256, 32), "shallow-water": (256, 32), "navier-stokes": (192, 32), "gaussian": (512, 32)},
        crop=None,
        network=UNET,
        ours={"solver_steps": 20},
        minutes=6.0,
        steps=100_000,
        batch={"advection": 16, "shallow-water": 16, "navier-stokes": 8, "gaussian": 16, "era5": 16},
        # Within minutes a network learns more from short windows, of which each sample has many, than from 256 samples.
        window=8,
        sizes=((8, 32), (8, 64), (8, 128), (8, 256), (50, 32)),
        solver_steps=50,
        heavy=64,
        realised=8,
        fit_minutes=5.0,
    ),
    Scale(
        "paper",
        {
            "advection": Advection(),
            "shallow-water": ShallowWater(),
            "navier-stokes": NavierStokes(),
            "gaussian": GaussianField(slope=POWER),
        },
        {
            "advection": (5000, 1000),
            "shallow-water": (5000, 1000),
            "navier-stokes": (1024, 128),
            "gaussian": (5000, 1000),
        },
        crop=None,
        network={"network": "space-time-unet", "base": 32, "levels": 3},
        ours={},
        minutes=None,
        steps=20_000,
        batch=dict.fromkeys(DATA, 8),
        window=100,
        sizes=((8, 32), (8, 64), (8, 128), (8, 256), (50, 32), (100, 64)),
        solver_steps=200,
        validate_every=500,
        fit_minutes=60.0,
    ),
]
SCALES: dict[str, Scale] = {scale.name: scale for scale in _SCALES}


@dataclass(frozen=True)
class Data:
    """The data that a method is given, and the truth that it is scored against.

    Attributes
    ----------
    train, test
        Gappy data, NaN where missing.
    truth
        The complete test data; of a real record only the values at hidden cells. Methods never see it.
    domain
        (H, W) bool, all True: with few samples some cells are never observed, and these belong to the domain, too. Of a
        real record (C, H, W), the cells where it has a value at some time.
    """

    train: xr.Dataset
    test: xr.Dataset
    truth: xr.Dataset
    domain: np.ndarray = field(repr=False)

    @property
    def frames(self) -> int:
        return find_axes(self.truth).sizes(self.truth)[1]

    def judged_by(self, samples: int | None) -> "Data":
        """The same with the first test samples only; None keeps all."""
        some = slice(samples)
        return replace(self, test=self.test.isel(sample=some), truth=self.truth.isel(sample=some))


def load(case: Case, scale: Scale, seed: int, cache: Path, log: Callable[[str], None] | None = None) -> Data:
    """The data of a case; complete fields are simulated into ``cache`` unless they are there already."""
    if case.real:
        try:
            gappy, truth, inside = gappy_and_truth(REAL_RECORDS[case.data], (scale.frames, scale.crop), seed)
        except InputError as error:
            raise Unavailable(str(error)) from error
        return Data(gappy, gappy, truth, inside)
    if case.data == "era5":
        train, test = _era5(case, scale)
    else:
        counts = zip(("train", "test"), scale.samples[case.data])
        train, test = (_simulated(case.data, scale, split, count, cache, log) for split, count in counts)
    first = next(iter(test.data_vars.values()))
    domain = np.ones(first.shape[-2:], bool)
    # Training and test gaps of all seeds differ from one another.
    hidden = _gappy(case, scale, test, 2 * seed + 1)
    learnt = hidden if case.record else _gappy(case, scale, train, 2 * seed)
    return Data(learnt, hidden, test, domain)


def _gappy(case: Case, scale: Scale, truth: xr.Dataset, seed: int) -> xr.Dataset:
    seen = truth
    if case.data == "gaussian":
        law = scale.simulators["gaussian"]
        assert isinstance(law, GaussianField)
        generator = torch.Generator().manual_seed(10_000 + seed)
        noisy = law.observe(torch.from_numpy(truth.z.values), generator).numpy()
        seen = truth.assign(z=truth.z.copy(data=noisy))
    return hide(seen, case.pattern, case.observed, ERA5_HOURS if case.record else None, seed=seed)[0]


def _simulated(
    data: str, scale: Scale, split: str, count: int, cache: Path, log: Callable[[str], None] | None
) -> xr.Dataset:
    path = cache / scale.name / "data" / f"{data}-{split}.zarr"
    if not path.exists():
        if log is not None:
            log(f"simulating {count} samples: {data}, {split}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(scale.simulators[data], path, count, seed=("train", "test").index(split))
    ds = open_dataset(path).load()
    if ds.sizes["sample"] != count or simulator_of(ds) != scale.simulators[data]:
        raise InputError(
            f"{path} holds other data than those of the scale '{scale.name}'; remove it, and they are simulated again"
        )
    return ds


def _era5(case: Case, scale: Scale, every: int = 8) -> tuple[xr.Dataset, xr.Dataset]:
    """The month itself (twice) for a record, else windows of three hours; one day in ``every`` is for the test."""
    path = os.environ.get(ERA5_FILE, ERA5_PLACE)
    if not path or not Path(path).exists():
        raise Unavailable(f"no ERA5 file: set {ERA5_FILE} to a file of hourly 2 m temperature (t2m)")
    month = open_dataset(path)[["t2m"]].load()
    rows, columns = month.t2m.dims[-2:]
    if scale.crop is not None:
        month = month.isel({rows: slice(scale.crop), columns: slice(scale.crop), "time": slice(120)})
    month = month.drop_vars([name for name in month.coords if name not in month.dims])
    if case.record:
        return month, month
    windows = month.sizes["time"] // ERA5_HOURS
    values = month.t2m.values[: windows * ERA5_HOURS]
    values = values.reshape(windows, ERA5_HOURS, *values.shape[1:])
    coords = {"time": np.arange(ERA5_HOURS, dtype=float), rows: month[rows], columns: month[columns]}
    samples = xr.Dataset({"t2m": (("sample", "time", rows, columns), values, month.t2m.attrs)}, coords=coords)
    samples.time.attrs = {"axis": "T", "long_name": "hour of the window"}
    day = np.arange(windows) * ERA5_HOURS // 24
    test = day % every == every // 2
    return samples.isel(sample=~test), samples.isel(sample=test)
