r"""Crops that obey linear equations of their own (waves, flows in balance): each reveals its propagator.

The equations of a crop follow from its values (`fieldfill.estimators.propagator`); the record adds the covariance of
a frame, in units of the amplitudes of its crop. It starts with the one that the common field has within a frame. Then
come rounds of expectation–maximisation: crops are completed by posterior draws, which obey their equations, and the
covariance is the mean over all their frames.

The law is kept if enough crops reveal their equations clearly and if it lowers the held-out error.
"""

import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, Place
from fieldfill.estimators.base import Claim, Given, Lesson, Source
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.pairs import mean_over_modes
from fieldfill.estimators.propagator import Equations, WaveLaw, WavesSettings

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Waves"]

# Fewest frames of a crop from which equations can be learnt.
LEAST_FRAMES = 4
# Cells of the crops that are completed together.
BATCH_CELLS = 2**19
# Time of an answer, in steps of the network.
COST = 9.0


class Waves(Source):
    """Answers the crops that clearly obey linear equations.

    Parameters
    ----------
    common
        the field of all crops: its shape, and the covariance to begin with.
    settings
        when a crop counts as waves.
    """

    name: ClassVar[str] = "waves"
    optional: ClassVar[bool] = True
    equations: Equations | None

    def __init__(self, common: LearntField, settings: WavesSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or WavesSettings()
        self._common = (common,)  # in a tuple, so that it is not a part of this module as well
        self.equations = None

    def claim(self, given: Given) -> Claim | None:
        if self.equations is None:
            return None
        noise = given.noise.flatten(1).amax(1) if given.noise.ndim else given.noise
        noise = noise.expand(len(given.y))
        quiet = (noise <= self.settings.loudest).nonzero()[:, 0]
        if not len(quiet):
            return None
        calm = given.rows(quiet)
        own, clear = self.equations.estimate(calm.y, calm.context, noise[quiet])
        return Claim(quiet[clear], WaveLaw(self.equations, own)) if clear.any() else None

    @property
    def cost(self) -> float:
        return COST if self.equations is not None else 0.0

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        (common,), settings = self._common, self.settings
        crops, frames = lesson.crops, common.shape[1]
        self.equations = None
        unit = _unit(crops)
        if frames < LEAST_FRAMES or unit is None:
            return {"used": 0.0}
        places = crops.some(settings.searched, lesson.generator)

        def error() -> float:
            return chain.source_errors(lesson, settings.judged * crops.cells).summary.mean

        before = error()
        self.equations = law = Equations(common.shape, common.torus, settings).train(common.training)
        law.unit.copy_(unit.expand_as(law.unit))
        batches = {place: crops.training([place]) for place in places}
        clear = [p for p, b in batches.items() if law.estimate(b.x, b.observed, torch.zeros(()))[1]]
        share = len(clear) / len(places)
        if share < settings.least_clear:
            self.equations = None
            return {"used": 0.0}
        clear = clear[: max(settings.completed, settings.completed_cells // crops.cells)]
        law.set_covariance(_of_unit_variance(common.frame_covariance(), common.torus))
        best, state = math.inf, law.state_dict()
        for _ in range(settings.rounds):
            if math.isfinite(best) and lesson.stages.late():
                break
            last = best
            law.set_covariance(_completed(law, crops, clear, lesson.generator))
            for nugget in settings.nuggets:
                law.nugget.fill_(nugget)
                found = error()
                if found < best:
                    best, state = found, {name: value.clone() for name, value in law.state_dict().items()}
            law.nugget.copy_(state["nugget"])
            if best > (1 - settings.least_gain) * last:
                break
            lesson.stages.advance(f"held-out error {best:.4f}")
        law.load_state_dict(state)
        if best > (1 - settings.least_better) * before:
            self.equations = None
            return {"used": 0.0}
        return {"used": 1.0, "share": share, "nugget": law.nugget.item(), "before": before, "validation": best}

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        # Whether there is such a law is learnt; what it holds is loaded next, as a part of this module.
        (common,) = self._common
        self.equations = None
        if f"{prefix}equations.root" in state_dict:
            self.equations = Equations(common.shape, common.torus, self.settings).train(self.training)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _unit(crops: Crops) -> Tensor | None:
    """Scale (C, 1, H, W) or (C, 1, 1, 1) of every cell of a crop, to undo the maps of a normaliser.

    Equations that are the same everywhere hold for values of one scale. None if crops differ in their scale.
    """
    scale = crops.scale_at(crops.place(0))[:, None]
    if scale[0].numel() > 1 and crops.places_in_space > 1:
        return None
    return scale / scale.mean((2, 3), keepdim=True)


def _completed(law: Equations, crops: Crops, places: list[Place], generator: Generator) -> Tensor:
    """Covariance (K, C, C) of the frames of completed crops."""
    batch = max(1, BATCH_CELLS // crops.cells)
    total = torch.zeros(())
    for first in range(0, len(places), batch):
        part = crops.training(places[first : first + batch])
        x, observed = part.x, part.observed
        own, clear = law.estimate(x, observed, torch.zeros(()))
        fields = law.complete(x[clear], observed[clear], generator, own)
        modes = torch.fft.rfft2(fields).flatten(3).permute(3, 1, 0, 2).flatten(2)
        total = total + modes @ modes.mH
    return _of_unit_variance(total, law.torus)


def _of_unit_variance(covariance: Tensor, torus: tuple[int, int]) -> Tensor:
    """A covariance (K, C, C) by which every variable has the variance 1."""
    variance = mean_over_modes(covariance.diagonal(dim1=1, dim2=2).real, torus)
    unit = variance.clamp(min=1e-12).rsqrt()
    return covariance * unit[:, None] * unit
