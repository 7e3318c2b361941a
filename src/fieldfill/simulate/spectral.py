r"""What the simulators share on a periodic square: wavenumbers, random parameters, smooth random fields.

The square has side ``length`` and N x N cells. A field x (..., N, N) and its half spectrum (..., N, N // 2 +
1) are joined by ``torch.fft.rfft2`` and ``irfft2``; rows are y, columns are x; :math:`k = 2 \pi n / length`.
"""

import math

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["angular_wavenumbers", "check_grid", "random_bumps", "uniform"]


def check_grid(size: int, frames: int, interval: float) -> None:
    """Refuses a grid on which no simulator can work."""
    if size < 4 or frames < 1 or not interval > 0:
        raise InputError(
            f"size={size}, frames={frames}, interval={interval}: "
            "size must be at least 4, frames at least 1, and interval positive"
        )


def angular_wavenumbers(size: int, length: float, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Returns the angular wavenumbers ``k_y`` (N, 1) and ``k_x`` (1, N // 2 + 1).

    The Nyquist wavenumber of an even grid has no sign, so it is set to 0: a first derivative leaves it out
    and a real field stays real under any shift.
    """
    unit = 2 * math.pi / length
    k_y = torch.fft.fftfreq(size, d=1 / size, dtype=torch.float64, device=device) * unit
    k_x = torch.fft.rfftfreq(size, d=1 / size, dtype=torch.float64, device=device) * unit
    if size % 2 == 0:
        k_y[size // 2] = 0
        k_x[size // 2] = 0
    return k_y[:, None], k_x[None, :]


def uniform(bounds: tuple[float, float], shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Independent uniform draws between ``bounds``, float64, on the generator's device."""
    low, high = bounds
    u = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return low + (high - low) * u


def random_bumps(count: int, size: int, bumps: int, width: tuple[float, float], generator: Generator) -> Tensor:
    r"""Sums of round bumps of many widths, zero mean, mean square 1, shape (B, N, N).

    .. math:: \hat x_k \propto \sum_n a_n w_n \exp(-\tfrac12 w_n^2 |k|^2 - i k \cdot c_n), \qquad
              \hat x_{Nyquist} = 0

    with normal amplitudes :math:`a_n`, uniform centres :math:`c_n` and log-uniform widths :math:`w_n`
    (``width``: bounds as shares of the side). The draws do not depend on ``size``: the same generator state
    gives the same field on a finer grid.
    """
    amplitude = torch.randn(count, bumps, generator=generator, device=generator.device, dtype=torch.float64)
    centre = uniform((0.0, 1.0), (2, count, bumps), generator)
    log_width = uniform((math.log(width[0]), math.log(width[1])), (count, bumps), generator)
    k_y, k_x = angular_wavenumbers(size, 1.0, generator.device)

    def profile(k: Tensor, c: Tensor) -> Tensor:
        return torch.exp(-0.5 * (k * log_width.exp()[..., None]) ** 2 - 1j * k * c[..., None])

    # a bump of height A has mean square pi (A w)^2: heights a / w, spectra a w, give every width the same
    # share
    rows = profile(k_y.flatten(), centre[0]) * (amplitude * log_width.exp())[..., None]
    columns = profile(k_x.flatten(), centre[1])
    spectrum = torch.einsum("bny,bnx->byx", rows, columns)
    spectrum[:, 0, 0] = 0
    if size % 2 == 0:
        spectrum[:, size // 2] = 0
        spectrum[:, :, -1] = 0
    field = torch.fft.irfft2(spectrum, s=(size, size))
    return field / field.square().mean(dim=(-2, -1), keepdim=True).sqrt()
