r"""Weights that make held-out cells look like the cells that are really missing.

How hard a cell is depends on where it lies in its gap. Two measures describe that: the distance d to the nearest
observation in space and time, and the sparsity g, the share of cells around it that are not observed (1 deep inside a
large gap, about 1 - p among single pixels observed with probability p). A third, the rarity r, describes its place: the
share of the frames of the record in which it is not observed. Places that are often hidden differ from others. A
held-out cell counts as

.. math:: w(d, g, r) = \frac{p_{missing}(d, g)}{p_{held}(d, g)} \; u(r)

with both densities taken over bins: equal shares of the missing cells by d, and within each by g. The factor u makes
the shares by r right, too; both factors are fitted in turns. A bin that hardly any held-out cell reaches is merged
with its neighbours, and no weight exceeds 20 times the mean.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import gaussian_filter

from fieldfill.metrics import distance_to_observation

__all__ = ["FAR", "Places", "WeightSettings", "effective_count", "matching_weights", "places_in_gaps"]

# Distance in cells of a cell whose whole crop is unobserved: as good as infinite.
FAR = 1e3
# Frames, rows and columns over which the sparsity is averaged (Gaussian).
AROUND = (1.0, 1.5, 1.5)


@dataclass(frozen=True)
class WeightSettings:
    """How held-out cells are weighted.

    Attributes
    ----------
    cap
        largest weight over the mean.
    distance_bins, sparsity_bins, rarity_bins
        number of bins by distance, by sparsity within each, and by rarity.
    least_cells
        held-out cells that a bin needs to count.
    rounds
        in which distances and sparsities, and rarities, take turns.
    """

    cap: float = 20.0
    distance_bins: int = 8
    sparsity_bins: int = 5
    rarity_bins: int = 5
    least_cells: int = 30
    rounds: int = 5


@dataclass(frozen=True)
class Places:
    """Where cells (n,) lie: distance, sparsity and rarity of each, and how much it counts beforehand."""

    distance: np.ndarray
    sparsity: np.ndarray
    rarity: np.ndarray
    prior: np.ndarray

    def __len__(self) -> int:
        return len(self.distance)

    def where(self, chosen: np.ndarray) -> "Places":
        return Places(*(part[chosen] for part in (self.distance, self.sparsity, self.rarity, self.prior)))


def places_in_gaps(observed: np.ndarray, periodic: tuple[bool, bool]) -> tuple[np.ndarray, np.ndarray]:
    """Distance, at most `FAR`, and sparsity of every cell of ``observed`` (..., T, H, W)."""
    distance = np.minimum(distance_to_observation(observed, periodic=periodic), FAR)
    modes = ("nearest", *("wrap" if closed else "nearest" for closed in periodic))
    sparsity = np.empty(observed.shape, np.float32)
    for place in np.ndindex(observed.shape[:-3]):
        gaps = (~observed[place]).astype(np.float32)
        sparsity[place] = gaussian_filter(gaps, AROUND, mode=modes, truncate=2.0)
    return distance, sparsity


def matching_weights(held: Places, missing: Places, settings: WeightSettings | None = None) -> np.ndarray:
    """Weights (n,) of mean 1 of the held-out cells."""
    settings = settings or WeightSettings()
    weights = held.prior
    for _ in range(settings.rounds if len(missing) else 0):
        found = _by_place_in_gap(replace(held, prior=weights), missing, settings)
        if not found.any():
            return held.prior / held.prior.mean()
        weights = _by_one(held.rarity, found, missing.rarity, missing.prior, settings.rarity_bins, settings)
    return _capped(weights, settings.cap)


def _by_place_in_gap(held: Places, missing: Places, settings: WeightSettings) -> np.ndarray:
    """Weights (n,) of the held-out cells that give distances, and sparsities at each, the wanted shares."""
    edges = _edges(missing.distance, missing.prior, settings.distance_bins)
    here, there = np.digitize(held.distance, edges), np.digitize(missing.distance, edges)
    wanted = np.bincount(there, missing.prior, len(edges) + 1)
    able = np.bincount(here, minlength=len(edges) + 1) >= settings.least_cells
    wanted = _handed_over(wanted / wanted.sum(), able)
    weights = np.zeros(len(held))
    for i, share in enumerate(wanted):
        mine, theirs = here == i, there == i
        if share > 0:
            own, others = held.where(mine), missing.where(theirs)
            bins = settings.sparsity_bins
            within = _by_one(own.sparsity, own.prior, others.sparsity, others.prior, bins, settings)
            weights[mine] = share * within / within.sum()
    return weights


def _by_one(
    own: np.ndarray,
    prior: np.ndarray,
    missing: np.ndarray,
    missing_prior: np.ndarray,
    bins: int,
    settings: WeightSettings,
) -> np.ndarray:
    """Weights (n,) of held-out cells, ``prior`` beforehand, spread over one measure as it is over the missing cells."""
    if len(missing) == 0:
        return prior
    edges = _edges(missing, missing_prior, bins)
    here, there = np.digitize(own, edges), np.digitize(missing, edges)
    wanted = np.bincount(there, missing_prior, len(edges) + 1)
    wanted = _handed_over(wanted, np.bincount(here, minlength=len(edges) + 1) >= settings.least_cells)
    present = np.bincount(here, prior, len(edges) + 1)
    ratio = np.divide(wanted, present, out=np.zeros_like(wanted), where=present > 0)
    weights = prior * ratio[here]
    return weights if weights.any() else prior


def _edges(values: np.ndarray, weights: np.ndarray, bins: int) -> np.ndarray:
    """Inner edges of bins that hold about equal shares; they lie between two values, never on one."""
    found, total = np.unique(values, return_inverse=True)
    below = np.cumsum(np.bincount(total, weights))
    cuts = np.searchsorted(below, below[-1] * np.arange(1, bins) / bins)
    cuts = np.unique(cuts[cuts < len(found) - 1])
    return (found[cuts] + found[cuts + 1]) / 2


def _handed_over(shares: np.ndarray, able: np.ndarray) -> np.ndarray:
    """The shares with those of bins without evidence given to the nearest bin that has some."""
    if not able.any():
        return np.zeros_like(shares)
    out, good = np.zeros_like(shares), np.flatnonzero(able)
    # Of two equally near bins the one farther from the observations is taken: its cells are harder.
    nearest = [good[np.argmin(np.abs(good - i) - 0.1 * (good > i))] for i in range(len(shares))]
    np.add.at(out, nearest, shares)
    return out


def _capped(weights: np.ndarray, cap: float) -> np.ndarray:
    weights = weights / weights.mean()
    for _ in range(5):  # cutting lowers the mean, so that a few rounds are needed
        weights = np.minimum(weights, cap)
        weights = weights / weights.mean()
    return weights


def effective_count(weights: np.ndarray, groups: np.ndarray | None = None) -> float:
    """(sum w)² / sum w²: how many cells, or ``groups`` of cells, of equal weight are as much evidence."""
    summed = weights if groups is None else np.bincount(groups, weights)
    return float(summed.sum() ** 2 / (summed**2).sum()) if summed.any() else 0.0
