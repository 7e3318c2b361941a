"""Fitted and filled: one frame, sections, levels, and with one model other regions and fewer frames."""

from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import gappy_dataset
from fieldfill.config import Settings
from fieldfill.data.flags import FLAGS
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.errors import InputError, InputWarning

pytestmark = pytest.mark.filterwarnings("ignore:a single frame does not show")

SETTINGS = Settings(
    window=6,
    crop=12,
    base=8,
    levels=2,
    contexts=0,
    choose_contexts=False,
    solver_steps=10,
    estimators=("climatology", "gaussian"),
    partition="swap",
    training=TrainSettings(steps=2, batch=2, validate_every=2),
)
# The fitted region of `gappy_dataset(20, 18, 20)`; its first column is never observed.
REGION = {"lat": slice(3, 17), "lon": slice(2, 16)}


def check_fill(filled: xr.Dataset, ds: xr.Dataset, name: str = "sst") -> None:
    """Observed values bit for bit, every gap filled, dimensions and coordinates as they were."""
    seen = np.isfinite(ds[name].values)
    assert filled[name].dims == ds[name].dims == filled[f"{name}_std"].dims
    assert np.array_equal(filled[name].values[seen].view(np.uint8), ds[name].values[seen].view(np.uint8))
    inside = filled[f"{name}_flag"].values != FLAGS["outside_domain"]
    assert np.isfinite(filled[name].values[inside]).all() and (seen <= inside).all()
    assert all(filled[coord].identical(ds[coord]) for coord in ds.coords)


@dataclass(frozen=True)
class Fitted:
    whole: xr.Dataset
    model: ff.Filler

    @property
    def region(self) -> xr.Dataset:
        return self.whole.isel(REGION)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    whole = gappy_dataset(20, 18, 20, dtype="float64")
    return Fitted(whole, ff.Filler(settings=SETTINGS).fit(whole.isel(REGION)))


@pytest.fixture(scope="module")
def filled(fitted) -> xr.Dataset:
    return fitted.model.fill(fitted.region)


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.isel(lat=slice(None, None, -1)),
        lambda ds: ds.assign_coords(lon=("lon", ds.lon.values - 360, ds.lon.attrs)),
        lambda ds: ds.transpose("lon", "lat", "time"),
        lambda ds: ds.expand_dims(depth=[0.0], axis=1),
    ],
    ids=["descending", "other side of the circle", "transposed", "with a depth"],
)
def test_the_same_cells_in_another_arrangement_are_filled_alike(fitted, filled, change) -> None:
    ds = change(fitted.region)
    again = fitted.model.fill(ds)
    check_fill(again, ds)
    same = change(filled)
    for name in ("sst", "sst_std", "sst_flag"):
        assert np.array_equal(again[name].values, same[name].transpose(*again[name].dims).values, equal_nan=True)


def test_a_part_is_filled_as_within_the_whole(fitted, filled) -> None:
    """Seven rows and columns, fewer than a crop has: the cells around them count as outside."""
    ds = fitted.region.isel(lat=slice(4, 11), lon=slice(0, 7))
    part = fitted.model.fill(ds)
    check_fill(part, ds)
    gaps = np.isnan(ds.sst.values[:, 1:-1, 1:-1])
    difference = (part.sst - filled.sst.isel(lat=slice(4, 11), lon=slice(0, 7))).values[:, 1:-1, 1:-1][gaps]
    assert np.sqrt((difference**2).mean()) < 0.3 * np.nanstd(ds.sst)
    assert not (part.sst_flag == FLAGS["filled_without_support"]).any()


def test_outside_the_fitted_region_fills_have_no_support(fitted) -> None:
    ds = fitted.whole.isel(lon=slice(1, None))
    with pytest.warns(InputWarning, match="43% of the cells lie outside the grid"):
        larger = fitted.model.fill(ds, members=1)
    check_fill(larger, ds)
    inside = np.zeros((18, 19), bool)
    inside[3:17, 1:15] = True
    missing = np.isnan(ds.sst.values)
    expected = np.where(inside, FLAGS["filled"], FLAGS["filled_without_support"])
    assert np.array_equal(larger.sst_flag.values[missing], np.broadcast_to(expected, missing.shape)[missing])
    truth = 10 + np.sin(0.6 * np.arange(1, 20) + 0.3 * np.arange(20)[:, None, None])
    truth = truth + np.cos(0.5 * np.arange(18)[:, None] - 0.2 * np.arange(20)[:, None, None])
    outside = missing & ~inside
    assert np.sqrt(((larger.sst.values - truth)[outside] ** 2).mean()) < 0.6 * np.nanstd(ds.sst)


