r"""A standard deviation for filled cells, calibrated on held-out cells rather than assumed.

A cell at distance d from the nearest observation has a raw standard deviation s: the learnt one, or for a model that
learns none the root mean squared error of held-out cells at that distance; corrected by what
surrounds the cell (`fieldfill.uncertainty.local_scale`). It is stated as

.. math:: \mathrm{std} = f(d)\, s, \qquad f = (q_{0.9} / 1.645)^{0.64}\, (q_{0.5} / 0.674)^{0.36}

with the weighted quantiles q of ``|error| / s`` of the held-out cells near d, each counted as often as cells like it
are missing (`fieldfill.uncertainty.weights`). If errors over s are normal, both quantiles agree, and 90 % of the
truth lies within 1.645 std and 50 % within 0.674 std. If they have heavier tails no factor does both; the exponents
share the miss in proportion to what is tolerated, 3 points at 90 % and 5 at 50 %, and f keeps at least 88 %. The law of
``|error| / std`` is kept beside it (`fieldfill.uncertainty.quantiles`) and gives quantiles that are right at every
level.

The quantiles of few crops are noisy: factors are drawn towards a common one, and all of them are raised until crops
that did not take part are covered as well. Beyond the farthest held-out cell nothing is known: there the std grows to
that of the climatology.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from fieldfill.uncertainty.local_scale import LocalScale
from fieldfill.uncertainty.quantiles import LEVELS, Tails, drawn_towards, weighted_quantile
from fieldfill.uncertainty.weights import FAR, effective_count

__all__ = ["Calibration", "DistanceSpread", "HeldCells"]

# Held-out cells below which a mean over them is not trusted.
MIN_CELLS = 50
# Standard deviation of the climatology: unitless fields have variance 1.
CLIMATOLOGY = 1.0
# Smallest standard deviation, as a share of that of the climatology.
LEAST = 1e-4
# Levels that are to be covered and the exponents of their quantiles. A factor changes the coverage of a normal law by
# 2 z φ(z) a unit of its logarithm, .34 and .43; the exponents are the squares of that over the tolerated 3 and 5
# points.
OUTER = (0.9, 0.64)
INNER = (0.5, 0.36)
# Begins the names of the local correction's arrays.
LOCAL = "local."


@dataclass(frozen=True)
class HeldCells:
    """Held-out cells as flat arrays (n,).

    Attributes
    ----------
    error
        estimate minus value, unitless.
    raw
        raw standard deviation, or None if the model learns none.
    distance, sparsity, rarity
        see `fieldfill.uncertainty.weights`.
    variable, window
        numbers of the variable and of the validation crop.
    weight
        how much the cell counts; mean 1.
    around
        (n, 5) of `fieldfill.uncertainty.local_scale`; None leaves the raw standard deviation as it is.
    """

    error: np.ndarray
    raw: np.ndarray | None
    distance: np.ndarray
    sparsity: np.ndarray
    rarity: np.ndarray
    variable: np.ndarray
    window: np.ndarray
    weight: np.ndarray
    around: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.error)

    def where(self, chosen: np.ndarray) -> "HeldCells":
        parts: dict[str, Any] = {name: None if value is None else value[chosen] for name, value in vars(self).items()}
        return HeldCells(**parts)


@dataclass(frozen=True)
class DistanceSpread:
    """Root mean squared error of held-out cells by distance, for each variable.

    Attributes
    ----------
    distances
        (N,) centres of the distance bins.
    spreads
        (C, N) unitless root mean squared errors, never falling with distance.
    """

    distances: np.ndarray
    spreads: np.ndarray

    def at(self, distance: np.ndarray, variable: int) -> np.ndarray:
        return np.interp(distance, self.distances, self.spreads[variable])

    @classmethod
    def fit(cls, cells: HeldCells, variables: int, bins: int) -> "DistanceSpread":
        squares, weight = cells.error**2, np.maximum(cells.weight, 1e-9)
        place, centres = _bins(cells.distance, weight, int(np.clip(len(cells) // MIN_CELLS, 1, bins)))
        total = [np.average(squares[place == i], weights=weight[place == i]) for i in range(len(centres))]
        spreads = []
        for c in range(variables):
            means, counts = [], []
            for i in range(len(centres)):
                own = (place == i) & (cells.variable == c)
                enough = own.sum() >= MIN_CELLS
                # A bin that a variable hardly reaches borrows from all variables.
                means.append(np.average(squares[own], weights=weight[own]) if enough else total[i])
                counts.append(max(weight[own].sum(), 1.0))
            spreads.append(np.sqrt(_monotone(np.array(means), np.array(counts))))
        return cls(centres, np.maximum(np.stack(spreads), LEAST))


@dataclass(frozen=True)
class Calibration:
    """What turns a raw standard deviation into a stated one.

    Attributes
    ----------
    distances, factors
        (N,) and (C, N): f of each variable at some distances, linear between them.
    reach
        distance of the farthest held-out cells.
    spread
        the raw standard deviation of a model that learns none, else None.
    summary
        reliability of the held-out cells and how much evidence there was; JSON.
    local
        correction of the raw standard deviation by what surrounds a cell, or None.
    tails
        the law of ``|error|`` over the stated standard deviation; None is the normal law.
    """

    distances: np.ndarray
    factors: np.ndarray
    reach: float
    spread: DistanceSpread | None
    summary: dict[str, Any] = field(default_factory=dict)
    local: LocalScale | None = None
    tails: Tails | None = None

    def __call__(self, raw: np.ndarray | None, distance: np.ndarray, around: np.ndarray | None = None) -> np.ndarray:
        """Standard deviation (..., C, T, H, W) from the raw one, if there is one, the distance and the surroundings.

        ``around`` (..., C, T, H, W, 5) may be left out if the calibration was fitted without it.
        """
        distance = np.minimum(distance, FAR)
        out = np.empty(distance.shape, np.float32)
        for c in range(len(self.factors)):
            here = (..., c, slice(None), slice(None), slice(None))
            own = None if around is None else around[(*here, slice(None))]
            raws = self._corrected(None if raw is None else raw[here], distance[here], own, c)
            out[here] = self._stated(raws, distance[here], c)
        return out

    def steps(self, probability: float) -> np.ndarray:
        """Stated standard deviations (C,) from the filled value of each variable to a quantile of the truth."""
        return (self.tails or Tails.normal(len(self.factors))).at(probability)

    def _corrected(
        self, raw: np.ndarray | None, distance: np.ndarray, around: np.ndarray | None, variable: int
    ) -> np.ndarray:
        """The raw standard deviation, corrected by the surroundings."""
        if self.spread is not None:
            raw = self.spread.at(distance, variable)
        assert raw is not None, "the calibration of a learnt spread needs it"
        raw = np.maximum(raw, LEAST)
        if self.local is None:
            return raw
        assert around is not None, "a calibration with the surroundings needs them"
        return self.local(raw, around)

    def _stated(self, raw: np.ndarray, distance: np.ndarray, variable: int) -> np.ndarray:
        std = np.maximum(raw * np.interp(distance, self.distances, self.factors[variable]), LEAST)
        # From the reach to twice the reach the variance goes to the climatology's; it never falls.
        unknown = np.clip(distance / max(self.reach, 1.0) - 1, 0, 1)
        return np.maximum(std, np.sqrt((1 - unknown) * std**2 + unknown * CLIMATOLOGY**2))

    @classmethod
    def fit(cls, cells: HeldCells, variables: int, by_distance: bool = True) -> "Calibration":
        """From held-out cells.

        For the summary each crop is judged by the factors of the others. All are raised by one number until their
        own factor would be 1, so that the summary tests the other levels and not these.
        """
        fitted = cls._plain(cells, variables, by_distance)
        fold = _folds(cells.window)
        scores = np.abs(cells.error) / fitted._of(cells)
        if fold.max() > 0:
            ridge = None if fitted.local is None else fitted.local.ridge
            for k in range(fold.max() + 1):
                others = cls._plain(cells.where(fold != k), variables, by_distance, ridge)
                scores[fold == k] = np.abs(cells.error[fold == k]) / others._of(cells.where(fold == k))
            raised = max(1.0, _factor(scores, cells.weight))
            fitted = replace(fitted, factors=fitted.factors * raised)
            scores = scores / raised
        raws = np.abs(cells.error) / replace(fitted, local=None)._raw(cells)
        tails = Tails.fit(scores, cells.weight, cells.variable, cells.window, variables)
        return replace(fitted, summary=_summary(cells, scores, raws, fitted), tails=tails)

    @classmethod
    def _plain(cls, cells: HeldCells, variables: int, by_distance: bool, ridge: float | None = None) -> "Calibration":
        """Factors without regard to the noise of few crops; ``ridge`` None chooses that of the local correction."""
        spread = DistanceSpread.fit(cells, variables, 12 if by_distance else 1) if cells.raw is None else None
        knots = 6 if by_distance else 1  # distances at which factors may differ
        reach = float(np.quantile(cells.distance, 0.995)) if by_distance else FAR
        weight = np.maximum(cells.weight, 1e-9)
        place, centres = _bins(cells.distance, weight, int(np.clip(len(cells) // MIN_CELLS, 1, knots)))
        found = cls(centres, np.ones((variables, len(centres))), reach, spread)
        if cells.around is not None:
            parts = (cells.error, found._raw(cells), cells.distance, cells.around, weight, _folds(cells.window))
            found = replace(found, local=LocalScale.fit(*parts, ridge))
        ratio = np.abs(cells.error) / found._raw(cells)
        common = _factor(ratio, cells.weight)
        factors = np.empty((variables, len(centres)))
        for c in range(variables):
            own = cells.variable == c
            middle = _drawn(ratio, cells, own, common)
            factors[c] = [_drawn(ratio, cells, own & (place == i), middle) for i in range(len(centres))]
        found = replace(found, factors=factors)
        for c in range(variables):
            own = cells.where(cells.variable == c)
            if len(own) >= MIN_CELLS:
                factors[c] *= _factor(np.abs(own.error) / found._of(own), own.weight)
        return replace(found, factors=factors)

    def _raw(self, cells: HeldCells) -> np.ndarray:
        values = [self._corrected(cells.raw, cells.distance, cells.around, c) for c in range(len(self.factors))]
        return np.choose(cells.variable, values)

    def _of(self, cells: HeldCells) -> np.ndarray:
        raw = self._raw(cells)
        values = [self._stated(raw, cells.distance, c) for c in range(len(self.factors))]
        return np.choose(cells.variable, values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything but the summary, to be saved."""
        out = {"distances": self.distances, "factors": self.factors, "reach": np.array([self.reach])}
        if self.spread is not None:
            out |= {"spread.distances": self.spread.distances, "spread.spreads": self.spread.spreads}
        if self.local is not None:
            out |= {f"{LOCAL}{name}": value for name, value in self.local.arrays().items()}
        if self.tails is not None:
            out["tails"] = self.tails.quantiles
        return out

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], summary: dict[str, Any]) -> "Calibration":
        spread = None
        if "spread.distances" in arrays:
            spread = DistanceSpread(arrays["spread.distances"], arrays["spread.spreads"])
        parts = {name.removeprefix(LOCAL): value for name, value in arrays.items() if name.startswith(LOCAL)}
        local = LocalScale.of(parts) if parts else None
        tails = Tails(arrays["tails"]) if "tails" in arrays else None
        return cls(arrays["distances"], arrays["factors"], float(arrays["reach"][0]), spread, summary, local, tails)


