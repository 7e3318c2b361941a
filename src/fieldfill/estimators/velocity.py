r"""The drift of a crop: the velocity v (rows, columns per frame) of its pattern.

*Estimate.* Two observed values of a pattern that moves with v and keeps its shape are equal if they lie v tau apart,
tau frames later. So v is where the mean squared difference of such pairs is least:

.. math:: D(\tau, d) = \frac{\sum m(f, r)\, m(f + \tau, r + d)\, (x(f, r) - x(f + \tau, r + d))^2}
                            {\sum m(f, r)\, m(f + \tau, r + d)}, \qquad
          J(v) = \sum_\tau (T - \tau) D(\tau, v \tau)

m is the mask. The sums over frames f, cells r and variables are correlations, found for all separations d at once by
FFT. Noise adds a constant to D and does not move its least value. Short lags find the neighbourhood of v, long ones
give the digits: the step of the search halves as the longest lag doubles, and a parabola has the last word.

*Confidence.* A drift is clear if it leaves less than a share c of the differences that standing still leaves, J(v) <
c J(0), whatever the units. Noise and fields that stand still do not pass. Of fields that are renewed within a few
frames some pass by chance.
"""

import math

import torch
from torch import Tensor

from fieldfill.data.pieces import at_once

__all__ = ["estimate_drift", "fastest_drift"]


def fastest_drift(
    grid: tuple[int, int], torus: tuple[int, int], frames: int, limit: float = 4.0
) -> tuple[float, float]:
    """Fastest drift along each axis of a grid on a torus, ``limit`` cells per frame at most.

    What leaves one side of an axis that is not periodic must not come back on the other: over a crop it may move by
    half of the padding.
    """
    fastest = []
    for size, around in zip(grid, torus):
        room = (around - size) / 2 / max(1, frames - 1) if around > size else size / 4
        fastest.append(min(limit, room))
    return fastest[0], fastest[1]


def estimate_drift(
    x: Tensor, mask: Tensor, torus: tuple[int, int], fastest: tuple[float, float], clarity: float = 0.8
) -> tuple[Tensor, Tensor]:
    """Drift (B, 2) of each crop x (B, C, T, H, W) seen at ``mask``, and whether it is clear, (B,) bool.

    It is clear if it leaves less than the share ``clarity`` of the differences that standing still leaves.

    A drift that is not clear is 0. The estimate of a crop does not depend on the others of its batch.
    """
    mask = mask.to(x.dtype).expand_as(x)
    if x.shape[2] < 2 or min(fastest) <= 0:
        return x.new_zeros(len(x), 2), torch.zeros(len(x), dtype=torch.bool)
    size = at_once(x[0].numel())
    found = [_search(*_differences(*part, torus), fastest, clarity) for part in zip(x.split(size), mask.split(size))]
    drift, clear = (torch.cat(parts) for parts in zip(*found))
    return drift, clear


def _differences(
    x: Tensor, mask: Tensor, torus: tuple[int, int], count: int = 16, longest: float = 0.8, few: float = 20.0
) -> tuple[Tensor, Tensor, Tensor]:
    """D (B, L, rows, columns) on the torus, its lags (L,) and their weights (L,).

    There are at most ``count`` lags, up to a share ``longest`` of the frames: few pairs are further apart.
    Fewer than ``few`` pairs count for no more than a guess, which is that of unrelated values.
    """
    frames = x.shape[2]
    spread = torch.logspace(0, math.log10(max(1.0, longest * frames)), count).round()
    lags = spread.clamp(1, frames - 1).unique()
    x = x * mask
    value, seen, square = (torch.fft.rfft2(v, s=torus) for v in (x, mask, x.square()))
    products, counts = [], []
    for lag in lags.int().tolist():
        early, late = slice(0, frames - lag), slice(lag, frames)
        crossed = seen[:, :, early].conj() * square[:, :, late] + square[:, :, early].conj() * seen[:, :, late]
        products.append((crossed - 2 * value[:, :, early].conj() * value[:, :, late]).sum((1, 2)))
        counts.append((seen[:, :, early].conj() * seen[:, :, late]).sum((1, 2)))
    total, pairs = (torch.fft.irfft2(torch.stack(v, 1), s=torus).clamp(min=0) for v in (products, counts))
    variance = x.square().flatten(1).sum(1) / mask.flatten(1).sum(1).clamp(min=1)
    return (total + few * 2 * variance.view(-1, 1, 1, 1)) / (pairs + few), lags, frames - lags


