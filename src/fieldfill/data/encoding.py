"""Makes a data set writable: whatever NetCDF or Zarr cannot hold is changed or left out, with one warning.

Formats, and the libraries behind them, differ in what they refuse. So there is no list of what is allowed: a skeleton
of the data set, a few cells of each variable, is written and read again. If that fails, the variables and attributes
are tried one by one, each in the nearest form that is accepted.

A packing (an integer type with a scale and an offset, a fill value) is kept if the observed values come back from it
bit for bit, and the filled ones to within its step; otherwise the numbers are written as they are.
This module never imports torch.
"""

import contextlib
import errno
import json
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dask.config
import dask.local
import dask.threaded
import numpy as np
import pandas as pd
import xarray as xr
from dask.base import get_scheduler

from fieldfill.data.companions import filled_cells
from fieldfill.data.kinds import ZARR
from fieldfill.data.pieces import at_once
from fieldfill.data.stores import storing
from fieldfill.data.writer import written
from fieldfill.errors import InputWarning

__all__ = ["check_writable", "with_times", "writable", "write"]

TIME_CODING = ("units", "calendar")
PACKING = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
LIMITS = ("valid_min", "valid_max", "valid_range")  # in packed numbers, by CF
NETCDF_STORAGE = ("zlib", "complevel", "shuffle", "fletcher32")
IMPOSSIBLE = (".", "..")  # names that mean a place

# Errors of the disk, not of the data.
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EIO)

Refusals = list[str]


class _NoRoom(Exception):
    """Nothing can be tried: the folder of temporary files takes no file."""


def write(ds: xr.Dataset, path: Path, zarr: bool) -> None:
    if zarr:
        with storing(path) as store:
            _evenly_chunked(ds).to_zarr(store, mode="w", consolidated=False)
    elif _computed_elsewhere(ds):
        ds.to_netcdf(path, engine="h5netcdf")
    else:
        # With a cluster at hand xarray would send the file to it, to lock it there, even if it has nothing to compute.
        here = contextlib.nullcontext() if ds.chunks else dask.config.set(scheduler="synchronous")
        with written(path) as file, here:
            ds.to_netcdf(file, engine="h5netcdf")


def _computed_elsewhere(ds: xr.Dataset) -> bool:
    """Whether other processes compute the values; they open the file by its name, an open one cannot be sent."""
    return bool(ds.chunks) and get_scheduler() not in (None, dask.threaded.get, dask.local.get_sync)


def _evenly_chunked(ds: xr.Dataset) -> xr.Dataset:
    """The data set as Zarr takes it: along a dimension all chunks are of one size, the last one may be smaller."""
    even = {}
    for name, variable in ds.variables.items():
        sizes = {dim: max(parts) for dim, parts in variable.chunksizes.items()}
        uneven = [dim for dim, parts in variable.chunksizes.items() if any(size < sizes[dim] for size in parts[:-1])]
        if uneven:
            even[name] = variable.chunk({dim: sizes[dim] for dim in uneven})
    return ds.assign(even)


def check_writable(ds: xr.Dataset, path: Path) -> xr.Dataset:
    """``ds`` without what a file called ``path`` cannot hold, from its metadata alone: little is read."""
    zarr, refused = path.suffix == ".zarr", Refusals()
    return _warned(_accepted(_plain(ds, zarr, refused), zarr, refused), path, refused)


def writable(ds: xr.Dataset, path: Path) -> xr.Dataset:
    """The same for a data set that is about to be written, whose values decide which packings stay."""
    zarr, refused = path.suffix == ".zarr", Refusals()
    ds = _repacked(_plain(ds, zarr, refused), zarr, refused)
    return _warned(_accepted(ds, zarr, refused), path, refused)


def _warned(ds: xr.Dataset, path: Path, refused: Refusals) -> xr.Dataset:
    if refused:
        text = f"{path.name} cannot hold everything as it is: {'; '.join(refused)}"
        warnings.warn(" ".join(text.split()), InputWarning, stacklevel=4)
    return ds


def _plain(ds: xr.Dataset, zarr: bool, refused: Refusals) -> xr.Dataset:
    """A copy with names that are plain text, simple indexes, and no encoding but that of the values."""
    for name in [name for name in ds.dims if isinstance(ds.indexes.get(name), pd.MultiIndex)]:
        ds = ds.reset_index(name)
        refused.append(f"the index '{name}' of several levels is written as one coordinate a level")
    taken = {*ds.variables, *ds.dims}
    names: dict[Hashable, str] = {}
    for name in sorted(taken, key=str):
        new = _clean(str(name)).replace("/", "_") or "_"
        if new in IMPOSSIBLE or (zarr and new in ZARR.METADATA):
            new = f"_{new}"
        while new != name and new in {*taken, *names.values()}:
            new += "_"
        if new != name:
            names[name] = new
            refused.append(f"{str(name)!r} is called '{new}'")
    ds = ds.rename(names).copy()
    kept = (*PACKING, *TIME_CODING, *(() if zarr else NETCDF_STORAGE))
    for name, variable in ds.variables.items():
        variable.encoding = {key: value for key, value in variable.encoding.items() if key in kept}
        listed = str(variable.attrs.get("ancillary_variables", ""))
        if names and listed:
            renamed = [names.get(word, word) for word in listed.split()]
            variable.attrs = {**variable.attrs, "ancillary_variables": " ".join(renamed)}
        if zarr and variable.dtype.kind == "f" and variable.dtype.itemsize > 8:
            ds[name] = variable.astype(np.float64)
            refused.append(f"'{name}' is written as float64")
    unlimited = [name for name in ds.encoding.get("unlimited_dims", ()) if name in ds.dims]
    ds.encoding = {"unlimited_dims": unlimited} if unlimited else {}
    return ds


