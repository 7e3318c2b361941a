"""Crops are boxes of the record, cut with their maps; held-out cells never reach training."""

import threading

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.ndimage import uniform_filter

from conftest import crops_of, gappy_dataset, seeded
from fieldfill.config import Settings
from fieldfill.data import crops as module
from fieldfill.data.crops import LEAST_DOMAIN, Batch, Crops, HoldOut, Place
from fieldfill.data.holdout import HoldOutSettings, hold_out
from fieldfill.data.prefetch import Ahead
from fieldfill.data.record import Record, open_record
from fieldfill.data.transforms import Normaliser
from fieldfill.errors import InputError
from fieldfill.uncertainty.held_cells import missing_places
from fieldfill.workflow.opening import crop_shape

FRAMES, ROWS, COLUMNS = 12, 9, 12
HELD = HoldOutSettings()


def record_of(periodic: bool = True, frames: int = FRAMES) -> Record:
    """Two samples of two variables; columns may close on themselves."""
    ds = xr.concat([gappy_dataset(frames, ROWS, COLUMNS, seed=seed, names="a,b") for seed in range(2)], "sample")
    ds.lon.attrs["periodic"] = int(periodic)
    return open_record(ds)


RECORDS = {periodic: record_of(periodic) for periodic in (False, True)}


def normaliser_of(record: Record, maps: bool) -> Normaliser:
    """One number for each variable, or maps of mean and spread."""
    if not maps:
        return Normaliser(record.mean, record.std)
    rng = np.random.default_rng(3)
    return Normaliser(rng.normal(10, 1, record.domain.shape), rng.uniform(0.5, 2, record.domain.shape))


def cut(whole: np.ndarray, place: Place, crops: Crops) -> np.ndarray:
    """The crop at a place of (S, ..., T, H, W), with numpy alone."""
    whole = whole[place[0]]
    for dim, (start, length) in enumerate(zip(place[1:], crops.shape)):
        whole = np.take(whole, range(start, start + length), axis=dim - 3, mode="wrap")
    return whole


def unitless(crops: Crops) -> tuple[np.ndarray, np.ndarray]:
    """The whole record (S, C, T, H, W), normalised, 0 where not observed; and what is observed."""
    values, observed = crops.record.arrays()
    mean, std = (
        part.reshape(len(part), 1, *(part.shape[1:] or (1, 1)))
        for part in (crops.normaliser.mean, crops.normaliser.std)
    )
    return np.where(observed, (values - mean) / std, 0), observed


def all_places(crops: Crops) -> list[Place]:
    return [crops.place(i) for i in range(len(crops))]


in_memory_and_not = pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "read on demand"])
open_and_periodic = pytest.mark.parametrize("periodic", [False, True], ids=["open", "periodic"])


