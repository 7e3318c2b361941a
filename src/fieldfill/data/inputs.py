"""Further inputs of a network beside the gappy variables: where a cell lies, the season, maps such as orography.

* ``coordinates``: rows and columns from -1 to 1, or sine and cosine of the angle where an axis closes on itself;
* ``day-of-year``: sine and cosine of the season, two complete variables beside the others (`Season` in
  `fieldfill.data.transforms`);
* the name of a variable on (y, x): a map that does not change, standardised.

A complete variable that does change, such as wind, needs no word here: named beside the gappy ones it is always shown
and never asked for (see `fieldfill.partition.side_inputs`).
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes
from fieldfill.data.finite import standardised
from fieldfill.errors import InputError

__all__ = ["COORDINATES", "DAY_OF_YEAR", "static_maps"]

COORDINATES, DAY_OF_YEAR = "coordinates", "day-of-year"


def static_maps(ds: xr.Dataset, axes: Axes, names: Sequence[str], periodic: tuple[bool, bool]) -> np.ndarray:
    """The maps among the inputs ``names``, (K, H, W) float32."""
    shape = axes.sizes(ds)[2:]
    maps: list[np.ndarray] = []
    for name in names:
        if name == COORDINATES:
            maps += _coordinates(shape, periodic)
        elif name != DAY_OF_YEAR:
            maps.append(_map(ds, axes, name).reshape(shape))
    return np.stack(maps).astype(np.float32) if maps else np.zeros((0, *shape), np.float32)


def _coordinates(shape: tuple[int, int], periodic: tuple[bool, bool]) -> list[np.ndarray]:
    maps = []
    for axis, (size, closed) in enumerate(zip(shape, periodic)):
        angle = 2 * np.pi * np.arange(size) / size
        lines = [np.sin(angle), np.cos(angle)] if closed else [np.linspace(-1, 1, size)]
        maps += [np.broadcast_to(line[:, None] if axis == 0 else line[None, :], shape) for line in lines]
    return maps


def _map(ds: xr.Dataset, axes: Axes, name: str) -> np.ndarray:
    space = tuple(axis for axis in (axes.y, axes.x) if axis is not None)
    if name not in ds:
        raise InputError(
            f"no variable '{name}' to use as an input; name one on ({', '.join(space)}), "
            f"or {COORDINATES}, or {DAY_OF_YEAR}"
        )
    if set(ds[name].dims) != set(space):
        raise InputError(
            f"the input '{name}' has the dimensions {', '.join(map(str, ds[name].dims))}; a map on "
            f"({', '.join(space)}) is needed (a complete variable that changes in time belongs to the variables)"
        )
    values = ds[name].transpose(*space).values.astype(np.float64)
    known = np.isfinite(values)
    if not known.any():
        raise InputError(f"the input '{name}' has no value at all; leave it out")
    return standardised(values, known)
