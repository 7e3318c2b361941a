"""Windows in time: which frames the network sees together, how they are normalised and joined again.

A window is ``length`` consecutive frames of one sample. Windows cover every frame (the last slides back to the
edge), and overlapping windows are blended with weights that fade towards their ends.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.record import IN_MEMORY_BYTES, Record

__all__ = [
    "Ahead",
    "Blend",
    "HoldOut",
    "Normaliser",
    "Windows",
    "blend_weights",
    "cover",
    "fill_starts",
    "frame_shares",
]

SLAB_CELLS = 2**23  # cells read at once
T = TypeVar("T")


def cover(frames: int, length: int, stride: int) -> list[int]:
    """Starts of windows of ``length`` that cover ``frames`` frames; the last one slides back to the edge."""
    if length > frames:
        raise InputError(f"the window of {length} frames is longer than the record of {frames}; choose a shorter one")
    starts = list(range(0, frames - length + 1, stride))
    if starts[-1] + length < frames:
        starts.append(frames - length)
    return starts


def fill_starts(frames: int, length: int) -> list[int]:
    """Starts of the windows that fill a sample: each frame but the outer ones lies in two of them."""
    return cover(frames, length, max(1, length // 2))


def blend_weights(length: int) -> np.ndarray:
    """Weights (T,) of a window's frames in the blend: highest in the middle, where most context is, never zero."""
    centre = (length - 1) / 2
    return 1 - np.abs(np.arange(length) - centre) / (centre + 1)


def frame_shares(frames: int, length: int) -> np.ndarray:
    """Shares (T,) that the frames of a window have in what is filled, on average: 1 where no other window helps."""
    weights, starts = blend_weights(length), fill_starts(frames, length)
    total = np.zeros(frames)
    for start in starts:
        total[start : start + length] += weights
    return np.mean([weights / total[start : start + length] for start in starts], axis=0)


class Blend:
    """Weighted mean of overlapping windows along the frames of one sample."""

    def __init__(self, frames: int, length: int) -> None:
        self.frames, self.weights = frames, blend_weights(length)
        self.total = np.zeros(frames)
        self.sum: np.ndarray | None = None

    def add(self, start: int, window: np.ndarray) -> None:
        """Adds a window (..., T, H, W) that begins at frame ``start``."""
        if self.sum is None:
            self.sum = np.zeros((*window.shape[:-3], self.frames, *window.shape[-2:]))
        stop = start + len(self.weights)
        self.sum[..., start:stop, :, :] += window * self.weights[:, None, None]
        self.total[start:stop] += self.weights

    def mean(self) -> np.ndarray:
        assert self.sum is not None and (self.total > 0).all(), "a frame is covered by no window"
        return self.sum / self.total[:, None, None]


@dataclass(frozen=True)
class Normaliser:
    """The single door between units and unitless tensors, fitted on observed cells only.

    Attributes
    ----------
    mean, std
        (C,) of each variable, or maps (C, 1, 1) or (C, H, W).
    """

    mean: np.ndarray
    std: np.ndarray

    def to_tensor(self, values: np.ndarray) -> Tensor:
        """values (..., C, T, H, W) with NaN where missing → float32 tensor with 0 there."""
        unitless = (values - _over_frames(self.mean)) / _over_frames(self.std)
        return torch.from_numpy(np.nan_to_num(unitless, nan=0.0).astype(np.float32))

    def to_values(self, x: np.ndarray) -> np.ndarray:
        """(..., C, T, H, W) unitless → float64 in the units of the data."""
        return x.astype(np.float64) * _over_frames(self.std) + _over_frames(self.mean)

    def spread_to_values(self, spread: np.ndarray) -> np.ndarray:
        return spread.astype(np.float64) * _over_frames(self.std)


def _over_frames(statistic: np.ndarray) -> np.ndarray:
    """(C,), (C, 1, 1) or (C, H, W) → broadcastable to (C, T, H, W)."""
    return statistic.reshape(len(statistic), 1, *(statistic.shape[1:] or (1, 1)))


@dataclass(frozen=True)
class HoldOut:
    """Observed cells that training never sees, so that error can be measured without any truth.

    Attributes
    ----------
    places
        (sample, start) of each validation window.
    masks
        (C, T, H, W) bool per validation window, True = held out.
    """

    places: tuple[tuple[int, int], ...]
    masks: tuple[Tensor, ...]

    def within(self, sample: int, start: int, observed: Tensor) -> Tensor:
        """The held-out cells among the frames of ``observed`` (C, T, H, W), which begin at ``start``."""
        held = torch.zeros_like(observed)
        frames = observed.shape[1]
        for (place, begin), mask in zip(self.places, self.masks):
            low, high = max(start, begin), min(start + frames, begin + mask.shape[1])
            if place == sample and low < high:
                held[:, low - start : high - start] |= mask[:, low - begin : high - begin]
        return held & observed


