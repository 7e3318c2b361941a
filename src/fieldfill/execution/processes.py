"""The filled frames of a record, their crops estimated in one process or in several.

Crops overlap and are blended. What is random about a crop follows from the seed and its place alone, so any number of
processes gives the same fill up to rounding.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeAlias

import numpy as np
import torch

from fieldfill.data.cover import Blend
from fieldfill.data.crops import Crops, Place
from fieldfill.errors import InputError
from fieldfill.execution.memory import keep_freed_memory

__all__ = ["Estimate", "filled_frames"]

# Crops that are estimated at once, at most.
BATCH = 16
# Cells of these crops at most, which bounds the memory of a process.
TOGETHER_CELLS = 2**22

Estimate: TypeAlias = Callable[[list[Place]], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Places → mean, standard deviation (B, C, T, H, W) and parts of the variance (B, 3 or 0, C, T, H, W)."""


def filled_frames(
    estimate: Estimate, crops: Crops, report: Callable[[int, int], None] | None, workers: int = 1
) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Sample, frames, mean and standard deviation (C, T, H, W), unitless, of all frames in order, some at a time.

    The last are the shares (3, C, T, H, W) of the parts of the variance, or nothing (0, ...) without a budget.
    """
    tiling, (samples, _, size, _, _) = crops.tiling, crops.record.shape
    frames, rows, columns = tiling.starts
    places = [(s, f, r, c) for s in range(samples) for f in frames for r in rows for c in columns]
    step = max(1, min(BATCH, TOGETHER_CELLS // crops.cells))
    if workers > 1:
        step = min(step, math.ceil(len(places) / workers))
    batches = [places[first : first + step] for first in range(0, len(places), step)]
    after = dict(zip(frames, [*frames[1:], size]))  # frames before the next start are finished
    done, blends = 0, None
    with _mapped(estimate, batches, workers) as found:
        for chosen, parts in zip(batches, found):
            for (sample, frame, row, column), *crop in zip(chosen, *parts):
                if blends is None:
                    first, blends = 0, [Blend(tiling, part.shape[:-3]) for part in crop]
                for blend, part in zip(blends, crop):
                    blend.add((frame, row, column), part)
                if (row, column) == (rows[-1], columns[-1]):
                    mean, spread, shares = (blend.take(after[frame]) for blend in blends)
                    yield sample, slice(first, after[frame]), mean, spread, shares / np.maximum(shares.sum(0), 1e-30)
                    first = after[frame]
                    blends = blends if first < size else None
            done += len(chosen)
            if report is not None:
                report(done, len(places))


@contextmanager
def _mapped(
    estimate: Estimate, batches: list[list[Place]], workers: int
) -> Iterator[Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """The estimates of all batches, in order."""
    workers = min(workers, len(batches))
    if workers < 2:
        yield map(estimate, batches)
        return
    threads = max(1, torch.get_num_threads() // workers)
    # Processes that are forked while OpenMP threads exist may hang: they are started anew.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (estimate, threads)) as pool:
        try:
            yield pool.map(_estimate, batches)
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {workers} worker processes died, most likely for want of memory; use fewer workers"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_mine: Estimate  # of this worker process


def _begin(estimate: Estimate, threads: int) -> None:
    global _mine  # the one way in which a pool can give its processes something to keep
    _mine = estimate
    keep_freed_memory()
    torch.set_num_threads(threads)


def _estimate(places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _mine(places)
