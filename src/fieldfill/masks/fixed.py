"""Masks made of whole units seen or not seen: pixels, blocks, stations, frames, variables.

``observed`` is the share p of units seen (for blocks a number of blocks); ``static`` masks are constant over
the frames of a sample; ``shared`` masks are the same for all variables of a sample.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.masks.mask_model import MaskModel, Shape, check_share, draw_share

__all__ = ["BlockMask", "FrameDropout", "PixelMask", "SensorMask", "VariableDropout", "block_labels"]


def block_labels(height: int, width: int, rows: int, cols: int) -> Tensor:
    """Block number of each cell, shape (H, W), int64: rows * cols blocks as equal as the grid allows."""
    if not (1 <= rows <= height and 1 <= cols <= width):
        raise InputError(f"{rows}x{cols} blocks on a grid of {height}x{width}: give 1 to H rows and 1 to W columns")
    row = torch.arange(height) * rows // height
    col = torch.arange(width) * cols // width
    return row[:, None] * cols + col[None, :]


@dataclass(frozen=True)
class PixelMask(MaskModel):
    """Every cell is observed with probability ``observed`` (a range: one probability per sample)."""

    observed: float | tuple[float, float] = 0.3
    static: bool = True
    shared: bool = True

    def __post_init__(self) -> None:
        check_share(self.observed, "observed")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        B, C, T, H, W = shape
        p = draw_share(self.observed, B, generator).view(B, 1, 1, 1, 1)
        u = torch.rand((B, 1 if self.shared else C, 1 if self.static else T, H, W), generator=generator)
        return (u < p).expand(shape).contiguous()


@dataclass(frozen=True)
class BlockMask(MaskModel):
    """The grid is cut into ``rows`` x ``cols`` blocks, of which exactly ``observed`` are seen.

    Examples
    --------
    >>> import torch
    >>> mask = BlockMask(rows=1, cols=3, observed=2).sample((1, 1, 1, 2, 6), torch.Generator().manual_seed(0))
    >>> mask[0, 0, 0].int()
    tensor([[1, 1, 0, 0, 1, 1],
            [1, 1, 0, 0, 1, 1]], dtype=torch.int32)
    """

    rows: int = 3
    cols: int = 3
    observed: int = 8
    static: bool = True
    shared: bool = True

    def __post_init__(self) -> None:
        blocks = self.rows * self.cols
        if not 1 <= self.observed <= blocks:
            raise InputError(f"{self.observed} observed blocks of {blocks}: give a number from 1 to {blocks}")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        B, C, T, H, W = shape
        labels = block_labels(H, W, self.rows, self.cols)
        slices = (B, 1 if self.shared else C, 1 if self.static else T)
        rank = torch.rand((*slices, self.rows * self.cols), generator=generator).argsort(-1)
        seen = torch.zeros(rank.shape, dtype=torch.bool).scatter_(-1, rank[..., : self.observed], True)
        return seen[..., labels.flatten()].unflatten(-1, (H, W)).expand(shape).contiguous()


@dataclass(frozen=True)
class SensorMask(MaskModel):
    """``stations`` cells hold a sensor for the whole sample; each reading is lost with probability
    ``dropout``.

    ``fixed`` keeps one network of stations for all samples of a call: the cells between them are then never
    observed, and no partition can teach them.
    """

    stations: int = 50
    dropout: float = 0.1
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.stations < 1 or not 0 <= self.dropout < 1:
            raise InputError(f"{self.stations} stations, dropout {self.dropout}: give at least 1 and a share in [0, 1)")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        B, _, _, H, W = shape
        if self.stations > H * W:
            raise InputError(f"{self.stations} stations on {H * W} cells: give fewer stations")
        u = torch.rand((1 if self.fixed else B, H * W), generator=generator)
        where = u.topk(self.stations, dim=-1).indices
        network = torch.zeros(u.shape, dtype=torch.bool).scatter_(-1, where, True).view(-1, 1, 1, H, W)
        return network & (torch.rand(shape, generator=generator) >= self.dropout)


def _at_least_one(u: Tensor, p: float) -> Tensor:
    """Bernoulli(p) along the last dimension of uniform ``u``, the smallest always kept."""
    return (u < p) | (u == u.amin(-1, keepdim=True))


@dataclass(frozen=True)
class FrameDropout(MaskModel):
    """Whole frames are observed with probability ``observed``; at least one frame of a sample is."""

    observed: float = 0.7
    shared: bool = True

    def __post_init__(self) -> None:
        check_share(self.observed, "observed")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        B, C, T, _, _ = shape
        u = torch.rand((B, 1 if self.shared else C, T), generator=generator)
        return _at_least_one(u, self.observed)[..., None, None].expand(shape).contiguous()


@dataclass(frozen=True)
class VariableDropout(MaskModel):
    """Whole variables are observed with probability ``observed``; at least one variable of a sample is."""

    observed: float = 0.7

    def __post_init__(self) -> None:
        check_share(self.observed, "observed")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        B, C, _, _, _ = shape
        u = torch.rand((B, C), generator=generator)
        return _at_least_one(u, self.observed)[..., None, None, None].expand(shape).contiguous()
