"""Files: open NetCDF, Zarr and GRIB as xarray, and write a data set so that no half-written file is ever seen.

Reading is lazy (dask). Layouts that archives really use are brought into one shape here and nowhere else:
GRIB messages of several levels, the ``expver`` dimension that mixes final and preliminary ERA5.
This module never imports torch.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xarray as xr

from fieldfill.errors import InputError, MissingPackage

__all__ = ["check_free", "check_output", "discard", "open_dataset", "replacing", "save_dataset"]

NETCDF_SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf", ".h5")
GRIB_SUFFIXES = (".grib", ".grb", ".grib2", ".grb2")
PACKING = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
TIME_CODING = ("units", "calendar")
NETCDF_STORAGE = ("zlib", "complevel", "shuffle", "fletcher32")


def open_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """Opens a NetCDF, Zarr or GRIB file lazily.

    The format is found from the content where it has a signature and from the name's ending otherwise.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no such file: {path}; check the path")
    try:
        ds = _open(path)
    except (OSError, ValueError, KeyError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot read {path}: {reason}; is it a complete NetCDF, Zarr or GRIB file?") from error
    return _merge_expver(ds)


def _open(path: Path) -> xr.Dataset:
    if path.is_dir():
        if not any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zmetadata")):
            raise InputError(f"{path} is a directory but not a Zarr store; give a NetCDF, Zarr or GRIB file")
        return xr.open_dataset(path, engine="zarr", chunks={}, consolidated=_is_consolidated(path))
    with path.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(b"\x89HDF"):
        return xr.open_dataset(path, engine="h5netcdf", chunks={})
    if magic.startswith(b"CDF"):
        return xr.open_dataset(path, engine="scipy", chunks={})
    if magic.startswith(b"GRIB") or path.suffix in GRIB_SUFFIXES:
        return _open_grib(path)
    raise InputError(f"{path} is neither NetCDF, Zarr nor GRIB (it starts with {magic[:4]!r}); convert it first")


def _is_consolidated(path: Path) -> bool:
    root = path / "zarr.json"
    return (path / ".zmetadata").exists() or (root.exists() and '"consolidated_metadata"' in root.read_text())


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


def check_output(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Says early, before any work is done, whether a result can be written to ``path``."""
    path = Path(path)
    if path.suffix not in (*NETCDF_SUFFIXES, ".zarr"):
        raise InputError(f"unknown output format '{path.suffix}' of {path}; use .nc or .zarr")
    return check_free(path, overwrite)


def check_free(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """The same for a path of any kind: its folder exists and nothing is in the way."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} of the output {path.name} does not exist; create it first")
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists; choose another name or pass --overwrite (overwrite=True)")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary neighbour of ``path`` that takes its name only when the block succeeds."""
    partial = path.with_name(f"{path.name}.part{os.getpid()}{path.suffix}")
    discard(partial)
    try:
        yield partial
        if path.is_dir():
            discard(path)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; nothing was left there") from error
    finally:
        discard(partial)


def discard(path: Path) -> None:
    """Removes a file or directory, if there is one."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def save_dataset(ds: xr.Dataset, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Writes NetCDF or Zarr by the name's ending, atomically, keeping the packing that the values still fit."""
    path = check_output(path, overwrite)
    zarr = path.suffix == ".zarr"
    storage = () if zarr else NETCDF_STORAGE
    encoding = {}
    ds = ds.copy()
    for name, variable in ds.variables.items():
        keep = {key: value for key, value in variable.encoding.items() if key in (*PACKING, *TIME_CODING, *storage)}
        if not fits_packing(variable, keep):
            keep = {key: value for key, value in keep.items() if key not in PACKING}
        ds[name].encoding = {}
        encoding[name] = keep
    with replacing(path) as partial:
        if zarr:
            ds.to_zarr(partial, mode="w", encoding=encoding, consolidated=False)
        else:
            ds.to_netcdf(partial, engine="h5netcdf", encoding=encoding)
    return path


def fits_packing(variable: xr.Variable, encoding: dict) -> bool:
    """Whether all finite values survive the variable's integer packing without running out of its range."""
    dtype = np.dtype(encoding.get("dtype", variable.dtype))
    if dtype.kind not in "iu" or variable.dtype.kind != "f":
        return True
    scale, offset = encoding.get("scale_factor", 1.0), encoding.get("add_offset", 0.0)
    packed = (np.asarray(variable.values, dtype=np.float64) - offset) / scale
    finite = np.isfinite(packed)
    if not finite.any():
        return True
    limits = np.iinfo(dtype)
    taken = [value for key in ("_FillValue", "missing_value") if (value := encoding.get(key)) is not None]
    low, high = np.round(packed[finite].min()), np.round(packed[finite].max())
    return bool(low >= limits.min and high <= limits.max and not any(low <= value <= high for value in taken))
