"""Baseline rows of the data cards: python benchmarks/card_rows.py [case ...] [--table]

Each case is one data set under one mask, filled by a few classical methods, each fitted on the gappy data themselves;
one JSON per row goes to benchmarks/results/cards/. ``--table`` prints the tables of the cards from the stored rows.
ERA5 is read from the file that the environment variable FIELDFILL_ERA5 names, and left out without it.
"""

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from fieldfill.baselines import Baseline, Climatology, GaussianOptimum, LinearTime, NavierStokes, OptimalInterpolation
from fieldfill.environment import versions
from fieldfill.gaps import hide
from fieldfill.io import open_dataset
from fieldfill.metrics import score
from fieldfill.pde import Advection, ShallowWater
from fieldfill.pde import NavierStokes as Turbulence
from fieldfill.pde.gaussian import GaussianField
from fieldfill.pde.store import Simulator, write
from fieldfill.physics import physical_scores

RESULTS = Path(__file__).parent / "results" / "cards"
SAMPLES = 16

# Gappy stores hold the field itself, without the observation noise that the Gaussian card adds.
SIMULATORS: dict[str, Simulator] = {
    "advection": Advection(),
    "shallow-water": ShallowWater(),
    "navier-stokes": Turbulence(frames=20),
    "gaussian": GaussianField(noise=0.0),
}
# pattern, share observed, frames per mask (None: the whole sample)
MASKS: dict[str, tuple[str, float, int | None]] = {"pixel30": ("pixel", 0.3, None), "block8of9": ("block", 8 / 9, None)}
ERA5_MASKS: dict[str, tuple[str, float, int | None]] = {"pixel20": ("pixel", 0.2, 3), "block8of9": ("block", 8 / 9, 3)}

CASES = [f"{data}-{mask}" for data in SIMULATORS for mask in MASKS] + [f"era5-{mask}" for mask in ERA5_MASKS]

# columns of the tables besides the error: data set → heading, physical score, band
PHYSICS: dict[str, list[tuple[str, str, str | None]]] = {
    "advection": [("residual ratio", "u_residual_ratio", None), ("propagation", "propagation_mse", None)],
    "shallow-water": [("residual ratio of h", "h_residual_ratio", None), ("energy error", "energy_error", None)],
    "navier-stokes": [("small scales", "vorticity_spectrum_error", "small"), ("energy error", "energy_error", None)],
    "gaussian": [("small scales", "z_spectrum_error", "small")],
    "era5": [],
}


def methods(data: str, grid: tuple[int, int]) -> list[Callable[[], Baseline]]:
    domain = np.ones(grid, bool)  # a few samples leave some cells unseen, which are no land
    chosen: list[Callable[[], Baseline]] = [
        # The simulated fields have the same mean everywhere, which a few samples per cell would know less well.
        lambda: Climatology(domain=domain, per_cell=data == "era5"),
        lambda: LinearTime(domain=domain),
        lambda: NavierStokes(domain=domain),
        lambda: OptimalInterpolation(domain=domain),
    ]
    if data == "gaussian":
        field = SIMULATORS["gaussian"]
        assert isinstance(field, GaussianField)
        chosen.append(lambda: GaussianOptimum(field=field, domain=domain, uncertainty=False))
    return chosen


def load(data: str, folder: Path, seed: int) -> xr.Dataset | None:
    if data in SIMULATORS:
        return open_dataset(write(SIMULATORS[data], folder / "truth.zarr", SAMPLES, seed)).load()
    path = os.environ.get("FIELDFILL_ERA5")
    return open_dataset(path)[["t2m"]].load() if path else None


