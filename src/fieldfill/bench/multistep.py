"""The paper's multi-step fill: one realisation by the weighted mixture, scored in the place of the estimate."""

import numpy as np
import torch
import xarray as xr

from fieldfill.api import Filler
from fieldfill.data.record import open_record
from fieldfill.sampling.members import Sampling, draw_members
from fieldfill.sampling.solvers import Solver

__all__ = ["realise"]


def realise(filler: Filler, gappy: xr.Dataset, weighting: str, steps: int, seed: int) -> xr.Dataset:
    """One realisation of every sample of ``gappy``, in the format of a fill; ``weighting`` names omega."""
    model = filler.model_
    record = open_record(gappy, model.variables, model.dims, model.domain.numpy())
    crops = model.crops(record)
    sampling = Sampling("weighted", Solver(steps=steps, order=1, grid="time"), weighting=weighting)
    nothing = torch.zeros(record.shape[1:])  # this sampler takes the mean from the observations itself
    drawn = [
        draw_members(model, crops, sample, nothing, nothing, 1, sampling, seed)[0].numpy()
        for sample in range(record.shape[0])
    ]
    return record.to_dataset(model.normaliser.to_values(np.stack(drawn)), history=f"realised with omega {weighting}")
