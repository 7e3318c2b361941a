r"""Exposure by enumeration: P(query_i | context) for a known, finite law of masks.

With masks :math:`M_s` of probability :math:`\pi_s` and the law of a partition given the mask, Bayes' rule
gives

.. math:: P(qry_i | ctx) = \frac{\sum_s \pi_s P(ctx | M_s) \, E[qry_i | ctx, M_s]}{\sum_s \pi_s P(ctx | M_s)}

Likelihoods are kept as logarithms: a context drawn per frame on a static mask has probabilities like 1e-52.
"""

from functools import singledispatch

import numpy as np
import torch
from torch import Tensor

from fieldfill.errors import InputError
from fieldfill.partition import (
    AllObserved,
    BlockPartition,
    HideMore,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
)
from fieldfill.partition.structures import RatioPartition, Units

__all__ = ["NoClosedForm", "exact_exposure"]


class NoClosedForm(InputError):
    """The law of contexts of this partition cannot be written down; estimate its exposure instead."""


def exact_exposure(partition: Partition, law: tuple[Tensor, Tensor], context: Tensor) -> Tensor:
    """P(query_i | context), (C, T, H, W) float64; NaN everywhere if the context cannot occur.

    Parameters
    ----------
    law : (Tensor, Tensor)
        Masks (S, C, T, H, W) bool and their probabilities (S,).
    context : Tensor
        One context (C, T, H, W) bool.
    """
    masks, probabilities = law
    log_likelihood, query = _posterior(partition, masks, context)
    log_weight = log_likelihood + probabilities.double().log()
    weight = torch.softmax(log_weight, 0) if torch.isfinite(log_weight).any() else log_weight * torch.nan
    return torch.einsum("s,scthw->cthw", weight, query)


@singledispatch
def _posterior(partition: Partition, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """log P(context | mask) (S,) and E[query | context, mask] (S, C, T, H, W), float64."""
    raise NoClosedForm(f"{type(partition).__name__} has no closed form for its contexts: use the estimated audit")


@_posterior.register
def _(partition: AllObserved, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    return _log((masks == context).flatten(1).all(-1)), masks.double()


@_posterior.register
def _(partition: RatioPartition, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    return _ratio_posterior(partition, masks, context, None)


@_posterior.register
def _(partition: HideMore, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    if partition.keep is None:
        return _posterior(partition.structure, masks, context)[0], masks.double()
    if not isinstance(partition.structure, RatioPartition):
        raise NoClosedForm("only independent units have a closed form when 'keep' is given: set keep=None")
    return _ratio_posterior(partition.structure, masks, context, partition.keep)[0], masks.double()


@_posterior.register
def _(partition: BlockPartition, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    units, chosen, possible = _read(partition.units(masks), masks, context)
    n, k = units.live.sum(-1).double(), chosen.sum(-1).double()
    lo, hi = partition.context_range(n)
    top = torch.where(lo <= hi, hi, n)
    bottom = torch.where(lo <= hi, lo, n)
    if isinstance(partition.context_blocks, tuple) and bool(((n > 0).flatten(1).sum(-1) > 1).any()):
        raise NoClosedForm("a range of context blocks on slices with blocks of their own has no closed form")
    inside = ((k >= bottom) & (k <= top)).flatten(1).all(-1)
    combinations = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    each = torch.where(n > 0, -combinations - torch.log(top - bottom + 1), 0.0)
    log_likelihood = _log(inside & possible) + each.flatten(1).sum(-1)
    if partition.query == "removed":
        return log_likelihood, (masks & ~context).double()
    share = torch.where(lo <= hi, partition.query / n.clamp(min=1), 0.0) * (n >= partition.query)
    return log_likelihood, masks.double() * units.spread(units.live * share[..., None])


@_posterior.register
def _(partition: MaskSwap, masks: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    if partition.keep is not None:
        raise NoClosedForm("a union of donors has no closed form: use keep=None (one donor) or the estimated audit")
    both = masks[:, None] & partition.bank[None]
    size, total = both.flatten(2).sum(-1), masks.flatten(1).sum(-1, keepdim=True)
    usable, full = (size > 0) & (size < total), size == total
    match = (usable & (both == context).flatten(2).all(-1)).sum(-1).double()
    u, f = usable.sum(-1).double(), full.sum(-1).double()
    given_up = torch.where(u > 0, (f / (u + f).clamp(min=1)) ** partition.tries, 1.0)
    unsplit = (masks == context).flatten(1).all(-1).double()
    split = match / u.clamp(min=1) * (1 - given_up)
    # A context equal to the mask comes from a row given up, whose query is empty.
    query = (masks & ~context).double()
    return torch.log(split + unsplit * given_up), query


def _ratio_posterior(
    partition: RatioPartition, masks: Tensor, context: Tensor, keep: float | None
) -> tuple[Tensor, Tensor]:
    if isinstance(partition, StationPartition) and partition.dropout > 0:
        raise NoClosedForm("stations with extra dropouts have no closed form: set dropout=0 or use the estimated audit")
    units, chosen, possible = _read(partition.units(masks), masks, context)
    n, s = units.live.flatten(1).sum(-1).double(), chosen.flatten(1).sum(-1).double()
    printed = partition.query if isinstance(partition, PixelPartition) and keep is None else None
    rules = (printed is None, printed is None and keep is None)
    log_likelihood = _log(possible) + _log_subset(n, s, partition.context if keep is None else keep, *rules)
    if printed is not None:
        return log_likelihood, masks.double() * printed
    return log_likelihood, (masks & ~context).double()


def _log_subset(n: Tensor, s: Tensor, ratio: float | tuple[float, float], least: bool, most: bool) -> Tensor:
    """log probability of one set of s of n units, each kept with probability r (integrated over a range of
    r).

    ``least`` and ``most``: the rules that the unit with the smallest uniform draw is kept, and the one with
    the largest is not when there are two.
    """
    if isinstance(ratio, tuple):
        nodes, weights = np.polynomial.legendre.leggauss(min(200, int(n.max()) // 2 + 2))
        r = torch.from_numpy(ratio[0] + (ratio[1] - ratio[0]) * (nodes + 1) / 2)
        w = torch.from_numpy(weights / 2)
    else:
        r, w = torch.tensor([float(ratio)], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    n, s = n[:, None], s[:, None]
    terms = [torch.xlogy(s, r) + torch.xlogy(n - s, 1 - r)]
    low = least & (n >= 1)
    high = most & (n >= 2)
    terms[0] = torch.where((low & (s == 0)) | (high & (s == n)), -torch.inf, terms[0])
    size = torch.log(n.clamp(min=1))
    terms.append(torch.where(low & (s == 1), torch.xlogy(n, 1 - r) - size, -torch.inf))
    terms.append(torch.where(high & (s == n - 1), torch.xlogy(n, r) - size, -torch.inf))
    return torch.logsumexp(torch.stack(terms) + w.log(), dim=(0, 2))


def _read(units: Units, masks: Tensor, context: Tensor) -> tuple[Units, Tensor, Tensor]:
    """The units, those that ``context`` holds, and whether each mask can have that context (S,)."""
    cells = context.expand(masks.shape)
    chosen = units.pool(cells) & units.live
    possible = ((masks & units.spread(chosen)) == cells).flatten(1).all(-1)
    return units, chosen, possible


def _log(true: Tensor) -> Tensor:
    """0 where True, minus infinity where not, float64."""
    return torch.where(true, 0.0, -torch.inf).double()
