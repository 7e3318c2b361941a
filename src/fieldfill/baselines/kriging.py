r"""Optimal interpolation: local simple kriging with the space–time covariance of the data themselves.

Anomalies from the mean of every cell are taken as a stationary field with covariance c(d), d = (frames,
rows, columns), seen with noise of variance R. From the n observed neighbours p of a cell i with the largest
|c(i - p)|

.. math:: \hat x_i = c_{ip} (c_{pp} + R I)^{-1} x_p, \qquad
          \operatorname{Var} = c(0) - c_{ip} (c_{pp} + R I)^{-1} c_{pi}

c is the autocorrelation of the gappy values divided by that of the mask (both by FFT), damped with distance
and clipped to a non-negative spectrum, so that every c_pp is a covariance. Frames count as equally spaced;
each variable is interpolated on its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import fft

from fieldfill.baselines.base import Baseline, Gappy
from fieldfill.baselines.holdout import cloud_points

__all__ = ["OptimalInterpolation"]

CHUNK = 2048  # cells solved for at once
TINY = np.finfo(float).tiny


@dataclass(kw_only=True, eq=False)
class OptimalInterpolation(Baseline):
    """Local kriging in space and time.

    Parameters
    ----------
    neighbours
        n, observed cells used for a missing one.
    reach
        How many frames and how many cells away a neighbour may be.
    taper
        Damping lengths of the covariance, in frames and in cells.
    share
        Of the observed cells that are held out to calibrate the variance.
    """

    name: ClassVar[str] = "oi"
    neighbours: int = 30
    reach: tuple[int, int] = (3, 8)
    taper: tuple[float, float] = (6.0, 8.0)
    share: float = 0.1
    seed: int = 0

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        anomalies = np.nan_to_num(data.values - self.climatology_[:, None])
        fitted = [
            covariance(anomalies[:, c], data.observed[:, c], self.reach, self.taper) for c in range(len(data.domain))
        ]
        self.covariance_ = [table for table, _ in fitted]
        self.noise_ = [noise for _, noise in fitted]
        self.calibration_ = self._calibrate(data)

    def _calibrate(self, data: Gappy) -> np.ndarray:
        """Mean squared error at cloud-shaped held-out cells over the mean variance there, (C,)."""
        held = cloud_points(data.observed, self.share, np.random.default_rng(self.seed), 2 * self.reach[0] + 1)
        filled, variance = self._interpolate(data.without(held), held)
        ratios = np.ones(len(data.domain))
        for c, noise in enumerate(self.noise_):
            here = held[:, c]
            if here.any() and (expected := variance[:, c][here].mean()) > 0:
                # The held-out values carry noise, the field that is estimated does not.
                error = ((filled - data.values)[:, c][here] ** 2).mean() - noise
                ratios[c] = max(error, 0.01 * expected) / expected
        return ratios

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray]:
        filled, variance = self._interpolate(data, data.domain[:, None] & ~data.observed)
        return filled, np.sqrt(self.calibration_[:, None, None, None] * variance)

    def _interpolate(self, data: Gappy, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and variance at the cells ``wanted``, bool (S, C, T, H, W)."""
        mean = self._complete(np.broadcast_to(self.climatology_[:, None], data.values.shape).copy(), data)
        filled, variance = mean.copy(), np.zeros(mean.shape)
        for s, c in np.ndindex(mean.shape[:2]):
            anomaly = self._surround(np.nan_to_num(data.values[s, c] - mean[s, c]), data.periodic)
            observed = self._surround(data.observed[s, c], data.periodic)
            cells = np.argwhere(wanted[s, c])
            for part in np.array_split(cells, max(1, -(-len(cells) // CHUNK))):
                x, spread = self._krige(c, anomaly, observed, part)
                filled[s, c, *part.T] += x
                variance[s, c, *part.T] = spread
        return filled, variance

    def _surround(self, array: np.ndarray, periodic: tuple[bool, bool]) -> np.ndarray:
        """Continues (T, H, W) by the reach: around the circle on periodic axes, with zeros on the others."""
        frames, cells = self.reach
        array = np.pad(array, [(frames, frames), (0, 0), (0, 0)])
        for axis, closed in enumerate(periodic, start=1):
            margin = [(cells, cells) if other == axis else (0, 0) for other in range(3)]
            array = np.pad(array, margin, mode="wrap") if closed else np.pad(array, margin)
        return array

    def _krige(
        self, c: int, anomaly: np.ndarray, observed: np.ndarray, cells: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Anomaly, variance at ``cells`` (m, 3); anomaly and observed (T, H, W) are padded by the reach."""
        table, noise = self.covariance_[c], self.noise_[c]
        offsets, addresses = _neighbourhood(table, self.reach)
        places = np.ravel_multi_index(
            tuple((cells + np.array([self.reach[0], self.reach[1], self.reach[1]])).T), observed.shape
        )
        steps = offsets @ np.array([observed[0].size, observed.shape[2], 1])
        visible = observed.ravel()[places[:, None] + steps]
        order = np.cumsum(visible, axis=1)
        row, column = np.nonzero(visible & (order <= self.neighbours))
        chosen = np.full((len(cells), self.neighbours), -1)
        chosen[row, order[row, column] - 1] = column
        there, centre = chosen >= 0, table.size // 2
        x_p = np.where(there, anomaly.ravel()[places[:, None] + steps[chosen]], 0.0)
        address = addresses[chosen]
        c_ip = np.where(there, table.ravel()[centre + address], 0.0)
        c_pp = table.ravel()[centre + address[:, :, None] - address[:, None, :]]
        c_pp = c_pp * (there[:, :, None] & there[:, None, :])
        # A neighbour that is not there gets a row of the identity: its weight is 0.
        c_pp += (noise + ~there * 1.0)[:, :, None] * np.eye(self.neighbours)
        weights = np.linalg.solve(c_pp, c_ip[:, :, None])[:, :, 0]
        prior = table.ravel()[centre]
        return (weights * x_p).sum(axis=1), np.clip(prior - (weights * c_ip).sum(axis=1), 0.0, None)


def covariance(
    anomalies: np.ndarray, observed: np.ndarray, reach: tuple[int, int], taper: tuple[float, float]
) -> tuple[np.ndarray, float]:
    """Covariance by separation up to twice the reach, zero separation in the middle; noise variance R.

    Parameters
    ----------
    anomalies, observed
        (S, T, H, W), 0 where missing.
    """
    far = np.array([2 * reach[0], 2 * reach[1], 2 * reach[1]])
    size = [fft.next_fast_len(int(n + lag), real=True) for n, lag in zip(anomalies.shape[1:], far)]
    products, pairs = (
        sum(fft.irfftn(np.abs(fft.rfftn(sample, size)) ** 2, size) for sample in stack)
        for stack in (anomalies, observed.astype(float))
    )
    lags = [np.arange(-lag, lag + 1) for lag in far]
    # Separations longer than the record, or met fewer than ten times, say nothing.
    box = np.ix_(*[lag % n for lag, n in zip(lags, size)])
    known = np.all(np.meshgrid(*[np.abs(lag) < n for lag, n in zip(lags, anomalies.shape[1:])], indexing="ij"), axis=0)
    table = np.where(known & (pairs[box] > 9.5), products[box] / np.maximum(pairs[box], 1.0), 0.0)
    t, i, j = far
    one = (table[t, i + 1, j] + table[t, i, j + 1]) / 2
    two = (table[t, i + 2, j] + table[t, i, j + 2]) / 2
    total = table[t, i, j]
    # A smooth field is a parabola near zero separation; what lies above it at zero is noise.
    smooth = np.clip((4 * one - two) / 3, 0.5 * total, 0.999 * total)
    table[t, i, j] = smooth
    distance = np.meshgrid(*[lag / scale for lag, scale in zip(lags, (taper[0], taper[1], taper[1]))], indexing="ij")
    table *= np.exp(-0.5 * sum(d**2 for d in distance))
    spectrum = fft.fftn(fft.ifftshift(table)).real
    table = fft.fftshift(fft.ifftn(np.maximum(spectrum, 0.0)).real)
    # Clipping adds variance; scaling the table takes it away again and leaves it a covariance.
    table *= smooth / max(float(table[t, i, j]), TINY)
    return table, max(float(total - smooth), 1e-12 * float(total), TINY)


def _neighbourhood(table: np.ndarray, reach: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Separations (m, 3) within reach, the strongest covariance first; their addresses in the flat table."""
    frames, cells = reach
    axes = [np.arange(-frames, frames + 1), *[np.arange(-cells, cells + 1)] * 2]
    offsets = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    addresses = offsets @ np.array([table[0].size, table.shape[2], 1])
    nearest = np.lexsort(((offsets**2).sum(axis=1), -np.abs(table.ravel()[table.size // 2 + addresses])))
    return offsets[nearest], addresses[nearest]
