r"""Crops that drift: each is conditioned in a frame that moves with its own pattern.

One drift for the whole record is not enough where every crop has its own. If the values of some crops show one
clearly (`fieldfill.estimators.velocity`), a second Gaussian field is learnt from these crops, each moved back by its
own drift. It starts with the covariance that the common field has within a frame, times exp(-τ / memory), and goes on
with expectation–maximisation. It is kept if it lowers the held-out error.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fieldfill.data.crops import Place
from fieldfill.estimators.base import Claim, Given, Lesson, Source
from fieldfill.estimators.chain import BATCH_CELLS
from fieldfill.estimators.gaussian.field import GaussianLaw, LearntField
from fieldfill.estimators.gaussian.learning import (
    CovarianceSearch,
    GaussianSettings,
    complete_crops,
)
from fieldfill.estimators.velocity import estimate_drift, fastest_drift

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Drift", "DriftSettings"]

# Fewest frames of a crop in which a drift can be distinguished from change.
LEAST_FRAMES = 3


@dataclass(frozen=True)
class DriftSettings:
    """When crops count as drifting, and how their covariance is searched for.

    Attributes
    ----------
    fastest
        drift along each axis at most, in cells per frame.
    clarity
        share of the differences between frames that a clear drift may leave.
    cells
        that are judged and completed, as a multiple of those for the common field: what moves unchanged shows each
        wave only once in a crop.
    searched, least_clear
        crops whose drift is estimated, and the share of them that must drift clearly.
    memories
        times exp(-τ / memory) that are tried for the first covariance, in crops.
    rounds
        of expectation–maximisation at most.
    least_nugget
        smallest nugget: with less the equations take many more steps and the answer is the same.
    hopeless
        multiple of the common field's error above which no further round is tried.
    least_better
        relative gain of the held-out error for which the second field is kept.
    """

    fastest: Annotated[float, Gt(0), Le(64)] = 4.0
    clarity: Annotated[float, Gt(0), Le(1)] = 0.8
    cells: int = 2
    searched: int = 64
    least_clear: float = 0.1
    memories: tuple[float, ...] = (4.0, 1.0, 0.25)
    rounds: int = 4
    least_nugget: float = 0.003
    hopeless: float = 1.2
    least_better: float = 0.02


class Drift(Source):
    """Answers the crops whose values show a clear drift.

    Parameters
    ----------
    common
        the field of all crops: its shape, and the covariance to begin with.
    settings
        when a crop counts as drifting.
    search
        how the covariance of a record is searched for.
    """

    name: ClassVar[str] = "drift"
    optional: ClassVar[bool] = True
    field: LearntField | None

    def __init__(
        self, common: LearntField, settings: DriftSettings | None = None, search: GaussianSettings | None = None
    ) -> None:
        super().__init__()
        self.settings, self.search = settings or DriftSettings(), search or GaussianSettings()
        self._common = (common,)  # in a tuple, so that it is not a part of this module as well
        self.field = None

    def claim(self, given: Given) -> Claim | None:
        if self.field is None:
            return None
        drift, clear = self.drifts(given.y, given.context)
        if not clear.any():
            return None
        return Claim(clear.nonzero()[:, 0], GaussianLaw(self.field, drift[clear]))

    @torch.no_grad()
    def drifts(self, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Drift (B, 2) of crops y (B, C, T, H, W) seen at ``context``, and whether it is clear (B,); 0 if not."""
        (common,), settings = self._common, self.settings
        fastest = fastest_drift(common.shape[2:], common.torus, common.shape[1], settings.fastest)
        return estimate_drift(y, context, common.torus, fastest, settings.clarity)

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        (common,), settings = self._common, self.settings
        self.field = None
        places, drifts = self._clear_windows(lesson) if common.shape[1] >= LEAST_FRAMES else ([], torch.zeros(0, 2))
        if not places:
            return {"used": 0.0}
        judged = settings.cells * chain.settings.judged_cells
        before = chain.source_errors(lesson, judged).summary.mean
        self.field = common.empty()
        search = CovarianceSearch(self.field, lesson, chain, judged)
        nugget = max(settings.least_nugget, common.nugget.item())
        for memory in settings.memories:
            search.attempt(_fading(common, memory * common.shape[1]), math.inf, (0.0, 0.0), nugget)
        for turn in range(settings.rounds):
            if lesson.stages.late():
                break
            search.restore()
            last = search.best["validation"]
            covariance, nugget = complete_crops(self.field, lesson.crops, places, lesson.generator, drifts)
            for taper in (math.inf, self.search.tapers[0]) if turn == 0 else (search.taper,):
                search.attempt(covariance, taper, (0.0, 0.0), max(settings.least_nugget, nugget))
            gain = (1 - self.search.least_gain) * last
            if search.best["validation"] > min(gain, settings.hopeless * before):
                break
            lesson.stages.advance(f"held-out error {search.best['validation']:.4f}")
        search.restore()
        if search.best["validation"] > (1 - settings.least_better) * before:
            self.field = None
            return {"used": 0.0}
        found = {name: search.best[name] for name in ("taper", "nugget", "validation")}
        found |= {"used": 1.0, "speed": drifts.norm(dim=1).median().item(), "before": before}
        return {key: value for key, value in found.items() if math.isfinite(value)}

    def _clear_windows(self, lesson: Lesson) -> tuple[list[Place], Tensor]:
        """Some crops that show a clear drift, and these drifts (N, 2); none if they are few."""
        crops = lesson.crops
        places = crops.some(self.settings.searched, lesson.generator)
        step = max(1, BATCH_CELLS // crops.cells)
        batches = [crops.training(places[i : i + step]) for i in range(0, len(places), step)]
        drifts, clear = (torch.cat(part) for part in zip(*(self.drifts(b.x, b.observed) for b in batches)))
        if clear.float().mean() < self.settings.least_clear:
            return [], drifts[:0]
        kept = clear.nonzero()[: max(2, self.settings.cells * self.search.completed_cells // crops.cells), 0]
        return [places[i] for i in kept.tolist()], drifts[kept]

    def set_effort(self, effort: float) -> None:
        if self.field is not None:
            self.field.effort.fill_(effort)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        # Whether there is a second field is learnt; what it holds is loaded next, as a part of this module.
        (common,) = self._common
        self.field = common.empty() if f"{prefix}field.factor" in state_dict else None
        super()._load_from_state_dict(state_dict, prefix, *args)


def _fading(field: LearntField, memory: float) -> Tensor:
    """Covariance (C, C, T, rows, columns) that is that of ``field`` within a frame and fades with the lag."""
    spectrum = field.frame_covariance().permute(2, 1, 0).unflatten(2, (field.torus[0], -1))
    within = torch.fft.irfft2(spectrum, s=field.torus)
    return within[:, :, None] * torch.exp(-torch.arange(float(field.shape[1])) / memory)[:, None, None]
