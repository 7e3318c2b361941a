"""Transforms between the units of the data and unitless tensors; each can be undone."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Normaliser"]


@dataclass(frozen=True)
class Normaliser:
    """The single door between units and unitless tensors, fitted on observed cells only.

    Attributes
    ----------
    mean, std
        (C,) of each variable, or maps (C, 1, 1) or (C, H, W).
    """

    mean: np.ndarray
    std: np.ndarray

    def to_tensor(self, values: np.ndarray) -> Tensor:
        """values (..., C, T, H, W) with NaN where missing → float32 tensor with 0 there."""
        with np.errstate(over="ignore"):  # windows refuse what is not finite
            unitless = (values - _over_frames(self.mean)) / _over_frames(self.std)
            return torch.from_numpy(np.nan_to_num(unitless, nan=0.0).astype(np.float32))

    def to_values(self, x: np.ndarray) -> np.ndarray:
        """(..., C, T, H, W) unitless → float64 in the units of the data."""
        return x.astype(np.float64) * _over_frames(self.std) + _over_frames(self.mean)

    def relative(self, other: "Normaliser") -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale (C, 1, 1) or (C, H, W) that turn unitless values of this normaliser into those of another."""
        mean, std = (part.reshape(len(part), *(part.shape[1:] or (1, 1))) for part in (self.mean, self.std))
        others = (part.reshape(len(part), *(part.shape[1:] or (1, 1))) for part in (other.mean, other.std))
        other_mean, other_std = others
        return (other_mean - mean) / std, other_std / std

    def spread_to_values(self, spread: np.ndarray) -> np.ndarray:
        return spread.astype(np.float64) * _over_frames(self.std)


def _over_frames(statistic: np.ndarray) -> np.ndarray:
    """(C,), (C, 1, 1) or (C, H, W) → broadcastable to (C, T, H, W)."""
    return statistic.reshape(len(statistic), 1, *(statistic.shape[1:] or (1, 1)))
