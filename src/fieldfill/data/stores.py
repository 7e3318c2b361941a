"""Zarr stores that stop at the first failure: once one write has failed, no other one touches the disk."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

__all__ = ["storing"]

_counting = threading.Lock()  # one for all stores: they are sent to the workers of a cluster, which a lock cannot be


class _StoppableStore(LocalStore):
    """A directory that refuses writes after ``stopped`` is set; ``busy`` counts those that have begun."""

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self.stopped, self.busy = False, 0

    async def set(self, key: str, value: Buffer) -> None:
        with self._counted():
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        with self._counted():
            await super().set_if_not_exists(key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        with self._counted():
            super().set_sync(key, value)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with _counting:
            if self.stopped:
                raise OSError("an earlier write failed")
            self.busy += 1
        try:
            yield
        finally:
            with _counting:
                self.busy -= 1


@contextlib.contextmanager
def storing(path: Path) -> Iterator[LocalStore]:
    """A new Zarr store; when the block fails, its other threads have ended their writes before the error goes on.

    Both dask and zarr raise the first error while other chunks are still on their way. Those would make the directory
    anew after it was deleted.
    """
    store = _StoppableStore(path)
    try:
        yield store
    finally:
        with _counting:
            store.stopped = True
        while store.busy:
            time.sleep(0.01)
