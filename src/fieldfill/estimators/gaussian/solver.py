"""Conjugate gradients for a batch of systems."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["conjugate_gradients"]

Linear = Callable[[Tensor], Tensor]


def conjugate_gradients(operator: Linear, precondition: Linear, y: Tensor, steps: int, tolerance: float) -> Tensor:
    """v with ``operator(v)`` = y for each of y (B, ...), with its own step lengths.

    A sample whose squared residual, as the preconditioner sees it, fell by ``tolerance`` takes no further steps.
    """
    v, residual = torch.zeros_like(y), y.clone()
    z = precondition(residual)
    direction, size = z, _dot(residual, z)
    enough = tolerance * size
    for _ in range(steps):
        active = size > enough
        if not active.any():
            break
        image = operator(direction)
        step = active * size / _dot(direction, image).clamp(min=1e-30)
        v.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        z = precondition(residual)
        before, size = size, _dot(residual, z)
        direction = torch.addcmul(z, size / before.clamp(min=1e-30), direction)
    return v


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, *(1,) * (a.ndim - 1))
