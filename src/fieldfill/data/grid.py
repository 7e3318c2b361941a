"""The grid that something was learnt on: a cell must mean the same place when it is used."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes, find_axes
from fieldfill.data.record import Record, as_dataset
from fieldfill.errors import InputError

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Rows and columns of a record.

    Attributes
    ----------
    coordinates
        values of the row and column coordinates by dimension name; a dimension without numbers counts its cells.
    periodic
        whether rows and columns close on themselves.
    """

    coordinates: Mapping[str, list[float]]
    periodic: tuple[bool, bool]

    @classmethod
    def of(cls, record: Record) -> "Grid":
        return cls(_coordinates(record.ds, record.axes), record.periodic)

    def check(self, data: xr.Dataset | xr.DataArray, dims: tuple[str, str, str] | None) -> None:
        """Refuses data on another grid."""
        ds = as_dataset(data)
        found = _coordinates(ds, find_axes(ds, dims))
        for name, expected in self.coordinates.items():
            values = found.get(name)
            if values is None:
                raise InputError(
                    f"fitted on the dimension '{name}', the data have {', '.join(found)}; rename or fit again"
                )
            if len(values) != len(expected):
                raise InputError(
                    f"fitted on {len(expected)} '{name}', the data have {len(values)}; regrid or fit again"
                )
            step = abs(expected[-1] - expected[0]) / max(1, len(expected) - 1)
            if not np.allclose(values, expected, rtol=0, atol=1e-3 * step):
                raise InputError(f"the '{name}' coordinates are not those that were fitted on; regrid or fit again")


def _coordinates(ds: xr.Dataset, axes: Axes) -> dict[str, list[float]]:
    found = {}
    for name in (axes.y, axes.x):
        numeric = name in ds.coords and np.issubdtype(ds[name].dtype, np.number)
        values = ds[name].values if numeric else np.arange(ds.sizes[name])
        found[name] = values.astype(float).tolist()
    return found
