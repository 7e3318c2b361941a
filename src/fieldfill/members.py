r"""Members: realisations of a whole record that agree with its observations.

Windows are taken in order. Each is conditioned on the frames that the windows before have given this member, as if they
had been observed, and adds the frames that follow. The last quarter of a window is drawn again by the next one, which
knows the observations after it. So a member is one continuous realisation; blending independent draws would lose
variance where windows overlap.

*Conditional* and *exact* members are ``v + scale · r`` with v the filled field and r a Gaussian realisation that is 0
at observed cells. The scale turns the spread of r into the stated v_std, cell by cell. Hence the mean over many members
is v and their standard deviation v_std. They need the Gaussian skip.

*Weighted* members follow the paper's mixture window by window, with any denoiser. Their mean and spread are what the
mixture makes of them: near v, not equal to it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.model import Model
from fieldfill.multistep import Exact, Expectation, Solver, Weighted, conditional
from fieldfill.nn import GaussianSkip
from fieldfill.nn.gaussian import Law
from fieldfill.sample import AT_ONCE, single_step
from fieldfill.windows import Windows, fill_starts

__all__ = ["SAMPLERS", "Sampling", "draw_members", "missing_cells", "place_generator"]

SAMPLERS = ("conditional", "exact", "weighted")
PROBES = 32  # least number of realisations from which the spread of r is measured
CARRIED = 1e-3  # error variance granted to frames of the window before: small, yet the equations stay solvable
SCALES = (0.1, 10.0)  # least and largest scale

Guide = Callable[[Tensor, Tensor], Tensor]  # (x (B, C, T, H, W), missing, broadcastable) → x corrected where missing


@dataclass(frozen=True)
class Sampling:
    """How members are drawn.

    Attributes
    ----------
    sampler
        ``conditional`` (no differential equation), ``exact`` or ``weighted``, see `fieldfill.multistep`.
    solver
        of the differential equation, for the last two.
    weighting, contexts
        of the weighted sampler.
    """

    sampler: str = "conditional"
    solver: Solver = field(default_factory=Solver)
    weighting: str = "linear"
    contexts: int = 4

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise InputError(f"unknown sampler '{self.sampler}'; choose one of {', '.join(SAMPLERS)}")


def place_generator(seed: int, *place: int) -> Generator:
    """A random stream of one place of a record, the same whatever is drawn elsewhere."""
    state = np.random.SeedSequence([abs(seed), seed < 0, *place]).generate_state(1, np.uint64)
    return Generator().manual_seed(int(state[0] >> 1))


def missing_cells(model: Model, windows: Windows, sample: int) -> Tensor:
    """Cells (C, T, H, W) of one sample of a record that are to be filled."""
    return model.domain[:, None] & ~windows.visible(sample, 0, windows.record.shape[2])[1]


def draw_members(
    model: Model,
    windows: Windows,
    sample: int,
    mean: Tensor,
    std: Tensor,
    count: int,
    sampling: Sampling,
    seed: int,
    guide: Guide | None = None,
) -> Tensor:
    """Unitless members (N, C, T, H, W) of one sample of a record.

    ``mean`` and ``std`` (C, T, H, W) are the filled field and its standard deviation; ``guide`` steers each estimate.
    """
    walk = _Walk(model, windows, sample, seed)
    if sampling.sampler == "weighted":
        return walk.solve(count, sampling, mean, None, guide)
    if not isinstance(walk.skip, GaussianSkip):
        raise InputError(
            f"the sampler '{sampling.sampler}' needs a model with the Gaussian skip; choose the sampler 'weighted'"
        )
    total = count if sampling.sampler == "conditional" else 0
    kept, square = walk.residuals(walk.skip, max(total, PROBES), total)
    missing = missing_cells(model, windows, sample)
    scale = _scale(std, square, missing)
    if sampling.sampler == "exact":
        return walk.solve(count, sampling, mean, scale, guide)
    drawn = torch.where(missing, mean + scale * kept, mean)
    return drawn if guide is None else guide(drawn, missing)


class _Walk:
    """The windows of one sample in order, each with the frames that were drawn before."""

    def __init__(self, model: Model, windows: Windows, sample: int, seed: int) -> None:
        self.model, self.windows, self.sample, self.seed = model, windows, sample, seed
        self.skip = model.denoiser.skip
        self.length, (_, self.variables, self.frames, *self.grid) = windows.length, windows.record.shape
        self.starts = fill_starts(self.frames, self.length)

    def steps(self) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
        """Frames of each window, how many of them are drawn already, its values and observed cells (C, T, H, W)."""
        done = 0
        for start in self.starts:
            x, observed = self.windows.visible(self.sample, start)
            yield slice(start, start + self.length), max(0, done - start), x, observed
            done = start + self.length - self.length // 4

    def known(self, observed: Tensor, old: int) -> Tensor:
        """Known cells (C, T, H, W) of a window."""
        known = observed.clone()
        known[:, :old] = True
        return known

    def residuals(self, gaussian: GaussianSkip, total: int, keep: int) -> tuple[Tensor, Tensor]:
        """The first ``keep`` of ``total`` Gaussian realisations (N, C, T, H, W), and the mean square of all."""
        kept = torch.zeros(keep, self.variables, self.frames, *self.grid)
        square = torch.zeros(kept.shape[1:])
        r = torch.zeros(total, self.variables, self.length, *self.grid)
        begin = 0
        for frames, old, x, observed in self.steps():
            known = self.known(observed, old)
            law, own = gaussian.law_of(x, observed)
            r = torch.roll(r, begin - frames.start, dims=2)
            begin = frames.start
            r = torch.where(observed, 0, r)
            generator = place_generator(self.seed, self.sample, frames.start, 1)
            error = _error(law, own, observed)
            parts = [conditional(law, part, known, error, generator, own) for part in _portions(r)]
            r = torch.cat(parts)
            new = slice(frames.start + old, frames.stop)
            kept[:, :, new] = r[:keep, :, old:]
            square[:, new] = r[:, :, old:].square().mean(0)
        return kept, square

    def solve(self, count: int, sampling: Sampling, mean: Tensor, scale: Tensor | None, guide: Guide | None) -> Tensor:
        """Members (N, C, T, H, W) by the differential equation; ``scale`` None takes the weighted mixture."""
        members = mean.expand(count, *mean.shape).clone()
        for frames, old, x, observed in self.steps():
            known = self.known(observed, old)
            rows = [place_generator(self.seed, self.sample, frames.start, 2 + m) for m in range(count)]
            start = torch.stack([torch.randn(x.shape, generator=row) for row in rows])
            values = torch.where(observed, x, members[:, :, frames])
            size = len(_portions(start)[0])
            for first in range(0, count, size):
                part = slice(first, first + size)
                if scale is None:
                    estimate = self.weighted(sampling, values[part], known, rows[part])
                else:
                    estimate = self.exact(x, observed, values[part], known, mean[:, frames], scale[:, frames])
                if guide is not None:
                    estimate = _guided(estimate, guide, self.model.domain[:, None] & ~known)
                drawn = sampling.solver(self.model.denoiser.schedule, estimate, start[part], rows[part])
                members[part, :, frames.start + old : frames.stop] = drawn[:, :, old:]
        return members

    def exact(
        self, x: Tensor, observed: Tensor, values: Tensor, known: Tensor, mean: Tensor, scale: Tensor
    ) -> Expectation:
        assert isinstance(self.skip, GaussianSkip)
        law, own = self.skip.law_of(x, observed)
        return Exact(
            law,
            self.model.denoiser.schedule,
            values,
            known.expand_as(values),
            self.model.domain[:, None],
            mean.expand_as(values),
            scale.expand_as(values),
            _error(law, own, observed),
            own,
        )

    def weighted(self, sampling: Sampling, values: Tensor, known: Tensor, rows: list[Generator]) -> Expectation:
        model, everywhere = self.model, known.expand_as(values)
        seen = everywhere & model.domain[:, None]
        imputed = single_step(model.denoiser, values, seen, model.partition, model.ensemble, rows).mean
        return Weighted(
            model.denoiser,
            model.partition,
            model.bank,
            values,
            everywhere,
            imputed,
            rows,
            sampling.weighting,
            sampling.contexts,
        )


def _error(law: Law, own: Any, observed: Tensor) -> Tensor:
    """Error variance (C, T, H, W) of the Gaussian residual at known cells."""
    nugget = law.error_of(own).expand(1, *observed.shape)[0]
    return torch.where(observed, nugget, nugget.clamp(max=CARRIED))


def _guided(estimate: Expectation, guide: Guide, missing: Tensor) -> Expectation:
    return lambda t, x_t: guide(estimate(t, x_t), missing)


def _portions(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows (N, ...) in portions that fit into memory together."""
    return rows.split(max(1, AT_ONCE // rows[0].numel()))


def _scale(std: Tensor, square: Tensor, missing: Tensor) -> Tensor:
    """Ratio (C, T, H, W) of the stated standard deviation to that of the realisations; 1 where nothing is missing.

    Both are averaged over the missing cells of a neighbourhood of three frames, rows and columns, because a mean over
    few realisations is noisy.
    """
    ratio = _nearby(std.square() * missing) / _nearby(square * missing).clamp(min=1e-12)
    return torch.where(missing, ratio.sqrt().clamp(*SCALES), 1)


def _nearby(x: Tensor) -> Tensor:
    """Sums of x (C, T, H, W) over neighbourhoods of three cells in each direction."""
    return torch.nn.functional.avg_pool3d(x[None], 3, stride=1, padding=1, divisor_override=1)[0]
