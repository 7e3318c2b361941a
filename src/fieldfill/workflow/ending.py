"""The end of a fit: contexts are chosen and intervals calibrated on held-out cells, within the time that is left.

How long this takes is measured before training begins, so that training can leave the time for it. Where the time of
a fit is not limited, every validation crop takes part.
"""

import math
import time
from dataclasses import dataclass

from torch import Generator

from fieldfill.config import Settings
from fieldfill.data.crops import Crops
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import Ensemble, single_step
from fieldfill.seeds import stream
from fieldfill.stages import Stages
from fieldfill.uncertainty.calibration import Calibration
from fieldfill.uncertainty.held_cells import affordable, calibrate, choose_ensemble

__all__ = ["Ending"]

# Ways to fill with contexts that are compared with all observations at once.
WAYS = 3
# Share of the time left after the first estimate that the end may take.
SHARE = 0.4
# Crops that a choice of contexts needs, and intervals that rest on several passes over each.
LEAST_JUDGED = 2
LEAST_CALIBRATED = 12
# What is expected on top of the passes, as a share of them: distances in gaps, weights, fits.
OVERHEAD = 0.3


@dataclass(frozen=True)
class Ending:
    """What the end of a fit can afford.

    Attributes
    ----------
    each
        seconds of one pass over one crop.
    judged
        crops on which contexts are compared; 0 leaves them out.
    """

    denoiser: Denoiser
    partition: Partition
    crops: Crops
    settings: Settings
    stages: Stages
    each: float
    judged: int

    @classmethod
    def of(
        cls,
        denoiser: Denoiser,
        partition: Partition,
        crops: Crops,
        settings: Settings,
        seed: int,
        stages: Stages,
    ) -> "Ending":
        """Measures a pass over one validation crop, if the time of the fit is limited."""
        passes = WAYS * settings.contexts + 1 if settings.choose_contexts else settings.contexts
        judged = affordable(max(1, passes) * crops.cells)
        if not stages.limited:
            return cls(denoiser, partition, crops, settings, stages, 0.0, judged)
        denoiser.eval()
        begun = time.monotonic()
        batch, _ = crops.held_out([0])
        single_step(denoiser, batch.x, batch.observed, batch.maps, partition, Ensemble(0), stream(seed, "choice"))
        each = stages.agreed((1 + OVERHEAD) * (time.monotonic() - begun))
        room = SHARE * stages.left - each * len(crops.held)
        judged = min(judged, max(0, math.floor(room / max(1e-9, each * passes))))
        return cls(denoiser, partition, crops, settings, stages, each, judged if judged >= LEAST_JUDGED else 0)

    @property
    def seconds(self) -> float:
        """Expected time of the choice and of a calibration with all observations at once."""
        passes = WAYS * self.settings.contexts + 1
        return self.each * (passes * self.judged + self._calibrated(SHARE * self.stages.left))

    def _calibrated(self, seconds: float, passes: int = 1) -> int:
        """Crops that intervals can rest on; fewer than a dozen would be worse than some seconds more."""
        every = len(self.crops.held)
        fewest = LEAST_CALIBRATED if passes == 1 else 1
        return min(every, max(fewest, math.floor(seconds / (self.each * passes)))) if self.each else every

    def choose(self, generator: Generator) -> tuple[Ensemble, dict[str, float]]:
        """How to fill, and the errors of the ways that were compared."""
        self.stages.begin("contexts")
        keep = self.settings.keep if self.settings.choose_contexts else None
        contexts = self.settings.contexts if self.judged or keep is None else 0
        found, scores = choose_ensemble(
            self.denoiser, self.partition, self.crops, contexts, keep, generator, self.judged or None
        )
        few = self.stages.limited and self._calibrated(self.stages.left, found.count or 1) < LEAST_CALIBRATED
        return (Ensemble(0) if few and keep is not None else found), scores

    def calibrated(self, ensemble: Ensemble, generator: Generator) -> Calibration:
        """The calibration of fills with ``ensemble``."""
        self.stages.begin("calibration")
        most = self._calibrated(self.stages.left, ensemble.count or 1) if self.stages.limited else None
        return calibrate(self.denoiser, self.partition, self.crops, ensemble, generator, most)
