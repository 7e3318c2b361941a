r"""How good a denoiser is on the held-out cells, and how far its correction can be trusted.

With r the residual of the first estimate at a held-out cell, n the network's correction and v its variance, the
correction is used times a gain, the one number that fits the held-out cells best:

.. math:: g = \frac{\sum r n}{\sum n^2} \in [0, 1], \qquad
          error = \frac1N \sum (r - g n)^2, \qquad surprise = \frac1N \sum \log v + (r - g n)^2 / v

A network that has learnt nothing useful yet has g = 0 and leaves the first estimate as it is; what it knows about the
spread counts all the same.
"""

import math
from dataclasses import dataclass

import torch

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
    sums = torch.zeros(8, dtype=torch.float64)
    mine = team.share(len(windows.held.places))
    for first in mine[:: (step := min(batch, at_once(windows)))]:
        chosen = range(first, min(first + step, mine.stop))
        x, context, held = windows.held_out([windows.held.places[i] for i in chosen])
        noise = torch.cat([torch.randn(x[:1].shape, generator=position_stream(seed, "validation", i)) for i in chosen])
        x, context, held, noise = (tensor.to(team.device) for tensor in (x, context, held, noise))
        t = torch.full((len(x),), denoiser.schedule.delta, device=team.device)
        guess, estimate, variance = denoiser.compare(t, noised(denoiser.schedule, t, x, noise), context)
        r, n = (x - guess)[held].double(), (estimate - guess)[held].double()
        v = torch.ones_like(r) if variance is None else variance[held].double()
        terms = (torch.ones_like(r), r * r, r * n, n * n, v.log(), r * r / v, r * n / v, n * n / v)
        sums += torch.stack([term.sum() for term in terms]).cpu()
    count, *moments = team.sum(*sums.tolist())
    if not count:
        return Validation(math.nan)
    rr, rn, nn, log, rr_v, rn_v, nn_v = (moment / count for moment in moments)
    gain = min(1.0, max(0.0, rn / nn)) if shrink and nn > 0 else 1.0
    surprise = log + rr_v - 2 * gain * rn_v + gain**2 * nn_v
    return Validation(rr - 2 * gain * rn + gain**2 * nn, gain, surprise if denoiser.spread else math.nan)


def at_once(windows: Windows) -> int:
    """Windows that may go through the network together, for the sake of memory."""
    _, variables, _, rows, columns = windows.record.shape
    return max(1, PART_CELLS // (variables * windows.length * rows * columns))
