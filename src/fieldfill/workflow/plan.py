"""What a fit will do, how long it will take and how much memory, from a short test before the work begins."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fieldfill.config import Settings, build_denoiser
from fieldfill.data.crops import Crops
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.loss import matching_losses
from fieldfill.execution.threads import fastest_threads, using_threads

__all__ = ["Plan", "make_plan"]

# First estimates of all crops that the first estimate is learnt from and judged by, in solutions of a crop: rounds of
# learning and judgements, and cells (C · T · H · W) of the crops that each of these looks at.
LEARNING_ROUNDS, LEARNING_CELLS = 5, 2**20
JUDGEMENTS, JUDGED_CELLS = 30, 2**18
# The same for choosing contexts: crops, and passes over each.
CHOICE_CROPS, CHOICE_PASSES = 6, 31
# Share of a step with its backward pass that a forward pass takes.
FORWARD = 0.35
# Iterations of the two solutions that are timed.
FEW_STEPS, MORE_STEPS = 2, 6
# Bytes: of Python and its packages, of each value of a record in memory, of each cell that is worked on together.
BASE_BYTES = 400 * 2**20
RECORD_BYTES = 6
CELL_BYTES = 160
WORKED_CELLS = 2**21


@dataclass(frozen=True)
class Plan:
    """What is known of a fit before it begins.

    Attributes
    ----------
    threads
        of torch.
    estimate
        seconds that the first estimate of a crop takes in a fill.
    step
        seconds that the network takes for a crop in a step of training.
    """

    crops: Crops
    settings: Settings
    threads: int
    estimate: float
    step: float

    def seconds(self) -> dict[str, float]:
        """Expected seconds of the stages without a time limit, roughly."""
        crops, training = self.crops, self.settings.training
        held, forward = len(crops.held.places), FORWARD * self.step + self.estimate
        learnt = LEARNING_ROUNDS * max(2, LEARNING_CELLS // crops.cells)
        judged = JUDGEMENTS * min(held, max(3, JUDGED_CELLS // crops.cells))
        step = training.batch * (self.step + self.estimate / 2 / max(1, training.reuse))
        validations = FORWARD * self.step * held * training.steps / training.validate_every
        choice = CHOICE_PASSES * CHOICE_CROPS if self.settings.contexts and self.settings.choose_contexts else 0
        return {
            "first estimate": (learnt + judged) * self.estimate,
            "training": training.steps * step + validations,
            "contexts and calibration": (choice + held) * forward,
        }

    @property
    def bytes(self) -> float:
        """Expected memory, roughly."""
        crops = self.crops
        kept = RECORD_BYTES * math.prod(crops.record.shape)
        return BASE_BYTES + kept + CELL_BYTES * max(WORKED_CELLS, 4 * crops.cells)

    def lines(self, reason: str) -> tuple[str, ...]:
        """The plan in words."""
        crops, training, limit = self.crops, self.settings.training, self.settings.minutes
        frames, rows, columns = crops.shape
        seconds = self.seconds()
        steps = f"up to {training.steps} steps" if training.steps < 10**6 else "as many steps as there is time for"
        if limit is not None:
            total = f"at most {limit:g} min, as asked for"
        else:
            parts = ", ".join(f"{name} {_duration(spent)}" for name, spent in seconds.items())
            total = f"about {_duration(sum(seconds.values()))} ({parts})"
        return (
            f"crops of {frames} frames × {rows} rows × {columns} columns: {reason}",
            f"{len(crops)} crops to learn from, {len(crops.held.places)} with held-out cells; {steps} of "
            f"{training.batch} crops, less if validation stops improving",
            f"expected time {total}; memory about {self.bytes / 2**30:.1f} GB; threads {self.threads}",
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def make_plan(crops: Crops, settings: Settings, seed: int, threads: int | None) -> Plan:
    """Times a first estimate and a step of the network on one crop, after choosing the number of threads."""
    denoiser = build_denoiser(settings, crops.shape, crops.record.shape[1], crops.periodic, seed)
    for source in denoiser.chain.sources:
        source.rehearse()
    estimate, step = _works(denoiser, crops)

    def both() -> None:
        estimate(FEW_STEPS)
        step()

    both()  # the first time prepares what later ones use again
    chosen = fastest_threads(both, threads)
    with using_threads(chosen):
        few, more = (_seconds(partial(estimate, steps)) for steps in (FEW_STEPS, MORE_STEPS))
        trained = _seconds(step)
    steps = max([FEW_STEPS, *(source.iterations for source in denoiser.chain.sources)])
    whole = few + max(0.0, more - few) * (steps - FEW_STEPS) / (MORE_STEPS - FEW_STEPS)
    return Plan(crops, settings, chosen, whole, trained)


def _works(denoiser: Denoiser, crops: Crops) -> tuple[Callable[[int], None], Callable[[], None]]:
    """A first estimate of one crop with so many iterations, and a step of the network on it."""
    place = max(crops.held.places or (crops.place(0),), key=lambda place: int(crops.visible(place)[1].sum()))
    batch = crops.training([place])
    maps = batch.x.new_zeros(1, 0, *crops.shape[1:])
    t = torch.full((1,), denoiser.schedule.delta)
    x, observed = batch.x, batch.observed

    def estimate(iterations: int) -> None:
        denoiser.eval()
        for source in denoiser.chain.sources:
            source.set_effort(iterations / max(1, source.iterations))
        denoiser.first(t, x, observed, maps)

    first = denoiser.first(t, x, observed, maps)

    def step() -> None:
        losses, _ = matching_losses(denoiser, t, x, x, observed, observed, maps, first=first)
        losses.sum().backward()

    return estimate, step


def _seconds(work: Callable[[], None]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
