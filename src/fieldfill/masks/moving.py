r"""Masks that move: ground tracks, swaths of an orbit, drifting clouds.

Tracks and swaths are sets of parallel bands. With the unit normal :math:`n = (\cos\theta, \sin\theta)`
(columns, rows) of an orbit tilted by :math:`\theta` and the offset :math:`o_f` of frame f, a cell at (x, y)
is seen when

.. math:: (n_x x + n_y y - o_f) \bmod d < w

for bands of width w that lie d cells apart. The offset advances by d / revisit per frame, so that the same
ground is seen again after ``revisit`` frames.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.masks.mask_model import MaskModel, Shape, check_share, draw_share

__all__ = ["CloudMask", "SwathMask", "TrackMask"]


def _bands(shape: Shape, theta: Tensor, spacing: float, width: float, revisit: float, generator: Generator) -> Tensor:
    """Bands (B, 1, T, H, W) with one tilt ``theta`` (B,) and a random phase per sample."""
    B, _, T, H, W = shape
    phase = spacing * torch.rand(B, generator=generator)
    frames = spacing / revisit * torch.arange(T)
    across = torch.cos(theta)[:, None] * torch.arange(W) - phase[:, None]
    along = torch.sin(theta)[:, None] * torch.arange(H)
    distance = across[:, None, None, :] + along[:, None, :, None] - frames[None, :, None, None]
    return (distance.remainder_(spacing) < width).unsqueeze(1)


@dataclass(frozen=True)
class SwathMask(MaskModel):
    """Broad bands of a polar orbiter.

    Parameters
    ----------
    width, spacing : float
        Band width and distance between bands, in cells; width / spacing is the share observed.
    tilt : float
        Angle of the band normal to the columns, degrees; every sample adds a jitter of a few degrees.
    revisit : float
        Frames after which the same ground is seen again.
    """

    width: float = 12.0
    spacing: float = 30.0
    tilt: float = 12.0
    revisit: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.width <= self.spacing or self.revisit <= 0:
            raise InputError(
                f"swath width {self.width}, spacing {self.spacing}, revisit {self.revisit}: "
                "give 0 < width <= spacing and revisit > 0"
            )

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        jitter = 3.0 * torch.randn(shape[0], generator=generator)
        theta = torch.deg2rad(self.tilt + jitter)
        return _bands(shape, theta, self.spacing, self.width, self.revisit, generator).expand(shape).contiguous()


@dataclass(frozen=True)
class TrackMask(MaskModel):
    """Thin ascending and descending ground tracks, as of a nadir altimeter.

    Parameters
    ----------
    width, spacing : float
        Track width and distance between tracks of one direction, in cells.
    tilt : float
        Tracks cross at plus and minus this angle, degrees.
    revisit : float
        Frames after which a track returns; the lines move in between.
    """

    width: float = 1.0
    spacing: float = 20.0
    tilt: float = 30.0
    revisit: float = 5.3

    def __post_init__(self) -> None:
        if not 0 < self.width <= self.spacing or self.revisit <= 0:
            raise InputError(
                f"track width {self.width}, spacing {self.spacing}, revisit {self.revisit}: "
                "give 0 < width <= spacing and revisit > 0"
            )

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        theta = torch.full((shape[0],), math.radians(self.tilt))
        mask = _bands(shape, theta, self.spacing, self.width, self.revisit, generator)
        mask = mask | _bands(shape, -theta, self.spacing, self.width, self.revisit, generator)
        return mask.expand(shape).contiguous()


@dataclass(frozen=True)
class CloudMask(MaskModel):
    r"""Clouds: hidden where a smooth Gaussian field, drifting and slowly renewed, exceeds a threshold.

    The field has unit variance and correlation :math:`\exp(-r^2 / 2\ell^2)`; frame by frame it moves with the
    sample's wind and keeps ``memory`` of its pattern. The threshold is the normal quantile of ``observed``,
    so the share observed is right on average and varies from sample to sample as real clouds do.

    Parameters
    ----------
    observed : float or (lo, hi)
        Expected share observed; a range gives each sample its own.
    scale : float
        Correlation length in cells.
    speed : float
        Cells per frame, in a random direction per sample.
    memory : float
        Correlation of the pattern with itself one frame later (in the moving frame), in [0, 1].
    """

    observed: float | tuple[float, float] = 0.4
    scale: float = 5.0
    speed: float = 1.0
    memory: float = 0.9

    def __post_init__(self) -> None:
        check_share(self.observed, "observed")
        if self.scale <= 0 or not 0 <= self.memory <= 1:
            raise InputError(f"cloud scale {self.scale}, memory {self.memory}: give scale > 0, memory in [0, 1]")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        p = draw_share(self.observed, shape[0], generator)
        threshold = math.sqrt(2) * torch.erfinv((2 * p - 1).clamp(-0.9999999, 0.9999999))
        fields = self.field(shape, generator)
        return (fields < threshold.view(-1, 1, 1, 1)).unsqueeze(1).expand(shape).contiguous()

    def field(self, shape: Shape, generator: Generator) -> Tensor:
        """The Gaussian field behind the clouds, (B, T, H, W), mean 0 and variance 1."""
        B, _, T, H, W = shape
        # Padding keeps opposite edges of the torus, on which the spectrum lives, uncorrelated.
        pad = math.ceil(3 * self.scale)
        size = (_even(H + pad), _even(W + pad))
        ky = 2 * math.pi * torch.fft.fftfreq(size[0])[:, None]
        kx = 2 * math.pi * torch.fft.rfftfreq(size[1])[None, :]
        amplitude = torch.exp(-0.25 * self.scale**2 * (kx**2 + ky**2))
        amplitude = amplitude / torch.fft.irfft2(amplitude**2, s=size)[0, 0].sqrt()
        angle = 2 * math.pi * torch.rand(B, generator=generator)
        shift = self.speed * (kx * angle.cos().view(-1, 1, 1) + ky * angle.sin().view(-1, 1, 1))
        step = torch.polar(torch.full_like(shift, self.memory), -shift)
        fresh = math.sqrt(1 - self.memory**2)
        spectrum, frames = None, []
        for _ in range(T):
            noise = torch.fft.rfft2(torch.randn((B, *size), generator=generator)) * amplitude
            spectrum = noise if spectrum is None else spectrum * step + fresh * noise
            frames.append(torch.fft.irfft2(spectrum, s=size)[:, :H, :W])
        return torch.stack(frames, dim=1)


def _even(size: int) -> int:
    return size + size % 2
