"""Tables of the data cards: classical methods on every data set under two masks.

    FIELDFILL_ERA5=file python benchmarks/cards.py [--cases advection-pixel30 era5-pixel20]

Each method is fitted on the gappy data themselves. Prints the tables of the chosen cases.
"""

import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.api import hide
from fieldfill.baselines import (
    Baseline,
    Climatology,
    GaussianOptimum,
    LinearTime,
    NavierStokesInpainting,
    OptimalInterpolation,
)
from fieldfill.bench import rows
from fieldfill.bench.cases import Unavailable
from fieldfill.bench.measuring import clocked, physics
from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.data.io import open_dataset
from fieldfill.metrics import score
from fieldfill.simulate import Advection, ShallowWater
from fieldfill.simulate import NavierStokes as Turbulence
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.simulate.store import Simulator, write

SAMPLES = 16
# Gappy stores hold the field itself, without the observation noise that the Gaussian card adds.
LAW = GaussianField(noise=0.0)
SIMULATORS: dict[str, Simulator] = {
    "advection": Advection(),
    "shallow-water": ShallowWater(),
    "navier-stokes": Turbulence(frames=20),
    "gaussian": LAW,
}
# Pattern, share observed, frames per mask (None: the whole sample).
MASKS: dict[str, tuple[str, float, int | None]] = {"pixel30": ("pixel", 0.3, None), "block8of9": ("block", 8 / 9, None)}
ERA5_MASKS: dict[str, tuple[str, float, int | None]] = {"pixel20": ("pixel", 0.2, 3), "block8of9": ("block", 8 / 9, 3)}
CASES = [(data, mask) for data in SIMULATORS for mask in MASKS] + [("era5", mask) for mask in ERA5_MASKS]

Method = Callable[[np.ndarray], Baseline]
# Simulated fields have the same mean everywhere, which a few samples per cell would estimate less well.
METHODS: dict[str, Method] = {
    "climatology": lambda domain: Climatology(domain=domain, per_cell=False),
    "linear_time": lambda domain: LinearTime(domain=domain),
    "navier_stokes": lambda domain: NavierStokesInpainting(domain=domain),
    "oi": lambda domain: OptimalInterpolation(domain=domain),
}
OF_ERA5: dict[str, Method] = METHODS | {"climatology": lambda domain: Climatology(domain=domain)}
OF_GAUSSIAN: dict[str, Method] = METHODS | {
    "optimum": lambda domain: GaussianOptimum(field=LAW, domain=domain, uncertainty=False)
}

# Columns of the tables besides the error: data set → heading, physical score, band.
PHYSICS: dict[str, list[tuple[str, str, str | None]]] = {
    "advection": [("residual ratio", "u_residual_ratio", None), ("propagation", "propagation_mse", None)],
    "shallow-water": [("residual ratio of h", "h_residual_ratio", None), ("energy error", "energy_error", None)],
    "navier-stokes": [("small scales", "vorticity_spectrum_error", "small"), ("energy error", "energy_error", None)],
    "gaussian": [("small scales", "z_spectrum_error", "small")],
    "era5": [],
}


def methods_of(data: str) -> dict[str, Method]:
    return {"era5": OF_ERA5, "gaussian": OF_GAUSSIAN}.get(data, METHODS)


@cache
def truth_of(data: str, seed: int) -> xr.Dataset:
    if data in SIMULATORS:
        with tempfile.TemporaryDirectory() as folder:
            return open_dataset(write(SIMULATORS[data], Path(folder) / "truth.zarr", SAMPLES, seed)).load()
    path = os.environ.get("FIELDFILL_ERA5")
    if not path:
        raise Unavailable("no ERA5 file: set FIELDFILL_ERA5 to a file of hourly 2 m temperature (t2m)")
    return open_dataset(path)[["t2m"]].load()


def measure(data: str, mask: str, name: str, seed: int) -> dict[str, Any]:
    """Fills one case by one method."""
    truth = truth_of(data, seed)
    pattern, observed, every = (ERA5_MASKS if data == "era5" else MASKS)[mask]
    gappy, share = hide(truth, pattern, observed, every, seed=seed)
    first = truth[next(iter(truth.data_vars))]
    # A few samples leave some cells unseen that still belong to the domain.
    method = methods_of(data)[name](np.ones(first.shape[-2:], bool))
    with clocked() as learning:
        method.fit(gappy)
    with clocked() as filling:
        filled = method.fill(gappy)
    return {
        "metrics": metrics(filled, truth),
        "train_seconds": learning.seconds,
        "train_steps": 0,
        "fill_seconds": filling.seconds,
        "peak_mb": max(learning.peak_mb, filling.peak_mb),
        "sizes": {str(dim): size for dim, size in first.sizes.items()},
        "mask": {"pattern": pattern, "observed": share, "every": every},
    }


def metrics(filled: xr.Dataset, truth: xr.Dataset) -> dict[str, Any]:
    """Errors as shares of the variance of each variable, averaged over the variables; each variable in its units."""
    scores = score(filled, truth)
    variance = np.array([float(truth[name].values.astype(float).var()) for name in scores.variable.values])
    kept = ("mse", "rmse", "mae", "mse_all", "n")
    return {
        "mse_missing": float((scores.mse.values / variance).mean()),
        "mse_all": float((scores.mse_all.values / variance).mean()),
        "unit": "share of the variance, mean over the variables",
        "variables": {
            str(v): {key: scores[key].sel(variable=v).item() for key in kept} for v in scores.variable.values
        },
        "physics": physics(filled, truth),
    }


def table(data: str, found: list[rows.Row]) -> str:
    """Markdown table of the rows of one data set: methods down, masks across."""
    masks = ERA5_MASKS if data == "era5" else MASKS
    there = {(row["case"], row["method"]): row for row in found if rows.is_measured(row)}
    extra = ["RMSE (K)"] if data == "era5" else [heading for heading, _, _ in PHYSICS[data]]
    heads = ["method", *(f"{mask}: {head}" for mask in masks for head in ("MSE / variance", *extra, "s"))]
    lines = [heads, ["---"] * len(heads)]
    for name in methods_of(data):
        cells = [_cells(data, there.get((f"{data}-{mask}", name)), 2 + len(extra)) for mask in masks]
        lines.append([f"`{name}`", *(cell for part in cells for cell in part)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(data: str, row: rows.Row | None, count: int) -> list[str]:
    """Error, physical scores and seconds of a row; dashes without one."""
    if row is None:
        return ["–"] * count
    cells = [f"{row['metrics']['mse_missing']:.4f}"]
    if data == "era5":
        cells.append(f"{row['metrics']['variables']['t2m']['rmse']:.3f}")
    for _, name, band in PHYSICS[data]:
        value = row["metrics"]["physics"][name]
        cells.append(f"{value if band is None else value[band]:.3g}")
    return [*cells, f"{row['train_seconds'] + row['fill_seconds']:.1f}"]


def main() -> None:
    measurements = [
        Measurement(f"{data}-{mask}", name, partial(measure, data, mask, name))
        for data, mask in CASES
        for name in methods_of(data)
    ]
    found = Study("cards", measurements).run(options_of(__doc__).parse_args())
    for data in dict.fromkeys(row["case"].rsplit("-", 1)[0] for row in found):
        print(f"\n{data}\n\n{table(data, found)}")


if __name__ == "__main__":
    main()
