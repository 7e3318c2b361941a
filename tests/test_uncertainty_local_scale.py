"""The correction of a standard deviation by what surrounds a cell, where that is informative."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri

from fieldfill.metrics import crps_gaussian
from fieldfill.uncertainty.calibration import Calibration, HeldCells


def mixed(seed: int, windows: int, shown: bool) -> tuple[HeldCells, np.ndarray]:
    """Cells of windows of unequal scales, which their surroundings show or not, and the scales."""
    rng = np.random.default_rng(seed)
    window = np.arange(windows).repeat(200)
    scale = np.exp(0.6 * rng.normal(size=windows))[window]
    around = rng.normal(size=(windows, 4))[window]
    if shown:
        around[:, 1] = np.log(scale) + 0.1 * rng.normal(size=len(window))
    ones = np.ones(len(window))
    error = scale * rng.normal(size=len(window))
    return HeldCells(error, ones, ones, ones, ones, 0 * window, window, ones, around), scale


def test_windows_of_unequal_scales_are_told_apart_by_what_surrounds_their_cells() -> None:
    held, _ = mixed(0, 24, shown=True)
    new, scale = mixed(1, 200, shown=True)
    plain, fitted = Calibration.fit(replace(held, around=None), 1), Calibration.fit(held, 1)
    shape = (1, len(new), 1, 1)
    given = [part.reshape(*shape, *part.shape[1:]) for part in (new.raw, new.distance, new.around)]
    std = fitted(*given).ravel()
    assert np.corrcoef(np.log(std), np.log(scale))[0, 1] > 0.95
    found = [np.mean(np.abs(new.error) <= ndtri((1 + level) / 2) * std) for level in (0.5, 0.9)]
    assert found == pytest.approx([0.5, 0.9], abs=0.04)
    before = np.mean(np.abs(new.error) <= ndtri(0.75) * plain(*given[:2]).ravel())
    assert before > found[0] + 0.02
    assert (
        crps_gaussian(0 * std, std, new.error).mean()
        < 0.97 * crps_gaussian(0 * std, plain(*given[:2]).ravel(), new.error).mean()
    )


def test_surroundings_that_tell_nothing_change_nothing() -> None:
    """Each window has its own, at random: some of 16 windows always agree with some of their scales by chance."""
    fitted = [Calibration.fit(mixed(seed, 16, shown=False)[0], 1).local for seed in range(2, 8)]
    assert sum(local is not None and not local.slopes.any() for local in fitted) >= 5
    held, _ = mixed(2, 16, shown=True)
    constant = Calibration.fit(replace(held, around=np.zeros((len(held), 4))), 1).local
    assert constant is not None and not constant.slopes.any()


def test_a_correction_fitted_to_fewer_surroundings_still_works() -> None:
    held, _ = mixed(0, 24, shown=True)
    assert held.raw is not None and held.around is not None
    local = Calibration.fit(held, 1).local
    assert local is not None and local.slopes.any()
    more = np.column_stack([held.around, held.error])
    np.testing.assert_array_equal(local(held.raw, more), local(held.raw, held.around))
