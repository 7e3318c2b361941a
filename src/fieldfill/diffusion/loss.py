"""The loss of training: squared error, and likelihood of the residual, on query cells only."""

import torch
from torch import Tensor

from fieldfill.diffusion.denoiser import LARGEST_VARIANCE, Cut, Denoiser, noised, whole
from fieldfill.estimators.base import Answer

__all__ = ["matching_losses"]


def matching_losses(
    denoiser: Denoiser,
    t: Tensor,
    x: Tensor,
    noise: Tensor,
    context: Tensor,
    query: Tensor,
    maps: Tensor,
    cut: Cut = whole,
    spread_weight: float = 0.25,
    first: Answer | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss (B,) of each sample over its own query cells, and whether it has any (B,) bool; see `Denoiser.outputs`.

    ``first`` is the first estimate where it has been made already. The squared error is taken in the space and the
    units of the denoiser's prediction. A sample without a query cell has loss 0.

    ``spread_weight`` is the weight of the likelihood, which shares the network's trunk with the mean. Its gradient does
    not shrink with the residual, that of the squared error does; times the predicted deviation, the two keep their
    ratio however good the mean becomes, and the optimum stays where it was because that deviation depends on the
    context alone. A small weight is enough: outputs that only the likelihood reaches learn at full speed, because Adam
    rescales each gradient.
    """
    x_t = noised(denoiser.schedule, t, x, noise)
    output, log_variance = denoiser.outputs(t, x_t, context, maps, cut, first)
    x, x_t, noise, context, query = map(cut, (x, x_t, noise, context, query))
    unit = denoiser.unit(t)
    error = ((output - denoiser.target(t, x, noise, context)) / unit).square()
    if log_variance is not None:
        log_variance = log_variance - 2 * unit.log()
        residual = ((x - denoiser.convert(t, x_t, context, output.detach())) / unit).square()
        # Beyond the range the head has no answer, and noise prediction can be off by a hundred near t = 1.
        residual = residual.clamp(max=LARGEST_VARIANCE)
        weight = spread_weight * torch.exp(0.5 * log_variance.detach())
        error = error + weight * (log_variance + residual * torch.exp(-log_variance))
    cells = query.flatten(1).sum(1)
    return torch.where(query, error, 0).flatten(1).sum(1) / cells.clamp(min=1), cells > 0
