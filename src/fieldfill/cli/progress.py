"""What a command shows while it works: bars on a terminal, plain lines elsewhere, all on stderr."""

import math
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskID, TimeElapsedColumn
from rich.progress import Progress as Bar

from fieldfill.errors import InputWarning
from fieldfill.stages import Progress, Report

__all__ = ["note", "noting_warnings", "showing_progress"]

# Seconds after which a plain line is printed if nothing else was; half a second less than ten, for a busy machine.
PLAIN_SECONDS = 9.0

stderr = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    stderr.print(text, markup=False, soft_wrap=True)


@contextmanager
def noting_warnings() -> Iterator[None]:
    """Prints what is to be known about the input as plain lines, other warnings as Python does."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, InputWarning):
                note(f"fieldfill: {message}")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = show
        yield


@contextmanager
def showing_progress() -> Iterator[Report]:
    """What a run reports, as a bar on a terminal, and elsewhere as a line for each stage and at least every 10 s."""
    if stderr.is_terminal:
        with Bar(
            "{task.description}", BarColumn(), "{task.fields[detail]}", TimeElapsedColumn(), console=stderr
        ) as bar:
            yield partial(_move, bar, bar.add_task("", total=None, detail=""))
        return
    lines = _Lines()
    with lines:
        yield lines


def _move(bar: Bar, task: TaskID, progress: Progress) -> None:
    for line in progress.notes:
        note(line)
    if not progress.notes:
        bar.update(
            task,
            description=progress.stage,
            total=progress.total or None,
            completed=progress.done,
            detail=", ".join(part for part in (progress.detail, _left(progress)) if part),
        )


class _Lines:
    """Prints a line when a stage begins, and the latest news when none was printed for a while.

    The first stage is printed only if it takes long: wrong input is found there, and its message should stand alone.
    """

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._latest: Progress | None = None
        self._received = self._printed = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if progress.notes:
                for line in progress.notes:
                    note(line)
                return
            begins = self._latest is not None and progress.stage != self._latest.stage
            self._latest, self._received = progress, time.monotonic()
            if begins or (progress.total and progress.done == progress.total):
                self._print()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            with self._lock:
                if time.monotonic() - self._printed >= PLAIN_SECONDS:
                    self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        if self._latest is not None:
            seconds = self._latest.seconds + self._printed - self._received
            note(_line(replace(self._latest, seconds=seconds)))


def _line(progress: Progress) -> str:
    count = f" {progress.done}" if progress.done else ""
    count += f" of {progress.total}" if progress.done and progress.total else ""
    parts = [f"{progress.stage}{count}", progress.detail, f"{progress.seconds:.0f} s", _left(progress)]
    return ", ".join(part for part in parts if part)


def _left(progress: Progress) -> str:
    if not math.isfinite(progress.seconds_left) or progress.done == progress.total:
        return ""
    seconds = max(0.0, progress.seconds_left)
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
