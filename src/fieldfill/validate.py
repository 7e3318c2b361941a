r"""How good a denoiser is on the held-out cells, and how far its correction can be trusted.

With r the residual of the first estimate at a held-out cell, n the network's correction and v its variance, the
correction is used times a gain, the one number that fits the held-out cells best:

.. math:: g = \frac{\sum r n}{\sum n^2} \in [0, 1], \qquad
          error = \frac1N \sum (r - g n)^2, \qquad surprise = \frac1N \sum \log v + (r - g n)^2 / v

A few held-out windows can be fitted by chance, a single one of them above all. So the error is that of each window with
the gain of all the others, and unless it is smaller than that of the first estimate, g = 0 leaves this as it is. What
the network knows about the spread counts all the same.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldfill.denoise import Denoiser, noised
from fieldfill.parallel import ALONE, Team
from fieldfill.seeds import position_stream
from fieldfill.windows import Windows

__all__ = ["Validation", "at_once", "validate"]

PART_CELLS = 2**21  # cells (B, C, T, H, W) that go through the network at once, unless settings say otherwise
TOLERANCE = 0.005  # of the least error, within which the smaller surprise decides


@dataclass(frozen=True)
class Validation:
    """Mean squared error (unitless) and surprise on held-out cells with the correction times ``gain``.

    The surprise is NaN for a network that does not state its spread.
    """

    error: float
    gain: float = 1.0
    surprise: float = math.nan

    def beats(self, other: "Validation", least: float) -> bool:
        """Whether to go on with this one; ``least`` is the smallest error so far."""
        if not math.isfinite(other.error):
            return True
        if self.error > (1 + TOLERANCE) * least or math.isnan(self.surprise):
            return self.error < other.error
        return self.surprise < other.surprise or other.error > (1 + TOLERANCE) * least


@torch.no_grad()
def validate(
    denoiser: Denoiser, windows: Windows, seed: int, team: Team = ALONE, batch: int = 16, shrink: bool = False
) -> Validation:
    """Fills the held-out cells from all other observations, at the smallest noise; ``shrink`` fits the gain."""
    denoiser.eval()
    sums = torch.zeros(len(windows.held.places), 8, dtype=torch.float64)
    mine = team.share(len(sums))
    for first in mine[:: (step := min(batch, at_once(windows)))]:
        chosen = range(first, min(first + step, mine.stop))
        x, context, held = windows.held_out([windows.held.places[i] for i in chosen])
        noise = torch.cat([torch.randn(x[:1].shape, generator=position_stream(seed, "validation", i)) for i in chosen])
        x, context, held, noise = (tensor.to(team.device) for tensor in (x, context, held, noise))
        t = torch.full((len(x),), denoiser.schedule.delta, device=team.device)
        guess, estimate, variance = denoiser.compare(t, noised(denoiser.schedule, t, x, noise), context)
        r, n = (torch.where(held, part - guess, 0).double() for part in (x, estimate))
        v = torch.ones_like(r) if variance is None else torch.where(held, variance, 1).double()
        terms = (held.double(), r * r, r * n, n * n, v.log(), r * r / v, r * n / v, n * n / v)
        sums[chosen.start : chosen.stop] = torch.stack([term.flatten(1).sum(1) for term in terms], dim=1).cpu()
    sums = torch.tensor(team.sum(*sums.flatten().tolist()), dtype=torch.float64).view(-1, 8)
    count, rr, rn, nn, log, rr_v, rn_v, nn_v = sums.sum(0).tolist()
    if not count:
        return Validation(math.nan)
    error, gain = _shrunk(*sums[:, 1:4].T) if shrink else (rr - 2 * rn + nn, 1.0)
    surprise = (log + rr_v - 2 * gain * rn_v + gain**2 * nn_v) / count
    return Validation(error / count, gain, surprise if denoiser.spread else math.nan)


def _shrunk(rr: Tensor, rn: Tensor, nn: Tensor) -> tuple[float, float]:
    """Summed error of windows with these moments (N,), each with the gain of all the others, and the gain of all."""
    gain = _gain(rn.sum(), nn.sum())
    others = _gain(rn.sum() - rn, nn.sum() - nn) if len(rr) > 1 else gain
    error, first = (rr - 2 * others * rn + others**2 * nn).sum(), rr.sum()
    return (float(error), float(gain)) if error < first else (float(first), 0.0)


def _gain(rn: Tensor, nn: Tensor) -> Tensor:
    return (rn / nn.clamp(min=torch.finfo(nn.dtype).tiny)).clamp(0, 1)


def at_once(windows: Windows) -> int:
    """Windows that may go through the network together, for the sake of memory."""
    _, variables, _, rows, columns = windows.record.shape
    return max(1, PART_CELLS // (variables * windows.length * rows * columns))