@pytest.mark.parametrize("frames", [slice(7, 8), 7, slice(5, 8)], ids=["one frame", "no time", "three frames"])
def test_fewer_frames_than_the_window_are_filled_nearly_as_within_the_record(fitted, filled, frames) -> None:
    ds = fitted.region.isel(time=frames)
    few = fitted.model.fill(ds, members=1, quantiles=[0.1])
    check_fill(few, ds)
    gaps = np.isnan(ds.sst.values)
    difference = (few.sst - filled.sst.isel(time=frames)).values[gaps]
    assert np.sqrt((difference**2).mean()) < 0.3 * np.nanstd(ds.sst)


def test_a_domain_beyond_the_fitted_one_can_be_given(fitted) -> None:
    sea = xr.DataArray(np.ones((18, 20)), dims=("lat", "lon"))
    sea[:, :2] = 0
    with pytest.warns(InputWarning):
        out = fitted.model.fill(fitted.whole.assign(sea=sea).isel(time=slice(2)), domain="sea")
    outside = (out.sst_flag == FLAGS["outside_domain"]).all("time").values
    assert outside[:, :2].all() and not outside[:, 2:].any()


def test_another_spacing_is_refused(fitted) -> None:
    with pytest.raises(InputError, match="regrid"):
        fitted.model.fill(fitted.whole.isel(lat=slice(None, None, 2)))


def test_each_level_is_filled_as_a_sample_and_the_model_remembers(tmp_path) -> None:
    parts = [gappy_dataset(10, 14, 14, seed=seed, dtype="float64") for seed in (1, 2)]
    ds = xr.concat(parts, dim=xr.DataArray([5.0, 10.0], dims="level", name="level")).transpose(
        "time", "lat", "level", ...
    )
    surface = gappy_dataset(10, 14, 14, seed=3).sst
    filler = ff.Filler(settings=SETTINGS, each="level").fit(ds.assign(surface=surface))
    filler.save(tmp_path / "m.ff")
    filled = ff.load(tmp_path / "m.ff").fill(ds.assign(surface=surface))
    check_fill(filled, ds)
    assert filled.surface.identical(surface.rename("surface"))
    samples = ds.rename(level="sample")
    other = ff.Filler(settings=SETTINGS).fit(samples).fill(samples)
    assert np.array_equal(filled.sst.values, other.sst.values, equal_nan=True)
    # A single level, whether or not it has a dimension of its own, and one that is selected.
    for one in (ds.sel(level=10), ds.sel(level=[10])):
        assert np.array_equal(
            filler.fill(one).sst.values.squeeze(),
            filler.fill(ds, sel={"level": 10}).sst.values.squeeze(),
            equal_nan=True,
        )


def test_a_selected_level_is_selected_again(tmp_path) -> None:
    parts = [gappy_dataset(10, 14, 14, seed=seed, dtype="float64") for seed in (1, 2)]
    ds = xr.concat(parts, dim=xr.DataArray([5.0, 10.0], dims="level", name="level"))
    ff.Filler(settings=SETTINGS, sel={"level": np.float32(10)}).fit(ds).save(tmp_path / "m.ff")
    model = ff.load(tmp_path / "m.ff")
    filled = model.fill(ds)
    check_fill(filled, ds.isel(level=[1]))
    with pytest.raises(InputError, match=r"no level=10.0 in the data; it has 5.0"):
        model.fill(ds.isel(level=[0]))
    check_fill(model.fill(ds.isel(level=[0]), sel={"level": 5}), ds.isel(level=[0]))
    check_fill(model.fill(ds, each="level"), ds)


def test_one_frame_is_learnt_from_and_filled() -> None:
    ds = gappy_dataset(1, 40, 50, dtype="float64")
    model = ff.Filler(settings=SETTINGS.model_copy(update={"window": None, "crop": None})).fit(ds)
    assert model.model_.shape == (1, 16, 16)
    filled = model.fill(ds)
    check_fill(filled, ds)
    truth = 10 + np.sin(0.6 * np.arange(50)) + np.cos(0.5 * np.arange(40)[:, None])
    gaps = np.isnan(ds.sst.values[0])
    gaps[:, 0] = False  # a column that is never observed
    assert np.sqrt(((filled.sst.values[0] - truth)[gaps] ** 2).mean()) < 0.3 * truth.std()
    assert ff.check(ds.isel(time=0), settings=SETTINGS).to_dataset().sst_exposure.dims == ("lat", "lon")


@pytest.mark.parametrize("network", ["refiner", "unet", "space-time-unet", "karras-unet", "fno"])
def test_a_section_is_learnt_from_and_filled(network) -> None:
    ds = gappy_dataset(90, 20, 3, dtype="float64").isel(lon=1, drop=True).rename(lat="depth")
    ds = ds.assign_coords(depth=("depth", -(np.arange(20.0) ** 1.5), {"axis": "Z"})).transpose("depth", "time")
    settings = SETTINGS.model_copy(update={"network": network, "estimators": ("climatology", "gaussian", "motion")})
    model = ff.Filler(settings=settings).fit(ds)
    assert model.model_.shape == (6, 1, 12)
    check_fill(model.fill(ds, members=1), ds)
