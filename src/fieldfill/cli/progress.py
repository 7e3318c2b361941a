"""What a command shows while it works: bars on a terminal, plain lines elsewhere, all on stderr."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fieldfill.errors import InputWarning

if TYPE_CHECKING:
    from fieldfill.diffusion.training import Progress as TrainProgress

__all__ = ["counting_bar", "note", "noting_warnings", "training_bar"]

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
def training_bar() -> "Iterator[Callable[[TrainProgress], None]]":
    """A bar on a terminal, a plain line now and then elsewhere."""
    if not stderr.is_terminal:
        yield _plain_training_lines
        return
    columns = [TextColumn("fit"), BarColumn(), TextColumn("{task.description}")]
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task("preparing", total=None)

        def report(p: "TrainProgress") -> None:
            bar.update(task, total=p.steps, completed=p.step, description=_training_line(p))

        yield report


def _plain_training_lines(p: "TrainProgress") -> None:
    if p.step == 1 or p.step % max(1, p.steps // 10) == 0:
        note(_training_line(p))


def _training_line(p: "TrainProgress") -> str:
    return (
        f"step {p.step}/{p.steps}  loss {p.loss:.4f}  validation {p.validation:.4f}  "
        f"{p.windows_per_second:.0f} windows/s  {p.seconds_left / 60:.1f} min left"
    )


@contextmanager
def counting_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    if not stderr.is_terminal:
        yield lambda done, total: note(f"{text}: {done} of {total}") if done == total else None
        return
    with Progress(console=stderr) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
