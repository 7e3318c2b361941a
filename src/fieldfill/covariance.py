r"""The covariance of a gappy record, estimated from the gaps and all.

The products of two observed values at every separation (variables a, b; lag τ; rows, columns) are summed by FFT and
divided by their number. A taper removes the noise of distant separations, negative eigenvalues are set to zero, and
taper and nugget (observation noise) are those with the smallest error on held-out cells.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.nn.gaussian import GaussianSkip
from fieldfill.windows import Windows

__all__ = ["learn_covariance", "separations"]

TAPERS = (4.0, 6.0, 9.0, 14.0)
NUGGETS = (0.003, 0.01, 0.03, 0.1)
MAX_FRAMES = 4000  # frames that are looked at; more would add little but time
FEW = 20  # a separation with fewer pairs than this is not trusted


@dataclass(frozen=True)
class Separations:
    """Mean product of observed values: ``covariance`` (C, C, T, H', W'), first lag 0; separations wrap around."""

    covariance: Tensor
    pairs: Tensor


def separations(windows: Windows, generator: Generator) -> Separations:
    """Covariances of a record up to the lags and separations that a window has."""
    _, variables, _, rows, columns = windows.record.shape
    length = windows.length
    size = tuple(n if closed else 2 * n for n, closed in zip((rows, columns), windows.record.periodic))
    shape = (variables, variables, length, size[0], size[1] // 2 + 1)
    products, counts = torch.zeros(shape, dtype=torch.complex64), torch.zeros(shape, dtype=torch.complex64)
    for sample, start, stop in _stretches(windows, generator):
        x, observed = windows.visible(sample, start, stop - start)
        values, masks = torch.fft.rfft2(x, s=size), torch.fft.rfft2(observed.float(), s=size)
        for a, b, lag in itertools.product(range(variables), range(variables), range(min(length, stop - start))):
            early, late = slice(0, stop - start - lag), slice(lag, stop - start)
            products[a, b, lag] += (values[a, early].conj() * values[b, late]).sum(0)
            counts[a, b, lag] += (masks[a, early].conj() * masks[b, late]).sum(0)
    total, pairs = torch.fft.irfft2(products, s=size), torch.fft.irfft2(counts, s=size).round()
    return Separations(torch.where(pairs >= FEW, total / pairs.clamp(min=1), 0), pairs)


def _stretches(windows: Windows, generator: Generator) -> list[tuple[int, int, int]]:
    """(sample, start, stop) of up to MAX_FRAMES frames, in stretches long enough for all lags."""
    samples, _, frames, _, _ = windows.record.shape
    step = min(frames, 8 * windows.length)
    parts = [(s, first, min(first + step, frames)) for s in range(samples) for first in range(0, frames, step)]
    order = torch.randperm(len(parts), generator=generator)[: max(1, MAX_FRAMES // step)].tolist()
    return [parts[i] for i in order if parts[i][2] - parts[i][1] > 1 or frames == 1]


def factorise(found: Separations, skip: GaussianSkip, taper: float) -> Tensor:
    """The factor L_k (K, CT, R, 2) of a skip from tapered covariances."""
    variables, _, length = found.covariance.shape[:3]
    rows, columns = (_separation_of(n) for n in found.covariance.shape[-2:])
    weight = torch.exp(-(rows[:, None] ** 2 + columns[None, :] ** 2) / (2 * taper**2))
    near = (rows.abs()[:, None] <= skip.reach) & (columns.abs()[None, :] <= skip.reach)
    tapered = _rewrap(found.covariance * weight * near, skip.torus)
    spectrum = torch.fft.rfft2(tapered).flatten(-2)
    matrix = torch.zeros((spectrum.shape[-1], variables, length, variables, length), dtype=torch.complex64)
    for early, late in itertools.product(range(length), range(length)):
        lag = abs(late - early)
        block = spectrum[:, :, lag] if late >= early else spectrum[:, :, lag].transpose(0, 1).conj()
        matrix[:, :, early, :, late] = block.permute(2, 0, 1)
    # E[x_a(f, r) x_b(f + lag, r + d)] has the spectrum conj(x_a) x_b: the covariance acts with its transpose.
    matrix = matrix.flatten(3, 4).flatten(1, 2).transpose(1, 2)
    values, vectors = torch.linalg.eigh(matrix)
    rank = skip.factor.shape[2]
    kept = values[:, -rank:].clamp(min=0)
    # Clipping and truncation change the variance; it is known best of all, so it is put back.
    variance = found.covariance[range(variables), range(variables), 0, 0, 0].mean()
    mean_power = _mean_over_modes(kept.sum(1), skip.torus) / (variables * length)
    scale = variance / mean_power.clamp(min=1e-12)
    return torch.view_as_real((vectors[:, :, -rank:] * (scale * kept).sqrt()[:, None]).contiguous())


def _separation_of(n: int) -> Tensor:
    """Signed separations 0, 1, ..., -2, -1 of a wrapped axis of n cells."""
    index = torch.arange(n)
    return torch.where(index <= n // 2, index, index - n).float()


def _rewrap(covariance: Tensor, torus: tuple[int, ...]) -> Tensor:
    """Moves wrapped separations (..., H', W') onto another torus; what does not fit is dropped."""
    for axis, size in zip((-2, -1), torus):
        old = covariance.shape[axis]
        if old == size:
            continue
        reach = (min(old, size) - 1) // 2
        index = torch.cat([torch.arange(0, reach + 1), torch.arange(old - reach, old)])
        place = torch.cat([torch.arange(0, reach + 1), torch.arange(size - reach, size)])
        shape = list(covariance.shape)
        shape[axis] = size
        covariance = torch.zeros(shape).index_copy(axis, place, covariance.index_select(axis, index))
    return covariance


def _mean_over_modes(power: Tensor, torus: tuple[int, ...]) -> Tensor:
    """Mean over all wavenumbers of ``power`` (K,), given on the half that a real transform keeps."""
    half = torus[1] // 2 + 1
    weight = torch.full((half,), 2.0)
    weight[0] = 1
    if torus[1] % 2 == 0:
        weight[-1] = 1
    return (power.view(torus[0], half) * weight).sum() / (torus[0] * torus[1])


def learn_covariance(skip: GaussianSkip, windows: Windows, generator: Generator) -> dict[str, float]:
    """Fits the skip to the record: covariance from the visible cells, taper and nugget by the held-out cells."""
    found = separations(windows, generator)
    skip.eval()
    tried = []
    for taper in TAPERS:
        skip.set_covariance(factorise(found, skip, taper))
        for nugget in NUGGETS:
            skip.nugget.fill_(nugget)
            tried.append({"validation": held_out_error(skip, windows), "taper": taper, "nugget": nugget})
    best = min(tried, key=lambda trial: trial["validation"])
    skip.set_covariance(factorise(found, skip, best["taper"]))
    skip.nugget.fill_(best["nugget"])
    return best


def held_out_error(skip: GaussianSkip, windows: Windows) -> float:
    """Mean squared error of the skip alone on the held-out cells."""
    total, cells = 0.0, 0
    one, zero = torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, 1, 1)
    for place in windows.held.places:
        x, context, held = windows.held_out([place])
        total += (skip(x, context, one, zero) - x)[held].square().sum().item()
        cells += int(held.sum())
    return total / max(1, cells)
