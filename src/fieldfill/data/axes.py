"""Which dimension is time, which are rows and columns: by CF metadata first, then by the usual names."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from fieldfill.errors import InputError

__all__ = ["Axes", "find_axes", "wraps_around"]

STANDARD_NAMES = {
    "time": ("time",),
    "y": ("latitude", "projection_y_coordinate", "grid_latitude"),
    "x": ("longitude", "projection_x_coordinate", "grid_longitude"),
}
CF_AXIS = {"time": "T", "y": "Y", "x": "X"}
UNITS = {
    "time": (),
    "y": ("degrees_north", "degree_north", "degrees_n"),
    "x": ("degrees_east", "degree_east", "degrees_e"),
}
USUAL_NAMES = {
    "time": ("time", "valid_time", "t", "date", "datetime", "forecast_time"),
    "y": ("y", "lat", "latitude", "nav_lat", "nlat", "rlat", "j", "yc", "south_north", "row", "line"),
    "x": ("x", "lon", "longitude", "nav_lon", "nlon", "rlon", "i", "xc", "west_east", "col", "column"),
}
SAMPLE = "sample"


@dataclass(frozen=True)
class Axes:
    """Names of the dimensions of a gridded record; ``sample`` is None for a single sequence."""

    time: str
    y: str
    x: str
    sample: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which arrays are kept: (sample,) time, y, x."""
        grid = (self.time, self.y, self.x)
        return grid if self.sample is None else (self.sample, *grid)


def find_axes(ds: xr.Dataset, dims: tuple[str, str, str] | None = None) -> Axes:
    """Finds time, y and x, or takes the three names given as ``dims``."""
    sample = SAMPLE if SAMPLE in ds.dims else None
    if dims is not None:
        if len(dims) != 3 or len(set(dims)) != 3:
            raise InputError(f"dims={dims!r} must name three different dimensions: time, rows, columns")
        for name in dims:
            if name not in ds.dims:
                raise InputError(f"no dimension '{name}' in the data (it has {_listing(ds)}); check dims={dims!r}")
        return Axes(*dims, sample=None if sample in dims else sample)
    return Axes(_find(ds, "time"), _find(ds, "y"), _find(ds, "x"), sample)


def _find(ds: xr.Dataset, kind: str) -> str:
    names = [str(name) for name in ds.dims]
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
    lower = {name.lower(): name for name in names}
    for usual in USUAL_NAMES[kind]:
        if usual in lower:
            return lower[usual]
    raise InputError(
        f"no {'time' if kind == 'time' else kind + ' (space)'} dimension found among {_listing(ds)}; "
        'name the three of them with dims=("time", "lat", "lon") or --dims time,lat,lon'
    )


def _listing(ds: xr.Dataset) -> str:
    return ", ".join(f"{name}={size}" for name, size in ds.sizes.items()) or "no dimensions"


def wraps_around(ds: xr.Dataset, name: str) -> bool:
    """Whether a longitude axis closes the circle, so that its first and last columns are neighbours."""
    if name not in ds.coords or ds.sizes[name] < 4:
        return False
    coord = ds[name]
    degrees = str(coord.attrs.get("units", "")).lower() in UNITS["x"] or name.lower().startswith("lon")
    if not degrees or not np.issubdtype(coord.dtype, np.number):
        return False
    step = np.diff(coord.values.astype(float))
    return bool(
        np.allclose(step, step[0], rtol=1e-3) and np.isclose(abs(step[0]) * step.size, 360 - abs(step[0]), rtol=1e-3)
    )
