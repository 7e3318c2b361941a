"""The folder of an unfinished training: what it was started with, its last checkpoint, and a lock while it runs."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fieldfill.data.kinds import FileKind, FolderKind, foreign, json_object
from fieldfill.data.output_paths import LOCK, LOCKED, locked, target_of
from fieldfill.errors import InputError

__all__ = ["RunFolder"]

STATE, RUN = "checkpoint.pt", "run.json"
CHECKPOINT = FileKind("a checkpoint", (b"PK\3\4",))  # torch writes a zip archive
IDENTITY = FileKind("what a run was started with", (b'{"config"',))
PARTS = {STATE: CHECKPOINT, "checkpoint.tmp": CHECKPOINT, RUN: IDENTITY, "run.tmp": IDENTITY, LOCK: LOCKED}
UNFINISHED = FolderKind("an unfinished run of fieldfill", PARTS, RUN, "config")


class RunFolder:
    """The folder in which a training keeps its checkpoints.

    Attributes
    ----------
    state
        file of the last checkpoint.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.state, self.run = self.path / STATE, self.path / RUN

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes out; refuses a folder that holds anything else."""
        with contextlib.ExitStack() as stack, self._writing():
            self._check()
            stack.enter_context(locked(self.path))
            self._check()
            released = stack.pop_all()
        with released:
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"cannot write {self.path}: {reason}; free some space or choose another place") from error

    def _check(self) -> None:
        folder = target_of(self.path)
        # A checkpoint without its description may be anybody's.
        if os.path.lexists(folder) and (problem := foreign(folder, UNFINISHED, not self.state.exists())):
            raise InputError(problem)

    @property
    def interrupted(self) -> bool:
        """Whether a run can be taken up from here."""
        return self.run.exists()

    def check_fit(self, identity: dict[str, Any]) -> None:
        """Refuses to take up a run that was started with other data or settings."""
        if not self.interrupted:
            return
        before = json_object(self.run)
        changed = [key for key, value in identity.items() if before.get(key) != value]
        if changed:
            raise InputError(
                f"cannot resume from {self.path}: {', '.join(changed)} differ from the interrupted run; "
                "use the same data and settings, or start anew without --resume"
            )

    def prepare(self, identity: dict[str, Any], resume: bool) -> None:
        """Clears the way for a checkpoint, unless an old one is to be taken up."""
        if resume and self.interrupted:
            return
        partial = self.run.with_suffix(".tmp")
        with self._writing():
            self.state.unlink(missing_ok=True)
            partial.write_text(json.dumps(identity))
            os.replace(partial, self.run)

    def discard(self) -> None:
        """Deletes the files of the run, its description last, and the folder if nothing else is in it."""
        with self._writing(), locked(self.path):
            for name in (STATE, "checkpoint.tmp", "run.tmp", RUN):
                (self.path / name).unlink(missing_ok=True)
