"""Independent streams of randomness from one seed, so that a change in one stage does not change the others."""

import hashlib

import numpy as np
from torch import Generator

__all__ = ["place_stream", "position_stream", "stream"]

# Stages with random choices of their own. A new one goes to the end: its place in this list is part of its seed.
STREAMS = ("hold-out", "bank", "audit", "choice", "fill", "covariance", "independence", "climatology")


def stream(seed: int, name: str) -> Generator:
    """The generator of one stage."""
    return Generator().manual_seed(seed * 1000 + 1 + STREAMS.index(name))


def position_stream(seed: int, *position: int | str) -> Generator:
    """A generator of its own for each position; torch's generators take 32 bits of a seed."""
    words = " ".join(map(str, (seed, *position)))
    return Generator().manual_seed(int.from_bytes(hashlib.blake2b(words.encode(), digest_size=4).digest()))


def place_stream(seed: int, *place: int) -> Generator:
    """A generator for one place of a record, the same whatever is drawn elsewhere."""
    state = np.random.SeedSequence([abs(seed), seed < 0, *place]).generate_state(1, np.uint64)
    return Generator().manual_seed(int(state[0] >> 1))