def _repacked(ds: xr.Dataset, zarr: bool, refused: Refusals) -> xr.Dataset:
    """The data set with only those packings that keep the values."""
    for name, variable in ds.variables.items():
        filled = filled_cells(ds, str(name))
        if not _is_packed(variable) and filled is None:
            continue
        cells, given = None if filled is None else filled.variable, variable.encoding
        # Numbers that were filled mean what they are: a scale left among the attributes would be applied when read.
        stale = {key: variable.attrs[key] for key in PACKING if cells is not None and key in variable.attrs}
        forms = ((encoding, attrs) for encoding in _encodings(given) for attrs in ([stale, {}] if stale else [{}]))
        keeps = (form for form in forms if _keeps(variable, *form, cells, zarr))
        variable.encoding, kept = next(keeps, ({}, {}))
        if stale != kept:
            variable.attrs = {key: value for key, value in variable.attrs.items() if key not in stale}
            refused.append(f"'{name}' is written without its attributes {', '.join(stale)}, which change it when read")
        lost = [key for key in LIMITS if key in variable.attrs]
        if lost and "scale_factor" in given and "scale_factor" not in variable.encoding:
            variable.attrs = {key: value for key, value in variable.attrs.items() if key not in lost}
            refused.append(f"'{name}' is written unpacked, without its {', '.join(lost)} in packed numbers")
    return ds


def _is_packed(variable: xr.Variable) -> bool:
    encoding = variable.encoding
    dtype = encoding.get("dtype", variable.dtype)
    return variable.dtype.kind in "fiubmM" and (
        dtype != variable.dtype or any(key in encoding for key in ("scale_factor", "add_offset", "_Unsigned"))
    )


