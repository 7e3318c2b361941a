r"""Optimal interpolation: the conditional mean of a Gaussian field with the covariance of the data themselves.

Around the mean of every cell, and in units of its spread where that lowers the error on held-out cells, the anomalies
are taken as a Gaussian field, stationary but for a few patterns; variables inform each other through
cross-covariances. Its covariance is learnt from the gappy record (`fieldfill.estimators.gaussian.learning`). The mean
of a window given all its observations

.. math:: E[x | y] = C P^T (P C P^T + R I)^{-1} y

is found by conjugate gradients in O(n log n) (`fieldfill.estimators.gaussian.field`). The standard deviation is that
of a few realisations of the posterior, averaged over neighbouring cells and scaled by one factor for each variable,
such that it agrees with the error on held-out gaps.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import xarray as xr
from scipy.ndimage import uniform_filter
from torch import Generator, Tensor

from fieldfill.baselines.baseline import LEAST_VARIANCE, Baseline, Gappy
from fieldfill.data.crops import Batch, Crops, Place
from fieldfill.data.holdout import hold_out
from fieldfill.data.record import open_record
from fieldfill.data.transforms import Normaliser
from fieldfill.estimators.base import Lesson
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.climatology import learn_normaliser
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.execution.processes import filled_frames
from fieldfill.partition import AllObserved
from fieldfill.seeds import stream

__all__ = ["OptimalInterpolation"]


@dataclass(kw_only=True, eq=False, repr=False)
class OptimalInterpolation(Baseline):
    """Gaussian conditional mean, crop by crop, the crops blended.

    Parameters
    ----------
    window, crop
        Frames, and rows and columns at most, that are filled together.
    share
        Of the crops in which observed cells are held out, to choose the covariance and to calibrate the variance.
    probes
        Realisations from which a variance is taken; 0 leaves the standard deviation out.
    smoothing
        Rows and columns over which a variance is averaged.
    steps
        Conjugate-gradient steps at most.
    """

    name: ClassVar[str] = "oi"
    window: int = 8
    crop: int = 64
    share: float = 0.1
    probes: int = 4
    smoothing: int = 3
    steps: int = 40
    seed: int = 0

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        _, variables, frames, rows, columns = data.values.shape
        crops = _crops(data, (min(self.window, frames), min(self.crop, rows), min(self.crop, columns)))
        generator = stream(self.seed, "hold-out")
        crops.held = hold_out(crops, self.share, generator)
        normaliser = learn_normaliser(crops, generator)
        if (normaliser.std > 0).all():  # a constant has no spread to learn
            crops.normalise(normaliser)
        self.normaliser_ = crops.normaliser
        # alpha = 1 and sigma = 0: the observations are taken as they are.
        lesson = Lesson(crops, AllObserved(), (1.0, 0.0), self.seed, stream(self.seed, "covariance"))
        self.field_ = LearntField(variables, crops.length, crops.shape[1:], crops.periodic, steps=self.steps)
        self.chosen_ = Chain([Gaussian(self.field_)]).learn(lesson)
        self.calibration_ = self._calibrate(crops) if self.probes else np.ones(variables)

    def summary(self) -> dict[str, Any]:
        """Also what was chosen for the covariance, and the error at held-out cells as a share of the variance."""
        if not self.fitted:
            return {}
        held_out = self.chosen_["sources"]
        found = {"held_out": held_out["validation"], "standard_error": held_out["standard_error"]}
        return super().summary() | {"covariance": self.chosen_["gaussian"]} | found

    def _calibrate(self, crops: Crops) -> np.ndarray:
        """Mean squared error on the held-out cells over the mean variance there, (C,)."""
        variables = self.field_.shape[0]
        errors, variances = np.full(variables, 1e-12), np.full(variables, 1e-12)
        for number, weight in enumerate(crops.held.weights):
            batch, held = crops.held_out([number])
            mean, variance = self._condition(batch)
            # The held-out values carry noise, the field that is estimated does not.
            error = (mean - batch.x).square() - self.field_.nugget
            for c in range(variables):
                errors[c] += weight * error[:, c][held[:, c]].sum().item()
                variances[c] += weight * variance[:, c][held[:, c].numpy()].sum()
        return np.clip(errors / variances, 0.01, 100.0)

    def _condition(self, batch: Batch) -> tuple[Tensor, np.ndarray]:
        """Mean and uncalibrated variance (B, C, T, H, W) of crops."""
        mean = self.field_.condition(batch.x, batch.observed, torch.zeros(()))
        if not self.probes:
            return mean, np.zeros(batch.x.shape)
        # The variance depends on the mask alone; each mask has its own seed, whatever comes before it.
        drawn = self.field_.variance(batch.observed, self.probes, Generator().manual_seed(self.seed)).numpy()
        hidden = (batch.domain[:, :, None] & ~batch.observed).numpy().astype(float)
        near, share = (uniform_filter(v, (1, 1, 1, self.smoothing, self.smoothing)) for v in (drawn * hidden, hidden))
        return mean, np.maximum(np.where(hidden > 0, near / np.maximum(share, 0.01), drawn), LEAST_VARIANCE)

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray | None]:
        length, frames = self.field_.shape[1], data.values.shape[2]
        # A record shorter than a crop ends with frames in which nothing is observed.
        more = [(0, 0), (0, 0), (0, max(0, length - frames)), (0, 0), (0, 0)]
        values, observed = np.pad(data.values, more, constant_values=np.nan), np.pad(data.observed, more)
        time = np.arange(values.shape[2], dtype=float)
        crops = _crops(replace(data, values=values, observed=observed, time=time), self.field_.shape[1:])
        crops.normalise(self.normaliser_)
        mean, std = np.empty(values.shape), np.empty(values.shape)

        def estimate(places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            centre, variance = self._condition(crops.training(places))
            spread = np.sqrt(self.calibration_[:, None, None, None] * variance)
            return centre.numpy(), spread, np.empty((len(places), 0, *centre.shape[1:]))

        for sample, chosen, centre, spread, _ in filled_frames(estimate, crops, None):
            mean[sample, :, chosen] = self.normaliser_.to_values(centre)
            std[sample, :, chosen] = self.normaliser_.spread_to_values(spread)
        return mean[:, :, :frames], std[:, :, :frames] if self.probes else None


def _crops(data: Gappy, shape: tuple[int, int, int]) -> Crops:
    """The arrays as crops of a record."""
    dims = ("sample", "time", "y", "x")
    variables = {f"v{c}": (dims, values) for c, values in enumerate(np.moveaxis(data.values, 1, 0))}
    rows, columns = data.domain.shape[1:]
    coords = {
        name: (name, np.arange(float(size)), {"periodic": int(closed)})
        for name, size, closed in zip(("y", "x"), (rows, columns), data.periodic)
    }
    record = open_record(xr.Dataset(variables, coords=coords), domain=data.domain)
    return Crops(record, Normaliser(record.mean, record.std), shape)
