"""Rows: one JSON file for each measurement, ``<results>/<bench>/<case>__<method>__seed<n>.json``.

A row is written under its name in one move when it is complete, so that an interrupted run leaves no half a row and
goes on with the next missing one. Rows of different scales never share a folder.
"""

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.environment import versions
from fieldfill.errors import InputError
from fieldfill.metrics import score, score_by_distance
from fieldfill.record import open_record

__all__ = [
    "MEASURED",
    "RIM",
    "Clock",
    "Row",
    "check_scale",
    "clocked",
    "is_measured",
    "metrics",
    "provenance",
    "read",
    "write",
]

MEASURED, UNAVAILABLE = "measured", "not available"
RIM = 2.0  # cells from an observation up to which a gap has been seen, so to say, from outside
Row = dict[str, Any]


def path_of(results: Path, bench: str, case: str, method: str, seed: int) -> Path:
    return results / bench / f"{case}__{method}__seed{seed}.json"


def is_measured(path: Path) -> bool:
    """Whether a row is there with its numbers; one that only says what was lacking is tried again."""
    return path.exists() and json.loads(path.read_text())["status"] == MEASURED


def write(results: Path, row: Row) -> Path:
    """Writes a row atomically."""
    path = path_of(results, row["bench"], row["case"], row["method"], row["seed"])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".part{os.getpid()}")
    partial.write_text(json.dumps(row, indent=1, default=float) + "\n")
    os.replace(partial, path)
    return path


def read(results: Path, bench: str | None = None) -> list[Row]:
    """All rows of a folder, or those of one bench, ordered by name."""
    paths = sorted(results.glob(f"{bench or '*'}/*__*__seed*.json"))
    rows = [json.loads(path.read_text()) for path in paths]
    return [row for row in rows if "status" in row]  # other benchmarks keep rows of their own kind beside these


def check_scale(results: Path, scale: str) -> None:
    """Refuses to mix rows of different scales."""
    other = {row["scale"] for row in read(results)} - {scale}
    if other:
        raise InputError(
            f"{results} holds rows of scale {', '.join(sorted(other))}; give another folder with --results for {scale}"
        )


@dataclass
class Clock:
    """Wall-clock and processor seconds of a piece of work, and the largest memory meanwhile."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = field(default=0.0)


@contextmanager
def clocked() -> Iterator[Clock]:
    """Measures the block; its numbers are there after the block has ended."""
    _forget_peak()
    clock, wall, cpu = Clock(), time.perf_counter(), time.process_time()
    yield clock
    clock.seconds, clock.cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    clock.peak_mb = _peak_mb()


def _forget_peak() -> None:
    """Starts the high-water mark of memory anew where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text()
        return float(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def metrics(filled: xr.Dataset, truth: xr.Dataset) -> dict[str, Any]:
    """Scores on the missing cells; for several variables the mean over them, and each beside it.

    ``share_of_variance`` divides the error of each variable by the variance of the truth on its missing cells, which is
    what a perfect climatology would leave. ``mse_inside`` is the error more than `RIM` cells from any observation.
    """
    scores = score(filled, truth)
    inside = score_by_distance(filled, truth, edges=(RIM, np.inf), periodic=open_record(truth).periodic).mse
    names = [str(name) for name in scores.variable.values]
    kept = ("mse", "rmse", "mae", "mse_all", "crps", "coverage90", "n")
    table: dict[str, dict[str, Any]] = {
        name: {key: _number(scores[key].sel(variable=name)) for key in kept} for name in names
    }
    for name in names:
        table[name]["variance_missing"] = _variance(filled, truth, name)

    def mean(key: str) -> float:
        return float(np.mean([table[name][key] for name in names]))

    return {
        "mse_missing": mean("mse"),
        "mse_inside": _number(inside.mean()),
        "mse_all": mean("mse_all"),
        "variance_missing": mean("variance_missing"),
        "share_of_variance": float(np.mean([v["mse"] / v["variance_missing"] for v in table.values()])),
        "variables": table,
    }


def _number(value: xr.DataArray) -> float | None:
    return value.item() if np.isfinite(value.item()) else None


def _variance(filled: xr.Dataset, truth: xr.Dataset, name: str) -> float:
    missing = np.isin(filled[f"{name}_flag"].values, (1, 2))
    return float(truth[name].transpose(*filled[name].dims).values[missing].astype(float).var())


def provenance(threads: int) -> dict[str, Any]:
    """What a row must say about where it came from."""
    found = {name: text for name, text in versions().items() if name != "platform"}
    return {"threads": threads, "commit": _commit(), "versions": found}


def _commit() -> str:
    command = ["git", "rev-parse", "--verify", "-q", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def unavailable(row: Mapping[str, Any], reason: str) -> Row:
    """A row that says why it has no numbers."""
    return {**row, "status": UNAVAILABLE, "reason": reason, "metrics": {}}
