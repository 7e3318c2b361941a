"""How many threads torch should use: the number with which a representative piece of work is fastest.

More threads are not always faster: on small crops they wait for each other, and on a busy machine for their turn. The
number changes the order of sums and therefore the last digits of a result, nothing else.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["available_cores", "fastest_threads", "using_threads"]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fastest_threads(work: Callable[[], object], wanted: int | None = None, least_gain: float = 0.1) -> int:
    """The number of threads to use: ``wanted``, or that of OMP_NUM_THREADS, or the fastest for ``work``.

    More threads must save the share ``least_gain`` of the time: they take cores from other work.
    """
    if wanted is not None:
        return wanted
    most = available_cores()
    if "OMP_NUM_THREADS" in os.environ or most == 1:
        return torch.get_num_threads()
    best, least = 1, float("inf")
    for threads in sorted({min(2**n, most) for n in range(most.bit_length() + 1)}):
        with using_threads(threads):
            seconds = _seconds(work)
        if seconds > (1 - least_gain) * least:
            break
        best, least = threads, seconds
    return best


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Torch uses so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(work: Callable[[], object], trials: int = 3, enough: float = 0.3) -> float:
    """The shortest time of a few repetitions: what else the machine does only makes them longer.

    No further trial is made after ``enough`` seconds.
    """
    shortest, begun = float("inf"), time.monotonic()
    for _ in range(trials):
        last = time.monotonic()
        work()
        shortest = min(shortest, time.monotonic() - last)
        if time.monotonic() - begun > enough:
            break
    return shortest
