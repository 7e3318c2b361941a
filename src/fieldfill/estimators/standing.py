r"""Correction by the standing pattern: fine detail of a place that stays while the weather above it changes.

A lake, a ridge or a field keeps its place in the picture for years. Where a cell is missing in all frames of a crop,
its surroundings give an estimate without that detail; frames of the record beyond the crop have shown it. With m and s
the mean of a cell at other times and how much it can be relied on (`fieldfill.data.other_times`), g the estimate of the
steps before, and <·> a mean over some cells around with the weights s,

.. math:: d = m - s \, (g - \langle g - m / s \rangle)

is by how much the cell stands out more at other times than in the estimate. The means <·> take out what differs between
the times: the season, the weather. One weight of d for each variable is learnt from crops with known values
(`fieldfill.estimators.regression`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fieldfill.estimators.base import Answer, Correction, Given, Lesson
from fieldfill.estimators.neighbourhood import blurred
from fieldfill.estimators.regression import weights_of_parts

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Standing", "StandingSettings"]


@dataclass(frozen=True)
class StandingSettings:
    """What is taken for a standing pattern.

    Attributes
    ----------
    around
        width of the Gaussian over which a cell is compared with its surroundings, in cells.
    weight
        prior weight of the mean of a cell, in values; where fewer were seen it counts little.
    rounds
        in which means of cells and offsets of frames take turns.
    """

    around: Annotated[float, Gt(0), Le(64)] = 5.0
    weight: Annotated[float, Gt(0)] = 0.5
    rounds: Annotated[int, Ge(1)] = 4


class Standing(Correction):
    """Correction of a first estimate by what the record shows of each cell at other times.

    Parameters
    ----------
    variables
        number of variables C; the last 2C maps of a crop are those of other times.
    periodic
        whether rows and columns close on themselves.
    settings
        what is compared with what.
    """

    name: ClassVar[str] = "standing"
    features: ClassVar[int] = 1
    weights: Tensor

    def __init__(self, variables: int, periodic: tuple[bool, bool], settings: StandingSettings | None = None) -> None:
        super().__init__()
        self.periodic, self.settings = periodic, settings or StandingSettings()
        self.register_buffer("weights", torch.zeros(variables, 1))

    def correct(self, given: Given, estimate: Tensor) -> Answer:
        detail = self.detail(given, estimate)
        weight = self.weights[..., None, None] * given.unseen()
        return Answer(estimate + weight * detail, fields=(detail,))

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        _, weights = weights_of_parts(lesson.examples, lambda example: [self.detail(example.given, example.estimate)])
        self.weights.copy_(weights)
        return {"weight": float(weights.mean())}

    def forget(self) -> None:
        self.weights.zero_()

    def detail(self, given: Given, estimate: Tensor) -> Tensor:
        """The pattern d (B, C, T, H, W) that the estimate lacks."""
        mean, share = given.maps[:, -2 * estimate.shape[1] :, None].split(estimate.shape[1], dim=1)
        lack = mean - share * estimate
        level, weight = (blurred(part, self.settings.around, self.periodic) for part in (lack, share))
        return lack - share * level / weight.clamp(min=1e-3)
