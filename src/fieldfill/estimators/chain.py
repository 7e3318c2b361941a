"""A chain of estimators: each step learns what the steps before it leave, and is kept only if held-out cells gain."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldfill.data.crops import Batch
from fieldfill.estimators.base import Answer, Claim, Correction, Estimator, Example, Given, Law, Lesson, Source
from fieldfill.seeds import position_stream

__all__ = ["BATCH_CELLS", "LEAST_JUDGED", "Chain", "ChainSettings", "HeldOutError", "HeldOutErrors", "draw_examples"]

# Cells (B, C, T, H, W) that one solution of all crops of a batch may hold.
BATCH_CELLS = 2**17
# Crops on which a choice is made at least, however large they are: one crop may be an exception.
LEAST_JUDGED = 6


@dataclass(frozen=True)
class ChainSettings:
    """How much a chain learns from, and what a step must gain to be kept.

    Attributes
    ----------
    judged_cells
        cells of the crops on which sources are compared, at most.
    examples, example_cells
        crops that corrections learn from, and cells of all of them, at most.
    least_gain
        share of the held-out error that a correction, or more iterations of a solver, must remove.
    efforts
        numbers of iterations that are tried, as multiples of the usual one, in this order.
    sources_share, corrections_share
        share of the time limit of a fit that is used when sources, and when corrections, have learnt.
    """

    judged_cells: int = 2**19
    examples: int = 48
    example_cells: int = 2**21
    least_gain: float = 0.01
    efforts: tuple[float, ...] = (2.0, 4.0, 8.0)
    sources_share: float = 0.35
    corrections_share: float = 0.45


@dataclass(frozen=True)
class HeldOutError:
    """Mean squared error on held-out cells, and its standard error over validation crops; NaN without such cells."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, totals: Sequence[float], cells: Sequence[float]) -> "HeldOutError":
        """From sums of squared errors and numbers of cells, one of each for every crop."""
        count = sum(cells)
        if not count:
            return cls(math.nan, math.nan)
        mean = sum(totals) / count
        # Ratio estimator: crops weigh by their number of held-out cells.
        return cls(mean, math.sqrt(sum((t - mean * n) ** 2 for t, n in zip(totals, cells))) / count)

    def notes(self) -> dict[str, float]:
        return {"validation": self.mean, "standard_error": self.standard_error}


@dataclass(frozen=True)
class HeldOutErrors:
    """Sums of squared errors on held-out cells, and numbers of cells, both weighted, one of each for every crop."""

    totals: Sequence[float]
    cells: Sequence[float]

    @property
    def summary(self) -> HeldOutError:
        return HeldOutError.of(self.totals, self.cells)

    def gain_over(self, others: "HeldOutErrors") -> HeldOutError:
        """By how much these errors on the same cells are smaller."""
        return HeldOutError.of([b - a for a, b in zip(self.totals, others.totals)], self.cells)


