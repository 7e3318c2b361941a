"""Pull–push interpolation: a cheap first estimate that needs no learning."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldfill.estimators.base import Claim, Given, Lesson, Source

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Interpolation", "PullPush", "pull"]


class PullPush(Source):
    """Answers every crop by pull–push interpolation over neighbouring cells and frames."""

    name: ClassVar[str] = "pull-push"

    def claim(self, given: Given) -> Claim:
        return Claim(torch.arange(len(given.y), device=given.y.device), Interpolation())

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class Interpolation:
    r"""Averages context cells into ever coarser cells (pull) and fills back down (push).

    A cell without data takes the estimate of the next coarser level; a cell with weight w < 1 blends the two. The
    result is divided by 1 + noise, the shrinkage of unit-variance data under noise.

    Reference: The lumigraph (1996), where the scheme fills scattered samples of images.

    Attributes
    ----------
    frames
        whether neighbouring frames are averaged together as well as neighbouring cells.
    """

    frames: bool = True

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        b, c, t, h, w = given.y.shape
        weight = given.context.to(given.y.dtype).expand_as(given.y).reshape(b * c, 1, t, h, w)
        values = given.y.reshape(b * c, 1, t, h, w) * weight
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
        return estimate.reshape(b, c, t, h, w) / (1 + given.noise)


def pull(x: Tensor, size: Sequence[int]) -> Tensor:
    """Sums x (..., T, H, W) over cells of ``size``; the last cell of an axis may be smaller."""
    padding: list[int] = []
    for length, step in zip(reversed(x.shape[-3:]), reversed(size)):
        padding += [0, -length % step]
    return F.avg_pool3d(F.pad(x, padding), list(size), divisor_override=1)
