r"""Where the error of a fill comes from: the terms of Theorem 2 of the paper, cell by cell.

The mean over K contexts differs from the truth by what contexts leave out, by their chance, and by what no context
reveals. With E_k = E[x | ctx_k] and V_k = Var[x | ctx_k], means over contexts k, and M all observations,

.. math::
    \underbrace{\mathrm{std}^2}_{calibrated} = \underbrace{\mathrm{Var}_k(E_k) / K}_{contexts}
    + \underbrace{\overline{V_k} - V_M - \mathrm{Var}_k(E_k)}_{information} + rest

The middle term is the squared difference between the mean of the E_k and E_M: the identity
mean (E_k - E_M)² = mean V_k - V_M, less the part that averaging removes. For a model that learns no variance
that difference itself is computed. The rest is the variance given all observations, the network's bias, and the error
of calibration.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Budget", "budget_table"]


@dataclass(frozen=True)
class Budget:
    """Parts of the stated variance: of cells (B, C, T, H, W), or summed up by variable (C,).

    Attributes
    ----------
    contexts
        variance between contexts over their number: more contexts would lower it.
    information
        what the mean over contexts loses against all observations at once: larger contexts would lower it.
    rest
        what is left: the data themselves, and the network.
    """

    contexts: np.ndarray
    information: np.ndarray
    rest: np.ndarray

    @classmethod
    def split(cls, variance: np.ndarray, contexts: np.ndarray, information: np.ndarray) -> "Budget":
        """Parts that are not negative and add up to ``variance``."""
        contexts = np.clip(contexts, 0, variance)
        information = np.clip(information, 0, variance - contexts)
        return cls(contexts, information, variance - contexts - information)

    def over(self, cells: np.ndarray) -> "Budget":
        """Sums (C,) over the ``cells`` (B, C, T, H, W) bool."""
        axes = (0, 2, 3, 4)
        parts = (np.where(cells, part, 0).sum(axes, dtype=float) for part in vars(self).values())
        return Budget(*parts)

    def __add__(self, other: "Budget") -> "Budget":
        return Budget(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values())))


def budget_table(total: Budget, variables: Sequence[str]) -> dict[str, dict[str, float]]:
    """Shares of the parts, which add up to 1, for each variable; ``total`` holds sums (C,)."""
    table = {}
    for c, name in enumerate(variables):
        parts = {key: float(part[c]) for key, part in vars(total).items()}
        whole = sum(parts.values())
        table[name] = {key: part / whole if whole else float("nan") for key, part in parts.items()}
    return table
