"""The figures of the paper "Incomplete Data, Complete Dynamics: A Diffusion Approach", all in one place.

Its errors count all cells and are in units of its own; only ratios within a column can be compared with ours. In the
shallow-water columns it prints the residual of the equation, in the advection columns the error of the
first frame carried forward, elsewhere the mean squared error. It does not state whether these residuals are squared;
its classical rows grow by 3.7 to 4.0 from one missing block to four, as squares do.
"""

from collections.abc import Mapping
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

_NS = ("navier-stokes-pixel80", "navier-stokes-pixel60", "navier-stokes-pixel20")
_MAIN_CASES = (*_NS, "era5-pixel20", "era5-pixel10", "era5-pixel1")
_BLOCK_CASES = (
    "shallow-water-block8of9",
    "shallow-water-block5of9",
    "advection-block8of9",
    "advection-block5of9",
    "navier-stokes-block8of9",
)
_PIXEL_CASES = ("shallow-water-pixel80", "shallow-water-pixel30", "advection-pixel80", "advection-pixel30")

_TABLES: list[tuple[tuple[str, ...], dict[str, tuple[float, ...]]]] = [
    (
        _MAIN_CASES,
        {
            "temporal": (1.341, 2.709, 5.709, 0.967, 1.179, 9.735),
            "telea": (0.486, 1.220, 3.737, 0.710, 0.978, 3.053),
            "navier_stokes": (0.263, 0.656, 2.989, 0.600, 0.942, 3.074),
            "missdiff": (0.251, 0.611, 3.077, 0.416, 0.676, 1.653),
            "ambientdiff": (0.238, 0.538, 2.043, 0.256, 0.414, 1.234),
            "paper": (0.223, 0.507, 1.931, 0.250, 0.408, 1.229),
        },
    ),
    (
        _BLOCK_CASES,
        {
            "temporal": (0.6974, 2.5486, 0.4758, 1.0940, 1.4287),
            "telea": (0.8454, 3.3718, 0.5042, 1.4434, 1.7391),
            "navier_stokes": (0.4753, 1.7565, 0.4418, 1.3594, 1.7274),
            "missdiff": (0.0285, 0.1166, 0.1202, 0.1979, 1.4357),
            "ambientdiff": (0.0217, 0.0925, 0.1077, 0.1524, 1.4954),
            "paper_wrong_partition": (0.0215, 0.0989, 0.1171, 0.1894, 1.4925),
            "paper": (0.0203, 0.0865, 0.1065, 0.1407, 0.7592),
        },
    ),
    (
        _PIXEL_CASES,
        {
            "temporal": (3.0248, 4.2742, 0.5097, 0.6911),
            "telea": (2.5931, 8.8631, 0.2127, 0.5222),
            "navier_stokes": (0.7045, 2.8244, 0.1350, 0.4805),
            "missdiff": (0.2917, 0.7527, 0.1030, 0.1197),
            "ambientdiff": (0.1927, 0.7504, 0.1039, 0.1219),
            "paper": (0.1878, 0.7379, 0.1035, 0.1189),
        },
    ),
]

# case → method → value
MAIN: dict[str, dict[str, float]] = {
    case: {method: values[column] for method, values in table.items()}
    for cases, table in _TABLES
    for column, case in enumerate(cases)
}

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


# The observations themselves as the context: case → (M, contexts)
CONTEXT: dict[str, tuple[float, float]] = {
    "shallow-water-pixel80": (2.3983, 0.1878),
    "shallow-water-pixel30": (2.6717, 0.7379),
    "advection-pixel80": (0.1320, 0.1035),
    "advection-pixel30": (0.1655, 0.1189),
}

# training case → per cent observed in the test → value; None where the paper has a dash
DENSITY: dict[str, dict[int, float | None]] = {
    "navier-stokes-pixel80": {80: 0.2229, 60: 0.4990, 20: None},
    "navier-stokes-pixel60": {80: 0.2362, 60: 0.5071, 20: None},
    "navier-stokes-pixel20": {80: 0.3363, 60: 0.6980, 20: 1.9315},
}

# case → backbone and method → value
BACKBONE: dict[str, dict[str, float]] = {
    "shallow-water-pixel80": {"missdiff": 0.3963, "missdiff-fno": 0.2917, "paper": 0.3279, "paper-fno": 0.1869},
    "shallow-water-pixel30": {"missdiff": 1.2570, "missdiff-fno": 0.7525, "paper": 0.9292, "paper-fno": 0.7379},
    "advection-pixel80": {"missdiff": 0.1030, "missdiff-fno": 0.1375, "paper": 0.1035, "paper-fno": 0.1240},
    "advection-pixel30": {"missdiff": 0.1197, "missdiff-fno": 0.4816, "paper": 0.1189, "paper-fno": 0.3527},
}


def _columns(rows: Mapping[str, tuple[float, ...]]) -> dict[str, dict[str, float]]:
    return {case: {name: values[i] for name, values in rows.items()} for i, case in enumerate(_NS)}


# context ratio / query ratio in per cent
RATIOS = _columns(
    {
        "50/50": (0.2383, 0.5338, 2.0924),
        "70/70": (0.2076, 0.5336, 2.0336),
        "90/90": (0.2252, 0.5251, 2.1309),
        "70/100": (0.2103, 0.5276, 2.1178),
        "100/100": (0.2444, 0.7023, 2.5599),
    }
)
OMEGA = _columns(
    {
        "none": (0.2334, 0.5649, 3.3820),
        "linear": (0.2331, 0.5633, 3.1881),
        "quadratic": (0.2334, 0.5647, 3.3557),
    }
)
ENSEMBLE = _columns(
    {
        "1": (0.2239, 0.5652, 2.1446),
        "2": (0.2147, 0.5475, 2.0822),
        "3": (0.2119, 0.5418, 2.0640),
        "5": (0.2094, 0.5371, 2.0462),
        "10": (0.2076, 0.5337, 2.0343),
        "20": (0.2068, 0.5320, 2.0277),
        "50": (0.2062, 0.5308, 2.0240),
    }
)
TIME_RATIO: dict[str, float] = {"1": 1.0, "2": 1.81, "3": 2.65, "5": 4.26, "10": 8.32, "20": 16.48, "50": 41.06}
