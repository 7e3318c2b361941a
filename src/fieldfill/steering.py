"""Guidance for a record of simulated data: equation and parameters from the data set, the weight from held-out cells.

Simulated data name their simulator and carry its parameters as coordinates along ``sample``
(:mod:`fieldfill.pde.store`); from them the residual of `fieldfill.guide` is built, one guidance per sample.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fieldfill.errors import InputError
from fieldfill.guide import WEIGHTS, Guidance, Residual, choose_weight, in_units
from fieldfill.holdout import hold_out
from fieldfill.model import Model
from fieldfill.pde.store import Simulator
from fieldfill.physics import Equation, simulator_of
from fieldfill.record import Record
from fieldfill.seeds import stream
from fieldfill.windows import HoldOut, Windows

__all__ = ["Steering"]

LEAST_FRAMES = 3  # a residual in time needs a frame before and one after
HELD_WINDOWS = 16  # that decide on the weight


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
    windows: Windows
    weight: float
    scores: dict[float, tuple[float, float]]

    @classmethod
    def of(cls, model: Model, windows: Windows, weight: float | None, seed: int) -> "Steering":
        """For a record and a weight; None chooses it on cells that are held out of the record's observations."""
        record = windows.record
        simulator, law = _equation(record)
        names = [name for name in simulator.units if name not in record.variables]
        lost = [name for name in names if name not in record.ds.coords]
        if lost:
            raise InputError(f"guidance: the data have lost the coordinates {', '.join(lost)}, parameters to keep")
        if min(windows.length, record.shape[2]) < LEAST_FRAMES:
            raise InputError(f"guidance: a window of {windows.length} frames is too short; fit one of 3 or more")
        values = {name: np.broadcast_to(record.ds[name].values, record.shape[:1]).astype(float) for name in names}
        parameters = {name: torch.from_numpy(value.copy()) for name, value in values.items()}
        steering = cls(law, parameters, windows, weight or 0.0, {})
        if weight is None:
            best, scores = choose_weight(steering._scorer(model, seed), WEIGHTS)
            steering = replace(steering, weight=best, scores=scores)
        return steering

    def residual(self, samples: list[int]) -> Residual:
        """Residual of unitless fields, one row per sample (or any number of rows of one sample)."""
        chosen = {name: values[samples] for name, values in self.parameters.items()}
        return in_units(self.law, self.windows.normaliser, chosen)

    def at(self, sample: int) -> Guidance:
        return Guidance(self.residual([sample]), self.weight)

    def _scorer(self, model: Model, seed: int) -> Callable[[float], tuple[float, float]]:
        """(weight) → held-out error and residual, both relative to no guidance."""
        windows = Windows(self.windows.record, self.windows.normaliser, self.windows.length)
        held = hold_out(windows, 0.1, stream(seed, "hold-out"))
        windows.held = HoldOut(held.places[:HELD_WINDOWS], held.masks[:HELD_WINDOWS])
        places = list(windows.held.places)
        x, left, held_cells = windows.held_out(places)
        mean = torch.from_numpy(model.estimate(x, left, stream(seed, "choice"))[0])
        residual = self.residual([sample for sample, _ in places])
        missing = model.domain[:, None] & ~left

        def raw(weight: float) -> tuple[float, Tensor]:
            guided = Guidance(residual, weight)(mean, missing)
            error = (guided - x)[held_cells].square().mean().item()
            return error, residual(guided).square().transpose(0, 1).flatten(1).mean(1).sqrt()

        first = raw(0.0)

        def score(weight: float) -> tuple[float, float]:
            error, left_over = raw(weight)
            return error / first[0], (left_over / first[1]).mean().item()

        return score


def _equation(record: Record) -> tuple[Simulator, Callable[..., Tensor]]:
    """The simulator of a record and the residual of its equation, on the record's own grid."""
    simulator = simulator_of(record.ds)
    law = simulator.residual if isinstance(simulator, Equation) else None
    if simulator is None or law is None:
        raise InputError(
            "guidance: the data name no simulator with an equation; only simulated data can be guided, leave it out"
        )
    if simulator.variables != record.variables:
        raise InputError(
            f"guidance: the equation is one of {', '.join(simulator.variables)}, the model of "
            f"{', '.join(record.variables)}; fit exactly those variables in that order"
        )
    if record.logarithmic:
        raise InputError(f"guidance: the equation is not one of the logarithm of {record.logarithmic[0]}; leave it out")
    coordinates = simulator.coordinates()
    if (len(coordinates["y"][0]), len(coordinates["x"][0])) != record.shape[3:] or not record.domain.all():
        inside = int(record.domain.all(axis=0).sum())
        raise InputError(
            f"guidance: the equation needs its whole grid, the model has {inside} cells of it; "
            "fit the whole grid, with a domain that says that the field is everywhere"
        )
    return simulator, law
