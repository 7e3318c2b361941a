"""Scores of records: masks by hand, the border with xarray, cross-checks with a second package."""

import warnings

import numpy as np
import pytest
import scores.continuous
import scores.probability
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fieldfill import metrics
from fieldfill.data import pieces
from fieldfill.errors import InputError

SCORES = {
    "mse",
    "rmse",
    "mae",
    "bias",
    "mse_all",
    "crps",
    "coverage50",
    "coverage90",
    "spread_skill",
    "n",
}
ENSEMBLE = {"crps_ensemble", "spread_skill_ensemble", "rank_flatness"}


def filled_and_truth(seed: int = 0, members: int = 0) -> tuple[xr.Dataset, xr.Dataset]:
    """A record of 6 frames of 4 x 5 cells with all four flags, and its truth."""
    rng = np.random.default_rng(seed)
    shape = (6, 4, 5)
    coords = {
        "time": np.datetime64("2020-01-01") + np.arange(6) * np.timedelta64(1, "D"),
        "lat": np.linspace(50.0, 53.0, 4),
        "lon": np.linspace(-2.0, 2.0, 5),
    }
    dims = tuple(coords)
    truth = rng.normal(size=shape)
    flag = rng.choice([0, 1, 2, 3], size=shape, p=[0.4, 0.3, 0.2, 0.1])
    std = np.where(np.isin(flag, (1, 2)), 0.5, 0.0)
    value = np.where(flag == 3, np.nan, truth + std * rng.normal(size=shape))
    variables = {"sst": (dims, value), "sst_std": (dims, std), "sst_flag": (dims, flag.astype(np.int8))}
    if members:
        draws = value + std * rng.normal(size=(members, *shape))
        variables["sst_members"] = (("member", *dims), draws)
    return xr.Dataset(variables, coords), xr.Dataset({"sst": (dims, truth)}, coords)


# Records


def test_score_counts_missing_cells_only_and_mse_all_the_domain() -> None:
    filled, truth = filled_and_truth()
    flag, error = filled.sst_flag.values, (filled.sst - truth.sst).values
    missing = np.isin(flag, (1, 2))
    out = metrics.score(filled, truth).sel(variable="sst")
    assert set(out.data_vars) == SCORES
    assert out.n == missing.sum()
    assert out.n.dtype == np.int64
    assert out.mse.item() == pytest.approx((error[missing] ** 2).mean())
    assert out.rmse.item() == pytest.approx((error[missing] ** 2).mean() ** 0.5)
    assert out.mae.item() == pytest.approx(np.abs(error[missing]).mean())
    assert out.bias.item() == pytest.approx(error[missing].mean())
    assert out.mse_all.item() == pytest.approx((error[flag != 3] ** 2).mean())
    crps = metrics.crps_gaussian(filled.sst.values, filled.sst_std.values, truth.sst.values)
    assert out.crps.item() == pytest.approx(crps[missing].mean())
    assert out.coverage90.item() == pytest.approx((np.abs(error[missing]) <= 1.6448536 * 0.5).mean())
    assert out.spread_skill.item() == pytest.approx(0.5 / out.rmse.item())


def test_all_cells_equal_missing_cells_times_their_share() -> None:
    filled, truth = filled_and_truth()
    out = metrics.score(filled, truth).sel(variable="sst")
    share = out.n.item() / (filled.sst_flag != 3).sum().item()
    assert out.mse_all.item() == pytest.approx(out.mse.item() * share)


def test_crps_comes_from_the_members_if_there_are_any() -> None:
    filled, truth = filled_and_truth(members=6)
    missing = np.isin(filled.sst_flag, (1, 2))
    members = metrics.crps_members(filled.sst_members.values, truth.sst.values)[missing].mean()
    shuffled = filled.assign(sst_members=filled.sst_members.transpose("lat", "member", "time", "lon"))
    for ds in (filled, shuffled, filled.drop_vars("sst_std")):
        assert metrics.score(ds, truth).crps.item() == pytest.approx(members)
    bare = metrics.score(filled.drop_vars(["sst_std", "sst_members"]), truth)
    assert all(bare[key].isnull().all() for key in ("crps", "coverage50", "coverage90", "spread_skill"))
    assert bare.mse.notnull().all()
    single = metrics.score(filled.isel(member=[0]), truth)
    assert single.crps.item() == metrics.score(filled.drop_vars("sst_members"), truth).crps.item()


