"""How large the errors of first estimates are at each noise level: the units in which a network sees and answers.

A good estimate leaves a tenth or a hundredth of the field as residual. In units of the field, a network would see what
the estimate missed as almost nothing and would have to answer almost nothing, and losses of noisy crops, whose residual
is large, would drown those of clear ones, which a fill is made of.
"""

import torch
from torch import Tensor, nn

from fieldfill.diffusion.schedule import VPSchedule

__all__ = ["Scales", "noise_levels"]


def noise_levels(schedule: VPSchedule, count: int = 8) -> Tensor:
    """Log signal-to-noise ratios (K,), rising evenly from t = 1 to t = delta, at which errors are measured."""
    return schedule.log_snr(schedule.times(count, "snr")).float()


class Scales(nn.Module):
    """Root mean squares of misfit (at context cells) and residual (elsewhere), linear in log between noise levels.

    Parameters
    ----------
    variables
        number C of variables.
    log_snr
        (K,) the noise levels of the table, rising.
    least
        smallest unit, as a share of the standard deviation of the data.
    """

    log_snr: Tensor
    table: Tensor

    def __init__(self, variables: int, log_snr: Tensor, least: float = 1e-3) -> None:
        super().__init__()
        self.least = least
        self.register_buffer("log_snr", log_snr)
        self.register_buffer("table", torch.zeros(2, len(log_snr), variables))

    def forward(self, log_snr: Tensor) -> tuple[Tensor, Tensor]:
        """Misfit and residual, (B, C, 1, 1, 1), at the levels (B,); 1 before anything was learnt."""
        above = torch.searchsorted(self.log_snr, log_snr).clamp(1, len(self.log_snr) - 1)
        low, high = self.log_snr[above - 1], self.log_snr[above]
        share = ((log_snr - low) / (high - low)).clamp(0, 1)[:, None]
        found = torch.lerp(self.table[:, above - 1], self.table[:, above], share).exp()
        misfit, residual = found[..., None, None, None]
        return misfit, residual

    def learn(self, level: int, misfit: Tensor, residual: Tensor) -> None:
        """Takes mean squares (C,) at one level; what is NaN, for want of cells, stays as it was."""
        squares = torch.stack([misfit, residual])
        found = 0.5 * squares.clamp(min=self.least**2).log()
        self.table[:, level] = torch.where(squares.isnan(), self.table[:, level], found.to(self.table.dtype))
