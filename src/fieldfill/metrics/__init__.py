"""Metrics: scores on missing cells: of cells (arrays), of records (xarray), and of physics (equations of a truth)."""

from fieldfill.metrics.cells import (
    covered_gaussian,
    covered_members,
    crps_gaussian,
    crps_members,
    distance_to_observation,
    energy_spectrum,
    rank_flatness,
    rank_histogram,
    score_arrays,
)
from fieldfill.metrics.records import reliability, score, score_by_distance, spectrum

__all__ = [
    "covered_gaussian",
    "covered_members",
    "crps_gaussian",
    "crps_members",
    "distance_to_observation",
    "energy_spectrum",
    "rank_flatness",
    "rank_histogram",
    "reliability",
    "score",
    "score_arrays",
    "score_by_distance",
    "spectrum",
]
