r"""Members: realisations of a whole record that agree with its observations.

Crops are taken in order. Each is conditioned on the frames that the crops before have given this member, as if they
had been observed, and adds the frames that follow. The last quarter of a crop is drawn again by the next one, which
depends on the observations after it. So a member is one continuous realisation; blending independent draws would lose
variance where crops overlap.

*Conditional* and *exact* members are ``v + scale · r`` with v the filled field and r a Gaussian realisation that is 0
at observed cells. The scale turns the spread of r into the stated v_std, cell by cell. Hence the mean over many members
is v and their standard deviation v_std. They need an estimator whose law can be drawn from.

*Weighted* members follow the paper's mixture crop by crop, with any denoiser. Their mean and spread are what the
mixture makes of them: near v, not equal to it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.errors import InputError
from fieldfill.estimators.base import Law
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import AT_ONCE, Ensemble, single_step
from fieldfill.sampling.solvers import Exact, Expectation, Solver, Weighted, residual_given
from fieldfill.seeds import place_stream

__all__ = ["SAMPLERS", "Sampling", "Walk", "draw_members", "missing_cells"]

# Samplers of realisations; another one is a name here and a case of `draw_members`.
SAMPLERS = ("conditional", "exact", "weighted")

Guide = Callable[[Tensor, Tensor], Tensor]  # (x (B, C, T, H, W), missing, broadcastable) → x corrected where missing


class FillModel(Protocol):
    """What drawing needs of a fitted model; see `fieldfill.workflow.model.Model`."""

    @property
    def denoiser(self) -> Denoiser: ...
    @property
    def partition(self) -> Partition: ...
    @property
    def ensemble(self) -> Ensemble: ...
    @property
    def bank(self) -> Tensor: ...


@dataclass(frozen=True)
class Sampling:
    """How members are drawn.

    Attributes
    ----------
    sampler
        ``conditional`` (no differential equation), ``exact`` or ``weighted``, see `fieldfill.sampling.solvers`.
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


def missing_cells(crops: Crops, sample: int) -> Tensor:
    """Cells (C, T, H, W) of one sample of a record that are to be filled."""
    return crops.domain[:, None] & ~crops.frames(sample, 0, crops.record.shape[2])[1]


def draw_members(
    model: FillModel,
    crops: Crops,
    sample: int,
    mean: Tensor,
    std: Tensor,
    count: int,
    sampling: Sampling,
    seed: int,
    guide: Guide | None = None,
    probes: int = 32,
) -> Tensor:
    """Unitless members (N, C, T, H, W) of one sample of a record.

    ``mean`` and ``std`` (C, T, H, W) are the filled field and its standard deviation; ``guide`` steers each estimate.
    The spread of the realisations is measured from at least ``probes`` of them.
    """
    walk = Walk(model, crops, sample, seed)
    if sampling.sampler == "weighted":
        return walk.solve(count, sampling, mean, None, guide)
    if not model.denoiser.chain.can_draw:
        raise InputError(
            f"the sampler '{sampling.sampler}' needs a model with the Gaussian estimator; choose the sampler 'weighted'"
        )
    total = count if sampling.sampler == "conditional" else 0
    kept, square = walk.residuals(max(total, probes), total)
    missing = missing_cells(crops, sample)
    scale = _scale(std, square, missing)
    if sampling.sampler == "exact":
        return walk.solve(count, sampling, mean, scale, guide)
    drawn = torch.where(missing, mean + scale * kept, mean)
    return drawn if guide is None else guide(drawn, missing)


class _Mosaic:
    """The crops that cover whole frames, and the blend of what they give."""

    def __init__(self, crops: Crops) -> None:
        self.crops, tiling = crops, crops.tiling
        _, rows, columns = tiling.starts
        self.spots = [(row, column) for row in rows for column in columns]
        weights, totals = (
            [torch.from_numpy(along(axis)).float() for axis in (1, 2)] for along in (tiling.weights, tiling.totals)
        )
        self._weights, self._totals = weights[0][:, None] * weights[1], totals[0][:, None] * totals[1]

    def cut(self, whole: Tensor, spot: tuple[int, int]) -> Tensor:
        """The part (..., h, w) of whole frames (..., H, W)."""
        return self.crops.cut(whole, (0, 0, *spot))

    def blend(self, parts: Iterable[Tensor]) -> Tensor:
        """Whole frames (..., H, W) from the parts (..., h, w) of all spots, in their order."""
        _, rows, columns = self.crops.axes
        total: Tensor | None = None
        for (row, column), part in zip(self.spots, parts):
            if len(self.spots) == 1:
                return part
            if total is None:
                total = part.new_zeros(*part.shape[:-2], rows.size, columns.size)
            for mine, there in rows.overlap(row, 0, rows.size):
                for ours, where in columns.overlap(column, 0, columns.size):
                    total[..., there, where] += (self._weights * part)[..., mine, ours]
        assert total is not None
        return total / self._totals


