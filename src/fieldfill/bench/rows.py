"""Rows of the benchmark: one JSON object per line in ``<results>/<bench>.jsonl``, one row per measurement.

A row is appended when it is complete, in one write under a lock, so that several processes can share a folder and an
interrupted run goes on with the next missing row. A line that a killed process or a full disk cut off is ignored when
the file is read and removed by the next write. A row measured again replaces the old one. Rows of different scales
never share a folder.
"""

import fcntl
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fieldfill.data.kinds import FileKind
from fieldfill.data.output_paths import replacing
from fieldfill.errors import InputError

__all__ = [
    "MEASURED",
    "UNAVAILABLE",
    "Row",
    "arranged",
    "check_scale",
    "find",
    "is_measured",
    "read",
    "unavailable",
    "write",
]

ROWS = FileKind("rows of the benchmark", (b"{",))
# Values of ``status``.
MEASURED = "measured"
UNAVAILABLE = "not available"
# What identifies a row.
KEY = ("bench", "case", "method", "seed")
# Order of the keys that every row has; others follow in the order in which they were measured.
COLUMNS = (
    "bench",
    "case",
    "method",
    "scale",
    "seed",
    "metrics",
    "train_seconds",
    "train_steps",
    "fill_seconds",
    "peak_mb",
    "commit",
    "versions",
)

Row = dict[str, Any]


def path_of(results: Path, bench: str) -> Path:
    return results / f"{bench}.jsonl"


def arranged(row: Mapping[str, Any]) -> Row:
    """The row with the common columns first, None where it has none; NaN, which JSON lacks, becomes None."""
    return _without_nan({**dict.fromkeys(COLUMNS), **row})


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(results: Path, bench: str | None = None) -> list[Row]:
    """All rows of a folder, or those of one bench, ordered by bench, case, method and seed."""
    if not results.is_dir():
        return []
    paths = sorted(results.glob("*.jsonl")) if bench is None else [path_of(results, bench)]
    with _locked(results, fcntl.LOCK_SH):
        return [row for path in paths for row in _latest(_lines(path))]


def find(results: Path, bench: str, case: str, method: str, seed: int) -> Row | None:
    """One row, or None."""
    key = (bench, case, method, seed)
    return next((row for row in read(results, bench) if _key(row) == key), None)


def is_measured(row: Row | None) -> bool:
    """Whether a row has its numbers; one that only states what was lacking is tried again."""
    return row is not None and row["status"] == MEASURED


def write(results: Path, row: Mapping[str, Any]) -> Path:
    """Appends a row to the file of its bench; a row with the same key is replaced, and the file sorted."""
    path, new = path_of(results, row["bench"]), arranged(row)
    try:
        results.mkdir(parents=True, exist_ok=True)
        with _locked(results, fcntl.LOCK_EX):
            there = _lines(path)
            if any(_key(old) == _key(new) for old in there):
                _rewrite(path, _latest([*there, new]))
            else:
                _append(path, new)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; free some space, then run again to measure this row"
        ) from error
    return path


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _latest(rows: Iterable[Row]) -> list[Row]:
    """One row for each key, the last of several, ordered by key."""
    latest = {_key(row): row for row in rows}
    return [latest[key] for key in sorted(latest)]


def _line(row: Row) -> bytes:
    return (json.dumps(row, ensure_ascii=False, default=float) + "\n").encode()


def _lines(path: Path) -> list[Row]:
    """The rows of a file in the order of its lines."""
    if not path.exists():
        return []
    *complete, last = path.read_bytes().split(b"\n")
    rows = [_parsed(path, number, line) for number, line in enumerate(complete, start=1) if line.strip()]
    if last:
        try:
            rows.append(json.loads(last))
        except ValueError:
            warnings.warn(
                f"the last line of {path} is cut off and left out: a run was killed while it wrote; "
                "'fieldfill bench run' measures this row again",
                stacklevel=3,
            )
    return rows


def _parsed(path: Path, number: int, line: bytes) -> Row:
    try:
        row: Row = json.loads(line)
    except ValueError as error:
        raise InputError(f"line {number} of {path} is no JSON ({error}); repair or remove it") from error
    return row


def _append(path: Path, row: Row) -> None:
    """Adds a line after the last complete one."""
    with path.open("ab") as file:
        file.truncate(_whole(path))
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def _whole(path: Path) -> int:
    """Length in bytes of the complete lines; a last line that only lacks its end is completed."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return end
    try:
        json.loads(content[end:])
    except ValueError:
        return end
    with path.open("ab") as file:
        file.write(b"\n")
    return len(content) + 1


def _rewrite(path: Path, rows: list[Row]) -> None:
    """Replaces the file in one move."""
    with replacing(path, ROWS) as partial, partial.open("wb") as file:
        file.writelines(map(_line, rows))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(results: Path, kind: int) -> Iterator[None]:
    """Holds the lock of a folder. The folder itself is locked, because a rewritten file is another one."""
    folder = os.open(results, os.O_RDONLY)
    try:
        fcntl.flock(folder, kind)
        yield
    finally:
        os.close(folder)


def check_scale(results: Path, scale: str) -> None:
    """Refuses to mix rows of different scales."""
    other = {row["scale"] for row in read(results)} - {scale}
    if other:
        raise InputError(
            f"{results} holds rows of scale {', '.join(sorted(other))}; give another folder with --results for {scale}"
        )


def unavailable(row: Mapping[str, Any], reason: str) -> Row:
    """A row without numbers and the reason for that."""
    return {**row, "status": UNAVAILABLE, "reason": reason, "metrics": {}}