@in_memory_and_not
@open_and_periodic
@pytest.mark.parametrize("maps", [False, True], ids=["numbers", "maps"])
@pytest.mark.parametrize("shape", [(4, 5, 7), (12, 9, 12), (1, 1, 1), (3, 9, 11)], ids=str)
def test_a_crop_is_a_slice_of_the_normalised_record(shape, maps, periodic, lazy, monkeypatch) -> None:
    if lazy:
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    record = record_of(periodic)
    crops = Crops(record, normaliser_of(record, maps), shape)
    x, observed = unitless(crops)
    places = all_places(crops)
    seam = [place for place in places if place[3] + shape[2] > COLUMNS]
    assert bool(seam) == (periodic and 1 < shape[2] < COLUMNS)
    for place in [*places[:: max(1, len(places) // 20)], *seam[:: max(1, len(seam) // 5)]]:
        found, seen = crops.at(place)
        assert found.shape == (2, *shape) and found.dtype == torch.float32
        assert np.array_equal(seen, cut(observed, place, crops))
        np.testing.assert_allclose(found, cut(x, place, crops), atol=2e-5)
    sample, _, row, column = places[-1]
    longer, _ = crops.at((sample, 1, row, column), length=11)
    whole = Crops(record, crops.normaliser, (11, *shape[1:])).at((sample, 1, row, column))[0]
    assert torch.equal(longer, whole)
    found, seen = crops.frames(1, 2, 9)
    assert np.array_equal(seen, observed[1, :, 2:9])
    np.testing.assert_allclose(found, x[1, :, 2:9], atol=2e-5)


def test_reading_on_demand_gives_what_memory_holds_and_reads_no_more_than_the_crop(monkeypatch) -> None:
    record = record_of()
    crops = Crops(record, Normaliser(record.mean, record.std), (4, 5, 7))
    monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    lazy = Crops(record, crops.normaliser, crops.shape)
    read: list[tuple[int, ...]] = []
    original = Record.read

    def count(self: Record, *box) -> tuple[np.ndarray, np.ndarray]:
        values, observed = original(self, *box)
        read.append(values.shape)
        return values, observed

    monkeypatch.setattr(Record, "read", count)
    for place in all_places(crops)[::17]:
        assert all(torch.equal(a, b) for a, b in zip(lazy.at(place), crops.at(place)))
        assert read == [(2, 4, 5, 7)]
        read.clear()
    one, same = (of.draw(4, seeded()) for of in (lazy, crops))
    assert one.places == same.places
    assert all(torch.equal(getattr(one, name), getattr(same, name)) for name in ("x", "observed", "maps", "domain"))


@in_memory_and_not
def test_changing_a_crop_leaves_the_record_as_it_is(lazy, monkeypatch) -> None:
    if lazy:
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    crops = crops_of(gappy_dataset(), 4, held=0)
    before = crops.at((0, 0, 0, 0))[0].clone()
    crops.at((0, 0, 0, 0))[0].fill_(7.0)
    crops.training([(0, 0, 0, 0)]).x.fill_(7.0)
    assert torch.equal(crops.at((0, 0, 0, 0))[0], before)


@pytest.mark.parametrize("cells", [1, 2 * ROWS * COLUMNS * 7, 10**9])
def test_reading_by_slabs_gives_what_reading_at_once_gives(monkeypatch, cells) -> None:
    record = record_of(frames=40)
    crops = Crops(record, Normaliser(record.mean, record.std), (6, ROWS, COLUMNS))
    monkeypatch.setattr(module, "SLAB_CELLS", cells)
    again = Crops(record, crops.normaliser, crops.shape)
    assert all(torch.equal(a, b) for a, b in zip(again.at((0, 0, 0, 0), 40), crops.at((0, 0, 0, 0), 40)))


def test_another_normaliser_is_as_good_as_one_from_the_beginning() -> None:
    record = record_of()
    plain, maps = normaliser_of(record, False), normaliser_of(record, True)
    crops = Crops(record, plain, (4, 5, 7))
    crops.normalise(maps)
    first = Crops(record, maps, (4, 5, 7))
    for place in all_places(crops)[::31]:
        assert torch.equal(crops.at(place)[0], first.at(place)[0])
    crops.normalise(plain)
    assert torch.equal(crops.at((0, 0, 0, 0))[0], Crops(record, plain, (4, 5, 7)).at((0, 0, 0, 0))[0])


def test_a_crop_longer_than_the_record_is_refused() -> None:
    record = record_of()
    for shape in ((13, 9, 12), (12, 10, 12), (12, 9, 13)):
        with pytest.raises(InputError, match="longer than the record"):
            Crops(record, Normaliser(record.mean, record.std), shape)


def test_normalising_there_and_back() -> None:
    values = np.random.default_rng(0).normal(280, 5, size=(2, 3, 4, 5, 6))
    normaliser = Normaliser(np.array([280.0, 1.0, -3.0]), np.array([5.0, 1.0, 2.0]))
    assert np.allclose(normaliser.to_values(normaliser.to_tensor(values).numpy()), values, rtol=1e-5)
    assert (normaliser.to_tensor(values * np.nan) == 0).all()


# Grids and domains


@open_and_periodic
def test_a_grid_that_fits_is_one_crop(periodic) -> None:
    record = record_of(periodic)
    shape = crop_shape(record, Settings(window=4))
    assert shape == (4, ROWS, COLUMNS)
    crops = Crops(record, Normaliser(record.mean, record.std), shape)
    assert crops.places_in_space == 1 and len(crops) == 2 * (FRAMES - 4 + 1)
    assert {place[2:] for place in all_places(crops)} == {(0, 0)}
    assert crops.periodic == record.periodic == (False, periodic)
    assert [len(starts) for starts in crops.tiling.starts[1:]] == [1, 1]
    assert (crops.tiling.shares() == crops.tiling.shares()[:, :1, :1]).all()


@open_and_periodic
def test_crops_of_a_larger_grid_are_not_periodic_and_begin_everywhere(periodic) -> None:
    record = record_of(periodic)
    shape = crop_shape(record, Settings(window=4, crop=8))
    assert shape == (4, 8, 8)
    crops = Crops(record, Normaliser(record.mean, record.std), shape)
    assert crops.periodic == (False, False)
    assert crops.places_in_space == 2 * (COLUMNS if periodic else COLUMNS - 8 + 1)


@st.composite
def islands(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, int], bool]:
    """A domain (2, H, W) with few cells, the size of a crop, and whether columns close on themselves."""
    rows, columns = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    size = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    share, seed = draw(st.floats(0.0, 0.6)), draw(st.integers(0, 999))
    domain = np.random.default_rng(seed).random((2, rows, columns)) < share
    domain[:, draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))] = True
    return domain, size, draw(st.booleans())


