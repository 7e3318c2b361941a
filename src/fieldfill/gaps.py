"""Puts gaps into complete data, for experiments in which the truth is known."""

import json
from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from fieldfill.config import build_mask
from fieldfill.errors import InputError
from fieldfill.record import open_record

__all__ = ["hide"]


def hide(
    ds: xr.Dataset | xr.DataArray,
    pattern: str,
    observed: float = 0.3,
    every: int | None = None,
    variables: Sequence[str] | None = None,
    dims: tuple[str, str, str] | None = None,
    seed: int = 0,
) -> tuple[xr.Dataset, float]:
    """A copy of ``ds`` with cells set to NaN, and the share that stays observed.

    Parameters
    ----------
    pattern, observed
        Name of a mask model (see `fieldfill.config.build_mask`) and the share of the cells it leaves.
    every
        Frames per mask: the record is cut into pieces of so many frames and each draws its own mask, as if it were
        a sample of its own. None draws one mask per sample.
    """
    record = open_record(ds, variables, dims)
    samples, count, frames, rows, columns = record.shape
    length = frames if every is None else every
    if not 1 <= length <= frames:
        raise InputError(f"every={every}: masks last from one frame to the {frames} of the record")
    model = build_mask(pattern, observed, (rows, columns))
    generator = torch.Generator().manual_seed(seed)
    pieces = -(-frames // length)
    seen = np.empty(record.shape, bool)
    for sample in range(samples):
        drawn = model.sample((pieces, count, length, rows, columns), generator).numpy()
        seen[sample] = np.concatenate(list(drawn), axis=1)[:, :frames]
    gappy = record.masked(seen)
    made = {"pattern": pattern, "observed": observed, "every": every, "seed": seed}
    gappy.attrs["fieldfill_mask"] = json.dumps(made)
    return gappy, float(seen[np.broadcast_to(record.domain[:, None], seen.shape)].mean())
