"""Features of a cell and its context, from which P(query | context) is estimated.

A *slice* is one variable and frame of one crop. For every cell of a slice the features describe the context
around it in space (box means at several scales, and a star of box means in eight directions), in time
(neighbouring frames, share of all frames, any frame) and across variables, so that whatever a network could
use to distinguish a cell hidden by nature from a cell hidden by the partition – an isolated hole, a missing block, a
frame, a static mask – is visible.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BOXES", "describe"]

# Sides of the boxes around a cell, in cells.
BOXES = (3, 5, 9, 17, 33)
# Distances of the eight points around a cell, and sides of their boxes, in cells.
STAR = ((2, 3), (5, 5), (12, 9))
# Directions of these points: rows and columns.
EIGHT = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def describe(context: Tensor, variable: Tensor, frame: Tensor, domain: Tensor, seen: Tensor) -> Tensor:
    """Features of all cells of one slice per crop, (B, H, W, F) float32.

    Parameters
    ----------
    context : Tensor
        (B, C, T, H, W) bool.
    variable, frame : Tensor
        Which slice of each crop, (B,) int64.
    domain : Tensor
        (B, C, H, W) bool.
    seen : Tensor
        How often each cell is observed, (B, C, H, W) float: the prior knowledge of a place.
    """
    rows = torch.arange(len(context))
    T = context.shape[2]
    land = domain[rows, variable].float()
    movie = context[rows, variable].float()
    here = movie[rows, frame]
    before, after = movie[rows, (frame - 1).clamp(min=0)], movie[rows, (frame + 1).clamp(max=T - 1)]
    mean, others = movie.mean(1), context[rows, :, frame].float().mean(1)
    anything = context.flatten(1, 2).any(1).float()
    local = [before, after, mean, (mean > 0).float(), others, anything, seen[rows, variable]]
    ground = _integral(land)
    for m in (here, mean, others):
        integral = _integral(m * land)
        local += [_box(integral, ground, size) for size in BOXES]
    integral = _integral(here * land)
    local += [m for distance, size in STAR for m in _star(_box(integral, ground, size), distance)]
    overall = [m.flatten(1).mean(1)[:, None, None].expand_as(here) for m in (here, mean, others, before, after)]
    lit = movie.flatten(2).any(-1).float().mean(1)[:, None, None].expand_as(here)
    return torch.stack([*local, *overall, lit, *_place(here)], dim=-1)


def _integral(m: Tensor) -> Tensor:
    """Sums of ``m`` (B, H, W) over all cells above and left, (B, H + 1, W + 1): any box sum is four
    look-ups."""
    return F.pad(m.cumsum(-2).cumsum(-1), (1, 0, 1, 0))


def _box(integral: Tensor, ground: Tensor, size: int) -> Tensor:
    """Mean (B, H, W) over the domain cells of a square of ``size`` around each cell."""
    H, W = integral.shape[-2] - 1, integral.shape[-1] - 1
    top, left = ((torch.arange(n) - size // 2).clamp(min=0) for n in (H, W))
    bottom, right = ((torch.arange(n) + size // 2 + 1).clamp(max=n) for n in (H, W))

    def total(s: Tensor) -> Tensor:
        tall = s[:, bottom] - s[:, top]
        return tall[:, :, right] - tall[:, :, left]

    return total(integral) / total(ground).clamp(min=1e-6)


def _star(m: Tensor, distance: int) -> list[Tensor]:
    """``m`` (B, H, W) looked up at eight points around each cell, -1 beyond the edge."""
    H, W = m.shape[-2:]
    wide = F.pad(m, (distance,) * 4, value=-1.0)
    ways = [(distance * (1 + dy), distance * (1 + dx)) for dy, dx in EIGHT]
    return [wide[:, y : y + H, x : x + W] for y, x in ways]


def _place(here: Tensor) -> list[Tensor]:
    H, W = here.shape[-2:]
    y = torch.linspace(-1, 1, H)[:, None].expand_as(here)
    x = torch.linspace(-1, 1, W)[None, :].expand_as(here)
    return [y, x]
