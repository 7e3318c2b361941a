"""What a row measures: scores on missing cells, time and memory, progress of a training, and the code behind it."""

import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.api import physical_scores
from fieldfill.data.flags import FILLED
from fieldfill.data.record import open_record
from fieldfill.execution.environment import versions
from fieldfill.metrics import score, score_by_distance

__all__ = ["RIM", "Clock", "clocked", "learning", "metrics", "physics", "provenance"]

# Distance from an observation, in cells, up to which a convolution interpolates a gap from outside.
RIM = 2.0


@dataclass
class Clock:
    """Wall-clock and processor seconds of a piece of work, and the largest memory meanwhile."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0


@contextmanager
def clocked() -> Iterator[Clock]:
    """Measures the block; the clock holds its numbers after the block has ended."""
    _reset_peak()
    clock, wall, cpu = Clock(), time.perf_counter(), time.process_time()
    yield clock
    clock.seconds, clock.cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    clock.peak_mb = _peak_mb()


def _reset_peak() -> None:
    """Resets the high-water mark of memory where the system allows it."""
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


def metrics(filled: xr.Dataset, truth: xr.Dataset, zeros_apart: bool = False) -> dict[str, Any]:
    """Scores on the missing cells whose truth is known; for several variables the mean over them, and each beside it.

    ``share_of_variance`` divides the error of each variable by the variance of the truth on its missing cells, which is
    the error of a perfect climatology. ``mse_inside`` is the error more than `RIM` cells from any observation. With
    ``zeros_apart`` each variable also has its root mean squared errors where the truth is above 0 and where it is not.
    """
    scores = score(filled, truth)
    inside = score_by_distance(filled, truth, edges=(RIM, np.inf), periodic=open_record(truth).periodic).mse
    names = [str(name) for name in scores.variable.values]
    kept = ("mse", "rmse", "mae", "mse_all", "crps", "coverage50", "coverage90", "n")
    table: dict[str, dict[str, Any]] = {
        name: {key: _number(scores[key].sel(variable=name)) for key in kept} for name in names
    }
    for name in names:
        table[name]["variance_missing"] = _variance(filled, truth, name)
        table[name]["units"] = truth[name].attrs.get("units")
    if zeros_apart:
        for key, part in (("rmse_above_zero", truth.where(truth > 0)), ("rmse_zero", truth.where(truth <= 0))):
            apart = score(filled, part)
            for name in names:
                table[name][key] = _number(apart.rmse.sel(variable=name))

    scored = [entry for entry in table.values() if entry["n"]]

    def mean(key: str) -> float:
        return float(np.mean([entry[key] for entry in scored]))

    found = {
        "mse_missing": mean("mse"),
        "mse_inside": _number(inside.mean()),
        "mse_all": mean("mse_all"),
        "variance_missing": mean("variance_missing"),
        "share_of_variance": float(np.mean([np.divide(v["mse"], v["variance_missing"]) for v in scored])),
        "variables": table,
    }
    return found | ({"physics": physics(filled, truth)} if "simulator" in truth.attrs else {})


def physics(filled: xr.Dataset, truth: xr.Dataset) -> dict[str, Any]:
    """Scores by the equation of simulated data, as plain numbers."""
    scores = physical_scores(filled, truth)
    if scores is None:
        return {}
    return {str(name): value.to_series().to_dict() if value.ndim else value.item() for name, value in scores.items()}


def _number(value: xr.DataArray) -> float | None:
    return value.item() if np.isfinite(value.item()) else None


def _variance(filled: xr.Dataset, truth: xr.Dataset, name: str) -> float | None:
    missing = np.isin(filled[f"{name}_flag"].values, FILLED)
    true = truth[name].transpose(*filled[name].dims).values[missing].astype(float)
    return float(np.nanvar(true)) if np.isfinite(true).any() else None


def learning(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers that a row keeps of a learning curve: held-out errors before training and of the best state."""
    best = min(history, key=lambda entry: entry["validation"])
    return {
        "last_step": history[-1].get("step"),
        "best_step": best.get("step"),
        "first_validation": history[0]["validation"],
        "best_validation": best["validation"],
        "gain": best.get("gain"),
    }


def provenance(threads: int) -> dict[str, Any]:
    """Commit and versions of the code that measures a row, and its threads."""
    found = {name: text for name, text in versions().items() if name != "platform"}
    return {"threads": threads, "commit": _commit(), "versions": found}


def _commit() -> str:
    command = ["git", "rev-parse", "--verify", "-q", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
