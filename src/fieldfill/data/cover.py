"""Covering a record with overlapping crops, and blending what they give.

Along each axis crops cover every cell: the last one slides back to the edge, or wraps around an axis that closes on
itself. Overlapping crops are joined by a weighted mean whose weights fade towards their edges, where they see least.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fieldfill.errors import InputError

__all__ = ["Axis", "Blend", "Tiling"]


@dataclass(frozen=True)
class Axis:
    """One axis of a record and the crops along it.

    Attributes
    ----------
    size
        cells of the record.
    length
        cells of a crop.
    wraps
        whether crops may reach over the end of the axis to its beginning.
    """

    size: int
    length: int
    wraps: bool = False

    def __post_init__(self) -> None:
        if self.length > self.size:
            raise InputError(
                f"a crop of {self.length} is longer than the record, which has {self.size}; choose a smaller one"
            )

    @property
    def places(self) -> int:
        """Number of different starts of a crop."""
        return self.size if self.wraps else self.size - self.length + 1

    def cover(self, stride: int) -> list[int]:
        """Starts of crops at most ``stride`` apart that cover the axis."""
        if self.wraps:
            count = -(-self.size // stride)
            return [i * self.size // count for i in range(count)]
        starts = list(range(0, self.size - self.length + 1, stride))
        if starts[-1] + self.length < self.size:
            starts.append(self.size - self.length)
        return starts

    def apart(self) -> list[int]:
        """Starts of as many crops as fit side by side without overlap, spread over the axis."""
        count = self.size // self.length
        way, steps = (self.size, count) if self.wraps else (self.size - self.length, max(1, count - 1))
        return [i * way // steps for i in range(count)]

    def cells(self, start: int) -> np.ndarray:
        """Numbers (length,) of the cells of a crop."""
        return np.arange(start, start + self.length) % self.size

    def overlap(self, start: int, other: int, length: int) -> Iterator[tuple[slice, slice]]:
        """Parts of the crop at ``start`` that a stretch of ``length`` from ``other`` covers, in cells of both."""
        for shift in (-self.size, 0, self.size) if self.wraps else (0,):
            low, high = max(start, other + shift), min(start + self.length, other + shift + length)
            if low < high:
                yield slice(low - start, high - start), slice(low - other - shift, high - other - shift)


@dataclass(frozen=True)
class Tiling:
    """The crops that fill one sample of a record.

    Attributes
    ----------
    axes
        frames, rows and columns.
    strides
        distances of neighbouring crops along each axis; the rest of a crop is overlap.
    """

    axes: tuple[Axis, Axis, Axis]
    strides: tuple[int, int, int]

    def __post_init__(self) -> None:
        lengths = (axis.length for axis in self.axes)
        assert all(stride <= length for stride, length in zip(self.strides, lengths)), "a cell is covered by no crop"

    @property
    def starts(self) -> tuple[list[int], list[int], list[int]]:
        """Starts along each axis."""
        frames, rows, columns = (axis.cover(stride) for axis, stride in zip(self.axes, self.strides))
        return frames, rows, columns

    def weights(self, axis: int) -> np.ndarray:
        """Weights (length,) of the cells of a crop along an axis: highest in the middle, never zero."""
        length, overlap = self.axes[axis].length, self.axes[axis].length - self.strides[axis]
        if length == self.axes[axis].size:
            return np.ones(length)
        edge = np.minimum(np.arange(1, length + 1), np.arange(length, 0, -1))
        if overlap >= length // 2:
            return edge / edge.max()
        # Close to 0 at the edge, where neighbouring crops differ most: a larger weight leaves a visible step there.
        return np.sin(np.pi / 2 * np.minimum(edge / (overlap + 1), 1)) ** 2

    def totals(self, axis: int) -> np.ndarray:
        """Sum (size,) of the weights of all crops along an axis."""
        total, weights = np.zeros(self.axes[axis].size), self.weights(axis)
        for start in self.starts[axis]:
            total[self.axes[axis].cells(start)] += weights
        return total

    def shares(self) -> np.ndarray:
        """Share (T, h, w) that the cells of a crop have in what is filled, on average: 1 where no other crop helps."""
        along = []
        for axis in range(3):
            weights, total = self.weights(axis), self.totals(axis)
            parts = [weights / total[self.axes[axis].cells(start)] for start in self.starts[axis]]
            along.append(np.mean(parts, axis=0))
        return along[0][:, None, None] * along[1][:, None] * along[2]


class Blend:
    """Weighted mean of overlapping crops of one sample, given from the first frame to the last.

    Frames that no later crop will touch can be taken out, so that memory holds little more than the frames of a crop.
    """

    def __init__(self, tiling: Tiling, leading: Sequence[int], dtype: type = np.float64) -> None:
        self.tiling, self.leading, self.dtype = tiling, tuple(leading), dtype
        self._weights = [tiling.weights(axis) for axis in range(3)]
        self._totals = [tiling.totals(axis) for axis in range(3)]
        self._first, self._added = 0, 0
        self._sum = self._empty(0)

    def _empty(self, frames: int) -> np.ndarray:
        _, rows, columns = self.tiling.axes
        return np.zeros((*self.leading, frames, rows.size, columns.size), self.dtype)

    def add(self, place: tuple[int, int, int], crop: np.ndarray) -> None:
        """Adds a crop (..., T, h, w) that begins at a frame, row and column."""
        frame, row, column = place
        self._added += 1
        lacking = frame + crop.shape[-3] - self._first - self._sum.shape[-3]
        if lacking > 0:
            self._sum = np.concatenate([self._sum, self._empty(lacking)], axis=-3)
        _, rows, columns = self.tiling.axes
        t, h, w = self._weights
        weighted = crop * (t[:, None, None] * h[:, None] * w)
        frames = slice(frame - self._first, frame - self._first + crop.shape[-3])
        for mine, there in rows.overlap(row, 0, rows.size):
            for ours, where in columns.overlap(column, 0, columns.size):
                self._sum[..., frames, there, where] += weighted[..., mine, ours]

    def take(self, stop: int) -> np.ndarray:
        """Means (..., frames, H, W) of the frames up to ``stop`` that have not been taken yet."""
        frames, rows, columns = self.tiling.starts
        due = sum(frame < stop for frame in frames) * len(rows) * len(columns)
        assert self._added >= due, "some crops are missing"
        count = stop - self._first
        done, self._sum = self._sum[..., :count, :, :], self._sum[..., count:, :, :].copy()
        t, h, w = self._totals
        total = t[self._first : stop, None, None] * h[:, None] * w
        self._first = stop
        return done / total
