"""How far contexts agree: the error of the mean over random, balanced and enumerated ones, and of none.

A part of benchmarks/uncertainty.py, which runs it on trained models.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import fieldfill as ff
from fieldfill.bench.cases import CASES, Data
from fieldfill.config import build_partition
from fieldfill.denoise import Denoiser, noised
from fieldfill.partition import Partition
from fieldfill.record import open_record
from fieldfill.sample import Ensemble
from fieldfill.windows import Windows

SOME = 6  # test samples
MANY, DRAWS = 20, 16  # random contexts of a set, and draws of balanced sets
FEW_DRAWS = 300  # of either where few contexts exist, so that each has to be answered but once


def contexts(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """Mean squared error of the mean over K contexts, drawn at random and balanced, as a share of the variance.

    K random contexts err by a + V / K on average over their draws, with V the variance between contexts. Both follow
    from sets of many, so that chance does not decide between the designs. Balanced sets are drawn several times. Where
    few contexts exist, one of them can err far more than the others, and both are drawn more often.
    """
    partition, block = filler.model_.partition, CASES[case].pattern == "block"
    asked = _Asked.of(filler, data, SOME)
    found = asked.random(partition, (5, 10, 20), FEW_DRAWS if block else 1)
    balanced, _, chance = asked.error(partition, Ensemble(5), FEW_DRAWS if block else DRAWS)
    found["balanced 5"] = _told(balanced) | {"chance": float(np.linalg.norm(chance) / len(chance))}
    found["all observations"] = _told(asked.error(partition, Ensemble(0))[0])
    if block:
        blocks = build_partition("block:3x3", filler.model_.bank, filler.model_.config.keep)
        random = asked.random(blocks, (10,), FEW_DRAWS)
        enumerated = asked.error(blocks, Ensemble(9, design="enumerated"))[0]
        found["all distinct"] = {**random, "enumerated": _told(enumerated)}
    return found


@dataclass(frozen=True)
class _Asked:
    """Test windows (B, C, T, H, W), unitless: what is seen of them, where, and all of it."""

    denoiser: Denoiser
    x: torch.Tensor
    observed: torch.Tensor
    truth: torch.Tensor

    @classmethod
    def of(cls, filler: ff.Filler, data: Data, count: int) -> "_Asked":
        model, places = filler.model_, [(sample, 0) for sample in range(count)]
        records = (
            open_record(part, model.variables, model.dims, model.domain.numpy()) for part in (data.test, data.truth)
        )
        (x, observed), (truth, _) = (
            Windows(record, model.normaliser, model.config.window).training(places) for record in records
        )
        return cls(model.denoiser, x, observed, truth)

    def error(
        self, partition: Partition, ensemble: Ensemble, draws: int = 1
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean squared error and variance between contexts of each window, (B,), over its missing cells and draws.

        The third is the standard error of the first: what another set of draws would change.
        """
        found = []
        for b, row in enumerate(self.observed):
            generators = [torch.Generator().manual_seed(seed) for seed in range(draws)]
            sets = torch.stack(ensemble.draw(partition, row.expand(draws, *row.shape), generators))
            distinct, number = sets.flatten(2).flatten(0, 1).unique(dim=0, return_inverse=True)
            answers = self.answers(b, distinct.view(-1, *row.shape))[number].view(*sets.shape[:2], -1)
            error = (answers.mean(1) - self.truth[b][~row]).square().mean(1)
            between = answers.var(1).mean() if sets.shape[1] > 1 else torch.zeros(())
            chance = error.std() / draws**0.5 if draws > 1 else torch.zeros(())
            found.append((error.mean().item(), between.item(), chance.item()))
        errors, betweens, chances = np.array(found).T
        return errors, betweens, chances

    @torch.no_grad()
    def answers(self, b: int, contexts: torch.Tensor) -> torch.Tensor:
        """What window b holds at its missing cells (n,) under each of the ``contexts`` (K, C, T, H, W), (K, n)."""
        schedule, x = self.denoiser.schedule, self.x[b : b + 1]
        t = torch.tensor([schedule.delta], dtype=x.dtype)
        x_delta = noised(schedule, t, x, torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))
        parts = [self.denoiser.predict(t, x_delta, context[None])[0][0] for context in contexts]
        return torch.stack([part[~self.observed[b]] for part in parts])

    def random(self, partition: Partition, counts: tuple[int, ...], draws: int) -> dict[str, Any]:
        """Expected errors of K random contexts, and of infinitely many."""
        error, between, _ = self.error(partition, Ensemble(MANY, design="random"), draws)
        limit = error - between / MANY
        return {f"random {count}": _told(limit + between / count) for count in counts} | {"limit": _told(limit)}


def _told(errors: np.ndarray) -> dict[str, Any]:
    return {"mse": float(errors.mean()), "by_sample": errors.tolist()}
