r"""From a trained denoiser to the best estimate of the complete field: the single step.

Noise the observations as little as the schedule allows, evaluate the denoiser under K contexts drawn
from the observations, and average:

.. math:: E[x_0 | x_{obs}, M] \approx \frac1K \sum_k x_\theta(\delta, M_k \odot x_\delta, M_k)

Theorem 2 of the paper: the squared error is that of the information a context leaves out, plus a variance over
contexts that falls like 1/K. Balanced contexts (every observed cell left out equally often) make it fall faster, and
where few contexts exist all of them are taken, which is K = infinity.

Every row of a batch has a random stream of its own, so that its result does not depend on the rest of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.diffusion.denoiser import Denoiser, noised
from fieldfill.errors import InputError
from fieldfill.partition import Partition
from fieldfill.partition.protocol import DESIGNS

__all__ = ["AT_ONCE", "Ensemble", "Estimate", "density_matched", "row_generators", "single_step"]

# Cells given to the denoiser at a time: contexts and crops share its batches.
AT_ONCE = 2**20


@dataclass(frozen=True)
class Ensemble:
    """How contexts are drawn at inference.

    Attributes
    ----------
    count
        K, the number of contexts; 0 takes the observation mask itself as the only context.
    keep
        share of the observed cells in each context; None draws as in training.
    design
        ``balanced``, ``random`` or ``enumerated``, see `fieldfill.partition.Partition.contexts`.
    tolerance
        stop before ``count`` contexts once the standard error of the mean over contexts, in unitless data and averaged
        over the missing cells of a crop, is below this; None always takes ``count``. The error is that of random
        contexts, so balanced ones stop on the safe side.
    density
        share of all cells of a crop that a context should hold, that of training for instance; it replaces ``keep``
        crop by crop, so that a model meets inputs as dense as those it has learnt from.
    """

    count: int = 10
    keep: float | None = None
    design: str = "balanced"
    tolerance: float | None = None
    density: float | None = None

    def __post_init__(self) -> None:
        if self.count < 0 or self.design not in DESIGNS:
            raise InputError(
                f"contexts: count {self.count}, design '{self.design}'; give 0 or more, and one of {', '.join(DESIGNS)}"
            )
        for name in ("keep", "density"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"contexts: {name} {share} is a share; give a number above 0 and up to 1, or none")
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"contexts: tolerance {self.tolerance}; give a standard error above 0, or none")

    def __str__(self) -> str:
        if self.count == 0:
            return "all observations at once"
        share = "drawn as in training" if self.keep is None else f"of {self.keep:.0%} of the observations"
        if self.density is not None:
            share = f"of {self.density:.0%} of the cells"
        most = "" if self.tolerance is None else "up to "
        kind = "" if self.design == "random" else f"{self.design} "
        return f"the mean over {most}{self.count} {kind}contexts {share}"

    def draw(self, partition: Partition, observed: Tensor, generators: Sequence[Generator]) -> list[Tensor]:
        """Contexts (K_b, C, T, H, W) of each row of ``observed`` (B, C, T, H, W), drawn from its own generator."""
        if self.count == 0:
            return [row[None] for row in observed]
        keep: list[float | None] = [self.keep] * len(observed)
        if self.density is not None:
            keep = [*density_matched(observed, self.density)[0].tolist()]
        return [
            partition.contexts(row[None], self.count, generator, keep=share, design=self.design)[:, 0]
            for row, share, generator in zip(observed, keep, generators, strict=True)
        ]


@dataclass(frozen=True)
class Estimate:
    """Result of a single step for a batch of crops.

    Attributes
    ----------
    mean
        (B, C, T, H, W) mean over contexts, with the observed values in their places.
    between
        (B, C, T, H, W) variance between contexts: how much a single answer depends on its context. It is not the
        posterior variance. 0 at observed cells.
    variance
        (B, C, T, H, W) mean over contexts of the denoiser's own variance of x_0, 0 at observed cells; None if the
        denoiser does not give one.
    contexts
        (B,) number of contexts that were used.
    too_sparse
        (B,) bool, crops with fewer observations than `Ensemble.density` requires.
    """

    mean: Tensor
    between: Tensor
    variance: Tensor | None
    contexts: Tensor
    too_sparse: Tensor


def density_matched(observed: Tensor, density: float) -> tuple[Tensor, Tensor]:
    """Share of each row's observations (B,) that fills ``density`` of its cells, and where even all are too few (B,).

    With r_train and r_test the observed shares of training and test, and r_ctx the share of a training context,
    density = r_train r_ctx and the share to keep is r_train r_ctx / r_test. Where that exceeds 1 it is cut to 1.
    """
    available = observed.flatten(1).float().mean(1)
    wanted = density / available.clamp(min=1e-12)
    return wanted.clamp(max=1), wanted > 1


def row_generators(generator: Generator | Sequence[Generator], count: int) -> list[Generator]:
    """One generator per row: those given, or ``count`` new ones seeded from the only one."""
    if isinstance(generator, Generator):
        seeds = torch.randint(2**62, (count,), generator=generator).tolist()
        return [Generator().manual_seed(seed) for seed in seeds]
    assert len(generator) == count
    return list(generator)


@torch.no_grad()
def single_step(
    denoiser: Denoiser,
    x: Tensor,
    observed: Tensor,
    maps: Tensor,
    partition: Partition,
    ensemble: Ensemble,
    generator: Generator | Sequence[Generator],
    turn: int = 4,
) -> Estimate:
    """E[x_0 | observations] of crops x with ``observed`` cells, both (B, C, T, H, W), and maps (B, K, H, W).

    An ensemble with a tolerance looks at the standard error after every ``turn`` contexts.
    """
    generators = row_generators(generator, len(x))
    contexts = ensemble.draw(partition, observed, generators)
    noise = torch.stack([torch.randn(row.shape, generator=own) for row, own in zip(x, generators)]).to(x)
    t = torch.full((len(x),), denoiser.schedule.delta, dtype=x.dtype, device=x.device)
    sums = _Sums(denoiser, t, noised(denoiser.schedule, t, x, noise), contexts, maps)
    if ensemble.tolerance is None:
        sums.add(list(range(len(x))), ensemble.count)
    else:
        missing = ~observed
        rows = list(range(len(x)))
        while rows:
            sums.add(rows, turn)
            error = sums.standard_error(missing)
            rows = [b for b in rows if sums.left(b) and not error[b] < ensemble.tolerance]
    too_sparse = torch.zeros(len(x), dtype=torch.bool)
    if ensemble.density is not None and ensemble.count:
        too_sparse = density_matched(observed, ensemble.density)[1]
    return Estimate(
        torch.where(observed, x, sums.mean().to(x)),
        torch.where(observed, 0, sums.between().to(x)),
        None if sums.variance is None else torch.where(observed, 0, sums.over(sums.variance).to(x)),
        sums.count.clone(),
        too_sparse,
    )


class _Sums:
    """Running sums over contexts, each row with as many of its contexts as it has been given."""

    def __init__(self, denoiser: Denoiser, t: Tensor, x_delta: Tensor, contexts: list[Tensor], maps: Tensor) -> None:
        self.denoiser, self.t, self.x_delta, self.contexts, self.maps = denoiser, t, x_delta, contexts, maps
        self.count = torch.zeros(len(x_delta), dtype=torch.long)
        # Squares of nearly equal numbers are subtracted: double precision.
        self.total = torch.zeros(x_delta.shape, dtype=torch.float64)
        self.squares = torch.zeros_like(self.total)
        self.variance: Tensor | None = None

    def left(self, row: int) -> int:
        return len(self.contexts[row]) - int(self.count[row])

    def add(self, rows: list[int], count: int) -> None:
        """Takes the next contexts, up to ``count``, of some rows."""
        pairs = [(b, self.count[b] + k) for b in rows for k in range(min(max(count, 1), self.left(b)))]
        each = self.x_delta[0].numel()
        step = max(1, AT_ONCE // each)
        for first in range(0, len(pairs), step):
            part = pairs[first : first + step]
            index = torch.tensor([b for b, _ in part])
            context = torch.stack([self.contexts[b][k] for b, k in part])
            estimate, variance = self.denoiser.predict(self.t[index], self.x_delta[index], context, self.maps[index])
            self.total.index_add_(0, index, estimate.double())
            self.squares.index_add_(0, index, estimate.double().square())
            self.count.index_add_(0, index, torch.ones_like(index))
            if variance is not None:
                if self.variance is None:
                    self.variance = torch.zeros_like(self.total)
                self.variance.index_add_(0, index, variance.double())

    def over(self, total: Tensor) -> Tensor:
        return total / self.count.view(-1, 1, 1, 1, 1)

    def mean(self) -> Tensor:
        return self.over(self.total)

    def between(self) -> Tensor:
        more = (self.count / (self.count - 1).clamp(min=1)).view(-1, 1, 1, 1, 1)
        return (self.over(self.squares) - self.mean().square()).clamp(min=0) * more

    def standard_error(self, missing: Tensor) -> Tensor:
        """Root over the missing cells of each row of the mean of between / K, (B,); infinite for one context."""
        cells = missing.flatten(1).sum(1).clamp(min=1)
        error = torch.where(missing, self.over(self.between()), 0).flatten(1).sum(1) / cells
        return torch.where(self.count > 1, error.sqrt(), torch.inf)
