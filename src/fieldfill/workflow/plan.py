"""What a fit will do, how long it will take and how much memory, from a short test before the work begins."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from fieldfill.config import UNLIMITED_STEPS, Settings, build_denoiser
from fieldfill.data.crops import NETWORK_CELLS, Crops
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.loss import matching_losses
from fieldfill.estimators.chain import LEAST_JUDGED
from fieldfill.execution.threads import fastest_threads, using_threads
from fieldfill.uncertainty.held_cells import affordable
from fieldfill.workflow.ending import WAYS

__all__ = ["Plan", "make_plan"]

# Rounds in which a covariance is usually learnt; the search ends when held-out cells stop gaining.
ROUNDS = 5
# Times that held-out cells are estimated on the way: rounds, tapers, drifts, efforts.
JUDGEMENTS = 30
# Share of a step with its backward pass that a forward pass takes.
FORWARD = 0.35
# Iterations of the shorter of the two solutions that are timed.
FEW_ITERATIONS = 2
# Iterations of the longer one.
MORE_ITERATIONS = 6
# Bytes of Python and its packages.
BASE_BYTES = 400 * 2**20
# Bytes of each value of a record in memory.
VALUE_BYTES = 6
# Bytes of each cell that goes through the network, with all that is kept for the backward pass.
NETWORK_CELL_BYTES = 160


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
        held, forward = len(crops.held), FORWARD * self.step + self.estimate
        learnt = ROUNDS * max(2, self.settings.gaussian.completed_cells // crops.cells)
        judged = JUDGEMENTS * min(held, max(LEAST_JUDGED, self.settings.chain.judged_cells // crops.cells))
        step = training.batch * (self.step + self.estimate / 2 / max(1, training.reuse))
        validations = FORWARD * self.step * held * training.steps / training.validate_every
        passes = WAYS * self.settings.contexts + 1
        compared = self.settings.contexts and self.settings.choose_contexts
        choice = passes * min(held, affordable(passes * crops.cells)) if compared else 0
        return {
            "first estimate": (learnt + judged) * self.estimate,
            "training": training.steps * step + validations,
            "contexts and calibration": (choice + held) * forward,
        }

    @property
    def bytes(self) -> float:
        """Expected memory, roughly."""
        crops = self.crops
        kept = VALUE_BYTES * math.prod(crops.record.shape)
        return BASE_BYTES + kept + NETWORK_CELL_BYTES * max(NETWORK_CELLS, 4 * crops.cells)

    def lines(self, reason: str) -> tuple[str, ...]:
        """The plan in words."""
        crops, training, limit = self.crops, self.settings.training, self.settings.minutes
        frames, rows, columns = crops.shape
        seconds = self.seconds()
        steps = (
            f"up to {training.steps} steps"
            if training.steps < UNLIMITED_STEPS
            else "as many steps as there is time for"
        )
        if limit is not None:
            total = f"at most {limit:g} min, as asked for"
        else:
            parts = ", ".join(f"{name} {_duration(spent)}" for name, spent in seconds.items())
            total = f"about {_duration(sum(seconds.values()))} ({parts})"
        return (
            f"crops of {frames} frames × {rows} rows × {columns} columns: {reason}",
            f"{len(crops)} crops to learn from, {len(crops.held)} with held-out cells; {steps} of "
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
        estimate(FEW_ITERATIONS)
        step()

    both()  # the first time prepares what later ones use again
    chosen = fastest_threads(both, threads)
    with using_threads(chosen):
        few, more = (_seconds(partial(estimate, steps)) for steps in (FEW_ITERATIONS, MORE_ITERATIONS))
        trained = _seconds(step)
    steps = max([FEW_ITERATIONS, *(source.iterations for source in denoiser.chain.sources)])
    whole = few + max(0.0, more - few) * (steps - FEW_ITERATIONS) / (MORE_ITERATIONS - FEW_ITERATIONS)
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
