"""What the U-Nets share: padding by axis, residual blocks, the embedding of the noise level, folded patches.

Images here are (B, C, H, W); networks over space and time put their frames into B or into C.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "NoiseEmbedding",
    "PaddedConv",
    "ResBlock",
    "embedding_frequencies",
    "fold",
    "group_norm",
    "pad_around",
    "unfold",
]


def pad_around(x: Tensor, margin: int, periodic: Sequence[bool]) -> Tensor:
    """Continues x (B, C, H, W) by ``margin`` cells around its periodic axes; the others stay as they are.

    Unlike the library's circular padding, this keeps the channels-last layout, in which convolutions are faster.
    """
    for axis, around in zip((-2, -1), periodic):
        size = x.shape[axis]
        if around and size >= margin:
            x = torch.cat([x.narrow(axis, size - margin, margin), x, x.narrow(axis, 0, margin)], dim=axis)
        elif around:  # more than once around
            x = x.index_select(axis, torch.arange(-margin, size + margin, device=x.device) % size)
    return x


class PaddedConv(nn.Module):
    """Convolution that pads each axis with zeros, or around where the axis is periodic."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, periodic: Sequence[bool], stride: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.periodic, self.margin = tuple(periodic), kernel // 2 * dilation
        zero = [0 if around else self.margin for around in periodic]
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(zero[0], zero[1]), dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(pad_around(x, self.margin, self.periodic))


class ResBlock(nn.Module):
    """Two convolutions, the first maybe dilated, around a residual path; the noise level scales and shifts between."""

    def __init__(self, inputs: int, outputs: int, embedding: int, periodic: Sequence[bool], dilation: int = 1) -> None:
        super().__init__()
        self.norm1, self.norm2 = group_norm(inputs), group_norm(outputs)
        self.conv1 = PaddedConv(inputs, outputs, 3, periodic, dilation=dilation)
        self.conv2 = PaddedConv(outputs, outputs, 3, periodic)
        self.film = nn.Linear(embedding, 2 * outputs)
        self.path = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.conv.weight)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.film(embedding)[:, :, None, None].chunk(2, dim=1)
        y = self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        return self.path(x) + y


def embedding_frequencies(waves: int) -> Tensor:
    """Angular frequencies (waves,) that resolve log-SNR, which runs from about +9 to -10: wavelengths 1 to 50."""
    return 2 * math.pi * torch.logspace(0, math.log10(1 / 50), waves)


class NoiseEmbedding(nn.Module):
    """Sinusoids of the log signal-to-noise ratio, which varies over the whole range of t."""

    frequency: Tensor

    def __init__(self, width: int, waves: int = 32) -> None:
        super().__init__()
        self.register_buffer("frequency", embedding_frequencies(waves), persistent=False)
        self.layers = nn.Sequential(nn.Linear(2 * waves, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, log_snr: Tensor) -> Tensor:
        angle = log_snr[:, None] * self.frequency
        return self.layers(torch.cat([angle.sin(), angle.cos()], dim=1))


def group_norm(channels: int) -> nn.GroupNorm:
    groups = next(n for n in (8, 4, 2, 1) if channels % n == 0)
    return nn.GroupNorm(groups, channels)


def fold(x: Tensor, patch: int, periodic: Sequence[bool]) -> Tensor:
    """Puts patches of ``patch`` × ``patch`` cells into channels: (B, C, H, W) → (B, C p², ⌈H/p⌉, ⌈W/p⌉).

    An axis that is no multiple of p goes on around if it is periodic, and with zeros if it is not.
    """
    if patch == 1:
        return x
    for axis, around in zip((-2, -1), periodic):
        size = x.shape[axis]
        more = -size % patch
        if more and around:
            x = x.index_select(axis, torch.arange(size + more, device=x.device) % size)
        elif more:
            x = F.pad(x, (0, more) if axis == -1 else (0, 0, 0, more))
    return F.pixel_unshuffle(x, patch)


def unfold(x: Tensor, patch: int, shape: Sequence[int]) -> Tensor:
    """Takes patches out of channels again and crops to ``shape`` (H, W); the inverse of `fold`."""
    if patch == 1:
        return x
    return F.pixel_shuffle(x, patch)[..., : shape[0], : shape[1]]
