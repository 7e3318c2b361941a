"""What the processes of a run under torchrun execute: a training that writes where it arrived, or the command line.

Run as a script: ``torchrun_job.py work FOLDER STEP`` or ``torchrun_job.py cli SECONDS ARGUMENT...``.
"""

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from conftest import NO_COVARIANCE, make_training
from fieldfill import presets
from fieldfill.cli import main as cli
from fieldfill.config import Settings
from fieldfill.diffusion.team import ALONE, Team
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.training import Step, Training
from fieldfill.execution.ddp import join
from fieldfill.partition import PixelPartition

SETTINGS = TrainSettings(steps=50, batch=5, validate_every=10, patience=99, clip=1e9)
TINY = Settings(window=4, base=8, levels=2, contexts=2, estimators=NO_COVARIANCE, partition="pixel", spread=False)


class Sometimes(PixelPartition):
    """A partition that gives up on most windows, so that processes seldom have equally many that count."""

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        context, query = super().split(observed, generator)
        return context, query & (torch.rand(len(query), 1, 1, 1, 1, generator=generator) < 0.4)


class Stop(Exception):
    """Ends a run after a step."""


def make(team: Team = ALONE, settings: TrainSettings = SETTINGS) -> Training:
    return make_training(settings, partition=Sometimes(), team=team)


def follow(training: Training, losses: list[float], stop: int, folder: Path | None = None) -> Callable[[Step], None]:
    """A report that collects losses, keeps every checkpoint, and stops the run after a step."""

    def report(progress: Step) -> None:
        losses.append(progress.loss)
        if folder is not None and training.team.first and progress.step % SETTINGS.validate_every == 0:
            (folder / f"{progress.step}.pt").write_bytes((folder / "checkpoint.pt").read_bytes())
        if progress.step == stop and stop < SETTINGS.steps:
            raise Stop

    return report


def gradient(training: Training) -> float:
    """Size of the last gradient; the losses would not show a wrong factor, to which Adam is blind."""
    return sum(p.grad.square().sum().item() for p in training.network.parameters()) ** 0.5


def work(folder: Path, begin: int) -> None:
    """Trains from step ``begin`` to the end and writes the losses and the last gradient."""
    atexit.register(lambda: (folder / f"left{begin}_{os.environ['RANK']}").write_text(str(not dist.is_initialized())))
    training, losses = make(join()), []
    if begin:
        training.load(folder / f"{begin}.pt")
    training.run(follow(training, losses, SETTINGS.steps, folder), folder / "checkpoint.pt")
    state = {"losses": losses, "history": training.history, "gradient": gradient(training)}
    (folder / f"from{begin}_rank{training.team.rank}.json").write_text(json.dumps(state))


def run_cli(slow: float) -> None:
    """``fieldfill`` with a tiny preset, and steps that take long enough to be interrupted."""
    presets.PRESETS["fast"] = TINY.model_copy(update={"training": TrainSettings(batch=4, validate_every=3)})
    step = Training.train_step

    def slowly(training: Training) -> float:
        time.sleep(slow)
        return step(training)

    Training.train_step = slowly  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    task, *rest = sys.argv[1:]
    if task == "work":
        work(Path(rest[0]), int(rest[1]))
    else:
        sys.argv = ["fieldfill", *rest[1:]]
        run_cli(float(rest[0]))
