"""The training loop: query-masked data matching with EMA weights, validated on held-out observed cells.

One generator drives windows, times, noise and partitions, and its state is part of every checkpoint, so a killed
run that is resumed ends with the very weights of an uninterrupted one.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldfill.denoise import Denoiser, noised, query_loss
from fieldfill.errors import InputError
from fieldfill.partition import Partition
from fieldfill.schedule import PowerTime
from fieldfill.windows import Windows

__all__ = ["Progress", "TrainSettings", "Training", "validation_error"]


@dataclass(frozen=True)
class TrainSettings:
    """Everything about the optimisation.

    Attributes
    ----------
    steps, minutes
        the run ends with whichever comes first; the learning rate is annealed towards that end.
    batch
        windows per step.
    rate, warmup, clip, decay
        peak learning rate, share of the run in which it rises, gradient-norm limit, AdamW weight decay.
    ema
        decay of the averaged weights, approached from below in the first steps.
    time_power
        t = delta + (1 - delta) u**time_power; 1 is uniform.
    validate_every, patience
        steps between validations, and how many without improvement end the run.
    """

    steps: int = 500
    minutes: float | None = None
    batch: int = 16
    rate: float = 1e-3
    warmup: float = 0.05
    clip: float = 1.0
    decay: float = 1e-4
    ema: float = 0.995
    time_power: float = 3.0
    validate_every: int = 50
    patience: int = 8

    def learning_rate(self, progress: float) -> float:
        """Linear warm-up, then a half cosine to zero; progress in [0, 1]."""
        if progress < self.warmup:
            return self.rate * (progress + 1e-3) / (self.warmup + 1e-3)
        return self.rate * 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup)))


@dataclass(frozen=True)
class Progress:
    """What is told after each step: the position, the errors so far and how long it will take."""

    step: int
    steps: int
    loss: float
    validation: float
    windows_per_second: float
    seconds_left: float


@dataclass
class Training:
    """A run that can be stopped at any step and taken up again.

    Attributes
    ----------
    history
        one entry a validation: step, seconds, validation error, mean loss since the last one. Step 0 is the skip.
    skipped
        windows that could not be split into context and query.
    """

    denoiser: Denoiser
    windows: Windows
    partition: Partition
    settings: TrainSettings
    seed: int
    history: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    best: float = math.inf
    stale: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.generator = Generator().manual_seed(self.seed)
        self.optimiser = torch.optim.AdamW(
            self.denoiser.parameters(),
            lr=self.settings.rate,
            betas=(0.9, 0.99),
            weight_decay=self.settings.decay,
        )
        self.average = AveragedModel(self.denoiser, avg_fn=self._ema)
        self.best_weights = _clone(self.denoiser)
        self.times = PowerTime(self.settings.time_power, self.denoiser.schedule.delta)
        self._losses: list[float] = []

    def _ema(self, averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        decay = min(self.settings.ema, (1 + float(count)) / (10 + float(count)))
        return averaged.lerp(current, 1 - decay)

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in steps or in minutes, whichever is further."""
        share = self.step / self.settings.steps
        if self.settings.minutes is not None:
            share = max(share, self.seconds / (60 * self.settings.minutes))
        return min(1.0, share)

    def run(self, report: Callable[[Progress], None] | None = None, checkpoint: Path | None = None) -> None:
        """Trains until the budget is used or validation has stopped improving; ends with the best EMA weights."""
        clock = time.monotonic()
        if self.step == 0:
            self._validate()  # the untrained network leaves the skip as it is: training must do better than that
        while not self.finished:
            loss = self._train_step()
            now = time.monotonic()
            self.seconds, clock = self.seconds + now - clock, now
            done = self.progress >= 1
            if done or self.step % self.settings.validate_every == 0:
                self._validate()
                self.finished = done or self.stale >= self.settings.patience
                if checkpoint is not None:
                    self.save(checkpoint)
            if report is not None:
                report(self._describe(loss))
        self.denoiser.load_state_dict(self.best_weights)
        if self.skipped >= self.step * self.settings.batch:
            raise InputError(
                "not one window could be split into context and query: the gaps are the same in every window; "
                "choose another partition (see 'fieldfill check')"
            )

    def _train_step(self) -> float:
        self.denoiser.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate(self.progress)
        x, observed = self.windows.draw(self.settings.batch, self.generator)
        context, query = self.partition.split(observed, self.generator)
        self.skipped += int((~query.flatten(1).any(1)).sum())
        t = self.times.sample(len(x), self.generator)
        noise = torch.randn(x.shape, generator=self.generator)
        estimate = self.denoiser(t, noised(self.denoiser.schedule, t, x, noise), context)
        loss = query_loss(estimate, x, query)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.denoiser.parameters(), self.settings.clip)
        self.optimiser.step()
        self.average.update_parameters(self.denoiser)
        self.step += 1
        self._losses.append(loss.item())
        return self._losses[-1]

    def _validate(self) -> None:
        error = validation_error(self.average.module, self.windows, self.seed)
        entry = {"step": self.step, "seconds": self.seconds, "validation": error}
        if self._losses:
            entry["loss"] = sum(self._losses) / len(self._losses)
            self._losses.clear()
        self.history.append(entry)
        self.stale += 1
        if error < self.best or not math.isfinite(self.best):
            self.best, self.stale, self.best_weights = error, 0, _clone(self.average.module)

    def _describe(self, loss: float) -> Progress:
        rate = self.step * self.settings.batch / max(self.seconds, 1e-9)
        left = self.seconds * (1 / max(self.progress, 1e-9) - 1)
        last = self.history[-1]["validation"] if self.history else math.nan
        return Progress(self.step, self.settings.steps, loss, last, rate, left)

    def save(self, path: Path) -> None:
        """Writes a checkpoint atomically."""
        state: dict[str, Any] = {
            "denoiser": self.denoiser.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "best_weights": self.best_weights,
            **{name: getattr(self, name) for name in CHECKPOINTED},
        }
        partial = path.with_suffix(".tmp")
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        """Takes up the run of a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.denoiser.load_state_dict(state["denoiser"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.best_weights = state["best_weights"]
        for name in CHECKPOINTED:
            setattr(self, name, state[name])


CHECKPOINTED = ("history", "step", "seconds", "skipped", "best", "stale", "finished")


def _clone(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@torch.no_grad()
def validation_error(denoiser: nn.Module, windows: Windows, seed: int, batch: int = 16) -> float:
    """Mean squared error (unitless) on the held-out cells, from all other observations, at the smallest noise."""
    assert isinstance(denoiser, Denoiser)
    denoiser.eval()
    generator = Generator().manual_seed(seed)
    total, cells = 0.0, 0
    places = windows.held.places
    for first in range(0, len(places), batch):
        chosen = places[first : first + batch]
        x, context, held = windows.held_out(chosen)
        t = torch.full((len(chosen),), denoiser.schedule.delta)
        noise = torch.randn(x.shape, generator=generator)
        estimate = denoiser(t, noised(denoiser.schedule, t, x, noise), context)
        total += torch.where(held, estimate - x, 0).square().sum().item()
        cells += int(held.sum())
    return total / cells if cells else math.nan
