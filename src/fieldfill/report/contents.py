"""The content of a report, read from xarray into what is drawn: north up, thinned to a size that a browser likes.

Arrays are (T, H, W): T shown frames, H rows from south to north, W columns from west to east. Of a
record with several samples, the first is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes, Dims, find_axes
from fieldfill.data.companions import companion, companions, filled_variables
from fieldfill.data.flags import FLAGS
from fieldfill.data.record import Record, open_record
from fieldfill.errors import InputError
from fieldfill.metrics.records import matched
from fieldfill.report.phrasing import axis_label, plain, pretty_units, time_labels

__all__ = ["Field", "MapGrid", "Story", "read_fields", "read_record", "thinning", "typical_frame", "with_axes"]

# Bytes of a cell of a frame in the page: three 16-bit numbers and a flag, in base 64.
CELL_BYTES = 10
# Bytes of the maps of all variables together.
PAGE_BYTES = 5e6


@dataclass(frozen=True)
class Story:
    """The content of a report. All but ``filled`` is optional: what is absent is left out.

    Attributes
    ----------
    filled
        As a fill returns it: for each variable v also v_flag and, if there is one, v_std.
    truth
        The same variables, complete.
    exposure
        v_exposure and v_unsupported on (y, x), with the attributes ``partition`` and ``verdict``.
    words
        The audit's verdict in words.
    history
        One entry a validation: step, seconds, loss, validation.
    scores
        For each method the scores on the missing cells, such as mse and rmse; ours is called ``fieldfill``,
        the bounds ``climatology`` and ``optimum``.
    reliability
        The calibration's own account, as a model keeps it in ``notes["calibration"]``: levels, and the shares of
        held-out cells inside the calibrated and the uncalibrated intervals.
    budget
        For each variable the shares of the stated variance: contexts, information, rest.
    made
        How it was made: command, versions, seed, wall time.
    dims
        Names of the time, row and column dimensions, when they cannot be found by CF metadata or usual names.
    """

    filled: xr.Dataset
    truth: xr.Dataset | None = None
    exposure: xr.Dataset | None = None
    words: str = ""
    history: Sequence[Mapping[str, float]] = ()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reliability: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    title: str = "Filling the gaps"
    dims: Dims | None = None


@dataclass(frozen=True)
class MapGrid:
    """Where the cells are: ascending coordinates (W,) and (H,), their labels, and the shape of a map.

    ``ratio`` is the length on paper of one unit of y over one unit of x.
    """

    x: np.ndarray
    y: np.ndarray
    x_label: str
    y_label: str
    ratio: float

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Outer edges of the grid: west, east, south, north."""
        return (*_edges(self.x), *_edges(self.y))

    @property
    def aspect(self) -> float:
        """Height of the map over its width."""
        west, east, south, north = self.extent
        return self.ratio * (north - south) / (east - west)


@dataclass(frozen=True)
class Field:
    """One variable of the first sample, ready to be drawn.

    Attributes
    ----------
    value, flag, std, truth
        (T, H, W) at the frames shown.
    frames
        Their numbers in the record.
    coverage
        Share of the domain observed, for every frame of the record.
    seen
        (H, W) share of all frames in which a cell is observed, NaN outside the domain.
    stride
        Row and column stride.
    """

    name: str
    label: str
    units: str
    grid: MapGrid
    times: list[str]
    frames: np.ndarray
    value: np.ndarray
    flag: np.ndarray
    std: np.ndarray | None
    truth: np.ndarray | None
    coverage: np.ndarray
    seen: np.ndarray
    exposure: np.ndarray | None
    unsupported: np.ndarray | None
    stride: int

    @property
    def domain(self) -> np.ndarray:
        """(H, W)"""
        return np.isfinite(self.seen)

    @property
    def observed(self) -> np.ndarray:
        return self.flag == FLAGS["observed"]

    @property
    def limits(self) -> tuple[float, float]:
        """Colour limits of observed, filled and true values: nearly their whole range, or symmetric."""
        values = self.value if self.truth is None else np.concatenate([self.value.ravel(), self.truth.ravel()])
        low, high = np.nanquantile(values, [0.005, 0.995])
        if self.diverging:
            high = max(-low, high)
            low = -high
        return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)

    @property
    def diverging(self) -> bool:
        """Whether the values lie around zero as anomalies do."""
        low, high = np.nanquantile(self.value, [0.005, 0.995])
        return bool(low < 0 < high and max(-low, high) < 2 * min(-low, high))


