"""Error of the mean over random, balanced and enumerated contexts, and of all observations at once.

Part of the study ``uncertainty.py``, which measures it on trained models.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import fieldfill as ff
from fieldfill.bench.cases import Case, Data, Scale
from fieldfill.config import build_partition
from fieldfill.data.crops import Batch
from fieldfill.data.record import open_record
from fieldfill.diffusion.denoiser import Denoiser, noised
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import Ensemble

# Test samples.
SOME = 6
# Random contexts of a set.
MANY = 20
# Draws of balanced sets.
DRAWS = 16
# Draws of either where few contexts exist: each distinct one is estimated once.
FEW_DRAWS = 300


def contexts(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
    """Mean squared error of the mean over K contexts, drawn at random and balanced, as a share of the variance.

    K random contexts err by a + V / K on average over their draws, with V the variance between contexts. Both follow
    from sets of many, so that chance does not decide between the designs. Balanced sets are drawn several times. Where
    few contexts exist, one of them can err far more than the others, and both are drawn more often.
    """
    partition, block = filler.model_.partition, case.pattern == "block"
    crops = TestCrops.of(filler, data, SOME)
    found = crops.random(partition, (5, 10, 20), FEW_DRAWS if block else 1)
    balanced, _, chance = crops.error(partition, Ensemble(5), FEW_DRAWS if block else DRAWS)
    found["balanced 5"] = _summary(balanced) | {"chance": float(np.linalg.norm(chance) / len(chance))}
    found["all observations"] = _summary(crops.error(partition, Ensemble(0))[0])
    if block:
        blocks = build_partition("block:3x3", filler.model_.bank, filler.model_.config.keep)
        random = crops.random(blocks, (10,), FEW_DRAWS)
        enumerated = crops.error(blocks, Ensemble(9, design="enumerated"))[0]
        found["all distinct"] = {**random, "enumerated": _summary(enumerated)}
    return found


@dataclass(frozen=True)
class TestCrops:
    """The first crops of the test data, gappy, and the true values of the same crops, (B, C, T, H, W) and unitless."""

    denoiser: Denoiser
    gappy: Batch
    truth: torch.Tensor

    @classmethod
    def of(cls, filler: ff.Filler, data: Data, count: int) -> "TestCrops":
        model = filler.model_
        gappy, truth = (
            model.crops(open_record(part, model.variables, model.dims, model.domain.numpy()))
            for part in (data.test, data.truth)
        )
        places = [gappy.place(i) for i in range(min(count, len(gappy)))]
        return cls(model.denoiser, gappy.training(places), truth.training(places).x)

    def error(
        self, partition: Partition, ensemble: Ensemble, draws: int = 1
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean squared error and variance between contexts of each crop, (B,), over its missing cells and draws.

        The third is the standard error of the first: what another set of draws would change.
        """
        found = []
        for b, row in enumerate(self.gappy.observed):
            generators = [torch.Generator().manual_seed(seed) for seed in range(draws)]
            sets = torch.stack(ensemble.draw(partition, row.expand(draws, *row.shape), generators))
            distinct, number = sets.flatten(2).flatten(0, 1).unique(dim=0, return_inverse=True)
            estimates = self.estimates(b, distinct.view(-1, *row.shape))[number].view(*sets.shape[:2], -1)
            error = (estimates.mean(1) - self.truth[b][~row]).square().mean(1)
            between = estimates.var(1).mean() if sets.shape[1] > 1 else torch.zeros(())
            chance = error.std() / draws**0.5 if draws > 1 else torch.zeros(())
            found.append((error.mean().item(), between.item(), chance.item()))
        errors, betweens, chances = np.array(found).T
        return errors, betweens, chances

    @torch.no_grad()
    def estimates(self, b: int, contexts: torch.Tensor) -> torch.Tensor:
        """Estimates (K, n) at the n missing cells of crop b from each of the ``contexts`` (K, C, T, H, W)."""
        schedule, (x, maps) = self.denoiser.schedule, (part[b : b + 1] for part in (self.gappy.x, self.gappy.maps))
        t = torch.tensor([schedule.delta], dtype=x.dtype)
        x_delta = noised(schedule, t, x, torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
        parts = [self.denoiser.predict(t, x_delta, context[None], maps)[0][0] for context in contexts]
        return torch.stack([part[~self.gappy.observed[b]] for part in parts])

    def random(self, partition: Partition, counts: tuple[int, ...], draws: int) -> dict[str, Any]:
        """Expected errors of K random contexts, and of infinitely many."""
        error, between, _ = self.error(partition, Ensemble(MANY, design="random"), draws)
        limit = error - between / MANY
        return {f"random {count}": _summary(limit + between / count) for count in counts} | {"limit": _summary(limit)}


def _summary(errors: np.ndarray) -> dict[str, Any]:
    return {"mse": float(errors.mean()), "by_sample": errors.tolist()}