def _summary(cells: HeldCells, scores: np.ndarray, raws: np.ndarray, fitted: Calibration) -> dict[str, Any]:
    """How the held-out cells fare; ``scores`` are |error| / std, ``raws`` the same before calibration.

    ``tails`` is the ratio of the 90 % and 50 % quantiles of the scores over that of a normal law: 1 if one standard
    deviation can be right for both, more if a few cells err much more than most.
    """
    total = cells.weight.sum()

    def covered(ratio: np.ndarray) -> list[float]:
        return [float(cells.weight[ratio <= ndtri((1 + level) / 2)].sum() / total) for level in LEVELS]

    return {
        "levels": list(LEVELS),
        "calibrated": covered(scores),
        "uncalibrated": covered(raws),
        "squared_score": float((cells.weight * scores**2).sum() / total),
        "tails": _over_normal(scores, cells.weight, OUTER[0]) / _over_normal(scores, cells.weight, INNER[0]),
        "local_slopes": None if fitted.local is None else fitted.local.slopes.tolist(),
        "cells": len(cells),
        "effective_cells": effective_count(cells.weight),
        "effective_windows": effective_count(cells.weight, cells.window),
        "reach": fitted.reach,
    }


def _factor(ratio: np.ndarray, weight: np.ndarray, kept: float = 0.88) -> float:
    """The factor with which intervals of |error| / std are as right as possible at both levels.

    The interval of 90 % holds at least the share ``kept``.
    """
    shared = sum(exponent * np.log(_over_normal(ratio, weight, level)) for level, exponent in (OUTER, INNER))
    return float(max(np.exp(shared), weighted_quantile(ratio, weight, kept) / ndtri((1 + OUTER[0]) / 2)))


