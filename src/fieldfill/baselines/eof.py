r"""Empirical orthogonal functions from gappy data, in the manner of DINEOF, with an error map.

The record is a matrix X (N cells of the domain, all variables stacked; n frames, all samples one after the
other) of anomalies from the mean of each cell's observed values, divided by the standard deviation of its
variable. With k modes U (N, k):

.. math:: X_{missing} \leftarrow (U U^T X)_{missing}, \qquad
          U \leftarrow \text{leading left singular vectors of } X

until the refill no longer changes; the mean of each row is taken anew from the refilled row every time,
since that of the observed cells is off where a cell is seen at some times only. One step of subspace
iteration from the last U stands for the singular value decomposition: X changes little from one refill to
the next, and both settle at the same fixed point.

There, the amplitudes a of a frame are the least-squares fit to its observed rows. The fill takes their
regularised form – optimal interpolation with the covariance of the modes L = U S / sqrt(n) and an effective
noise mu² – whose error is known (Beckers, Barth, Alvera-Azcárate: DINEOF reconstruction of clouded images
including error maps, 2006):

.. math:: a = C L_p^T x_p / \mu^2, \qquad e^2 = \operatorname{diag}(L C L^T), \qquad
          C = \mu^2 (L_p^T L_p + \mu^2 I)^{-1}

with L_p the observed rows of L. The residuals of a truncated expansion are correlated, so that many cells
count as few: mu² = r nu² with nu² the variance of the observed cells outside the modes and an inflation r ≥
1. Rank and inflation are those with the least error at held-out cells.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import eigh

from fieldfill.baselines.baseline import LEAST_VARIANCE, Baseline, Gappy, cell_means
from fieldfill.baselines.cross_validation import cloud_points, random_points
from fieldfill.data.pieces import at_once
from fieldfill.errors import InputError

__all__ = ["EOF"]


@dataclass(kw_only=True, eq=False, repr=False)
class EOF(Baseline):
    """DINEOF-style fill: modes and rank from the gappy record itself.

    Parameters
    ----------
    rank
        Number of modes; by default chosen by cross-validation, up to ``max_rank``.
    cross_validation
        "clouds": the masks of other frames laid over clear frames, ``run`` consecutive ones at a time;
        "random": single points, which lie close to observed cells and promise too much.
    share, run
        Of the observed cells that are held out; frames that are covered together. In slowly changing fields
        the frames before and after teach the modes what a single covered frame hides.
    inflation
        Candidates for r. ``(1.0,)`` is DINEOF as published, to within its tolerance.
    tolerance, iterations
        A refill ends when its change falls below ``tolerance`` standard deviations, or after ``iterations``.
    momentum
        Of the refill, which alone creeps where most of a mode is hidden; at least 0 and below 1.
    slack, patience
        Errors up to ``slack`` times the lowest count as equal, and the lower rank is taken; the search ends after
        ``patience`` ranks in a row without a better one.
    """

    name: ClassVar[str] = "eof"
    rank: int | None = None
    max_rank: int = 50
    cross_validation: str = "clouds"
    share: float = 0.03
    run: int = 7
    inflation: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    tolerance: float = 1e-4
    iterations: int = 300
    momentum: float = 0.8
    slack: float = 1.03
    patience: int = 3
    seed: int = 0

    def _learn(self, data: Gappy) -> None:
        super()._learn(data)
        anomalies = data.values - self.climatology_[:, None]
        spread = np.sqrt(np.nanmean(anomalies**2, axis=(0, 2, 3, 4)))
        self.scale_ = np.where(spread > 1e-12 * np.abs(self.climatology_[data.domain]).max(), spread, 1.0)
        self._choose(data, self._hold_out(data.observed))
        self.fit_ = self._refill(*self._matrix(data, self.climatology_), self.rank_)[1]

    def summary(self) -> dict[str, Any]:
        """Also rank and inflation, and the mean squared error at held-out cells as a share of the variance."""
        if not self.fitted:
            return {}
        learnt = {"rank": self.rank_, "inflation": self.inflation_, "held_out": self.errors_[self.rank_]}
        return super().summary() | learnt

    def _hold_out(self, observed: np.ndarray) -> np.ndarray:
        generator = np.random.default_rng(self.seed)
        if self.cross_validation == "clouds":
            return cloud_points(observed, self.share, generator, self.run)
        if self.cross_validation == "random":
            return random_points(observed, self.share, generator)
        raise InputError(f"cross_validation='{self.cross_validation}'; choose one of clouds, random")

    def _choose(self, data: Gappy, held: np.ndarray) -> None:
        """Finds rank and inflation by the error at the held-out cells, and calibrates the variance there."""
        part = data.without(held)
        mean = cell_means(part)
        x, seen = self._matrix(part, mean)
        truth, hidden = self._matrix(data, mean)
        hidden &= ~seen
        frames = hidden.any(axis=0)
        truth, hidden = truth[:, frames], hidden[:, frames]
        largest = max(1, min(self.rank or self.max_rank, min(x.shape) - 1))
        level = (100 * self.tolerance) ** 2  # what the refill itself reaches; errors below it are all the same
        self.errors_: dict[int, float] = {}
        found = {}
        for rank in [largest] if self.rank else range(1, largest + 1):
            x, modes = self._refill(x, seen, rank)
            trials = [modes.project(x[:, frames], seen[:, frames], r) for r in self.inflation]
            errors = [float(((fit - truth)[hidden] ** 2).mean()) for fit, _ in trials]
            least = int(np.argmin(errors))
            expected = max(float(trials[least][1][hidden].mean()), LEAST_VARIANCE)
            self.errors_[rank] = max(errors[least], level)
            found[rank] = self.inflation[least], errors[least] / expected
            if rank >= min(self.errors_, key=lambda k: self.errors_[k]) + self.patience:
                break
        lowest = min(self.errors_.values())
        self.rank_ = min(rank for rank, error in self.errors_.items() if error <= self.slack * lowest)
        self.inflation_, self.calibration_ = found[self.rank_]

    def _matrix(self, data: Gappy, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scaled anomalies, 0 where missing, and observed: (N, n)."""
        scaled = (data.values - mean[:, None]) / self.scale_[:, None, None, None]
        inside = self.domain_
        x, seen = (
            np.moveaxis(a, (1, 3, 4), (0, 1, 2))[inside].reshape(inside.sum(), -1) for a in (scaled, data.observed)
        )
        return np.where(seen, x, 0.0), seen

    def _refill(self, x: np.ndarray, seen: np.ndarray, rank: int) -> tuple[np.ndarray, "Modes"]:
        """Iterates truncation and refill from x (N, n) on: the refilled x and its modes."""
        gaps, mean = (~seen).astype(float), x.mean(axis=1, keepdims=True)
        u, step = leading(x - mean, rank), np.zeros(x.shape)
        limit = self.tolerance**2 * max(gaps.sum(), 1.0) * (x**2).sum() / max(seen.sum(), 1)
        for _ in range(self.iterations):
            centred = x - mean
            change = gaps * (u @ (u.T @ centred) - centred)
            step = change + self.momentum * step
            x = x + step
            if np.vdot(change, change) <= limit:
                break
            mean = x.mean(axis=1, keepdims=True)
            u = np.linalg.qr((x - mean) @ ((x - mean).T @ u))[0]
        mean = x.mean(axis=1, keepdims=True)
        u = leading(x - mean, rank)
        amplitudes = u.T @ (x - mean)
        residual = (x - mean - u @ amplitudes)[seen]
        scaled = u * np.sqrt((amplitudes**2).mean(axis=1))
        return x, Modes(mean, scaled, max(float((residual**2).mean()), LEAST_VARIANCE))

    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray]:
        x, seen = self._matrix(data, self.climatology_)
        fit, variance = self.fit_.project(x, seen, self.inflation_)
        samples, _, frames, _, _ = data.values.shape
        maps = []
        for matrix in (fit, np.sqrt(self.calibration_ * variance)):
            whole = np.full((*self.domain_.shape, samples, frames), np.nan)
            whole[self.domain_] = matrix.reshape(-1, samples, frames)
            maps.append(np.moveaxis(whole, (3, 4), (0, 2)) * self.scale_[:, None, None, None])
        filled, std = maps
        # Cells seen for the first time belong to no mode.
        std = np.where(np.isnan(std), self.scale_[:, None, None, None], std)
        return self._complete(filled + self.climatology_[:, None], data), std