def test_honest_members_and_std_have_spread_equal_to_skill() -> None:
    rng = np.random.default_rng(3)
    centre, cells = rng.normal(size=20_000), np.ones(20_000, bool)
    truth = centre + rng.normal(size=20_000)
    members = centre + rng.normal(size=(4, 20_000))
    by_members = metrics.score_arrays(members.mean(0), truth, cells, members=members)
    by_std = metrics.score_arrays(centre, truth, cells, std=np.ones(20_000))
    assert by_members["spread_skill"] == pytest.approx(1, abs=0.02)
    assert by_std["spread_skill"] == pytest.approx(1, abs=0.02)


def test_truth_is_matched_by_coordinates_not_by_order() -> None:
    filled, truth = filled_and_truth()
    expected = metrics.score(filled, truth)
    more = truth.pad(time=(2, 3), lat=(1, 0), constant_values=9.0)
    day = np.timedelta64(1, "D")
    more = more.assign_coords(time=truth.time.values[0] + (np.arange(11) - 2) * day, lat=np.linspace(49.0, 53.0, 5))
    reordered = more.isel(lat=slice(None, None, -1)).transpose("lon", "lat", "time")
    single = reordered.assign_coords(lon=reordered.lon.astype(np.float32) + np.float32(1e-5))
    for other in (more, reordered, single, truth.drop_vars(["lat", "lon"])):
        xr.testing.assert_identical(metrics.score(filled, other), expected)


def test_cells_without_truth_are_not_scored() -> None:
    filled, truth = filled_and_truth()
    known = truth.where(truth.lon > -1.5)
    expected = metrics.score(filled.isel(lon=slice(1, None)), truth.isel(lon=slice(1, None)))
    xr.testing.assert_allclose(metrics.score(filled, known), expected)


def test_nothing_missing_gives_zero_cells_and_no_warning() -> None:
    filled, truth = filled_and_truth(members=3)
    complete = filled.assign(sst=truth.sst, sst_flag=xr.zeros_like(filled.sst_flag))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outside = metrics.score(complete.assign(sst_flag=complete.sst_flag + 3), truth)
        out = metrics.score(complete, truth)
        metrics.score_by_distance(complete, truth)
        metrics.score(complete.isel(time=slice(0, 0)), truth)
    assert out.n.item() == 0
    assert out.mse_all.item() == 0
    assert all(out[key].isnull().all() for key in SCORES - {"n", "mse_all"})
    assert outside.mse_all.isnull().all()


