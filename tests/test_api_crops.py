"""A fill in several crops: no seams, members of the stated law, the same from several processes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK, gappy_dataset, seeded, simulated_dataset
from fieldfill.config import Settings
from fieldfill.data.crops import Crops
from fieldfill.data.record import open_record
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.masks import CloudMask
from fieldfill.sampling.contexts import Ensemble
from fieldfill.sampling.solvers import Solver
from fieldfill.simulate.gaussian_field import GaussianField

GRID = (96, 80)
# Independent frames: the more there are, the smaller is the sampling error of a mean over lines.
FRAMES = 12
TRAINING = TrainSettings(steps=3, batch=2, validate_every=3)
SETTINGS = Settings(
    window=1,
    crop=32,
    base=8,
    levels=2,
    contexts=0,
    choose_contexts=False,
    solver_steps=10,
    estimators=("gaussian",),
    partition="swap",
    training=TRAINING,
)


@dataclass(frozen=True)
class Case:
    """Gappy data, a model of them in crops, and a fill with members."""

    ds: xr.Dataset
    filler: ff.Filler
    filled: xr.Dataset

    @property
    def crops(self) -> Crops:
        model = self.filler.model_
        record = open_record(self.ds, domain=model.domain.numpy())
        return model.crops(record)


def case_of(periodic: bool) -> Case:
    """A Gaussian field with a wavelength of about a crop, half of it under clouds that are renewed in every frame."""
    field = GaussianField(size=GRID, frames=FRAMES, periodic=periodic, wavelength=30.0, velocity=(0.0, 0.0), memory=0.0)
    generator = seeded()
    values = field.observe(field.simulate(1, generator)[0], generator)
    ds = simulated_dataset(field, values, CloudMask(0.5, scale=4.0, memory=0.0).sample(tuple(values.shape), generator))
    filler = ff.Filler(settings=SETTINGS, domain=np.ones(GRID, bool)).fit(ds)
    assert filler.model_.shape == (1, 32, 32)
    return Case(ds, filler, filler.fill(ds, members=36))


@pytest.fixture(scope="module")
def bounded() -> Case:
    return case_of(periodic=False)


@pytest.fixture(scope="module")
def closed() -> Case:
    return case_of(periodic=True)


def gradients(case: Case, name: str, axis: int) -> np.ndarray:
    """Mean squared difference of filled cells across each line between two rows (axis -2) or columns (axis -1).

    The last line of a periodic axis lies between its last cell and its first.
    """
    x, gaps = np.moveaxis(case.filled[name].values, axis, -1), np.moveaxis(case.filled.z_flag.values == 1, axis, -1)
    pairs = np.broadcast_to(gaps & np.roll(gaps, -1, axis=-1), x.shape)
    squares = np.where(pairs, np.roll(x, -1, axis=-1) - x, 0) ** 2
    over = tuple(range(x.ndim - 1))
    found = squares.sum(over) / pairs.sum(over)
    return found if case.crops.record.periodic[axis] else found[:-1]


def borders(case: Case, axis: int) -> np.ndarray:
    """Lines, as in `gradients`, at which crops begin or end."""
    crops = case.crops
    along, starts = crops.axes[axis], np.array(crops.tiling.starts[axis])
    assert len(starts) > 2
    lines = np.zeros(along.size, bool)
    lines[(starts - 1) % along.size] = True
    lines[(starts + along.length - 1) % along.size] = True
    return lines if crops.record.periodic[axis] else lines[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-2, -1], ids=["rows", "columns"])
@pytest.mark.parametrize("name", ["z", "z_members"])
@pytest.mark.parametrize("grid", ["bounded", "closed"])
def test_gradients_across_the_borders_of_crops_are_those_inside(grid: str, name: str, axis: int, request) -> None:
    case = request.getfixturevalue(grid)
    found, border = gradients(case, name, axis), borders(case, axis)
    inside = found[~border]
    error = inside.std() * (1 / border.sum() + 1 / len(inside)) ** 0.5
    assert error < 0.1 * inside.mean()
    assert found[border].mean() == pytest.approx(inside.mean(), abs=3 * error)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-2, -1], ids=["rows", "columns"])
@pytest.mark.parametrize("name", ["z", "z_members"])
def test_a_periodic_grid_has_no_seam_where_its_numbering_begins(closed: Case, name: str, axis: int) -> None:
    found = gradients(closed, name, axis)
    assert len(found) == GRID[axis]
    assert found[-1] == pytest.approx(found[:-1].mean(), abs=3 * found[:-1].std())


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["bounded", "closed"])
def test_members_of_several_crops_have_the_observations_the_mean_and_the_spread(grid: str, request) -> None:
    """The tolerances are those of a fill in one crop."""
    case = request.getfixturevalue(grid)
    filled, seen = case.filled, np.isfinite(case.ds.z.values)
    assert (filled.z_members.values[:, seen] == case.ds.z.values[seen]).all()
    gaps = filled.z_flag.values == 1
    left, std = (filled.z_members - filled.z).values[:, gaps], filled.z_std.values[gaps]
    assert (left.mean(0) ** 2).mean() < 0.05 * (std**2).mean()  # 1/36 is Monte-Carlo error
    assert (left**2).mean() == pytest.approx((std**2).mean(), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["exact", "weighted"])
def test_other_samplers_agree_with_the_observations_in_several_crops(bounded: Case, sampler: str) -> None:
    some = bounded.ds.isel(time=slice(0, 2))
    filled = bounded.filler.fill(some, members=2, sampler=sampler, solver=Solver(4))
    seen = np.isfinite(some.z.values)
    assert (filled.z_members.values[:, seen] == some.z.values[seen]).all()
    assert np.isfinite(filled.z_members.values).all()
    assert np.abs(filled.z_members.values[0, ~seen] - filled.z_members.values[1, ~seen]).mean() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["bounded", "closed"])
def test_several_processes_fill_several_crops_like_one(grid: str, request, monkeypatch) -> None:
    """Nor does it matter how many crops are estimated together, but for rounding.

    Sums over other batches are rounded otherwise, and conjugate gradients that stop early amplify that.
    """
    case = request.getfixturevalue(grid)
    filler, some = replace(case.filler), case.ds.isel(time=slice(0, 2))
    filler.model_ = replace(case.filler.model_, ensemble=Ensemble(2))
    alone = filler.fill(some)
    monkeypatch.setattr("fieldfill.execution.processes.BATCH", 5)
    shared = filler.fill(some, workers=2)
    assert shared.z_flag.identical(alone.z_flag)
    gaps = alone.z_std.values > 0
    for name in ("z", "z_std"):
        apart = np.abs(shared[name] - alone[name]).values
        assert (apart[~gaps] == 0).all()
        assert (apart[gaps] <= 0.01 * alone.z_std.values[gaps]).all() and apart[gaps].mean() < 1e-4


def test_a_crop_that_holds_the_whole_grid_may_be_of_any_size() -> None:
    ds = gappy_dataset(frames=12)
    first, second = (
        ff.Filler(settings=QUICK.model_copy(update={"crop": crop})).fit(ds).fill(ds, members=2) for crop in (12, 50)
    )
    assert first.drop_attrs().identical(second.drop_attrs())