def with_axes(story: Story) -> Story:
    """The story with three axes in its data: one that they do not have becomes a dimension of length 1."""
    names = filled_variables(story.filled)
    axes = find_axes(story.filled[names] if names else story.filled, story.dims)
    time, row = ("frame" if axes.time is None else None), ("row" if axes.y is None else None)

    def wider(ds: xr.Dataset | None, *new: str | None) -> xr.Dataset | None:
        return ds if ds is None else ds.expand_dims([name for name in new if name is not None])

    filled = wider(story.filled, time, row)
    assert filled is not None
    return replace(
        story,
        filled=filled,
        truth=wider(story.truth, time, row),
        exposure=wider(story.exposure, row),
        dims=(axes.time or time, axes.y or row, axes.x),
    )


def read_record(story: Story) -> Record:
    """Axes and variables of the filled data set, all other dimensions of which number samples."""
    names = filled_variables(story.filled)
    if not names:
        held = ", ".join(map(str, story.filled.data_vars)) or "nothing"
        raise InputError(f"no filled variable with its flag (v, v_flag) to report on; the data set holds {held}")
    # Without the flags, what was filled is read as well.
    flags = [companions(story.filled, name)["flag"] for name in names]
    axes = find_axes(story.filled[names], story.dims)
    return open_record(
        story.filled.drop_vars(flags), names, story.dims, each=tuple(axes.others(story.filled[names[0]]))
    )


def read_fields(story: Story, record: Record) -> list[Field]:
    """What is drawn of every variable, within the page's budget of bytes."""
    stride, frames = thinning(record.shape)
    others = [dim for dim in story.filled[record.variables[0]].dims if dim not in record.axes.grid]
    filled = _north_up(story.filled.isel(dict.fromkeys(others, 0), drop=True), record.axes)
    truth = None
    if story.truth is not None:
        found = {name: matched(story.truth, story.filled[name]) for name in record.variables}
        truth = xr.Dataset(found).isel(dict.fromkeys(others, 0), drop=True)
    exposure = None if story.exposure is None else _north_up(story.exposure, record.axes)
    return [_field(name, filled, truth, exposure, record.axes, stride, frames) for name in record.variables]


def typical_frame(shown: Field) -> int:
    """Number, among the frames shown, of one with the usual coverage and the most to see in it."""
    coverage = shown.coverage[shown.frames]
    usual = np.abs(coverage - np.median(coverage)) <= 0.05
    if not usual.any():
        return int(np.argmin(np.abs(coverage - np.median(coverage))))
    contrast = np.nanstd(shown.value[:, shown.domain], axis=1)
    return int(np.argmax(np.where(usual, contrast, -1)))


