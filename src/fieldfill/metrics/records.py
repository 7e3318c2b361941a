"""Scores of a filled record against the truth: xarray in, xarray out.

A filled record flags its cells as observed, filled with or without support, or outside the domain
(`fieldfill.data.flags`). Errors are taken over the missing cells; only ``mse_all`` also counts the observed ones, as
published tables do. Truth is matched by the names and the coordinates of the dimensions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from fieldfill.data.companions import companion, filled_variables
from fieldfill.data.flags import FILLED, FLAGS
from fieldfill.data.pieces import at_once
from fieldfill.errors import InputError
from fieldfill.metrics.cells import (
    ENSEMBLE_SCORES,
    LEVELS,
    SCORES,
    Array,
    between,
    covered_gaussian,
    distance_to_observation,
    energy_spectrum,
    score_means,
    score_sums,
)

__all__ = ["reliability", "score", "score_by_distance", "spectrum"]


def score(filled: xr.Dataset, truth: xr.Dataset, variables: Sequence[str] | None = None) -> xr.Dataset:
    """Scores of every variable on its missing cells.

    Parameters
    ----------
    filled : for each variable ``v`` also ``v_flag`` and, if there are any, ``v_std``, ``v_quantile``, ``v_members``;
        variables of a fill with a suffix are found by the attribute ``ancillary_variables`` of ``v``.
    truth : the same variables; dimensions in any order, coordinates may hold more than ``filled``.
    variables : names; all variables with a flag unless given.

    Returns
    -------
    Dataset along ``variable`` with mse, rmse, mae, bias (filled - truth), mse_all (all cells of the domain),
    crps, coverage50, coverage90, spread_skill and n, the number of missing cells scored. The crps is that of
    the members if there are two or more, else of a normal distribution with ``v_std``; coverage and
    spread_skill (root mean variance over root mean squared error) judge ``v_std`` if there is one, else the
    members; coverage judges ``v_quantile`` if that has both ends of the interval. NaN where nothing can be said.
    If some variable has members, crps_ensemble, spread_skill_ensemble (that of an honest ensemble is 1) and
    rank_flatness (1 for a flat rank histogram) judge them alone.

    Examples
    --------
    >>> import fieldfill as ff
    >>> from fieldfill.bench import demo
    >>> data = demo.make_data(frames=24, size=(16, 16))
    >>> filled = ff.baselines.LinearTime().fit(data.gappy).fill(data.gappy)
    >>> found = ff.score(filled, data.truth)
    >>> bool(found.rmse.sel(variable="sst") > 0)
    True
    """
    names = _variables(filled, variables)
    pairs = (_ComparedVariable.of(filled, truth, name) for name in names)
    columns = [score_means(pair.sums()) for pair in pairs]
    out = xr.Dataset({key: ("variable", np.concatenate(found)) for key, found in _kept(columns, SCORES).items()})
    return out.assign_coords(variable=names).assign_attrs(title="scores on missing cells")


def score_by_distance(
    filled: xr.Dataset,
    truth: xr.Dataset,
    variables: Sequence[str] | None = None,
    *,
    edges: Sequence[float] = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, np.inf),
    frame_cells: float = 2.0,
    in_frame: bool = False,
    periodic: tuple[bool, bool] = (False, False),
) -> xr.Dataset:
    """Scores (variable, distance) of the missing cells with low < distance to an observation <= high.

    The distance is that of :func:`distance_to_observation`; the last three dimensions of a variable are taken
    for time, rows and columns.
    """
    names = _variables(filled, variables)
    columns = []
    for name in names:
        pair = _ComparedVariable.of(filled, truth, name)
        distance = distance_to_observation(pair.flag.values == FLAGS["observed"], frame_cells, in_frame, periodic)
        columns.append(score_means(pair.sums(np.digitize(distance, edges, right=True) - 1, len(edges) - 1)))
    kept = _kept(columns, [key for key in SCORES if key != "mse_all"])
    out = xr.Dataset({key: (("variable", "distance"), np.stack(found)) for key, found in kept.items()})
    out = out.assign_coords(variable=names, distance=list(edges[:-1]), distance_high=("distance", list(edges[1:])))
    out.distance.attrs = {"long_name": "more cells than this to the nearest observation", "units": "1"}
    out.distance_high.attrs = {"long_name": "at most so many cells to the nearest observation", "units": "1"}
    return out.assign_attrs(title="scores on missing cells", frame_cells=frame_cells, in_frame=int(in_frame))


def reliability(
    filled: xr.Dataset, truth: xr.Dataset, levels: Sequence[float], variables: Sequence[str] | None = None
) -> xr.DataArray:
    """Share (variable, level) of the missing cells whose truth lies in the central intervals.

    They are those of ``v_quantile`` if that has both ends, else of a normal distribution with ``v_std``.
    """
    names = _variables(filled, variables)
    shares = np.full((len(names), len(levels)), np.nan)
    for row, name in zip(shares, names):
        pair = _ComparedVariable.of(filled, truth, name)
        if pair.std is None:
            continue
        bounds = [pair.bounds(level) for level in levels]
        inside, count = np.zeros(len(levels)), 0
        for block in pair.blocks():
            true = pair.truth[block].values
            cells = np.isin(pair.flag[block].values, FILLED) & np.isfinite(true)
            value, std = pair.value[block].values[cells], pair.std[block].values[cells]
            for i, (level, ends) in enumerate(zip(levels, bounds)):
                if ends is None:
                    inside[i] += covered_gaussian(value, std, true[cells], level).sum()
                else:
                    inside[i] += between(ends[:, block].values[:, cells], true[cells]).sum()
            count += int(cells.sum())
        row[:] = inside / count if count else np.nan
    return xr.DataArray(shares, {"variable": names, "level": list(levels)}, ("variable", "level"), name="covered")


def spectrum(field: xr.DataArray, dims: tuple[str, str] | None = None, taper: bool = False) -> xr.DataArray:
    """Energy by wavenumber along two dimensions (the last two unless named), averaged over nothing else."""
    rows, columns = dims or tuple(map(str, field.dims[-2:]))
    ordered = field.transpose(..., rows, columns)
    if not np.isfinite(ordered.values).all():
        raise InputError(f"'{field.name}' has missing cells, and a spectrum needs a complete box; select one")
    wavenumber, energy = energy_spectrum(ordered.values, taper)
    kept = {name: field.coords[name] for name in ordered.dims[:-2] if name in field.coords}
    out = xr.DataArray(energy, {**kept, "wavenumber": wavenumber}, (*ordered.dims[:-2], "wavenumber"), name=field.name)
    out.wavenumber.attrs = {"long_name": f"cycles per longer side of ({rows}, {columns})", "units": "1"}
    return out.assign_attrs(long_name="mean square by wavenumber")


def _kept(columns: Sequence[dict[str, Array]], keys: Sequence[str]) -> dict[str, list[Array]]:
    """The wanted scores of every variable, and those of members if some variable has them; else NaN."""
    extra = [key for key in ENSEMBLE_SCORES if any(key in column for column in columns)]
    return {key: [c.get(key, np.full(c["n"].shape, np.nan)) for c in columns] for key in (*keys, *extra)}


@dataclass(frozen=True)
class _ComparedVariable:
    """One variable of a filled record with all that belongs to it, and its truth in the same order."""

    value: xr.DataArray
    flag: xr.DataArray
    truth: xr.DataArray
    std: xr.DataArray | None
    members: xr.DataArray | None
    quantiles: xr.DataArray | None

    @classmethod
    def of(cls, filled: xr.Dataset, truth: xr.Dataset, name: str) -> "_ComparedVariable":
        value = filled[name]
        std, members, quantiles = (companion(filled, name, kind) for kind in ("std", "members", "quantile"))
        flag = companion(filled, name, "flag")
        assert flag is not None
        if members is not None and members.sizes["member"] < 2:
            members = None
        return cls(
            value,
            flag.transpose(*value.dims),
            matched(truth, value),
            None if std is None else std.transpose(*value.dims),
            None if members is None else members.transpose("member", *value.dims),
            None if quantiles is None else quantiles.transpose("quantile", *value.dims),
        )

    def bounds(self, level: float) -> xr.DataArray | None:
        """The ends (quantile, ...) of a central interval, if there are quantiles for them."""
        if self.quantiles is None:
            return None
        known = self.quantiles["quantile"].values
        places = [np.flatnonzero(np.isclose(known, (1 + sign * level) / 2)) for sign in (-1, 1)]
        return self.quantiles.isel(quantile=[found[0] for found in places]) if all(map(len, places)) else None

    def blocks(self) -> Iterator[slice]:
        """Slices of the first dimension that fit in memory together with their members."""
        deep = 1 if self.members is None else self.members.sizes["member"]
        step = at_once(deep * self.value.size // max(1, len(self.value)))
        return (slice(start, start + step) for start in range(0, max(1, len(self.value)), step))

    def sums(self, bins: Array | None = None, count: int = 1) -> dict[str, Array]:
        """Sums (count,) of every score over the cells of each bin; ``bins`` holds a number for every cell."""
        total: dict[str, Array] = {}
        bounds = {key: ends for key, level in LEVELS.items() if (ends := self.bounds(level)) is not None}
        for block in self.blocks():
            flag = self.flag[block].values
            added = score_sums(
                self.value[block].values,
                self.truth[block].values,
                np.isin(flag, FILLED),
                flag != FLAGS["outside_domain"],
                None if self.std is None else self.std[block].values,
                None if self.members is None else self.members[:, block].values,
                {key: ends[:, block].values for key, ends in bounds.items()},
                np.zeros(flag.shape, int) if bins is None else bins[block],
                count,
            )
            total = {key: total.get(key, 0) + more for key, more in added.items()}
        return total


def _variables(filled: xr.Dataset, variables: Sequence[str] | None) -> list[str]:
    """Names of the variables to score, each with its flag."""
    flagged = filled_variables(filled)
    names = flagged if variables is None else list(variables)
    unknown = [name for name in names if name not in flagged]
    if unknown or not names:
        raise InputError(
            f"no filled variable {', '.join(unknown) or 'at all'} with its flag (v, v_flag) here; "
            f"the record holds {', '.join(map(str, filled.data_vars)) or 'nothing'}"
        )
    return names


def matched(truth: xr.Dataset, value: xr.DataArray) -> xr.DataArray:
    """The true variable at the coordinates, and in the order of dimensions, of the filled one."""
    name = value.name
    if name not in truth:
        raise InputError(f"the truth has no variable '{name}'; it holds {', '.join(map(str, truth.data_vars))}")
    out = truth[name]
    for dim in dict.fromkeys((*value.dims, *out.dims)):
        sizes = (
            f"dimension '{dim}' of '{name}': size {value.sizes.get(dim, 'none')} in the filled record, "
            f"{out.sizes.get(dim, 'none')} in the truth"
        )
        if dim not in out.dims or dim not in value.dims:
            raise InputError(f"{sizes}; give both the same dimensions")
        if dim in value.coords and dim in out.coords:
            place = _positions(value[dim].values, out[dim].values)
            if (place < 0).any():
                lost = value[dim].values[place < 0]
                raise InputError(
                    f"{sizes}; {len(lost)} coordinates ({lost[0]}, ...) are not in the truth; "
                    "give a truth that has them"
                )
            out = out.isel({dim: place})
        elif value.sizes[dim] != out.sizes[dim]:
            raise InputError(f"{sizes}; give both the same size, or coordinates on both sides")
    return out.transpose(*value.dims)


def _positions(wanted: Array, available: Array) -> Array:
    """Where each wanted coordinate stands among the available ones, -1 if nowhere.

    Numbers may differ by a thousandth of a step: files store them in single and in double precision.
    """
    if np.array_equal(wanted, available):
        return np.arange(len(wanted))
    numbers = wanted.dtype.kind in "iuf" and available.dtype.kind in "iuf"
    if len(available) == 0 or (wanted.dtype.kind != available.dtype.kind and not numbers):
        return np.full(len(wanted), -1)
    if not numbers:
        first = ~pd.Index(available).duplicated()
        place = pd.Index(available[first]).get_indexer(pd.Index(wanted))
        return np.where(place < 0, -1, np.flatnonzero(first)[place])
    order = np.argsort(available, kind="stable")
    ordered, wanted = available[order].astype(float), wanted.astype(float)
    step = np.diff(ordered).min() if len(ordered) > 1 else abs(ordered[0])
    tolerance = 1e-3 * step
    place = np.searchsorted(ordered, wanted - tolerance).clip(max=len(ordered) - 1)
    return np.where(np.abs(ordered[place] - wanted) <= tolerance, order[place], -1)
