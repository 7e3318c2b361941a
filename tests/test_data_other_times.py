"""What a record shows of each cell at other times than those of a crop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import crops_of, gappy_dataset, seeded
from fieldfill.data.crops import Crops
from fieldfill.data.other_times import OtherTimes

WEIGHT = 0.5


def crops_with(rounds: int = 1, frames: int = 20, length: int = 4, **given) -> Crops:
    crops = crops_of(gappy_dataset(frames=frames, names="a,b"), length, **given)
    crops.others = OtherTimes.of(crops, WEIGHT, rounds)
    return crops


@pytest.mark.parametrize("size", [None, (5, 6)], ids=str)
@pytest.mark.parametrize("held", [0.0, 0.4])
def test_maps_are_means_of_the_visible_anomalies_beyond_the_crop(held, size) -> None:
    crops = crops_with(held=held, size=size)
    x, observed = crops.frames(0, 0, 20)
    seen = observed.sum((2, 3))
    anomalies = torch.where(observed, x - ((x * observed).sum((2, 3)) / (seen + 1))[..., None, None], 0)
    for place in crops.some(6, seeded()):
        beyond = torch.ones(20, dtype=torch.bool)
        beyond[place[1] : place[1] + 4] = False
        count = crops.cut(observed[:, beyond].sum(1), place)
        mean, share = crops.training([place]).maps[0].split(2)
        assert torch.allclose(mean, crops.cut(anomalies[:, beyond].sum(1), place) / (count + WEIGHT), atol=1e-5)
        assert torch.allclose(share, count / (count + WEIGHT))


def test_maps_do_not_show_what_is_hidden_in_the_crop() -> None:
    """Neither which of its cells are hidden nor their values: the maps of a validation crop are the same without."""
    crops = crops_with(held=0.4, rounds=3)
    place = crops.held.places[0]
    batch, held = crops.held_out([0])
    changed = torch.where(held[0], 1e3, batch.x[0])
    sums = [crops.cut(whole, place) for whole in crops.others.sums(0)]
    maps = crops.others.maps(0, place[1], changed, batch.observed[0], *sums)
    assert held.any() and torch.equal(maps, batch.maps[0])


def test_a_cell_and_a_frame_that_add_up_are_told_apart() -> None:
    """Warm cells seen on cold days: the mean of a frame would mix the two up, turns of both do not."""
    rng = np.random.default_rng(0)
    ds = gappy_dataset(frames=60)
    cell, frame = rng.standard_normal((9, 12)), 3 * rng.standard_normal(60)
    seen = rng.random((60, 9, 12)) < 1 / (1 + np.exp(3 * cell * np.sign(frame)[:, None, None]))
    ds["sst"] = ds.sst.dims, np.where(seen, cell + frame[:, None, None], np.nan)
    crops = crops_of(ds, 4, held=0)
    known = torch.from_numpy(crops.record.counts[0] > 10)
    errors = []
    for rounds in (1, 8):
        total, count = OtherTimes.of(crops, WEIGHT, rounds).known()
        found = (total / (count + WEIGHT))[0] * float(crops.record.std[0])
        missed = (found - torch.from_numpy(cell))[known]
        errors.append(float(missed.std()))
    assert errors[1] < 0.3 * errors[0]


def test_another_record_has_the_sums_as_they_are() -> None:
    crops = crops_with(held=0.0)
    total, count = crops.others.known()
    other = replace(crops.others, total=total[None], count=count[None], offsets=None)
    x, observed = crops.at((0, 3, 0, 0))
    mean, share = other.maps(0, 3, x, observed, *other.sums(5)).split(2)
    assert torch.equal(mean, total / (count + WEIGHT)) and torch.equal(share, count / (count + WEIGHT))


def test_samples_are_kept_apart() -> None:
    ds = gappy_dataset(frames=12)
    two = ds.expand_dims(sample=2).copy(deep=True)
    two["sst"][1] = 20 - two.sst[1]
    crops = crops_of(two, 4, held=0)
    others = OtherTimes.of(crops, WEIGHT, 1)
    assert torch.allclose(others.total[0], -others.total[1], atol=1e-2) and others.total.abs().max() > 1
    assert not others.known().any()  # which of them another record belongs to is not known
