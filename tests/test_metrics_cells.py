"""Scores of cells: closed forms against integrals and a second package, distances and spectra by hand."""

import numpy as np
import pytest
import scores.continuous
import scores.probability
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fieldfill import metrics
from fieldfill.errors import InputError

# Closed forms


@pytest.mark.parametrize(("mean", "std", "truth"), [(0.0, 1.0, 0.3), (2.0, 0.5, 0.0), (-1.0, 3.0, -1.0)])
def test_gaussian_crps_is_the_integral_of_the_squared_distribution_error(mean: float, std: float, truth: float) -> None:
    below = quad(lambda x: norm.cdf(x, mean, std) ** 2, mean - 12 * std, truth)[0]
    above = quad(lambda x: norm.sf(x, mean, std) ** 2, truth, max(truth, mean) + 12 * std)[0]
    got = metrics.crps_gaussian(np.array([mean]), np.array([std]), np.array([truth]))
    np.testing.assert_allclose(got, below + above, rtol=1e-6)


def test_gaussian_crps_without_spread_is_the_absolute_error() -> None:
    got = metrics.crps_gaussian(np.array([1.0, 1.0]), np.array([0.0, np.nan]), np.array([3.0, 3.0]))
    np.testing.assert_array_equal(got, [2.0, np.nan])


@pytest.mark.parametrize("count", [2, 3, 17])
def test_fair_crps_agrees_with_the_scores_package(count: int) -> None:
    rng = np.random.default_rng(count)
    members, truth = rng.normal(size=(count, 6, 4)), rng.normal(size=(6, 4))
    expected = scores.probability.crps_for_ensemble(
        xr.DataArray(members, dims=("member", "y", "x")),
        xr.DataArray(truth, dims=("y", "x")),
        "member",
        method="fair",
        preserve_dims="all",
    )
    np.testing.assert_allclose(metrics.crps_members(members, truth), expected, rtol=1e-12, atol=1e-12)


def test_fair_crps_does_not_depend_on_the_number_of_members() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=40_000)
    exact = metrics.crps_gaussian(np.zeros(1), np.ones(1), truth).mean()
    for count in (2, 10):
        cells = metrics.crps_members(rng.normal(size=(count, truth.size)), truth)
        assert abs(cells.mean() - exact) < 3 * cells.std() / truth.size**0.5


def test_one_member_has_no_fair_crps() -> None:
    with pytest.raises(InputError, match="2 members"):
        metrics.crps_members(np.zeros((1, 3)), np.zeros(3))


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("count", [19, 39])
def test_intervals_of_the_right_law_cover_their_level(level: float, count: int) -> None:
    rng = np.random.default_rng(1)
    truth = 3 + 2 * rng.normal(size=60_000)
    gaussian = metrics.covered_gaussian(np.full(truth.shape, 3.0), np.full(truth.shape, 2.0), truth, level)
    members = metrics.covered_members(3 + 2 * rng.normal(size=(count, truth.size)), truth, level)
    for covered in (gaussian, members):
        assert abs(covered.mean() - level) < 0.007


def test_rank_histogram_agrees_with_the_scores_package_and_shares_ties() -> None:
    rng = np.random.default_rng(2)
    members, truth = rng.normal(size=(5, 300)), 0.3 + rng.normal(size=300)
    expected = scores.probability.rank_histogram(
        xr.DataArray(members, dims=("member", "cell")), xr.DataArray(truth, dims="cell"), "member"
    )
    np.testing.assert_allclose(metrics.rank_histogram(members, truth) / 300, expected)
    tied = metrics.rank_histogram(np.array([[0.0], [1.0], [1.0]]), np.array([1.0]))
    np.testing.assert_allclose(tied, [0, 1 / 3, 1 / 3, 1 / 3])
    where = np.arange(300) < 10
    assert metrics.rank_histogram(members, truth, where).sum() == pytest.approx(10)


# Distances and spectra


@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.5, 2.0]))
@settings(max_examples=40, deadline=None)
def test_distance_is_that_to_the_nearest_observation(
    seed: int, in_frame: bool, closed_rows: bool, closed_columns: bool, frame_cells: float
) -> None:
    rng = np.random.default_rng(seed)
    observed = rng.random((2, 3, 4, 5)) < 0.08
    got = metrics.distance_to_observation(observed, frame_cells, in_frame, (closed_rows, closed_columns))
    for place in np.ndindex(observed.shape):
        sample, *cell = place
        seen = np.argwhere(observed[sample])
        gap = np.abs(seen - cell).astype(float)
        for axis, closed in ((1, closed_rows), (2, closed_columns)):
            if closed:
                gap[:, axis] = np.minimum(gap[:, axis], observed.shape[axis + 1] - gap[:, axis])
        if in_frame:
            gap = gap[gap[:, 0] == 0]
        nearest = np.sqrt((gap**2 * [frame_cells**2, 1, 1]).sum(1)).min(initial=np.inf)
        assert got[place] == pytest.approx(nearest)


@pytest.mark.parametrize("shape", [(3, 8, 8), (6, 9), (2, 2, 5, 12)])
@pytest.mark.parametrize("taper", [False, True])
def test_energies_add_up_to_the_mean_square(shape: tuple[int, ...], taper: bool) -> None:
    field = np.random.default_rng(0).normal(size=shape)
    wavenumber, energy = metrics.energy_spectrum(field, taper)
    assert energy.shape == (*shape[:-2], len(wavenumber))
    if not taper:
        np.testing.assert_allclose(energy.sum(-1), (field**2).mean((-2, -1)))
    else:
        ones = metrics.energy_spectrum(np.ones(shape), taper)[1]
        np.testing.assert_allclose(ones.sum(-1), 1.0)


def test_a_wave_sits_at_its_wavenumber() -> None:
    i, j = np.mgrid[:16, :32]
    along_rows = np.cos(2 * np.pi * 3 * i / 16)  # 3 cycles in 16 rows are 6 in the longer side
    along_columns = np.cos(2 * np.pi * 5 * j / 32)
    energy = metrics.energy_spectrum(along_rows + 2 * along_columns)[1]
    expected = np.zeros_like(energy)
    expected[[6, 5]] = 0.5, 2.0
    np.testing.assert_allclose(energy, expected, atol=1e-12)