# One cell beyond the seam of crops that begin in the last column.
SEAM = np.zeros((2, 3, 5), bool)
SEAM[:, 1, 0] = True


@settings(max_examples=40, deadline=None)
@example((SEAM, (2, 3), True))
@given(islands())
def test_crops_hold_cells_of_the_domain_and_their_maps_and_domain_are_cut_with_them(island) -> None:
    domain, size, periodic = island
    _, rows, columns = domain.shape
    names = ("time", "lat", "lon")
    values = np.random.default_rng(0).normal(size=(3, rows, columns))
    coords = {"lon": ("lon", np.arange(float(columns)), {"periodic": int(periodic)})}
    record = open_record(xr.Dataset({"a": (names, values), "b": (names, values)}, coords), domain=domain)
    maps = np.random.default_rng(1).normal(size=(3, rows, columns)).astype(np.float32)
    crops = Crops(record, Normaliser(record.mean, record.std), (2, *size), maps=torch.from_numpy(maps))
    places = all_places(crops)
    wraps = periodic and size[1] < columns
    spots = [(r, c) for r in range(rows - size[0] + 1) for c in range(columns if wraps else columns - size[1] + 1)]

    def box(whole: np.ndarray, row: int, column: int) -> np.ndarray:
        whole = np.take(whole, range(row, row + size[0]), axis=-2)
        return np.take(whole, range(column, column + size[1]), axis=-1, mode="wrap")

    cells = {spot: int(box(domain.any(0), *spot).sum()) for spot in spots}
    enough = {spot for spot in spots if cells[spot] >= max(1, LEAST_DOMAIN * max(cells.values()))}
    assert {place[2:] for place in places} == enough and len(set(places)) == len(places) == 2 * len(enough)
    drawn = crops.draw(5, seeded())
    for batch in (crops.training(places), drawn):
        assert batch.maps.shape == (len(batch), 3, *size) and batch.domain.shape == (len(batch), 2, *size)
        for place, own, inside in zip(batch.places, batch.maps, batch.domain):
            assert inside.any() and place in places
            assert np.array_equal(own, box(maps, *place[2:])) and np.array_equal(inside, box(domain, *place[2:]))
    assert set(crops.some(10**6, seeded())) == set(places)
    assert not (crops.training(places).observed & ~crops.training(places).domain[:, :, None]).any()


