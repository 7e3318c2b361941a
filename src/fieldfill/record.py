"""A gridded record with gaps: the border between xarray and plain arrays.

Arrays are ordered (S, C, T, H, W): S independent samples, C variables, T frames, H rows, W columns. NaN means
missing and stops here: everything above works with values and boolean masks, True = observed. A cell is one of

* outside the *domain* (land for a sea temperature): never filled, never scored,
* *observed*,
* *missing*: inside the domain and not observed – what there is to fill.

A positive variable that spans decades, such as chlorophyll, may be read as its logarithm. If that is normal with mean m
and standard deviation s, the variable has the median e^m, the quantiles e^(m + k s) and the standard deviation
e^(m + s²/2) (e^(s²) - 1)^½.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import exprel

from fieldfill.axes import Axes, find_axes, wraps_around
from fieldfill.errors import InputError

__all__ = ["FLAGS", "Record", "open_record"]

FLAGS = {"observed": 0, "filled": 1, "filled_without_support": 2, "outside_domain": 3}
IN_MEMORY_BYTES = 2**30  # records up to this size are kept in memory, larger ones are read window by window
DERIVED = ("_std", "_flag", "_members", "_quantile", "_budget")


@dataclass(frozen=True)
class Record:
    """A data set whose axes, variables and domain are known.

    Attributes
    ----------
    domain
        (C, H, W) bool, where the field exists.
    mean, std
        (C,) statistics of the observed cells, as `read` gives them.
    logarithmic
        names of the variables that `read` gives as logarithms and `to_dataset` takes as such.
    """

    ds: xr.Dataset
    variables: tuple[str, ...]
    axes: Axes
    domain: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    logarithmic: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        samples = 1 if self.axes.sample is None else self.ds.sizes[self.axes.sample]
        grid = (self.ds.sizes[name] for name in (self.axes.time, self.axes.y, self.axes.x))
        frames, rows, columns = grid
        return samples, len(self.variables), frames, rows, columns

    @property
    def periodic(self) -> tuple[bool, bool]:
        """Whether rows and columns close on themselves: marked by the attribute ``periodic``, or a full circle."""
        marked = tuple(
            name in self.ds.coords and bool(self.ds[name].attrs.get("periodic", 0))
            for name in (self.axes.y, self.axes.x)
        )
        return marked[0], marked[1] or wraps_around(self.ds, self.axes.x)

    def read(self, sample: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Frames [start, stop) of one sample: values (C, T, H, W) float64, NaN where missing, and observed."""
        block: dict[str, int | slice] = {self.axes.time: slice(start, stop)}
        if self.axes.sample is not None:
            block |= {self.axes.sample: sample}
        order = self.axes.names[-3:]
        parts = [self.ds[name].isel(block).transpose(*order).values for name in self.variables]
        values = np.stack(parts).astype(np.float64)
        observed = np.isfinite(values) & self.domain[:, None]
        logarithmic = np.isin(self.variables, self.logarithmic)[:, None, None, None]
        np.log(values, out=values, where=observed & logarithmic)
        return np.where(observed, values, np.nan), observed

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The whole record: values and observed (S, C, T, H, W)."""
        samples, _, frames, _, _ = self.shape
        pairs = [self.read(sample, 0, frames) for sample in range(samples)]
        return np.stack([values for values, _ in pairs]), np.stack([observed for _, observed in pairs])

    def masked(self, seen: np.ndarray) -> xr.Dataset:
        """The data set with NaN wherever ``seen`` (S, C, T, H, W) is False."""
        out = self.ds.copy()
        for c, name in enumerate(self.variables):
            canonical = self.ds[name].transpose(*self.axes.names)
            values = np.where(seen[:, c].reshape(canonical.shape), canonical.values, np.nan).astype(canonical.dtype)
            out[name] = canonical.copy(data=values).transpose(*self.ds[name].dims)
        return out

    def to_dataset(
        self,
        filled: np.ndarray,
        std: np.ndarray | None = None,
        unsupported: np.ndarray | None = None,
        members: np.ndarray | None = None,
        budget: Mapping[str, np.ndarray] | None = None,
        quantiles: Mapping[float, np.ndarray] | None = None,
        history: str | None = None,
    ) -> xr.Dataset:
        """Puts filled values into the gaps of the original data set; everything that was there stays.

        Parameters
        ----------
        filled, std
            (S, C, T, H, W) in the units of the data, or of their logarithm where `read` takes that; only the missing
            cells are used.
        unsupported
            bool, broadcastable to (S, C, T, H, W): cells the data could not teach.
        members
            (S, N, C, T, H, W) realisations, in the same units.
        budget
            parts of the variance ``std``² by name, each (S, C, T, H, W).
        quantiles
            by probability, how many ``std`` (C,) each of them lies above the filled value.
        """
        out = self.ds.copy()
        if unsupported is None:
            unsupported = np.zeros((1, 1, 1, 1, 1), bool)
        unsupported = np.broadcast_to(unsupported, self.shape)
        for c, name in enumerate(self.variables):
            original, gaps = self.ds[name], _Gaps(self, c)
            out[name] = gaps.values(filled[:, c])
            out[name].attrs, out[name].encoding = original.attrs, original.encoding
            stretch = 1.0 if std is None else gaps.stretch(filled[:, c], std[:, c])
            if std is not None:
                out[f"{name}_std"] = gaps.spread(std[:, c] * stretch)
                out[f"{name}_std"].attrs = _std_attrs(name, original.attrs)
                if quantiles:
                    ends = [gaps.values(filled[:, c] + steps[c] * std[:, c]) for steps in quantiles.values()]
                    out[f"{name}_quantile"] = xr.concat(ends, dim="quantile").assign_attrs(
                        {"long_name": f"quantiles of {name}; the value itself where observed"} | _units(original.attrs)
                    )
            out[f"{name}_flag"] = gaps.flag(unsupported[:, c])
            out[f"{name}_flag"].attrs = _flag_attrs(name, original.attrs)
            if members is not None:
                drawn = [gaps.values(members[:, member, c]) for member in range(members.shape[1])]
                out[f"{name}_members"] = xr.concat(drawn, dim="member").assign_attrs(
                    {"long_name": f"realisations of {name}"} | _units(original.attrs)
                )
            if budget is not None:
                parts = [gaps.spread(part[:, c] * stretch**2) for part in budget.values()]
                out[f"{name}_budget"] = xr.concat(parts, dim="part").assign_attrs(
                    {"long_name": f"parts of the variance of the filled {name}"}
                )
        if quantiles:
            named = {"long_name": "probability that the truth is not above", "units": "1"}
            out = out.assign_coords(quantile=("quantile", list(quantiles), named))
        if budget is not None:
            out = out.assign_coords(part=("part", list(budget)))
        if members is not None:
            realisation = {"standard_name": "realization", "units": "1"}
            out = out.assign_coords(member=("member", np.arange(members.shape[1]), realisation))
        if history is not None:
            stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            lines = [f"{stamp} {history}", self.ds.attrs.get("history", "")]
            out.attrs["history"] = "\n".join(line for line in lines if line)
        return out


class _Gaps:
    """The gaps of one variable: puts (S, T, H, W) arrays there, with dimensions and coordinates of the original."""

    def __init__(self, record: Record, c: int) -> None:
        name = record.variables[c]
        self.original = record.ds[name]
        self.canonical = self.original.transpose(*record.axes.names)
        self.observations = self.canonical.values.reshape(np.delete(record.shape, 1))
        self.inside = np.broadcast_to(record.domain[c], self.observations.shape)
        self.observed = np.isfinite(self.observations) & self.inside
        self.logarithmic = name in record.logarithmic

    def values(self, given: np.ndarray) -> xr.DataArray:
        """``given``, as `Record.read` has it, in the gaps and the observations beside them."""
        given = np.exp(given) if self.logarithmic else given
        return self._placed(self.observations, given, self.observations.dtype)

    def stretch(self, given: np.ndarray, std: np.ndarray) -> np.ndarray | float:
        """Standard deviation in the units of the data over ``std``, that in the units of ``given``."""
        return np.exp(given + std**2 / 2) * np.sqrt(exprel(std**2)) if self.logarithmic else 1.0

    def spread(self, given: np.ndarray) -> xr.DataArray:
        """``given`` in the gaps, 0 where observed."""
        return self._placed(0, given, np.float32)

    def flag(self, unsupported: np.ndarray) -> xr.DataArray:
        kinds = np.where(unsupported, FLAGS["filled_without_support"], FLAGS["filled"])
        return self._placed(FLAGS["observed"], kinds, np.int8, FLAGS["outside_domain"])

    def _placed(
        self, seen: np.ndarray | int, missing: np.ndarray, dtype: npt.DTypeLike, outside: float = np.nan
    ) -> xr.DataArray:
        array = np.where(self.inside, np.where(self.observed, seen, missing), outside).astype(dtype)
        placed = self.canonical.copy(data=array.reshape(self.canonical.shape)).transpose(*self.original.dims)
        placed.attrs, placed.encoding = {}, {}
        return placed


def _units(attrs: dict) -> dict:
    return {"units": attrs["units"]} if "units" in attrs else {}


def _std_attrs(name: str, attrs: dict) -> dict:
    standard = {"standard_name": f"{attrs['standard_name']} standard_error"} if "standard_name" in attrs else {}
    return {"long_name": f"standard deviation of the filled {name}; 0 where observed"} | standard | _units(attrs)


def _flag_attrs(name: str, attrs: dict) -> dict:
    standard = {"standard_name": f"{attrs['standard_name']} status_flag"} if "standard_name" in attrs else {}
    return {
        "long_name": f"origin of {name}",
        "flag_values": np.array(list(FLAGS.values()), dtype=np.int8),
        "flag_meanings": " ".join(FLAGS),
    } | standard


def open_record(
    data: xr.Dataset | xr.DataArray,
    variables: Sequence[str] | None = None,
    dims: tuple[str, str, str] | None = None,
    domain: str | xr.DataArray | np.ndarray | None = None,
    log: Sequence[str] = (),
) -> Record:
    """Finds axes, variables and domain of a data set and checks, in one pass, that there is something to learn from.

    Parameters
    ----------
    data
        NaN means missing.
    variables
        Names of the variables to fill; by default every floating-point variable on (time, y, x).
    dims
        Names of the time, row and column dimensions, when they cannot be found by CF metadata or usual names.
    domain
        Where the field exists: the name of a variable in ``data`` (non-zero = inside) or an (H, W) or (C, H, W)
        array. Without it, cells that are never observed in the whole record are outside.
    log
        Names of the variables that are read as their logarithm; they must be positive.
    """
    ds = as_dataset(data)
    axes = find_axes(ds, dims)
    names = choose_variables(ds, axes, variables, domain if isinstance(domain, str) else None)
    for name in log:
        if name not in names:
            raise InputError(f"log: '{name}' is none of the variables to fill ({', '.join(names)})")
    if ds.sizes[axes.time] < 2:
        raise InputError(f"the record has a single frame along '{axes.time}'; a sequence of two or more is needed")
    size = sum(ds[name].nbytes for name in names)
    if size <= IN_MEMORY_BYTES:
        ds = ds.assign({name: ds[name].load() for name in names})
    surveys = [_survey(ds[name], name, axes, name in log) for name in names]
    ever = np.stack([survey.ever_observed for survey in surveys])
    inside = ever if domain is None else _given_domain(ds, axes, domain, len(names))
    for c, name in enumerate(names):
        if not (ever[c] & inside[c]).any():
            where = "" if domain is None else " inside the given domain"
            raise InputError(f"variable '{name}' has no observed value{where}; leave it out or check the file")
    mean = np.array([survey.mean for survey in surveys])
    std = np.array([survey.std for survey in surveys])
    return Record(ds, names, axes, inside, mean, std, tuple(log))


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
        chosen = tuple(
            str(name)
            for name, variable in ds.data_vars.items()
            if set(variable.dims) == set(axes.names)
            and variable.dtype.kind == "f"
            and name != domain_name
            and not _is_derived(str(name), ds)
        )
        if not chosen:
            raise InputError(
                f"no floating-point variable has exactly the dimensions {', '.join(axes.names)}; "
                "name the variables, and select a level or member first if there is one"
            )
        return chosen
    if len(variables) == 0:
        raise InputError("no variable was named; give at least one, or none at all for every variable")
    for name in variables:
        if name not in ds.data_vars:
            raise InputError(f"no variable '{name}' in the data (it has {', '.join(map(str, ds.data_vars))})")
        if set(ds[name].dims) != set(axes.names):
            raise InputError(
                f"variable '{name}' has the dimensions {', '.join(map(str, ds[name].dims))}, "
                f"needed are {', '.join(axes.names)}; select a level or member first"
            )
        if ds[name].dtype.kind != "f":
            raise InputError(f"variable '{name}' is {ds[name].dtype}, which cannot be missing; convert it to float")
    return tuple(variables)


def _is_derived(name: str, ds: xr.Dataset) -> bool:
    """Whether the variable is an uncertainty, flag or member written by an earlier fill."""
    return any(name.endswith(suffix) and name.removesuffix(suffix) in ds for suffix in DERIVED)


@dataclass
class _Survey:
    ever_observed: np.ndarray
    mean: float
    std: float


def _survey(variable: xr.DataArray, name: str, axes: Axes, logarithmic: bool) -> _Survey:
    """One pass over a variable, a slab of frames at a time, so that a record larger than memory can be surveyed."""
    canonical = variable.transpose(*axes.names)
    if axes.sample is None:
        canonical = canonical.expand_dims("sample")
    samples, frames, rows, columns = canonical.shape
    slab = max(1, int(64e6 // (rows * columns * 8)))
    ever = np.zeros((rows, columns), bool)
    count, mean, squares = 0, 0.0, 0.0
    for sample in range(samples):
        for start in range(0, frames, slab):
            values = canonical[sample, start : start + slab].values.astype(np.float64)
            if np.isinf(values).any():
                where = _first(np.isinf(values), start)
                raise InputError(
                    f"variable '{name}' has infinite values, the first at {where}; set them to NaN if they mean missing"
                )
            if logarithmic:
                if (values <= 0).any():
                    where, least = _first(values <= 0, start), np.nanmin(values)
                    raise InputError(
                        f"variable '{name}' has values without a logarithm, such as {least:g}, the first at {where}; "
                        "set them to NaN if they mean missing, or leave it out of log"
                    )
                values = np.log(values)
            observed = np.isfinite(values)
            ever |= observed.any(axis=0)
            new = values[observed]
            if new.size:
                # Chan's update joins the moments of two parts without the cancellation of sum and sum of squares.
                shift, total = new.mean() - mean, count + new.size
                squares += ((new - new.mean()) ** 2).sum() + shift**2 * count * new.size / total
                mean += shift * new.size / total
                count = total
    std = np.sqrt(squares / count) if count else 0.0
    return _Survey(ever, mean, std if std > 1e-12 * max(1.0, abs(mean)) else 1.0)


def _first(where: np.ndarray, start: int) -> str:
    """Place of the first True of (T, H, W) frames that begin with ``start``."""
    frame, row, column = (int(i) for i in np.argwhere(where)[0])
    return f"frame {start + frame}, row {row}, column {column}"


def _given_domain(ds: xr.Dataset, axes: Axes, domain: str | xr.DataArray | np.ndarray, count: int) -> np.ndarray:
    if isinstance(domain, str):
        if domain not in ds:
            raise InputError(f"no variable '{domain}' to take the domain from; name one of {', '.join(map(str, ds))}")
        domain = ds[domain]
    if isinstance(domain, xr.DataArray):
        extra = [str(name) for name in domain.dims if name not in (axes.y, axes.x)]
        if extra:
            raise InputError(f"the domain has the dimension {extra[0]}; it must be a map on ({axes.y}, {axes.x})")
        domain = domain.transpose(axes.y, axes.x).values
    array = np.asarray(domain)
    inside = np.isfinite(array) & (array != 0) if array.dtype.kind == "f" else array.astype(bool)
    shape = (count, ds.sizes[axes.y], ds.sizes[axes.x])
    if inside.shape not in (shape, shape[1:]):
        raise InputError(f"the domain has the shape {inside.shape}, the grid has {shape[1:]}; they must agree")
    return np.broadcast_to(inside, shape).copy()
