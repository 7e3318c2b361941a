"""The figures of the paper "Incomplete Data, Complete Dynamics: A Diffusion Approach", read from ``published.json``.

Its errors count all cells and are in units of its own; only ratios within a column can be compared with ours. In the
shallow-water columns it prints the residual of the equation, in the advection columns the error of the
first frame carried forward, elsewhere the mean squared error. It does not state whether these residuals are squared;
its classical rows grow by 3.7 to 4.0 from one missing block to four, as squares do.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = [
    "BACKBONE",
    "CLASSICAL",
    "CONTEXT",
    "DENSITY",
    "ENSEMBLE",
    "MAIN",
    "OMEGA",
    "RATIOS",
    "TIME_RATIO",
    "as_printed",
    "best_classical",
]

# Tables of the paper: case → row → value.
PrintedTable = dict[str, dict[str, float]]

_FIGURES = json.loads(files("fieldfill.bench").joinpath("published.json").read_text(encoding="utf-8"))

# Methods.
MAIN: PrintedTable = _FIGURES["main"]
# The observations themselves as the context (M), and contexts drawn from them.
CONTEXT: PrintedTable = _FIGURES["context"]
# Per cent observed in the test, by the training case; None where the paper has a dash.
DENSITY: dict[str, dict[str, float | None]] = _FIGURES["density"]
# Backbones and methods.
BACKBONE: PrintedTable = _FIGURES["backbone"]
# Context ratio / query ratio in per cent.
RATIOS: PrintedTable = _FIGURES["ratios"]
# Weightings of the multi-step sampler.
OMEGA: PrintedTable = _FIGURES["omega"]
# Numbers of contexts.
ENSEMBLE: PrintedTable = _FIGURES["ensemble"]
# Cost of so many contexts, over that of one.
TIME_RATIO: dict[str, float] = _FIGURES["time_ratio"]

# The classical methods of the paper.
CLASSICAL = ("temporal", "telea", "navier_stokes")


def best_classical(case: str) -> float | None:
    """The least value of the paper's classical rows in a column."""
    column = MAIN.get(case)
    return None if column is None else min(column[name] for name in CLASSICAL)


def as_printed(case: str, metrics: Mapping[str, Any]) -> float | None:
    """The quantity of the paper's column, for a row of ours."""
    physics = metrics.get("physics", {})
    if case.startswith("shallow-water"):
        left = [physics.get(f"{name}_residual") for name in ("h", "u", "v")]
        return None if None in left else sum(value**2 for value in left)
    return physics.get("propagation_mse") if case.startswith("advection") else metrics.get("share_of_variance")
