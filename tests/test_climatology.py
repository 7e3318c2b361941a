"""Per-cell mean and spread: found where they exist, left out where they do not."""

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.ndimage import gaussian_filter
from torch import Generator

from fieldfill.climatology import _least_missed, learn_normaliser
from fieldfill.holdout import hold_out
from fieldfill.record import open_record
from fieldfill.windows import Normaliser, Windows

FRAMES, SIDE = 120, 16


def windows_of(values: np.ndarray, share: float = 0.5, seed: int = 0) -> Windows:
    seen = np.random.default_rng(seed).random(values.shape) < share
    ds = xr.Dataset({"v": (("time", "lat", "lon"), np.where(seen, values, np.nan))})
    record = open_record(ds)
    windows = Windows(record, Normaliser(record.mean, record.std), 4)
    windows.held = hold_out(windows, 0.2, Generator().manual_seed(seed))
    return windows


def noise(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((FRAMES, SIDE, SIDE))


def test_a_stationary_field_keeps_one_number() -> None:
    windows = windows_of(5 + 2 * noise())
    found = learn_normaliser(windows, Generator().manual_seed(0))
    assert found.mean == pytest.approx(np.broadcast_to(found.mean.flat[0], found.mean.shape))
    assert found.std == pytest.approx(np.broadcast_to(found.std.flat[0], found.std.shape))
    assert found.mean.flat[0] == pytest.approx(5, abs=0.1) and found.std.flat[0] == pytest.approx(2, rel=0.05)


def test_a_gradient_in_the_mean_is_found() -> None:
    true = np.linspace(-10, 10, SIDE)[:, None] + np.zeros(SIDE)
    found = learn_normaliser(windows_of(true + noise()), Generator().manual_seed(0))
    assert np.abs(found.mean[0] - true).mean() < 0.25
    assert found.std.mean() == pytest.approx(1, rel=0.1)


def test_a_spread_of_its_own_is_found() -> None:
    true = np.where(np.arange(SIDE) < SIDE // 2, 0.3, 3.0)[:, None] * np.ones(SIDE)
    found = learn_normaliser(windows_of(true * noise()), Generator().manual_seed(0))
    assert np.abs(np.log(found.std[0] / true)).mean() < 0.15


def test_a_sparse_record_is_smoothed_rather_than_believed() -> None:
    true = 3 * np.sin(np.arange(SIDE) / 5)[:, None] + np.zeros(SIDE)
    found = learn_normaliser(windows_of(true + noise(), share=0.03), Generator().manual_seed(0))
    assert np.abs(found.mean[0] - true).mean() < 0.45  # a mean of three or four values is off by half a unit


def test_held_out_cells_do_not_enter() -> None:
    values = 10 * np.linspace(-1, 1, SIDE)[:, None] + noise()
    windows = windows_of(values)
    before = learn_normaliser(windows, Generator().manual_seed(0))
    place, mask = windows.held.places[0], windows.held.masks[0]
    kept = windows._kept
    assert kept is not None
    with torch.no_grad():
        kept[0][place[0], :, place[1] : place[1] + 4][mask] += 0.01  # so little that the choice of smoothing stays
    after = learn_normaliser(windows, Generator().manual_seed(0))
    assert np.array_equal(before.mean, after.mean)


def test_unitless_values_go_back_to_what_they_were() -> None:
    values = np.linspace(-10, 10, SIDE)[:, None] + noise()
    windows = windows_of(values)
    windows.normalise(learn_normaliser(windows, Generator().manual_seed(0)))
    x, observed = windows.at(0, 7)
    back = windows.normaliser.to_values(x.numpy())[0]
    assert back[observed[0].numpy()] == pytest.approx(values[7:11][observed[0].numpy()], abs=1e-4)


def land_and_sea() -> tuple[Windows, np.ndarray, np.ndarray]:
    """A smooth field that varies four times as much on land, with its mean and spread (1, SIDE, SIDE)."""
    field = gaussian_filter(np.random.default_rng(0).standard_normal((FRAMES, SIDE, SIDE)), (2, 2, 2), mode="wrap")
    land = (np.arange(SIDE) < SIDE // 2)[:, None] + np.zeros((1, SIDE, SIDE))
    mean, std = 3 * land, 1 + 3 * land
    return windows_of(mean + std * field / field.std(), share=0.3), mean, std


@pytest.mark.parametrize("wrong", ["noise in the mean", "no maps"])
def test_maps_that_interpolate_badly_give_way_to_better_ones(wrong: str) -> None:
    """Noise in a map stays the same in every frame; a covariance takes it for a field."""
    windows, mean, std = land_and_sea()
    own, good = windows.normaliser, Normaliser(mean, std)
    noisy = Normaliser(mean + std * np.random.default_rng(1).standard_normal(mean.shape), std)
    flat = Normaliser(own.mean[:, None, None], own.std[:, None, None])
    bad = noisy if wrong == "noise in the mean" else flat
    assert _least_missed(windows, [bad, good, flat], Generator().manual_seed(0)) is good
    assert _least_missed(windows, [good, bad, flat], Generator().manual_seed(0)) is good
    assert windows.normaliser is own


def test_maps_that_interpolate_hardly_better_do_not_win() -> None:
    windows, mean, std = land_and_sea()
    slightly = Normaliser(mean + 0.03 * np.random.default_rng(1).standard_normal(mean.shape), std)
    assert _least_missed(windows, [slightly, Normaliser(mean, std)], Generator().manual_seed(0)) is slightly
