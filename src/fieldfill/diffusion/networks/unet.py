"""The default network: a 2-D U-Net that sees the frames of a crop as channels.

Folding the frames makes the cost almost independent of their number: a crop of 50 frames costs little more
than one of 8, where full 3-D convolutions cost 20 to 30 times as much.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldfill.diffusion.networks.layers import NoiseEmbedding, PaddedConv, ResBlock, fold, group_norm, unfold

__all__ = ["FoldedUNet"]


class FoldedUNet(nn.Module):
    """2-D U-Net over (features · frames) channels.

    Parameters
    ----------
    features, variables, frames
        numbers of input features, output variables and frames: (B, F, T, H, W) → (B, C, T, H, W).
    base
        channels of the finest level; each coarser level doubles them, up to four times.
    levels
        number of resolutions; grids of any size are taken, odd ones included.
    periodic
        whether rows and columns close on themselves (circular padding) or end (zero padding).
    patch
        p × p cells become channels of one coarser cell at the stem and cells again at the head: a network of the
        same width costs about p² times less and is blinder to the finest detail.
    """

    frames_alike = False

    def __init__(
        self,
        features: int,
        variables: int,
        frames: int,
        base: int = 48,
        levels: int = 3,
        periodic: tuple[bool, bool] = (False, False),
        patch: int = 1,
    ) -> None:
        super().__init__()
        widths = [base * min(2**level, 4) for level in range(levels)]
        self.variables, self.frames, self.periodic, self.patch = variables, frames, periodic, patch
        self.embed = NoiseEmbedding(4 * base)
        self.stem = PaddedConv(features * frames * patch**2, base, 3, periodic)
        self.down = nn.ModuleList(ResBlock(w, w, 4 * base, periodic) for w in widths)
        self.shrink = nn.ModuleList(PaddedConv(a, b, 3, periodic, stride=2) for a, b in pairwise(widths))
        self.middle = ResBlock(widths[-1], widths[-1], 4 * base, periodic)
        self.up = nn.ModuleList(ResBlock(a + b, a, 4 * base, periodic) for a, b in pairwise(widths))
        self.norm = group_norm(base)
        self.head = PaddedConv(base, variables * frames * patch**2, 3, periodic)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # the untrained network leaves the skip as it is
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        b, _, _, h, w = features.shape
        embedding = self.embed(log_snr)
        x = fold(features.reshape(b, -1, h, w), self.patch, self.periodic)
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
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
        x = unfold(self.head(F.silu(self.norm(x))), self.patch, (h, w))
        return x.reshape(b, self.variables, self.frames, h, w)
