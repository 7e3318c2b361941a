"""Windows cover everything, blending joins them, held-out cells never reach training."""

import threading

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from conftest import gappy_dataset
from fieldfill import windows as module
from fieldfill.calibrate import missing_places
from fieldfill.errors import InputError
from fieldfill.holdout import CALIBRATED, LEAST_CELLS, LEAST_HELD, hold_out
from fieldfill.record import open_record
from fieldfill.windows import Ahead, Blend, Normaliser, Windows, blend_weights, cover, fill_starts, frame_shares


@given(length=st.integers(1, 12), extra=st.integers(0, 40), stride=st.integers(1, 12))
def test_windows_cover_every_frame(length, extra, stride) -> None:
    frames = length + extra
    stride = min(stride, length)
    starts = cover(frames, length, stride)
    seen = np.zeros(frames, bool)
    for start in starts:
        assert 0 <= start <= frames - length
        seen[start : start + length] = True
    assert seen.all() and starts == sorted(set(starts))


def test_a_window_longer_than_the_record_is_refused() -> None:
    with pytest.raises(InputError, match="longer than the record of 5"):
        cover(5, 8, 4)


@given(length=st.integers(1, 10), extra=st.integers(0, 20), stride=st.integers(1, 10), seed=st.integers(0, 99))
def test_blending_windows_of_one_sequence_gives_it_back(length, extra, stride, seed) -> None:
    frames = length + extra
    sequence = np.random.default_rng(seed).normal(size=(2, frames, 3, 4))
    blend = Blend(frames, length)
    for start in cover(frames, length, min(stride, length)):
        blend.add(start, sequence[:, start : start + length])
    assert np.allclose(blend.mean(), sequence, atol=1e-12)


