"""Quantiles hold what they promise at every level, whatever the tails of the errors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm
from scipy.stats import t as student

import fieldfill as ff
from conftest import QUICK, gappy_dataset
from fieldfill.errors import InputError
from fieldfill.metrics import reliability
from fieldfill.uncertainty.calibration import Calibration, HeldCells
from fieldfill.uncertainty.quantiles import LEVELS, NORMAL, Tails, weighted_quantile

WINDOWS, CELLS = 40, 2000


def held(law, seed: int = 0) -> HeldCells:
    """Cells with errors of a law, whose raw standard deviation is half of what it should be."""
    rng = np.random.default_rng(seed)
    error = law.rvs(size=WINDOWS * CELLS, random_state=rng)
    ones, window = np.ones(len(error)), np.arange(WINDOWS).repeat(CELLS)
    return HeldCells(error, ones / 2, ones, ones, ones, 0 * window, window, ones)


def stated(fitted: Calibration, cells: HeldCells) -> np.ndarray:
    """Standard deviations of cells of one variable."""
    shape = (1, 1, 1, -1)
    return fitted(cells.raw.reshape(shape), cells.distance.reshape(shape)).ravel()


def covered(fitted: Calibration, cells: HeldCells, level: float) -> float:
    """Share of new errors between two quantiles."""
    low, high = (fitted.steps((1 + sign * level) / 2)[0] for sign in (-1, 1))
    assert low == pytest.approx(-high)
    return float(np.mean(np.abs(cells.error) <= high * stated(fitted, cells)))


@pytest.mark.parametrize("law", [norm(), student(3), student(1.5)], ids=["normal", "t3", "t1.5"])
def test_quantiles_hold_at_every_level_whatever_the_tails(law) -> None:
    fitted, new = Calibration.fit(held(law), 1), held(law, seed=1)
    for level in (0.25, 0.5, 0.68, 0.9, 0.97):
        assert covered(fitted, new, level) == pytest.approx(level, abs=0.01)


def test_a_standard_deviation_alone_cannot_hold_at_both_levels() -> None:
    fitted, new = Calibration.fit(held(student(1.5)), 1), held(student(1.5), seed=1)
    std = stated(fitted, new)
    assert np.mean(np.abs(new.error) <= ndtri(0.75) * std) > 0.55


def test_beyond_the_last_level_quantiles_go_on_as_those_of_a_normal_law() -> None:
    tails = Tails(2 * NORMAL[None])
    for probability in (0.999, 0.995, 0.9, 0.55, 0.5, 0.2, 0.0001):
        assert tails.at(probability) == pytest.approx(2 * ndtri(probability))


def test_a_calibration_without_a_law_of_its_own_has_the_normal_one() -> None:
    fitted = replace(Calibration.fit(held(student(3)), 2), tails=None)
    again = Calibration.of(fitted.arrays(), {})
    for probability in (0.01, 0.5, 0.9):
        assert again.steps(probability) == pytest.approx([ndtri(probability)] * 2)


@given(st.lists(st.floats(0.01, 5), min_size=len(LEVELS), max_size=len(LEVELS)), st.data())
def test_quantiles_are_ordered_and_lie_on_both_sides_alike(steps, data) -> None:
    tails = Tails(np.cumsum(steps)[None])
    low, high = sorted(data.draw(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2)))
    assert tails.at(low) <= tails.at(high) and tails.at(0.5) == 0
    assert tails.at(1 - high) == pytest.approx(-tails.at(high), rel=1e-6, abs=1e-9)


def test_variables_have_their_own_tails_as_far_as_their_windows_go() -> None:
    rng = np.random.default_rng(0)
    counts, scales = {0: 40, 1: 2, 2: 0}, {0: 1.0, 1: 3.0}
    variable = np.concatenate([np.full(500 * n, c) for c, n in counts.items()]).astype(int)
    window = np.concatenate([np.arange(n).repeat(500) for n in counts.values()]).astype(int)
    scores = np.abs(rng.normal(size=len(variable))) * [scales[c] for c in variable]
    ones = np.ones(len(scores))
    found = Tails.fit(scores, ones, variable, window, 3)
    common = weighted_quantile(scores, ones, LEVELS)
    own = weighted_quantile(scores[variable == 1], ones[variable == 1], LEVELS)
    shared = np.exp((2 * np.log(own) + 10 * np.log(common)) / (2 + 10))
    np.testing.assert_allclose(found.quantiles[1:], [shared, common])
    np.testing.assert_allclose(found.quantiles[0], NORMAL, rtol=0.1)


def test_weights_count_as_repetitions() -> None:
    rng = np.random.default_rng(0)
    values, times = rng.exponential(size=500), rng.integers(0, 4, size=500)
    repeated = np.repeat(values, times)
    expected = weighted_quantile(repeated, np.ones(len(repeated)), LEVELS)
    np.testing.assert_array_equal(weighted_quantile(values, times.astype(float), LEVELS), expected)


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    return ff.Filler(settings=QUICK).fit(gappy_dataset(names="a,b"))


def test_quantiles_of_a_fill_surround_its_values_and_are_what_is_scored(filler, tmp_path) -> None:
    ds = gappy_dataset(names="a,b")
    filled = filler.fill(ds, quantiles=[0.95, 0.5, 0.05])
    plain, again = filler.fill(ds), ff.load(filler.save(tmp_path / "m.ff")).fill(ds, quantiles=[0.95, 0.5, 0.05])
    assert filled["quantile"].values.tolist() == [0.05, 0.5, 0.95] and filled.identical(
        again.assign_attrs(filled.attrs)
    )
    for c, name in enumerate("ab"):
        ends = filled[f"{name}_quantile"]
        seen, gaps = np.isfinite(ds[name].values), filled[f"{name}_flag"].values == 1
        assert ends.dims == ("quantile", *ds[name].dims) and ends.dtype == ds[name].dtype
        assert np.array_equal(ends.values[:, seen], np.stack(3 * [ds[name].values[seen]]))
        low, middle, high = ends.values[:, gaps]
        assert np.array_equal(middle, filled[name].values[gaps])
        assert filled[name].drop_attrs().identical(plain[name].drop_attrs())
        steps = filler.model_.spread.steps(0.95)[c]
        np.testing.assert_allclose(high - middle, steps * filled[f"{name}_std"].values[gaps], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(high - middle, middle - low, rtol=1e-3, atol=1e-5)
        assert np.isnan(ends.values[:, filled[f"{name}_flag"].values == 3]).all()
    # A truth just inside the upper quantile is covered, whatever the standard deviation is; one just above is not.
    for factor, share in ((0.99, 1.0), (1.01, 0.0)):
        truth = filled[["a", "b"]].copy()
        for name in "ab":
            high = filled[f"{name}_quantile"].sel(quantile=0.95, drop=True)
            truth[name] = filled[name] + factor * (high - filled[name])
        scores = ff.score(filled, truth)
        assert scores.coverage90.values.tolist() == [share, share]
        assert (scores.coverage50 == ff.score(plain, truth).coverage50).all()
        kept = reliability(filled, truth, [0.5, 0.9])
        assert (kept == np.stack([scores.coverage50, scores.coverage90], axis=1)).all()
        assert ff.score(filled.transpose(), truth).coverage90.equals(scores.coverage90)


def test_what_is_no_probability_is_refused(filler) -> None:
    for wrong in (0.0, 1.0, -0.1, 5.0, float("nan")):
        with pytest.raises(InputError, match="strictly between 0 and 1"):
            filler.fill(gappy_dataset(names="a,b"), quantiles=[0.5, wrong])
