"""A U-Net over space and time in the paper's shape: convolutions and linear attention within each frame, then a layer
along time.

The frames go through the spatial layers as samples, (B·T, C, H, W); at the end of each stage every frame sees its own
cells as a sequence (B·T, H·W, C) and every cell its own frames as a sequence (B·H·W, T, C). The cost grows with the
number of frames, and so do the time steps it can resolve: a network for GPUs and for comparison with the paper. Its
layers come as a `Kit`, plain or magnitude-preserving.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fieldfill.diffusion.networks.karras import (
    MPBlock,
    MPConv,
    MPEmbedding,
    MPHead,
    MPLinear,
    mp_join,
    mp_sum,
    unit_magnitude,
)
from fieldfill.diffusion.networks.layers import NoiseEmbedding, PaddedConv, ResBlock, group_norm

__all__ = ["SpaceTimeUNet", "TemporalAttention", "TemporalConvolution"]


class PlainHead(nn.Sequential):
    """Norm, activation and a convolution that starts at zero."""

    def __init__(self, inputs: int, outputs: int, periodic: Sequence[bool]) -> None:
        last = PaddedConv(inputs, outputs, 3, periodic)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        super().__init__(group_norm(inputs), nn.SiLU(), last)


@dataclass(frozen=True)
class Kit:
    """The layers a `SpaceTimeUNet` is made of.

    Attributes
    ----------
    embedding, conv, block, head
        modules over (B,) or (B, C, H, W), see `blocks` and `magnitude`.
    norm, linear
        modules over sequences (N, T, C).
    scale
        what is done to queries, keys and values (..., channels) before they meet.
    add, join
        the sum of a residual path and its branch; the channels of two images side by side.
    """

    embedding: Callable[[int], nn.Module]
    conv: Callable[..., nn.Module]
    block: Callable[[int, int, int, Sequence[bool]], nn.Module]
    head: Callable[[int, int, Sequence[bool]], nn.Module]
    norm: Callable[[int], nn.Module]
    linear: Callable[[int, int], nn.Module]
    scale: Callable[[Tensor], Tensor]
    add: Callable[[Tensor, Tensor], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]


# Layers of the plain network.
PLAIN = Kit(
    embedding=NoiseEmbedding,
    conv=PaddedConv,
    block=ResBlock,
    head=PlainHead,
    norm=nn.LayerNorm,
    linear=nn.Linear,
    scale=lambda x: x,
    add=torch.add,
    join=lambda a, b: torch.cat([a, b], dim=1),
)
# Layers that preserve the magnitude of their input.
PRESERVING = Kit(
    embedding=MPEmbedding,
    conv=MPConv,
    block=MPBlock,
    head=MPHead,
    norm=lambda channels: nn.Identity(),
    linear=MPLinear,
    scale=lambda x: unit_magnitude(x, [-1]),
    add=mp_sum,
    join=mp_join,
)


def _heads(channels: int, size: int = 16) -> int:
    """Number of attention heads of at least ``size`` channels each, if there are so many."""
    return next(n for n in range(max(1, channels // size), 0, -1) if channels % n == 0)


class TemporalAttention(nn.Module):
    """Attention among the frames of a cell, (N, T, C) → (N, T, C), with a bias learnt for each distance in time.

    Frames that lie farther apart than ``farthest`` share one bias.
    """

    def __init__(self, channels: int, frames: int, kit: Kit, farthest: int = 32) -> None:
        super().__init__()
        self.heads = _heads(channels)
        self.reach = max(1, min(frames - 1, farthest))
        self.scale = kit.scale
        self.queries_keys_values = kit.linear(channels, 3 * channels)
        self.out = kit.linear(channels, channels)
        self.position = nn.Parameter(torch.zeros(self.heads, 2 * self.reach + 1))

    def forward(self, x: Tensor) -> Tensor:
        n, frames, channels = x.shape
        parts = self.queries_keys_values(x).view(n, frames, 3, self.heads, -1)
        q, k, v = self.scale(parts).permute(2, 0, 3, 1, 4)
        frame = torch.arange(frames, device=x.device)
        lag = (frame[None, :] - frame[:, None]).clamp(-self.reach, self.reach) + self.reach
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.position[:, lag].to(q.dtype))
        return self.out(y.transpose(1, 2).reshape(n, frames, channels))


class LinearAttention(nn.Module):
    """Attention among the cells of a frame at a cost that grows with their number, (N, S, C) → (N, S, C).

    Softmax over the channels of a query and over the cells of a key makes the two sums exchangeable: keys meet values
    first, in a matrix of the size of one head.
    """

    def __init__(self, channels: int, kit: Kit) -> None:
        super().__init__()
        self.heads = _heads(channels)
        self.scale = kit.scale
        self.queries_keys_values = kit.linear(channels, 3 * channels)
        self.out = kit.linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, cells, channels = x.shape
        parts = self.queries_keys_values(x).view(n, cells, 3, self.heads, -1)
        q, k, v = self.scale(parts).permute(2, 0, 3, 1, 4)
        y = q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v)
        return self.out(y.transpose(1, 2).reshape(n, cells, channels))


class TemporalConvolution(nn.Module):
    """Each frame of a cell with its two neighbours, (N, T, C) → (N, T, C); zeros beyond the crop."""

    def __init__(self, channels: int, frames: int, kit: Kit) -> None:
        super().__init__()
        self.linear = kit.linear(3 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.shape[1]
        padded = F.pad(x, (0, 0, 1, 1))
        return self.linear(torch.cat([padded[:, lag : lag + frames] for lag in range(3)], dim=2))


# Layers along time by name: another one takes (channels, frames, kit), maps (N, T, C) to itself, and gets a line here.
TEMPORAL: dict[str, Callable[[int, int, Kit], nn.Module]] = {
    "attention": TemporalAttention,
    "convolution": TemporalConvolution,
}


class Stage(nn.Module):
    """Spatial blocks followed by a residual layer over the cells and one along time, on (B·T, C, H, W)."""

    def __init__(self, blocks: Sequence[nn.Module], over_cells: nn.Module, along_time: nn.Module, kit: Kit) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.over_cells, self.along_time, self.add = over_cells, along_time, kit.add

    def forward(self, x: Tensor, embedding: Tensor, frames: int) -> Tensor:
        for block in self.blocks:
            x = block(x, embedding)
        n, channels, h, w = x.shape
        cells = x.permute(0, 2, 3, 1).reshape(n, h * w, channels)
        cells = self.add(cells, self.over_cells(cells))
        series = cells.view(-1, frames, h * w, channels).transpose(1, 2).reshape(-1, frames, channels)
        series = self.add(series, self.along_time(series))
        x = series.view(-1, h, w, frames, channels).permute(0, 3, 4, 1, 2).reshape(n, channels, h, w)
        return x.contiguous(memory_format=torch.channels_last)


class SpaceTimeUNet(nn.Module):
    """Factorised U-Net, (B, F, T, H, W) → (B, C, T, H, W); any number of frames and any size of the grid.

    Parameters
    ----------
    features, variables, frames
        numbers of input features and output variables; frames that a crop usually has.
    base, levels
        channels of the finest level, doubled at the coarser ones; number of resolutions, in space only.
    periodic
        whether rows and columns close on themselves (circular padding) or end (zero padding).
    blocks
        residual blocks of one stage.
    temporal
        a name in `TEMPORAL`.
    magnitude_preserving
        layers of `fieldfill.diffusion.networks.karras` in place of norms and biases.
    recompute
        keep only the inputs of each stage for the backward pass and compute the rest again: less memory, one more
        forward pass.
    """

    frames_alike = False

    def __init__(
        self,
        features: int,
        variables: int,
        frames: int,
        base: int = 32,
        levels: int = 3,
        periodic: tuple[bool, bool] = (False, False),
        blocks: int = 2,
        temporal: str = "attention",
        magnitude_preserving: bool = False,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        kit = PRESERVING if magnitude_preserving else PLAIN
        widths = [base * min(level + 1, 2) for level in range(levels)]
        self.join, self.recompute = kit.join, recompute

        def stage(inputs: int, outputs: int) -> Stage:
            pairs = pairwise([inputs] + [outputs] * blocks)
            spatial = [kit.block(a, b, 4 * base, periodic) for a, b in pairs]
            over_cells = nn.Sequential(kit.norm(outputs), LinearAttention(outputs, kit))
            along_time = nn.Sequential(kit.norm(outputs), TEMPORAL[temporal](outputs, frames, kit))
            return Stage(spatial, over_cells, along_time, kit)

        self.embed = kit.embedding(4 * base)
        self.stem = kit.conv(features + 1, base, 3, periodic)
        self.down = nn.ModuleList(stage(w, w) for w in widths)
        self.shrink = nn.ModuleList(kit.conv(a, b, 3, periodic, stride=2) for a, b in pairwise(widths))
        self.middle = stage(widths[-1], widths[-1])
        self.up = nn.ModuleList(stage(a + b, a) for a, b in pairwise(widths))
        self.head = kit.head(base, variables, periodic)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        b, _, frames, h, w = features.shape
        embedding = self.embed(log_snr).repeat_interleave(frames, dim=0)
        # A constant feature does the work of biases and shows where zero padding begins.
        x = F.pad(features, (0, 0, 0, 0, 0, 0, 0, 1), value=1.0)
        x = x.transpose(1, 2).reshape(b * frames, -1, h, w).contiguous(memory_format=torch.channels_last)
        x = self.stem(x)
        fine: list[Tensor] = []
        for i, stage in enumerate(self.down):
            x = self._run(stage, x, embedding, frames)
            if i < len(self.shrink):
                fine.append(x)
                x = self.shrink[i](x)
        x = self._run(self.middle, x, embedding, frames)
        for stage, kept in zip(reversed(self.up), reversed(fine)):
            x = F.interpolate(x, size=kept.shape[-2:], mode="nearest")
            x = self._run(stage, self.join(kept, x), embedding, frames)
        return self.head(x).reshape(b, frames, -1, h, w).transpose(1, 2)

    def _run(self, stage: nn.Module, x: Tensor, embedding: Tensor, frames: int) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(stage, x, embedding, frames, use_reentrant=False, preserve_rng_state=False)
        return stage(x, embedding, frames)
