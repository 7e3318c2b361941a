"""Reading ahead: the next batch is prepared while the present one is in use."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


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
