r"""Exposure learnt from draws: a small network predicts the query from the context alone.

Crops are cut into two groups. Contexts and queries drawn on the first teach a classifier
:math:`g(\text{features of } i, ctx) \approx P(qry_i | ctx)` for cells i outside the context; it is judged on
the *missing* cells of the second group, where fills will be made. If missing cells can be distinguished from queried
ones, g is 0 there and the principle is broken, however healthy the marginal frequency of queries.

Classes are weighted to equal size for training (a 1 % mask has few queries) and the prior odds are put back
after. A classifier that sees less than everything can only overstate the exposure of missing cells: with g =
E[P | features], E[g (1 - g)] >= E[P (1 - P)].
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fieldfill.data.pieces import at_once
from fieldfill.errors import InputError
from fieldfill.partition import Partition
from fieldfill.partition.exposure.features import describe

__all__ = ["AuditSettings", "Exposures", "Masks", "estimate"]


@dataclass(frozen=True)
class AuditSettings:
    """How exposure is measured, and what counts as unlearnable.

    Attributes
    ----------
    crops, tested
        crops that the audit of exposure and the test of independence look at, at most.
    bank
        observation masks that are kept, to draw contexts from.
    cells, slice_cells, epochs
        of the classifier: cells that it learns from and is judged on, cells of each class from one slice, passes.
    contexts, distinct_masks
        contexts of the exact audit, and number of distinct masks up to which it is made.
    zero
        relative exposure below which a missing cell counts as unlearnable.
    tolerance
        difference of shares that is noise.
    uniform
        ratio of the largest to the smallest exposure that is not held against a partition.
    """

    crops: int = 500
    tested: int = 256
    bank: int = 256
    cells: int = 300_000
    slice_cells: int = 128
    epochs: int = 12
    contexts: int = 96
    distinct_masks: int = 64
    zero: float = 0.1
    tolerance: float = 0.03
    uniform: float = 20.0


@dataclass(frozen=True)
class Masks:
    """Observation masks of some crops of a data set.

    Attributes
    ----------
    observed
        (N, C, T, H, W) bool.
    domain
        (N, C, H, W) bool.
    place
        (N, H, W) number of each cell in the flattened grid of the data set.
    grid
        bool, the domain (C, rows, columns) of the whole data set.
    never
        bool, as ``grid``: domain cells that are never observed.
    """

    observed: Tensor
    domain: Tensor
    place: Tensor
    grid: Tensor
    never: Tensor

    def __post_init__(self) -> None:
        if self.observed.ndim != 5 or self.observed.dtype != torch.bool:
            shape = tuple(self.observed.shape)
            raise InputError(f"masks {self.observed.dtype} {shape}: give bool masks (N, C, T, H, W)")

    @classmethod
    def of(cls, observed: Tensor, domain: Tensor) -> "Masks":
        """Masks (N, C, T, H, W) of whole frames on a grid with ``domain`` (C, H, W)."""
        if observed.ndim != 5 or domain.shape != observed[0, :, 0].shape:
            raise InputError(
                f"masks {tuple(observed.shape)}, domain {tuple(domain.shape)}: "
                "give bool masks (N, C, T, H, W) and a domain (C, H, W)"
            )
        count, _, _, rows, columns = observed.shape
        place = torch.arange(rows * columns).view(1, rows, columns).expand(count, -1, -1)
        never = domain & ~observed.any(2).any(0)
        return cls(observed, domain.expand(count, -1, -1, -1), place, domain, never)

    def __len__(self) -> int:
        return len(self.observed)

    def part(self, chosen: Tensor) -> "Masks":
        return Masks(self.observed[chosen], self.domain[chosen], self.place[chosen], self.grid, self.never)

    def cell(self, crop: Tensor, variable: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Numbers (n,) of cells of crops in the flattened (C, rows, columns) grid of the data set."""
        return variable * self.grid[0].numel() + self.place[crop, row, column]

    def seen(self) -> Tensor:
        """How often each cell of each crop is observed in any of them, (N, C, H, W)."""
        variables, cells = len(self.grid), self.grid[0].numel()
        place = (self.place[:, None] + cells * torch.arange(variables)[:, None, None]).flatten()
        frames = self.observed.shape[2]
        total = torch.zeros(variables * cells).index_add_(0, place, self.observed.sum(2).flatten().float())
        count = torch.zeros(variables * cells).index_add_(0, place, torch.full(place.shape, float(frames)))
        return (total / count.clamp(min=1))[place].view(self.domain.shape)


