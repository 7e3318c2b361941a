"""Per-cell mean and spread: found where they exist, left out where they do not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from conftest import crops_of, gappy_record, seeded
from fieldfill.data.crops import Crops
from fieldfill.data.transforms import Normaliser
from fieldfill.estimators.climatology import ClimatologySettings, learn_normaliser, least_missed
from fieldfill.stages import Stages

FRAMES, SIDE = 120, 16
# The Gaussian fields that compare maps are learnt in a single round.
QUICKLY = ClimatologySettings(rounds=1)


def held_crops(values: np.ndarray, share: float = 0.5) -> Crops:
    return crops_of(gappy_record(values, share, seed=0), 4, 0.2)


def noise(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((FRAMES, SIDE, SIDE))


def test_a_stationary_field_keeps_one_number() -> None:
    crops = held_crops(5 + 2 * noise())
    found = learn_normaliser(crops, seeded(), QUICKLY)
    assert found.mean == pytest.approx(np.broadcast_to(found.mean.flat[0], found.mean.shape))
    assert found.std == pytest.approx(np.broadcast_to(found.std.flat[0], found.std.shape))
    assert found.mean.flat[0] == pytest.approx(5, abs=0.1) and found.std.flat[0] == pytest.approx(2, rel=0.05)


def test_a_gradient_in_the_mean_is_found() -> None:
    true = np.linspace(-10, 10, SIDE)[:, None] + np.zeros(SIDE)
    found = learn_normaliser(held_crops(true + noise()), seeded(), QUICKLY)
    assert np.abs(found.mean[0] - true).mean() < 0.25
    assert found.std.mean() == pytest.approx(1, rel=0.1)


def test_a_spread_of_its_own_is_found() -> None:
    true = np.where(np.arange(SIDE) < SIDE // 2, 0.3, 3.0)[:, None] * np.ones(SIDE)
    found = learn_normaliser(held_crops(true * noise()), seeded(), QUICKLY)
    assert np.abs(np.log(found.std[0] / true)).mean() < 0.15


def test_a_sparse_record_is_smoothed_rather_than_believed() -> None:
    true = 3 * np.sin(np.arange(SIDE) / 5)[:, None] + np.zeros(SIDE)
    found = learn_normaliser(held_crops(true + noise(), share=0.03), seeded(), QUICKLY)
    assert np.abs(found.mean[0] - true).mean() < 0.45  # a mean of three or four values is off by half a unit


def test_held_out_cells_do_not_enter() -> None:
    values = 10 * np.linspace(-1, 1, SIDE)[:, None] + noise()
    crops = held_crops(values)
    before = learn_normaliser(crops, seeded(), QUICKLY)
    (_, frame, _, _), mask = crops.held.places[0], crops.held.masks[0][0].numpy()
    changed = crops.record.ds.copy(deep=True)
    changed.v.values[frame : frame + 4][mask] += 0.01  # so little that the choice of smoothing stays
    other = Crops(replace(crops.record, ds=changed), crops.normaliser, crops.shape, crops.held)
    assert not torch.equal(other.at(crops.held.places[0])[0], crops.at(crops.held.places[0])[0])
    after = learn_normaliser(other, seeded(), QUICKLY)
    assert np.array_equal(before.mean, after.mean)


def test_unitless_values_go_back_to_what_they_were() -> None:
    values = np.linspace(-10, 10, SIDE)[:, None] + noise()
    crops = held_crops(values)
    crops.normalise(learn_normaliser(crops, seeded(), QUICKLY))
    x, observed = crops.at((0, 7, 0, 0))
    back = crops.normaliser.to_values(x.numpy())[0]
    assert back[observed[0].numpy()] == pytest.approx(values[7:11][observed[0].numpy()], abs=1e-4)


def land_and_sea() -> tuple[Crops, np.ndarray, np.ndarray]:
    """A smooth field that varies four times as much on land, with its mean and spread (1, SIDE, SIDE)."""
    field = gaussian_filter(np.random.default_rng(0).standard_normal((FRAMES, SIDE, SIDE)), (2, 2, 2), mode="wrap")
    land = (np.arange(SIDE) < SIDE // 2)[:, None] + np.zeros((1, SIDE, SIDE))
    mean, std = 3 * land, 1 + 3 * land
    return held_crops(mean + std * field / field.std(), share=0.3), mean, std


def chosen(crops: Crops, options: list[Normaliser]) -> Normaliser:
    return least_missed(crops, options, seeded(), QUICKLY, Stages())


@pytest.mark.parametrize("wrong", ["noise in the mean", "no maps"])
def test_maps_that_interpolate_badly_give_way_to_better_ones(wrong: str) -> None:
    """Noise in a map stays the same in every frame; a covariance takes it for a field."""
    crops, mean, std = land_and_sea()
    own, good = crops.normaliser, Normaliser(mean, std)
    noisy = Normaliser(mean + std * np.random.default_rng(1).standard_normal(mean.shape), std)
    flat = Normaliser(own.mean[:, None, None], own.std[:, None, None])
    bad = noisy if wrong == "noise in the mean" else flat
    assert chosen(crops, [bad, good, flat]) is good
    assert chosen(crops, [good, bad, flat]) is good
    assert crops.normaliser is own


def test_maps_that_interpolate_hardly_better_do_not_win() -> None:
    crops, mean, std = land_and_sea()
    slightly = Normaliser(mean + 0.003 * np.random.default_rng(1).standard_normal(mean.shape), std)
    assert chosen(crops, [slightly, Normaliser(mean, std)]) is slightly


def test_a_short_record_has_no_maps() -> None:
    """The mean of a few crops in time is mostly that of their weather."""
    true = np.linspace(-10, 10, SIDE)[:, None] + np.zeros(SIDE)
    crops = crops_of(gappy_record((true + noise())[:24], 0.5, seed=0), 4, 0.2)
    assert learn_normaliser(crops, seeded(), QUICKLY) is crops.normaliser