def _search(
    table: Tensor, lags: Tensor, weights: Tensor, fastest: tuple[float, float], clarity: float, step: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Drift (B, 2) with the least J, and whether it is clear (B,).

    The first ``step`` of the search is in cells per frame.
    """
    most = torch.tensor(fastest)
    axes = [step * torch.arange(-math.floor(v / step), math.floor(v / step) + 1) for v in fastest]
    tried = torch.cartesian_prod(*axes).expand(len(table), -1, -1)
    near, next_to = (torch.cartesian_prod(*2 * [torch.arange(-n, n + 1.0)]) for n in (2, 1))
    reach = 2
    while True:
        used = max(1, int((lags <= reach).sum()))
        left = _left(table[:, :used], lags[:used], weights[:used], tried)
        best = tried.gather(1, left.argmin(1)[:, None, None].expand(-1, 1, 2))
        if used == len(lags) and step <= 0.5 / lags[-1]:
            break
        step, reach = step / 2, reach * 2
        tried = torch.clamp(best + step * near, -most, most)
    around = _left(table, lags, weights, best + step * next_to).view(-1, 3, 3)
    drift = (best[:, 0] + step * _lowest(around)).clamp(-most, most)
    moving, still = _left(table, lags, weights, torch.stack([drift, torch.zeros_like(drift)], 1)).unbind(1)
    clear = (moving < clarity * still) & (drift.abs() < most).all(1)
    return drift * clear[:, None], clear


def _left(table: Tensor, lags: Tensor, weights: Tensor, drift: Tensor) -> Tensor:
    """J (B, Q) over the sum of its weights, for drifts (B, Q, 2), by cubic interpolation of D."""
    rows, columns = table.shape[2:]
    place = drift[:, :, None] * lags[:, None]
    base = place.floor()
    weight = _cubic(place - base)
    index = base.long()[..., None] + torch.arange(-1, 3)
    flat = (index[..., 0, :, None] % rows) * columns + index[..., 1, None, :] % columns
    flat = flat + (torch.arange(len(lags)) * rows * columns)[:, None, None]
    values = table.flatten(1).gather(1, flat.flatten(1)).view(flat.shape)
    at = (values * weight[..., 0, :, None] * weight[..., 1, None, :]).sum((-1, -2))
    return (at * weights).sum(-1) / weights.sum()


def _cubic(part: Tensor) -> Tensor:
    """Weights (..., 4) of the two cells before and the two after a place that is ``part`` (...) beyond the second.

    Cubic convolution with the slope -1/2, exact for parabolas.
    """
    d = torch.stack([1 + part, part, 1 - part, 2 - part], -1)
    return torch.where(d <= 1, (1.5 * d - 2.5) * d**2 + 1, ((2.5 - 0.5 * d) * d - 4) * d + 2)


def _lowest(values: Tensor) -> Tensor:
    """Place (B, 2) of the lowest point of a paraboloid fitted to values (B, 3, 3), in steps from the middle."""
    slope_y, slope_x = ((v[:, 2] - v[:, 0]).mean(1) / 2 for v in (values, values.mT))
    bend_y, bend_x = ((v[:, 2] - 2 * v[:, 1] + v[:, 0]).mean(1) for v in (values, values.mT))
    twist = (values[:, 2, 2] - values[:, 2, 0] - values[:, 0, 2] + values[:, 0, 0]) / 4
    determinant = bend_y * bend_x - twist**2
    y, x = twist * slope_x - bend_x * slope_y, twist * slope_y - bend_y * slope_x
    # Without a lowest point, as on a constant field, the middle stays.
    bowl = (determinant > 0) & (bend_y > 0)
    return torch.where(bowl[:, None], torch.stack([y, x], 1) / determinant[:, None], 0).clamp(-1, 1)
