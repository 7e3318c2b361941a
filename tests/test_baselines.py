"""Laws that every baseline obeys, and what each of them does on examples small enough to check by hand."""

import sys

import cv2
import numpy as np
import pytest
import torch
import xarray as xr
from skimage.restoration import inpaint_biharmonic

from conftest import LAND, cloudy_dataset, seeded
from fieldfill import baselines
from fieldfill.baselines.baseline import Gappy, neighbours
from fieldfill.baselines.interpolation import along_time
from fieldfill.data.transforms import Normaliser
from fieldfill.errors import InputError, MissingPackage
from fieldfill.simulate.gaussian_field import GaussianField

FRAMES, ROWS, COLUMNS = 14, *LAND.shape
LAW = GaussianField(size=LAND.shape, frames=FRAMES, periodic=False, noise=0.05)

FAMILY = {
    "climatology": lambda **common: baselines.Climatology(**common),
    "one mean": lambda **common: baselines.Climatology(per_cell=False, **common),
    "linear_time": lambda **common: baselines.LinearTime(**common),
    "nearest": lambda **common: baselines.Nearest(**common),
    "temporal": lambda **common: baselines.TemporalConsistency(**common),
    "telea": lambda **common: baselines.Telea(**common),
    "navier_stokes": lambda **common: baselines.NavierStokesInpainting(**common),
    "biharmonic": lambda **common: baselines.Biharmonic(**common),
    "inpainting": lambda **common: baselines.BestInpainting(**common),
    "eof": lambda **common: baselines.EOF(max_rank=4, **common),
    "eof random": lambda **common: baselines.EOF(max_rank=4, cross_validation="random", **common),
    "oi": lambda **common: baselines.OptimalInterpolation(window=4, probes=2, steps=15, **common),
    "optimum": lambda **common: baselines.GaussianOptimum(field=LAW, window=4, **common),
}
WITH_SPREAD = {"eof", "eof random", "oi", "optimum"}
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def check_contract(filled: xr.Dataset, ds: xr.Dataset, domain: np.ndarray, spread: bool) -> None:
    for name in ds.data_vars:
        values, out, flag = (x.values for x in (ds[name], filled[name], filled[f"{name}_flag"]))
        observed = np.isfinite(values)
        assert out.dtype == values.dtype and filled[name].dims == ds[name].dims
        assert np.array_equal(out[observed], values[observed])
        assert np.isfinite(out[..., domain]).all() and np.isnan(out[..., ~domain]).all()
        assert np.array_equal(flag == 3, np.broadcast_to(~domain, flag.shape))
        assert np.array_equal(flag == 0, observed)
        assert (f"{name}_std" in filled) == spread
        if spread:
            std = filled[f"{name}_std"].values
            assert (std[observed] == 0).all() and (std[flag == 1] > 0).all() and np.isnan(std[flag == 3]).all()


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_contract_holds_for_every_method(name: str, dtype: str) -> None:
    ds = cloudy_dataset(dtype)
    before = ds.copy(deep=True)
    filled = FAMILY[name](domain=~LAND).fit(ds).fill(ds)
    check_contract(filled, ds, ~LAND, name in WITH_SPREAD)
    xr.testing.assert_identical(ds, before)
    assert "fieldfill.baselines." in filled.attrs["history"] and filled.attrs["title"] == "test"


@pytest.mark.parametrize("name", FAMILY)
def test_samples_and_variables_are_filled(name: str) -> None:
    ds = cloudy_dataset(names="sst,chl", samples=3)
    check_contract(FAMILY[name](domain=~LAND).fit(ds).fill(ds), ds, ~LAND, name in WITH_SPREAD)


@pytest.mark.parametrize("name", FAMILY)
def test_gaps_that_last_are_filled(name: str) -> None:
    ds = cloudy_dataset(samples=3, static=True)
    check_contract(FAMILY[name](domain=~LAND).fit(ds).fill(ds), ds, ~LAND, name in WITH_SPREAD)


@pytest.mark.parametrize("name", FAMILY)
def test_other_data_than_those_learnt_from_are_filled(name: str) -> None:
    ds, other = cloudy_dataset(seed=0), cloudy_dataset(seed=1).isel(time=slice(0, 6))
    other["sst"][:, 6:, 6:] = np.nan
    filled = FAMILY[name](domain=~LAND).fit(ds).fill(other)
    check_contract(filled, other, ~LAND, name in WITH_SPREAD)


@pytest.mark.parametrize("name", FAMILY)
def test_fit_and_fill_are_deterministic_and_leave_the_global_state_alone(name: str) -> None:
    ds, state = cloudy_dataset(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (FAMILY[name]().fit(ds).fill(ds) for _ in range(2))
    xr.testing.assert_equal(first, second)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "optimum"])
