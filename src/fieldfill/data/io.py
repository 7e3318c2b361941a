"""Files: open NetCDF, Zarr and GRIB as xarray, and write a data set so that no half-written file is ever seen.

Reading is lazy (dask). Layouts that archives really use are brought into one shape here and nowhere else:
GRIB messages of several levels, the ``expver`` dimension that mixes final and preliminary ERA5.
This module never imports torch.
"""

import os
import warnings
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import xarray as xr

from fieldfill.data.encoding import with_times, writable, write
from fieldfill.data.kinds import ZARR, data_kind, json_object
from fieldfill.data.output_paths import COMPRESSED, check_output, check_space, replacing
from fieldfill.data.survey import as_dataset
from fieldfill.errors import InputError, InputWarning, MissingPackage

__all__ = ["open_dataset", "save_dataset", "stored_bytes"]

GRIB_SUFFIXES = (".grib", ".grb", ".grib2", ".grb2")


def open_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """Opens a NetCDF, Zarr or GRIB file lazily.

    The format is found from the content where it has a signature and from the name's ending otherwise.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}; check the path")
    try:
        ds, reason = with_times(partial(_open, path))
    except (OSError, ValueError, KeyError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read {path}: {reason}; is it a complete NetCDF, Zarr or GRIB file?") from error
    if reason:
        warnings.warn(f"the times of {path.name} stay numbers: {reason}", InputWarning, stacklevel=2)
    if groups := _groups(path):
        text = f"{path.name} has groups ({', '.join(groups)}); only the variables outside of them are read"
        warnings.warn(" ".join(text.split()), InputWarning, stacklevel=2)
    return _merge_expver(ds)


def _groups(path: Path) -> list[str]:
    """Names of the groups in a file, those without any variable excepted, or in a store."""
    if path.is_dir():
        return sorted(entry.name for entry in path.iterdir() if _is_group(entry))
    if not h5py.is_hdf5(path):
        return []
    with h5py.File(path) as file:
        groups = {name: part for name, part in file.items() if isinstance(part, h5py.Group)}
        return [name for name, group in groups.items() if group.visititems(_is_variable)]


def _is_group(path: Path) -> bool:
    return (path / ".zgroup").exists() or json_object(path / "zarr.json").get("node_type") == "group"


def _is_variable(_: str, part: h5py.Group | h5py.Dataset) -> bool | None:
    return isinstance(part, h5py.Dataset) or None


def _open(path: Path, decode_times: bool = True) -> xr.Dataset:
    if path.is_dir():
        if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata")):
            raise InputError(f"{path} is a directory but not a Zarr store; give a NetCDF, Zarr or GRIB file")
        return xr.open_dataset(
            path, engine="zarr", chunks={}, consolidated=_is_consolidated(path), decode_times=decode_times
        )
    with path.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(b"\x89HDF"):
        return xr.open_dataset(path, engine="h5netcdf", chunks={}, decode_times=decode_times)
    if magic.startswith(b"CDF"):
        return xr.open_dataset(path, engine="scipy", chunks={}, decode_times=decode_times)
    if magic.startswith(b"GRIB") or path.suffix in GRIB_SUFFIXES:
        return _open_grib(path)
    raise InputError(f"{path} is neither NetCDF, Zarr nor GRIB (it starts with {magic[:4]!r}); convert it first")


def _is_consolidated(path: Path) -> bool:
    return (path / ".zmetadata").exists() or bool(json_object(path / "zarr.json").get("consolidated_metadata"))


def _open_grib(path: Path) -> xr.Dataset:
    try:
        import cfgrib
    except (ImportError, RuntimeError) as error:
        raise MissingPackage("cfgrib", "grib", f"reading {path.name}") from error
    # An empty index path keeps cfgrib from writing a file beside the user's data.
    parts = cfgrib.open_datasets(str(path), backend_kwargs={"indexpath": ""}, squeeze=True)
    # Variables of different heights carry contradicting scalar coordinates; each keeps its GRIB attributes anyway.
    scalars = [[name for name, coord in part.coords.items() if coord.ndim == 0] for part in parts]
    if len(parts) > 1:
        parts = [part.drop_vars(names) for part, names in zip(parts, scalars)]
    return xr.merge(parts, compat="override", join="outer", combine_attrs="drop_conflicts").chunk({})


def _merge_expver(ds: xr.Dataset) -> xr.Dataset:
    """Collapses the ``expver`` dimension: final reanalysis where it exists, preliminary values elsewhere."""
    if "expver" not in ds.dims:
        return ds
    attrs = {name: ds[name].attrs for name in ds.data_vars}
    versions = [ds.isel(expver=i, drop=True) for i in range(ds.sizes["expver"])]
    merged = versions[0]
    for version in versions[1:]:
        merged = merged.combine_first(version)
    for name, values in attrs.items():
        merged[name].attrs = values
    return merged.assign_attrs(ds.attrs)


def save_dataset(ds: xr.Dataset | xr.DataArray, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Writes NetCDF or Zarr by the name's ending, atomically.

    What the format cannot hold is left out with an `InputWarning`; see `fieldfill.data.encoding`.
    """
    kind = data_kind(path)
    path = check_output(path, kind, overwrite)
    ds = writable(as_dataset(ds), path)
    check_space(path, stored_bytes(ds, path))
    with replacing(path, kind if overwrite else None) as partial:
        write(ds, partial, kind is ZARR)
    return path


def stored_bytes(ds: xr.Dataset, path: str | os.PathLike[str], added: float = 0) -> float:
    """Expected size at ``path`` of a data set and ``added`` bytes beside it; compressed data count for little."""
    zarr, plain, compressed = data_kind(path) is ZARR, float(added), 0.0
    for variable in ds.variables.values():
        size = variable.size * np.dtype(variable.encoding.get("dtype", variable.dtype)).itemsize
        if variable.encoding.get("zlib", False):
            compressed += size
        else:
            plain += size
    return COMPRESSED * (plain + compressed) if zarr else plain + COMPRESSED * compressed
