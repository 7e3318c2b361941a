"""Files for libraries that do not survive a failed write, such as HDF5, which ends the process on a full disk."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["written"]

# Bytes of a failed write that may be metadata, which HDF5 reads again; larger writes are data.
LARGEST_KEPT = 2**20


class _Writer(io.RawIOBase):
    """A new file that accepts every write and remembers the first error.

    After that error writes are kept in memory, so that what is read is what was written: a library that found its own
    metadata damaged could not close the file.
    """

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self._file = path.open("x+b", buffering=0)
        self._place = self._size = 0
        self._kept: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def truncate(self, size: int | None = None) -> int:
        self._size = self._place if size is None else size
        if self._usable:
            try:
                self._file.truncate(self._size)
            except OSError as error:
                self.error = error
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._usable:
            try:
                self._write(view)
            except OSError as error:
                self.error = error
        if self.error is not None and len(view) <= LARGEST_KEPT:
            self._kept.append((self._place, bytes(view)))
        self._place += len(view)
        self._size = max(self._size, self._place)
        return len(view)

    def _write(self, view: memoryview) -> None:
        self._file.seek(self._place)
        while view:
            view = view[self._file.write(view) :]

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._place))
        view[:count] = bytes(count)
        if not self._file.closed:
            self._file.seek(self._place)
            self._file.readinto(view[:count])
        for start, piece in self._kept:
            first, last = max(start, self._place), min(start + len(piece), self._place + count)
            if first < last:
                view[first - self._place : last - self._place] = piece[first - start : last - start]
        self._place += count
        return count

    @property
    def _usable(self) -> bool:
        return self.error is None and not self._file.closed

    def end(self) -> None:
        """Closes the file and raises the first error; what is written later goes nowhere."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def written(path: Path) -> Iterator[io.RawIOBase]:
    """A new file in which no write fails; the first error is raised at the end of the block instead."""
    file = _Writer(path)
    try:
        yield file
    finally:
        file.end()
