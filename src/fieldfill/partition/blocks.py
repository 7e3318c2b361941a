"""Whole blocks of a regular grid (Alg. 5 of the paper)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.masks.fixed import block_labels
from fieldfill.partition.structures import Ties, UnitPartition, Units

__all__ = ["BlockPartition"]


@dataclass(frozen=True)
class BlockPartition(UnitPartition):
    r"""Keeps k of the n observed blocks as context.

    With m missing blocks, context = observed minus one and query = that block, every block b outside the
    context has :math:`P(qry_b | ctx) = 1 / (m + 1)`.

    Parameters
    ----------
    rows, cols : int
        The block grid, as in :class:`fieldfill.masks.BlockMask`.
    context_blocks : int, (lo, hi) or None
        k; a range draws k uniformly per row (cut at n - 1); None is n - 1.
    query : "removed" or int
        "removed": the query is the observed blocks outside the context. A number: that many observed blocks,
        drawn independently of the context, exactly as printed in the paper.

    A row (or a frame or variable with blocks of its own) that has too few observed blocks is not split.
    """

    rows: int = 3
    cols: int = 3
    context_blocks: int | tuple[int, int] | None = None
    query: Literal["removed"] | int = "removed"

    def __post_init__(self) -> None:
        k = self.context_blocks
        lo, hi = k if isinstance(k, tuple) else (k or 1, k or 1)
        if not 1 <= lo <= hi or k == 0:
            raise InputError(f"context_blocks is {k}: give a number >= 1, a range (lo, hi) or None")
        if self.query != "removed" and self.query < 1:
            raise InputError(f"query is {self.query}: give 'removed' or a number of blocks >= 1")

    def units(self, observed: Tensor) -> Units:
        H, W = observed.shape[-2:]
        labels = block_labels(H, W, self.rows, self.cols).flatten()
        ties = Ties.find(observed)

        def pool(cells: Tensor) -> Tensor:
            return ties.pool(_any_in_block(cells, labels, self.rows * self.cols))

        def spread(units: Tensor) -> Tensor:
            return ties.spread(units)[..., 0, labels].unflatten(-1, (H, W))

        return Units(pool(observed), pool, spread)

    def choose(self, live: Tensor, keep: float | None, generator: Generator) -> Tensor:
        n = live.sum(-1, keepdim=True)
        k = torch.round(keep * n).long().clamp(min=1) if keep is not None else self._context_size(n, generator)
        return _some(live, k, generator)

    def context_range(self, n: Tensor) -> tuple[Tensor, Tensor]:
        """Least and most context blocks of slices with ``n`` observed blocks; least > most: not to be
        split."""
        spare = 1 if self.query == "removed" or self.context_blocks is None else 0
        most = n - spare
        if self.context_blocks is None:
            return most.clamp(min=1), most
        lo, hi = self.context_blocks if isinstance(self.context_blocks, tuple) else (self.context_blocks,) * 2
        return torch.full_like(n, lo), most.clamp(max=hi)

    def _context_size(self, n: Tensor, generator: Generator) -> Tensor:
        """k for slices with ``n`` observed blocks; n itself where the slice cannot be split."""
        lo, hi = self.context_range(n)
        u = torch.rand((len(n), *[1] * (n.ndim - 1)), generator=generator)
        return torch.where(lo <= hi, lo + (u * (hi - lo + 1)).long(), n)

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        if self.query == "removed":
            return super().split(observed, generator)
        units = self.units(observed)
        live = units.live
        n = live.sum(-1, keepdim=True)
        context = _some(live, self._context_size(n, generator), generator)
        lo, hi = self.context_range(n)
        enough = (lo <= hi) & (n >= self.query)
        query = _some(live, torch.where(enough, self.query, 0), generator)
        return observed & units.spread(context), observed & units.spread(query)

    def kept(self, n: int, keep: float | None) -> int | None:
        if keep is not None:
            return max(1, round(keep * n))
        if isinstance(self.context_blocks, tuple):
            return None
        return n - 1 if self.context_blocks is None else min(n, self.context_blocks)

    def left_out(self, n: Tensor, keep: float | None, generator: Generator) -> Tensor:
        k = torch.round(keep * n).long().clamp(min=1) if keep is not None else self._context_size(n, generator)
        return n - torch.minimum(k, n)


def _any_in_block(observed: Tensor, labels: Tensor, blocks: int) -> Tensor:
    """Blocks with an observed cell, (B, C, T, 1, blocks) bool."""
    cells = observed.flatten(3).to(torch.int32)
    counts = torch.zeros((*cells.shape[:-1], blocks), dtype=torch.int32).index_add_(-1, labels, cells)
    return (counts > 0).unsqueeze(-2)


def _some(live: Tensor, k: Tensor, generator: Generator) -> Tensor:
    """A uniform choice of k of the live units along the last dimension."""
    u = torch.where(live, torch.rand(live.shape, generator=generator), 2)
    return live & (u.argsort(-1).argsort(-1) < k)
