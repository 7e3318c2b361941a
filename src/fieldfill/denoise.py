r"""The denoiser x_theta(t, context · x_t, context): an estimate of the complete clean field from a noisy part of it.

.. math:: L = \| M_{qry} \odot (x_\theta(t, M_{ctx} \odot x_t, M_{ctx}) - x_{obs}) \|^2

The network sees the context and never the query or the observation mask. Theorem 1 of the paper: the optimum is
E[x_0 | context] at every cell whose query probability given the context is positive, and arbitrary elsewhere.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fieldfill.schedule import VPSchedule

__all__ = ["Denoiser", "noised", "query_loss"]

Skip = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Denoiser(nn.Module):
    """A skip corrected by a network.

    Arguments
    ---------
    network
        (features (B, 3C + K, T, H, W), log_snr (B,)) → (B, C, T, H, W).
    schedule
        gives alpha_t, sigma_t.
    skip
        (x, context, alpha_t, sigma_t) → first estimate (B, C, T, H, W); also a feature of the network.
    static
        (K, H, W) maps that do not change in time, such as the domain; features of the network.
    """

    static: Tensor

    def __init__(self, network: nn.Module, schedule: VPSchedule, skip: Skip, static: Tensor) -> None:
        super().__init__()
        self.network, self.schedule, self.skip = network, schedule, skip
        self.register_buffer("static", static)

    def forward(self, t: Tensor, x_t: Tensor, context: Tensor) -> Tensor:
        """Estimate of x_0 (B, C, T, H, W) from t (B,), x_t and context (B, C, T, H, W)."""
        alpha_t, sigma_t = (level.view(-1, 1, 1, 1, 1) for level in (self.schedule.alpha(t), self.schedule.sigma(t)))
        x = torch.where(context, x_t, 0)
        guess = self.skip(x, context, alpha_t, sigma_t)
        b, _, frames, _, _ = x.shape
        static = self.static[None, :, None].expand(b, -1, frames, -1, -1)
        features = torch.cat([x, context.to(x.dtype), guess, static], dim=1)
        return guess + self.network(features, self.schedule.log_snr(t))


def noised(schedule: VPSchedule, t: Tensor, x: Tensor, noise: Tensor) -> Tensor:
    """x_t = alpha_t x + sigma_t noise with t (B,)."""
    shape = (-1, *(1,) * (x.ndim - 1))
    return schedule.alpha(t).view(shape) * x + schedule.sigma(t).view(shape) * noise


def query_loss(estimate: Tensor, x: Tensor, query: Tensor) -> Tensor:
    """Squared error on the query cells: mean over each sample's own cells, then over the samples.

    Samples without a query cell do not count; a batch of nothing else gives 0.
    """
    cells = query.flatten(1).sum(1)
    error = torch.where(query, estimate - x, 0).square().flatten(1).sum(1) / cells.clamp(min=1)
    return error.sum() / (cells > 0).sum().clamp(min=1)