def thinning(shape: tuple[int, int, int, int, int], fewest: int = 24, most: int = 120) -> tuple[int, np.ndarray]:
    """Row and column stride, and the frames, with which a record (S, C, T, H, W) fits into the page.

    The time slider has at most ``most`` frames. The grid is thinned rather than going below ``fewest``.
    """
    _, variables, total, rows, columns = shape
    budget = PAGE_BYTES / (CELL_BYTES * variables)
    wanted = min(total, fewest)
    stride = max(1, int(np.ceil(np.sqrt(rows * columns * wanted / budget))))
    cells = len(range(0, rows, stride)) * len(range(0, columns, stride))
    count = min(total, most, max(2, int(budget // cells)))
    return stride, np.unique(np.linspace(0, total - 1, count).round().astype(int))


def _north_up(ds: xr.Dataset, axes: Axes) -> xr.Dataset:
    """Rows and columns in ascending order of their coordinates, where they have numeric ones."""
    return ds.sortby([name for name in axes.grid[1:] if _numeric(ds, name)])


def _numeric(ds: xr.Dataset, name: str) -> bool:
    return name in ds.coords and ds[name].dtype.kind in "iuf" and bool(np.isfinite(ds[name].values).all())


def _field(
    name: str,
    filled: xr.Dataset,
    truth: xr.Dataset | None,
    exposure: xr.Dataset | None,
    axes: Axes,
    stride: int,
    frames: np.ndarray,
) -> Field:
    time, *space = axes.grid
    thin = dict.fromkeys(space, slice(None, None, stride))

    def shown(variable: xr.DataArray) -> np.ndarray:
        return variable.isel({time: frames, **thin}).transpose(time, *space).values

    def mapped(suffix: str) -> np.ndarray | None:
        if exposure is None or f"{name}_{suffix}" not in exposure:
            return None
        return exposure[f"{name}_{suffix}"].isel(thin).transpose(*space).values

    variable, std = filled[name], companion(filled, name, "std")
    flag = filled[companions(filled, name)["flag"]].transpose(time, *space).values
    coverage, seen = _coverage(flag)
    return Field(
        name=name,
        label=plain(variable.attrs.get("long_name", name)),
        units=pretty_units(variable.attrs.get("units", "")),
        grid=_grid(filled, axes, stride),
        times=time_labels(filled, time),
        frames=frames,
        value=shown(variable),
        flag=flag[frames, ::stride, ::stride],
        std=None if std is None else shown(std),
        truth=None if truth is None else shown(matched(truth, variable)),
        coverage=coverage,
        seen=seen[::stride, ::stride],
        exposure=mapped("exposure"),
        unsupported=mapped("unsupported"),
        stride=stride,
    )


def _coverage(flag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share observed of each frame (T,) and cell (H, W; NaN outside the domain) from flags (T, H, W)."""
    observed, inside = flag == FLAGS["observed"], flag != FLAGS["outside_domain"]
    by_frame = observed.sum(axis=(1, 2)) / np.maximum(inside.sum(axis=(1, 2)), 1)
    return by_frame, np.where(inside.any(axis=0), observed.mean(axis=0), np.nan)


def _grid(ds: xr.Dataset, axes: Axes, stride: int) -> MapGrid:
    coords = {}
    _, *space = axes.grid
    for name in space:
        known = _numeric(ds, name) and bool((np.diff(ds[name].values) > 0).all())
        centres = ds[name].values.astype(float) if known else np.arange(ds.sizes[name], dtype=float)
        coords[name] = centres[::stride]
    y, x = (coords[name] for name in space)
    units = [_units(ds, name) for name in space]
    if all(unit.startswith("degree") for unit in units) and np.abs(y).max() <= 90:
        # A degree of longitude shrinks towards the poles; beyond 75 no rectangle is a fair map.
        ratio = 1 / np.cos(np.deg2rad(min(75.0, abs(float(y.mean())))))
    elif units[0] == units[1]:
        ratio = 1.0
    else:
        ratio = float(np.ptp(_edges(x)) / len(x) / (np.ptp(_edges(y)) / len(y)))
    return MapGrid(x, y, axis_label(ds, space[1]), axis_label(ds, space[0]), ratio)


def _units(ds: xr.Dataset, name: str) -> str:
    attrs: Mapping[Any, Any] = ds[name].attrs if name in ds.coords else {}
    usual = "degrees" if name.lower().startswith(("lat", "lon")) else ""
    return str(attrs.get("units", usual)).lower()


def _edges(centres: np.ndarray) -> tuple[float, float]:
    if len(centres) == 1:
        return float(centres[0] - 0.5), float(centres[0] + 0.5)
    first, last = (centres[1] - centres[0]) / 2, (centres[-1] - centres[-2]) / 2
    return float(centres[0] - first), float(centres[-1] + last)
