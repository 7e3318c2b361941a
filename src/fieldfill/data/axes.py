"""Which dimension is time, which are rows and columns: by CF metadata first, then by the usual names.

A record need not have all three. An image has no time, a section or a profile (time and depth) has one dimension of
space. What is missing counts as an axis of length 1 (see `fieldfill.data.record`). The index along any other dimension
is chosen (`selected`), or numbers independent samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import xarray as xr

from fieldfill.errors import InputError

__all__ = ["Axes", "Dims", "Selection", "find_axes", "is_longitude", "selected", "wraps_around"]

STANDARD_NAMES = {
    "time": ("time",),
    "y": ("latitude", "projection_y_coordinate", "grid_latitude"),
    "x": ("longitude", "projection_x_coordinate", "grid_longitude"),
    "z": ("depth", "height", "altitude", "air_pressure", "sea_water_pressure", "model_level_number"),
}
CF_AXIS = {"time": "T", "y": "Y", "x": "X", "z": "Z"}
UNITS = {
    "time": (),
    "y": ("degrees_north", "degree_north", "degrees_n"),
    "x": ("degrees_east", "degree_east", "degrees_e"),
    "z": (),
}
USUAL_NAMES = {
    "time": ("time", "valid_time", "t", "date", "datetime", "forecast_time"),
    "y": ("y", "lat", "latitude", "nav_lat", "nlat", "rlat", "j", "yc", "south_north", "row", "line"),
    "x": ("x", "lon", "longitude", "nav_lon", "nlon", "rlon", "i", "xc", "west_east", "col", "column"),
    "z": (
        *("depth", "z", "level", "lev", "height", "altitude", "alt", "pressure", "plev", "pressure_level"),
        *("isobaricinhpa", "deptht", "depthu", "depthv", "depthw", "st_ocean", "bottom_top", "bins", "bin", "layer"),
    ),
}
SAMPLE = "sample"
# Relative difference up to which a number selects a value: files hold them in single precision.
SAME = 1e-5

Dims: TypeAlias = tuple[str | None, str | None, str | None]
"""Names of time, rows and columns; None where the data have no such dimension."""
Selection: TypeAlias = Mapping[str, float | str]
"""Values by the name of the dimension along which they are chosen."""


@dataclass(frozen=True)
class Axes:
    """Names of the dimensions of a gridded record.

    Attributes
    ----------
    time, y
        None where the record has no such dimension; a single dimension of space is ``x``.
    sample
        dimensions along which sequences are independent.
    """

    time: str | None
    y: str | None
    x: str
    sample: tuple[str, ...] = ()

    @property
    def each(self) -> tuple[str, ...]:
        """Dimensions of samples beside the usual one."""
        return tuple(name for name in self.sample if name != SAMPLE)

    @property
    def grid(self) -> tuple[str, ...]:
        """Those of time and space, in the order in which arrays are kept."""
        return tuple(name for name in (self.time, self.y, self.x) if name is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which arrays are kept: (samples,) time, y, x."""
        return (*self.sample, *self.grid)

    def sizes(self, ds: xr.Dataset) -> tuple[int, int, int, int]:
        """Samples, frames, rows and columns of a data set; a missing axis has the length 1."""
        frames, rows, columns = (1 if name is None else ds.sizes[name] for name in (self.time, self.y, self.x))
        return int(np.prod([ds.sizes[name] for name in self.sample], dtype=int)), frames, rows, columns

    def canonical(self, variable: xr.DataArray) -> xr.DataArray:
        """The variable in the order of arrays; other dimensions, which have length 1, come first."""
        return variable.transpose(..., *self.names)

    def sample_of(self, ds: xr.Dataset, number: int) -> dict[str, int]:
        """Index of a sample along each of the dimensions that number samples."""
        index = np.unravel_index(number, [ds.sizes[name] for name in self.sample]) if self.sample else ()
        return {name: int(i) for name, i in zip(self.sample, index)}

    def others(self, variable: xr.DataArray) -> dict[str, int]:
        """Sizes of the dimensions of a variable that are none of these and longer than 1."""
        return {str(dim): size for dim, size in variable.sizes.items() if dim not in self.names and size > 1}


