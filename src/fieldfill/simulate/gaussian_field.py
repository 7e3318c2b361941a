r"""Gaussian fields whose best possible reconstruction is known: the yardstick of every method.

A stationary field with a chosen spectrum, carried by a constant velocity v and slowly renewed. With k the
wavenumber (cycles per ``wavelength`` cells) each mode follows

.. math::
    \hat x_{t+1}(k) = a_k e^{-i k \cdot v} \hat x_t(k) + \sqrt{(1 - a_k^2) S_k}\, \hat w_t(k), \qquad
    S_k \propto (\kappa + k^2)^{-s}, \qquad a_k = m^{1 + c k^2}

with the knee ``kappa``, the amplitude slope ``s``, the memory ``m`` and its loss of small scales ``c``. Modes
at the Nyquist wavenumber are left out: shifted by a fraction of a cell they would not stay real. Since all is
linear and Gaussian, E[x | observations] and Var[x | observations] are exact (:mod:`fieldfill.simulate.smoother`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.simulate.smoother import Conditioning, LinearModes, smooth

__all__ = ["GaussianField"]

# Without any noise the covariance of the observations is singular: this share of the variance is kept.
NOISE_FLOOR = 1e-9


@dataclass(frozen=True)
class GaussianField:
    r"""Advected, slowly evolving Gaussian field.

    Parameters
    ----------
    size : rows and columns (H, W), or one number for both.
    frames : frames T of a simulated sequence. Posterior and smoother take any number of frames.
    knee, slope : the amplitude of a mode falls as (knee + k²)^(-slope/2).
    variance : of the field at every cell.
    velocity : (vy, vx) in cells per frame, any real numbers.
    memory : correlation m of a large-scale mode with itself one frame earlier, 0 … 1. 1 is pure advection.
    memory_k2 : c in a_k = m^(1 + c k²): small scales forget faster.
    noise : standard deviation of the observation noise as a share of the field's.
    periodic : whether the grid itself is the torus. If not, the field is a corner of a torus twice as large
        in each direction, so that opposite edges are no neighbours.
    wavelength : of k = 1, in cells; the longer side of the grid unless given.
    """

    size: tuple[int, int] | int = 32
    frames: int = 8
    knee: float = 4.0
    slope: float = 3.0
    variance: float = 1.0
    velocity: tuple[float, float] = (0.4, 1.0)
    memory: float = 0.97
    memory_k2: float = 0.0
    noise: float = 0.05
    periodic: bool = True
    wavelength: float | None = None

    variables: ClassVar[tuple[str, ...]] = ("z",)
    units: ClassVar[Mapping[str, str]] = {
        "z": "1",
        "velocity_y": "1",
        "velocity_x": "1",
        "memory": "1",
        "noise_std": "1",
    }
    long_names: ClassVar[Mapping[str, str]] = {
        "z": "Gaussian field",
        "velocity_y": "velocity along y in cells per frame",
        "velocity_x": "velocity along x in cells per frame",
        "memory": "correlation of the large scales from frame to frame",
        "noise_std": "standard deviation of the observation noise",
    }

    def __post_init__(self) -> None:
        if min(self.shape) < 3 or self.frames < 1:
            raise InputError(f"size {self.size}, frames {self.frames}: take at least 3 x 3 cells and 1 frame")
        if not 0 <= self.memory <= 1:
            raise InputError(f"memory {self.memory} is a correlation: take a number from 0 to 1")
        for name in ("knee", "variance", "wavelength"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} {value} must be positive")
        for name in ("noise", "memory_k2"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} {getattr(self, name)} must not be negative")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns (H, W)."""
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[1])

    @property
    def torus(self) -> tuple[int, int]:
        """Rows and columns of the periodic grid on which the model is written."""
        height, width = self.shape
        return (height, width) if self.periodic else (2 * height, 2 * width)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the observation noise, in units of the field."""
        return self.noise * math.sqrt(self.variance)

    @cached_property
    def modes(self) -> LinearModes:
        """Density and propagator of every wavenumber."""
        height, width = self.torus
        fy = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
        fx = torch.fft.rfftfreq(width, dtype=torch.float64)[None, :]
        wavelength = max(self.shape) if self.wavelength is None else self.wavelength
        k2 = wavelength**2 * (fy**2 + fx**2)
        density = (self.knee + k2) ** -self.slope
        density = density * ((fy.abs() < 0.5) & (fx.abs() < 0.5))
        density *= self.variance / torch.fft.irfft2(density.to(torch.complex128), s=self.torus)[0, 0]
        phase = 2 * math.pi * (fy * self.velocity[0] + fx * self.velocity[1])
        return LinearModes(self.torus, density, self.memory ** (1 + self.memory_k2 * k2), phase)

    def coordinates(self) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
        """Values and attributes of time (in frames), y and x (in cells)."""
        closed = {"periodic": 1} if self.periodic else {}
        return {
            "time": (np.arange(float(self.frames)), {"units": "1", "axis": "T"}),
            "y": (np.arange(float(self.shape[0])), {"units": "1", "axis": "Y", **closed}),
            "x": (np.arange(float(self.shape[1])), {"units": "1", "axis": "X", **closed}),
        }

    def simulate(self, count: int, generator: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Noise-free sequences (B, 1, T, H, W), stationary from the first frame on, and their parameters."""
        fields = self.modes.sample(count, self.frames, self.shape, generator)[:, None]
        vy, vx = self.velocity
        shared = {"velocity_y": vy, "velocity_x": vx, "memory": self.memory, "noise_std": self.noise_std}
        return fields, {name: torch.full((count,), value, dtype=torch.float64) for name, value in shared.items()}

    def observe(self, fields: Tensor, generator: Generator) -> Tensor:
        """Fields of any shape with observation noise on every cell."""
        noise = torch.randn(fields.shape, dtype=fields.dtype, generator=generator)
        return fields + self.noise_std * noise

    def covariance(self, lag: int) -> Tensor:
        """Cov(x[t + lag, i + di, j + dj], x[t, i, j]) by separation.

        Periodic: (H, W), at [di, dj] modulo the size. Else (2H - 1, 2W - 1), at [di + H - 1, dj + W - 1].
        """
        table = self.modes.covariance(abs(lag) + 1)[-1]
        if lag < 0:
            table = table.flip(0, 1).roll((1, 1), (0, 1))
        if self.periodic:
            return table
        height, width = self.shape
        return table[torch.arange(1 - height, height)][:, torch.arange(1 - width, width)]

    def conditioning(self, observed: Tensor) -> Conditioning:
        """The exact posterior for one pattern of observations, bool (T, H, W), and any values on it."""
        return Conditioning(self.modes, observed, self._noise_variance)

    def posterior(
        self, values: Tensor, observed: Tensor, domain: Tensor | None = None, *, variance: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Exact mean and variance of the noise-free field given all observations of the window.

        Parameters
        ----------
        values : (T, H, W); read at observed cells only.
        observed : bool (T, H, W).
        domain : bool (H, W) or (T, H, W); cells outside are never read and come back as NaN.
        variance : False saves the larger part of the time and returns NaN in its place.

        Returns
        -------
        mean, variance : float64 (T, H, W).
        """
        values, observed, inside = self._checked(values, observed, domain)
        given = self.conditioning(observed)
        mean = given.mean(values).masked_fill(~inside, torch.nan)
        return mean, given.variance(inside) if variance else torch.full_like(mean, torch.nan)

    def smoother(
        self, values: Tensor, observed: Tensor, domain: Tensor | None = None, *, variance: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The same as :meth:`posterior` by a Kalman smoother: for whole records, however many their frames.

        Its cost grows with T n³, its memory with sqrt(T) n², n being the cells of the torus: those of the
        grid if periodic, else four times as many. It takes at most 4096: periodic grids up to 64 x 64, others
        up to 32 x 32.
        """
        values, observed, inside = self._checked(values, observed, domain)
        mean, spread = smooth(self.modes, values, observed, self._noise_variance, variance)
        return mean.masked_fill(~inside, torch.nan), spread.masked_fill(~inside, torch.nan)

    def draws(
        self, values: Tensor, observed: Tensor, count: int, generator: Generator, domain: Tensor | None = None
    ) -> Tensor:
        """Realisations (B, T, H, W) given all observations of the window; NaN outside the domain."""
        values, observed, inside = self._checked(values, observed, domain)
        return self.conditioning(observed).draws(values, count, generator).masked_fill(~inside, torch.nan)

    @property
    def _noise_variance(self) -> float:
        return self.variance * max(self.noise**2, NOISE_FLOOR)

    def _checked(self, values: Tensor, observed: Tensor, domain: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Values, observed cells inside the domain, and the domain of every frame, all (T, H, W)."""
        if values.shape != observed.shape or values.shape[1:] != self.shape or len(values) == 0:
            raise InputError(
                f"values {tuple(values.shape)} and observed {tuple(observed.shape)} must both be "
                f"(frames, {self.shape[0]}, {self.shape[1]})"
            )
        if domain is not None and domain.shape not in (self.shape, observed.shape):
            raise InputError(f"domain {tuple(domain.shape)} must be {self.shape} or {tuple(observed.shape)}")
        observed = observed.to(torch.bool)
        inside = torch.ones_like(observed) if domain is None else domain.to(torch.bool).expand(observed.shape)
        observed = observed & inside
        if not torch.isfinite(values[observed]).all():
            raise InputError("values has NaN or infinite observed cells: mark them as not observed")
        return values, observed, inside
