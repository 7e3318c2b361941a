r"""Guidance by physics: steers an estimate of the field towards what its equation allows.

With the residual R(x) of an equation, its energy is :math:`E(x) = \frac12 \sum_r \|R_r(x)\|^2 / \rho_r^2`, where
:math:`\rho_r` is the root mean square of residual r (one per variable) before the correction: quantities of different
units count alike, and E does not depend on them. At missing cells only, a few steps

.. math:: x \leftarrow x - w \frac{E(x)}{\|\nabla E(x)\|^2} \nabla E(x)

lower it. The step length is that of Polyak for a function whose least value is 0, so the weight w has no unit: 0 leaves
the estimate as it is, 1 is a full step, 2 overshoots as far as it came. Which w is best is decided on held-out cells
(`choose_weight`).

Reference: Introduction to Optimization (1987), for the step length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fieldfill.data.transforms import Normaliser
from fieldfill.errors import InputError

__all__ = ["Guidance", "Residual", "choose_weight", "unitless_residual"]

Residual = Callable[[Tensor], Tensor]  # fields (B, C, T, H, W) → residuals (B, R, ...)


@dataclass(frozen=True)
class Guidance:
    """Lowers the residual of unitless fields at their missing cells.

    Attributes
    ----------
    residual
        of unitless fields; see `unitless_residual`.
    weight
        w; 0 does nothing.
    steps
        of each call.
    """

    residual: Residual
    weight: float
    steps: int = 100

    def __post_init__(self) -> None:
        if self.weight < 0 or self.steps < 1:
            raise InputError(f"guidance: weight {self.weight}, steps {self.steps}; give 0 or more, and 1 or more")

    def __call__(self, x: Tensor, missing: Tensor) -> Tensor:
        """x (B, C, T, H, W), corrected where ``missing`` (bool, broadcastable)."""
        if self.weight == 0:
            return x
        out = x.double()
        with torch.no_grad():
            rho = _rms(self.residual(out)).clamp(min=1e-30)
        for _ in range(self.steps):
            energy, gradient = self._slope(out, rho)
            gradient = torch.where(missing, gradient, 0)
            size = gradient.square().flatten(1).sum(1).clamp(min=1e-30)
            out = out - (self.weight * energy / size).view(-1, 1, 1, 1, 1) * gradient
        return torch.where(missing, out.to(x.dtype), x)

    def _slope(self, x: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """E (B,) and its gradient."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = (self.residual(x) / rho).square().flatten(1).sum(1) / 2
            (gradient,) = torch.autograd.grad(energy.sum(), x)
        return energy.detach(), gradient


def unitless_residual(
    residual: Callable[..., Tensor], normaliser: Normaliser, *arguments: Mapping[str, Tensor]
) -> Residual:
    """The residual of unitless fields, from one of fields in the units of the data (a method of a simulator)."""

    def unitless(x: Tensor) -> Tensor:
        grid = (x.shape[1], 1, *x.shape[-2:])
        offset = torch.from_numpy(normaliser.to_values(np.zeros(grid)))
        scale = torch.from_numpy(normaliser.spread_to_values(np.ones(grid)))
        found = residual(x.double() * scale + offset, *arguments)
        return found if found.ndim == x.ndim else found[:, None]

    return unitless


def choose_weight(
    score: Callable[[float], tuple[float, float]],
    weights: Sequence[float] = (0.0, 0.1, 0.3, 1.0, 1.8),
    allowance: float = 0.02,
) -> tuple[float, dict[float, tuple[float, float]]]:
    """The weight with the lowest residual among those that do not spoil the held-out error, and all scores.

    ``score`` gives the mean squared error on held-out cells and the rms residual under a weight. The error may rise
    by the share ``allowance`` for a lower residual.
    """
    scores = {weight: score(weight) for weight in weights}
    limit = (1 + allowance) * scores[0.0][0]
    allowed = [weight for weight in weights if scores[weight][0] <= limit]
    return min(allowed, key=lambda weight: scores[weight][1]), scores


def _rms(residual: Tensor) -> Tensor:
    """Root mean square of each residual, (B, R, 1, ...)."""
    flat = residual.square().flatten(2).mean(2).sqrt()
    return flat.view(*flat.shape, *(1,) * (residual.ndim - 2))
