"""The grid that something was learnt on, and where the cells of other data lie on it.

Data are matched by the values of their coordinates, in either direction and, for longitudes, on either side of 360
degrees. They may be a part of the fitted grid, reach beyond it, or lie beside it, as long as the spacing is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from fieldfill.data.axes import Axes, is_longitude
from fieldfill.data.record import Record
from fieldfill.errors import InputError

__all__ = ["Grid", "Placement"]

# Name of an axis that the data do not have.
NO_AXIS = "-"
# Steps by which coordinates of the same grid may differ. Files hold them in single precision.
TOLERANCE = 0.02
# Relative difference of the steps of a grid that counts as evenly spaced.
EVEN = 0.01


@dataclass(frozen=True)
class Grid:
    """Rows and columns of a record.

    Attributes
    ----------
    coordinates
        finite values of the row and column coordinates by dimension name; a dimension without them counts its
        cells.
    periodic
        whether rows and columns close on themselves.
    """

    coordinates: Mapping[str, list[float]]
    periodic: tuple[bool, bool]

    @classmethod
    def of(cls, record: Record) -> "Grid":
        return cls(_coordinates(record.ds, record.axes), record.periodic)

    def check(self, ds: xr.Dataset, axes: Axes) -> None:
        """Refuses data on another grid."""
        found = _coordinates(ds, axes)
        for name, expected in self.coordinates.items():
            values = _known(found, name)
            if len(values) != len(expected):
                raise InputError(
                    f"the model was fitted on {len(expected)} '{name}', the data have {len(values)}; "
                    "regrid the data, or fit again"
                )
            step = abs(expected[-1] - expected[0]) / max(1, len(expected) - 1)
            if not np.allclose(values, expected, rtol=0, atol=1e-3 * step):
                raise InputError(
                    f"the '{name}' coordinates are not those that were fitted on; regrid the data, or fit again"
                )

    def place(self, record: Record, crop: tuple[int, int, int]) -> "Placement":
        """Where a record lies on this grid, with cells around it if it is smaller than a crop."""
        found = _coordinates(record.ds, record.axes)
        frames = np.arange(max(record.shape[2], crop[0]))
        frames[record.shape[2] :] = -1
        along = []
        for axis, (name, fitted) in enumerate(self.coordinates.items()):
            values = np.array(_known(found, name))
            if name not in record.ds.coords and len(values) != len(fitted):
                raise InputError(
                    f"fitted on {len(fitted)} '{name}', the data have {len(values)} and no coordinate '{name}' that "
                    "shows where they lie; add it, or fit again"
                )
            turn = 360.0 if is_longitude(record.ds, name) else None
            lying = _Along(name, np.array(fitted), self.periodic[axis], crop[1 + axis], turn)
            along.append(lying.of(values, record.periodic[axis]))
        rows, columns = along
        return Placement(frames, rows, columns)


@dataclass(frozen=True)
class Lie:
    """Where the cells of one axis of the data lie.

    Attributes
    ----------
    cells
        (n,) numbers of the data's cells in the order of the fitted axis, -1 for one that the data do not have.
    place
        (n,) their numbers on the fitted axis, which may lie beyond it.
    size
        cells of the fitted axis.
    closed
        whether the n cells close on themselves.
    """

    cells: np.ndarray
    place: np.ndarray
    size: int
    closed: bool

    @property
    def nearest(self) -> np.ndarray:
        """(n,) the cells of the fitted axis that are nearest."""
        return self.place.clip(0, self.size - 1)

    @property
    def beyond(self) -> np.ndarray:
        """(n,) bool, which of them lie beyond the fitted axis."""
        return (self.place < 0) | (self.place >= self.size)

    @property
    def same(self) -> bool:
        """Whether they are the fitted axis."""
        return all(np.array_equal(part, np.arange(self.size)) for part in (self.cells, self.place))


@dataclass(frozen=True)
class Placement:
    """Where the cells of a record lie on a fitted grid.

    Attributes
    ----------
    frames
        (T,) numbers of the data's frames, -1 for one that the data do not have.
    rows, columns
        the same for the other axes, with their place on the fitted grid.
    """

    frames: np.ndarray
    rows: Lie
    columns: Lie

    @property
    def same(self) -> bool:
        """Whether the record is on the fitted grid and long enough."""
        return self.rows.same and self.columns.same and bool((self.frames >= 0).all())

    def arrange(self, record: Record) -> Record:
        """The record in the order of the fitted grid."""
        if self.same:
            return record
        return record.arranged((self.frames, self.rows.cells, self.columns.cells), self.periodic)

    @property
    def periodic(self) -> tuple[bool, bool]:
        return self.rows.closed, self.columns.closed

    @property
    def held(self) -> np.ndarray:
        """(H, W) bool: cells that the data have."""
        return (self.rows.cells >= 0)[:, None] & (self.columns.cells >= 0)

    @property
    def beyond(self) -> np.ndarray:
        """(H, W) bool: cells outside the fitted grid."""
        return self.rows.beyond[:, None] | self.columns.beyond

    def cut(self, maps: np.ndarray) -> np.ndarray:
        """Maps (..., H, W) of the fitted grid at these cells; beyond it, at the nearest cells of it."""
        return maps[..., self.rows.nearest[:, None], self.columns.nearest]

    @property
    def grid(self) -> Grid:
        """The cells of the record, as a grid of their own."""
        lengths = (list(map(float, lie.place)) for lie in (self.rows, self.columns))
        return Grid(dict(zip(("rows", "columns"), lengths)), self.periodic)


@dataclass(frozen=True)
class _Along:
    """One axis of a fitted grid: name, coordinates, whether it closes on itself, cells of a crop, and of a circle."""

    name: str
    fitted: np.ndarray
    closed: bool
    crop: int
    turn: float | None

    def of(self, values: np.ndarray, closed: bool) -> Lie:
        """Where cells with these coordinates lie; ``closed`` if they close on themselves."""
        size, count = len(self.fitted), len(values)
        cells = np.arange(count)
        if self.turn is not None and count > 1:
            values = np.unwrap(values, period=self.turn)
        if count > 1 and size > 1 and (values[-1] - values[0]) * (self.fitted[-1] - self.fitted[0]) < 0:
            values, cells = values[::-1], cells[::-1]
        if self.turn is not None:
            values = values + self.turn * round(float(self.fitted.mean() - values.mean()) / self.turn)
        place = self._offset(values) + np.arange(count)
        if self.closed:
            return self._around(cells, place)
        if closed:  # the data close on themselves, the fitted grid is a part of them: what is beyond lies on both sides
            least = (size - count) // 2
            return Lie(cells, (place - least) % count + least, size, True)
        return self._padded(cells, place, min(place[0], size - self.crop))

    def _around(self, cells: np.ndarray, place: np.ndarray) -> Lie:
        """Cells of a fitted axis that closes on itself."""
        size = len(self.fitted)
        if len(cells) > size:
            raise InputError(
                f"fitted on '{self.name}', which closes on itself after {size} cells; the data have {len(cells)}; "
                "choose a part of them, or fit again"
            )
        if len(cells) == size or self.crop == size:
            whole = np.full(size, -1)
            whole[place % size] = cells
            return Lie(whole, np.arange(size), size, True)
        lie = self._padded(cells, place, place[0])
        return Lie(lie.cells, lie.place % size, size, False)

    def _padded(self, cells: np.ndarray, place: np.ndarray, wanted: int) -> Lie:
        """Consecutive cells, and others beside them up to a crop, which begins at ``wanted`` if it can."""
        lacking = max(0, self.crop - len(cells))
        start = int(np.clip(wanted, place[0] - lacking, place[0]))
        before = int(place[0]) - start
        padded = np.pad(cells, (before, lacking - before), constant_values=-1)
        return Lie(padded, start + np.arange(len(padded)), len(self.fitted), False)

    def _offset(self, values: np.ndarray) -> int:
        """Cell of the fitted axis at which ascending cells with these coordinates begin."""
        fitted = self.fitted
        if len(fitted) == 1:
            if len(values) > 1:
                raise InputError(f"fitted on one '{self.name}', the data have {len(values)}; choose one, or fit again")
            return int(not np.isclose(values[0], fitted[0], rtol=1e-5))
        steps = np.diff(fitted)
        step = float(steps.mean())
        if np.abs(steps - step).max() > EVEN * abs(step):
            return self._by_value(values)
        offsets = (values - fitted[0]) / step - np.arange(len(values))
        if np.ptp(offsets) > TOLERANCE:
            raise InputError(
                f"the '{self.name}' coordinates are {abs(np.diff(values).mean()):g} apart, those that were fitted on "
                f"{abs(step):g}; regrid the data, or fit again"
            )
        offset = round(float(offsets.mean()))
        if abs(offsets.mean() - offset) > TOLERANCE:
            raise InputError(
                f"the '{self.name}' coordinates lie between those that were fitted on, such as {values[0]:g}; "
                "regrid the data, or fit again"
            )
        return offset

    def _by_value(self, values: np.ndarray) -> int:
        """The same where the steps of the fitted axis differ: equal coordinates must follow one another."""
        steps = np.abs(np.diff(self.fitted))
        tolerance = TOLERANCE * np.minimum(np.append(steps, np.inf), np.append(np.inf, steps))
        far = np.abs(values[:, None] - self.fitted)
        found = np.argwhere(far <= tolerance)
        low, high = np.sort(self.fitted[[0, -1]])
        within = (values >= low - tolerance.min()) & (values <= high + tolerance.min())
        offsets = np.unique(found[:, 1] - found[:, 0])
        own = np.abs(np.diff(values))
        like = len(own) == 0 or (steps.min() * (1 - EVEN) <= own.min() and own.max() <= steps.max() * (1 + EVEN))
        if len(offsets) != 1 or len(found) != within.sum() or not like:
            raise InputError(
                f"the '{self.name}' coordinates are not those that were fitted on, from {self.fitted[0]:g} to "
                f"{self.fitted[-1]:g} in uneven steps; regrid the data, or fit again"
            )
        return int(offsets[0])


def _known(found: Mapping[str, list[float]], name: str) -> list[float]:
    if name not in found:
        names = ", ".join(found)
        raise InputError(
            f"the model was fitted on the dimension '{name}', the data have {names}; "
            "rename it in the data, or fit again"
        )
    return found[name]


def _coordinates(ds: xr.Dataset, axes: Axes) -> dict[str, list[float]]:
    found = {}
    for name in (axes.y, axes.x):
        if name is None:
            found[NO_AXIS] = [0.0]
            continue
        numeric = name in ds.coords and ds[name].dtype.kind in "iuf" and np.isfinite(ds[name].values).all()
        values = ds[name].values if numeric else np.arange(ds.sizes[name])
        found[name] = values.astype(float).tolist()
    return found