def test_an_uncovered_frame_is_an_error_of_ours() -> None:
    blend = Blend(5, 2)
    blend.add(0, np.zeros((1, 2, 2, 2)))
    with pytest.raises(AssertionError):
        blend.mean()


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_weights_are_symmetric_and_positive(length) -> None:
    weights = blend_weights(length)
    assert (
        (weights > 0).all()
        and np.allclose(weights, weights[::-1])
        and weights.argmax() in (length // 2, (length - 1) // 2)
    )


@pytest.mark.parametrize("length", [1, 3, 8])
def test_shares_of_frames_are_those_of_the_blend(length) -> None:
    """Where one window fills a sample, its frames count alike; of long records the outer ones count less."""
    assert np.allclose(frame_shares(length, length), 1)
    frames = 20
    starts, shares = fill_starts(frames, length), np.zeros(length)
    for start in starts:  # blending a window of ones with others of zeros tells its share
        blend = Blend(frames, length)
        for other in starts:
            blend.add(other, np.full((length, 1, 1), float(other == start)))
        shares += blend.mean()[start : start + length, 0, 0] / len(starts)
    assert np.allclose(frame_shares(frames, length), shares)
    assert np.isclose(shares.sum() * len(starts), frames)
    assert length < 3 or shares[0] < shares[length // 2]


def test_normalising_there_and_back() -> None:
    values = np.random.default_rng(0).normal(280, 5, size=(2, 3, 4, 5, 6))
    normaliser = Normaliser(np.array([280.0, 1.0, -3.0]), np.array([5.0, 1.0, 2.0]))
    assert np.allclose(normaliser.to_values(normaliser.to_tensor(values).numpy()), values, rtol=1e-5)
    assert (normaliser.to_tensor(values * np.nan) == 0).all()


@pytest.fixture
def windows() -> Windows:
    record = open_record(gappy_dataset(frames=40, names="a,b"))
    return Windows(record, Normaliser(record.mean, record.std), 6)


def test_held_out_cells_never_reach_training(windows) -> None:
    windows.held = hold_out(windows, 0.3, torch.Generator().manual_seed(0))
    assert len(windows.held.places) >= 2
    total = sum(int(mask.sum()) for mask in windows.held.masks)
    assert total > 0
    for (sample, start), mask in zip(windows.held.places, windows.held.masks):
        assert (mask & ~windows.at(sample, start)[1]).sum() == 0
        for other in range(max(0, start - 5), min(start + 6, 40 - 6 + 1)):
            x, observed = windows.training([(sample, other)])
            low, high = max(start, other), min(start, other) + 6
            held = mask[:, low - start : high - start]
            assert not (observed[0, :, low - other : high - other] & held).any()
            assert (x[0, :, low - other : high - other][held] == 0).all()


def test_held_out_cells_lie_under_the_gaps_of_another_window(windows) -> None:
    windows.held = hold_out(windows, 0.3, torch.Generator().manual_seed(0))
    domain = torch.from_numpy(windows.record.domain)[:, None]
    gaps = [domain & ~windows.at(*place)[1] for place in windows.spread_out(99, torch.Generator().manual_seed(1))]
    for place, mask in zip(windows.held.places, windows.held.masks):
        observed = windows.at(*place)[1]
        # All of it under one other window's gaps: these alone, or what they share with the gaps of more windows.
        assert mask.any() and any((mask & ~gap).sum() == 0 for gap in gaps if not torch.equal(gap, domain & ~observed))


def pixels(frames: int, length: int) -> Windows:
    """200 samples of 16 x 16 cells, 30 % of the cells of each observed throughout."""
    generator = np.random.default_rng(0)
    seen = generator.random((200, 1, 16, 16)) < 0.3
    values = np.where(seen, generator.normal(size=(200, frames, 16, 16)), np.nan)
    record = open_record(xr.Dataset({"z": (("sample", "time", "y", "x"), values)}))
    return Windows(record, Normaliser(record.mean, record.std), length)


def test_enough_windows_and_cells_are_held_out_to_calibrate_with() -> None:
    windows = pixels(2, 2)
    held = hold_out(windows, 0.1, torch.Generator().manual_seed(0))
    assert len(held.places) == CALIBRATED > 0.1 * 200
    for place, mask in zip(held.places, held.masks):
        seen = int(windows.at(*place)[1].sum())
        assert mask.sum() >= min(LEAST_CELLS, seen // 5) > LEAST_HELD * seen


def test_missing_cells_count_by_the_share_of_their_frame() -> None:
    """Alike where one window fills a sample, less at the ends of windows that overlap."""
    alone, joined = (missing_places(pixels(n, 4), torch.Generator().manual_seed(0))[2] for n in (4, 12))
    assert np.allclose(alone, 1) and set(joined.round(6)) == set(frame_shares(12, 4).round(6)) and joined.min() < 0.7


def test_identical_gaps_everywhere_are_held_out_by_whole_cells() -> None:
    ds = gappy_dataset(frames=40)
    ds["sst"] = ds.sst.fillna(10.0).where(ds.lon > 1).where(ds.lat > 42)
    record = open_record(ds)
    windows = Windows(record, Normaliser(record.mean, record.std), 6)
    held = hold_out(windows, 0.2, torch.Generator().manual_seed(0))
    for mask in held.masks:
        assert mask.any() and (mask == mask[:, :1]).all()
        assert (mask.sum() < torch.from_numpy(record.domain).sum() * 6).all()


def test_the_same_seed_holds_out_the_same_cells(windows) -> None:
    first, second = (hold_out(windows, 0.2, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.places == second.places and all(torch.equal(a, b) for a, b in zip(first.masks, second.masks))


def test_reading_on_demand_gives_what_memory_holds(windows, monkeypatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    lazy = Windows(windows.record, windows.normaliser, 6)
    assert lazy._kept is None and windows._kept is not None
    for place in windows.places[::7]:
        assert all(torch.equal(a, b) for a, b in zip(lazy.at(*place), windows.at(*place)))
    generator = (torch.Generator().manual_seed(0), torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(lazy.draw(4, generator[0]), windows.draw(4, generator[1])))


@pytest.mark.parametrize("cells", [1, 2 * 9 * 12 * 7, 10**9])
def test_reading_by_slabs_gives_what_reading_at_once_gives(windows, monkeypatch, cells) -> None:
    x, observed = windows._kept
    monkeypatch.setattr(module, "SLAB_CELLS", cells)
    again = Windows(windows.record, windows.normaliser, 6)
    assert torch.equal(again._kept[0], x) and torch.equal(again._kept[1], observed)


def test_things_are_made_one_ahead_in_another_thread_that_does_not_stay() -> None:
    made: list[tuple[int, str]] = []
    asked, before = threading.Event(), set(threading.enumerate())

    def make(n: int) -> int:
        made.append((n, threading.current_thread().name))
        if n == 3:
            asked.set()
        return 10 * n

    with Ahead(make) as ahead:
        assert [ahead(0), ahead(1), ahead(2)] == [0, 10, 20]
        assert asked.wait(5)  # the fourth is made although nobody asked for it yet
        assert ahead(7) == 70  # a jump, as after loading a checkpoint
    assert [n for n, _ in made][:5] == [0, 1, 2, 3, 7]
    assert all(name != threading.current_thread().name for _, name in made)
    assert not any(thread.name.startswith("reading-ahead") for thread in set(threading.enumerate()) - before)
    assert ahead(1) == 10
    ahead.__exit__()


def test_a_failure_while_reading_ahead_reaches_who_asks() -> None:
    def make(n: int) -> int:
        return 1 // (2 - n)

    with Ahead(make) as ahead:
        assert ahead(1) == 1
        with pytest.raises(ZeroDivisionError):
            ahead(2)


def test_gaps_that_last_are_held_out_for_as_long_as_they_last() -> None:
    """Masks change every third frame; no held-out cell is seen in another frame of its three."""
    rng = np.random.default_rng(0)
    seen = (rng.random((130, 12, 12)) < 0.3).repeat(3, axis=0)
    ds = xr.Dataset({"v": (("time", "lat", "lon"), np.where(seen, rng.normal(size=seen.shape), np.nan))})
    record = open_record(ds)
    windows = Windows(record, Normaliser(record.mean, record.std), 8)
    held = hold_out(windows, 0.2, torch.Generator().manual_seed(0))
    assert len(held.places) >= 8
    for (_, start), mask in zip(held.places, held.masks):
        spell = torch.arange(start, start + 8) // 3
        for one in spell.unique():
            frames = mask[:, spell == one]
            assert (frames == frames[:, :1]).all()
