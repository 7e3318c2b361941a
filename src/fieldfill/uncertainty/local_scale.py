r"""Correction of the standard deviation of a cell by what surrounds it, learnt on held-out cells.

Some crops are easier than others, and so are some parts of a crop: a calm flow, the rear of a front, a cell with
many observations around it. A network with little training does not show this; the field that it fills in does. With
the root mean square r_t and r_s of its differences between neighbouring frames and cells, averaged around a cell, its
own root mean square a over the crop, the share g of cells around that are missing, the share o of the whole crop
that is observed, and the raw standard deviation s,

.. math:: \log s' = \log s + b \cdot \phi, \qquad
          \phi = \text{standardised } (\log s, \log r_t, \log r_s, \log a, g, \log o)

The slopes b minimise the loss of a Laplace law, which outliers do not govern,

.. math:: \sum_i w_i \left( |e_i| / s'_i + \log s'_i \right) + \lambda \|b\|^2

over errors e of held-out cells with weights w, beside a constant and a parabola in the logarithm of the distance to an
observation, which is calibrated afterwards. Crops that take no part choose λ. If none of the values beats b = 0 on
them by more than its standard error, nothing is corrected, and s stays as it is.

Without o the held-out cells would mislead: they lie in crops that were made sparser than they are, and those of their
cells that look like ordinary ones, because many observations happen to be near, have another ratio of error to s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

__all__ = ["LocalScale", "LocalSettings", "surroundings"]

# Frames, rows and columns that surround a cell.
AROUND = (3, 5, 5)
# Share of the climatological standard deviation that stands for no difference at all.
SMOOTHEST = 1e-6
# Share of a crop that stands for no observation at all.
SMALLEST_SHARE = 1e-4


@dataclass(frozen=True)
class LocalSettings:
    """How the local correction is fitted.

    Attributes
    ----------
    ridges
        λ that are tried.
    most_cells
        held-out cells that the slopes are fitted to, at most.
    ends
        quantiles of the held-out cells beyond which nothing is extrapolated.
    """

    ridges: tuple[float, ...] = (0.003, 0.03, 0.3)
    most_cells: int = 20_000
    ends: tuple[float, float] = (0.01, 0.99)


def surroundings(x: Tensor, observed: Tensor, domain: Tensor) -> np.ndarray:
    """log r_t, log r_s, log a, g and log o, (B, C, T, H, W, 5), of filled fields x; ``observed`` has their shape.

    Only cells of the ``domain`` (B, C, H, W) count. A field of one frame has no differences in time.
    """
    inside = domain[:, :, None].expand(-1, -1, *x.shape[2:])
    parts = []
    for axes in ((2,), (3, 4)):
        squares, pairs = torch.zeros_like(x), x.new_zeros(inside.shape)
        for axis in axes:
            count = x.shape[axis] - 1
            pair = inside.narrow(axis, 0, count) & inside.narrow(axis, 1, count)
            square = x.diff(dim=axis).square_().masked_fill_(~pair, 0)
            for start in (0, 1):  # either end of a pair
                squares.narrow(axis, start, count).add_(square)
                pairs.narrow(axis, start, count).add_(pair)
        parts.append(_log_root(_around(squares) / _around(pairs).clamp(min=1)))
    cells = inside.flatten(2).sum(2).clamp(min=1)
    power = x.square().masked_fill_(~inside, 0).flatten(2).sum(2) / cells
    parts.append(np.broadcast_to(_log_root(power)[..., None, None, None], x.shape))
    gaps = _around((inside & ~observed).to(x.dtype)) / _around(inside.to(x.dtype)).clamp(min=1)
    share = (observed & inside).flatten(2).sum(2) / cells
    share = share.clamp(min=SMALLEST_SHARE).log()[..., None, None, None]
    return np.stack([*parts, gaps.numpy(), np.broadcast_to(share.numpy(), x.shape)], axis=-1)


def _around(x: Tensor) -> Tensor:
    """Sums over the surroundings of each cell (B, C, T, H, W); nothing lies beyond the edges."""
    for axis, size in enumerate(AROUND, start=2):
        total = x.clone()
        for k in range(1, min(size // 2 + 1, x.shape[axis])):
            count = x.shape[axis] - k
            total.narrow(axis, k, count).add_(x.narrow(axis, 0, count))
            total.narrow(axis, 0, count).add_(x.narrow(axis, k, count))
        x = total
    return x


def _log_root(mean_square: Tensor) -> np.ndarray:
    return 0.5 * np.log(np.maximum(mean_square.numpy(), SMOOTHEST**2))


@dataclass(frozen=True)
class LocalScale:
    """The correction of a raw standard deviation.

    Attributes
    ----------
    centre, width, ends
        (P,), (P,) and (2, P): what the predictors are standardised with, and the range in which they count.
    slopes
        (P,) b.
    ridge
        λ that was chosen; infinite if nothing is corrected.
    """

    centre: np.ndarray
    width: np.ndarray
    ends: np.ndarray
    slopes: np.ndarray
    ridge: float

    def __call__(self, raw: np.ndarray, around: np.ndarray) -> np.ndarray:
        """s' from s (...) and its `surroundings` (..., 5)."""
        if not self.slopes.any():
            return raw
        change = np.zeros(raw.shape)
        predictors = (np.log(raw), *np.moveaxis(around, -1, 0))
        for number, slope in enumerate(self.slopes):
            change += slope * self._standardised(predictors[number], number)
        return raw * np.exp(change)

    def _standardised(self, predictor: np.ndarray, number: int) -> np.ndarray:
        inside = np.clip(predictor, *self.ends[:, number])
        return (inside - self.centre[number]) / self.width[number]

    @classmethod
    def fit(
        cls,
        error: np.ndarray,
        raw: np.ndarray,
        distance: np.ndarray,
        around: np.ndarray,
        weight: np.ndarray,
        fold: np.ndarray,
        ridge: float | None = None,
        settings: LocalSettings | None = None,
    ) -> "LocalScale":
        """From held-out cells (n,); those of one ``fold`` stand aside together when the ``ridge`` is to be chosen."""
        settings = settings or LocalSettings()
        if len(error) > settings.most_cells:
            some = np.linspace(0, len(error) - 1, settings.most_cells).astype(int)
            error, raw, distance, around, weight, fold = (
                part[some] for part in (error, raw, distance, around, weight, fold)
            )
        predictors = np.column_stack([np.log(raw), around])
        ends = np.quantile(predictors, settings.ends, axis=0)
        predictors = np.clip(predictors, *ends)
        width = predictors.std(axis=0)
        found = cls(predictors.mean(axis=0), np.where(width > 1e-6, width, 1.0), ends, np.zeros(len(width)), np.inf)
        far = np.log(np.maximum(distance, 0.5))
        far = far - far.mean()
        aside = np.column_stack([np.ones_like(far), far, far**2])
        ratio = np.abs(error) / raw
        common = np.average(ratio, weights=weight)
        if common < 1e-9:
            return found  # a constant field: nothing errs, and the slopes would run away
        ratio = ratio / common  # a common factor is not to matter
        problem = _Slopes(ratio, aside, (predictors - found.centre) / found.width, weight)
        # s' must not fall as s grows.
        least = -found.width[0]
        if ridge is None:
            ridge = problem.best_ridge(settings.ridges, fold, least)
        slopes = problem.solve(np.ones(len(error), bool), ridge, least)[aside.shape[1] :]
        return cls(found.centre, found.width, ends, slopes, ridge)

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: np.atleast_1d(value) for name, value in vars(self).items()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "LocalScale":
        centre, width, ends, slopes = (arrays[name] for name in ("centre", "width", "ends", "slopes"))
        return cls(centre, width, ends, slopes, float(arrays["ridge"][0]))