@dataclass(frozen=True)
class Exposures:
    """Results of the classifier on held-out crops.

    ``exposure`` (n,): g at missing cells; ``cell`` (n,): their number in the flattened (C, H, W) grid;
    ``window`` (n,): the draw they belong to; ``marginal``: share of queries among all cells outside the
    context; ``kept``: mean share of the observed cells in the context; ``gap``: mean ``|prediction - outcome|``
    over tenths of the predictions; ``unsplit``: share of crops that could not be split.
    """

    exposure: Tensor
    cell: Tensor
    window: Tensor
    marginal: float
    kept: float
    gap: float
    unsplit: float


@dataclass(frozen=True)
class _Draws:
    """Slices with their features (S, H, W, F), label and candidate cells (S, H, W), and place (S,)."""

    features: Tensor
    query: Tensor
    outside: Tensor
    missing: Tensor
    variable: Tensor
    window: Tensor
    kept: float
    unsplit: float


def estimate(
    partition: Partition, masks: Masks, generator: Generator, settings: AuditSettings | None = None
) -> Exposures:
    """Estimates the exposure of the missing cells of masks under ``partition``."""
    settings = settings or AuditSettings()
    learn, judge = _groups(len(masks), generator)
    training = _draw(partition, masks.part(learn), settings.cells, generator)
    trial = _draw(partition, masks.part(judge), settings.cells, generator)
    label = trial.query[trial.outside]
    marginal = float(label.float().mean()) if len(label) else 0.0
    g = (
        torch.zeros(trial.outside.shape)
        if not training.query.any()
        else _classify(training, trial, settings, generator)
    )
    gap = _calibration_gap(g[trial.outside], label)
    s, y, x = trial.missing.nonzero(as_tuple=True)
    cell = masks.cell(judge[trial.window[s]], trial.variable[s], y, x)
    return Exposures(g[s, y, x], cell, s, marginal, trial.kept, gap, trial.unsplit)


