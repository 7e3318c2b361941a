"""The best anybody can do: the exact posterior of a Gaussian field whose law is known.

Every window of the record is conditioned on all its observations, E[x | y] and Var[x | y], and the windows
are blended as those of the filler are. It learns nothing: the covariance is given, not estimated.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fieldfill.baselines.baseline import Baseline, Gappy
from fieldfill.data.cover import Axis, Blend, Tiling
from fieldfill.errors import InputError
from fieldfill.simulate.gaussian_field import GaussianField

__all__ = ["GaussianOptimum"]


@dataclass(kw_only=True, eq=False, repr=False)
class GaussianOptimum(Baseline):
    """Posterior mean and standard deviation of a :class:`~fieldfill.simulate.gaussian_field.GaussianField`.

    Parameters
    ----------
    field
        The law of the anomalies; every variable is taken as a field of its own with this law.
    mean
        Of the data, in their units: what the anomalies are added to.
    window, stride
        Frames that are conditioned together and their advance from window to window (half a window unless
        given). By default the window is the whole record.
    uncertainty
        False leaves the standard deviation out, which takes the larger part of the time.
    """

    name: ClassVar[str] = "optimum"
    field: GaussianField
    mean: float = 0.0
    window: int | None = None
    stride: int | None = None
    uncertainty: bool = True

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        if data.domain.shape[1:] != self.field.shape:
            raise InputError(
                f"the grid is {data.domain.shape[1:]}, and the Gaussian field has {self.field.shape}; "
                "give a field of the same grid"
            )

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray | None]:
        _, _, frames, rows, columns = data.values.shape
        length = self.window or frames
        axes = (Axis(frames, length), Axis(rows, rows), Axis(columns, columns))
        tiling = Tiling(axes, (self.stride or max(1, length // 2), rows, columns))
        mean, std = np.empty(data.values.shape), np.empty(data.values.shape)
        for s, c in np.ndindex(data.values.shape[:2]):
            inside = torch.from_numpy(data.domain[c])
            means, spreads = Blend(tiling, ()), Blend(tiling, ())
            for start in tiling.starts[0]:
                part = slice(start, start + length)
                values, observed = (torch.from_numpy(a[s, c, part]) for a in (data.values, data.observed))
                x, variance = self.field.posterior(values - self.mean, observed, inside, variance=self.uncertainty)
                means.add((start, 0, 0), x.numpy())
                # Overlapping windows make almost the same error: their standard deviations are averaged.
                spreads.add((start, 0, 0), variance.clamp(min=0).sqrt().numpy())
            mean[s, c], std[s, c] = self.mean + means.take(frames), spreads.take(frames)
        return mean, std if self.uncertainty else None
