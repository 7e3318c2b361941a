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
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import exprel

from fieldfill.data.ancillary import FLAGS, KINDS, LEADING, attributes, earlier_fill, lists, without_earlier_fill
from fieldfill.data.axes import Axes, find_axes, wraps_around
from fieldfill.data.finite import Moments, check_filled, floating
from fieldfill.errors import InputError

__all__ = ["FLAGS", "Record", "open_record"]

# Largest value of a variable: differences and a few standard deviations more are still finite.
LARGEST = 1e307
IN_MEMORY_BYTES = 2**30  # records up to this size are kept in memory, larger ones are read window by window


@dataclass(frozen=True)
class Record:
    """A data set whose axes, variables and domain are known.

    Attributes
    ----------
    domain
        (C, H, W) bool, where the field exists.
    counts
        (C, H, W) number of observations of each cell.
    mean, std
        (C,) statistics of the observed cells, as `read` gives them.
    logarithmic
        names of the variables that `read` gives as logarithms and `to_dataset` takes as such.
    replaced
        names of the variables of an earlier fill that were taken out of ``ds``, its filled values with them.
    """

    ds: xr.Dataset
    variables: tuple[str, ...]
    axes: Axes
    domain: np.ndarray
    counts: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    logarithmic: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

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

    @property
    def coverage(self) -> float:
        """Share of the domain that is observed, mean over frames."""
        samples, _, frames, _, _ = self.shape
        return float(self.counts[self.domain].sum() / (self.domain.sum() * samples * frames))

    def read(
        self, sample: int, frames: slice, rows: np.ndarray | None = None, columns: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """A box of one sample, by default whole frames: values (C, T, H, W), NaN where missing, and observed."""
        block: dict[str, int | slice | np.ndarray] = {self.axes.time: frames}
        if self.axes.sample is not None:
            block |= {self.axes.sample: sample}
        inside = self.domain
        if rows is not None and columns is not None:
            block |= {self.axes.y: rows, self.axes.x: columns}
            inside = inside[:, rows[:, None], columns]
        order = self.axes.names[-3:]
        parts = [self.ds[name].isel(block).transpose(*order).values for name in self.variables]
        values = np.stack(parts).astype(np.float64)
        observed = np.isfinite(values) & inside[:, None]
        logarithmic = np.isin(self.variables, self.logarithmic)[:, None, None, None]
        np.log(values, out=values, where=observed & logarithmic)
        return np.where(observed, values, np.nan), observed

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The whole record: values and observed (S, C, T, H, W)."""
        samples, _, frames, _, _ = self.shape
        pairs = [self.read(sample, slice(0, frames)) for sample in range(samples)]
        return np.stack([values for values, _ in pairs]), np.stack([observed for _, observed in pairs])

    def masked(self, seen: np.ndarray) -> xr.Dataset:
        """The data set with NaN wherever ``seen`` (S, C, T, H, W) is False."""
        out = self.ds.copy()
        for c, name in enumerate(self.variables):
            canonical = self.ds[name].transpose(*self.axes.names)
            values = np.where(seen[:, c].reshape(canonical.shape), canonical.values, np.nan).astype(canonical.dtype)
            out[name] = canonical.copy(data=values).transpose(*self.ds[name].dims)
        return out

    def check_names(self, kinds: Sequence[str], suffix: str = "") -> None:
        """Refuses names of new variables and coordinates that the data set already has."""
        new = [f"{name}{suffix}_{kind}" for name in self.variables for kind in kinds]
        new += [f"{LEADING[kind]}{suffix}" for kind in kinds if kind in LEADING]
        taken = [name for name in new if name in self.ds.variables or name in self.ds.dims]
        if taken:
            raise InputError(
                f"the data have their own '{taken[0]}', which a fill would replace; rename it, or give the new "
                'variables other names with --suffix _ff (suffix="_ff")'
            )

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is refused in one line by check_filled
    def to_dataset(
        self,
        filled: np.ndarray,
        std: np.ndarray | None = None,
        unsupported: np.ndarray | None = None,
        members: np.ndarray | None = None,
        budget: Mapping[str, np.ndarray] | None = None,
        quantiles: Mapping[float, np.ndarray] | None = None,
        history: str | None = None,
        suffix: str = "",
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
            parts of the variance ``std**2`` by name, each (S, C, T, H, W).
        quantiles
            by probability, how many ``std`` (C,) each of them lies above the filled value.
        suffix
            what the names of new variables have after that of the variable, see `fieldfill.data.ancillary`.
        """
        wanted = {
            "std": std is not None,
            "quantile": std is not None and bool(quantiles),
            "flag": True,
            "members": members is not None,
            "budget": budget is not None,
        }
        kinds = [kind for kind, present in wanted.items() if present]
        self.check_names(kinds, suffix)
        leading = {kind: f"{dim}{suffix}" for kind, dim in LEADING.items()}
        out = self.ds.copy()
        if unsupported is None:
            unsupported = np.zeros((1, 1, 1, 1, 1), bool)
        unsupported = np.broadcast_to(unsupported, self.shape)
        for c, name in enumerate(self.variables):
            original, gaps = self.ds[name], _Gaps(self, c)
            names = {kind: f"{name}{suffix}_{kind}" for kind in kinds}
            new: dict[str, xr.DataArray] = {"flag": gaps.flag(unsupported[:, c])}
            stretch = 1.0 if std is None else gaps.stretch(filled[:, c], std[:, c])
            if std is not None:
                new["std"] = gaps.spread(std[:, c] * stretch, names["std"])
                if quantiles:
                    key = names["quantile"]
                    ends = [gaps.values(filled[:, c] + steps[c] * std[:, c], key) for steps in quantiles.values()]
                    new["quantile"] = xr.concat(ends, dim=leading["quantile"])
            if members is not None:
                drawn = [gaps.values(members[:, member, c], names["members"]) for member in range(members.shape[1])]
                new["members"] = xr.concat(drawn, dim=leading["members"])
            if budget is not None:
                parts = [gaps.spread(part[:, c] * stretch**2, names["budget"]) for part in budget.values()]
                new["budget"] = xr.concat(parts, dim=leading["budget"])
            out[name] = gaps.values(filled[:, c], name)
            out[name].attrs, out[name].encoding = lists(original.attrs, names.values()), original.encoding
            for kind, label in names.items():
                out[label] = new[kind].assign_attrs(attributes(kind, name, original.attrs))
        if quantiles:
            named = {"long_name": "probability that the truth is not above", "units": "1"}
            out = _labelled(out, leading["quantile"], list(quantiles), named)
        if budget is not None:
            out = _labelled(out, leading["budget"], list(budget), {"long_name": "part of the variance"})
        if members is not None:
            realisation = {"standard_name": "realization", "units": "1"}
            out = _labelled(out, leading["members"], np.arange(members.shape[1]), realisation)
        if history is not None:
            stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            again = f"; replaces {', '.join(self.replaced)} of an earlier fill" if self.replaced else ""
            lines = [f"{stamp} {history}{again}", _text(self.ds.attrs.get("history"))]
            out.attrs["history"] = "\n".join(line for line in lines if line)
        return out


def _labelled(ds: xr.Dataset, dim: str, labels: npt.ArrayLike, attrs: dict[str, str]) -> xr.Dataset:
    return ds.assign_coords({dim: (dim, labels, attrs)})


def _text(value: Any) -> str:
    """An attribute as text: some files have a list of lines, or bytes."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if np.ndim(value):
        return "\n".join(map(_text, np.ravel(value).tolist()))
    return str(value)


class _Gaps:
    """The gaps of one variable: puts (S, T, H, W) arrays there, with dimensions and coordinates of the original."""

    def __init__(self, record: Record, c: int) -> None:
        self.name = name = record.variables[c]
        self.original = record.ds[name]
        self.canonical = self.original.transpose(*record.axes.names)
        self.observations = self.canonical.values.reshape(np.delete(record.shape, 1))
        self.inside = np.broadcast_to(record.domain[c], self.observations.shape)
        self.observed = np.isfinite(self.observations) & self.inside
        self.missing = self.inside & ~self.observed
        self.logarithmic = name in record.logarithmic

    def values(self, given: np.ndarray, part: str = "") -> xr.DataArray:
        """``given``, as `Record.read` has it, in the gaps and the observations beside them."""
        given = (np.exp(given) if self.logarithmic else given).astype(self.observations.dtype)
        check_filled(self.name, part or self.name, given, self.missing)
        return self._placed(self.observations, given, self.observations.dtype)

    def stretch(self, given: np.ndarray, std: np.ndarray) -> np.ndarray | float:
        """Standard deviation in the units of the data over ``std``, that in the units of ``given``."""
        if not self.logarithmic:
            return 1.0
        given, std = given.astype(np.float64), std.astype(np.float64)
        return np.exp(given + std**2 / 2) * np.sqrt(exprel(std**2))

    def spread(self, given: np.ndarray, part: str) -> xr.DataArray:
        """``given`` in the gaps, 0 where observed."""
        given = given.astype(floating(given[self.missing].max(initial=0)))
        check_filled(self.name, part, given, self.missing, least=0)
        return self._placed(0, given, given.dtype)

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
        NaN means missing, and so do values that the flag of an earlier fill marks as filled.
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
    ds, replaced = without_earlier_fill(ds, names)
    size = sum(ds[name].nbytes for name in names)
    if size <= IN_MEMORY_BYTES:
        ds = ds.assign({name: ds[name].load() for name in names})
    surveys = [_survey(ds[name], name, axes, name in log) for name in names]
    counts = np.stack([survey.counts for survey in surveys])
    ever = counts > 0
    inside = ever if domain is None else _given_domain(ds, axes, domain, len(names))
    for c, name in enumerate(names):
        if not (ever[c] & inside[c]).any():
            where = "" if domain is None else " inside the given domain"
            raise InputError(f"variable '{name}' has no observed value{where}; leave it out or check the file")
    mean = np.array([survey.mean for survey in surveys])
    std = np.array([survey.std for survey in surveys])
    return Record(ds, names, axes, inside, counts, mean, std, tuple(log), replaced)


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
        chosen = tuple(
            str(name)
            for name, variable in ds.data_vars.items()
            if set(variable.dims) == set(axes.names)
            and variable.dtype.kind == "f"
            and name != domain_name
            and name not in derived
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


def _derived(ds: xr.Dataset) -> set[str]:
    """Variables that are an uncertainty, flag, member or the like of another one."""
    by_name = {f"{name}_{kind}" for name in ds.variables for kind in KINDS}
    return by_name.union(*(earlier_fill(ds, name) for name in ds.data_vars if isinstance(name, str)))


@dataclass
class _Survey:
    counts: np.ndarray
    mean: float
    std: float


def _survey(variable: xr.DataArray, name: str, axes: Axes, logarithmic: bool) -> _Survey:
    """One pass over a variable, a slab of frames at a time, so that a record larger than memory can be surveyed."""
    canonical = variable.transpose(*axes.names)
    if axes.sample is None:
        canonical = canonical.expand_dims("sample")
    samples, frames, rows, columns = canonical.shape
    slab = max(1, int(64e6 // (rows * columns * 8)))
    counts = np.zeros((rows, columns), np.int64)
    moments = Moments()
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
            elif (large := np.abs(values) > LARGEST).any():
                raise InputError(
                    f"variable '{name}' has values up to {np.nanmax(np.abs(values)):g}, the first at "
                    f"{_first(large, start)}; set them to NaN if they mean missing, or divide it by a power of ten"
                )
            observed = np.isfinite(values)
            counts += observed.sum(axis=0)
            moments.add(values[observed])
    return _Survey(counts, moments.mean, moments.scale)


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