@dataclass(frozen=True)
class _Slopes:
    """The loss of coefficients of ``aside`` (n, A), without a ridge, and of ``predictors`` (n, P).

    ``ratio`` is |e| / s and ``weight`` w, both (n,).
    """

    ratio: np.ndarray
    aside: np.ndarray
    predictors: np.ndarray
    weight: np.ndarray

    def solve(self, chosen: np.ndarray, ridge: float, least: float) -> np.ndarray:
        """Coefficients (A + P,) from the ``chosen`` cells; the slope of the first predictor is at least ``least``."""
        fixed, free = self.aside.shape[1], self.predictors.shape[1]
        design = np.column_stack([self.aside, self.predictors])[chosen]
        ratio, weight = self.ratio[chosen], self.weight[chosen] / self.weight[chosen].sum()
        price = np.r_[np.zeros(fixed), np.full(free, 0.0 if np.isinf(ridge) else ridge)]

        def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
            change = design @ b
            scaled = weight * ratio * np.exp(-change)
            value = scaled.sum() + weight @ change + price @ b**2
            return float(value), design.T @ (weight - scaled) + 2 * price * b

        slope = (0.0, 0.0) if np.isinf(ridge) else (None, None)
        first = slope if np.isinf(ridge) else (least, None)
        bounds = [(None, None)] * fixed + [first] + [slope] * (free - 1)
        return np.asarray(minimize(loss, np.zeros(fixed + free), jac=True, method="L-BFGS-B", bounds=bounds).x)

    def best_ridge(self, ridges: Sequence[float], fold: np.ndarray, least: float) -> float:
        """The λ that does best on folds that took no part; infinite unless the gain exceeds its standard error."""
        if len(np.unique(fold)) < 2:
            return np.inf
        losses = {ridge: self.left_out(fold, ridge, least) for ridge in (*ridges, np.inf)}
        best = min(losses, key=lambda ridge: losses[ridge].sum())
        gain = losses[np.inf] - losses[best]
        return best if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) else np.inf

    def left_out(self, fold: np.ndarray, ridge: float, least: float) -> np.ndarray:
        """Loss of each fold under the coefficients of the others."""
        losses = []
        for k in np.unique(fold):
            mine = fold == k
            b = self.solve(~mine, ridge, least)
            change = np.column_stack([self.aside, self.predictors])[mine] @ b
            losses.append(float(self.weight[mine] @ (self.ratio[mine] * np.exp(-change) + change)))
        return np.array(losses)