class Chain(nn.Module):
    """Sources, then corrections.

    Parameters
    ----------
    steps
        in the order in which they learn. A crop is answered by the last source that claims it.
    settings
        how much is learnt from, and what a step must gain.
    """

    def __init__(self, steps: Sequence[Estimator], settings: ChainSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or ChainSettings()
        self.steps = nn.ModuleDict({step.name: step for step in steps})

    @property
    def sources(self) -> list[Source]:
        return [step for step in self.steps.values() if isinstance(step, Source)]

    @property
    def corrections(self) -> list[Correction]:
        return [step for step in self.steps.values() if isinstance(step, Correction)]

    @property
    def features(self) -> int:
        """Features for each variable that the steps offer beside their estimate."""
        return sum(step.features for step in (*self.sources, *self.corrections))

    def forward(self, given: Given) -> Answer:
        """The estimate of all steps, and the features of all of them."""
        answer = Answer(self.answer(given))
        for step in self.corrections:
            found = step.correct(given, answer.estimate)
            answer = Answer(found.estimate, (*answer.fields, *found.fields), (*answer.shares, *found.shares))
        return answer

    def answer(self, given: Given) -> Tensor:
        """The estimate of the sources (B, C, T, H, W); 0 where none claims a crop."""
        claims = list(self.claims(given))
        if len(claims) == 1 and len(claims[0].rows) == len(given.y):
            return claims[0].law.mean(given)
        mean = torch.zeros_like(given.y)
        for claim in claims:
            mean[claim.rows] = claim.law.mean(given.rows(claim.rows))
        return mean

    def claims(self, given: Given) -> Iterator[Claim]:
        """Which source answers which crops of a batch."""
        left = torch.arange(len(given.y), device=given.y.device)
        for source in reversed(self.sources):
            if not len(left):
                return
            claim = source.claim(given if len(left) == len(given.y) else given.rows(left))
            if claim is not None:
                yield Claim(left[claim.rows], claim.law)
                kept = torch.ones(len(left), dtype=torch.bool, device=left.device)
                kept[claim.rows] = False
                left = left[kept]

    def law(self, x: Tensor, observed: Tensor) -> Law | None:
        """The law of one crop x (C, T, H, W) seen at ``observed``; None if its source cannot be drawn from."""
        nothing = x.new_zeros(1, 0, *x.shape[2:])
        claim = next(self.claims(Given(x[None], observed[None], x.new_zeros(()), nothing)), None)
        return claim.law if claim is not None and isinstance(claim.law, Law) else None

    @property
    def can_draw(self) -> bool:
        """Whether every crop has a law to draw from."""
        return any(source.draws for source in self.sources)

    def free_field(self, grid: tuple[int, int], periodic: tuple[bool, bool]) -> Law | None:
        """The law of unconditional realisations on a larger grid than that of a crop."""
        fields = [law for source in self.sources if (law := source.on_grid(grid, periodic)) is not None]
        return fields[0] if fields else None

    @torch.no_grad()
    def learn(self, lesson: Lesson) -> dict[str, dict[str, float]]:
        """Fits all steps in order; returns what each found, with the held-out error after it."""
        self.eval()
        found: dict[str, dict[str, float]] = {}
        for source in self.sources:
            lesson.stages.begin(source.name, share=self.settings.sources_share)
            if source.optional and lesson.stages.late():
                continue
            so_far = Chain([step for step in self.sources if step.name in (*found, source.name)], self.settings)
            found[source.name] = source.learn(lesson, so_far)
        lesson.stages.begin("first estimate", share=self.settings.sources_share)
        if self.sources:
            found["sources"] = {"effort": self._choose_effort(lesson)}
        error = self.held_out_error(lesson)
        found.setdefault("sources", {}).update(error.notes())
        if self.corrections:
            lesson.examples[:] = self._examples(lesson)
        for step in self.corrections:
            lesson.stages.begin(step.name, share=self.settings.corrections_share)
            if lesson.stages.late():
                step.forget()
                continue
            notes = step.learn(lesson, self)
            after = self.held_out_error(lesson)
            if after.mean < (1 - self.settings.least_gain) * error.mean:
                error = after
            else:
                step.forget()
            found[step.name] = {**notes, **error.notes()}
            for example in lesson.examples:
                example.estimate = step.correct(example.given, example.estimate).estimate
        return found

    def source_errors(self, lesson: Lesson, judged: int | None = None) -> HeldOutErrors:
        """Squared errors of the sources on the held-out cells of some crops, ``judged`` cells in all.

        Without noise: only the observations' own errors remain.
        """
        crops, judged = lesson.crops, self.settings.judged_cells if judged is None else judged
        judged_crops = range(len(crops.held))[: max(LEAST_JUDGED, judged // crops.cells)]
        step = max(1, BATCH_CELLS // crops.cells)
        totals: list[float] = []
        cells: list[float] = []
        for chosen in (judged_crops[first : first + step] for first in range(0, len(judged_crops), step)):
            batch, held = crops.held_out(chosen)
            answer = self.answer(Given(batch.x * batch.observed, batch.observed, torch.zeros(()), batch.maps))
            weights = crops.held.weights_of(chosen)
            totals += (torch.where(held, answer - batch.x, 0).square().flatten(1).sum(1) * weights).tolist()
            cells += (held.flatten(1).sum(1) * weights).tolist()
        return HeldOutErrors(totals, cells)

    def held_out_error(self, lesson: Lesson) -> HeldOutError:
        """Mean squared error of all steps on all held-out cells, at the noise of a fill."""
        totals, cells, held_out = [], [], lesson.crops.held
        for chosen, batch, held, noise in lesson.crops.validation(lesson.seed):
            error, weights = (
                self(lesson.given(batch, batch.observed, noise)).estimate - batch.x,
                held_out.weights_of(chosen),
            )
            totals += (torch.where(held, error, 0).double().square().flatten(1).sum(1) * weights).tolist()
            cells += (held.flatten(1).sum(1) * weights).tolist()
        return HeldOutError.of(totals, cells)

    def _choose_effort(self, lesson: Lesson) -> float:
        """Doubles the iterations of the sources as long as held-out cells gain."""

        def error(effort: float) -> float:
            for source in self.sources:
                source.set_effort(effort)
            return Chain(self.sources, self.settings).source_errors(lesson).summary.mean

        chosen, least = 1.0, error(1.0)
        for effort in self.settings.efforts:
            if lesson.stages.late():
                break
            found = error(effort)
            if found > (1 - self.settings.least_gain) * least:
                break
            chosen, least = effort, found
            lesson.stages.advance(f"held-out error {found:.4f}")
        for source in self.sources:
            source.set_effort(chosen)
        return chosen

    def _examples(self, lesson: Lesson) -> list[Example]:
        crops = lesson.crops
        count = max(1, min(self.settings.examples, self.settings.example_cells // crops.cells))
        step = max(1, BATCH_CELLS // crops.cells)
        examples = []
        for first in range(0, count, step):
            batch, noise, context, query = draw_examples(lesson, range(first, min(first + step, count)))
            given = lesson.given(batch, context, noise)
            examples.append(Example(given, batch.x, query, self.answer(given)))
        return examples


def draw_examples(lesson: Lesson, numbers: range) -> tuple[Batch, Tensor, Tensor, Tensor]:
    """Crops of a lesson, standard normal noise, context and query, each (B, C, T, H, W)."""
    drawn = []
    for i in numbers:
        generator = position_stream(lesson.seed, "motion", i)
        batch = lesson.crops.draw(1, generator)
        split = lesson.partition.split(batch.observed, generator)
        drawn.append((batch, torch.randn(batch.x.shape, generator=generator), *split))
    noise, context, query = (torch.cat(parts) for parts in zip(*(tensors for _, *tensors in drawn)))
    return Batch.joined([batch for batch, *_ in drawn]), noise, context, query
