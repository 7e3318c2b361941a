"""Independent streams of randomness from one seed, so that a change in one stage does not change the others."""

from torch import Generator

__all__ = ["stream"]

STREAMS = ("hold-out", "bank", "audit", "choice", "fill", "covariance", "independence", "climatology")


def stream(seed: int, name: str) -> Generator:
    """The generator of one stage."""
    return Generator().manual_seed(seed * 1000 + 1 + STREAMS.index(name))
