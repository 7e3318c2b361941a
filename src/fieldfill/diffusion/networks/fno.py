r"""A Fourier neural operator over (T, H, W): convolutions as large as the crop, by products in Fourier space.

With F the Fourier transform, W_k one complex matrix (outputs, inputs) per kept wavenumber k and A a pointwise matrix,

.. math:: x \leftarrow x + B \, \phi\left( F^{-1}(W_k \, F z) + A z \right), \qquad z = s_t \odot \mathrm{norm}(x) + b_t

where the scale s_t and shift b_t come from the noise level. Time and the axes that do not close on themselves are
continued with zeros before the transform, so that their ends do not touch; what lies beyond is cut off after it.

Reference: Fourier Neural Operator for Parametric Partial Differential Equations (2021).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldfill.diffusion.networks.layers import NoiseEmbedding, group_norm

__all__ = ["FNO", "SpectralConv"]


class FNO(nn.Module):
    """Fourier neural operator, (B, F, T, H, W) → (B, C, T, H, W), on grids of any size.

    Parameters
    ----------
    features, variables, frames
        numbers of input features, output variables and frames.
    base, levels
        channels, and number of blocks: an operator has no coarser levels.
    periodic
        whether rows and columns close on themselves or are continued with zeros.
    modes
        wavenumbers 0 … modes - 1 that are kept of rows and columns, and of time if the crop has as many.
    """

    frames_alike = False

    def __init__(
        self,
        features: int,
        variables: int,
        frames: int,
        base: int = 32,
        levels: int = 4,
        periodic: tuple[bool, bool] = (False, False),
        modes: int = 8,
    ) -> None:
        super().__init__()
        kept = (min(modes, _length(frames, False) // 2 + 1), modes, modes)
        around = (False, *periodic)
        self.embed = NoiseEmbedding(4 * base)
        self.lift = Pointwise(features, base)
        self.blocks = nn.ModuleList(FNOBlock(base, 4 * base, kept, around) for _ in range(levels))
        self.norm = group_norm(base)
        self.project = Pointwise(base, 4 * base)
        self.head = Pointwise(4 * base, variables)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # the untrained network leaves the skip as it is

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        embedding = self.embed(log_snr)
        x = self.lift(features)
        for block in self.blocks:
            x = block(x, embedding)
        return self.head(F.gelu(self.project(self.norm(x))))


class FNOBlock(nn.Module):
    """Spectral and pointwise path around a residual one; the noise level scales and shifts at the entrance."""

    def __init__(self, channels: int, embedding: int, modes: Sequence[int], periodic: Sequence[bool]) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.film = nn.Linear(embedding, 2 * channels)
        self.spectral = SpectralConv(channels, channels, modes, periodic)
        self.pointwise = Pointwise(channels, channels)
        self.mix = Pointwise(channels, channels)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.film(embedding)[:, :, None, None, None].chunk(2, dim=1)
        z = self.norm(x) * (1 + scale) + shift
        return x + self.mix(F.gelu(self.spectral(z) + self.pointwise(z)))


class Pointwise(nn.Conv1d):
    """The same matrix in every cell of (B, inputs, T, H, W); on CPUs much faster than a 3-D convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(2)).unflatten(2, x.shape[2:])


class SpectralConv(nn.Module):
    """Linear map of the lowest wavenumbers of (B, inputs, T, H, W) → (B, outputs, T, H, W).

    Parameters
    ----------
    modes
        m of each axis: wavenumbers ``|k|`` < m are kept, or fewer where the axis has fewer; the others are dropped.
    periodic
        whether each axis closes on itself.
    """

    def __init__(self, inputs: int, outputs: int, modes: Sequence[int], periodic: Sequence[bool]) -> None:
        super().__init__()
        self.modes, self.periodic = tuple(modes), tuple(periodic)
        frames, rows, columns = self.modes
        shape = (2 * frames - 1, 2 * rows - 1, columns)
        # Real and imaginary parts, since not every file format holds complex numbers: (2, k_t, k_h, k_w, in, out).
        # The factor keeps the variance of a field whose energy lies in the kept wavenumbers.
        self.weight = nn.Parameter(torch.randn(2, *shape, inputs, outputs) / math.sqrt(2 * inputs))

    def forward(self, x: Tensor) -> Tensor:
        lengths = [_length(n, around) for n, around in zip(x.shape[-3:], self.periodic)]
        columns = min(self.modes[2], lengths[2] // 2 + 1)
        kept = [_wavenumbers(m, n).to(x.device) for m, n in zip(self.modes[:2], lengths[:2])]
        # Axis by axis, so that each transform works on what the ones before have kept.
        spectrum = torch.fft.rfft(x.float(), n=lengths[2], dim=-1)[..., :columns]
        for axis, k, n in zip((-2, -3), reversed(kept), reversed(lengths[:2])):
            spectrum = torch.fft.fft(spectrum, n=n, dim=axis).index_select(axis, k % n)
        spectrum = self._multiply(spectrum, *kept)
        for axis, k, n in zip((-3, -2), kept, lengths):
            shape = list(spectrum.shape)
            shape[axis] = n
            whole = spectrum.new_zeros(shape).index_copy(axis, k % n, spectrum)
            spectrum = torch.fft.ifft(whole, dim=axis).narrow(axis, 0, x.shape[axis])
        return torch.fft.irfft(spectrum, n=lengths[2], dim=-1)[..., : x.shape[-1]].to(x.dtype)

    def _multiply(self, spectrum: Tensor, frames: Tensor, rows: Tensor) -> Tensor:
        """One matrix product per wavenumber of ``spectrum`` (B, inputs, k_t, k_h, k_w)."""
        b, _, *size = spectrum.shape
        weight = self.weight[..., : size[2], :, :]
        for axis, k, m in zip((1, 2), (frames, rows), self.modes):
            weight = weight.narrow(axis, int(k[0]) + m - 1, len(k))
        real, imaginary = weight.float().flatten(1, 3)
        # Products of real matrices: batched complex ones are slow on CPUs.
        parts = torch.view_as_real(spectrum.flatten(2).permute(2, 0, 1))
        stacked = torch.cat([parts[..., 0], parts[..., 1]], dim=1)
        real_real, imaginary_real = (stacked @ real).chunk(2, dim=1)
        real_imaginary, imaginary_imaginary = (stacked @ imaginary).chunk(2, dim=1)
        product = torch.complex(real_real - imaginary_imaginary, imaginary_real + real_imaginary)
        return product.permute(1, 2, 0).reshape(b, -1, *size)


def _length(size: int, periodic: bool) -> int:
    """Cells of an axis with the zeros that keep its ends apart: a quarter more, where it has ends and an extent."""
    return size if periodic or size == 1 else size + math.ceil(size / 4)


def _wavenumbers(modes: int, length: int) -> Tensor:
    """Signed wavenumbers ``|k|`` < modes of an axis, each once."""
    return torch.arange(-min(modes - 1, length // 2), min(modes - 1, (length - 1) // 2) + 1)
