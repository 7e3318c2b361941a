"""Baselines: every other way to fill a gap, with the filler's ``fit(ds) -> self`` and ``fill(ds) -> Dataset``."""

from fieldfill.baselines.baseline import Baseline
from fieldfill.baselines.eof import EOF
from fieldfill.baselines.inpainting import BestInpainting, Biharmonic, NavierStokesInpainting, Telea
from fieldfill.baselines.interpolation import Climatology, LinearTime, Nearest, TemporalConsistency
from fieldfill.baselines.optimal_interpolation import OptimalInterpolation
from fieldfill.baselines.optimum import GaussianOptimum

__all__ = [
    "BASELINES",
    "EOF",
    "Baseline",
    "BestInpainting",
    "Biharmonic",
    "Climatology",
    "GaussianOptimum",
    "LinearTime",
    "NavierStokesInpainting",
    "Nearest",
    "OptimalInterpolation",
    "Telea",
    "TemporalConsistency",
]

# Every baseline by its name. To add one, write its class in baselines/ and add a line here; the docs have a tutorial.
BASELINES: dict[str, type[Baseline]] = {
    "climatology": Climatology,
    "linear_time": LinearTime,
    "nearest": Nearest,
    "temporal": TemporalConsistency,
    "telea": Telea,
    "navier_stokes": NavierStokesInpainting,
    "biharmonic": Biharmonic,
    "inpainting": BestInpainting,
    "eof": EOF,
    "oi": OptimalInterpolation,
    "optimum": GaussianOptimum,
}