@pytest.mark.parametrize("constant", [0.0, -273.15])
def test_a_constant_field_is_reproduced(name: str, constant: float) -> None:
    ds = cloudy_dataset(samples=2)
    ds["sst"] = ds.sst.where(ds.sst.isnull(), constant)
    out = FAMILY[name](domain=~LAND).fit(ds).fill(ds).sst.values
    np.testing.assert_allclose(out[..., ~LAND], constant, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in FAMILY if name != "optimum"])
def test_shift_and_scale_of_the_units_do_not_matter(name: str) -> None:
    ds = cloudy_dataset()
    plain = FAMILY[name]().fit(ds).fill(ds).sst.values
    other = ds.copy(data={"sst": 100 + 7 * ds.sst.values})
    scaled = FAMILY[name]().fit(other).fill(other).sst.values
    np.testing.assert_allclose((scaled - 100) / 7, plain, atol=2e-4)


@pytest.mark.parametrize("name", FAMILY)
def test_the_order_of_dimensions_survives(name: str) -> None:
    ds = cloudy_dataset(names="sst,chl", samples=2)
    turned = ds.transpose("lon", "time", "sample", "lat")
    straight, back = (FAMILY[name]().fit(d).fill(d) for d in (ds, turned))
    assert back.sst.dims == ("lon", "time", "sample", "lat")
    xr.testing.assert_allclose(back.transpose(*straight.sst.dims), straight, atol=1e-9)


def test_a_cell_first_seen_when_filling_belongs_to_the_domain() -> None:
    ds = cloudy_dataset()
    seen_later = ds.copy(deep=True)
    seen_later["sst"][3, 0, 0] = 1.5
    for name, make in FAMILY.items():
        out = make().fit(ds).fill(seen_later)
        assert out.sst.values[3, 0, 0] == 1.5 and np.isfinite(out.sst.values[:, 0, 0]).all(), name
        assert np.isnan(out.sst.values[:, 1, 1]).all(), name


def test_a_cell_seen_only_when_fitting_is_filled() -> None:
    ds = cloudy_dataset()
    hidden = ds.copy(deep=True)
    hidden["sst"][:, 7:, 7:] = np.nan
    for name, make in FAMILY.items():
        out = make().fit(ds).fill(hidden).sst.values
        assert np.isfinite(out[:, ~LAND]).all() and np.isnan(out[:, LAND]).all(), name


def test_bad_use_is_refused_in_one_line() -> None:
    ds = cloudy_dataset()
    fitted = baselines.LinearTime().fit(ds)
    for data, words in (
        (ds.isel(lat=slice(5, None)), "fitted on 10 'lat', the data have 5"),
        (ds.assign_coords(lon=ds.lon + 1), "'lon' coordinates are not those"),
        (ds.rename(sst="other"), "no variable 'sst'"),
        (ds.rename(lat="y"), "fitted on the dimension 'lat'"),
    ):
        with pytest.raises(InputError, match=words) as error:
            fitted.fill(data)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"call fit\(ds\)"):
        baselines.EOF().fill(ds)
    with pytest.raises(InputError, match="choose one of clouds, random"):
        baselines.EOF(cross_validation="cloud").fit(ds)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = cloudy_dataset()
    for method, module in ((baselines.Telea(), "cv2"), (baselines.Biharmonic(), "skimage.restoration")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingPackage, match="classical"):
            method.fit(ds).fill(ds)


def hole() -> tuple[xr.Dataset, np.ndarray, np.ndarray]:
    """Two frames of a hand-made field with two holes; the second frame is the first with the other sign."""
    y, x = np.mgrid[:9, :11]
    frame = 3.0 + np.sin(x / 2.0) - 0.1 * (y - 4) ** 2
    gap = np.zeros((9, 11), bool)
    gap[3:6, 4:8] = True
    gap[0, :3] = True
    frame = np.where(gap, np.nan, frame)
    ds = xr.Dataset({"x0": (("time", "y", "x"), np.stack([frame, -frame]))})
    return ds, frame, gap


@pytest.mark.parametrize("name,flag", [("telea", cv2.INPAINT_TELEA), ("navier_stokes", cv2.INPAINT_NS)])
def test_inpainting_is_bit_for_bit_that_of_opencv(name: str, flag: int) -> None:
    ds, frame, gap = hole()
    low, high = np.nanmin(frame), np.nanmax(frame)
    image = np.where(gap, 0, (frame - low) / (high - low) * 65535).astype(np.float32)
    expected = low + (high - low) * (cv2.inpaint(image, gap.astype(np.uint8), 3, flag) / 65535.0)
    out = FAMILY[name](domain=np.ones_like(gap)).fit(ds).fill(ds).x0.values
    assert np.array_equal(out[0][gap], expected[gap])
    assert np.array_equal(out[0][~gap], frame[~gap])