def test_batches_are_joined_in_their_order() -> None:
    crops = crops_of(gappy_dataset(), 4, size=(5, 6), maps=torch.ones(1, 9, 12))
    places = crops.some(5, seeded())
    joined, whole = Batch.joined([crops.training(places[:2]), crops.training(places[2:])]), crops.training(places)
    assert joined.places == whole.places == tuple(places) and len(joined) == 5
    assert all(torch.equal(getattr(joined, name), getattr(whole, name)) for name in ("x", "observed", "maps", "domain"))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, FRAMES), st.integers(1, ROWS), st.integers(1, COLUMNS)),
    least=st.sampled_from([1, 3, 40, 10**6]),
    periodic=st.booleans(),
)
def test_places_that_are_spread_out_overlap_only_where_too_few_would_exist(shape, least, periodic) -> None:
    crops = Crops(RECORDS[periodic], Normaliser(RECORDS[periodic].mean, RECORDS[periodic].std), shape)
    places = crops.spread_out(10**6, seeded(), least)
    assert len(set(places)) == len(places) and set(places) <= set(all_places(crops))
    counts = np.zeros(crops.record.shape[:1] + crops.record.shape[2:], int)
    for sample, *starts in places:
        counts[sample][np.ix_(*(axis.cells(start) for axis, start in zip(crops.axes, starts)))] += 1
    apart = crops.spread_out(10**6, seeded())
    if len(apart) >= least:
        assert sorted(places) == sorted(apart)
    if least == 1:
        assert counts.max() == 1  # the domain leaves out a single column, so some crops are always far apart
    elif len(places) < least:
        assert len(places) == len(crops)
    assert set(crops.spread_out(2, seeded(), least)) == set(places[:2])


# Held-out cells


def painted(crops: Crops) -> np.ndarray:
    """All held-out cells on the whole record (S, C, T, H, W)."""
    held = np.zeros(crops.record.shape, bool)
    for (sample, *starts), mask in zip(crops.held.places, crops.held.masks):
        boxes = (range(start, start + n) for start, n in zip(starts, mask.shape[1:]))
        frames, rows, columns = (np.arange(b.start, b.stop) % size for b, size in zip(boxes, held.shape[2:]))
        held[sample][(slice(None), *np.ix_(frames, rows, columns))] |= mask.numpy()
    return held


