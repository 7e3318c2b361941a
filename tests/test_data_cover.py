"""Crops cover every cell of a record, and blending joins them to what they were cut from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldfill.data.cover import Axis, Blend, Tiling
from fieldfill.errors import InputError


@st.composite
def axes(draw: st.DrawFn, wraps: bool | None = None, longest: int = 12) -> tuple[Axis, int]:
    """An axis of any size and a stride with which its crops leave no gaps."""
    length = draw(st.integers(1, longest))
    size = length + draw(st.integers(0, 3 * longest))
    wraps = draw(st.booleans()) if wraps is None else wraps
    return Axis(size, length, wraps and length < size), draw(st.integers(1, length))


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    along = [draw(axes(wraps, longest)) for wraps, longest in ((False, 5), (None, 4), (None, 4))]
    (frames, rows, columns), (t, h, w) = zip(*along)
    return Tiling((frames, rows, columns), (t, h, w))


@given(axes())
def test_crops_cover_every_cell_of_an_axis(found: tuple[Axis, int]) -> None:
    axis, stride = found
    starts, seen = axis.cover(stride), np.zeros(axis.size, bool)
    for start in starts:
        assert 0 <= start < axis.places
        assert len(set(axis.cells(start))) == axis.length
        seen[axis.cells(start)] = True
    assert seen.all() and starts == sorted(set(starts))
    ends = [*starts, axis.size] if axis.wraps else starts
    assert max(np.diff(ends), default=0) <= stride


@given(axes())
def test_crops_apart_do_not_overlap_and_no_further_one_fits(found: tuple[Axis, int]) -> None:
    axis, _ = found
    counts = np.zeros(axis.size, int)
    for start in axis.apart():
        assert 0 <= start < axis.places
        counts[axis.cells(start)] += 1
    assert counts.max() == 1 and (counts == 0).sum() < axis.length
    if not axis.wraps and axis.size >= 2 * axis.length:
        assert counts[0] == counts[-1] == 1


def test_a_crop_longer_than_the_record_is_refused() -> None:
    with pytest.raises(InputError, match="crop of 8 is longer than the record, which has 5"):
        Axis(5, 8)


@given(axes(), st.data())
def test_two_crops_share_the_cells_that_both_hold(found: tuple[Axis, int], data: st.DataObject) -> None:
    """Also where one of them reaches over the seam, and where it is longer than the crops of the axis."""
    axis, _ = found
    mine, other = (data.draw(st.integers(0, axis.places - 1)) for _ in range(2))
    length = data.draw(st.integers(1, axis.size if axis.wraps else axis.size - other))
    shared = np.zeros((axis.length, length), bool)
    for here, there in axis.overlap(mine, other, length):
        shared[np.arange(axis.length)[here], np.arange(length)[there]] = True
    numbers = np.arange(other, other + length) % axis.size
    assert np.array_equal(shared, axis.cells(mine)[:, None] == numbers)


@given(tilings())
def test_weights_over_their_totals_sum_to_one_at_every_cell(tiling: Tiling) -> None:
    for number, axis in enumerate(tiling.axes):
        weights, total = tiling.weights(number), tiling.totals(number)
        shares = np.zeros(axis.size)
        for start in tiling.starts[number]:
            shares[axis.cells(start)] += weights / total[axis.cells(start)]
        assert np.allclose(shares, 1, atol=1e-12)
        middle = ((axis.length - 1) // 2, axis.length // 2)
        assert (weights > 0).all() and np.allclose(weights, weights[::-1])
        assert weights.max() == weights[middle[0]] == weights[middle[1]]
        assert (np.diff(weights[: middle[0] + 1]) >= 0).all()


def cut(field: np.ndarray, tiling: Tiling, place: tuple[int, int, int]) -> np.ndarray:
    """The crop of a field (..., T, H, W) at a place."""
    for dim, (axis, start) in enumerate(zip(tiling.axes, place)):
        field = np.take(field, range(start, start + axis.length), axis=dim - 3, mode="wrap")
    return field


def blended(tiling: Tiling, crop_at, leading: tuple[int, ...]) -> np.ndarray:
    """All frames, taken out as soon as no later crop touches them."""
    frames, rows, columns = tiling.starts
    blend, parts = Blend(tiling, leading), []
    for frame, following in zip(frames, [*frames[1:], tiling.axes[0].size]):
        for row in rows:
            for column in columns:
                blend.add((frame, row, column), crop_at((frame, row, column)))
        parts.append(blend.take(following))
        assert parts[-1].shape[-3] == following - frame
    return np.concatenate(parts, axis=-3)


@settings(max_examples=60, deadline=None)
@given(tilings(), st.integers(0, 99))
def test_blending_the_crops_of_a_field_gives_it_back(tiling: Tiling, seed: int) -> None:
    field = np.random.default_rng(seed).normal(size=(2, *(axis.size for axis in tiling.axes)))
    found = blended(tiling, lambda place: cut(field, tiling, place), (2,))
    assert found.shape == field.shape and np.allclose(found, field, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(tilings(), st.floats(-1e3, 1e3))
def test_blending_a_constant_gives_the_constant(tiling: Tiling, value: float) -> None:
    found = blended(tiling, lambda _: np.full([axis.length for axis in tiling.axes], value), ())
    assert np.allclose(found, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wraps", [False, True])
def test_a_blend_fades_from_one_crop_to_the_next(wraps: bool) -> None:
    """Crops that disagree are joined without a step: no cell lies outside what the crops say, nor jumps by half."""
    tiling = Tiling((Axis(1, 1), Axis(1, 1), Axis(24, 9, wraps)), (1, 1, 6))
    line = blended(tiling, lambda place: np.full((1, 1, 9), float(place[2] // 6 % 2)), ())[0, 0]
    assert line.min() == 0 and line.max() == 1 and np.abs(np.diff(line)).max() < 0.5


def test_a_cell_that_no_crop_covers_is_an_error_of_ours() -> None:
    with pytest.raises(AssertionError, match="covered by no crop"):
        Tiling((Axis(6, 2), Axis(2, 2), Axis(2, 2)), (3, 2, 2))


def test_frames_whose_crops_are_not_all_there_cannot_be_taken() -> None:
    blend = Blend(Tiling((Axis(4, 2), Axis(3, 2), Axis(2, 2)), (2, 1, 2)), ())
    for place in ((0, 0, 0), (0, 1, 0), (2, 0, 0)):
        blend.add(place, np.ones((2, 2, 2)))
    assert np.array_equal(blend.take(2), np.ones((2, 3, 2)))
    with pytest.raises(AssertionError, match="some crops are missing"):
        blend.take(4)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (3, 2, 4), (8, 5, 6)], ids=str)
@pytest.mark.parametrize("wraps", [False, True], ids=["open", "periodic"])
def test_shares_of_cells_are_those_of_the_blend(lengths: tuple[int, int, int], wraps: bool) -> None:
    """Where one crop fills a sample, its cells count alike; of larger records the outer ones count less."""
    alone = Tiling(tuple(Axis(n, n) for n in lengths), lengths)
    assert np.array_equal(alone.shares(), np.ones(lengths))
    sizes = tuple(2 * n + 1 for n in lengths)
    along = zip(sizes, lengths, (False, wraps, wraps))
    tiling = Tiling(tuple(Axis(*one) for one in along), tuple(max(1, n // 2) for n in lengths))
    frames, rows, columns = tiling.starts
    places = [(f, r, c) for f in frames for r in rows for c in columns]
    shares = np.zeros(lengths)
    for one in places:  # blending a crop of ones with others of zeros gives its share
        found = blended(tiling, lambda place: np.full(lengths, float(place == one)), ())  # noqa: B023
        shares += cut(found, tiling, one) / len(places)
    assert np.allclose(tiling.shares(), shares)
    assert np.isclose(tiling.shares().sum() * len(places), np.prod(sizes))
    middle = tuple(n // 2 for n in lengths)
    assert min(lengths) < 3 or tiling.shares()[0, 0, 0] < tiling.shares()[middle]