def test_biharmonic_is_bit_for_bit_that_of_scikit_image() -> None:
    ds, frame, gap = hole()
    low, high = np.nanmin(frame), np.nanmax(frame)
    image = np.where(gap, 0, (frame - low) / (high - low))
    expected = low + (high - low) * inpaint_biharmonic(image, gap)
    out = baselines.Biharmonic(domain=np.ones_like(gap)).fit(ds).fill(ds).x0.values
    assert np.array_equal(out[0][gap], expected[gap])


@pytest.mark.parametrize("name", ["telea", "navier_stokes", "biharmonic", "inpainting", "nearest", "oi", "eof"])
def test_values_on_land_change_nothing(name: str) -> None:
    ds = cloudy_dataset()
    flooded = ds.copy(deep=True)
    flooded["sst"] = flooded.sst.where(~xr.DataArray(LAND, dims=("lat", "lon")), 1e6)
    one, two = (FAMILY[name](domain=~LAND).fit(d).fill(d).sst.values for d in (ds, flooded))
    np.testing.assert_array_equal(one, two)


def test_the_best_inpainting_is_the_best_on_held_out_clouds() -> None:
    ds = cloudy_dataset()
    fitted = baselines.BestInpainting().fit(ds)
    assert set(fitted.errors_) == {"telea", "navier_stokes", "biharmonic"}
    assert fitted.errors_[fitted.best_.name] == min(fitted.errors_.values())
    same = type(fitted.best_)().fit(ds).fill(ds)
    np.testing.assert_array_equal(fitted.fill(ds).sst.values, same.sst.values)


def line(values: list[float], time: list[float]) -> Gappy:
    """A record of one cell."""
    x = np.array(values)[None, None, :, None, None]
    return Gappy(x, np.isfinite(x), np.ones((1, 1, 1), bool), np.array(time))


def test_linear_in_time_uses_the_time_axis_and_holds_the_ends() -> None:
    nan = np.nan
    out = along_time(line([nan, 1, nan, nan, 5, nan], [0, 1, 2, 4, 5, 9])).ravel()
    np.testing.assert_allclose(out, [1, 1, 2, 4, 5, 5])
    near = along_time(line([nan, 1, nan, nan, nan, 5], [0, 1, 2, 4, 5, 9]), reach=3.5).ravel()
    np.testing.assert_allclose(near, [1, 1, 1, 1, nan, 5])


def test_temporal_consistency_uses_neighbouring_frames_before_neighbouring_cells() -> None:
    x = np.full((5, 1, 4), np.nan)
    x[:, 0, 3] = 100.0
    x[0, 0, 0], x[2, 0, 0] = 1.0, 3.0
    ds = xr.Dataset({"v": (("time", "y", "x"), x)})
    out = baselines.TemporalConsistency(reach=1, domain=np.ones((1, 4))).fit(ds).fill(ds).v.values
    np.testing.assert_allclose(out[:4, 0, 0], [1, 2, 3, 3])
    # Out of reach in time, the cell takes what its own frame shows; so does a cell that is never observed.
    np.testing.assert_allclose(out[4, 0, :3], 100)
    np.testing.assert_allclose(out[0, 0, 1], (1 / 1 + 100 / 4) / (1 + 1 / 4))


def test_a_cell_never_observed_in_a_sequence_takes_its_neighbour() -> None:
    x = np.full((2, 3, 1, 5), np.nan)
    x[0, :, 0, 0], x[0, :, 0, 4] = [1.0, 2.0, 3.0], 9.0
    x[1, :, 0, 1] = 7.0
    ds = xr.Dataset({"v": (("sample", "time", "y", "x"), x)})
    out = baselines.LinearTime(domain=np.ones((1, 5))).fit(ds).fill(ds).v.values
    np.testing.assert_allclose(out[0, :, 0, 1], [1, 2, 3])
    np.testing.assert_allclose(out[0, :, 0, 3], 9)
    np.testing.assert_allclose(out[1], 7)


def test_nearest_weighs_frames_against_cells() -> None:
    x = np.full((2, 1, 4), np.nan)
    x[0, 0, 3], x[1, 0, 0] = 1.0, 2.0
    ds = xr.Dataset({"v": (("time", "y", "x"), x)})
    far, near = (
        baselines.Nearest(frame_cells=cells, domain=np.ones((1, 4))).fit(ds).fill(ds).v.values for cells in (4, 2)
    )
    assert far[0, 0, 0] == 1.0 and near[0, 0, 0] == 2.0


