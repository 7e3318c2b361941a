r"""Partitions that keep or hide whole units: pixels, stations, frames, variables.

A *unit* is a set of cells that nature shows or hides together. For a row with n observed units and a context
ratio r (one number, or drawn per row from a range), each unit joins the context with probability r,
independently; the query is the rest. Two small rules keep a row useful: as soon as there are two units, the
one with the largest uniform draw always goes to the query and the one with the smallest always to the
context.

Units live on a grid (B, ...) of their own. Frames with one common mask share their units, and so do variables
with one common mask (:class:`Ties`).
"""

import abc
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fieldfill.masks.mask_model import check_share, draw_share
from fieldfill.partition.protocol import Partition

__all__ = [
    "FramePartition",
    "PixelPartition",
    "StationPartition",
    "Ties",
    "UnitPartition",
    "Units",
    "VariablePartition",
]


@dataclass(frozen=True)
class Units:
    """The units of a batch: ``live`` (B, ...) those with an observed cell, ``pool`` from cells (B, C, T, H,
    W) to the units that hold one of them, ``spread`` from units to cells (broadcastable to (B, C, T, H,
    W))."""

    live: Tensor
    pool: Callable[[Tensor], Tensor]
    spread: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ties:
    """Which slices of a row share their units.

    ``static`` (B, C): the frames of this variable are tied. ``leader`` (B, C): number of the first variable
    that has the same mask, whose units this variable uses.
    """

    static: Tensor
    leader: Tensor

    @classmethod
    def find(cls, observed: Tensor, static: bool | Literal["auto"] = "auto") -> "Ties":
        """Reads the ties off the masks themselves; ``static`` True or False overrules the frames."""
        B, C = observed.shape[:2]
        if static == "auto":
            tied = (observed == observed[:, :, :1]).flatten(2).all(-1)
        else:
            tied = torch.full((B, C), bool(static))
        leader = torch.arange(C).repeat(B, 1)
        for c in range(1, C):
            for d in reversed(range(c)):
                same = (observed[:, c] == observed[:, d]).flatten(1).all(-1)
                leader[same, c] = d
        return cls(tied, leader)

    def pool(self, grid: Tensor) -> Tensor:
        """Live units of a grid (B, C, T, h, w) bool: tied slices count once, in frame 0 of their leader.

        Only frame 0 is returned when all slices are static.
        """
        live = grid.any(2, keepdim=True)
        if not self.static.all():
            first = torch.arange(grid.shape[2]).view(1, 1, -1, 1, 1) == 0
            live = torch.where(self.static[:, :, None, None, None], live & first, grid)
        own = self.leader == torch.arange(self.leader.shape[1])
        return live & own[:, :, None, None, None]

    def spread(self, grid: Tensor) -> Tensor:
        """Units (B, C, T or 1, h, w) copied to every slice that is tied to them."""
        if grid.shape[1] > 1:
            grid = grid.gather(1, self.leader[:, :, None, None, None].expand(grid.shape))
        return torch.where(self.static[:, :, None, None, None], grid[:, :, :1], grid)


class UnitPartition(Partition):
    """Keeps or hides whole units. Subclasses define what a unit is and how many are kept."""

    @abc.abstractmethod
    def units(self, observed: Tensor) -> Units:
        """The units of ``observed``."""

    @abc.abstractmethod
    def choose(self, live: Tensor, keep: float | None, generator: Generator) -> Tensor:
        """Context units out of the ``live`` ones, same shape."""

    @abc.abstractmethod
    def kept(self, n: int, keep: float | None) -> int | None:
        """Number of units in a context of a row with ``n`` > 1 of them; None when that number is random."""

    @abc.abstractmethod
    def left_out(self, n: Tensor, keep: float | None, generator: Generator) -> Tensor:
        """Number of units (B, 1) that one balanced context leaves out of ``n`` (B, 1)."""

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        units = self.units(observed)
        return observed & units.spread(self.choose(units.live, keep, generator))

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        context = self.draw(observed, None, generator)
        return context, observed & ~context

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        units = self.units(observed)
        flat = units.live.flatten(1)
        rows: list[list[tuple[int, ...]]] = []
        for n in flat.sum(-1).tolist():
            k = self.kept(n, keep) if n > 1 else n
            if k is None or math.comb(n, k) > count:
                return None
            rows.append(list(itertools.combinations(range(n), k)))
        total = math.lcm(*(len(row) for row in rows))
        if total > count:
            return None
        kept = torch.zeros((total, *flat.shape), dtype=torch.bool)
        for b, row in enumerate(rows):
            where = flat[b].nonzero().squeeze(-1)
            for k in range(total):
                kept[k, b, where[list(row[k % len(row)])]] = True
        return torch.stack([observed & units.spread(k.view(units.live.shape)) for k in kept])

    def balance(self, observed: Tensor, count: int, keep: float | None, generator: Generator) -> Tensor:
        """Exactly balanced: the units are put on a circle in random order and the contexts leave out one arc
        after another. The arcs are shortened a little where that makes them go round a whole number of times:
        then every unit is left out equally often, otherwise the omissions of two units differ by one."""
        units = self.units(observed)
        flat = units.live.flatten(1)
        n = flat.sum(-1, keepdim=True)
        rank = torch.where(flat, torch.rand(flat.shape, generator=generator), 2).argsort(-1).argsort(-1)
        ends = _whole_rounds(torch.stack([self.left_out(n, keep, generator) for _ in range(count)]), n)
        contexts = []
        for start, end in itertools.pairwise([torch.zeros_like(n), *ends]):
            out = (rank - start) % n.clamp(min=1) < end - start
            contexts.append(observed & units.spread((flat & ~out).view(units.live.shape)))
        return torch.stack(contexts)