@dataclass
class Windows:
    """All windows of a record as unitless tensors; a small record is kept in memory, a large one read on demand."""

    record: Record
    normaliser: Normaliser
    length: int
    held: HoldOut = field(default_factory=lambda: HoldOut((), ()))

    def __post_init__(self) -> None:
        samples, _, frames, _, _ = self.record.shape
        starts = cover(frames, self.length, 1)
        self.places = [(sample, start) for sample in range(samples) for start in starts]
        self.normalise(self.normaliser)

    def normalise(self, normaliser: Normaliser) -> None:
        """Goes on with another normaliser; what is kept in memory is read again."""
        samples, _, frames, _, _ = self.record.shape
        self.normaliser = normaliser
        self._kept: tuple[Tensor, Tensor] | None = None
        if 5 * np.prod(self.record.shape) <= IN_MEMORY_BYTES:
            kept = torch.empty(self.record.shape), torch.empty(self.record.shape, dtype=torch.bool)
            for sample in range(samples):
                kept[0][sample], kept[1][sample] = self._read(sample, 0, frames)
            self._kept = kept

    def __len__(self) -> int:
        return len(self.places)

    def _read(self, sample: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """x, observed (C, T, H, W), a slab of frames at a time: reading takes several times what it returns."""
        _, variables, _, rows, columns = self.record.shape
        shape, slab = (variables, stop - start, rows, columns), max(1, SLAB_CELLS // (variables * rows * columns))
        x, observed = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
        for first in range(start, stop, slab):
            values, seen = self.record.read(sample, first, min(first + slab, stop))
            frames = slice(first - start, first - start + slab)
            x[:, frames], observed[:, frames] = self.normaliser.to_tensor(values), torch.from_numpy(seen)
        return x, observed

    def at(self, sample: int, start: int, length: int | None = None) -> tuple[Tensor, Tensor]:
        """x, observed (C, T, H, W) of one window (or of any ``length``), held-out cells included."""
        stop = start + (length or self.length)
        if self._kept is not None:
            return self._kept[0][sample, :, start:stop], self._kept[1][sample, :, start:stop]
        return self._read(sample, start, stop)

    def visible(self, sample: int, start: int, length: int | None = None) -> tuple[Tensor, Tensor]:
        """The same without the held-out cells."""
        x, observed = self.at(sample, start, length)
        if self.held.places:
            observed = observed & ~self.held.within(sample, start, observed)
        return x * observed, observed

    def training(self, places: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """x, observed (B, C, T, H, W) without the held-out cells."""
        pairs = [self.visible(sample, start) for sample, start in places]
        return torch.stack([x for x, _ in pairs]), torch.stack([observed for _, observed in pairs])

    def held_out(self, places: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """x with all its values, what is left to see of it and the held-out cells of validation windows."""
        pairs = [self.at(*place) for place in places]
        held = torch.stack([self.held.within(*place, observed) for place, (_, observed) in zip(places, pairs)])
        observed = torch.stack([observed for _, observed in pairs])
        return torch.stack([x for x, _ in pairs]), observed & ~held, held

    def draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """A random training batch of ``count`` windows."""
        chosen = torch.randint(len(self.places), (count,), generator=generator).tolist()
        return self.training([self.places[i] for i in chosen])

    def spread_out(self, count: int, generator: Generator, least: int = 1) -> list[tuple[int, int]]:
        """Up to ``count`` places in random order, that do not overlap unless fewer than ``least`` would exist."""
        samples, frames = self.record.shape[0], self.record.shape[2]
        stride = self.length
        while (starts := cover(frames, self.length, stride)) and samples * len(starts) < least and stride > 1:
            stride = (stride + 1) // 2
        order = torch.randperm(samples * len(starts), generator=generator)[:count].tolist()
        return [(i // len(starts), starts[i % len(starts)]) for i in order]

    def stretches(self, count: int, generator: Generator) -> list[tuple[int, int, int]]:
        """(sample, start, stop) in random order, together about ``count`` frames, each with all lags of a window."""
        samples, _, frames, _, _ = self.record.shape
        step = min(frames, 8 * self.length)
        parts = [(s, first, min(first + step, frames)) for s in range(samples) for first in range(0, frames, step)]
        order = torch.randperm(len(parts), generator=generator)[: max(1, count // step)].tolist()
        return [parts[i] for i in order if parts[i][2] - parts[i][1] > 1 or frames == 1]

    def masks(self, count: int, generator: Generator, least: int = 1, limit_bytes: int = 2**27) -> Tensor:
        """Observation masks (N, C, T, H, W) of spread-out training windows, at most ``count`` and ``limit_bytes``."""
        _, variables, _, rows, columns = self.record.shape
        each = variables * self.length * rows * columns
        places = self.spread_out(max(2, min(count, limit_bytes // each)), generator, least)
        masks = torch.empty((len(places), variables, self.length, rows, columns), dtype=torch.bool)
        for mask, place in zip(masks, places):
            mask.copy_(self.visible(*place)[1])
        return masks


class Ahead(Generic[T]):
    """``make(n)`` for n = 0, 1, ..., each made in a thread while the one before is in use.

    Entered as a context, it leaves no thread behind; it can be used again afterwards.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self.make = make
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[T]] | None = None

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._next = None, None

    def __call__(self, n: int) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "reading-ahead")
        ready = self._next[1] if self._next is not None and self._next[0] == n else self._pool.submit(self.make, n)
        self._next = n + 1, self._pool.submit(self.make, n + 1)
        return ready.result()
