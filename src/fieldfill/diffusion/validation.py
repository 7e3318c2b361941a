r"""How good a denoiser is on the held-out cells, and how far its correction can be trusted.

With r the residual of the first estimate at a held-out cell, n the network's correction and v its variance, the
correction is used times a gain, the one number that fits the held-out cells best:

.. math:: g = \frac{\sum r n}{\sum n^2} \in [0, 1], \qquad
          error = \frac1N \sum (r - g n)^2, \qquad surprise = \frac1N \sum \log v + (r - g n)^2 / v

A few validation crops can be fitted by chance, a single one of them above all. So the error is that of each crop with
the gain of all the others. Unless it is smaller than that of the first estimate by more than its standard error over
crops, g = 0 leaves the first estimate as it is. The variance that the network predicts is used all the same.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldfill.data.crops import Crops
from fieldfill.diffusion.denoiser import Denoiser, noised
from fieldfill.diffusion.team import ALONE, Team
from fieldfill.estimators.base import Answer
from fieldfill.estimators.chain import HeldOutError

__all__ = ["Validation", "validate"]


@dataclass(frozen=True)
class Validation:
    """Mean squared error (unitless) and surprise on held-out cells with the correction times ``gain``.

    The surprise is NaN for a network that does not state its spread. The standard error is that of the error over
    validation crops.
    """

    error: float
    gain: float = 1.0
    surprise: float = math.nan
    standard_error: float = math.nan

    def beats(self, other: "Validation", least: float, tolerance: float = 0.005) -> bool:
        """Whether to go on with this one; ``least`` is the smallest error so far.

        The smaller surprise decides within the share ``tolerance`` of the least error.
        """
        if not math.isfinite(other.error):
            return True
        if self.error > (1 + tolerance) * least or math.isnan(self.surprise):
            return self.error < other.error
        return self.surprise < other.surprise or other.error > (1 + tolerance) * least


@torch.no_grad()
def validate(
    denoiser: Denoiser,
    crops: Crops,
    seed: int,
    team: Team = ALONE,
    shrink: bool = False,
    known: dict[int, Answer] | None = None,
) -> Validation:
    """Fills the held-out cells from all other observations, at the smallest noise; ``shrink`` fits the gain.

    First estimates are the same at every validation: they are put into ``known``, or taken from there.
    """
    denoiser.eval()
    sums = torch.zeros(len(crops.held), 8, dtype=torch.float64)
    for chosen, batch, *others in crops.validation(seed, team.share(len(sums))):
        tensors = (batch.x, batch.observed, batch.maps, *others)
        x, context, maps, held, noise = (tensor.to(team.device) for tensor in tensors)
        t = torch.full((len(x),), denoiser.schedule.delta, device=team.device)
        x_t = noised(denoiser.schedule, t, x, noise)
        first = None if known is None else known.get(chosen.start)
        if known is not None and first is None:
            first = known[chosen.start] = denoiser.first(t, torch.where(context, x_t, 0), context, maps)
        guess, estimate, variance = denoiser.compare(t, x_t, context, maps, first)
        r, n = (torch.where(held, part - guess, 0).double() for part in (x, estimate))
        v = torch.ones_like(r) if variance is None else torch.where(held, variance, 1).double()
        terms = (held.double(), r * r, r * n, n * n, v.log(), r * r / v, r * n / v, n * n / v)
        sums[chosen.start : chosen.stop] = torch.stack([term.flatten(1).sum(1) for term in terms], dim=1).cpu()
    sums = torch.tensor(team.sum(*sums.flatten().tolist()), dtype=torch.float64).view(-1, 8)
    sums = sums * crops.held.weights_of(range(len(sums)))[:, None]
    count, _, _, _, log, rr_v, rn_v, nn_v = sums.sum(0).tolist()
    if not count:
        return Validation(math.nan)
    cells, rr, rn, nn = sums[:, :4].unbind(1)
    errors, gain = _shrunk(cells, rr, rn, nn) if shrink else (_errors(rr, rn, nn, torch.ones(())), 1.0)
    found = HeldOutError.of(errors.tolist(), cells.tolist())
    surprise = (log + rr_v - 2 * gain * rn_v + gain**2 * nn_v) / count
    return Validation(found.mean, gain, surprise if denoiser.spread else math.nan, found.standard_error)


def _errors(rr: Tensor, rn: Tensor, nn: Tensor, gain: Tensor) -> Tensor:
    """Summed squared errors (N,) of crops with these moments."""
    return rr - 2 * gain * rn + gain**2 * nn


def _shrunk(cells: Tensor, rr: Tensor, rn: Tensor, nn: Tensor) -> tuple[Tensor, float]:
    """Summed squared errors (N,) of crops, each with the gain of all the others, and the gain of all.

    Unless they are smaller than those of the first estimate by more than the standard error, the gain is 0.
    """
    gain = _gain(rn.sum(), nn.sum())
    others = _gain(rn.sum() - rn, nn.sum() - nn) if len(rr) > 1 else gain
    errors = _errors(rr, rn, nn, others)
    better = HeldOutError.of((rr - errors).tolist(), cells.tolist())
    return (errors, float(gain)) if better.mean > better.standard_error else (rr, 0.0)


def _gain(rn: Tensor, nn: Tensor) -> Tensor:
    return (rn / nn.clamp(min=torch.finfo(nn.dtype).tiny)).clamp(0, 1)
