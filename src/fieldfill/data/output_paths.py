"""Output paths: checked before the work, written beside their place, and given their name when they are complete.

An existing output is replaced only if all of it is of the kind that the command writes (`fieldfill.data.kinds`). A
directory is replaced by exchanging two names. Where the system cannot do that, the old one is moved aside first, and
the next run moves it back if a kill fell between the two moves. Temporary neighbours carry process and machine in their
names, ``<name>.part<process>-<machine>-<number><suffix>``, so that the next run for the same output can clear those of
dead processes.
"""

import contextlib
import ctypes
import itertools
import os
import platform
import re
import shutil
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from fieldfill.data.kinds import FileKind, Kind, foreign
from fieldfill.errors import InputError

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "COMPRESSED",
    "LOCK",
    "LOCKED",
    "check_distinct",
    "check_folder",
    "check_output",
    "check_space",
    "locked",
    "replacing",
    "target_of",
]

# Share of their size in memory that compressed data are expected to need at least.
COMPRESSED = 0.1
LOCK = "run.lock"
LOCKED = FileKind("a lock", (b"process ",))


def _machine() -> str:
    """A number of this machine; containers that share its name but not its processes have others."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return f"{zlib.crc32((platform.node() + processes).encode()):08x}"


MACHINE = _machine()

_numbers = itertools.count()
_neighbours: set[Path] = set()  # those that this process is writing
_held: set[tuple[Path, int]] = set()  # locked folders and the threads that hold them


def check_output(path: str | os.PathLike[str], kind: Kind, overwrite: bool = False) -> Path:
    """Checks before the work that an output can be written, and clears what killed runs left of it."""
    path = Path(path)
    try:
        _check(path, kind, overwrite)
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(error)}; choose another place") from error
    return path


def _check(path: Path, kind: Kind, overwrite: bool) -> None:
    if not path.name:
        raise InputError(f"the output {path} has no name; give the name of {kind.name}")
    target = target_of(path)
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} of the output {path.name} does not exist; create it first")
    with contextlib.suppress(OSError):  # a folder that can be written need not be listed
        _clear_leftovers(target, kind)
    if os.path.lexists(target):
        if not overwrite:
            raise InputError(f"{path} already exists; choose another name or pass --overwrite (overwrite=True)")
        if problem := foreign(target, kind):
            raise InputError(problem)
    # Permissions do not reveal a read-only disk, and do not bind every user: only trying does.
    with _neighbour(target) as trial:
        trial.touch(exist_ok=False)


def check_folder(path: Path) -> Path:
    """Makes a folder for several outputs if it is missing, and checks before the work that it can be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _neighbour(path / "trial") as trial:
            trial.touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"cannot write to the folder {path}: {_reason(error)}; choose another one") from error
    return path