def find_axes(ds: xr.Dataset, dims: Dims | None = None, each: str | Sequence[str] = ()) -> Axes:
    """Finds time, y and x, or takes the names given as ``dims``; ``each`` names dimensions of independent samples."""
    each = (each,) if isinstance(each, str) else each
    for name in each:
        if name not in ds.dims:
            raise InputError(f"each: no dimension '{name}' in the data (it has {_listing(ds)}); name one of these")
    given = [name for name in dims or () if name is not None]
    samples = tuple(dict.fromkeys((*each, *([SAMPLE] if SAMPLE in ds.dims and SAMPLE not in given else []))))
    if dims is None:
        return _found(ds, samples)
    if len(dims) != 3 or len(set(given)) != len(given) or dims[1:] == (None, None):
        raise InputError(
            f"dims={dims!r} must name different dimensions for time, rows and columns; None (--dims time,-,depth) "
            "stands for one that the data do not have, and one of space is needed"
        )
    for name in given:
        if name not in ds.dims:
            raise InputError(f"no dimension '{name}' in the data (it has {_listing(ds)}); check dims={dims!r}")
        if name in samples:
            raise InputError(f"each: '{name}' is one of dims={dims!r} already; name it once")
    time, y, x = dims
    return Axes(time, None, y, samples) if x is None and y is not None else Axes(time, y, str(x), samples)


def _found(ds: xr.Dataset, samples: tuple[str, ...]) -> Axes:
    """The axes among the dimensions that number no samples."""
    free = [str(name) for name in ds.dims if name not in samples]
    found: dict[str, str | None] = {}
    for kind in ("time", "y", "x", "z"):
        found[kind] = _find(ds, kind, [name for name in free if name not in found.values()])
    space = [name for name in (found["y"], found["x"]) if name is not None]
    # Beside the position of a single profile, or along a section, the vertical is an axis of space.
    long = [name for name in space if ds.sizes[name] > 1]
    if (z := found["z"]) is not None and ds.sizes[z] > 1 and len(long) < 2:
        space = [z, *long]
    if not space:
        raise InputError(
            f"no dimension of space found among {_listing(ds)}; name time, rows and columns with "
            'dims=("time", "lat", "lon") or --dims time,lat,lon (- for one that the data do not have)'
        )
    return Axes(found["time"], space[0] if len(space) == 2 else None, space[-1], samples)


def _find(ds: xr.Dataset, kind: str, names: Sequence[str]) -> str | None:
    coordinates = {name: ds[name] for name in names if name in ds.coords}
    for name, coord in coordinates.items():
        if coord.attrs.get("axis", "").upper() == CF_AXIS[kind]:
            return name
    for name, coord in coordinates.items():
        if coord.attrs.get("standard_name") in STANDARD_NAMES[kind]:
            return name
    for name, coord in coordinates.items():
        if str(coord.attrs.get("units", "")).lower() in UNITS[kind]:
            return name
        if kind == "time" and np.issubdtype(coord.dtype, np.datetime64):
            return name
        if kind == "z" and str(coord.attrs.get("positive", "")).lower() in ("up", "down"):
            return name
    lower = {name.lower(): name for name in names}
    return next((lower[usual] for usual in USUAL_NAMES[kind] if usual in lower), None)


def _listing(ds: xr.Dataset) -> str:
    return ", ".join(f"{name}={size}" for name, size in ds.sizes.items()) or "no dimensions"


def selected(ds: xr.Dataset, sel: Selection) -> xr.Dataset:
    """The data set at the chosen values; the dimensions stay, with the length 1."""
    for name, value in sel.items():
        if name not in ds.dims:
            raise InputError(f"sel: no dimension '{name}' in the data (it has {_listing(ds)}); name one of these")
        known = ds[name].values if name in ds.coords else np.arange(ds.sizes[name])
        place = np.flatnonzero(_equal(known, value))
        if not len(place):
            raise InputError(f"sel: no {name}={value} in the data; it has {_shown(known)}; choose one of these")
        ds = ds.isel({name: place[:1]})
    return ds


def _shown(values: np.ndarray, most: int = 8) -> str:
    """The first values, for an error."""
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")


def _equal(known: np.ndarray, value: float | str) -> np.ndarray:
    """Which of the known values are the chosen one."""
    try:
        if known.dtype.kind in "iuf":
            return np.isclose(known.astype(float), float(value), rtol=SAME, atol=0)
        if known.dtype.kind == "M":
            return known == np.datetime64(str(value))
    except ValueError:
        return np.zeros(len(known), bool)
    return np.array([str(other) == str(value) for other in known])


def is_longitude(ds: xr.Dataset, name: str) -> bool:
    """Whether a dimension has a coordinate in degrees east."""
    if name not in ds.coords or not np.issubdtype(ds[name].dtype, np.number):
        return False
    return str(ds[name].attrs.get("units", "")).lower() in UNITS["x"] or name.lower().startswith("lon")


def wraps_around(ds: xr.Dataset, name: str) -> bool:
    """Whether a longitude axis closes the circle, so that its first and last columns are neighbours."""
    if not is_longitude(ds, name) or ds.sizes[name] < 4:
        return False
    step = np.diff(ds[name].values.astype(float))
    return bool(
        np.allclose(step, step[0], rtol=1e-3) and np.isclose(abs(step[0]) * step.size, 360 - abs(step[0]), rtol=1e-3)
    )
