"""Further inputs of a network beside the gappy variables: where a cell lies, the season, maps such as orography.

* ``coordinates``: rows and columns from -1 to 1, or sine and cosine of the angle where an axis closes on itself;
* ``day-of-year``: sine and cosine of the season, two complete variables beside the others;
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

__all__ = ["COORDINATES", "DAY_OF_YEAR", "SEASON", "static_maps", "with_season"]

COORDINATES, DAY_OF_YEAR = "coordinates", "day-of-year"
# Names of the variables that carry the season. No variable of a file can have a slash in its name.
SEASON = ("/day-of-year/sin", "/day-of-year/cos")
# Days of a mean Gregorian year.
YEAR = 365.2425


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


def with_season(ds: xr.Dataset, axes: Axes) -> xr.Dataset:
    """``ds`` with the season as two more variables on its whole grid, views of one number a frame."""
    try:
        time = _time(ds, axes)
        day = time.dt.dayofyear.astype(np.float64) + time.dt.hour / 24
    except (AttributeError, TypeError, KeyError):
        raise InputError(
            f"the input {DAY_OF_YEAR} needs dates along '{axes.time or 'time'}'; decode the times of the file or leave "
            "it out"
        ) from None
    shape = tuple(ds.sizes[name] for name in axes.names)
    out = ds.copy()
    for name, wave in zip(SEASON, (np.sin, np.cos)):
        line = wave(2 * np.pi * day.values / YEAR).astype(np.float32)
        line = line.reshape(line.shape + (1,) * len([axis for axis in (axes.y, axes.x) if axis is not None]))
        out[name] = xr.DataArray(np.broadcast_to(line, shape), dims=axes.names)
    return out


def _time(ds: xr.Dataset, axes: Axes) -> xr.DataArray:
    """The times (T,) of the frames, or that of a single frame, which is a coordinate without a dimension."""
    if axes.time is not None:
        return ds[axes.time]
    dates = [coord for coord in ds.coords.values() if coord.ndim == 0 and coord.dtype.kind == "M"]
    if len(dates) != 1:
        raise KeyError("time")
    return dates[0]
