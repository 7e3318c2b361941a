r"""Physical diagnostics that belong to no single equation: residuals in time, integrals in time, spectra.

Frames are tensors (..., T, H, W) a fixed ``interval`` apart; the equation is written ``q_t = F(q)``.
"""

import torch
from torch import Tensor

__all__ = ["shell_spectrum", "simpson_integral", "simpson_residual"]


def simpson_residual(frames: Tensor, tendency: Tensor, interval: float) -> Tensor:
    r"""What is left of ``q_t = F(q)`` at the interior frames, (..., T - 2, H, W).

    .. math:: \frac{q^{n+1} - q^{n-1}}{2 \Delta} - \frac{F^{n-1} + 4 F^n + F^{n+1}}{6}

    The integral form of the equation over two intervals :math:`\Delta`, by Simpson's rule: exact solutions
    leave :math:`O(\Delta^4)`. ``tendency`` is F of every frame, shaped as ``frames``.
    """
    before, centre, after = slice(None, -2), slice(1, -1), slice(2, None)

    def at(x: Tensor, which: slice) -> Tensor:
        return x[..., which, :, :]

    change = (at(frames, after) - at(frames, before)) / (2 * interval)
    return change - (at(tendency, before) + 4 * at(tendency, centre) + at(tendency, after)) / 6


def simpson_integral(series: Tensor, interval: float) -> Tensor:
    """Integral over time of a series (..., T) with an odd number T of values, by Simpson's rule."""
    assert series.shape[-1] % 2 == 1, "Simpson's rule needs an odd number of frames"
    weights = torch.full_like(series[..., :], 2.0)
    weights[..., 1::2] = 4.0
    weights[..., 0] = weights[..., -1] = 1.0
    return (weights * series).sum(-1) * interval / 3


def shell_spectrum(field: Tensor) -> Tensor:
    """Mean square of a periodic square field by wavenumber shell, (..., N, N) → (..., K).

    Entry n sums the modes with ``round(|k|) = n`` cycles per side, up to the corner of the spectrum, so that
    the sum over n is the mean square of the field (Parseval).
    """
    size = field.shape[-1]
    n_y = torch.fft.fftfreq(size, d=1 / size, device=field.device)
    n_x = torch.fft.rfftfreq(size, d=1 / size, device=field.device)
    shell = torch.hypot(n_y[:, None], n_x[None, :]).round().long()
    # the half spectrum holds one of each conjugate pair, except for the columns that are their own conjugate
    pairs = torch.where((n_x == 0) | (2 * n_x == size), 1.0, 2.0).to(field.dtype)
    power = torch.fft.rfft2(field, norm="forward").abs().square() * pairs
    total = torch.zeros(*field.shape[:-2], int(shell.max()) + 1, dtype=power.dtype, device=field.device)
    return total.index_add_(-1, shell.flatten(), power.flatten(-2))
