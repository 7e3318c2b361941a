"""Guidance for a record of simulated data: equation and parameters from the data set, the weight from held-out cells.

Simulated data name their simulator and carry its parameters as coordinates along ``sample``
(:mod:`fieldfill.simulate.store`); from them the residual of `fieldfill.sampling.guidance` is built, one for each
sample.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Batch, Crops
from fieldfill.data.holdout import hold_out
from fieldfill.data.record import Record
from fieldfill.errors import InputError
from fieldfill.metrics.physics import Equation
from fieldfill.sampling.guidance import Guidance, Residual, choose_weight, unitless_residual
from fieldfill.seeds import stream
from fieldfill.simulate.store import Simulator

__all__ = ["Steering"]

Estimate = Callable[[Batch, Generator], tuple[np.ndarray, np.ndarray]]  # mean and standard deviation of crops


@dataclass(frozen=True)
class Steering:
    """The guidance of each sample of a record.

    Attributes
    ----------
    law
        the residual of the equation, (fields, parameters) → residuals.
    parameters
        of the equation, (S,) each.
    weight
        of the guidance.
    scores
        mean squared error on held-out cells and rms residual by weight, as shares of those without guidance; empty
        if the weight was given.
    """

    law: Callable[..., Tensor]
    parameters: dict[str, Tensor]
    crops: Crops
    weight: float
    scores: dict[float, tuple[float, float]]

    @classmethod
    def of(
        cls, simulator: Simulator | None, crops: Crops, weight: float | None, estimate: Estimate, seed: int
    ) -> "Steering":
        """For a record that ``simulator`` made, and a weight.

        Without a weight, one is chosen on cells that are held out of the record's observations and filled by
        ``estimate``.
        """
        record = crops.record
        law = _equation(record, simulator)
        assert simulator is not None
        names = [name for name in simulator.units if name not in record.variables]
        lost = [name for name in names if name not in record.ds.coords]
        if lost:
            raise InputError(
                f"guidance: the data lack the coordinates {', '.join(lost)}, the parameters of their equation; "
                "keep them in the file"
            )
        if min(crops.length, record.shape[2]) < 3:  # a residual in time needs a frame before and one after
            raise InputError(f"guidance: a window of {crops.length} frames is too short; fit with --window 3 or more")
        values = {name: np.broadcast_to(record.ds[name].values, record.shape[:1]).astype(float) for name in names}
        parameters = {name: torch.from_numpy(value.copy()) for name, value in values.items()}
        steering = cls(law, parameters, crops, weight or 0.0, {})
        if weight is None:
            best, scores = choose_weight(steering._scorer(estimate, seed))
            steering = replace(steering, weight=best, scores=scores)
        return steering

    def residual(self, samples: list[int]) -> Residual:
        """Residual of unitless fields, one row per sample (or any number of rows of one sample)."""
        chosen = {name: values[samples] for name, values in self.parameters.items()}
        return unitless_residual(self.law, self.crops.normaliser, chosen)

    def at(self, sample: int) -> Guidance:
        return Guidance(self.residual([sample]), self.weight)

    def _scorer(self, estimate: Estimate, seed: int, most: int = 16) -> Callable[[float], tuple[float, float]]:
        """(weight) → held-out error and residual on ``most`` validation crops, both relative to no guidance."""
        given = self.crops
        crops = Crops(given.record, given.normaliser, given.shape, maps=given.maps, others=given.others)
        crops.held = hold_out(crops, 0.1, stream(seed, "hold-out")).part(slice(most))
        batch, held_cells = crops.held_out(range(len(crops.held)))
        x, mean = batch.x, torch.from_numpy(estimate(batch, stream(seed, "choice"))[0])
        residual = self.residual([place[0] for place in batch.places])
        missing = batch.domain[:, :, None] & ~batch.observed

        def raw(weight: float) -> tuple[float, Tensor]:
            guided = Guidance(residual, weight)(mean, missing)
            error = (guided - x)[held_cells].square().mean().item()
            return error, residual(guided).square().transpose(0, 1).flatten(1).mean(1).sqrt()

        first = raw(0.0)

        def score(weight: float) -> tuple[float, float]:
            error, left_over = raw(weight)
            return error / first[0], (left_over / first[1]).mean().item()

        return score


def _equation(record: Record, simulator: Simulator | None) -> Callable[..., Tensor]:
    """The residual of the equation of a simulator, on the record's own grid."""
    law = simulator.residual if isinstance(simulator, Equation) else None
    if simulator is None or law is None:
        raise InputError(
            "guidance: the data name no simulator with an equation, and only simulated data can be guided; leave it out"
        )
    if simulator.variables != record.variables:
        raise InputError(
            f"guidance: the equation is one of {', '.join(simulator.variables)}, the model of "
            f"{', '.join(record.variables)}; fit exactly those variables in that order"
        )
    if record.logarithmic:
        raise InputError(
            f"guidance: the equation does not hold for the logarithm of '{record.logarithmic[0]}'; "
            "leave guidance out, or fit without log"
        )
    coordinates = simulator.coordinates()
    if (len(coordinates["y"][0]), len(coordinates["x"][0])) != record.shape[3:] or not record.domain.all():
        inside = int(record.domain.all(axis=0).sum())
        raise InputError(
            f"guidance: the equation needs its whole grid, the model has {inside} cells of it; "
            "fit the whole grid, with a domain in which the field is everywhere"
        )
    return law
