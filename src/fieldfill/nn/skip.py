r"""Skips: cheap linear estimates of the complete field that a network then only has to correct.

A skip maps (x, context, alpha_t, sigma_t) to an estimate of x_0, all (B, C, T, H, W). It may be any function of
the context, so a good interpolation costs the method nothing and saves the network most of its work.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PullPush", "pull", "push", "zero_skip"]


class PullPush(nn.Module):
    r"""Interpolates by averaging context cells into ever coarser cells (pull) and filling back down (push).

    A cell without data takes the estimate of the next coarser level; a cell with weight w < 1 blends the two. The
    result is scaled by alpha_t, the shrinkage of unit-variance data under noise, and by nothing as t → 0.

    Reference: The lumigraph (1996), where the scheme fills scattered samples of images.

    Arguments
    ---------
    frames
        whether neighbouring frames are averaged together as well as neighbouring cells.
    """

    def __init__(self, frames: bool = True) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, x: Tensor, context: Tensor, alpha_t: Tensor, sigma_t: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        weight = context.to(x.dtype).reshape(b * c, 1, t, h, w)
        values = x.reshape(b * c, 1, t, h, w) * weight
        pyramid = [(values, weight)]
        while max(values.shape[-2:]) > 1 or (self.frames and values.shape[-3] > 1):
            size = [min(2, n) for n in values.shape[-3:]]
            if not self.frames:
                size[0] = 1
            values, weight = pull(values, size), pull(weight, size)
            pyramid.append((values, weight))
        estimate = values / weight.clamp(min=1e-6)
        for values, weight in reversed(pyramid[:-1]):
            coarse = F.interpolate(estimate, size=values.shape[-3:], mode="trilinear", align_corners=False)
            trust = weight.clamp(max=1)
            estimate = trust * values / weight.clamp(min=1e-6) + (1 - trust) * coarse
        return alpha_t * estimate.reshape(b, c, t, h, w)


def pull(x: Tensor, size: Sequence[int]) -> Tensor:
    """Sums x (..., T, H, W) over cells of ``size``; the last cell of an axis may be smaller."""
    padding: list[int] = []
    for length, step in zip(reversed(x.shape[-3:]), reversed(size)):
        padding += [0, -length % step]
    return F.avg_pool3d(F.pad(x, padding), list(size), divisor_override=1)


def push(x: Tensor, size: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Repeats coarse cells x (..., T', H', W') over cells of ``size``; the transpose of `pull` on (..., T, H, W)."""
    for axis, (step, length) in enumerate(zip(size, shape[-3:]), start=-3):
        x = x.repeat_interleave(step, dim=axis).narrow(axis, 0, length)
    return x


def zero_skip(x: Tensor, context: Tensor, alpha_t: Tensor, sigma_t: Tensor) -> Tensor:
    """No skip: the network predicts the field itself, as in the paper."""
    return torch.zeros_like(x)