def _groups(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Two thirds of the crops to learn from, one third to judge on, in runs: neighbours are alike."""
    runs = min(count, 12)
    label = torch.arange(count) * runs // count
    order = torch.randperm(runs, generator=generator)
    judged = torch.isin(label, order[: max(1, runs // 3)])
    return (~judged).nonzero().squeeze(-1), judged.nonzero().squeeze(-1)


def _draw(partition: Partition, masks: Masks, cells: int, generator: Generator) -> _Draws:
    N, C, T, H, W = masks.observed.shape
    seen = masks.seen()
    slices = max(8, min(cells // (H * W), 2 * N * C * T))
    window = torch.cat([torch.randperm(N, generator=generator) for _ in range(-(-slices // N))])[:slices]
    variable = torch.randint(C, (slices,), generator=generator)
    frame = torch.randint(T, (slices,), generator=generator)
    parts: list[list[Tensor]] = []
    kept = unsplit = 0.0
    for chunk in torch.arange(slices).split(max(1, min(32, at_once(C * T * H * W)))):
        mask, domain = masks.observed[window[chunk]], masks.domain[window[chunk]]
        context, query = partition.split(mask, generator)
        usable = query.flatten(1).any(-1)
        unsplit += float((~usable).sum()) / slices
        kept += float((context.flatten(1).sum(-1) / mask.flatten(1).sum(-1).clamp(min=1)).sum()) / slices
        c, t, rows = variable[chunk], frame[chunk], torch.arange(len(chunk))
        # A crop that is never split teaches nothing: its slices stay, without a query.
        here, there = context[rows, c, t], domain[rows, c]
        parts.append(
            [
                describe(context, c, t, domain, seen[window[chunk]]),
                query[rows, c, t] & ~here,
                there & ~here,
                there & ~mask[rows, c, t],
            ]
        )
    features, query, outside, missing = (torch.cat(p) for p in zip(*parts, strict=True))
    return _Draws(features, query, outside, missing, variable, window, kept, unsplit)


def _sample(draws: _Draws, cells: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Training cells: features (n, F), labels (n,), weights (n,) that restore the counts of each slice.

    At most ``cells`` cells of each class are taken from a slice.
    """
    x, y, w = [], [], []
    for positive in (True, False):
        pool = (draws.query if positive else draws.outside & ~draws.query).flatten(1)
        count = pool.sum(-1, keepdim=True)
        score = torch.rand(pool.shape, generator=generator) * pool
        take = min(cells, pool.shape[1])
        best, where = score.topk(take, dim=-1)
        real = best > 0
        s = torch.arange(len(pool))[:, None].expand_as(where)
        x.append(draws.features.flatten(1, 2)[s[real], where[real]])
        w.append((count / real.sum(-1, keepdim=True).clamp(min=1)).expand_as(where)[real])
        y.append(torch.full((int(real.sum()),), float(positive)))
    return torch.cat(x), torch.cat(y), torch.cat(w)


def _classify(training: _Draws, trial: _Draws, settings: AuditSettings, generator: Generator) -> Tensor:
    """P(query) for all cells of the trial slices, (S, H, W)."""
    x, y, w = _sample(training, settings.slice_cells, generator)
    positive, negative = (w * y).sum(), (w * (1 - y)).sum()
    prior = torch.log(positive / negative.clamp(min=1e-9))
    balanced = w * torch.where(y > 0, 0.5 / positive, 0.5 / negative.clamp(min=1e-9))
    centre, scale = x.mean(0), x.std(0).clamp(min=1e-4)
    model = _network(x.shape[1], generator)
    _fit(model, (x - centre) / scale, y, balanced / balanced.mean(), settings.epochs, generator)
    with torch.no_grad():
        parts = [model((f - centre) / scale).squeeze(-1) for f in trial.features.flatten(0, 2).split(65536)]
    logit = torch.cat(parts).view(trial.outside.shape) + prior
    return torch.sigmoid(_recalibrated(logit, trial))


def _network(inputs: int, generator: Generator) -> nn.Sequential:
    # Uninitialised layers: the default initialisation would draw from the global random state.
    sizes = [(inputs, 48), (48, 48), (48, 1)]
    linear = [nn.utils.skip_init(nn.Linear, a, b) for a, b in sizes]
    model = nn.Sequential(linear[0], nn.SiLU(), linear[1], nn.SiLU(), linear[2])
    with torch.no_grad():
        for layer in linear:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features**0.5)
            layer.bias.zero_()
    return model


def _fit(model: nn.Module, x: Tensor, y: Tensor, w: Tensor, epochs: int, generator: Generator) -> None:
    batch = min(2048, max(256, len(x) // 16), len(x))
    steps = min(600, max(200, epochs * len(x) // batch))
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        pick = torch.randint(len(x), (batch,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(model(x[pick]).squeeze(-1), y[pick], w[pick])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def _recalibrated(logit: Tensor, trial: _Draws) -> Tensor:
    """a * logit + b with a, b fitted by Newton's method on the held-out cells outside the context."""
    z, y = logit[trial.outside].double(), trial.query[trial.outside].double()
    if len(z) == 0 or not y.any():
        return logit
    design = torch.stack([z, torch.ones_like(z)])
    ab = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for _ in range(15):
        p = torch.sigmoid(ab @ design)
        hessian = (design * (p * (1 - p))) @ design.T + 1e-3 * torch.eye(2, dtype=torch.float64)
        step = torch.linalg.solve(hessian, design @ (y - p) - 1e-3 * (ab - torch.tensor([1.0, 0.0])))
        ab = ab + step.clamp(-1, 1)
    return (ab[0] * logit + ab[1]).float()


def _calibration_gap(g: Tensor, label: Tensor) -> float:
    if len(g) == 0:
        return 0.0
    order = g.argsort()
    tenths = [(float(g[i].mean()), float(label[i].float().mean())) for i in order.tensor_split(10) if len(i)]
    return sum(abs(p - q) for p, q in tenths) / len(tenths)
