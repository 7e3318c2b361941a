r"""Magnitude-preserving layers: with inputs of unit variance, the outputs have unit variance too.

Nothing else keeps the activations in bounds, so there are no biases and no group norms. Weights have unit norm,

.. math:: \hat w = \frac{w}{\|w\|}, \qquad \text{and after each step} \quad w \leftarrow \sqrt{n} \, \frac{w}{\|w\|}

with n the number of inputs of one output. The second rule keeps the relative size of an optimiser's step the same
throughout a run. Sums, joins and activations are divided by the standard deviation of what they yield.

Reference: Analyzing and Improving the Training Dynamics of Diffusion Models (2024).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldfill.diffusion.networks.layers import embedding_frequencies, pad_around

__all__ = [
    "MPBlock",
    "MPConv",
    "MPEmbedding",
    "MPHead",
    "MPLinear",
    "mp_join",
    "mp_silu",
    "mp_sum",
    "unit_magnitude",
]

# Root mean square of silu(z), z ~ N(0, 1).
SILU_DEVIATION = 0.596


def unit_magnitude(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x divided by its root mean square over ``dims``."""
    return x / (x.square().mean(tuple(dims), keepdim=True).sqrt() + 1e-4)


def mp_silu(x: Tensor) -> Tensor:
    return F.silu(x) / SILU_DEVIATION


def mp_sum(a: Tensor, b: Tensor, share: float = 0.3) -> Tensor:
    """(1 - share) a + share b for uncorrelated a, b, at their magnitude."""
    return torch.lerp(a, b, share) / math.hypot(1 - share, share)


def mp_join(a: Tensor, b: Tensor) -> Tensor:
    """Channels (dim 1) of a and b, weighted so that both contribute equally to whatever reads them."""
    n, m = a.shape[1], b.shape[1]
    scale = math.sqrt((n + m) / 2)
    return torch.cat([a * (scale / math.sqrt(n)), b * (scale / math.sqrt(m))], dim=1)


class _UnitNorm(nn.Module):
    """Owner of a weight (outputs, ...) whose rows are used with unit norm."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def unit_weight(self) -> Tensor:
        dims = range(1, self.weight.ndim)
        if self.training:
            with torch.no_grad():
                self.weight.copy_(unit_magnitude(self.weight, dims))
        return unit_magnitude(self.weight, dims) / math.sqrt(self.weight[0].numel())


class MPLinear(_UnitNorm):
    """Linear map of the last dimension, (..., inputs) → (..., outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(outputs, inputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.unit_weight())


class MPConv(_UnitNorm):
    """Convolution of (B, inputs, H, W) that pads each axis with zeros, or around where it is periodic."""

    def __init__(self, inputs: int, outputs: int, kernel: int, periodic: Sequence[bool], stride: int = 1) -> None:
        super().__init__(outputs, inputs, kernel, kernel)
        self.periodic, self.margin, self.stride = tuple(periodic), kernel // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        zero = [0 if around else self.margin for around in self.periodic]
        return F.conv2d(pad_around(x, self.margin, self.periodic), self.unit_weight(), None, self.stride, zero)


class MPBlock(nn.Module):
    """Residual block over (B, C, H, W) that starts from unit magnitude in each cell."""

    def __init__(self, inputs: int, outputs: int, embedding: int, periodic: Sequence[bool]) -> None:
        super().__init__()
        self.conv1 = MPConv(inputs, outputs, 3, periodic)
        self.conv2 = MPConv(outputs, outputs, 3, periodic)
        self.film = MPLinear(embedding, outputs)
        self.gain = nn.Parameter(torch.zeros(()))
        self.path = MPConv(inputs, outputs, 1, periodic) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        x = unit_magnitude(x, [1])
        scale = 1 + self.gain * self.film(embedding)[:, :, None, None]
        y = self.conv2(mp_silu(self.conv1(mp_silu(x)) * scale))
        return mp_sum(self.path(x), y)


class MPEmbedding(nn.Module):
    """Sinusoids of the log signal-to-noise ratio (B,) → (B, width)."""

    frequency: Tensor

    def __init__(self, width: int, waves: int = 32) -> None:
        super().__init__()
        self.register_buffer("frequency", embedding_frequencies(waves), persistent=False)
        self.first, self.second = MPLinear(2 * waves, width), MPLinear(width, width)

    def forward(self, log_snr: Tensor) -> Tensor:
        angle = log_snr[:, None] * self.frequency
        waves = math.sqrt(2) * torch.cat([angle.sin(), angle.cos()], dim=1)
        return mp_silu(self.second(mp_silu(self.first(waves))))


class MPHead(nn.Module):
    """Last convolution: here magnitudes are learnt, one gain per output, from 0."""

    def __init__(self, inputs: int, outputs: int, periodic: Sequence[bool]) -> None:
        super().__init__()
        self.conv = MPConv(inputs, outputs, 3, periodic)
        self.gain = nn.Parameter(torch.zeros(outputs, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.conv(x)
