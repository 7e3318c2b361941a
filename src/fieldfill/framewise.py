r"""Covariances frame by frame, for samples that all begin alike.

Where every window is a whole sample, frame f of one sample can be compared with frame f of all others. What starts from
rest, or decays, has another covariance at first than later; it depends on both frames instead of their lag
(`fieldfill.separations`):

.. math:: C_{ab}(f, f', d) = E[x_a(f, r) \, x_b(f', r + d)]

The start are mean products of pairs of observed values, as there; rounds of expectation–maximisation follow, which take
the mean over completed samples. More numbers are estimated from the same data, so this pays only where frames differ:
held-out cells decide. Samples with held-out cells take no part, because a covariance of so many numbers would know each
sample it was made of.
"""

import math

import torch
from torch import Tensor

from fieldfill.nn.gaussian import GaussianSkip
from fieldfill.separations import FEW, decompose, reliable, tapered_in_space
from fieldfill.windows import Windows

__all__ = ["by_separation", "factorise_frames", "frame_covariance", "frame_products", "frames_comparable"]

LEAST_SAMPLES = 32  # fewer do not tell the covariance of two frames
MAX_BYTES = 2**28  # of a covariance
BATCH_CELLS = 2**17  # cells of the windows that are handled together


def frames_comparable(windows: Windows, skip: GaussianSkip) -> bool:
    """Whether every window is a whole sample, with enough of them and not too much to estimate."""
    samples, variables, frames, _, _ = windows.record.shape
    size = 4 * (variables * windows.length) ** 2 * math.prod(skip.torus)
    return 1 < frames == windows.length and samples >= LEAST_SAMPLES and size <= MAX_BYTES


def frame_covariance(windows: Windows, places: list[tuple[int, int]], torus: tuple[int, int]) -> Tensor:
    """Mean products (CT, CT, rows, columns) of the visible values of some samples, by separation on ``torus``."""
    products, counts = torch.zeros(()), torch.zeros(())
    batch = max(1, BATCH_CELLS // math.prod(windows.record.shape[1:]))
    for first in range(0, len(places), batch):
        x, observed = windows.training(places[first : first + batch])
        products = products + frame_products(torch.fft.rfft2(x.flatten(1, 2), s=torus))
        counts = counts + frame_products(torch.fft.rfft2(observed.float().flatten(1, 2), s=torus))
    total, pairs = by_separation(products, torus), by_separation(counts, torus).round()
    pairs = pairs * reliable(torus, windows.record.shape[-2:])
    return torch.where(pairs >= FEW, total / pairs.clamp(min=1), 0)


def factorise_frames(covariance: Tensor, taper: float, skip: GaussianSkip) -> Tensor:
    """The factor L_k (K, CT, R, 2) of a skip from covariances (CT, CT, rows, columns), damped with the distance."""
    spectrum = torch.fft.rfft2(tapered_in_space(covariance, taper)).flatten(-2).permute(2, 0, 1)
    variance = covariance[..., 0, 0].diagonal().mean()
    return decompose(((part + part.mH) / 2 for part in spectrum.split(64)), variance, skip)


def frame_products(spectra: Tensor) -> Tensor:
    """Sums of conj(x_i) x_j over samples, (K, CT, CT), of spectra (B, CT, rows, half)."""
    modes = spectra.flatten(2).permute(2, 0, 1)
    return modes.conj().transpose(1, 2) @ modes


def by_separation(sums: Tensor, torus: tuple[int, int]) -> Tensor:
    """Sums over pairs (CT, CT, rows, columns) of sums of products at each wavenumber."""
    return torch.fft.irfft2(sums.permute(1, 2, 0).unflatten(2, (torus[0], -1)), s=torus)