@dataclass(frozen=True, eq=False)
class Modes:
    """What a refill ends with.

    Attributes
    ----------
    mean
        (N, 1) of the refilled rows.
    scaled
        L (N, k).
    noise
        nu².
    """

    mean: np.ndarray
    scaled: np.ndarray
    noise: float

    def project(self, x: np.ndarray, seen: np.ndarray, inflation: float) -> tuple[np.ndarray, np.ndarray]:
        """Estimate and variance e² + nu² of x (N, n) from its cells ``seen``."""
        fit, variance = project(self.scaled, x - self.mean, seen, inflation * self.noise)
        return self.mean + fit, variance + self.noise


def leading(x: np.ndarray, rank: int) -> np.ndarray:
    """The k leading left singular vectors (N, k) of x (N, n), by the smaller Gram matrix."""
    rows, columns = x.shape
    if rows <= columns:
        return eigh(x @ x.T, subset_by_index=(rows - rank, rows - 1))[1]
    v = eigh(x.T @ x, subset_by_index=(columns - rank, columns - 1))[1]
    return np.linalg.qr(x @ v)[0]


def project(scaled: np.ndarray, x: np.ndarray, seen: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Fits the modes to the observed cells of every frame.

    Parameters
    ----------
    scaled
        L (N, k).
    x, seen
        Anomalies and observed cells (N, n).
    noise
        mu².

    Returns
    -------
    The fit and the variance e², (N, n).
    """
    cells, rank = scaled.shape
    outer = (scaled[:, :, None] * scaled[:, None, :]).reshape(cells, rank * rank)
    fit, variance = np.empty(x.shape), np.empty(x.shape)
    step = at_once(rank * rank)
    for start in range(0, x.shape[1], step):
        part = slice(start, start + step)
        visible = seen[:, part].astype(float)
        gram = (visible.T @ outer).reshape(-1, rank, rank)
        inverse = np.linalg.inv(gram + noise * np.eye(rank))
        amplitudes = inverse @ ((visible * x[:, part]).T @ scaled)[:, :, None]
        fit[:, part] = scaled @ amplitudes[:, :, 0].T
        variance[:, part] = noise * (outer @ inverse.reshape(-1, rank * rank).T)
    return fit, np.maximum(variance, 0.0)
