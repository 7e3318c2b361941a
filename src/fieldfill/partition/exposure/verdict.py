r"""The exposure audit: which missing cells a partition can teach, from the masks alone.

A missing cell (a domain cell that its crop does not observe) is *unlearnable* under a partition when its
exposure :math:`P(qry_i | ctx)` is statistically zero: below a tenth of the mean exposure of all cells outside
the context. The rule is relative because the level is the density of the data (0.3 % for good contexts on a 1
% pixel mask), and a tenth is far above the classifier's noise and far below what any matched partition gives.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.partition import Partition
from fieldfill.partition.exposure.estimate import AuditSettings, Exposures, Masks, estimate
from fieldfill.partition.exposure.exact import NoClosedForm, exact_exposure

__all__ = ["LEAST_CROPS", "Audit", "audit", "compare"]

# Crops that an audit needs: it learns from some and judges on others.
LEAST_CROPS = 3


@dataclass(frozen=True)
class Audit:
    """Exposure of the missing cells of a data set under one partition.

    Attributes
    ----------
    per_cell : Tensor
        (C, H, W) mean exposure of each cell over the contexts and frames in which it is missing; NaN outside
        the domain and for cells that are never missing in the crops judged.
    minimum, median : float
        Of ``per_cell``, the minimum as its 2 % quantile (single cells are noise).
    max_over_min : float
        Uniformity: 98 % over 2 % quantile of the exposures of missing cells; inf where the latter is 0.
    unlearnable_share : float
        Share of missing cells, over crops and frames, whose exposure is statistically zero.
    unsupported : Tensor
        (C, H, W) bool: cells never observed, and those unlearnable in more than half of the cases.
    never_observed : Tensor
        (C, H, W) bool: domain cells that no crop observes; no partition can teach them.
    error : float
        Monte-Carlo error of the mean exposure: two standard errors over crops plus the calibration gap.
    kept : float
        Mean share of the observed cells that the contexts keep.
    unsplit : float
        Share of crops that the partition cannot split.
    """

    partition: str
    method: Literal["exact", "estimated"]
    per_cell: Tensor
    minimum: float
    median: float
    max_over_min: float
    unlearnable_share: float
    unsupported: Tensor
    never_observed: Tensor
    verdict: Literal["ok", "partly", "unlearnable"]
    words: str
    error: float
    mean: float
    kept: float
    unsplit: float


def audit(
    partition: Partition,
    masks: Masks,
    generator: Generator,
    name: str | None = None,
    settings: AuditSettings | None = None,
) -> Audit:
    """Audits ``partition`` on the masks of a data set.

    Exact when the data set repeats few distinct masks and the partition's law is known; estimated otherwise.
    """
    settings = settings or AuditSettings()
    if len(masks) < LEAST_CROPS:
        raise InputError(
            f"{len(masks)} crops are too few for an audit, which needs {LEAST_CROPS}; "
            "choose a shorter window or a smaller crop"
        )
    cases = _exact_cases(partition, masks, settings, generator)
    method: Literal["exact", "estimated"] = "estimated" if cases is None else "exact"
    if cases is None:
        cases = estimate(partition, masks, generator, settings)
    return _summary(name or type(partition).__name__, method, cases, masks.grid, masks.never, settings.zero)


def compare(
    candidates: dict[str, Partition], masks: Masks, generator: Generator, settings: AuditSettings | None = None
) -> tuple[str, dict[str, Audit]]:
    """Audits all candidates; returns the name of the recommended one and the audits.

    Recommended is the smallest unlearnable share; among those within a few percent of it, uniform exposure
    (within a factor of two of the most uniform, or 20); among those, contexts that keep most of the observed
    cells. Of equals the first given is taken.
    """
    settings = settings or AuditSettings()
    audits = {name: audit(p, masks, generator, name, settings) for name, p in candidates.items()}
    left = [n for n in audits if audits[n].unsplit <= 0.9] or list(audits)
    least = min(audits[n].unlearnable_share for n in left)
    left = [n for n in left if audits[n].unlearnable_share <= least + settings.tolerance]
    even = min(audits[n].max_over_min for n in left)
    left = [n for n in left if audits[n].max_over_min <= max(2 * even, settings.uniform)]
    most = max(audits[n].kept for n in left)
    return next(n for n in left if audits[n].kept >= most - settings.tolerance), audits


def _exact_cases(partition: Partition, masks: Masks, settings: AuditSettings, generator: Generator) -> Exposures | None:
    """Exact exposures at the missing cells of a sample of crops, or None where they cannot be had."""
    observed = masks.observed
    key = torch.randn(observed[0].numel(), generator=generator, dtype=torch.float64)
    code = torch.stack([mask.flatten().double() @ key for mask in observed])
    _, which, count = code.unique(return_inverse=True, return_counts=True)
    if len(count) > settings.distinct_masks or len(observed) < 4 * len(count):
        return None
    first = torch.stack([(which == k).nonzero()[0, 0] for k in range(len(count))])
    law = (observed[first], count.double() / len(observed))
    pick = torch.randint(len(observed), (settings.contexts,), generator=generator)
    context, query = partition.split(observed[pick], generator)
    try:
        exposure = torch.stack([exact_exposure(partition, law, c) for c in context])
    except NoClosedForm:
        return None
    outside = masks.domain[pick, :, None] & ~context
    missing = masks.domain[pick, :, None] & ~observed[pick]
    k, c, _, y, x = missing.nonzero(as_tuple=True)
    cell = masks.cell(pick[k], c, y, x)
    kept = context.flatten(1).sum(-1) / observed[pick].flatten(1).sum(-1).clamp(min=1)
    unsplit = 1 - float(query.flatten(1).any(-1).float().mean())
    marginal = float(exposure[outside].mean()) if outside.any() else 0.0
    return Exposures(exposure[missing], cell, k, marginal, float(kept.mean()), 0.0, unsplit)


def _summary(
    name: str, method: Literal["exact", "estimated"], cases: Exposures, domain: Tensor, never: Tensor, least: float
) -> Audit:
    size = domain.numel()
    g = cases.exposure.double()
    zero = (g < least * cases.marginal) | (g == 0) | never.flatten()[cases.cell]
    count = torch.zeros(size, dtype=torch.float64).index_add_(0, cases.cell, torch.ones_like(g))
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, cases.cell, g)
    zeros = torch.zeros(size, dtype=torch.float64).index_add_(0, cases.cell, zero.double())
    per_cell = torch.where(domain, (total / count).view(domain.shape), torch.nan)
    unsupported = domain & (never | (zeros > 0.5 * count).view(domain.shape))
    share = float(zero.double().mean()) if len(g) else 0.0
    low, middle = _quantiles(per_cell[per_cell.isfinite()], 0.02, 0.5)
    bottom, top = _quantiles(g, 0.02, 0.98)
    verdict: Literal["ok", "partly", "unlearnable"] = "ok"
    if share > 0.05 or bool(never.any()) or cases.unsplit > 0.5:
        verdict = "partly"
    if share > 0.5 or cases.unsplit > 0.95:
        verdict = "unlearnable"
    return Audit(
        partition=name,
        method=method,
        per_cell=per_cell.float(),
        minimum=low,
        median=middle,
        max_over_min=top / bottom if bottom > 0 else float("inf"),
        unlearnable_share=share,
        unsupported=unsupported,
        never_observed=never,
        verdict=verdict,
        words=_words(name, verdict, share, middle, cases, never, unsupported.sum() / domain.sum()),
        error=_error(g, cases),
        mean=float(g.mean()) if len(g) else float("nan"),
        kept=cases.kept,
        unsplit=cases.unsplit,
    )


def _words(
    name: str, verdict: str, share: float, median: float, cases: Exposures, never: Tensor, flagged: Tensor
) -> str:
    """What was found. ``share`` is one of missing values, ``flagged`` one of domain cells."""
    text = {
        "ok": f"'{name}' teaches every gap: a missing value is queried with probability {median:.2g}.",
        "partly": f"'{name}' cannot teach {share:.0%} of the missing values. "
        f"Cells where that holds most of the time are flagged: {flagged:.0%} of the domain.",
        "unlearnable": f"'{name}' does not fit these gaps: {share:.0%} of the missing values are never queried.",
    }[verdict]
    if not len(cases.exposure):
        text = f"'{name}': nothing is missing inside the domain of the crops judged."
    if cases.unsplit > 0.05:
        text += f" {cases.unsplit:.0%} of the crops cannot be split."
    if never.any():
        text += f" {int(never.sum())} domain cells are never observed: no partition can teach them."
    return text


def _error(g: Tensor, cases: Exposures) -> float:
    if not len(g):
        return 0.0
    windows = int(cases.window.max()) + 1
    count = torch.zeros(windows, dtype=torch.float64).index_add_(0, cases.window, torch.ones_like(g))
    total = torch.zeros(windows, dtype=torch.float64).index_add_(0, cases.window, g)
    # Ratio estimator: crops weigh by their number of missing cells.
    residual = total - g.mean() * count
    return float(2 * residual.square().sum().sqrt() / count.sum()) + cases.gap


def _quantiles(values: Tensor, *levels: float) -> list[float]:
    if not len(values):
        return [float("nan")] * len(levels)
    ordered = values.sort().values
    return [float(ordered[round(level * (len(ordered) - 1))]) for level in levels]
