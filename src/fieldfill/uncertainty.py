"""A standard deviation for filled cells, measured on held-out cells rather than assumed.

The error of a fill grows with the distance to the nearest observation. Held-out cells show by how much: their root
mean squared error as a function of the distance, made monotone, is what a missing cell at that distance is given.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["DistanceSpread"]

FAR = 1e3  # a cell whose whole window is unobserved is infinitely far away
MIN_CELLS = 50  # a mean over fewer held-out cells is not trusted


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

    def __call__(self, distance: np.ndarray) -> np.ndarray:
        """Standard deviation (..., C, T, H, W) at the distances of the same shape."""
        out = np.empty(distance.shape, dtype=np.float32)
        for c, spread in enumerate(self.spreads):
            out[..., c, :, :, :] = np.interp(distance[..., c, :, :, :], self.distances, spread)
        return out

    @classmethod
    def fit(cls, squared_errors: list[np.ndarray], distances: list[np.ndarray], bins: int = 12) -> "DistanceSpread":
        """From the squared errors and distances of the held-out cells, one pair of flat arrays per variable."""
        distances = [np.minimum(distance, FAR) for distance in distances]
        pooled = np.concatenate(distances)
        count = int(np.clip(len(pooled) // MIN_CELLS, 1, bins))
        edges = np.unique(np.quantile(pooled, np.linspace(0, 1, count + 1)))
        inner = edges[1:-1]
        places = np.digitize(pooled, inner)
        centres = np.array([pooled[places == i].mean() for i in range(len(inner) + 1) if (places == i).any()])
        total = np.concatenate(squared_errors)
        spreads = []
        for errors, distance in zip(squared_errors, distances):
            means, weights = [], []
            for i in range(len(inner) + 1):
                if not (places == i).any():
                    continue
                own = errors[np.digitize(distance, inner) == i]
                # A bin that a variable hardly reaches borrows from all variables.
                means.append(own.mean() if len(own) >= MIN_CELLS else total[places == i].mean())
                weights.append(max(len(own), MIN_CELLS))
            spreads.append(np.sqrt(_monotone(np.array(means), np.array(weights, float))))
        return cls(centres, np.stack(spreads))


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
