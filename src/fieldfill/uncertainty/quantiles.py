"""Quantiles of what is missing, where errors have other tails than a normal law.

One standard deviation cannot describe where half of the truth lies and where nine tenths of it do, unless errors
are normal. So the law of ``|error|`` / std is kept: its quantiles on held-out cells, for each variable.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fieldfill.uncertainty.weights import effective_count

__all__ = ["LEVELS", "Tails", "drawn_towards", "weighted_quantile"]

# Probabilities of the central intervals at which the law of the errors is kept.
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
# Half widths of these intervals under a normal law, in standard deviations.
NORMAL = ndtri((1 + np.array(LEVELS)) / 2)


@dataclass(frozen=True)
class Tails:
    """The law of ``|error|`` / std.

    Attributes
    ----------
    quantiles
        (C, N) of each variable at the central ``LEVELS``; they never fall.
    """

    quantiles: np.ndarray

    def at(self, probability: float) -> np.ndarray:
        """Standard deviations (C,) from the filled value to a quantile: -1.6 at 5 % for normal errors.

        Linear in the quantile of a normal law between the levels, and in proportion to it beyond the last one.
        """
        z = float(ndtri(probability))
        within = [np.interp(abs(z), [0, *NORMAL], [0, *row]) for row in self.quantiles]
        return np.sign(z) * np.array(within) * max(1.0, abs(z) / NORMAL[-1])

    @classmethod
    def normal(cls, variables: int) -> "Tails":
        return cls(np.tile(NORMAL, (variables, 1)))

    @classmethod
    def fit(
        cls, scores: np.ndarray, weight: np.ndarray, variable: np.ndarray, window: np.ndarray, variables: int
    ) -> "Tails":
        """From ``|error| / std`` (n,) of held-out cells; a variable with few crops is drawn towards the others."""
        common = weighted_quantile(scores, weight, LEVELS)
        rows = []
        for c in range(variables):
            own = variable == c
            windows = effective_count(weight[own], window[own]) if own.any() else 0.0
            found = weighted_quantile(scores[own], weight[own], LEVELS) if windows else common
            rows.append(drawn_towards(common, found, windows))
        return cls(np.stack(rows))


def drawn_towards(
    common: np.ndarray | float, own: np.ndarray | float, windows: float, worth: float = 10.0
) -> np.ndarray:
    """Positive numbers found in so many crops, drawn towards common ones the more the fewer these are.

    The common ones count as much as ``worth`` crops.
    """
    return np.exp((windows * np.log(own) + worth * np.log(common)) / (windows + worth))


def weighted_quantile(values: np.ndarray, weight: np.ndarray, levels: float | tuple[float, ...]) -> np.ndarray:
    """Quantiles of positive values, at least 1e-3."""
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    place = np.minimum(np.searchsorted(below, np.asarray(levels) * below[-1]), len(order) - 1)
    return np.maximum(values[order[place]], 1e-3)