def _over_normal(ratio: np.ndarray, weight: np.ndarray, level: float) -> float:
    """Weighted quantile of |error| / std over that of a normal distribution."""
    return float(weighted_quantile(ratio, weight, level) / ndtri((1 + level) / 2))


def _drawn(ratio: np.ndarray, cells: HeldCells, chosen: np.ndarray, towards: float) -> float:
    """The factor of the chosen cells, drawn towards another the more the fewer crops they come from."""
    if chosen.sum() < MIN_CELLS or not cells.weight[chosen].any():
        return towards
    windows = effective_count(cells.weight[chosen], cells.window[chosen])
    own = _factor(ratio[chosen], cells.weight[chosen])
    return float(drawn_towards(towards, own, windows))


def _folds(window: np.ndarray, count: int = 8) -> np.ndarray:
    """Number (n,) of the fold of each cell, out of ``count``; a crop lies in one fold."""
    names, number = np.unique(window, return_inverse=True)
    return number % min(count, len(names))


def _bins(values: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bin number (n,) of each value and centres (N,) of bins that hold about equal weight."""
    found, number = np.unique(values, return_inverse=True)
    below = np.cumsum(np.bincount(number, weights))
    cuts = np.searchsorted(below, below[-1] * np.arange(1, count) / count)
    cuts = np.unique(cuts[cuts < len(found) - 1])
    place = np.digitize(values, (found[cuts] + found[cuts + 1]) / 2)
    centres = np.array([np.average(values[place == i], weights=weights[place == i]) for i in range(len(cuts) + 1)])
    return place, centres


def _monotone(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to ``values`` in weighted least squares (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value, weight in zip(values, weights):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            v2, w2, n2 = blocks.pop()
            v1, w1, n1 = blocks.pop()
            blocks.append([(v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2])
    return np.concatenate([np.full(int(n), value) for value, _, n in blocks])