@in_memory_and_not
@open_and_periodic
@pytest.mark.parametrize("shape", [(6, ROWS, COLUMNS), (4, 5, 7), (12, 6, 11)], ids=str)
def test_held_out_cells_never_reach_training(shape, periodic, lazy, monkeypatch) -> None:
    """Whatever crop overlaps a validation crop, in time, in space or across the seam, hides the same cells."""
    if lazy:
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 0)
    record = record_of(periodic)
    crops = Crops(record, Normaliser(record.mean, record.std), shape)
    crops.held = hold_out(crops, 0.3, seeded())
    assert len(crops.held.places) >= 2
    held, places = painted(crops), all_places(crops)
    x, observed = unitless(crops)
    assert held.any() and not (held & ~observed).any()
    reached = 0
    for place in places[:: max(1, len(places) // 40)]:
        hidden, seen = cut(held, place, crops), cut(observed, place, crops)
        batch = crops.training([place])
        value, visible = crops.visible(place)
        assert np.array_equal(batch.observed[0], seen & ~hidden) and np.array_equal(visible, seen & ~hidden)
        assert not batch.x[0].numpy()[hidden].any() and not value.numpy()[hidden].any()
        np.testing.assert_allclose(batch.x[0], np.where(hidden, 0, cut(x, place, crops)), atol=2e-5)
        assert torch.equal(batch.x[0], value)
        reached += place not in crops.held.places and bool(hidden.any())
    assert reached
    batch = crops.draw(8, seeded(5))
    for place, value, visible in zip(batch.places, batch.x, batch.observed):
        hidden = cut(held, place, crops)
        assert not visible.numpy()[hidden].any() and not value.numpy()[hidden].any()
        assert np.array_equal(visible, cut(observed, place, crops) & ~hidden)
    for sample, start, stop in ((0, 0, FRAMES), (1, 3, 8)):
        value, visible = crops.frames(sample, start, stop)
        assert np.array_equal(visible, (observed & ~held)[sample, :, start:stop])
        assert not value.numpy()[held[sample, :, start:stop]].any()
    for place, length in crops.stretches(10**6, seeded()):
        value, visible = crops.visible(place, length)
        longer = Crops(record, crops.normaliser, (length, *shape[1:]))
        assert np.array_equal(visible, cut(observed & ~held, place, longer))
        assert not value.numpy()[cut(held, place, longer)].any()


@open_and_periodic
def test_validation_crops_show_held_out_values_apart_from_what_is_observed(periodic) -> None:
    record = record_of(periodic)
    crops = Crops(record, Normaliser(record.mean, record.std), (4, 5, 7))
    crops.held = hold_out(crops, 0.3, seeded())
    held, (x, observed) = painted(crops), unitless(crops)
    batch, own = crops.held_out(range(len(crops.held)))
    for i, (place, mask) in enumerate(zip(crops.held.places, crops.held.masks)):
        assert torch.equal(own[i], mask)
        assert np.array_equal(batch.observed[i], cut(observed & ~held, place, crops))
        np.testing.assert_allclose(batch.x[i], cut(x, place, crops), atol=2e-5)
    numbers, found = [], []
    for chosen, part, _, noise in crops.validation(0):
        numbers += chosen
        found.append(part.x)
        assert noise.shape == part.x.shape
    assert numbers == list(range(len(batch))) and torch.equal(torch.cat(found), batch.x)


def test_a_part_of_the_held_out_cells_is_that_of_some_crops() -> None:
    crops = crops_of(gappy_dataset(frames=40), 6)
    part = crops.held.part(slice(1, 3))
    assert part.weights == crops.held.weights[1:3] and len(part) == 2
    assert part.places == crops.held.places[1:3]
    assert all(torch.equal(a, b) for a, b in zip(part.masks, crops.held.masks[1:3]))
    place = crops.held.places[0]
    observed = crops.at(place)[1]
    assert not HoldOut().within(place, observed, crops.axes).any()
    other = HoldOut(((1, *place[1:]),), (observed,), (1.0,))  # of another sample
    assert not other.within(place, observed, crops.axes).any()


@pytest.fixture
def crops() -> Crops:
    return crops_of(gappy_dataset(frames=40, names="a,b"), 6, held=0)


def test_held_out_cells_lie_under_the_gaps_of_another_crop(crops) -> None:
    crops.held = hold_out(crops, 0.3, seeded())
    domain = crops.domain[:, None]
    gaps = [domain & ~crops.at(place)[1] for place in all_places(crops)]
    for place, mask in zip(crops.held.places, crops.held.masks):
        observed = crops.at(place)[1]
        # All of it under one other crop's gaps: these alone, or what they share with the gaps of more crops.
        assert mask.any() and any((mask & ~gap).sum() == 0 for gap in gaps if not torch.equal(gap, domain & ~observed))


def test_cells_are_held_out_where_cells_are_missing() -> None:
    """The west is seen in one frame of four, the east in most: held-out cells count by where missing ones lie."""
    rng = np.random.default_rng(0)
    seen = rng.random((60, 24, 24)) < np.where(np.arange(24) < 12, 0.25, 0.85)
    ds = xr.Dataset({"v": (("time", "lat", "lon"), np.where(seen, rng.normal(size=seen.shape), np.nan))})
    crops = crops_of(ds, 4, held=0, size=(12, 12))
    held = hold_out(crops, 0.3, seeded())
    west = total = plain = 0.0
    for (_, _, _, column), mask, weight in zip(held.places, held.masks, held.weights):
        own = (weight * mask[0].sum((0, 1)))[: max(0, 12 - column)].sum().item()
        west, total = west + own, total + weight * mask.sum().item()
        plain += mask[0].sum((0, 1))[: max(0, 12 - column)].sum().item() / sum(int(m.sum()) for m in held.masks)
    wanted = (~seen[..., :12]).sum() / (~seen).sum()
    assert west / total == pytest.approx(wanted, abs=0.1) and plain < wanted


@pytest.mark.parametrize("shape", [(1, 40, 40), (6, 20, 20)], ids=str)
def test_a_record_without_other_times_lends_itself_its_gaps(shape) -> None:
    """A single frame, and a record that is one crop in time."""
    rng = np.random.default_rng(0)
    clouds = uniform_filter(rng.random(shape), (1, 5, 5)) < 0.48
    ds = xr.Dataset({"v": (("time", "lat", "lon"), np.where(clouds, np.nan, rng.normal(size=shape)))})
    crops = crops_of(ds, shape[0], held=0, size=(12, 12))
    held = hold_out(crops, 0.3, seeded())
    assert len(held) > 3
    for place, mask in zip(held.places, held.masks):
        assert mask.any() and not (mask & ~crops.at(place)[1]).any()
        flat = mask[0].any(0)
        assert not flat.all(0).all() and not flat.all(1).all()  # gaps, not whole crops


def pixels(frames: int, length: int) -> Crops:
    """200 samples of 16 x 16 cells, 30 % of the cells of each observed throughout."""
    generator = np.random.default_rng(0)
    seen = generator.random((200, 1, 16, 16)) < 0.3
    values = np.where(seen, generator.normal(size=(200, frames, 16, 16)), np.nan)
    return crops_of(xr.Dataset({"z": (("sample", "time", "y", "x"), values)}), length, held=0)


def test_enough_crops_and_cells_are_held_out_to_calibrate_with() -> None:
    crops = pixels(2, 2)
    held = hold_out(crops, 0.1, seeded())
    assert len(held.places) == HELD.wanted > 0.1 * 200
    for place, mask in zip(held.places, held.masks):
        seen = int(crops.at(place)[1].sum())
        assert mask.sum() >= min(HELD.least_cells, seen // 5) > 0


def test_missing_cells_count_by_their_share_in_the_fill() -> None:
    """Alike where one crop fills a sample, less at the ends of crops that overlap."""
    alone, joined = pixels(4, 4), pixels(12, 4)
    assert np.allclose(missing_places(alone, seeded()).prior, 1)
    prior = missing_places(joined, seeded()).prior
    assert set(prior.round(6)) == set(joined.tiling.shares()[:, 0, 0].round(6)) and prior.min() < 0.7


def test_identical_gaps_everywhere_are_held_out_by_whole_cells() -> None:
    ds = gappy_dataset(frames=40)
    ds["sst"] = ds.sst.fillna(10.0).where(ds.lon > 1).where(ds.lat > 42)
    crops = crops_of(ds, 6, held=0)
    held = hold_out(crops, 0.2, seeded())
    for mask in held.masks:
        assert mask.any() and (mask == mask[:, :1]).all()
        assert (mask.sum() < crops.domain.sum() * 6).all()


def test_the_same_seed_holds_out_the_same_cells(crops) -> None:
    first, second = (hold_out(crops, 0.2, seeded(3)) for _ in range(2))
    assert first.places == second.places and all(torch.equal(a, b) for a, b in zip(first.masks, second.masks))


@pytest.mark.parametrize("spells", [130, 20])
def test_gaps_that_last_are_held_out_for_as_long_as_they_last(spells) -> None:
    """Masks change every third frame; no held-out cell is seen in another frame of its three."""
    rng = np.random.default_rng(0)
    seen = (rng.random((spells, 12, 12)) < 0.3).repeat(3, axis=0)
    ds = xr.Dataset({"v": (("time", "lat", "lon"), np.where(seen, rng.normal(size=seen.shape), np.nan))})
    held = hold_out(crops_of(ds, 8, held=0), 0.2, seeded())
    assert len(held.places) >= (8 if spells == 130 else 4)
    for (_, start, _, _), mask in zip(held.places, held.masks):
        spell = torch.arange(start, start + 8) // 3
        for one in spell.unique():
            frames = mask[:, spell == one]
            assert (frames == frames[:, :1]).all()


def test_gaps_that_never_change_are_held_out_in_all_frames_of_fewer_crops() -> None:
    """Eight samples, each with a mask of its own that stays the same: training keeps most of the observations."""
    rng = np.random.default_rng(0)
    seen = (rng.random((8, 1, 12, 12)) < 0.5).repeat(6, axis=1)
    ds = xr.Dataset({"v": (("sample", "time", "lat", "lon"), np.where(seen, rng.normal(size=seen.shape), np.nan))})
    held = hold_out(crops_of(ds, 6, held=0), 0.2, seeded())
    assert all((mask == mask[:, :1]).all() for mask in held.masks)
    assert 0 < sum(int(mask.sum()) for mask in held.masks) < 0.3 * seen.sum()


# Reading ahead


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
