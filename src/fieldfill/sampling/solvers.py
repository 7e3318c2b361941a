r"""Realisations of the field given its observations.

*By an ordinary differential equation.* From x_1 ~ N(0, I) everywhere down to t = delta, with an estimate of
:math:`\hat x_0 = E[x_0 | x_t, x_{obs}]` at every step:

.. math::
    x_{t'} = \alpha_{t'} \hat x_0 + \sigma_{t'} \hat\epsilon, \qquad
    \hat\epsilon = (x_t - \alpha_t \hat x_0) / \sigma_t

which is DDIM. The second-order solver puts :math:`\hat x_0 + \frac{h'}{2h} (\hat x_0 - \hat x_0^{before})` in the place
of :math:`\hat x_0`, h and h' being the last and the next step of log(alpha / sigma): the exponential integrator with
two-point extrapolation, one call of the estimate per step. With eta > 0 part of the noise is drawn anew at each step.
The last step goes from delta to no noise. At observed cells :math:`\hat x_0` is the observed value, so that
their noise follows from it, and in the end they are exact.

*The estimate.* `Exact` is right for Gaussian residuals around a given mean, `Weighted` is the paper's mixture for any
denoiser.

*Without any equation.* `conditional` draws the same law as `Exact` at the price of one solution (Matheron's rule).

References: Denoising Diffusion Implicit Models (2021); DPM-Solver++: Fast Solver for Guided Sampling of Diffusion
Probabilistic Models (2022).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.errors import InputError
from fieldfill.estimators.base import Given, Law
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import AT_ONCE

__all__ = ["WEIGHTINGS", "Exact", "Expectation", "Solver", "Weighted", "conditional", "residual_given"]

Expectation = Callable[[Tensor, Tensor], Tensor]  # (t (), x_t (B, ...)) → estimate of x_0, observed values in place

# Weight omega(t) in the mixture of the weighted sampler, by name; another one is a line here.
WEIGHTINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": torch.zeros_like,
    "linear": lambda t: t,
    "quadratic": torch.square,
}


@dataclass(frozen=True)
class Solver:
    """Follows the differential equation from noise to a field.

    Attributes
    ----------
    steps
        number of steps, each with one call of the estimate.
    order
        1: DDIM. 2: extrapolates from the last two estimates.
    grid
        times evenly spaced in t ("time") or in the log signal-to-noise ratio ("snr").
    eta
        share of the noise that is drawn anew, 0 (deterministic) to 1 (ancestral); first order only.
    """

    steps: int = 30
    order: int = 2
    grid: str = "snr"
    eta: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in (1, 2) or not 0 <= self.eta <= 1 or (self.eta > 0 and self.order == 2):
            raise InputError(
                f"solver: order {self.order}, eta {self.eta}; give order 1 or 2, and eta from 0 to 1 (0 with order 2)"
            )
        VPSchedule().times(self.steps, self.grid)

    def __call__(
        self, schedule: VPSchedule, expectation: Expectation, x: Tensor, generators: Sequence[Generator] = ()
    ) -> Tensor:
        """The field (B, ...) at the end of the path that begins at x (B, ...), a draw of N(0, I).

        ``generators`` gives each row the fresh noise that eta > 0 needs.
        """
        times = schedule.times(self.steps, self.grid)
        alpha, sigma = schedule.alpha(times).tolist(), schedule.sigma(times).tolist()
        level = (schedule.log_snr(times) / 2).tolist()
        before: Tensor | None = None
        for i, t in enumerate(times):
            now = expectation(t, x)
            if i + 1 == self.steps:
                break
            ahead = now
            if self.order == 2 and before is not None:
                ahead = now + (level[i + 1] - level[i]) / (2 * (level[i] - level[i - 1])) * (now - before)
            noise = (x - alpha[i] * ahead) / sigma[i]
            fresh = self.eta * sigma[i + 1] / sigma[i] * math.sqrt(1 - (alpha[i] / alpha[i + 1]) ** 2)
            x = alpha[i + 1] * ahead + math.sqrt(sigma[i + 1] ** 2 - fresh**2) * noise
            if fresh > 0:
                x = x + fresh * _normal(x, generators)
            before = now
        return now


@dataclass(frozen=True)
class Exact:
    r"""E[x_0 | x_t, known cells] if x_0 = mean + scale · r with r a Gaussian field.

    .. math:: \hat x_0 = \mu + s\, E[r \,|\, (x_t / \alpha_t - \mu) / s = r + e, \; r_{known}], \qquad
        e \sim N(0, (\sigma_t / (\alpha_t s))^2)

    For Gaussian data with their exact mean it is exact, so that the equation samples the posterior.

    Attributes
    ----------
    x, known
        (B, C, T, H, W) known values and where they are.
    domain
        bool, broadcastable: where the field exists.
    mean, scale
        (B, C, T, H, W) the mean :math:`\mu`, with the observed values in their places, and s > 0.
    error
        variance of the error of r at known cells, broadcastable.
    """

    law: Law
    schedule: VPSchedule
    x: Tensor
    known: Tensor
    domain: Tensor
    mean: Tensor
    scale: Tensor
    error: Tensor

    def __call__(self, t: Tensor, x_t: Tensor) -> Tensor:
        alpha_t, sigma_t = self.schedule.alpha(t).item(), self.schedule.sigma(t).item()
        y = (torch.where(self.known, self.x, x_t / alpha_t) - self.mean) / self.scale
        noise = torch.where(self.known, self.error, (sigma_t / (alpha_t * self.scale)).square())
        # The law adds the observations' own errors, which x_t does not have; so they are taken off.
        noise = noise - self.law.error
        # An error of one step of the equation is carried into the next: with few conjugate gradients members explode.
        r = self.law.mean(residual_given(y, self.domain.expand_as(y), noise), thorough=True)
        return torch.where(self.known, self.x, self.mean + self.scale * r)


@dataclass(frozen=True)
class Weighted:
    r"""The paper's mixture of the estimates from the observations and from x_t, for any denoiser.

    .. math:: \hat x_0 = \omega_t E[x_0 | x_{obs}] + (1 - \omega_t) \frac1K \sum_k x_\theta(t, M_k \odot x_t, M_k)

    with contexts :math:`M_k` of observation masks of the whole data set, not limited to the observed cells of this
    crop: x_t has a value everywhere. :math:`\omega_t` is 0, t or t²: at t = 1, where x_t holds no information, the
    observations decide, and x_t as t falls.

    Attributes
    ----------
    bank
        (N, C, T, H, W) bool, observation masks of the data set.
    x, known, mean
        (B, C, T, H, W) known values, where they are, and E[x_0 | x_obs].
    maps
        (B, K, H, W) what does not change in time.
    generators
        one per row.
    """

    denoiser: Denoiser
    partition: Partition
    bank: Tensor
    x: Tensor
    known: Tensor
    mean: Tensor
    maps: Tensor
    generators: Sequence[Generator]
    weighting: str = "linear"
    contexts: int = 4

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS or self.contexts < 1:
            raise InputError(
                f"weighting '{self.weighting}' with {self.contexts} contexts: "
                f"give one of {', '.join(WEIGHTINGS)}, and 1 context or more"
            )

    def __call__(self, t: Tensor, x_t: Tensor) -> Tensor:
        omega = WEIGHTINGS[self.weighting](t).item()
        contexts = torch.stack([self._draw(generator) for generator in self.generators], dim=1)
        rows = x_t.expand_as(contexts).flatten(0, 1)
        maps = self.maps.expand(len(contexts), *self.maps.shape).flatten(0, 1)
        step = max(1, AT_ONCE // x_t[0].numel())
        parts = []
        for some, context, place in zip(*(v.split(step) for v in (rows, contexts.flatten(0, 1), maps))):
            with torch.no_grad():
                parts.append(self.denoiser(t.to(some).expand(len(some)), some, context, place))
        diffusion = torch.cat(parts).view(contexts.shape).mean(0)
        return torch.where(self.known, self.x, omega * self.mean + (1 - omega) * diffusion)

    def _draw(self, generator: Generator) -> Tensor:
        """Contexts (K, C, T, H, W) of random masks of the data set."""
        masks = self.bank[torch.randint(len(self.bank), (self.contexts,), generator=generator)]
        return self.partition.draw(masks, None, generator)


def conditional(law: Law, r: Tensor, known: Tensor, error: Tensor, generator: Generator) -> Tensor:
    """Gaussian fields (B, C, T, H, W) that agree with r at the known cells and follow their law given r elsewhere.

    Matheron's rule: a free draw z, corrected by what it lacks at the known cells, z + E[r - z | r - z - e there]; e is
    drawn with the variance ``error``.
    """
    z = law.draw(len(r), generator)
    e = error.sqrt() * torch.randn(z.shape, generator=generator)
    drawn = z + law.mean(residual_given(r - z - e, known.expand_as(z), error - law.error))
    return torch.where(known, r, drawn)


def residual_given(y: Tensor, context: Tensor, noise: Tensor) -> Given:
    """A Gaussian residual y (B, C, T, H, W) seen at ``context``; no map matters to it."""
    return Given(y, context, noise, y.new_zeros(1, 0, *y.shape[-2:]))


def _normal(x: Tensor, generators: Sequence[Generator]) -> Tensor:
    return torch.stack([torch.randn(row.shape, generator=own, dtype=x.dtype) for row, own in zip(x, generators)])
