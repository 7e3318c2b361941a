"""Whatever the size of the values: every filled cell is finite, or the fill is refused in one line."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK, gappy_dataset
from fieldfill import baselines
from fieldfill.data.finite import Moments, check_filled, standardised
from fieldfill.data.record import open_record
from fieldfill.errors import InputError

PARTS = ("", "_std", "_members", "_quantile", "_budget")
Change = Callable[[np.ndarray], np.ndarray]


def record(change: Change, dtype: str = "float64") -> xr.Dataset:
    ds = gappy_dataset(frames=10, rows=6, columns=8, dtype="float64")
    return ds.assign(sst=ds.sst.copy(data=change(ds.sst.values).astype(dtype)))


def filled(ds: xr.Dataset, budget: bool = True, **changes: Any) -> xr.Dataset:
    """A fit and a fill that give no warning either: standard error stays clean."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        filler = ff.Filler(settings=QUICK.model_copy(update=changes)).fit(ds)
        return filler.fill(ds, 2, budget=budget, quantiles=(0.05, 0.95))


def assert_sound(out: xr.Dataset, ds: xr.Dataset, parts: tuple[str, ...] = PARTS) -> None:
    """Everything in the gaps is finite, no spread is negative, and the observations are as they were."""
    gaps, seen = out.sst_flag.values == 1, np.isfinite(ds.sst.values)
    assert gaps.any() and out.sst.dtype == ds.sst.dtype
    assert np.array_equal(out.sst.values[seen].view(np.uint8), ds.sst.values[seen].view(np.uint8))
    for part in parts:
        values = out[f"sst{part}"].values[..., gaps]
        assert np.isfinite(values).all(), f"sst{part}"
        assert part not in ("_std", "_budget") or (values >= 0).all()


