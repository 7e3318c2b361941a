"""Pools of training crops: the first estimate of a crop is made once and used in several steps.

The first estimate may cost up to ten times what a step of the network costs. Then the crops of several steps are drawn
and estimated together, as a pool, and each of them is used several times before the next pool takes its place. Every
step has one crop at each of its positions i; which one is shuffled anew each time the pool is gone through.

Whatever is random follows from the seed, the number of the draw or of the step, and i alone: a run that is taken up
in the middle of a pool makes the same pool again, and a process makes only the crops of its own positions.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops
from fieldfill.data.prefetch import Ahead
from fieldfill.diffusion.denoiser import Denoiser, noised
from fieldfill.diffusion.schedule import PowerTime
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.estimators.base import Answer
from fieldfill.estimators.chain import BATCH_CELLS
from fieldfill.partition import Partition
from fieldfill.seeds import position_stream

__all__ = ["Drawn", "Pools"]

# Cells (B, C, T, H, W) of a pool at most, which bounds its memory.
POOL_CELLS = 2**21


@dataclass(frozen=True)
class Drawn:
    """Crops of a step, each with its t (B,), noise, context, query, maps and, if there is one, first estimate."""

    t: Tensor
    x: Tensor
    noise: Tensor
    context: Tensor
    query: Tensor
    maps: Tensor
    first: Answer | None = None

    def __len__(self) -> int:
        return len(self.t)

    def rows(self, chosen: Sequence[int] | slice) -> "Drawn":
        """Some of the crops, by number."""
        parts = (self.t, self.x, self.noise, self.context, self.query, self.maps)
        t, x, noise, context, query, maps = (part[chosen] for part in parts)
        first = None if self.first is None else self.first.mapped(lambda part: part[chosen])
        return Drawn(t, x, noise, context, query, maps, first)


class Pools:
    """The crops of every step at the positions ``mine`` of a batch; the next pool is drawn while one is in use.

    Entered as a context, it leaves no thread behind.

    Attributes
    ----------
    reuse
        steps in which a crop is used; unless it is set, it follows from the cost of what the chain has learnt.
    waited
        seconds spent waiting for data.
    seconds
        that the last pool took.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        crops: Crops,
        partition: Partition,
        times: PowerTime,
        seed: int,
        mine: range,
        settings: TrainSettings,
        device: torch.device,
    ) -> None:
        self.denoiser, self.crops, self.partition, self.times = denoiser, crops, partition, times
        self.seed, self.mine, self.device = seed, mine, device
        self.settings, self.room = settings, POOL_CELLS // (settings.batch * crops.cells)
        self.ahead = Ahead(self._draw)
        self.waited = self.seconds = 0.0
        self._pool: tuple[int, Drawn] | None = None

    def __enter__(self) -> "Pools":
        self.ahead.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.ahead.__exit__()
        self._pool = None

    @property
    def reuse(self) -> int:
        chain = self.denoiser.chain
        cost = sum(step.cost for step in (*chain.sources, *chain.corrections))
        return self.settings.reuse or max(1, min(self.settings.most_reuse, round(cost)))

    @property
    def batches(self) -> int:
        """Batches in a pool; crops that are used once need no company."""
        return max(1, min(self.settings.pool_batches, self.room)) if self.reuse > 1 else 1

    def __call__(self, step: int) -> Drawn:
        """This process's crops of a step, in the order of their positions."""
        number, within = divmod(step, self.batches * self.reuse)
        turn, slot = divmod(within, self.batches)
        pool = self._estimated(number)
        if self.batches == 1:
            return pool
        orders = [self._order(number, turn, i)[slot] for i in self.mine]
        return pool.rows([order * len(self.mine) + place for place, order in enumerate(orders)])

    def cost(self, step: int) -> float:
        """Seconds that the pool of a step will take; 0 if it is there."""
        return self.seconds if step % (self.batches * self.reuse) == 0 else 0.0

    def _order(self, pool: int, turn: int, position: int) -> list[int]:
        generator = position_stream(self.seed, "order", pool, turn, position)
        return torch.randperm(self.batches, generator=generator).tolist()

    def _draw(self, number: int) -> Drawn:
        """The crops of a pool, all positions of a batch after those of the one before."""
        draws = range(number * self.batches, (number + 1) * self.batches)
        crops = [self._draw_crop(position_stream(self.seed, draw, i)) for draw in draws for i in self.mine]
        t, x, noise, context, query, maps = (torch.cat(tensors) for tensors in zip(*crops))
        return Drawn(t, x, noise, context, query, maps)

    def _draw_crop(self, generator: Generator) -> tuple[Tensor, ...]:
        batch = self.crops.draw(1, generator)
        context, query = self.partition.split(batch.observed, generator)
        t = self.times.sample(1, generator)
        noise = torch.randn(batch.x.shape, generator=generator)
        return t, batch.x, noise, context, query, batch.maps

    def _estimated(self, number: int) -> Drawn:
        """A pool with its first estimates."""
        if self._pool is None or self._pool[0] != number:
            self._pool = None  # before the next one takes its memory
            begun = time.monotonic()
            drawn = self.ahead(number)
            self.waited += time.monotonic() - begun
            names = ("t", "x", "noise", "context", "query", "maps")
            drawn = Drawn(*(getattr(drawn, name).to(self.device) for name in names))
            self._pool = number, self._with_first(drawn)
            self.seconds = time.monotonic() - begun
        return self._pool[1]

    @torch.no_grad()
    def _with_first(self, drawn: Drawn) -> Drawn:
        step = max(1, BATCH_CELLS // self.crops.cells)
        answers = []
        for first in range(0, len(drawn), step):
            part = drawn.rows(slice(first, first + step))
            x_t = noised(self.denoiser.schedule, part.t, part.x, part.noise)
            x_t = torch.where(part.context, x_t, 0)
            answers.append(self.denoiser.first(part.t, x_t, part.context, part.maps))
        return replace(drawn, first=Answer.joined(answers))