def measure(case: str, truth: xr.Dataset, seed: int) -> None:
    """Fills one case by every method and writes a row for each."""
    data, mask = case.rsplit("-", 1)
    pattern, observed, every = (ERA5_MASKS if data == "era5" else MASKS)[mask]
    gappy, share = hide(truth, pattern, observed, every, seed=seed)
    first = truth[next(iter(truth.data_vars))]
    for build in methods(data, first.shape[-2:]):
        method, start = build(), time.perf_counter()
        method.fit(gappy)
        fitted = time.perf_counter()
        filled = method.fill(gappy)
        done = time.perf_counter()
        row = {
            "bench": "cards",
            "case": case,
            "method": method.name,
            "scale": "cpu",
            "seed": seed,
            "metrics": metrics(filled, truth),
            "sizes": dict(first.sizes),
            "mask": {"pattern": pattern, "observed": share, "every": every},
            "train_seconds": round(fitted - start, 2),
            "train_steps": 0,
            "fill_seconds": round(done - fitted, 2),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "threads": torch.get_num_threads(),
            "commit": commit(),
            "versions": {name: found for name, found in versions().items() if name != "platform"},
        }
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{case}__{method.name}__seed{seed}.json").write_text(json.dumps(row, indent=1) + "\n")
        print(f"{case:24s} {method.name:14s} {row['metrics']['mse_missing']:8.4f} {done - start:7.1f} s", flush=True)


def metrics(filled: xr.Dataset, truth: xr.Dataset) -> dict:
    """Errors as shares of the variance of each variable, averaged over the variables; each variable in its units."""
    scores = score(filled, truth)
    variance = np.array([float(truth[name].values.astype(float).var()) for name in scores.variable.values])
    kept = ("mse", "rmse", "mae", "mse_all", "n")
    found: dict = {
        "mse_missing": float((scores.mse.values / variance).mean()),
        "mse_all": float((scores.mse_all.values / variance).mean()),
        "unit": "share of the variance, mean over the variables",
        "variables": {
            str(v): {key: scores[key].sel(variable=v).item() for key in kept} for v in scores.variable.values
        },
    }
    physics = physical_scores(filled, truth)
    if physics is not None:
        found["physics"] = {
            str(name): value.to_series().to_dict() if value.ndim else value.item() for name, value in physics.items()
        }
    return found


def commit() -> str:
    command = ["git", "rev-parse", "--verify", "-q", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()


def table(data: str, seed: int) -> str:
    """Markdown table of the rows of one data set: methods down, masks across."""
    masks = ERA5_MASKS if data == "era5" else MASKS
    rows: dict[str, list[str]] = {}
    for mask in masks:
        found = [json.loads(path.read_text()) for path in RESULTS.glob(f"{data}-{mask}__*__seed{seed}.json")]
        for row in sorted(found, key=lambda row: -row["metrics"]["mse_missing"]):
            cells = [f"{row['metrics']['mse_missing']:.4f}"]
            if data == "era5":
                cells.append(f"{row['metrics']['variables']['t2m']['rmse']:.3f}")
            for _, name, band in PHYSICS[data]:
                value = row["metrics"]["physics"][name]
                cells.append(f"{value if band is None else value[band]:.3g}")
            rows.setdefault(row["method"], []).extend([*cells, f"{row['train_seconds'] + row['fill_seconds']:.1f}"])
    extra = ["RMSE (K)"] if data == "era5" else [heading for heading, _, _ in PHYSICS[data]]
    heads = [f"{mask}: {head}" for mask in masks for head in ("MSE / variance", *extra, "s")]
    lines = ["| method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join(lines + [f"| `{name}` | " + " | ".join(cells) + " |" for name, cells in rows.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print the tables of the stored rows and run nothing")
    options = parser.parse_args()
    chosen = options.case or CASES
    datasets = dict.fromkeys(case.rsplit("-", 1)[0] for case in chosen)
    for data in () if options.table else datasets:
        with tempfile.TemporaryDirectory() as folder:
            truth = load(data, Path(folder), options.seed)
        for case in chosen:
            if truth is not None and case.rsplit("-", 1)[0] == data:
                measure(case, truth, options.seed)
    for data in datasets:
        print(f"\n{data}\n\n{table(data, options.seed)}")


if __name__ == "__main__":
    main()
