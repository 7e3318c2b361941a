"""The default network: a 2-D U-Net that sees the frames of a window as channels.

Folding the frames makes the cost almost independent of their number: a window of 50 frames costs little more
than one of 8, where full 3-D convolutions cost 20 to 30 times as much.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FoldedUNet"]


class FoldedUNet(nn.Module):
    """2-D U-Net over (features · frames) channels.

    Arguments
    ---------
    features, variables, frames
        numbers of input features, output variables and frames: (B, F, T, H, W) → (B, C, T, H, W).
    base
        channels of the finest level; each coarser level doubles them, up to four times.
    levels
        number of resolutions; grids of any size are taken, odd ones included.
    periodic
        whether rows and columns close on themselves (circular padding) or end (zero padding).
    """

    def __init__(
        self,
        features: int,
        variables: int,
        frames: int,
        base: int = 48,
        levels: int = 3,
        periodic: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        widths = [base * min(2**level, 4) for level in range(levels)]
        self.variables, self.frames = variables, frames
        self.embed = NoiseEmbedding(4 * base)
        self.stem = PaddedConv(features * frames, base, 3, periodic)
        self.down = nn.ModuleList(ResBlock(w, w, 4 * base, periodic) for w in widths)
        self.shrink = nn.ModuleList(PaddedConv(a, b, 3, periodic, stride=2) for a, b in pairwise(widths))
        self.middle = ResBlock(widths[-1], widths[-1], 4 * base, periodic)
        self.up = nn.ModuleList(ResBlock(a + b, a, 4 * base, periodic) for a, b in pairwise(widths))
        self.norm = _norm(base)
        self.head = PaddedConv(base, variables * frames, 3, periodic)
        nn.init.zeros_(self.head.conv.weight)  # the untrained network leaves the skip as it is
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        b, _, _, h, w = features.shape
        embedding = self.embed(log_snr)
        x = self.stem(features.reshape(b, -1, h, w).contiguous(memory_format=torch.channels_last))
        levels: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x, embedding)
            if i < len(self.shrink):
                levels.append(x)
                x = self.shrink[i](x)
        x = self.middle(x, embedding)
        for block, fine in zip(reversed(self.up), reversed(levels)):
            x = F.interpolate(x, size=fine.shape[-2:], mode="nearest")
            x = block(torch.cat([fine, x], dim=1), embedding)
        x = self.head(F.silu(self.norm(x)))
        return x.reshape(b, self.variables, self.frames, h, w)


class PaddedConv(nn.Module):
    """Convolution that pads each axis with zeros, or around where the axis is periodic."""

    def __init__(self, inputs: int, outputs: int, kernel: int, periodic: Sequence[bool], stride: int = 1) -> None:
        super().__init__()
        self.periodic, self.margin = tuple(periodic), kernel // 2
        zero = [0 if around else self.margin for around in periodic]
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=(zero[0], zero[1]))

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (self.margin if around else 0 for around in self.periodic)
        if rows or columns:
            x = F.pad(x, (columns, columns, rows, rows), mode="circular")
        return self.conv(x)


class ResBlock(nn.Module):
    """Two convolutions around a residual path; the noise level scales and shifts in between."""

    def __init__(self, inputs: int, outputs: int, embedding: int, periodic: Sequence[bool]) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inputs), _norm(outputs)
        self.conv1 = PaddedConv(inputs, outputs, 3, periodic)
        self.conv2 = PaddedConv(outputs, outputs, 3, periodic)
        self.film = nn.Linear(embedding, 2 * outputs)
        self.path = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.conv.weight)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.film(embedding)[:, :, None, None].chunk(2, dim=1)
        y = self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        return self.path(x) + y


class NoiseEmbedding(nn.Module):
    """Sinusoids of the log signal-to-noise ratio, which varies over the whole range of t."""

    frequency: Tensor

    def __init__(self, width: int, waves: int = 32) -> None:
        super().__init__()
        # log-SNR runs from about +9 to -10: wavelengths from 1 to 50 resolve it everywhere.
        self.register_buffer("frequency", 2 * math.pi * torch.logspace(0, math.log10(1 / 50), waves), persistent=False)
        self.layers = nn.Sequential(nn.Linear(2 * waves, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, log_snr: Tensor) -> Tensor:
        angle = log_snr[:, None] * self.frequency
        return self.layers(torch.cat([angle.sin(), angle.cos()], dim=1))


def _norm(channels: int) -> nn.GroupNorm:
    groups = next(n for n in (8, 4, 2, 1) if channels % n == 0)
    return nn.GroupNorm(groups, channels)
