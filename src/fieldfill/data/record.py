"""A gridded record with gaps: the border between xarray and plain arrays.

Arrays are ordered (S, C, T, H, W): S independent samples, C variables, T frames, H rows, W columns. NaN means
missing and stops here: everything above works with values and boolean masks, True = observed. A cell is one of

* outside the *domain* (land for a sea temperature): never filled, never scored,
* *observed*,
* *missing*: inside the domain and not observed – what there is to fill.

An axis that the data do not have is one of length 1 in the arrays. Rows and columns may be kept in another order than
in the data set and with cells around it (`Record.arranged`), because a model wants its own order and crops of its size.

A positive variable that spans decades, such as chlorophyll, may be read as its logarithm (`fieldfill.data.transforms`).
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes, Dims, Selection, find_axes, selected, wraps_around
from fieldfill.data.companions import LEADING, attributes, lists, without_earlier_fill
from fieldfill.data.gaps import FilledArrays, Gaps
from fieldfill.data.survey import as_dataset, choose_variables, given_domain, scope, survey
from fieldfill.data.transforms import transform_of
from fieldfill.errors import InputError

__all__ = ["Record", "open_record"]

# Bytes of the largest record that is kept in memory; larger ones are read crop by crop.
IN_MEMORY_BYTES = 2**30


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
    by_sample
        (S, C, H, W) bool, the domain of each sample if they differ; ``domain`` is their union.
    cells
        which frames, rows and columns of ``ds`` the arrays hold, -1 for one that it does not have; None for all of them
        in their order.
    closed
        what `periodic` is if rows or columns are arranged.
    keeps_all
        whether observations outside the domain stay in the result; a domain that was found in other data lacks cells.
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
    by_sample: np.ndarray | None = None
    cells: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    closed: tuple[bool, bool] = (False, False)
    keeps_all: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        samples, frames, rows, columns = self.axes.sizes(self.ds)
        if self.cells is not None:
            frames, rows, columns = (len(own) for own in self.cells)
        return samples, len(self.variables), frames, rows, columns

    @property
    def periodic(self) -> tuple[bool, bool]:
        """Whether rows and columns close on themselves: marked by the attribute ``periodic``, or a full circle."""
        if self.cells is not None:
            return self.closed
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
        chosen = (frames, slice(None) if rows is None else rows, slice(None) if columns is None else columns)
        taken = [own[part] for own, part in zip(self._cells, chosen)]
        held = [np.flatnonzero(part >= 0) for part in taken]
        names = (self.axes.time, self.axes.y, self.axes.x)
        block: dict[str, int | slice | np.ndarray] = {**self.axes.sample_of(self.ds, sample)}
        block |= {name: _run(part[kept]) for name, part, kept in zip(names, taken, held) if name is not None}
        parts = [self.ds[name].isel(block).transpose(..., *self.axes.grid).values for name in self.variables]
        values = np.stack([part.reshape([len(kept) for kept in held]) for part in parts]).astype(np.float64)
        if any(len(kept) < len(part) for kept, part in zip(held, taken)):
            around = np.full((len(values), *map(len, taken)), np.nan)
            around[np.ix_(np.arange(len(values)), *held)] = values
            values = around
        inside = self.domain if self.by_sample is None else self.by_sample[sample]
        inside = inside[:, chosen[1]][:, :, chosen[2]]
        observed = np.isfinite(values) & inside[:, None]
        for name, own, where in zip(self.variables, values, observed):
            transform_of(name, self.logarithmic).apply(own, where)
        return np.where(observed, values, np.nan), observed

    @property
    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.cells is not None:
            return self.cells
        _, frames, rows, columns = self.axes.sizes(self.ds)
        return np.arange(frames), np.arange(rows), np.arange(columns)

    def arranged(self, cells: tuple[np.ndarray, np.ndarray, np.ndarray], closed: tuple[bool, bool]) -> "Record":
        """The same data in other arrays: of the frames, rows and columns ``cells``, -1 for one without any data.

        Cells without data are outside the domain. ``closed`` are the axes of space that then close on themselves.
        """
        assert self.cells is None, "a record is arranged once"
        known = (cells[1] >= 0)[:, None] & (cells[2] >= 0)

        def moved(part: np.ndarray) -> np.ndarray:
            return part[..., cells[1][:, None], cells[2]] * known

        own = None if self.by_sample is None else moved(self.by_sample)
        return replace(
            self, domain=moved(self.domain), counts=moved(self.counts), by_sample=own, cells=cells, closed=closed
        )

    def _as_stored(self, array: np.ndarray, axes: Sequence[int] = (-3, -2, -1)) -> np.ndarray:
        """The cells (..., T, H, W), or other ``axes`` of these, of arrays as the data set has them."""
        for axis, own in zip(axes, self._cells[-len(axes) :]):
            places = np.flatnonzero(own >= 0)
            order = places[np.argsort(own[places])]
            if not np.array_equal(order, np.arange(array.shape[axis])):
                array = array.take(order, axis)
        return array

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The whole record: values and observed (S, C, T, H, W)."""
        samples, _, frames, _, _ = self.shape
        pairs = [self.read(sample, slice(0, frames)) for sample in range(samples)]
        return np.stack([values for values, _ in pairs]), np.stack([observed for _, observed in pairs])

    def masked(self, seen: np.ndarray) -> xr.Dataset:
        """The data set with NaN wherever ``seen`` (S, C, T, H, W) is False."""
        out = self.ds.copy()
        for c, name in enumerate(self.variables):
            canonical = self.axes.canonical(self.ds[name])
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
            what the names of new variables have after that of the variable, see `fieldfill.data.companions`.
        """
        unsupported = np.zeros(self.shape, bool) if unsupported is None else np.broadcast_to(unsupported, self.shape)
        arrays = FilledArrays(filled, std, unsupported, members, budget, quantiles)
        if self.cells is not None:
            arrays = arrays.mapped(self._as_stored)
        kinds = arrays.kinds
        self.check_names(kinds, suffix)
        dims = {kind: f"{dim}{suffix}" for kind, dim in LEADING.items()}
        out = self.ds.copy()
        for c, name in enumerate(self.variables):
            original, gaps = self.ds[name], self._gaps(c)
            names = {kind: f"{name}{suffix}_{kind}" for kind in kinds}
            new = gaps.companions(arrays, c, names, dims)
            out[name] = gaps.filled(arrays, c)
            out[name].attrs, out[name].encoding = lists(original.attrs, names.values()), original.encoding
            for kind, label in names.items():
                out[label] = new[kind].assign_attrs(attributes(kind, name, original.attrs))
        out = arrays.with_coordinates(out, dims)
        if history is not None:
            out.attrs["history"] = self._history(history)
        return out

    def _gaps(self, c: int) -> Gaps:
        """The gaps of a variable, with all cells of the data set in its own order."""
        own = self.domain[c] if self.by_sample is None else self.by_sample[:, c, None] & self.domain[c]
        inside = own if self.cells is None else self._as_stored(own, (-2, -1))
        name, shape = self.variables[c], self.axes.sizes(self.ds)
        transform = transform_of(name, self.logarithmic)
        return Gaps(name, self.ds[name], self.axes, shape, inside, self.keeps_all, transform)

    def _history(self, added: str) -> str:
        """The history of the data set with one more line, dated now, on top."""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        again = f"; replaces {', '.join(self.replaced)} of an earlier fill" if self.replaced else ""
        lines = [f"{stamp} {added}{again}", _text(self.ds.attrs.get("history"))]
        return "\n".join(line for line in lines if line)


def _text(value: Any) -> str:
    """An attribute as text: some files have a list of lines, or bytes."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if np.ndim(value):
        return "\n".join(map(_text, np.ravel(value).tolist()))
    return str(value)


