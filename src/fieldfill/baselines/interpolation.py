"""Interpolation without a model: the mean, lines in time, nearest values.

A missing value at time tau of a cell last observed at tau_b, next at tau_a is, linear in time, x_b + (tau -
tau_b) / (tau_a - tau_b) (x_a - x_b). The methods differ in what they do where that is not enough.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fieldfill.baselines.baseline import Baseline, Gappy, neighbours

__all__ = ["Climatology", "LinearTime", "Nearest", "TemporalConsistency"]


@dataclass(kw_only=True, eq=False, repr=False)
class Climatology(Baseline):
    """The mean of the observed values of every cell: what is known without any information about the moment.

    Parameters
    ----------
    per_cell
        False takes one mean per variable instead; the better choice when a cell is observed a few times only.
    """

    name: ClassVar[str] = "climatology"
    per_cell: bool = True

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        self.mean_ = np.array([data.values[:, c][data.observed[:, c]].mean() for c in range(len(data.domain))])

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        mean = self.climatology_ if self.per_cell else self.mean_[:, None, None]
        filled = np.broadcast_to(mean[:, None], data.values.shape).copy()
        return self._complete(filled, data), None


@dataclass(kw_only=True, eq=False, repr=False)
class LinearTime(Baseline):
    """Linear in time, cell by cell; before the first and after the last observation the nearest one.

    A cell never observed in a sequence takes its nearest neighbour in space, frame by frame.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from fieldfill.baselines import LinearTime
    >>> values = np.array([1.0, np.nan, 3.0, 5.0]).reshape(4, 1, 1)
    >>> ds = xr.Dataset({"height": (("time", "y", "x"), values)})
    >>> LinearTime().fit(ds).fill(ds).height.values.ravel()
    array([1., 2., 3., 5.])
    """

    name: ClassVar[str] = "linear_time"

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        return self._complete(along_time(data), data), None


@dataclass(kw_only=True, eq=False, repr=False)
class Nearest(Baseline):
    """The nearest observed value in space and time.

    Parameters
    ----------
    frame_cells
        How many cells one time step counts in the distance.
    """

    name: ClassVar[str] = "nearest"
    frame_cells: float = 2.0

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        inside = np.broadcast_to(data.domain[:, None], data.values.shape[1:])
        time = self.frame_cells * data.time
        filled = [
            [neighbours(x, where, data.periodic, time=time) for x, where in zip(sample, inside)]
            for sample in data.values
        ]
        return self._complete(np.array(filled), data), None


@dataclass(kw_only=True, eq=False, repr=False)
class TemporalConsistency(Baseline):
    """The previous and the next observed value of the cell, weighted by distance in time, if they are near.

    Where no frame within reach shows the cell, the nearest observed cells of the same frame; in a frame
    without any observation, the nearest observed times however far.

    Parameters
    ----------
    reach
        How many time steps away a value still counts as consistent.
    spatial
        How many cells of the frame are averaged, weighted by the inverse square of their distance.
    """

    name: ClassVar[str] = "temporal"
    reach: float = 2.0
    spatial: int = 4

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, None]:
        filled = along_time(data, self.reach)
        for s, c, t in np.argwhere(data.observed.any(axis=(3, 4))):
            # Only observed cells are sources: a value carried over from another frame is taken no further.
            near = neighbours(data.values[s, c, t], data.domain[c], data.periodic, self.spatial)
            filled[s, c, t] = np.where(np.isnan(filled[s, c, t]), near, filled[s, c, t])
        far = along_time(data)
        return self._complete(np.where(np.isnan(filled), far, filled), data), None


def along_time(data: Gappy, reach: float = np.inf) -> np.ndarray:
    """Linear between the previous and the next observation of a cell, at most ``reach`` time steps away.

    Where one of them is farther, the other one; where both are, NaN.
    """
    frames = data.values.shape[2]
    index = np.arange(frames)[:, None, None]
    before = np.maximum.accumulate(np.where(data.observed, index, -1), axis=2)
    after = np.flip(np.minimum.accumulate(np.flip(np.where(data.observed, index, frames), 2), axis=2), 2)
    ends, gaps = [], []
    for found, sign in ((before, 1.0), (after, -1.0)):
        place = np.clip(found, 0, frames - 1)
        gap = sign * (data.time[:, None, None] - data.time[place])
        usable = (found == place) & (gap <= reach)
        ends.append(np.where(usable, np.take_along_axis(data.values, place, axis=2), np.nan))
        gaps.append(gap)
    (x_b, x_a), (since, until) = ends, gaps
    share = since / np.where(data.observed, 1.0, since + until)
    between = x_b + share * (x_a - x_b)
    return np.where(np.isnan(x_b), x_a, np.where(np.isnan(x_a), x_b, between))
