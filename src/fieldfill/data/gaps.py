"""From the arrays of a fill to the variables of a data set: filled values in the gaps, and what accompanies them.

This module never imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr

from fieldfill.data.axes import Axes
from fieldfill.data.finite import check_filled, floating
from fieldfill.data.flags import flag_cells
from fieldfill.data.transforms import ValueTransform

__all__ = ["FilledArrays", "Gaps"]


@dataclass(frozen=True)
class FilledArrays:
    """The arrays of a fill, in the units of the data, or of their logarithm where the record takes that.

    Attributes
    ----------
    filled, std
        (S, C, T, H, W); only the missing cells are used.
    unsupported
        (S, C, T, H, W) bool, cells the data could not teach.
    members
        (S, N, C, T, H, W) realisations.
    budget
        parts of the variance ``std**2`` by name, each (S, C, T, H, W).
    quantiles
        by probability, how many ``std`` (C,) each of them lies above the filled value.
    """

    filled: np.ndarray
    std: np.ndarray | None
    unsupported: np.ndarray
    members: np.ndarray | None
    budget: Mapping[str, np.ndarray] | None
    quantiles: Mapping[float, np.ndarray] | None

    @property
    def kinds(self) -> list[str]:
        """Kinds of the variables that will accompany each filled one."""
        present = {
            "std": self.std is not None,
            "quantile": self.std is not None and bool(self.quantiles),
            "flag": True,
            "members": self.members is not None,
            "budget": self.budget is not None,
        }
        return [kind for kind, there in present.items() if there]

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "FilledArrays":
        """The same fill with ``function`` applied to every array of cells."""
        return FilledArrays(
            function(self.filled),
            None if self.std is None else function(self.std),
            function(self.unsupported),
            None if self.members is None else function(self.members),
            None if self.budget is None else {name: function(part) for name, part in self.budget.items()},
            self.quantiles,
        )

    def with_coordinates(self, ds: xr.Dataset, dims: Mapping[str, str]) -> xr.Dataset:
        """``ds`` with coordinates along the dimensions, by kind, that only companions have."""
        if self.quantiles:
            named = {"long_name": "probability that the truth is not above", "units": "1"}
            ds = _labelled(ds, dims["quantile"], list(self.quantiles), named)
        if self.budget is not None:
            ds = _labelled(ds, dims["budget"], list(self.budget), {"long_name": "part of the variance"})
        if self.members is not None:
            realisation = {"standard_name": "realization", "units": "1"}
            ds = _labelled(ds, dims["members"], np.arange(self.members.shape[1]), realisation)
        return ds


def _labelled(ds: xr.Dataset, dim: str, labels: npt.ArrayLike, attrs: dict[str, str]) -> xr.Dataset:
    return ds.assign_coords({dim: (dim, labels, attrs)})


class Gaps:
    """The gaps of one variable: puts (S, T, H, W) arrays there, with dimensions and coordinates of the original.

    Parameters
    ----------
    original
        the variable, whose name is ``name``.
    shape
        (S, T, H, W), with the length 1 for an axis that the variable lacks.
    inside
        bool, broadcastable to (S, T, H, W): where the field exists.
    keeps_all
        whether observations outside the domain stay.
    transform
        from the units of the variable to those of the arrays.
    """

    def __init__(
        self,
        name: str,
        original: xr.DataArray,
        axes: Axes,
        shape: Sequence[int],
        inside: np.ndarray,
        keeps_all: bool,
        transform: ValueTransform,
    ) -> None:
        self.name, self.original, self.transform = name, original, transform
        self.canonical = axes.canonical(original)
        self.observations = self.canonical.values.reshape(shape)
        self.inside = np.broadcast_to(inside, self.observations.shape)
        self.observed = np.isfinite(self.observations) & (self.inside | keeps_all)
        self.missing = self.inside & ~self.observed

    def filled(self, arrays: FilledArrays, c: int) -> xr.DataArray:
        """The variable, number ``c`` of the arrays, with its gaps filled."""
        return self.values(arrays.filled[:, c], self.name)

    def companions(
        self, arrays: FilledArrays, c: int, names: Mapping[str, str], dims: Mapping[str, str]
    ) -> dict[str, xr.DataArray]:
        """What accompanies variable ``c``, by kind; ``names`` of these, and ``dims`` that only they have, by kind."""
        filled, std = arrays.filled[:, c], arrays.std
        found = {"flag": self.flag(arrays.unsupported[:, c])}
        stretch = 1.0 if std is None else self.transform.stretch(filled, std[:, c])
        if std is not None:
            found["std"] = self.spread(std[:, c] * stretch, names["std"])
            if arrays.quantiles:
                key = names["quantile"]
                ends = [self.values(filled + steps[c] * std[:, c], key) for steps in arrays.quantiles.values()]
                found["quantile"] = xr.concat(ends, dim=dims["quantile"])
        if arrays.members is not None:
            drawn = [self.values(member[:, c], names["members"]) for member in arrays.members.swapaxes(0, 1)]
            found["members"] = xr.concat(drawn, dim=dims["members"])
        if arrays.budget is not None:
            parts = [self.spread(part[:, c] * stretch**2, names["budget"]) for part in arrays.budget.values()]
            found["budget"] = xr.concat(parts, dim=dims["budget"])
        return found

    def values(self, given: np.ndarray, label: str) -> xr.DataArray:
        """``given`` in the gaps and the observations beside them; ``label`` is what messages call it."""
        given = self.transform.undo(given).astype(self.observations.dtype)
        check_filled(self.name, label, given, self.missing)
        return self._placed(self.observations, given, self.observations.dtype)

    def spread(self, given: np.ndarray, label: str) -> xr.DataArray:
        """``given`` in the gaps, 0 where observed."""
        given = given.astype(floating(given[self.missing].max(initial=0)))
        check_filled(self.name, label, given, self.missing, least=0)
        return self._placed(0, given, given.dtype)

    def flag(self, unsupported: np.ndarray) -> xr.DataArray:
        """Where each value comes from, see `fieldfill.data.flags`."""
        return self._variable(flag_cells(self.observed, self.missing, unsupported))

    def _placed(self, seen: np.ndarray | int, missing: np.ndarray, dtype: npt.DTypeLike) -> xr.DataArray:
        """``seen`` where observed, ``missing`` in the gaps, NaN outside the domain."""
        return self._variable(np.where(self.observed, seen, np.where(self.missing, missing, np.nan)).astype(dtype))

    def _variable(self, array: np.ndarray) -> xr.DataArray:
        """An array (S, T, H, W) with dimensions and coordinates of the original, without attributes."""
        placed = self.canonical.copy(data=array.reshape(self.canonical.shape)).transpose(*self.original.dims)
        placed.attrs, placed.encoding = {}, {}
        return placed
