"""Puts gaps into complete records, for experiments in which the truth is known."""

import numpy as np
import torch
import xarray as xr

from fieldfill.data.record import Record
from fieldfill.errors import InputError
from fieldfill.masks.mask_model import MaskModel

__all__ = ["hide_cells"]


def hide_cells(record: Record, model: MaskModel, every: int | None, seed: int) -> tuple[xr.Dataset, float]:
    """The data set of a record with cells set to NaN, and the share of the domain that stays observed.

    ``every`` is the number of frames that share a mask: each piece of so many frames draws its own, as if it were a
    sample of its own. None draws one mask per sample.
    """
    samples, count, frames, rows, columns = record.shape
    length = frames if every is None else every
    if not 1 <= length <= frames:
        raise InputError(f"every={every}: masks last from one frame to the {frames} of the record")
    generator = torch.Generator().manual_seed(seed)
    pieces = -(-frames // length)
    seen = np.empty(record.shape, bool)
    for sample in range(samples):
        drawn = model.sample((pieces, count, length, rows, columns), generator).numpy()
        seen[sample] = np.concatenate(list(drawn), axis=1)[:, :frames]
    return record.masked(seen), float(seen[np.broadcast_to(record.domain[:, None], seen.shape)].mean())
