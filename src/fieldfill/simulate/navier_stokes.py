r"""Two-dimensional incompressible flow in vorticity form, pseudo-spectral, periodic on a square of side 2 pi.

.. math:: \omega_t + u \cdot \nabla \omega = \nu \nabla^2 \omega - \mu \omega + F, \qquad
          \nabla^2 \psi = -\omega, \quad u = (\psi_y, -\psi_x)

with viscosity :math:`\nu = 1 / Re` (unit speed and unit length), linear drag :math:`\mu` and the curl
:math:`F = -A n \cos(n y)` of the Kolmogorov force :math:`A \sin(n y)` along x. The equation is written once,
split in two: :meth:`NavierStokes.rates` are the linear rates of the Fourier modes,
:meth:`NavierStokes.nonlinear` is the rest, :math:`-u \cdot \nabla \omega + F`, from

.. math:: u \cdot \nabla \omega = (\partial_{xx} - \partial_{yy})(u v) + \partial_{xy}(v^2 - u^2)

(four transforms), free of aliases by the two-thirds rule. Time steps are the classical Runge-Kutta scheme
with the linear part integrated exactly; the residual adds the same two parts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.simulate.diagnostics import shell_spectrum, simpson_residual
from fieldfill.simulate.spectral import angular_wavenumbers, check_grid, uniform

__all__ = ["NavierStokes", "divergence", "kinetic_energy_spectrum", "resample", "velocity"]

# Length of a side of the torus.
LENGTH = 2 * math.pi


@dataclass(frozen=True)
class NavierStokes:
    r"""Decaying turbulence (the default) or, with ``forcing`` > 0, Kolmogorov flow.

    The first vorticity has random phases and the energy spectrum :math:`k / (3 + (k / k_0)^4)` with mean
    square velocity 1; it evolves for ``warmup`` time units before the first frame. ``reynolds`` and ``peak``
    (:math:`k_0`) hold the bounds of uniform laws. The flow is computed on ``max(size, resolution)`` cells per
    side and the frames keep its Fourier modes below the Nyquist wavenumber of ``size``. ``courant`` is the
    time step in grid cells per unit speed; ``forcing_wavenumber``, ``forcing`` and ``drag`` are n, A and
    :math:`\mu`.

    Reference: The emergence of isolated coherent vortices in turbulent flow (1984).
    """

    size: int = 64
    frames: int = 100
    interval: float = 0.05
    reynolds: tuple[float, float] = (200.0, 1000.0)
    peak: tuple[float, float] = (2.5, 5.0)
    forcing: float = 0.0
    forcing_wavenumber: int = 4
    drag: float = 0.0
    warmup: float = 2.0
    resolution: int = 160
    courant: float = 0.2

    variables: ClassVar[tuple[str, ...]] = ("vorticity",)
    units: ClassVar[Mapping[str, str]] = {"vorticity": "1", "reynolds": "1", "peak": "1"}
    long_names: ClassVar[Mapping[str, str]] = {
        "vorticity": "vorticity",
        "reynolds": "Reynolds number",
        "peak": "peak wavenumber of the first energy spectrum",
    }

    def __post_init__(self) -> None:
        check_grid(self.size, self.frames, self.interval)
        if self.forcing and 3 * self.forcing_wavenumber >= self.inner:
            raise InputError(
                f"forcing_wavenumber={self.forcing_wavenumber} needs a resolution above "
                f"{3 * self.forcing_wavenumber}, not {self.inner}"
            )

    @classmethod
    def kolmogorov(cls, **settings: Any) -> "NavierStokes":
        """Kolmogorov flow, forced at wavenumber 4 against a linear drag; the warm-up forgets the start."""
        return cls(**{"forcing": 0.5, "drag": 0.1, "warmup": 5.0, **settings})

    @property
    def inner(self) -> int:
        """Cells per side of the grid on which the flow is computed."""
        return max(self.size, self.resolution)

    def coordinates(self) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
        cells = np.arange(self.size) * (LENGTH / self.size)
        return {
            "time": (np.arange(self.frames) * self.interval, {"units": "1", "axis": "T"}),
            "y": (cells, {"units": "1", "axis": "Y", "periodic": 1}),
            "x": (cells, {"units": "1", "axis": "X", "periodic": 1}),
        }

    def simulate(self, count: int, generator: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns fields (B, 1, T, H, W) and the parameters reynolds, peak (B,)."""
        parameters = {
            "reynolds": uniform(self.reynolds, (count,), generator),
            "peak": uniform(self.peak, (count,), generator),
        }
        first = self.random_vorticity(parameters["peak"], generator)
        return self.evolve(first, parameters), parameters

    def random_vorticity(self, peak: Tensor, generator: Generator) -> Tensor:
        """Random-phase vorticity (B, 1, N, N) on the inner grid, mean square velocity 1."""
        shape = (len(peak), self.inner, self.inner)
        noise = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
        modes = _modes(self.inner, noise.device)
        k = modes.k_squared.sqrt()
        # a shell of radius k holds about k modes, hence one power of k less than the energy spectrum
        energy = 1 / (3 + (k / peak[:, None, None]) ** 4)
        omega_hat = torch.fft.rfft2(noise) * modes.keep * k * energy.sqrt()
        omega = torch.fft.irfft2(omega_hat, s=shape[1:])[:, None]
        u, v = velocity(omega)
        return omega / (u.square() + v.square()).mean(dim=(-2, -1), keepdim=True).sqrt()

    def evolve(self, first: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """The frames (B, 1, T, H, W) that follow from a vorticity (B, 1, N, N) on the inner grid."""
        fields = first.new_empty(len(first), 1, self.frames, self.size, self.size)
        # four trajectories at a time stay in the cache of a core: twice as fast as the whole batch at once
        for start in range(0, len(first), 4):
            some = slice(start, start + 4)
            self._evolve_into(fields[some, 0], first[some, 0], {k: p[some] for k, p in parameters.items()})
        if not torch.isfinite(fields).all():
            raise InputError(f"the flow blew up with courant={self.courant}; use a smaller one")
        return fields

    def _evolve_into(self, frames: Tensor, first: Tensor, parameters: Mapping[str, Tensor]) -> None:
        rates = self.rates(self.inner, parameters)
        omega_hat = torch.fft.rfft2(first) * _modes(self.inner, first.device).keep
        omega_hat = self._advance(omega_hat, rates, self.warmup)
        for frame in range(self.frames):
            frames[:, frame] = torch.fft.irfft2(resample(omega_hat, self.size), s=(self.size, self.size))
            if frame + 1 < self.frames:
                omega_hat = self._advance(omega_hat, rates, self.interval)

    def _advance(self, omega_hat: Tensor, rates: Tensor, duration: float) -> Tensor:
        """Runge-Kutta steps in the variable whose linear part is constant, over ``duration``."""
        steps = math.ceil(duration / (self.courant * LENGTH / self.inner) - 1e-9)
        step = duration / max(1, steps)
        half = torch.exp(rates * (step / 2))
        for _ in range(steps):
            moved = half * omega_hat
            k1 = self.nonlinear(omega_hat)
            k2 = self.nonlinear(moved + (step / 2) * half * k1)
            k3 = self.nonlinear(moved + (step / 2) * k2)
            k4 = self.nonlinear(half * (moved + step * k3))
            omega_hat = half * (moved + (step / 6) * (half * k1 + 2 * (k2 + k3))) + (step / 6) * k4
        return omega_hat

    def rates(self, size: int, parameters: Mapping[str, Tensor]) -> Tensor:
        """Linear part of the equation: the rate of each mode of a grid of ``size``, (B, N, N // 2 + 1)."""
        nu = 1 / parameters["reynolds"][:, None, None]
        return -nu * _modes(size, nu.device).k_squared - self.drag

    def nonlinear(self, omega_hat: Tensor) -> Tensor:
        """The rest of the equation, advection and force, for half spectra (..., N, N // 2 + 1)."""
        size = omega_hat.shape[-2]
        modes = _modes(size, omega_hat.device)
        u, v = _velocity(omega_hat, size)
        result = modes.uv * torch.fft.rfft2(u * v) + modes.difference * torch.fft.rfft2((v - u) * (v + u))
        if self.forcing:
            n = self.forcing_wavenumber
            # cos(n y) is one pair of modes, each size^2 / 2 in the unscaled transform
            result[..., [n, -n], 0] -= 0.5 * self.forcing * n * size**2
        return result

    def tendency(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """``omega_t`` by the equation, on the inner grid, at every frame of ``fields`` (B, 1, T, H, W)."""
        result = torch.empty_like(fields)
        rates = self.rates(self.inner, parameters)
        for sample, frames in enumerate(fields[:, 0]):
            omega_hat = resample(torch.fft.rfft2(frames), self.inner)
            tendency_hat = rates[sample] * omega_hat + self.nonlinear(omega_hat)
            result[sample, 0] = torch.fft.irfft2(resample(tendency_hat, self.size), s=(self.size, self.size))
        return result

    def residual(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """What the fields leave of the equation, (B, 1, T - 2, H, W).

        Fourth order in ``interval`` when the frames hold every mode of the flow (``resolution <= size``);
        otherwise what the lost modes do to the kept ones comes on top.
        """
        return simpson_residual(fields, self.tendency(fields, parameters), self.interval)

    def invariants(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Kinetic energy and enstrophy per unit of area, each (B, T)."""
        u, v = velocity(fields)
        energy = 0.5 * (u.square() + v.square()).mean(dim=(1, -2, -1))
        return {"energy": energy, "enstrophy": 0.5 * fields.square().mean(dim=(1, -2, -1))}

    def sources(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rates (B, T) at which viscosity, drag and force change the invariants; advection changes none."""
        size = fields.shape[-1]
        omega_hat = torch.fft.rfft2(fields)
        source_hat = self.rates(size, parameters)[:, None, None] * omega_hat
        source_hat = source_hat + self.nonlinear(torch.zeros_like(omega_hat))
        source = torch.fft.irfft2(source_hat, s=(size, size))
        psi = torch.fft.irfft2(_modes(size, fields.device).psi * omega_hat, s=(size, size))
        mean = {"dim": (1, -2, -1)}
        return {"energy": (psi * source).mean(**mean), "enstrophy": (fields * source).mean(**mean)}


def velocity(omega: Tensor) -> tuple[Tensor, Tensor]:
    """Velocity u (along x) and v (along y) of a vorticity (..., N, N), each (..., N, N)."""
    return _velocity(torch.fft.rfft2(omega), omega.shape[-1])


def divergence(u: Tensor, v: Tensor) -> Tensor:
    """Spectral divergence of a periodic velocity, u and v (..., N, N) on the square of side 2 pi."""
    size = u.shape[-1]
    k_y, k_x = angular_wavenumbers(size, LENGTH, u.device)
    return torch.fft.irfft2(1j * (k_x * torch.fft.rfft2(u) + k_y * torch.fft.rfft2(v)), s=(size, size))


def kinetic_energy_spectrum(omega: Tensor) -> Tensor:
    """Kinetic energy by wavenumber shell of a vorticity (..., N, N) → (..., K)."""
    u, v = velocity(omega)
    return 0.5 * (shell_spectrum(u) + shell_spectrum(v))


def resample(omega_hat: Tensor, size: int) -> Tensor:
    """The half spectrum on another grid, (..., size, size // 2 + 1): the modes that both grids hold."""
    source = omega_hat.shape[-2]
    if size == source:
        return omega_hat
    kept = (min(size, source) - 1) // 2
    columns = slice(0, kept + 1)
    result = omega_hat.new_zeros(*omega_hat.shape[:-2], size, size // 2 + 1)
    result[..., : kept + 1, columns] = omega_hat[..., : kept + 1, columns]
    result[..., -kept:, columns] = omega_hat[..., -kept:, columns]
    return result * (size / source) ** 2


def _velocity(omega_hat: Tensor, size: int) -> tuple[Tensor, Tensor]:
    modes = _modes(size, omega_hat.device)
    u = torch.fft.irfft2(modes.u * omega_hat, s=(size, size))
    v = torch.fft.irfft2(modes.v * omega_hat, s=(size, size))
    return u, v


class _Modes(NamedTuple):
    """Factors of the Fourier modes of a grid, each (N, N // 2 + 1)."""

    k_squared: Tensor
    keep: Tensor  # the modes that the two-thirds rule keeps
    psi: Tensor  # from the vorticity to the stream function, to u and to v
    u: Tensor
    v: Tensor
    uv: Tensor  # from the products u v and v^2 - u^2 to minus the advection of vorticity
    difference: Tensor


@lru_cache(maxsize=8)
def _modes(size: int, device: torch.device) -> _Modes:
    k_y, k_x = angular_wavenumbers(size, LENGTH, device)
    n_y = torch.fft.fftfreq(size, d=1 / size, device=device).abs()[:, None]
    n_x = torch.fft.rfftfreq(size, d=1 / size, device=device)[None, :]
    keep = (3 * n_y < size) & (3 * n_x < size)
    k_squared = k_y**2 + k_x**2
    psi = torch.where(k_squared > 0, 1 / k_squared.clamp(min=1), 0)
    return _Modes(
        k_squared,
        keep,
        psi,
        u=1j * k_y * psi,
        v=-1j * k_x * psi,
        uv=(k_x**2 - k_y**2) * keep,
        difference=k_x * k_y * keep,
    )
