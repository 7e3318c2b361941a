r"""Covariances by separation: from pairs of observed values to the factor of a Gaussian law.

The products of two observed values at every separation (variables a, b; lag τ; rows, columns) are summed by FFT and
divided by their number. Damped with the distance d from the drift v τ and with the lag,

.. math:: C_{ab}(\tau, d) \; e^{-d^2 / 2 \, taper^2} \; e^{-\tau^2 / 2 \, memory^2}

they are a smoother estimate: the first factor joins neighbouring wavenumbers, the second neighbouring frequencies. In
Fourier space they are one Hermitian matrix over (variable, frame) for each wavenumber; negative eigenvalues are set to
zero.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, Place
from fieldfill.data.pieces import at_once
from fieldfill.estimators.gaussian.field import LearntField

__all__ = ["Separations", "drift_of", "enlarged", "factorise", "lagged", "mean_over_modes", "separations", "tapered"]


@dataclass(frozen=True)
class Separations:
    """Mean product of observed values: ``covariance`` (C, C, T, rows, columns) on a torus, first lag 0.

    ``pairs`` of the same shape counts them.
    """

    covariance: Tensor
    pairs: Tensor


def separations(
    crops: Crops,
    torus: tuple[int, int],
    generator: Generator,
    frames: int | None = None,
    *,
    most_frames: int = 4000,
    most_values: int = 2**25,
    few: int = 20,
) -> Separations:
    """Covariances of a record up to the lags of a crop, or of ``frames``, and what ``torus`` keeps apart.

    Pairs are taken from at most ``most_frames`` frames and ``most_values`` values; more would add little but time. A
    separation with fewer than ``few`` pairs is not trusted: its covariance counts as zero.
    """
    frames = crops.length if frames is None else frames
    products, counts = None, None
    for place, length in _stretches(crops, torus, generator, most_frames, most_values):
        x, observed = crops.visible(place, length)
        values, masks = (lagged(torch.fft.rfft2(v, s=torus)[None], frames) for v in (x, observed.float()))
        products = values if products is None else products + values
        counts = masks if counts is None else counts + masks
    assert products is not None and counts is not None
    total, pairs = torch.fft.irfft2(products, s=torus), torch.fft.irfft2(counts, s=torus).round()
    pairs = pairs * _reliable(torus, crops.shape[1:])
    return Separations(torch.where(pairs >= few, total / pairs.clamp(min=1), 0), pairs)


def _reliable(torus: tuple[int, int], grid: tuple[int, ...]) -> Tensor:
    """Separations (rows, columns) that are no others: longer ones are mixed with those around an axis that is open."""
    rows, columns = (
        separation_of(n).abs() <= (n if n == size else n - size) for n, size in zip(torus, grid, strict=True)
    )
    return rows[:, None] & columns


def _stretches(
    crops: Crops, torus: tuple[int, int], generator: Generator, most_frames: int, most_values: int
) -> list[tuple[Place, int]]:
    """Places and lengths of stretches in time with as many values as are looked at, long enough for all lags."""
    variables = crops.record.shape[1]
    longest = max(crops.length, 2**24 // (variables * math.prod(torus)))
    wanted = min(most_frames, most_values // (variables * math.prod(crops.shape[1:])))
    return crops.stretches(wanted, generator, min(8 * crops.length, longest))


def lagged(values: Tensor, length: int) -> Tensor:
    """Sums of conj(x_a(f)) x_b(f + lag) over samples and frames, (C, C, T, rows, half), of spectra (B, C, F, ...)."""
    variables, frames = values.shape[1:3]
    sums = values.new_zeros((variables, variables, length, *values.shape[3:]))
    for a, b, lag in itertools.product(range(variables), range(variables), range(min(length, frames))):
        sums[a, b, lag] = (values[:, a, : frames - lag].conj() * values[:, b, lag:]).sum((0, 1))
    return sums


def drift_of(covariance: Tensor) -> tuple[float, float]:
    """Rows and columns per frame by which the peak of the covariance moves, from the first lags."""
    total, weight = [0.0, 0.0], 0
    for lag in range(1, min(4, covariance.shape[2])):
        table = covariance.diagonal(dim1=0, dim2=1).mean(-1)[lag]
        rows, columns = table.shape
        row, column = divmod(int(table.argmax()), columns)
        around = [
            table[[row - 1, row, (row + 1) % rows], column],
            table[row, [column - 1, column, (column + 1) % columns]],
        ]
        for axis, (place, size, (low, peak, high)) in enumerate(zip((row, column), (rows, columns), around)):
            # The top of a parabola through three cells.
            bend = 2 * peak - low - high
            shift = float((high - low) / (2 * bend)) if bend > 0 else 0.0
            total[axis] += lag * (float(separation_of(size)[place]) + shift)
        weight += lag**2
    return (total[0] / weight, total[1] / weight) if weight else (0.0, 0.0)


def tapered(covariance: Tensor, taper: float, drift: tuple[float, float], memory: float = math.inf) -> Tensor:
    """Covariances (C, C, T, rows, columns) damped with the distance from the drift, and with the lag."""
    lag = torch.arange(float(covariance.shape[2]))[:, None]
    if math.isfinite(memory):
        covariance = covariance * torch.exp(-0.5 * (lag / memory) ** 2)[:, :, None]
    if math.isinf(taper):
        return covariance
    squares = []
    for size, speed in zip(covariance.shape[-2:], drift):
        away = separation_of(size) - speed * lag
        squares.append(((away + size / 2) % size - size / 2) ** 2)
    return covariance * torch.exp(-(squares[0][:, :, None] + squares[1][:, None, :]) / (2 * taper**2))


def factorise(covariance: Tensor, field: LearntField) -> Tensor:
    """The factor L_k (K, CT, R, 2) of a Gaussian field from covariances (C, C, T, rows, columns) on its torus."""
    variables, _, length = covariance.shape[:3]
    spectrum = torch.fft.rfft2(covariance).flatten(-2).permute(3, 0, 1, 2)
    # Clipping and truncation change the variance; it is known best of all, so it is put back.
    variance = covariance[range(variables), range(variables), 0, 0, 0].mean()
    parts = spectrum.split(at_once((variables * length) ** 2))
    return _decompose((_matrices(part) for part in parts), variance, field)


def _matrices(spectrum: Tensor) -> Tensor:
    """Matrices (K, CT, CT) over variables and frames from the spectra (K, C, C, T) of covariances by lag."""
    modes, variables, _, length = spectrum.shape
    matrix = torch.zeros((modes, variables, length, variables, length), dtype=spectrum.dtype)
    for early, late in itertools.product(range(length), range(length)):
        lag = abs(late - early)
        matrix[:, :, early, :, late] = spectrum[..., lag] if late >= early else spectrum[..., lag].mH
    return matrix.flatten(3, 4).flatten(1, 2)


def _decompose(matrices: Iterable[Tensor], variance: Tensor, field: LearntField) -> Tensor:
    """The factor L_k (K, CT, R, 2) of Hermitian matrices (K, CT, CT), given in parts, for fields of ``variance``."""
    channels, rank = field.factor.shape[1:3]
    values, vectors = [], []
    for matrix in matrices:
        # E[x_a(f, r) x_b(f + lag, r + d)] has the spectrum conj(x_a) x_b: the covariance acts with its transpose.
        found = torch.linalg.eigh(matrix.mT)
        values.append(found.eigenvalues[:, -rank:].clamp(min=0))
        vectors.append(found.eigenvectors[:, :, -rank:].contiguous())
    kept = torch.cat(values)
    scale = variance / (mean_over_modes(kept.sum(1), field.torus) / channels).clamp(min=1e-12)
    return torch.view_as_real(torch.cat(vectors).mul_((scale * kept).sqrt()[:, None]))


def enlarged(field: LearntField, grid: tuple[int, int], periodic: tuple[bool, bool]) -> LearntField:
    """A field on a larger grid with the stationary covariance of ``field``, 0 beyond the separations that it holds."""
    variables, frames, _, _ = field.shape
    other = LearntField(variables, frames, grid, periodic, field.reach, field.steps, field.tolerance)
    channels, (rows, columns) = variables * frames, field.torus
    factor = torch.view_as_complex(field.factor)
    power = (factor @ factor.mH).permute(1, 2, 0).unflatten(2, (rows, -1))
    covariance = torch.fft.irfft2(power, s=field.torus)
    wide = covariance.new_zeros(channels, channels, *other.torus)
    y, x = (separation_of(n).long() for n in (rows, columns))
    # Separations that are the same on a smaller torus add up.
    part = wide.new_zeros(channels, channels, other.torus[0], columns).index_add_(2, y % other.torus[0], covariance)
    wide.index_add_(3, x % other.torus[1], part)
    matrices = torch.fft.rfft2(wide).flatten(2).permute(2, 0, 1)
    variance = covariance[range(channels), range(channels), 0, 0].mean()
    other.set_covariance(_decompose([matrices.mT], variance, other))
    other.nugget.copy_(field.nugget)
    other.effort.copy_(field.effort)
    return other.train(field.training)


def separation_of(n: int) -> Tensor:
    """Signed separations 0, 1, ..., -2, -1 of a wrapped axis of n cells."""
    index = torch.arange(n)
    return torch.where(index <= n // 2, index, index - n).float()


def mean_over_modes(power: Tensor, torus: tuple[int, int]) -> Tensor:
    """Mean (...) over all wavenumbers of ``power`` (K, ...), given on the half that a real transform keeps."""
    half = torus[1] // 2 + 1
    weight = torch.full((half,), 2.0)
    weight[0] = 1
    if torus[1] % 2 == 0:
        weight[-1] = 1
    return torch.einsum("kh...,h->...", power.unflatten(0, (torus[0], half)), weight) / (torus[0] * torus[1])