class Walk:
    """The crops of one sample in the order of time, each with the frames that were drawn before."""

    def __init__(self, model: FillModel, crops: Crops, sample: int, seed: int) -> None:
        self.model, self.crops, self.sample, self.seed = model, crops, sample, seed
        self.length, (_, self.variables, self.frames, *self.grid) = crops.length, crops.record.shape
        self.mosaic = _Mosaic(crops)
        self.free = None if len(self.mosaic.spots) == 1 else self._free_field()

    def _free_field(self) -> Law | None:
        rows, columns = self.grid
        return self.model.denoiser.chain.free_field((rows, columns), self.crops.record.periodic)

    def steps(self) -> Iterator[tuple[slice, int, Tensor, Tensor]]:
        """Frames of each crop, how many of them are drawn already, its values and observed cells (C, T, H, W)."""
        done = 0
        for start in self.crops.tiling.starts[0]:
            x, observed = self.crops.frames(self.sample, start, start + self.length)
            yield slice(start, start + self.length), max(0, done - start), x, observed
            done = start + self.length - self.length // 4

    def known(self, observed: Tensor, old: int) -> Tensor:
        """Known cells (C, T, H, W) of a crop."""
        known = observed.clone()
        known[:, :old] = True
        return known

    def laws(self, x: Tensor, observed: Tensor) -> list[Law]:
        """The law of each crop of a crop."""
        cuts = [(self.mosaic.cut(x, spot), self.mosaic.cut(observed, spot)) for spot in self.mosaic.spots]
        laws = [self.model.denoiser.chain.law(*cut) for cut in cuts]
        assert all(law is not None for law in laws)
        return [law for law in laws if law is not None]

    def residuals(self, total: int, keep: int) -> tuple[Tensor, Tensor]:
        """The first ``keep`` of ``total`` Gaussian realisations (N, C, T, H, W), and the mean square of all."""
        kept = torch.zeros(keep, self.variables, self.frames, *self.grid)
        square = torch.zeros(kept.shape[1:])
        r = torch.zeros(total, self.variables, self.length, *self.grid)
        begin = 0
        for frames, old, x, observed in self.steps():
            known = self.known(observed, old)
            r = torch.roll(r, begin - frames.start, dims=2)
            begin = frames.start
            r = torch.where(observed, 0, r)
            generator = place_stream(self.seed, self.sample, frames.start, 1)
            laws = self.laws(x, observed)
            r = torch.cat([self.conditional(laws, part, known, observed, generator) for part in _portions(r)])
            new = slice(frames.start + old, frames.stop)
            kept[:, :, new] = r[:keep, :, old:]
            square[:, new] = r[:, :, old:].square().mean(0)
        return kept, square

    def conditional(self, laws: list[Law], r: Tensor, known: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        """Gaussian fields (N, C, T, H, W) that agree with r at the known cells; see `conditional`.

        A free draw is one field on the whole grid, so that members have no seams; its correction is blended.
        """
        error = self.mosaic.blend(_error(law, self.mosaic.cut(observed, spot)) for law, spot in self._each(laws))
        z = (laws[0] if self.free is None else self.free).draw(len(r), generator)
        e = error.sqrt() * torch.randn(z.shape, generator=generator)
        lacking = r - z - e

        def corrections() -> Iterator[Tensor]:
            for law, spot in self._each(laws):
                y, seen, noise = (self.mosaic.cut(part, spot) for part in (lacking, known.expand_as(z), error))
                yield law.mean(residual_given(y, seen, noise - law.error))

        return torch.where(known, r, z + self.mosaic.blend(corrections()))

    def _each(self, laws: list[Law]) -> Iterator[tuple[Law, tuple[int, int]]]:
        return zip(laws, self.mosaic.spots)

    def solve(self, count: int, sampling: Sampling, mean: Tensor, scale: Tensor | None, guide: Guide | None) -> Tensor:
        """Members (N, C, T, H, W) by the differential equation; ``scale`` None takes the weighted mixture."""
        members = mean.expand(count, *mean.shape).clone()
        domain = self.crops.domain[:, None]
        for frames, old, x, observed in self.steps():
            known = self.known(observed, old)
            rows = [place_stream(self.seed, self.sample, frames.start, 2 + m) for m in range(count)]
            start = torch.stack([torch.randn(x.shape, generator=row) for row in rows])
            values = torch.where(observed, x, members[:, :, frames])
            size = len(_portions(start)[0])
            for first in range(0, count, size):
                part = slice(first, first + size)
                if scale is None:
                    estimate = self.weighted(sampling, frames.start, values[part], known, rows[part])
                else:
                    estimate = self.exact(x, observed, values[part], known, mean[:, frames], scale[:, frames])
                if guide is not None:
                    estimate = _guided(estimate, guide, domain & ~known)
                drawn = sampling.solver(self.model.denoiser.schedule, estimate, start[part], rows[part])
                members[part, :, frames.start + old : frames.stop] = drawn[:, :, old:]
        return members

    def _blended(self, estimates: list[Expectation]) -> Expectation:
        """An estimate of whole frames from those of all crops."""

        def estimate(t: Tensor, x_t: Tensor) -> Tensor:
            parts = (own(t, self.mosaic.cut(x_t, spot)) for own, spot in zip(estimates, self.mosaic.spots))
            return self.mosaic.blend(parts)

        return estimate

    def exact(
        self, x: Tensor, observed: Tensor, values: Tensor, known: Tensor, mean: Tensor, scale: Tensor
    ) -> Expectation:
        domain = self.crops.domain[:, None]
        parts = [part.expand_as(values) for part in (values, known, domain, mean, scale)]
        estimates: list[Expectation] = []
        for law, spot in self._each(self.laws(x, observed)):
            own, seen, inside, centre, width = (self.mosaic.cut(part, spot) for part in parts)
            error = _error(law, self.mosaic.cut(observed, spot))
            schedule = self.model.denoiser.schedule
            estimates.append(Exact(law, schedule, own, seen, inside, centre, width, error))
        return self._blended(estimates)

    def weighted(
        self, sampling: Sampling, start: int, values: Tensor, known: Tensor, rows: list[Generator]
    ) -> Expectation:
        model, everywhere = self.model, known.expand_as(values)
        estimates: list[Expectation] = []
        for spot in self.mosaic.spots:
            place = self.crops.training([(self.sample, start, *spot)])
            maps, domain = (part.expand(len(values), *part.shape[1:]) for part in (place.maps, place.domain))
            x, seen = self.mosaic.cut(values, spot), self.mosaic.cut(everywhere, spot)
            observed = seen & domain[:, :, None]
            imputed = single_step(model.denoiser, x, observed, maps, model.partition, model.ensemble, rows).mean
            estimates.append(
                Weighted(
                    model.denoiser,
                    model.partition,
                    model.bank,
                    x,
                    seen,
                    imputed,
                    maps,
                    rows,
                    sampling.weighting,
                    sampling.contexts,
                )
            )
        return self._blended(estimates)


def _error(law: Law, observed: Tensor, carried: float = 1e-3) -> Tensor:
    """Error variance (C, T, H, W) of the Gaussian residual at known cells.

    Frames of the crop before are granted ``carried`` at most: little, yet the equations stay solvable.
    """
    nugget = law.error.expand(1, *observed.shape)[0]
    return torch.where(observed, nugget, nugget.clamp(max=carried))


def _guided(estimate: Expectation, guide: Guide, missing: Tensor) -> Expectation:
    return lambda t, x_t: guide(estimate(t, x_t), missing)


def _portions(rows: Tensor) -> tuple[Tensor, ...]:
    """Rows (N, ...) in portions that fit into memory together."""
    return rows.split(max(1, AT_ONCE // rows[0].numel()))


def _scale(std: Tensor, square: Tensor, missing: Tensor, least: float = 0.01, most: float = 10.0) -> Tensor:
    """Ratio (C, T, H, W) of the stated standard deviation to that of the realisations; 1 where nothing is missing.

    Both are averaged over the missing cells of a neighbourhood of three frames, rows and columns, because a mean over
    few realisations is noisy. The ratio lies between ``least`` and ``most``: a stated spread far below that of the law
    is possible, zero is not.
    """
    ratio = _nearby(std.square() * missing) / _nearby(square * missing).clamp(min=1e-12)
    return torch.where(missing, ratio.sqrt().clamp(least, most), 1)


def _nearby(x: Tensor) -> Tensor:
    """Sums of x (C, T, H, W) over neighbourhoods of three cells in each direction."""
    # Padded before: the pooling itself refuses axes of fewer than three cells, whatever it pads.
    padded = torch.nn.functional.pad(x, (1,) * 6)
    return torch.nn.functional.avg_pool3d(padded[None], 3, stride=1, divisor_override=1)[0]
