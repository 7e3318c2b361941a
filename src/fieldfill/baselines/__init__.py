"""Every other way to fill a gap, with the filler's ``fit(ds) -> self`` and ``fill(ds) -> Dataset``."""

from fieldfill.baselines.base import Baseline
from fieldfill.baselines.eof import EOF
from fieldfill.baselines.gaussian import OptimalInterpolation
from fieldfill.baselines.inpainting import BestInpainting, Biharmonic, NavierStokes, Telea
from fieldfill.baselines.interpolation import Climatology, LinearTime, Nearest, TemporalConsistency
from fieldfill.baselines.oracle import GaussianOptimum

__all__ = [
    "EOF",
    "Baseline",
    "BestInpainting",
    "Biharmonic",
    "Climatology",
    "GaussianOptimum",
    "LinearTime",
    "NavierStokes",
    "Nearest",
    "OptimalInterpolation",
    "Telea",
    "TemporalConsistency",
]
