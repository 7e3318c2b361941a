"""What a data set holds: the variables to fill, where they exist, and statistics of their values in one pass."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes
from fieldfill.data.companions import KINDS, earlier_fill
from fieldfill.data.finite import Moments
from fieldfill.data.transforms import Logarithm, ValueTransform
from fieldfill.errors import InputError

__all__ = ["Survey", "as_dataset", "choose_variables", "given_domain", "scope", "survey"]

# Largest value of a variable: differences and a few standard deviations more are still finite.
LARGEST = 1e307


def scope(ds: xr.Dataset, variables: Sequence[str] | None) -> xr.Dataset:
    """The variables whose dimensions count: those named, or else all of floating point."""
    if variables is None:
        chosen = [name for name, variable in ds.data_vars.items() if variable.dtype.kind == "f"]
    else:
        chosen = [name for name in variables if name in ds.data_vars]
    return ds[chosen] if chosen else ds


def as_dataset(data: xr.Dataset | xr.DataArray) -> xr.Dataset:
    if isinstance(data, xr.DataArray):
        return data.to_dataset(name=data.name or "field")
    if not isinstance(data, xr.Dataset):
        raise InputError(f"data is a {type(data).__name__}; give an xarray Dataset or DataArray (NaN = missing)")
    return data


def choose_variables(
    ds: xr.Dataset, axes: Axes, variables: Sequence[str] | None, domain_name: str | None
) -> tuple[str, ...]:
    if variables is None:
        derived = _derived(ds)
        free = [
            name
            for name, variable in ds.data_vars.items()
            if variable.dtype.kind == "f" and name != domain_name and name not in derived
        ]
        near = [name for name in free if set(axes.names) <= set(ds[name].dims)]
        chosen = tuple(name for name in near if not axes.others(ds[name]))
        if not chosen:
            has = (
                _excess(ds, axes, near[0])
                if near
                else f"the data have {', '.join(map(str, free)) or 'no such variable'}"
            )
            raise InputError(f"no floating-point variable has exactly the dimensions {', '.join(axes.names)}; {has}")
        return _texts(chosen)
    if len(variables) == 0:
        raise InputError("no variable was named; name at least one, or leave the list out to take all")
    for name in variables:
        if name not in ds.data_vars:
            raise InputError(f"no variable '{name}' in the data (it has {', '.join(map(str, ds.data_vars))})")
        lacking = [axis for axis in axes.names if axis not in ds[name].dims]
        if lacking:
            raise InputError(
                f"variable '{name}' has the dimensions {', '.join(map(str, ds[name].dims))}, "
                f"needed are {', '.join(axes.names)}; leave it out or name time, rows and columns with --dims"
            )
        if axes.others(ds[name]):
            raise InputError(_excess(ds, axes, name))
        if ds[name].dtype.kind != "f":
            raise InputError(
                f"variable '{name}' is {ds[name].dtype}, which has no NaN for missing values; convert it to float"
            )
    return _texts(variables)


def _texts(names: Sequence[Hashable]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"the variable {name!r} has a name that is not text; rename it")
    return tuple(map(str, names))


def _excess(ds: xr.Dataset, axes: Axes, name: Hashable) -> str:
    """What is left over of the dimensions of a variable, and what to do about it."""
    others = axes.others(ds[name])
    first = next(iter(others))
    value = ds[first].values[0] if first in ds.coords else 0
    return (
        f"variable '{name}' also has {', '.join(f'{dim}={size}' for dim, size in others.items())}; select a value with "
        f'--sel {first}={value} (sel={{"{first}": {value}}}), or fill all of them with --each {first} (each="{first}")'
    )


def _derived(ds: xr.Dataset) -> set[str]:
    """Variables that are an uncertainty, flag, member or the like of another one."""
    by_name = {f"{name}_{kind}" for name in ds.variables for kind in KINDS}
    return by_name.union(*(earlier_fill(ds, name) for name in ds.data_vars if isinstance(name, str)))


@dataclass
class Survey:
    """Number of values (H, W) of a variable, mean and standard deviation of what is learnt of them."""

    counts: np.ndarray
    mean: float
    std: float


def survey(ds: xr.Dataset, name: str, axes: Axes, transform: ValueTransform) -> Survey:
    """One pass over a variable, a slab of frames at a time, so that a record larger than memory can be surveyed."""
    canonical = axes.canonical(ds[name])
    samples, frames, rows, columns = axes.sizes(ds)
    slab = max(1, int(64e6 // (rows * columns * 8)))
    counts = np.zeros((rows, columns), np.int64)
    moments = Moments()
    for sample in range(samples):
        for start in range(0, frames, slab):
            part = canonical.isel(axes.sample_of(ds, sample))
            if axes.time is not None:
                part = part.isel({axes.time: slice(start, start + slab)})
            values = part.values.reshape(-1, rows, columns).astype(np.float64)
            if np.isinf(values).any():
                where = _first(np.isinf(values), start)
                raise InputError(
                    f"variable '{name}' has infinite values, the first at {where}; set them to NaN if they mean missing"
                )
            if isinstance(transform, Logarithm):
                if (values <= 0).any():
                    where, least = _first(values <= 0, start), np.nanmin(values)
                    raise InputError(
                        f"variable '{name}' has values without a logarithm, such as {least:g}, the first at {where}; "
                        "set them to NaN if they mean missing, or leave it out of log"
                    )
            elif (large := np.abs(values) > LARGEST).any():
                raise InputError(
                    f"variable '{name}' has values up to {np.nanmax(np.abs(values)):g}, the first at "
                    f"{_first(large, start)}; set them to NaN if they mean missing, or divide it by a power of ten"
                )
            transform.apply(values)
            observed = np.isfinite(values)
            counts += observed.sum(axis=0)
            moments.add(values[observed])
    return Survey(counts, moments.mean, moments.scale)


def _first(where: np.ndarray, start: int) -> str:
    """Place of the first True of (T, H, W) frames that begin with ``start``."""
    frame, row, column = (int(i) for i in np.argwhere(where)[0])
    return f"frame {start + frame}, row {row}, column {column}"


def given_domain(ds: xr.Dataset, axes: Axes, domain: str | xr.DataArray | np.ndarray, count: int) -> np.ndarray:
    """A given domain as an array (C, H, W), or (S, C, H, W) if it differs between samples."""
    if isinstance(domain, str):
        if domain not in ds:
            raise InputError(f"no variable '{domain}' to take the domain from; name one of {', '.join(map(str, ds))}")
        domain = ds[domain]
    space = tuple(name for name in (axes.y, axes.x) if name is not None)
    if isinstance(domain, xr.DataArray):
        domain = domain.squeeze([dim for dim, size in domain.sizes.items() if size == 1 and dim not in space])
        samples = [name for name in axes.sample if name in domain.dims]
        extra = [str(name) for name in domain.dims if name not in (*samples, *space)]
        if extra or len(domain.dims) < len(space):
            raise InputError(
                f"the domain has the dimensions {', '.join(map(str, domain.dims)) or 'none'}; it must be a map on "
                f"({', '.join(space)})"
            )
        if samples:
            whole = domain.expand_dims({name: ds.sizes[name] for name in axes.sample if name not in samples})
            array = whole.transpose(*axes.sample, *space).values
            if array.size != np.prod(axes.sizes(ds)) // axes.sizes(ds)[1]:
                raise InputError(
                    f"the domain has the shape {array.shape}; it must have the samples, rows and columns of the data"
                )
            return np.repeat(_is_true(array.reshape(-1, 1, *axes.sizes(ds)[2:])), count, axis=1)
        domain = domain.transpose(*space).values
    inside = _is_true(np.asarray(domain))
    shape = (count, *axes.sizes(ds)[2:])
    if axes.y is None and inside.shape == shape[2:]:
        inside = inside[None]
    if inside.shape not in (shape, shape[1:]):
        raise InputError(f"the domain has the shape {inside.shape}, the grid has {shape[1:]}; they must agree")
    return np.broadcast_to(inside, shape).copy()


def _is_true(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array) & (array != 0) if array.dtype.kind == "f" else array.astype(bool)