def check_distinct(output: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> None:
    """Refuses an output that is one of the inputs, by whatever name, or lies inside one, or has one inside."""
    target, end = target_of(Path(output)), _real(output)
    for given in (Path(path) for path in inputs if path is not None):
        begin = _real(given)
        same = end == begin or (end.exists() and begin.exists() and end.samefile(begin))
        if same or begin in end.parents or end in begin.parents:
            relation = "is" if same else "lies inside" if begin in end.parents else "contains"
            raise InputError(f"the output {output} {relation} the input {given}; choose another name")
        if begin.parent == _real(target.parent) and _leftover(target, begin.name):
            raise InputError(
                f"the input {given} is named like a leftover of {output}, which is cleared; rename it first"
            )


def check_space(path: Path, size: float) -> None:
    """Refuses an output of about ``size`` bytes if the disk has not so many left."""
    free = shutil.disk_usage(target_of(path).parent).free
    if size > free:
        raise InputError(
            f"{path} needs about {size / 1e6:,.1f} MB and its disk has {free / 1e6:,.1f} MB left; "
            "free some space or choose another disk"
        )


@contextlib.contextmanager
def replacing(path: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Yields a temporary neighbour of ``path`` that takes its name only when the block succeeds.

    What is at ``path`` by then is replaced if it is of the given kind. Otherwise it stays, and the result is kept under
    another name.
    """
    target = target_of(path)
    try:
        with _neighbour(target) as partial:
            yield partial
            _put(partial, target, kind)
    except OSError as error:
        raise InputError(f"cannot write {path}: {_reason(error)}; nothing was changed there") from error


def _put(partial: Path, target: Path, kind: Kind | None) -> None:
    if os.path.lexists(target):
        problem = f"{target} has appeared meanwhile" if kind is None else foreign(target, kind)
        if problem:
            names = (target.with_name(f"{target.stem}-{n}{target.suffix}") for n in itertools.count(2))
            kept = next(name for name in names if not os.path.lexists(name))
            os.rename(partial, kept)
            raise InputError(f"{problem}; the result is kept as {kept}")
        if target.is_dir():
            if not _exchange(partial, target):
                _move_both(partial, target)
            return
    os.replace(partial, target)


def _exchange(one: Path, two: Path) -> bool:
    """Exchanges two names in one step; False where system or file system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and renameat2(here, os.fsencode(one), here, os.fsencode(two), exchange) == 0


def _move_both(partial: Path, target: Path) -> None:
    with _neighbour(target, "old") as aside:
        os.rename(target, aside)
        try:
            os.rename(partial, target)
        except OSError:
            os.rename(aside, target)
            raise


def target_of(path: Path) -> Path:
    """Where ``path`` leads: a link stays, and what it points to is replaced."""
    return _real(path) if path.is_symlink() else path


def _real(path: str | os.PathLike[str]) -> Path:
    """The path without links; a link to itself stays, and is in the way of whatever is written there."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _neighbour(target: Path, role: str = "part") -> Iterator[Path]:
    """A name beside ``target`` that nobody else uses; what has it in the end is deleted."""
    name = f"{target.name}.{role}{os.getpid()}-{MACHINE}-{next(_numbers)}{target.suffix}"
    path = target.with_name(name)
    _neighbours.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _neighbours.discard(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _leftover(target: Path, name: str) -> re.Match[str] | None:
    """Role, process and machine in a name that a process may have left beside ``target``.

    The first version wrote names without a machine, ``<name>.part<process><suffix>``.
    """
    own, suffix = re.escape(target.name), re.escape(target.suffix)
    return re.fullmatch(rf"{own}\.(part|old)(\d+)(?:-([0-9a-f]{{8}})-\d+)?{suffix}", name)


def _clear_leftovers(target: Path, kind: Kind) -> None:
    """Deletes what dead processes of this machine left beside ``target``; an old output moved aside is moved back."""
    for entry in sorted(target.parent.iterdir()):
        found = _leftover(target, entry.name)
        if found is None or entry in _neighbours or _alive(int(found[2])):
            continue
        # People call a copy model.old2 or data.zarr.part3.zarr, too: without a machine only a torso is a leftover.
        if found[3] != MACHINE and (found[3] or found[1] == "old" or _is_complete(entry, kind)):
            continue
        if found[1] == "old" and not os.path.lexists(target) and kind.strange(entry) is None:
            os.rename(entry, target)
        elif kind.strange(entry, unfinished=True) is None:
            _remove(entry)


def _is_complete(path: Path, kind: Kind) -> bool:
    return kind.strange(path) is None and (path.is_dir() or path.stat().st_size > 0)


def _alive(process: int) -> bool:
    """Whether another process has this number."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _reason(error: OSError) -> str:
    return " ".join((error.strerror or str(error) or type(error).__name__).split())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of ``folder``, which is made if it is missing and removed if it is empty in the end.

    The lock goes with the process that holds it, however that ends. The thread that holds it may enter again.
    """
    holder = _real(folder), threading.get_ident()
    if holder in _held:
        yield
        return
    lock = _acquire(folder / LOCK)
    _held.add(holder)
    try:
        yield
    finally:
        _held.discard(holder)
        (folder / LOCK).unlink(missing_ok=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _acquire(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # who held it has just removed the folder
            if path.parent.exists():
                raise
            continue
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 200, 0).decode(errors="replace") or "another process"
            os.close(file)
            raise InputError(
                f"{holder} is using {path.parent}; wait until it has ended or choose another output"
            ) from None
        except OSError:  # a file system without locks
            pass
        if _is_open_at(file, path):
            with contextlib.suppress(OSError):  # the name of the holder is of use, not of need
                os.ftruncate(file, 0)
                os.pwrite(file, f"process {os.getpid()} on {platform.node()}".encode(), 0)
            return file
        os.close(file)  # who held it removed the file before it was locked here


def _is_open_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
