"""The network of our presets: small, local, and the same for every frame.

A good first estimate has carried what lasts and what moves through the crop already. What is left to learn is local:
how it should bend, given what is seen near by and what the estimate missed there. So one set of weights serves all
frames, and every cell of every frame teaches it. A network that sees the whole crop as channels, such as
`fieldfill.diffusion.networks.unet.FoldedUNet`, has to learn the same for each frame anew.
"""

import torch
from torch import Tensor, nn

from fieldfill.diffusion.networks.layers import NoiseEmbedding, PaddedConv, ResBlock, fold, unfold

__all__ = ["Refiner"]


class Refiner(nn.Module):
    """Residual blocks of growing dilation over a frame and the two beside it.

    Parameters
    ----------
    features, variables
        numbers of input features and output variables: (B, F, T, H, W) → (B, C, T, H, W).
    frames
        not used: crops of any length are taken.
    base
        channels.
    levels
        number of blocks; each looks twice as far as the one before.
    periodic
        whether rows and columns close on themselves (circular padding) or end (zero padding).
    patch
        p × p cells become channels of one coarser cell at the stem and cells again at the head.
    """

    frames_alike = True  # a step of training need not look at all of them

    def __init__(
        self,
        features: int,
        variables: int,
        frames: int,
        base: int = 32,
        levels: int = 3,
        periodic: tuple[bool, bool] = (False, False),
        patch: int = 2,
    ) -> None:
        super().__init__()
        self.variables, self.periodic, self.patch = variables, periodic, patch
        self.embed = NoiseEmbedding(4 * base)
        self.stem = PaddedConv(3 * features * patch**2, base, 3, periodic)
        self.blocks = nn.ModuleList(ResBlock(base, base, 4 * base, periodic, 2**level) for level in range(levels))
        self.head = nn.Conv2d(base, variables * patch**2, 1)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # the untrained network leaves the skip as it is
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        b, _, frames, h, w = features.shape
        embedding = self.embed(log_snr).repeat_interleave(frames, dim=0)
        # The first and the last frame stand beside themselves.
        wide = torch.cat([features[:, :, :1], features, features[:, :, -1:]], dim=2)
        near = torch.cat([wide[:, :, :-2], features, wide[:, :, 2:]], dim=1)
        x = fold(near.transpose(1, 2).reshape(b * frames, -1, h, w), self.patch, self.periodic)
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x, embedding)
        x = unfold(self.head(x), self.patch, (h, w))
        return x.reshape(b, frames, self.variables, h, w).transpose(1, 2)