def _run(cells: np.ndarray) -> slice | np.ndarray:
    """Numbers of cells as an index: a slice if they are consecutive, which files read faster."""
    if len(cells) and (np.diff(cells) == 1).all():
        return slice(int(cells[0]), int(cells[-1]) + 1)
    return cells


def open_record(
    data: xr.Dataset | xr.DataArray,
    variables: Sequence[str] | None = None,
    dims: Dims | None = None,
    domain: str | xr.DataArray | np.ndarray | None = None,
    log: Sequence[str] = (),
    sel: Selection | None = None,
    each: str | Sequence[str] = (),
) -> Record:
    """Finds axes, variables and domain of a data set and checks, in one pass, that there is something to learn from.

    Parameters
    ----------
    data
        NaN means missing, and so do values that the flag of an earlier fill marks as filled.
    variables
        Names of the variables to fill; by default every floating-point variable on (time, y, x).
    dims
        Names of the time, row and column dimensions, when they cannot be found by CF metadata or usual names; None
        for one that the data do not have.
    domain
        Where the field exists: the name of a variable in ``data`` (non-zero = inside), a DataArray, which may differ
        between samples, or an (H, W) or (C, H, W) array.
        Without it, cells that are never observed in the whole record are outside, or none of a single frame.
    log
        Names of the variables that are read as their logarithm; they must be positive.
    sel
        Values at which other dimensions are cut, such as ``{"depth": 0}``; the record has only these, in dimensions of
        length 1.
    each
        Name or names of other dimensions along which every index is an independent sample.
    """
    ds = selected(as_dataset(data), sel or {})
    axes = find_axes(scope(ds, variables), dims, each)
    names = choose_variables(ds, axes, variables, domain if isinstance(domain, str) else None)
    for name in log:
        if name not in names:
            raise InputError(f"log: '{name}' is none of the variables to fill; name one of {', '.join(names)}")
    ds, replaced = without_earlier_fill(ds, names)
    size = sum(ds[name].nbytes for name in names)
    if size <= IN_MEMORY_BYTES:
        ds = ds.assign({name: ds[name].load() for name in names})
    found = [survey(ds, name, axes, transform_of(name, log)) for name in names]
    counts = np.stack([part.counts for part in found])
    ever = counts > 0
    own: np.ndarray | None = None
    if domain is not None:
        inside = given_domain(ds, axes, domain, len(names))
        if inside.ndim == 4:
            inside, own = np.asarray(inside.any(0)), inside
    else:
        # Of a single frame, a gap does not show that the field does not exist there.
        inside = ever if np.prod(axes.sizes(ds)[:2]) > 1 else np.ones_like(ever)
    for c, name in enumerate(names):
        if not (ever[c] & inside[c]).any():
            where = "" if domain is None else " inside the given domain"
            raise InputError(f"variable '{name}' has no observed value{where}; leave it out or check the file")
    mean = np.array([part.mean for part in found])
    std = np.array([part.std for part in found])
    return Record(ds, names, axes, inside, counts, mean, std, tuple(log), replaced, own)
