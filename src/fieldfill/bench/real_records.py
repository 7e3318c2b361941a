"""Real records of the bench `real`: where they are, and which of their observed cells are hidden to score a fill.

A record is learnt from and filled with cells hidden in the shape of the gaps that such data have. How cells are hidden
is a small class; to add a record, add a line to `REAL_RECORDS`. Methods see the gappy record and the domain, the cells
observed at least once before any were hidden; the truth is NaN except at hidden cells.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import xarray as xr
from numpy.random import Generator
from scipy.ndimage import uniform_filter

from fieldfill.data.axes import find_axes
from fieldfill.data.io import open_dataset
from fieldfill.data.record import Record, open_record
from fieldfill.errors import InputError

__all__ = ["REAL_FOLDER", "REAL_RECORDS", "Box", "RealRecord", "gappy_and_truth"]

# Environment variable that names the folder of the records, and its default relative to the project.
REAL_FOLDER = "FIELDFILL_REAL"
REAL_PLACE = "../shared/data/real"


class Way(Protocol):
    """A way to hide cells.

    ``source`` is the file, ``observed`` (C, T, H, W) are the observed cells of the variables that are scored; the
    result is broadcast to that shape, and only observed cells are hidden.
    """

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray: ...


@dataclass(frozen=True)
class MissingFrom:
    """Cells that another variable of the file lacks."""

    variable: str

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        return np.isnan(find_axes(source).canonical(source[self.variable]).values)


@dataclass(frozen=True)
class LaterGaps:
    """On a share of the frames, what is missing a few frames later; the last frames are followed by the first."""

    frames: int
    share: float = 1.0

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        chosen = generator.random(observed.shape[1]) < self.share
        return ~np.roll(observed, -self.frames, axis=1) & np.reshape(chosen, (-1, 1, 1))


@dataclass(frozen=True)
class AllButLines:
    """Everything but a few straight lines in each frame, as altimeters leave it.

    Attributes
    ----------
    slope
        Rows per column, rising or falling with equal probability.
    half_width
        Rows from a line up to which a cell is kept.
    margin
        Columns beyond the grid in which a line may still cross the first row.
    """

    count: int
    slope: float = 2.2
    half_width: float = 1.6
    margin: float = 60.0

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        _, frames, height, width = observed.shape
        row, column = np.arange(height)[:, None], np.arange(width)
        kept = np.zeros((frames, height, width), bool)
        for frame in kept:
            for _ in range(self.count):
                steepness = self.slope * generator.choice([-1, 1])
                crossing = generator.uniform(-self.margin, width + self.margin)
                frame |= abs(row - steepness * (column - crossing)) < self.half_width
        return ~kept


@dataclass(frozen=True)
class WholeTracks:
    """A share of the straight tracks of each frame, found one after another as the line that holds most cells.

    Attributes
    ----------
    half_width
        Cells from a line up to which a cell belongs to its track.
    least
        Cells of a track; what is smaller and touches a track belongs to it.
    """

    share: float
    half_width: float = 1.2
    least: int = 4

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        hidden = np.zeros(observed.shape[1:], bool)
        for frame, seen in zip(hidden, np.any(observed, axis=0)):
            cells = np.argwhere(seen)
            track = self._tracks(cells)
            chosen = generator.random(track.max(initial=-1) + 1) < self.share
            frame[tuple(cells.T)] = chosen[track]
        return hidden

    def _tracks(self, cells: np.ndarray) -> np.ndarray:
        """Number of the track of each of the cells (n, 2)."""
        track = np.full(len(cells), -1)
        while (left := np.flatnonzero(track < 0)).size:
            track[left[self._on_line(cells[left])]] = track.max() + 1
        small = np.bincount(track)[track] < self.least if len(cells) else np.zeros(0, bool)
        for i in np.flatnonzero(small):
            steps = abs(cells - cells[i]).max(axis=1)
            near = np.flatnonzero(~small & (steps <= 1))
            track[i] = track[near[0]] if near.size else track[i]
        return track

    def _on_line(self, cells: np.ndarray, angles: int = 180) -> np.ndarray:
        """Which cells lie on the line, of those in steps of a degree and of a cell, that holds most of them."""
        angle = np.pi * np.arange(angles) / angles
        offset = cells @ np.stack([np.sin(angle), np.cos(angle)])
        place = np.round(offset - offset.min()).astype(int)
        votes = np.zeros((angles, place.max() + 1), int)
        np.add.at(votes, (np.arange(angles), place), 1)
        best, where = np.unravel_index(votes.argmax(), votes.shape)
        middle = offset[place[:, best] == where, best].mean()
        return abs(offset[:, best] - middle) <= self.half_width


@dataclass(frozen=True)
class StationMonths:
    """In every calendar month all variables of a share of the stations; a station is a cell that is ever observed."""

    share: float

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        time = source[find_axes(source).time].dt
        month = (12 * time.year + time.month).values
        stations = np.argwhere(observed.any(axis=(0, 1)))
        hidden = np.zeros(observed.shape[1:], bool)
        for one in np.unique(month):
            rows, columns = generator.permutation(stations)[: round(self.share * len(stations))].T
            frames = np.flatnonzero(month == one)
            hidden[frames[:, None], rows, columns] = True
        return hidden


@dataclass(frozen=True)
class Blocks:
    """In every frame a share of the blocks of so many cells a side, all variables together.

    The blocks tile the plane from an origin that differs from frame to frame.
    """

    side: int
    share: float

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        hidden = np.zeros(observed.shape[1:], bool)
        for frame in hidden:
            row, column = ((np.arange(size) + generator.integers(self.side)) // self.side for size in frame.shape)
            count = (row[-1] + 1) * (column[-1] + 1)
            chosen = np.zeros(count, bool)
            chosen[generator.permutation(count)[: round(self.share * count)]] = True
            frame[:] = chosen.reshape(row[-1] + 1, -1)[row[:, None], column]
        return hidden


@dataclass(frozen=True)
class Sectors:
    """Sectors seen from the middle of the grid, evenly spaced, which turn from frame to frame; angles in degrees."""

    count: int
    width: float
    turn: float

    def __call__(self, source: xr.Dataset, observed: np.ndarray, generator: Generator) -> np.ndarray:
        _, frames, height, width = observed.shape
        row, column = np.arange(height)[:, None] - (height - 1) / 2, np.arange(width) - (width - 1) / 2
        direction = np.degrees(np.arctan2(row, column))
        begin = generator.uniform(0, 360) + self.turn * np.arange(frames)
        return (direction - begin[:, None, None]) % (360 / self.count) < self.width


@dataclass(frozen=True)
class RealRecord:
    """A file, its variables that are scored and how their cells are hidden.

    Attributes
    ----------
    timeless
        Whether it is a single frame, which methods that work in time cannot fill.
    zeros_apart
        Whether errors are also given for zeros and for values above zero apart.
    """

    file: str
    variables: tuple[str, ...]
    way: Way
    timeless: bool = False
    zeros_apart: bool = False


REAL_RECORDS: dict[str, RealRecord] = {
    "ndvi": RealRecord("ndvi_mask_study.nc", ("ndvi",), MissingFrom("ndvi_masked50")),
    "soil-moisture": RealRecord("soil_moisture_swaths.nc", ("sm",), LaterGaps(2, share=0.7)),
    "co2": RealRecord("co2_swaths.nc", ("co2",), LaterGaps(3, share=0.7)),
    "sea-level-maps": RealRecord("sea_level_maps.nc", ("adt",), AllButLines(6)),
    "sea-level-tracks": RealRecord("sea_level_tracks.nc", ("adt",), WholeTracks(0.25)),
    "stations": RealRecord("stations.nc", ("tmax", "tmin", "tdp", "precip"), StationMonths(0.25)),
    "piv": RealRecord("piv_wake.nc", ("u", "v"), Blocks(16, share=0.2)),
    "radar": RealRecord("radar_rain.nc", ("rain",), Sectors(2, width=36.0, turn=25.0), zeros_apart=True),
    "one-frame": RealRecord("one_frame_simulated.nc", ("lst_truth",), MissingFrom("lst"), timeless=True),
    "lake": RealRecord("lake_section.nc", ("temp",), LaterGaps(240)),  # 30 days of eight frames
    "coads": RealRecord(
        "coads_climatology.nc", ("SST", "AIRT", "SPEH", "WSPD", "UWND", "VWND", "SLP"), Blocks(8, share=0.2)
    ),
}

# Frames, and rows and columns, that are kept of a record; None keeps all.
Box = tuple[int | None, int | None]


def gappy_and_truth(chosen: RealRecord, box: Box, seed: int) -> tuple[xr.Dataset, xr.Dataset, np.ndarray]:
    """The gappy record, the values at its hidden cells (NaN elsewhere), and the domain (C, H, W).

    A smaller box is cut out after cells were hidden: the first frames, where hidden cells and others lie together.
    """
    path = Path(os.environ.get(REAL_FOLDER, REAL_PLACE)) / chosen.file
    if not path.exists():
        raise InputError(f"no file {chosen.file}: set {REAL_FOLDER} to the folder of the real records")
    source = open_dataset(path).load()
    record = open_record(source[list(chosen.variables)])
    observed = record.arrays()[1][0]
    hidden = observed & chosen.way(source, observed, np.random.default_rng(seed))
    gappy, truth = record.masked((observed & ~hidden)[None]), record.masked(hidden[None])
    cut = dict(_box(record, hidden, observed & ~hidden, box))
    space = tuple(cut.get(str(name), slice(None)) for name in (record.axes.y, record.axes.x))
    return gappy.isel(cut), truth.isel(cut), record.domain[(slice(None), *space)]


def _box(record: Record, hidden: np.ndarray, seen: np.ndarray, box: Box) -> Iterator[tuple[str, slice]]:
    """The slices by dimension that a smaller box takes."""
    frames, side = box
    if frames is not None and record.axes.time is not None:
        yield record.axes.time, slice(frames)
    if side is None:
        return
    shares = (uniform_filter(part[:, :frames].mean(axis=(0, 1)), side, mode="constant") for part in (hidden, seen))
    both = np.prod(list(shares), axis=0)
    for name, centre, size in zip(
        (record.axes.y, record.axes.x), np.unravel_index(both.argmax(), both.shape), both.shape
    ):
        if name is not None:
            begin = int(np.clip(centre - side // 2, 0, max(0, size - side)))
            yield name, slice(begin, begin + side)