def one_outlier(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values.flat[np.flatnonzero(np.isfinite(values))[3]] = 1e100
    return values


FAMILY: dict[str, tuple[Change, str, dict[str, Any]]] = {
    "squares overflow float32": (lambda v: v * 1e36, "float32", {}),
    "denormal in float32": (lambda v: v * 1e-40, "float32", {}),
    "large in float16": (lambda v: v * 4e3, "float16", {}),
    "large offset": (lambda v: v + 1e12, "float64", {}),
    "one large outlier": (one_outlier, "float64", {}),
    "constant": (lambda v: 0 * v + 7.1, "float32", {}),
    "constant, huge": (lambda v: 0 * v + 1.1e150, "float64", {}),
    "constant, tiny": (lambda v: 0 * v + 1e-300, "float64", {}),
    "many decades, in its logarithm": (lambda v: 10.0 ** (12 * (v - 10)), "float32", {"log": ("sst",)}),
    "tiny, in its logarithm": (lambda v: v * 1e-300, "float64", {"log": ("sst",)}),
}


@pytest.mark.parametrize("name", FAMILY)
def test_every_part_of_a_fill_is_finite(name: str) -> None:
    change, dtype, arguments = FAMILY[name]
    ds = record(change, dtype)
    assert_sound(filled(ds, **arguments), ds)


@pytest.fixture(scope="module")
def plain() -> xr.Dataset:
    return filled(record(lambda v: v))


@pytest.mark.parametrize("exponent", [900, -900])
def test_a_fill_is_scaled_like_its_data(plain: xr.Dataset, exponent: int) -> None:
    ds = record(lambda v: np.ldexp(v, exponent))
    out = filled(ds, budget=False)
    assert_sound(out, ds, PARTS[:-1])
    for part in ("", "_members", "_quantile"):
        np.testing.assert_allclose(np.ldexp(out[f"sst{part}"].values, -exponent), plain[f"sst{part}"].values, rtol=1e-6)
    np.testing.assert_allclose(np.ldexp(out.sst_std.values, -exponent), plain.sst_std.values, rtol=1e-5)


def test_a_variance_that_no_number_holds_is_refused_and_the_rest_is_filled() -> None:
    ds = record(lambda v: v * 1e300)
    filler = ff.Filler(settings=QUICK).fit(ds)
    with pytest.raises(InputError, match=r"'sst': (\d+) of \1 .* sst_budget .*divide 'sst' by a power of ten and"):
        filler.fill(ds, budget=True)
    assert_sound(filler.fill(ds), ds, PARTS[:2])
    logarithmic = filled(ds, budget=False, log=("sst",))
    assert_sound(logarithmic, ds, PARTS[:-1])


def test_data_far_from_those_that_were_learnt_are_refused() -> None:
    filler = ff.Filler(settings=QUICK).fit(record(lambda v: v))
    with pytest.raises(InputError, match=r"'sst': \d+ values lie.*same units"):
        filler.fill(record(lambda v: v * 1e60))


def test_values_at_the_end_of_float64_are_refused() -> None:
    with pytest.raises(InputError, match=r"'sst' has values up to 1.79769e\+308.*frame 0.*NaN if they mean missing"):
        open_record(record(lambda v: np.where(v > 10, np.finfo(float).max, v)))


@pytest.mark.parametrize("size", [1e308, 1e-308])
def test_a_map_of_any_size_is_an_input(size: float) -> None:
    ds = record(lambda v: v)
    ds["orography"] = ("lat", "lon"), size * np.linspace(-1.7, 1.7, 48).reshape(6, 8)
    filler = ff.Filler(settings=QUICK.model_copy(update={"inputs": ("orography",)})).fit(ds)
    assert_sound(filler.fill(ds), ds, PARTS[:2])
    found = filler.model_.maps[-1].numpy()
    np.testing.assert_allclose(found, np.linspace(-1, 1, 48).reshape(6, 8) * found.max(), atol=1e-6)
    assert found.std() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size", [1e300, 1e-300])
@pytest.mark.parametrize("name", sorted(set(baselines.__all__) - {"BASELINES", "Baseline", "GaussianOptimum"}))
def test_baselines_fill_values_of_any_size(name: str, size: float) -> None:
    ds = record(lambda v: v * size)
    baseline = getattr(baselines, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        out = baseline.fit(ds).fill(ds)
    assert_sound(out, ds, PARTS[:2] if "sst_std" in out else PARTS[:1])
    low, high = (float(end(ds.sst)) for end in (np.nanmin, np.nanmax))
    assert out.sst.min() > low - 3 * (high - low) and out.sst.max() < high + 3 * (high - low)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_spread_that_is_none_is_never_returned(bad: float) -> None:
    opened = open_record(record(lambda v: v))
    std = np.ones(opened.shape)
    std[0, 0, np.nonzero(np.isnan(opened.ds.sst.values[:, 2, 2]))[0][0], 2, 2] = bad
    with pytest.raises(InputError, match=r"variable 'sst': 1 of \d+ filled values of sst_std"):
        opened.to_dataset(np.zeros(opened.shape), std)


def test_cells_outside_the_gaps_are_not_checked() -> None:
    opened = open_record(record(lambda v: v))
    observed = opened.arrays()[1]
    anything = np.where(observed, np.nan, 1.0)
    out = opened.to_dataset(anything, anything)
    assert_sound(out, opened.ds, PARTS[:2])
    check_filled("v", "v_std", np.array([np.nan, 1, 0, -1]), np.array([False, True, True, False]), least=0)


def test_moments_are_those_of_the_whole_whatever_the_parts() -> None:
    parts = [np.array([1e-300, 3e-300]), np.array([2.0, 4.0, 1.0]), np.array([]), np.array([1e307, -1e307, 5e306])]
    for count in range(1, 5):
        moments = Moments()
        for part in parts[:count]:
            moments.add(part)
        whole = np.concatenate(parts[:count])
        size = np.abs(whole).max()
        assert moments.mean == pytest.approx(size * (whole / size).mean(), rel=1e-12)
        assert moments.std == pytest.approx(size * (whole / size).std(), rel=1e-12)


def test_a_constant_map_is_zero_when_standardised() -> None:
    known = np.array([True, True, True, False])
    assert not standardised(np.array([0.1, 0.1, 0.1, np.nan]), known).any()
    np.testing.assert_allclose(standardised(np.array([1.0, 2.0, 3.0, 9.0]), known), [-(1.5**0.5), 0, 1.5**0.5, 0])


def test_the_command_line_prints_one_line_and_leaves_no_file(tmp_path) -> None:
    ds = record(lambda v: v * 1e300)
    ff.save_dataset(ds, tmp_path / "huge.nc")
    ff.Filler(settings=QUICK).fit(ds).save(tmp_path / "m.ff")
    command = [sys.executable, "-m", "fieldfill", "fill", "m.ff", "huge.nc", "-o", "out.nc", "--budget"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("filling", "fills in crops"))]
    assert done.returncode == 2 and len(lines) == 1 and "sst_budget" in lines[0], done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["huge.nc", "m.ff"]
