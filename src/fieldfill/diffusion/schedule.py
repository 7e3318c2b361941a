r"""Noise schedule of the diffusion: how much signal and noise are in x_t.

.. math:: x_t = \alpha_t x_0 + \sigma_t \epsilon, \qquad \epsilon \sim N(0, I), \qquad t \in [\delta, 1]

``alpha_t`` falls from 1 to about 0, ``sigma_t`` rises from about 0 to 1, and (variance preserving)
``alpha_t**2 + sigma_t**2 = 1``. The log signal-to-noise ratio is ``log(alpha_t**2 / sigma_t**2)``.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["GRIDS", "PowerTime", "VPSchedule"]

# Grids of times; `VPSchedule.times` makes them.
GRIDS = ("time", "snr")


@dataclass(frozen=True)
class VPSchedule:
    r"""Variance-preserving schedule with a rate that grows linearly from ``beta_min`` to ``beta_max``.

    .. math:: \log \alpha_t = -\tfrac14 t^2 (\beta_{max} - \beta_{min}) - \tfrac12 t \beta_{min}

    Reference: Score-Based Generative Modeling through Stochastic Differential Equations (2021).
    """

    beta_min: float = 0.1
    beta_max: float = 20.0
    delta: float = 1e-3

    def log_alpha(self, t: Tensor) -> Tensor:
        return -0.25 * t**2 * (self.beta_max - self.beta_min) - 0.5 * t * self.beta_min

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(self.log_alpha(t))

    def sigma(self, t: Tensor) -> Tensor:
        # expm1 keeps the small noise of small t accurate in float32, where 1 - alpha**2 cancels.
        return torch.sqrt(-torch.expm1(2 * self.log_alpha(t)))

    @property
    def least_noise(self) -> tuple[float, float]:
        """alpha and sigma at t = delta, where a fill is made."""
        t = torch.tensor(self.delta)
        return self.alpha(t).item(), self.sigma(t).item()

    def log_snr(self, t: Tensor) -> Tensor:
        return 2 * (self.log_alpha(t) - torch.log(self.sigma(t)))

    def time(self, log_snr: Tensor) -> Tensor:
        """The time t of a log signal-to-noise ratio; the inverse of `log_snr`."""
        log_alpha = -0.5 * torch.nn.functional.softplus(-log_snr)
        rise, half = self.beta_max - self.beta_min, 0.5 * self.beta_min
        return (torch.sqrt(half**2 - rise * log_alpha) - half) / (0.5 * rise)

    def times(self, steps: int, grid: str = "time") -> Tensor:
        """Falling times (steps,), float64, from 1 to delta: evenly spaced in t ("time") or in the log-SNR ("snr")."""
        if grid not in GRIDS or steps < 1:
            raise InputError(f"{steps} steps on the grid '{grid}'; give 1 or more, on one of {', '.join(GRIDS)}")
        ends = torch.tensor([1.0, self.delta], dtype=torch.float64)
        share = torch.linspace(0, 1, steps, dtype=torch.float64)
        if grid == "time":
            return torch.lerp(ends[0], ends[1], share)
        noisiest, cleanest = self.log_snr(ends)
        return self.time(torch.lerp(noisiest, cleanest, share)).clamp(self.delta, 1)


@dataclass(frozen=True)
class PowerTime:
    r"""Draws training times :math:`t = \delta + (1 - \delta) u^p` with u uniform on [0, 1].

    ``power=1`` is the uniform law of the paper; larger powers spend more steps where a fill is made, near delta.
    """

    power: float = 1.0
    delta: float = 1e-3

    def sample(self, count: int, generator: Generator) -> Tensor:
        """Returns times of shape (count,)."""
        u = torch.rand(count, generator=generator)
        return self.delta + (1 - self.delta) * u**self.power
