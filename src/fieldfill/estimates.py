"""The filled samples of a record, their windows estimated in one process or in several.

Windows overlap by half and are blended. What is random about a window follows from the seed and its place alone, so any
number of processes gives the same fill up to rounding.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor

from fieldfill.errors import InputError
from fieldfill.members import place_generator
from fieldfill.model import Model
from fieldfill.windows import Blend, Windows, fill_starts

__all__ = ["Estimator", "estimates"]

BATCH, BATCH_CELLS = 16, 2**22  # windows, and cells of them, filled at once

Place = tuple[int, int]  # sample, first frame


@dataclass(frozen=True)
class Estimator:
    """Mean, standard deviation (B, C, T, H, W) and parts of the variance (B, 3 or 0, C, T, H, W) of some windows."""

    model: Model
    windows: Windows
    seed: int
    budget: bool

    def __call__(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, observed = self.windows.training(places)
        generators = [place_generator(self.seed, *place) for place in places]
        mean, spread, *parts = self.model.estimate(x, observed, generators, self.budget)
        split = [part for found in parts for part in vars(found).values()]
        return mean, spread, np.stack(split, axis=1) if split else np.empty((len(x), 0, *mean.shape[1:]))


def estimates(
    estimator: Estimator, report: Callable[[int, int], None] | None, workers: int = 1
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    """Mean and standard deviation (C, T, H, W), unitless, of each sample in order.

    The third are the shares (3, C, T, H, W) of the parts of the variance, or nothing (0, ...) without a budget.
    """
    windows = estimator.windows
    length, (samples, variables, frames, rows, columns) = windows.length, windows.record.shape
    starts = fill_starts(frames, length)
    places = [(sample, start) for sample in range(samples) for start in starts]
    step = max(1, min(BATCH, BATCH_CELLS // (variables * length * rows * columns)))
    if workers > 1:
        step = min(step, math.ceil(len(places) / workers))
    batches = [places[first : first + step] for first in range(0, len(places), step)]
    blends, done = [Blend(frames, length) for _ in range(3)], 0
    with _mapped(estimator, batches, workers) as found:
        for chosen, parts in zip(batches, found):
            for (_, start), *window in zip(chosen, *parts):
                for blend, part in zip(blends, window):
                    blend.add(start, part)
                if start == starts[-1]:
                    mean, spread, shares = (blend.mean() for blend in blends)
                    total = np.maximum(shares.sum(0), 1e-30)
                    yield torch.from_numpy(mean).float(), torch.from_numpy(spread).float(), shares / total
                    blends = [Blend(frames, length) for _ in range(3)]
            done += len(chosen)
            if report is not None:
                report(done, len(places))


@contextmanager
def _mapped(
    estimator: Estimator, batches: list[list[Place]], workers: int
) -> Iterator[Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """The estimates of all batches, in order."""
    workers = min(workers, len(batches))
    if workers < 2:
        yield map(estimator, batches)
        return
    threads = max(1, torch.get_num_threads() // workers)
    # Processes that are forked while OpenMP threads exist may hang: they are started anew.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (estimator, threads)) as pool:
        try:
            yield pool.map(_estimate, batches)
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {workers} worker processes died, most likely for want of memory; use fewer workers"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_mine: Estimator  # of this worker process


def _begin(estimator: Estimator, threads: int) -> None:
    global _mine  # the one way in which a pool can give its processes something to keep
    _mine = estimator
    torch.set_num_threads(threads)


def _estimate(places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _mine(places)