def _whole_rounds(arcs: Tensor, n: Tensor) -> Tensor:
    """Where each of the ``arcs`` (K, B, 1) ends if they follow one another on circles of n (B, 1) units.

    From one round on, they are shortened in proportion to end where they began, unless one would vanish.
    """
    ends = arcs.cumsum(0)
    total = ends[-1].clamp(min=1)
    rounds = torch.div(total, n.clamp(min=1), rounding_mode="floor") * n
    shorter = torch.round(ends * (rounds / total)).long()
    vanishes = ((shorter.diff(dim=0, prepend=torch.zeros_like(shorter[:1])) == 0) & (arcs > 0)).any(0)
    return torch.where((total > n) & ~vanishes, shorter, ends)


@dataclass(frozen=True)
class RatioPartition(UnitPartition):
    """Keeps each unit with probability r; ``context`` is r or its range (lo, hi)."""

    context: float | tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        check_share(self.context, "context")

    def choose(self, live: Tensor, keep: float | None, generator: Generator) -> Tensor:
        flat = live.flatten(1)
        u = torch.rand(flat.shape, generator=generator)
        r = draw_share(self.context if keep is None else keep, len(flat), generator)
        chosen = flat & (u < r[:, None])
        least = torch.where(flat, u, 2).argmin(-1, keepdim=True)
        chosen = chosen.scatter(1, least, flat.gather(1, least))
        if keep is None:
            most = torch.where(flat, u, -1).argmax(-1, keepdim=True)
            alone = flat.sum(-1, keepdim=True) < 2
            chosen = chosen.scatter(1, most, chosen.gather(1, most) & alone)
        return chosen.view(live.shape)

    def kept(self, n: int, keep: float | None) -> int | None:
        ratio = self.context if keep is None else keep
        if isinstance(ratio, tuple):
            return None
        return max(1, min(n - 1 if keep is None else n, round(ratio * n)))

    def left_out(self, n: Tensor, keep: float | None, generator: Generator) -> Tensor:
        r = draw_share(self.context if keep is None else keep, len(n), generator)[:, None]
        arc = torch.round((1 - r) * n).long()
        return torch.minimum(arc.clamp(min=1 if keep is None else 0), (n - 1).clamp(min=0))


@dataclass(frozen=True)
class PixelPartition(RatioPartition):
    """Independent cells (Alg. 4 of the paper), for masks of independent cells.

    Parameters
    ----------
    context : float or (lo, hi)
        Ratio r of observed cells in the context; a range gives every row its own ratio.
    query : float or None
        None: the query is the complement of the context. A number q: every observed cell joins the query with
        probability q, independently of the context, exactly as printed in the paper (no rule against empty
        sets).
    static : "auto", True or False
        Whether one draw serves all frames. "auto" looks at each row and variable: a mask that is constant
        over its frames gets a context that is. Redrawing such a context per frame would show the network from
        other frames which cells are observed, and the exposure of the rest falls like (1 - r)^T.
    """

    query: float | None = None
    static: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query is not None:
            check_share(self.query, "query")

    def units(self, observed: Tensor) -> Units:
        ties = Ties.find(observed, self.static)
        return Units(ties.pool(observed), ties.pool, ties.spread)

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        if self.query is None:
            return super().split(observed, generator)
        units = self.units(observed)
        live = units.live
        r = draw_share(self.context, len(live), generator).view(-1, 1, 1, 1, 1)
        context = live & (torch.rand(live.shape, generator=generator) < r)
        query = live & (torch.rand(live.shape, generator=generator) < self.query)
        return observed & units.spread(context), observed & units.spread(query)


@dataclass(frozen=True)
class StationPartition(RatioPartition):
    """Whole stations: a cell is kept or hidden in all frames and variables at once.

    ``dropout`` is the share of single readings that is also taken from the kept stations. Without it a
    reading that a kept station lost by nature could never be queried. Balanced and enumerated contexts hold
    whole stations.
    """

    dropout: float = 0.1

    def units(self, observed: Tensor) -> Units:
        return Units(_stations(observed), _stations, lambda units: units[:, None, None])

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        if self.dropout == 0 or keep == 1:
            return super().draw(observed, keep, generator)
        share = None if keep is None else min(1.0, keep / (1 - self.dropout))
        context = super().draw(observed, share, generator)
        return context & (torch.rand(observed.shape, generator=generator) >= self.dropout)


@dataclass(frozen=True)
class FramePartition(RatioPartition):
    """Whole frames, for masks that drop frames. Variables with one common mask lose their frames together."""

    def units(self, observed: Tensor) -> Units:
        ties = Ties.find(observed, static=False)

        def pool(cells: Tensor) -> Tensor:
            return ties.pool(_frames(cells))

        return Units(pool(observed), pool, ties.spread)


@dataclass(frozen=True)
class VariablePartition(RatioPartition):
    """Whole variables, for masks that drop variables."""

    def units(self, observed: Tensor) -> Units:
        return Units(_variables(observed), _variables, lambda units: units)


def _stations(cells: Tensor) -> Tensor:
    """Grid points with a cell in some frame and variable, (B, H, W)."""
    return cells.any(2).any(1)


def _variables(cells: Tensor) -> Tensor:
    """Variables with a cell, (B, C, 1, 1, 1)."""
    return cells.flatten(2).any(-1)[..., None, None, None]


def _frames(cells: Tensor) -> Tensor:
    """Frames with a cell, (B, C, T, 1, 1)."""
    return cells.flatten(3).any(-1)[..., None, None]