@pytest.mark.parametrize("members", [0, 3])
def test_long_and_lazy_records_are_scored_in_parts(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, truth = filled_and_truth(members=members)
    whole = metrics.score(filled, truth), metrics.score_by_distance(filled, truth)
    monkeypatch.setattr(pieces, "CELLS_AT_ONCE", 45)
    lazy = filled.chunk(time=2), truth.chunk(time=4)
    for expected, got in zip(whole, (metrics.score(*lazy), metrics.score_by_distance(*lazy))):
        xr.testing.assert_allclose(got, expected)


def test_bins_by_distance_add_up_to_the_whole() -> None:
    filled, truth = filled_and_truth()
    whole = metrics.score(filled, truth).sel(variable="sst")
    for in_frame in (False, True):
        bins = metrics.score_by_distance(filled, truth, in_frame=in_frame).sel(variable="sst")
        assert bins.n.sum() == whole.n
        assert (bins.mse * bins.n).sum().item() / whole.n.item() == pytest.approx(whole.mse.item())
    distance = metrics.distance_to_observation(filled.sst_flag.values == 0)
    missing = np.isin(filled.sst_flag, (1, 2))
    near = missing & (distance > 0) & (distance <= 1)
    bins = metrics.score_by_distance(filled, truth).sel(variable="sst")
    assert bins.n.sel(distance=0.0) == near.sum()
    assert bins.distance_high.values[-1] == np.inf
    error = (filled.sst - truth.sst).values
    assert bins.mse.sel(distance=0.0).item() == pytest.approx((error[near] ** 2).mean())
    only = metrics.score_by_distance(filled, truth, edges=(0.0, 1.0))
    assert only.n.item() == near.sum()


def test_several_variables_are_scored_each_on_its_own() -> None:
    filled, truth = filled_and_truth()
    other, other_truth = filled_and_truth(seed=7)
    rename = {"sst": "sss", "sst_std": "sss_std", "sst_flag": "sss_flag"}
    both = metrics.score(filled.merge(other.rename(rename)), truth.merge(other_truth.rename(sst="sss")))
    assert list(both.variable.values) == ["sst", "sss"]
    xr.testing.assert_identical(both.sel(variable=["sst"]), metrics.score(filled, truth))
    assert list(metrics.score(filled, truth, ["sst"]).variable.values) == ["sst"]


def test_wrong_input_names_the_dimension_and_both_sizes() -> None:
    filled, truth = filled_and_truth()
    with pytest.raises(InputError, match=r"'time'.*size 6 .* 4 in the truth.*2 coordinates"):
        metrics.score(filled, truth.isel(time=slice(0, 4)))
    with pytest.raises(InputError, match=r"'lat'.*size 4 .* 3 in the truth"):
        metrics.score(filled.drop_vars("lat"), truth.isel(lat=slice(0, 3)))
    with pytest.raises(InputError, match=r"'depth'.*size none .* 2 in the truth"):
        metrics.score(filled, truth.expand_dims(depth=2))
    with pytest.raises(InputError, match=r"'time'.*size 6 .* none in the truth"):
        metrics.score(filled, truth.isel(time=0, drop=True))
    with pytest.raises(InputError, match=r"'time'.*6 coordinates"):
        metrics.score(filled, truth.assign_coords(time=np.arange(6)))
    with pytest.raises(InputError, match="no variable 'sst'"):
        metrics.score(filled, truth.rename(sst="sss"))
    with pytest.raises(InputError, match="no filled variable chl"):
        metrics.score(filled, truth, ["chl"])
    with pytest.raises(InputError, match="at all"):
        metrics.score(truth, truth)
    with pytest.raises(InputError, match="NaN"):
        metrics.score(filled.assign(sst=filled.sst * np.nan), truth)


@given(st.integers(0, 2**32 - 1), st.floats(-5, 5), st.floats(0.1, 10))
@settings(max_examples=30, deadline=None)
def test_scores_follow_a_change_of_units(seed: int, offset: float, factor: float) -> None:
    rng = np.random.default_rng(seed)
    value, truth, missing = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.5
    missing[0, 0] = True
    std, members = 0.1 + rng.random((3, 4)), rng.normal(size=(5, 3, 4))
    plain = metrics.score_arrays(value, truth, missing, std=std, members=members)
    scaled = metrics.score_arrays(
        offset + factor * value,
        offset + factor * truth,
        missing,
        std=factor * std,
        members=offset + factor * members,
    )
    powers = {"mse": 2, "mse_all": 2, "rmse": 1, "mae": 1, "bias": 1, "crps": 1}
    for key in SCORES:
        assert scaled[key] == pytest.approx(plain[key] * factor ** powers.get(key, 0), rel=1e-6, abs=1e-9)


def test_spectrum_keeps_names_and_coordinates() -> None:
    _, truth = filled_and_truth()
    out = metrics.spectrum(truth.sst.transpose("lon", "time", "lat"), ("lat", "lon"))
    assert out.dims == ("time", "wavenumber")
    np.testing.assert_array_equal(out.time, truth.time)
    np.testing.assert_allclose(out.sum("wavenumber"), (truth.sst**2).mean(("lat", "lon")))
    with pytest.raises(InputError, match="complete box"):
        metrics.spectrum(truth.sst.where(truth.lat > 51))


# Members, and cross-checks with the scores package


def test_gaussian_crps_agrees_with_the_scores_package() -> None:
    rng = np.random.default_rng(4)
    mean, std, truth = rng.normal(size=8), 0.3 + rng.random(8), rng.normal(size=8)
    thresholds = np.linspace(-9, 9, 40001)  # the jump at the truth costs about half a step
    law = xr.DataArray(norm.cdf(thresholds, mean[:, None], std[:, None]), {"x": thresholds}, ("cell", "x"))
    observed = xr.DataArray(truth, dims="cell")
    ways = {"threshold_dim": "x", "preserve_dims": "cell", "integration_method": "trapz"}
    expected = scores.probability.crps_cdf(law, observed, **ways)["total"]
    np.testing.assert_allclose(metrics.crps_gaussian(mean, std, truth), expected, rtol=5e-4)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_agrees_with_the_scores_package(level: float) -> None:
    rng = np.random.default_rng(5)
    mean, std, truth = rng.normal(size=200), 0.3 + rng.random(200), rng.normal(size=200)
    score = xr.DataArray((truth - mean) / std, dims="cell")
    expected = scores.continuous.percent_within_x(score, 0 * score, threshold=norm.ppf((1 + level) / 2))
    assert 100 * metrics.covered_gaussian(mean, std, truth, level).mean() == pytest.approx(expected.item())


def test_spread_skill_agrees_with_the_scores_package() -> None:
    rng = np.random.default_rng(6)
    members, truth = rng.normal(size=(5, 300)), 2 * rng.normal(size=300)
    centre = xr.DataArray(members.mean(0), dims="cell")
    skill = scores.continuous.rmse(centre, xr.DataArray(truth, dims="cell")).item()
    got = metrics.score_arrays(members.mean(0), truth, np.ones(300, bool), members=members)
    assert got["spread_skill_ensemble"] == pytest.approx((1.2 * members.var(0, ddof=1).mean()) ** 0.5 / skill)


def test_members_are_judged_on_their_own_when_there_are_any() -> None:
    filled, truth = filled_and_truth(members=6)
    missing = np.isin(filled.sst_flag, (1, 2))
    members, true = filled.sst_members.values[:, missing], truth.sst.values[missing]
    other, other_truth = filled_and_truth(seed=7)
    rename = {"sst": "sss", "sst_std": "sss_std", "sst_flag": "sss_flag"}
    out = metrics.score(filled.merge(other.rename(rename)), truth.merge(other_truth.rename(sst="sss")))
    assert set(out.data_vars) == SCORES | ENSEMBLE
    mine = out.sel(variable="sst")
    assert mine.crps_ensemble.item() == pytest.approx(metrics.crps_members(members, true).mean())
    histogram = metrics.rank_histogram(members, true)
    assert mine.rank_flatness.item() == pytest.approx(1 - np.abs(histogram / histogram.sum() - 1 / 7).sum() / 2)
    assert all(out[key].sel(variable="sss").isnull() for key in ENSEMBLE)
    bins = metrics.score_by_distance(filled, truth).sel(variable="sst")
    assert (bins.crps_ensemble * bins.n).sum() / bins.n.sum() == pytest.approx(mine.crps_ensemble.item())


def test_honest_members_have_a_flat_histogram_and_narrow_ones_do_not() -> None:
    rng = np.random.default_rng(8)
    truth, members = rng.normal(size=20_000), rng.normal(size=(9, 20_000))
    flat = {scale: metrics.rank_flatness(metrics.rank_histogram(scale * members, truth)) for scale in (1.0, 0.5, 2.0)}
    assert flat[1.0] > 0.98 > 0.9 > max(flat[0.5], flat[2.0])
    assert metrics.rank_flatness(np.array([0.0, 12.0, 0.0])) == pytest.approx(1 / 3)
    assert np.isnan(metrics.rank_flatness(np.zeros(4)))


def test_reliability_holds_the_coverage_of_score_and_grows_with_the_level() -> None:
    filled, truth = filled_and_truth()
    levels = (0.1, 0.5, 0.9, 0.99)
    out = metrics.reliability(filled, truth, levels).sel(variable="sst")
    expected = metrics.score(filled, truth).sel(variable="sst")
    assert out.sel(level=0.5) == pytest.approx(expected.coverage50.item())
    assert out.sel(level=0.9) == pytest.approx(expected.coverage90.item())
    assert (np.diff(out) >= 0).all()
    assert metrics.reliability(filled.drop_vars("sst_std"), truth, levels).isnull().all()