def _encodings(encoding: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``encoding``, and then ever simpler ones."""
    yield dict(encoding)
    # Two fill values are read but never written; NaN goes to the first.
    if "missing_value" in encoding and "_FillValue" in encoding:
        yield {key: value for key, value in encoding.items() if key != "missing_value"}
    yield {key: value for key, value in encoding.items() if key not in PACKING}
    yield {}


def _keeps(
    variable: xr.Variable, encoding: dict[str, Any], attrs: dict[str, Any], filled: xr.Variable | None, zarr: bool
) -> bool:
    """Whether all values come back, those of ``filled`` cells to within the step of the packing."""
    steps = at_once(variable.size // len(variable)) if variable.ndim and variable.size else 1
    blocks = [slice(i, i + steps) for i in range(0, len(variable), steps)] if variable.ndim else [()]
    for block in blocks:
        given = variable[block].compute()
        back, step = _there_and_back(given, encoding, attrs, zarr)
        if back is None or (given.dtype.kind in "fiub" and back.dtype != given.dtype):
            return False
        values = given.values
        same = values == back if values.dtype.kind != "f" else _same_bits(values, back)
        if filled is not None and values.dtype.kind == "f":
            rough = np.isclose(back, values, rtol=1e-6, atol=0.51 * step)
            same |= rough & filled[block].values
        if not np.all(same | (pd.isnull(values) & pd.isnull(back))):
            return False
    return True


def _there_and_back(
    variable: xr.Variable, encoding: dict[str, Any], attrs: dict[str, Any], zarr: bool
) -> tuple[np.ndarray, float] | tuple[None, float]:
    """Values as they are read from a file with this encoding, None if it cannot be written; the step of integers."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            stored = xr.conventions.encode_cf_variable(xr.Variable(variable.dims, variable.values, attrs, encoding))
            plain = xr.Variable(variable.dims, stored.values, _as_json(stored.attrs) if zarr else stored.attrs)
            scale = float(np.ravel(stored.attrs.get("scale_factor", 1.0))[0])
            step = abs(scale) if stored.dtype.kind in "iu" else 0.0
            return xr.conventions.decode_cf_variable("variable", plain).values, step
        except Exception:  # whatever is raised, the encoding does not suit the values
            return None, 0.0


def _as_json(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as Zarr keeps them: a float32 becomes a double, only the fill value has a type."""
    numbers = (np.generic, np.ndarray)
    return {k: v.tolist() if isinstance(v, numbers) and k != "_FillValue" else v for k, v in attrs.items()}


def _same_bits(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    if one.dtype.itemsize > 8:  # an extended double, of which some bits mean nothing
        return (one == two) & (np.signbit(one) == np.signbit(two))
    bits = f"u{one.dtype.itemsize}"
    return np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(two).view(bits)


def _accepted(ds: xr.Dataset, zarr: bool, refused: Refusals) -> xr.Dataset:
    """The data set in a form of which a skeleton can be written and read."""
    try:
        return _tried(ds, zarr, refused)
    except _NoRoom:
        return ds  # the folder of temporary files is full or missing, which is no reason to give anything up


def _tried(ds: xr.Dataset, zarr: bool, refused: Refusals, cells: int = 2) -> xr.Dataset:
    skeleton = ds.isel({name: slice(cells) for name in ds.dims}).load()
    # Whether text can be written depends on every letter of it; numbers are all alike.
    texts = [name for name, variable in ds.variables.items() if variable.dtype.kind in "OSUV"]
    if _is_readable(skeleton, zarr) and (not texts or _is_readable(_apart(ds, texts), zarr)):
        return ds
    tried = xr.Dataset()
    for name, whole in ds.variables.items():
        cut = skeleton.variables[name]
        accepts = partial(_is_accepted, tried, name, cut, zarr)
        legible = name not in texts or _is_readable(_apart(ds, [name]), zarr)
        found = _form(f"of '{name}'", whole, accepts, refused) if legible else None
        if found is None:
            refused.append(f"the variable '{name}' is left out")
            continue
        tried = tried.assign({name: xr.Variable(cut.dims, cut.data, *found)})
    out = ds.drop_vars([name for name in ds.variables if name not in tried.variables])
    for name, variable in out.variables.items():
        variable.attrs, variable.encoding = tried.variables[name].attrs, tried.variables[name].encoding
    out.attrs = _attributes("of the data set", ds.attrs, lambda a: _is_readable(xr.Dataset(attrs=a), zarr), refused)
    return out


def _is_accepted(tried: xr.Dataset, name: Hashable, cut: xr.Variable, zarr: bool, attrs: dict, encoding: dict) -> bool:
    """Whether a variable can be written in this form beside those that were tried before."""
    return _is_readable(tried.assign({name: xr.Variable(cut.dims, cut.data, attrs, encoding)}), zarr)


def _apart(ds: xr.Dataset, names: Sequence[Hashable]) -> xr.Dataset:
    """The values of whole variables, none of which shares a dimension with another."""
    values = {f"v{i}": ds.variables[name].values for i, name in enumerate(names)}
    return xr.Dataset({key: ([f"{key}_{axis}" for axis in range(v.ndim)], v) for key, v in values.items()})


def _form(
    place: str, variable: xr.Variable, accepts: Callable[[dict, dict], bool], refused: Refusals
) -> tuple[dict, dict] | None:
    """Attributes and encoding that a variable can be written with; None if it cannot be written at all."""
    if accepts(variable.attrs, variable.encoding):
        return variable.attrs, variable.encoding
    encoding = next((found for found in _encodings(variable.encoding) if accepts({}, found)), None)
    if encoding is None:
        return None
    return _attributes(place, variable.attrs, lambda attrs: accepts(attrs, encoding), refused), encoding


def _attributes(place: str, attrs: Mapping, accepts: Callable[[dict], bool], refused: Refusals) -> dict:
    """Those of the attributes that are accepted, each in the nearest form."""
    kept: dict = {}
    for key, value in attrs.items():
        if accepts({**kept, key: value}):
            kept[key] = value
            continue
        nearest = _nearest(value)
        if nearest is not None and accepts({**kept, key: nearest}):
            kept[key] = nearest
            refused.append(f"the attribute {str(key)!r} {place} is written as {str(nearest)[:40]!r}")
        else:
            refused.append(f"the attribute {str(key)!r} {place} is left out")
    return kept


def _nearest(value: Any) -> Any:
    """An attribute in a form that every format has; None if there is none."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, np.ndarray) and value.dtype == bool):
        return np.asarray(value).astype(np.int8)
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, dict | list | tuple):
        try:
            return _clean(json.dumps(value))
        except (TypeError, ValueError):
            return None
    return None


def _clean(text: str) -> str:
    """Text without the characters that UTF-8 and C have no place for."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def with_times(opened: Callable[..., xr.Dataset]) -> tuple[xr.Dataset, str]:
    """What ``opened`` returns, and why its times are still numbers if no calendar has them; they may be of a year 0."""
    try:
        return opened(), ""
    except ValueError as error:
        if "decode time" not in str(error):
            raise
        return opened(decode_times=False), str(error).splitlines()[0].split(". ")[0]


def _is_readable(ds: xr.Dataset, zarr: bool) -> bool:
    """Whether a data set can be written and read again with all its variables."""
    engine: dict[str, Any] = {"engine": "zarr", "consolidated": False} if zarr else {"engine": "h5netcdf"}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            with tempfile.TemporaryDirectory(prefix="fieldfill") as folder:
                path = Path(folder) / ("trial.zarr" if zarr else "trial.nc")
                write(ds, path, zarr)
                with with_times(partial(xr.open_dataset, path, **engine))[0] as again:
                    return set(ds.variables) <= set(again.load().variables)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise _NoRoom from error
            return False  # whatever else is raised, the data set cannot be written like this
