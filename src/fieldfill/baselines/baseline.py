"""The protocol of every baseline: ``fit(ds) -> self`` and ``fill(ds) -> Dataset`` in the filler's format.

A baseline stores its arguments, learns in :meth:`Baseline._learn` (fitted names end in ``_``) and writes
one numpy function, :meth:`Baseline._estimate`: gappy arrays in, a value for every cell and, if it has an
honest one, a standard deviation out. Opening files, checking that the data to fill fit the data learnt
from, keeping the observed values and the metadata is done here, once.
"""

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import xarray as xr
from scipy.spatial import KDTree

from fieldfill.data.finite import power_of_two
from fieldfill.data.grid import Grid
from fieldfill.data.record import Record, open_record
from fieldfill.errors import InputError
from fieldfill.method import Method

__all__ = ["LEAST_VARIANCE", "Baseline", "Gappy", "cell_means", "neighbours"]

# Smallest variance of a standardised value: even a constant field is not known for certain.
LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Gappy:
    """What a baseline sees.

    Attributes
    ----------
    values
        (S, C, T, H, W) float64 in the units of the data (over a power of two if they are huge or tiny), NaN where
        missing.
    observed
        (S, C, T, H, W) bool.
    domain
        (C, H, W) bool.
    time
        (T,) increasing, in units of the median time step.
    periodic
        Whether rows and columns close on themselves.
    """

    values: np.ndarray
    observed: np.ndarray
    domain: np.ndarray
    time: np.ndarray
    periodic: tuple[bool, bool] = (False, False)

    def without(self, held: np.ndarray) -> "Gappy":
        """The same data with the cells ``held`` (S, C, T, H, W) hidden."""
        return replace(self, values=np.where(held, np.nan, self.values), observed=self.observed & ~held)

    def at(self, frames: np.ndarray) -> "Gappy":
        """The frames chosen by ``frames``, bool (T,)."""
        chosen = self.values[:, :, frames], self.observed[:, :, frames]
        return replace(self, values=chosen[0], observed=chosen[1], time=self.time[frames])


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(Method):
    """Base class of all baselines.

    Parameters
    ----------
    variables, dims, domain, log, sel, each
        See `fieldfill.method.Method`. Without ``domain`` a cell is inside if it is observed at least once in the data
        given to ``fit`` or ``fill``.
    """

    name: ClassVar[str]

    @property
    def fitted(self) -> bool:
        return hasattr(self, "variables_")

    def fit(self, ds: xr.Dataset | xr.DataArray) -> Self:
        """Learns from a gappy data set (NaN = missing)."""
        record = open_record(ds, self.variables, self.dims, self.domain, self.log, self.sel, self.each)
        self.exponents_ = _exponents(record)
        data = _gappy(record, self.exponents_)
        self.variables_ = record.variables
        self.domain_ = record.domain
        self.grid_ = Grid.of(record)
        self._learn(data)
        return self

    def fill(self, ds: xr.Dataset | xr.DataArray) -> xr.Dataset:
        """Fills the gaps of a data set on the grid known from ``fit``; observed values stay bit-identical."""
        if not self.fitted:
            raise InputError(f"{type(self).__name__} has learnt nothing yet; call fit(ds) before fill(ds)")
        record = open_record(ds, self.variables_, self.dims, None, self.log, self.sel, self.each)
        self.grid_.check(record.ds, record.axes)
        seen = record.counts > 0 if self.domain is None else False
        record = replace(record, domain=self.domain_ | seen)
        filled, std = self._estimate(_gappy(record, self.exponents_))
        filled, std = np.ldexp(filled, self.exponents_), None if std is None else np.ldexp(std, self.exponents_)
        return record.to_dataset(filled, std, history=f"filled with fieldfill.baselines.{self!r}")

    def summary(self) -> dict[str, Any]:
        """Variables and size of the domain; subclasses add what they learnt and its held-out error."""
        if not self.fitted:
            return {}
        return {"variables": list(self.variables_), "domain_cells": self.domain_.sum((1, 2)).tolist()}

    def _learn(self, data: Gappy) -> None:
        """Learns from arrays: here ``climatology_`` (C, H, W), the mean of every cell, the last resort."""
        self.climatology_ = cell_means(data)

    @abc.abstractmethod
    def _estimate(self, data: Gappy) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and standard deviation or None, (S, C, T, H, W); only the missing cells are used."""

    def _complete(self, filled: np.ndarray, data: Gappy) -> np.ndarray:
        """Gives domain cells that are still NaN the nearest known value of their frame, else the mean."""
        for s, c, t in np.argwhere(np.isnan(filled).any(axis=(3, 4))):
            filled[s, c, t] = neighbours(filled[s, c, t], data.domain[c], data.periodic)
        # A cell that fit never saw may be seen now, and then belongs to the domain.
        mean = [neighbours(x, inside, data.periodic) for x, inside in zip(self.climatology_, data.domain)]
        return np.where(np.isnan(filled), np.stack(mean)[:, None], filled)


def cell_means(data: Gappy) -> np.ndarray:
    """Mean of the observed values of every cell over samples and frames, (C, H, W).

    A cell of the domain that is never observed takes the mean of its nearest neighbour.
    """
    count = data.observed.sum(axis=(0, 2))
    total = np.where(data.observed, data.values, 0.0).sum(axis=(0, 2))
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.stack([neighbours(mean, inside, data.periodic) for mean, inside in zip(means, data.domain)])


def neighbours(
    values: np.ndarray,
    wanted: np.ndarray,
    periodic: tuple[bool, bool],
    k: int = 1,
    time: np.ndarray | None = None,
) -> np.ndarray:
    """Fills NaN by the mean of the k nearest known values, weighted by the inverse square of their distance.

    Parameters
    ----------
    values
        (H, W), or (T, H, W) together with ``time``.
    wanted
        bool of the same shape: where a value is needed. Nothing changes elsewhere, or if nothing is known.
    time
        (T,) places of the frames on the time axis, in cells.
    """
    known = np.isfinite(values)
    holes = wanted & ~known
    if not known.any() or not holes.any():
        return values
    box = [size if closed else 0 for size, closed in zip(values.shape[-2:], periodic)]
    sources, targets = (np.argwhere(mask).astype(float) for mask in (known, holes))
    if time is not None:
        sources[:, 0], targets[:, 0] = time[sources[:, 0].astype(int)], time[targets[:, 0].astype(int)]
        box = [0, *box]
    tree = KDTree(sources, boxsize=box if any(box) else None, balanced_tree=False, compact_nodes=False)
    distance, index = tree.query(targets, k=list(range(1, min(k, len(sources)) + 1)))
    weight = distance**-2.0
    filled = values.copy()
    filled[holes] = (weight * values[known][index]).sum(axis=1) / weight.sum(axis=1)
    return filled


def _gappy(record: Record, exponents: np.ndarray) -> Gappy:
    values, observed = record.arrays()
    return Gappy(np.ldexp(values, -exponents), observed, record.domain, _time(record), record.periodic)


def _exponents(record: Record, large: int = 200) -> np.ndarray:
    """Powers of two (C, 1, 1, 1) to take out of the variables: 0 up to ``large``, where squares do not overflow."""
    found = [power_of_two(pair) for pair in zip(record.mean, record.std)]
    return np.array([e if abs(e) > large else 0 for e in found])[:, None, None, None]


def _time(record: Record) -> np.ndarray:
    """The time coordinate in units of its median step; the frame number where there is no usable one."""
    name = record.axes.time
    if name is not None and name in record.ds.coords and record.shape[2] > 1:
        stamps = record.ds[name].values
        if isinstance(record.ds.indexes[name], xr.CFTimeIndex):
            stamps = (stamps - stamps[0]).astype("timedelta64[us]")
        if stamps.dtype.kind in "fiuMm":
            elapsed = (stamps - stamps[0]).astype(np.float64)
            if (np.diff(elapsed) > 0).all():
                return elapsed / np.median(np.diff(elapsed))
    return np.arange(record.shape[2], dtype=np.float64)
