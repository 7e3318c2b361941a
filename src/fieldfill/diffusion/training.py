"""The training loop: query-masked matching with EMA weights, validated on held-out observed cells.

Whatever is random about crop i of step n follows from (seed, n, i) alone (`fieldfill.diffusion.pools`). So a killed
run that is resumed ends with the very weights of an uninterrupted one, crops can be drawn ahead of time, and any
number of processes, each with its share of the crops, makes the same run up to rounding.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldfill.data.crops import Crops
from fieldfill.diffusion.acceleration import compiled, lower_precision
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.frames import frames_at_once, frames_cut, visible_frames
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.networks.network import Network
from fieldfill.diffusion.pools import Drawn, Pools
from fieldfill.diffusion.saved_state import read_state, write_state
from fieldfill.diffusion.schedule import PowerTime
from fieldfill.diffusion.team import ALONE, Team
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.validation import Validation, validate
from fieldfill.errors import InputError
from fieldfill.estimators.base import Answer
from fieldfill.partition import Partition
from fieldfill.seeds import position_stream

__all__ = ["Step", "Training"]

# Bytes of the first estimates of validation crops that are kept between validations, at most.
KNOWN_BYTES = 2**28


@dataclass(frozen=True)
class Step:
    """What is reported after each step: its number, the errors so far and how long it will take."""

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
    notes
        what the first estimate found, kept with the checkpoints.
    history
        one entry a validation: step, seconds, what `fieldfill.diffusion.validation` finds, mean loss since the last
        one. Step 0 is the first estimate.
    slowdown
        factor on the learning rate, see `TrainSettings.slower`.
    limit
        seconds, by the clock of the settings, that training may take in a fit whose minutes are limited.
    skipped
        crops that could not be split into context and query.
    waited
        seconds spent waiting for data.
    """

    denoiser: Denoiser
    crops: Crops
    partition: Partition
    settings: TrainSettings
    seed: int
    team: Team = ALONE
    notes: dict[str, dict[str, float]] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    skipped: int = 0
    least: float = math.inf
    best: dict[str, float] = field(default_factory=lambda: {"error": math.inf})
    stale: int = 0
    finished: bool = False
    slowdown: float = 1.0
    limit: float = math.inf

    def __post_init__(self) -> None:
        if self.team.size > self.settings.batch:
            raise InputError(
                f"{self.team.size} processes for batches of {self.settings.batch} crops; "
                "start fewer processes or choose a larger batch"
            )
        self.denoiser.to(self.team.device)
        network = self.denoiser.network
        assert isinstance(network, nn.Module)
        self.network = network
        self.shared = self.team.shared(self.denoiser, self.network)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(),
            lr=self.settings.rate,
            betas=(0.9, 0.99),
            weight_decay=self.settings.decay,
        )
        self.average = AveragedModel(self.network, avg_fn=self._ema)
        self.best_weights = _clone(self.network)
        self.times = PowerTime(self.settings.time_power, self.denoiser.schedule.delta)
        mine = len(self.team.share(self.settings.batch))
        self.parts = min(mine, self.settings.accumulate or math.ceil(mine / self.crops.at_once))
        self.frames = frames_at_once(network, self.settings.frames, self.crops.length)
        self.pools = Pools(
            self.denoiser,
            self.crops,
            self.partition,
            self.times,
            self.seed,
            self.team.share(self.settings.batch),
            self.settings,
            self.team.device,
        )
        self._losses: list[float] = []
        self._known: dict[int, Answer] | None = {} if self._known_bytes() <= KNOWN_BYTES else None

    def _ema(self, averaged: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        decay = min(self.settings.ema, (1 + float(count)) / (10 + float(count)))
        return averaged.lerp(current, 1 - decay)

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in steps or in minutes, whichever is further."""
        return min(1.0, max(self.step / self.settings.steps, self.seconds / max(self.budget, 1e-9)))

    @property
    def budget(self) -> float:
        """Seconds that training may take."""
        return min(self.limit, math.inf if self.settings.minutes is None else 60 * self.settings.minutes)

    @property
    def stopped_early(self) -> bool:
        """Whether training ended before its budget because validation had stopped improving."""
        return self.finished and self.stale >= self.settings.patience and self.progress < 1

    def run(self, report: Callable[[Step], None] | None = None, checkpoint: Path | None = None) -> None:
        """Trains until the budget is used or validation has stopped improving; ends with the best EMA weights."""
        with self.pools, self._accelerated():
            self._run(report, checkpoint)
        self._known = None
        self.network.load_state_dict(self.best_weights)
        self.denoiser.gain.fill_(self.best["gain"])
        self.denoiser.cpu()
        if self.step and self.skipped >= self.step * self.settings.batch:
            raise InputError(
                "not one crop could be split into context and query, because the gaps are the same in every crop; "
                "choose another partition (see 'fieldfill check')"
            )

    def _run(self, report: Callable[[Step], None] | None, checkpoint: Path | None) -> None:
        now = time.monotonic if self.settings.clock == "wall" else time.process_time
        last = now()
        if not self.history:
            self._validate()  # an untrained network leaves the first estimate as it is: training must do better
            self._keep(checkpoint)
        self.finished = self.finished or self.seconds + self.pools.cost(self.step) >= self.budget
        while not self.finished:
            loss = self.train_step()
            last, before = now(), last
            self.seconds = self.team.of_first(self.seconds + last - before)
            done = self.progress >= 1 or self.seconds + self.pools.cost(self.step) >= self.budget
            if done or self.step % self.settings.validate_every == 0:
                self._validate()
                self.finished = done or self.stale >= self.settings.patience
                self._keep(checkpoint)
            if report is not None:
                report(self._describe(loss))

    def _keep(self, checkpoint: Path | None) -> None:
        if checkpoint is not None:
            if self.team.first:
                self.save(checkpoint)
            self.team.wait()

    @contextmanager
    def _accelerated(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self.settings.precision == "bf16":
                stack.enter_context(lower_precision(self.network, self.team.device))
            if self.settings.compile and not self.finished:
                stack.enter_context(compiled(self.network, self._trial))
            yield

    def _trial(self) -> Tensor:
        drawn, starts = next(self.drawn(self.step))
        cut = frames_cut(starts, self.frames, self.crops.length)
        return self.denoiser.outputs(drawn.t, drawn.x, drawn.context, drawn.maps, cut, drawn.first)[0]

    def drawn(self, step: int) -> Iterator[tuple[Drawn, Tensor]]:
        """The parts of this process's crops of a step, and the first frames (B,) that the network sees of them."""
        whole = self.pools(step)
        for part in range(self.parts):
            begin, end = (n * len(whole) // self.parts for n in (part, part + 1))
            positions = self.pools.mine[begin:end]
            looks = [
                visible_frames(query[None], self.frames, position_stream(self.seed, "look", step, i))
                for query, i in zip(whole.query[begin:end], positions)
            ]
            query, starts = (torch.cat(parts) for parts in zip(*looks))
            yield replace(whole.rows(slice(begin, end)), query=query), starts

    def _known_bytes(self) -> int:
        """Size of the first estimates of this process's validation crops, with their features."""
        places = len(self.team.share(len(self.crops.held)))
        return 4 * places * self.crops.cells * (1 + self.denoiser.chain.features)

    def train_step(self) -> float:
        """One step of the optimiser; returns the mean loss over the crops of all processes."""
        self.denoiser.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.slowdown * self.settings.learning_rate(self.progress)
        self.optimiser.zero_grad(set_to_none=True)
        total, counted = 0.0, 0.0
        for part, (drawn, starts) in enumerate(self.drawn(self.step)):
            tensors = (drawn.t, drawn.x, drawn.noise, drawn.context, drawn.query, drawn.maps)
            cut = frames_cut(starts, self.frames, self.crops.length)
            with self._using(self.shared) as denoiser, self.team.exchanging(self.shared, part == self.parts - 1):
                losses, counts = matching_losses(denoiser, *tensors, cut, first=drawn.first)
                losses.sum().backward()
            total, counted = total + losses.sum().item(), counted + counts.sum().item()
        total, counted = self.team.sum(total, counted)
        # Gradients are now means over processes of sums over crops.
        for weight in self.network.parameters():
            assert weight.grad is not None
            weight.grad.mul_(self.team.size / max(1, counted))
        nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        self.optimiser.step()
        self.average.update_parameters(self.network)
        self.step += 1
        self.skipped += self.settings.batch - int(counted)
        self._losses.append(total / max(1, counted))
        return self._losses[-1]

    @contextmanager
    def _using(self, network: nn.Module) -> Iterator[Denoiser]:
        """The denoiser with another form of its network, such as the EMA weights.

        The first estimate is shared rather than copied because it is large.
        """
        self.denoiser.network = cast(Network, network)
        try:
            yield self.denoiser
        finally:
            self.denoiser.network = cast(Network, self.network)

    def _validate(self) -> None:
        with self._using(self.average.module) as denoiser:
            found = validate(denoiser, self.crops, self.seed, self.team, self.settings.shrink, self._known)
        waited = self.waited + self.pools.waited
        entry = {"step": self.step, "seconds": self.seconds, "waited": waited, "validation": found.error}
        entry |= {"gain": found.gain, "standard_error": found.standard_error}
        if math.isfinite(found.surprise):
            entry["surprise"] = found.surprise
        if self._losses:
            entry["loss"] = sum(self._losses) / len(self._losses)
            self._losses.clear()
        self.history.append(entry)
        self.stale = 0 if found.error < self.least else self.stale + 1
        if self.stale and self.stale % max(1, self.settings.patience // 2) == 0:
            self.slowdown *= self.settings.slower
        self.least = min(self.least, found.error)
        if found.beats(Validation(**self.best), self.least):
            self.best, self.best_weights = asdict(found), _clone(self.average.module)

    def _describe(self, loss: float) -> Step:
        rate = self.step * self.settings.batch / max(self.seconds, 1e-9)
        left = self.seconds * (1 / max(self.progress, 1e-9) - 1)
        last = self.history[-1]["validation"] if self.history else math.nan
        return Step(self.step, self.settings.steps, loss, last, rate, left)

    def save(self, path: Path) -> None:
        """Writes a checkpoint; if that fails, the one before it stays."""
        state: dict[str, Any] = {
            "denoiser": self.denoiser.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "best_weights": self.best_weights,
            "normaliser": [torch.from_numpy(part) for part in vars(self.crops.normaliser).values()],
            **{name: getattr(self, name) for name in CHECKPOINTED},
            "waited": self.waited + self.pools.waited,
        }
        write_state(path, state)

    def load(self, path: Path) -> None:
        """Takes up the run of a checkpoint."""
        state = read_state(path, self.team.device)
        self.denoiser.load_state_dict(state["denoiser"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.best_weights = state["best_weights"]
        for name in CHECKPOINTED:
            setattr(self, name, state[name])


# Attributes of a training that a checkpoint keeps as they are.
CHECKPOINTED = (
    "notes",
    "history",
    "step",
    "seconds",
    "waited",
    "skipped",
    "least",
    "best",
    "stale",
    "finished",
    "slowdown",
    "limit",
)


def _clone(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}
