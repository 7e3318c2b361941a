"""Opening of data for a model: the record with its inputs, and its crops with held-out cells."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import xarray as xr

from fieldfill.config import LEAST_CROP, Settings
from fieldfill.data.axes import Dims, Selection, find_axes, selected
from fieldfill.data.crops import Crops
from fieldfill.data.holdout import hold_out
from fieldfill.data.inputs import DAY_OF_YEAR, static_maps
from fieldfill.data.record import Record, open_record
from fieldfill.data.survey import as_dataset, scope
from fieldfill.data.transforms import SEASON, Normaliser, Season
from fieldfill.errors import InputWarning
from fieldfill.seeds import stream

__all__ = ["DataSource", "DomainLike", "crop_reason", "crop_shape", "given_maps", "open_crops", "open_source"]

DomainLike: TypeAlias = str | xr.DataArray | np.ndarray | None

# Frames of a crop of a long record.
USUAL_FRAMES = 8
# Frames of the longest record that is one crop in time.
SHORT_RECORD = 12
# Rows and columns of a crop where half of the cells or more are observed. Sparser records have larger ones, in
# proportion, because a crop loses what lies beyond it: with 2 % observed, crops of 64 cells raise the error by 12 %.
USUAL_CELLS = 64
# Share of the cells observed from which on a crop has that size.
DENSE = 0.5
# Crops along the longer side of a record that is a single frame, at least.
SIDE_BY_SIDE = 3
# Cells (C · T · H · W) of a crop at most, which bounds the cost of a step.
MOST_CELLS = 2**19


@dataclass(frozen=True)
class DataSource:
    """Data to learn from or to fill, and how variables, axes and domain are found; see `open_record`."""

    ds: xr.Dataset | xr.DataArray
    variables: Sequence[str] | None = None
    dims: Dims | None = None
    domain: DomainLike = None
    sel: Selection | None = None
    each: str | Sequence[str] = ()


def open_source(source: DataSource, settings: Settings) -> Record:
    """The record of a source, with the season beside the other variables if it is an input."""
    ds, variables = selected(as_dataset(source.ds), source.sel or {}), source.variables
    if DAY_OF_YEAR in settings.inputs:
        own = None if variables is None else tuple(name for name in variables if name not in SEASON)
        ds = Season().apply(ds, find_axes(scope(ds, own), source.dims, source.each))
        variables = None if own is None else (*own, *SEASON)
    return open_record(ds, variables, source.dims, source.domain, settings.log, each=source.each)


def crop_shape(record: Record, settings: Settings) -> tuple[int, int, int]:
    """Frames, rows and columns of the crops of a record: a small grid is one crop, a short record is one window."""
    _, variables, frames, rows, columns = record.shape
    length = min(settings.window or (frames if frames <= SHORT_RECORD else USUAL_FRAMES), frames)
    small = max(rows, columns) <= (settings.crop or USUAL_CELLS)
    if settings.window is None and small and record.shape[0] == 1 and length == frames:
        length = max(1, frames // 2)  # a single crop would leave nothing to compare
    if settings.crop is not None:
        return length, min(settings.crop, rows), min(settings.crop, columns)
    wanted = round(USUAL_CELLS * max(1.0, DENSE / max(record.coverage, 1e-3)))
    if record.shape[0] * frames == 1:  # what there is to learn from lies side by side
        wanted = min(wanted, max(LEAST_CROP, max(rows, columns) // SIDE_BY_SIDE))
    plane = MOST_CELLS // (variables * length)
    # The shorter axis first: what it does not need is left to the longer one.
    shorter = min(rows, columns, wanted, max(USUAL_CELLS, math.isqrt(plane)))
    longer = min(max(rows, columns), wanted, max(USUAL_CELLS, plane // shorter))
    return (length, shorter, longer) if rows <= columns else (length, longer, shorter)


def crop_reason(crops: Crops, settings: Settings) -> str:
    """Why crops have the size they have, in words."""
    record = crops.record
    _, _, frames, rows, columns = record.shape
    length, *size = crops.shape
    time = "as set" if settings.window is not None else "the usual number of frames"
    time = "all frames of the record" if length == frames else time
    space = f"{USUAL_CELLS} cells a side, more where less than {DENSE:.0%} is observed"
    space = f"as set, of {rows} × {columns}" if settings.crop is not None else space
    space = "the whole grid" if tuple(size) == (rows, columns) else space
    return f"{time}, {space} ({record.coverage:.0%} observed)"


def open_crops(source: DataSource, settings: Settings, seed: int) -> Crops:
    """The crops of a source, of which some observed cells are held out for validation."""
    record = open_source(source, settings)
    if source.domain is None and record.shape[0] * record.shape[2] == 1:
        text = "a single frame does not show where the field exists: all of its gaps count as missing"
        warnings.warn(f"{text}; give a domain (--domain) if some of them are none", InputWarning, stacklevel=2)
    crops = Crops(record, Normaliser(record.mean, record.std), crop_shape(record, settings))
    crops.held = hold_out(crops, settings.hold_out, stream(seed, "hold-out"), settings.validation)
    return crops


def given_maps(record: Record, settings: Settings) -> torch.Tensor:
    """The maps (K, H, W) that the settings name as inputs."""
    return torch.from_numpy(static_maps(record.ds, record.axes, settings.inputs, record.periodic))