def test_neighbours_close_the_circle_on_periodic_axes() -> None:
    x = np.array([[5.0, np.nan, np.nan, np.nan, 1.0, np.nan, np.nan]])
    everywhere = np.ones_like(x, bool)
    assert neighbours(x, everywhere, (False, False))[0, 6] == 1.0
    assert neighbours(x, everywhere, (False, True))[0, 6] == 5.0


@pytest.mark.parametrize("name", ["nearest", "temporal", "telea", "navier_stokes", "biharmonic", "linear_time"])
def test_values_are_taken_across_the_seam_of_a_periodic_axis(name: str) -> None:
    x = np.full((2, 6, 12), np.nan)
    x[..., :2], x[..., 6:8] = 1.0, 0.0
    ds = xr.Dataset({"v": (("time", "y", "x"), x)}, coords={"x": np.arange(12.0)})
    make = lambda d: FAMILY[name](domain=np.ones((6, 12))).fit(d).fill(d).v.values  # noqa: E731
    cut = make(ds)
    ds.x.attrs["periodic"] = 1
    joined = make(ds)
    assert (cut[..., 11] < 0.5).all() and (joined[..., 11] > 0.5).all()


def test_optimal_interpolation_goes_around_a_periodic_axis() -> None:
    """With one covariance, a record turned around its circle is filled like the record itself."""
    x, domain = cloudy_dataset().sst.values, ~LAND
    difference = {}
    for periodic in (0, 1):
        coords = {"x": ("x", np.arange(COLUMNS * 1.0), {"periodic": periodic})}
        fills, learnt = [], None
        for turn in (0, 5):
            ds = xr.Dataset({"v": (("time", "y", "x"), np.roll(x, turn, axis=2))}, coords=coords)
            method = FAMILY["oi"](domain=np.roll(domain, turn, axis=1)).fit(ds)
            learnt = learnt or (method.field_, Normaliser(np.zeros(1), np.ones(1)))
            method.field_, method.normaliser_ = learnt
            fills.append(np.roll(method.fill(ds).v.values, -turn, axis=2)[:, domain])
        difference[periodic] = np.abs(fills[0] - fills[1]).max()
    assert difference[1] < 1e-3 < 0.01 < difference[0]


def big_record() -> tuple[GaussianField, xr.Dataset, np.ndarray, np.ndarray]:
    law = GaussianField(size=(16, 16), frames=60, periodic=False, noise=0.05, memory=0.7)
    generator = seeded(3)
    truth = law.simulate(1, generator)[0]
    values = law.observe(truth, generator).numpy()[0, 0]
    observed = law.simulate(1, generator)[0].numpy()[0, 0] > 0.0
    ds = xr.Dataset({"v": (("time", "y", "x"), np.where(observed, values, np.nan))})
    return law, ds, truth.numpy()[0, 0], ~observed


def test_optimal_interpolation_lies_between_the_optimum_and_the_simpler_methods_with_a_usable_spread() -> None:
    law, ds, truth, gaps = big_record()
    error, out = {}, {}
    for method in (
        baselines.GaussianOptimum(field=law, window=8),
        baselines.OptimalInterpolation(seed=1),
        baselines.BestInpainting(),
        baselines.LinearTime(),
        baselines.Climatology(),
    ):
        out[method.name] = method.fit(ds).fill(ds)
        error[method.name] = float(((out[method.name].v.values - truth)[gaps] ** 2).mean())
    assert error["optimum"] < error["oi"] < min(error["inpainting"], error["linear_time"])
    assert error["linear_time"] < error["climatology"]
    for name, slack in (("optimum", 0.3), ("oi", 0.5)):
        expected = float((out[name].v_std.values[gaps] ** 2).mean())
        assert error[name] == pytest.approx(expected, rel=slack), name


def test_the_optimum_of_one_window_is_the_posterior() -> None:
    law, ds, _, gaps = big_record()
    part = ds.isel(time=slice(0, 6))
    out = baselines.GaussianOptimum(field=law, domain=np.ones((16, 16))).fit(part).fill(part)
    values = torch.from_numpy(part.v.values)
    mean, variance = law.posterior(values, torch.isfinite(values))
    np.testing.assert_allclose(out.v.values[gaps[:6]], mean.numpy()[gaps[:6]], atol=1e-12)
    np.testing.assert_allclose(out.v_std.values[gaps[:6]], variance.sqrt().numpy()[gaps[:6]], rtol=1e-5)
    plain = baselines.GaussianOptimum(field=law, uncertainty=False).fit(part).fill(part)
    assert "v_std" not in plain
    with pytest.raises(InputError, match="Gaussian field"):
        baselines.GaussianOptimum(field=GaussianField(size=8)).fit(part)
