"""Transforms from the data of a file to unitless tensors, in the order in which a fit or fill applies them.

Each can be undone, and a fill does so in the opposite order:

* `Season` adds two variables (`fieldfill.workflow.opening`); `fieldfill.workflow.filling` drops them.
* `Logarithm`, or `Identity` for other variables (`fieldfill.data.record`); `fieldfill.data.gaps` undoes it.
* `Normaliser` (`fieldfill.data.crops`); `fieldfill.workflow.filling` undoes it.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import xarray as xr
from scipy.special import exprel

from fieldfill.data.axes import Axes
from fieldfill.data.inputs import DAY_OF_YEAR
from fieldfill.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SEASON", "Identity", "Logarithm", "Normaliser", "Season", "ValueTransform", "transform_of"]

# Names of the variables that carry the season. No variable of a file can have a slash in its name.
SEASON = ("/day-of-year/sin", "/day-of-year/cos")
# Days of a mean Gregorian year.
YEAR = 365.2425


class Season:
    """The season as two complete variables beside the others, sine and cosine of the day of the year."""

    def apply(self, ds: xr.Dataset, axes: Axes) -> xr.Dataset:
        """``ds`` with the two variables on its whole grid, views of one number a frame."""
        try:
            time = _time(ds, axes)
            day = time.dt.dayofyear.astype(np.float64) + time.dt.hour / 24
        except (AttributeError, TypeError, KeyError):
            raise InputError(
                f"the input {DAY_OF_YEAR} needs dates along '{axes.time or 'time'}'; decode the times of the file or "
                "leave it out"
            ) from None
        shape = tuple(ds.sizes[name] for name in axes.names)
        out = ds.copy()
        for name, wave in zip(SEASON, (np.sin, np.cos)):
            line = wave(2 * np.pi * day.values / YEAR).astype(np.float32)
            line = line.reshape(line.shape + (1,) * len([axis for axis in (axes.y, axes.x) if axis is not None]))
            out[name] = xr.DataArray(np.broadcast_to(line, shape), dims=axes.names)
        return out

    def undo(self, ds: xr.Dataset) -> xr.Dataset:
        """``ds`` without the two variables and those that accompany them."""
        return ds.drop_vars([name for name in ds.data_vars if str(name).startswith(SEASON)])


def _time(ds: xr.Dataset, axes: Axes) -> xr.DataArray:
    """The times (T,) of the frames, or that of a single frame, which is a coordinate without a dimension."""
    if axes.time is not None:
        return ds[axes.time]
    dates = [coord for coord in ds.coords.values() if coord.ndim == 0 and coord.dtype.kind == "M"]
    if len(dates) != 1:
        raise KeyError("time")
    return dates[0]


class ValueTransform(Protocol):
    """From the values of a variable in the units of its file to those that are learnt, and back."""

    def apply(self, values: np.ndarray, where: np.ndarray | bool = True) -> np.ndarray:
        """Changes ``values`` in place, in the cells ``where``, and returns them."""
        ...

    def undo(self, learnt: np.ndarray) -> np.ndarray:
        """Learnt values in the units of the file; quantiles of the ones are quantiles of the others."""
        ...

    def stretch(self, learnt: np.ndarray, std: np.ndarray) -> np.ndarray | float:
        """Standard deviation in the units of the file over ``std``, that of the ``learnt`` values."""
        ...


class Identity:
    """Of a variable that is learnt as it is."""

    def apply(self, values: np.ndarray, where: np.ndarray | bool = True) -> np.ndarray:
        return values

    def undo(self, learnt: np.ndarray) -> np.ndarray:
        return learnt

    def stretch(self, learnt: np.ndarray, std: np.ndarray) -> np.ndarray | float:
        return 1.0


class Logarithm:
    """Of a positive variable that spans decades, such as chlorophyll.

    If the logarithm is normal with mean m and standard deviation s, the variable has the median e^m, the quantiles
    e^(m + k s) and the standard deviation e^(m + s²/2) (e^(s²) - 1)^½.
    """

    def apply(self, values: np.ndarray, where: np.ndarray | bool = True) -> np.ndarray:
        return np.log(values, out=values, where=where)

    def undo(self, learnt: np.ndarray) -> np.ndarray:
        return np.exp(learnt)

    def stretch(self, learnt: np.ndarray, std: np.ndarray) -> np.ndarray | float:
        learnt, std = learnt.astype(np.float64), std.astype(np.float64)
        return np.exp(learnt + std**2 / 2) * np.sqrt(exprel(std**2))


def transform_of(name: str, logarithmic: Container[str]) -> ValueTransform:
    """The transform of a variable, if those named ``logarithmic`` are learnt in their logarithm."""
    return Logarithm() if name in logarithmic else Identity()


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

    def to_tensor(self, values: np.ndarray) -> "Tensor":
        """values (..., C, T, H, W) with NaN where missing → float32 tensor with 0 there."""
        import torch  # here, because records are read and written without it

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
