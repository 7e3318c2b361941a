r"""Optimal interpolation: the conditional mean of a Gaussian field with the covariance of the data themselves.

Around the mean of every cell, and in units of its spread where that pays on held-out cells, the anomalies are taken as
a Gaussian field, stationary but for a few patterns; variables inform each other through cross-covariances. Its
covariance is learnt from the gappy record (`fieldfill.covariance`), and the mean of a window given all its observations

.. math:: E[x | y] = C P^T (P C P^T + R I)^{-1} y

is found by conjugate gradients in O(n log n) (`fieldfill.nn.gaussian`). The standard deviation is that of a few
realisations of the posterior, averaged over neighbouring cells and scaled by one factor for each variable, such that it
agrees with the error on held-out gaps.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import xarray as xr
from scipy.ndimage import uniform_filter
from torch import Generator, Tensor

from fieldfill.baselines.base import Baseline, Gappy
from fieldfill.climatology import learn_normaliser
from fieldfill.covariance import learn_covariance
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.record import open_record
from fieldfill.seeds import stream
from fieldfill.windows import Blend, Normaliser, Windows, cover, fill_starts

__all__ = ["OptimalInterpolation"]

BATCH_CELLS = 2**19  # cells of the windows that are solved for together
NEIGHBOURS = 3  # rows and columns over which a variance is averaged
LEAST = 1e-12  # of a variance: even a constant field is not known for certain


@dataclass(kw_only=True, eq=False)
class OptimalInterpolation(Baseline):
    """Gaussian conditional mean, window by window, the windows blended.

    Parameters
    ----------
    window
        Frames that are filled together; windows advance by half of them.
    share
        Of the windows in which observed cells are held out, to choose the covariance and to calibrate the variance.
    probes
        Realisations from which a variance is taken; 0 leaves the standard deviation out.
    steps
        Conjugate-gradient steps at most.
    """

    name: ClassVar[str] = "oi"
    window: int = 8
    share: float = 0.1
    probes: int = 8
    steps: int = 40
    seed: int = 0

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        windows = _windows(data, min(self.window, data.values.shape[2]))
        generator = stream(self.seed, "hold-out")
        windows.held = hold_out(windows, self.share, generator)
        learnt = learn_normaliser(windows, generator)
        if (learnt.std > 0).all():  # a constant has no spread to learn
            windows.normalise(learnt)
        _, variables, _, rows, columns = data.values.shape
        self.normaliser_ = windows.normaliser
        self.skip_ = GaussianSkip(variables, windows.length, (rows, columns), data.periodic, steps=self.steps)
        self.chosen_ = learn_covariance(self.skip_, windows, stream(self.seed, "covariance"), moving=False)
        self.calibration_ = self._calibrate(windows) if self.probes else np.ones(variables)

    def _calibrate(self, windows: Windows) -> np.ndarray:
        """Mean squared error on the held-out cells over the mean variance there, (C,)."""
        variables = self.skip_.shape[0]
        errors, variances = np.full(variables, 1e-12), np.full(variables, 1e-12)
        for place in windows.held.places:
            x, context, held = windows.held_out([place])
            mean, variance = self._condition(x, context, self.probes)
            # The held-out values carry noise, the field that is estimated does not.
            error = (mean - x).square() - self.skip_.nugget
            for c in range(variables):
                errors[c] += error[:, c][held[:, c]].sum().item()
                variances[c] += variance[:, c][held[:, c]].sum()
        return np.clip(errors / variances, 0.01, 100.0)

    def _condition(self, x: Tensor, observed: Tensor, probes: int) -> tuple[Tensor, np.ndarray]:
        """Mean and uncalibrated variance (B, C, T, H, W) of windows."""
        mean = self.skip_.posterior_mean(x, observed, torch.zeros(()))
        if not probes:
            return mean, np.zeros(x.shape)
        # The variance depends on the mask alone; each mask has its own seed, whatever comes before it.
        drawn = self.skip_.variance(observed, probes, Generator().manual_seed(self.seed)).numpy()
        hidden = (self.domain_[:, None] & ~observed.numpy()).astype(float)
        near, share = (uniform_filter(v, (1, 1, 1, NEIGHBOURS, NEIGHBOURS)) for v in (drawn * hidden, hidden))
        return mean, np.maximum(np.where(hidden > 0, near / np.maximum(share, 0.01), drawn), LEAST)

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray | None]:
        length = self.skip_.shape[1]
        frames = data.values.shape[2]
        # A record shorter than a window ends with frames in which nothing is observed.
        more = [(0, 0), (0, 0), (0, max(0, length - frames)), (0, 0), (0, 0)]
        values, observed = np.pad(data.values, more, constant_values=np.nan), np.pad(data.observed, more)
        mean, std = np.empty(values.shape), np.empty(values.shape)
        for s in range(len(values)):
            mean[s], std[s] = self._fill_sample(self.normaliser_.to_tensor(values[s]), torch.from_numpy(observed[s]))
        mean, std = self.normaliser_.to_values(mean), self.normaliser_.spread_to_values(std)
        return mean[:, :, :frames], std[:, :, :frames] if self.probes else None

    def _fill_sample(self, x: Tensor, observed: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Unitless mean and standard deviation (C, T, H, W) of a whole sample."""
        frames, length = x.shape[1], self.skip_.shape[1]
        means, spreads = Blend(frames, length), Blend(frames, length)
        # Neighbouring windows make almost the same error: one variance for each frame is enough.
        once = set(cover(frames, length, length))
        starts = sorted(once | set(fill_starts(frames, length)))
        batch = max(1, BATCH_CELLS // x[:, :length].numel())
        for group in (once, set(starts) - once):
            chosen = sorted(group)
            for first in range(0, len(chosen), batch):
                part = chosen[first : first + batch]
                x_b, observed_b = (torch.stack([v[:, i : i + length] for i in part]) for v in (x, observed))
                mean, variance = self._condition(x_b, observed_b, self.probes if group is once else 0)
                for i, window, spread in zip(part, mean.numpy(), variance):
                    means.add(i, window)
                    if group is once:
                        spreads.add(i, np.sqrt(self.calibration_[:, None, None, None] * spread))
        return means.mean(), spreads.mean()


def _windows(data: Gappy, length: int) -> Windows:
    """The arrays as windows of a record."""
    dims = ("sample", "time", "y", "x")
    variables = {f"v{c}": (dims, values) for c, values in enumerate(np.moveaxis(data.values, 1, 0))}
    rows, columns = data.domain.shape[1:]
    coords = {
        name: (name, np.arange(float(size)), {"periodic": int(closed)})
        for name, size, closed in zip(("y", "x"), (rows, columns), data.periodic)
    }
    record = open_record(xr.Dataset(variables, coords=coords), domain=data.domain)
    return Windows(record, Normaliser(record.mean, record.std), length)
