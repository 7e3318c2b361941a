"""The estimator that most of a fill rests on: the conditional mean of a Gaussian field learnt from the record."""

from typing import TYPE_CHECKING, ClassVar

import torch

from fieldfill.estimators.base import Claim, Given, Law, Lesson, Source
from fieldfill.estimators.gaussian.field import GaussianLaw, LearntField, red_factor
from fieldfill.estimators.gaussian.learning import GaussianSettings, learn_covariance
from fieldfill.estimators.gaussian.pairs import enlarged

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Gaussian"]


class Gaussian(Source):
    """Answers every crop by a Gaussian field with the covariance of the record.

    Parameters
    ----------
    field
        whose covariance is learnt.
    settings
        how it is searched for.
    """

    name: ClassVar[str] = "gaussian"
    draws: ClassVar[bool] = True

    def __init__(self, field: LearntField, settings: GaussianSettings | None = None) -> None:
        super().__init__()
        self.field, self.settings = field, settings or GaussianSettings()

    def claim(self, given: Given) -> Claim:
        return Claim(torch.arange(len(given.y), device=given.y.device), GaussianLaw(self.field))

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        return learn_covariance(self.field, lesson, chain, self.settings)

    def set_effort(self, effort: float) -> None:
        self.field.effort.fill_(effort)

    @property
    def iterations(self) -> int:
        return self.field.steps

    def rehearse(self) -> None:
        self.field.set_covariance(red_factor(self.field))

    def on_grid(self, grid: tuple[int, int], periodic: tuple[bool, bool]) -> Law:
        return GaussianLaw(enlarged(self.field, grid, periodic))
