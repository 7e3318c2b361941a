r"""Phases that move a field: the Fourier coefficient k turns by exp(-i k·v f) until frame f, for a drift v.

On an axis of even length the coefficient of the shortest wave is its own conjugate and stays as it is: a real field
remains real.
"""

import math

import torch
from torch import Tensor

__all__ = ["phases", "wavenumbers"]


def wavenumbers(torus: tuple[int, int]) -> Tensor:
    """Angles (K, 2) by which each coefficient of a half spectrum turns per row and per column."""
    rows, columns = (2 * math.pi * torch.fft.fftfreq(n) for n in torus)
    for n, k in zip(torus, (rows, columns)):
        if n % 2 == 0:
            k[n // 2] = 0.0
    return torch.cartesian_prod(rows, columns[: torus[1] // 2 + 1])


def phases(k: Tensor, drift: Tensor, frames: int) -> Tensor:
    """exp(-i k·v f), (B, T, K), for wavenumbers k (K, 2) and drifts v (B, 2)."""
    angle = -torch.arange(float(frames))[:, None] * (drift @ k.T)[:, None]
    return torch.polar(torch.ones_like(angle), angle)
