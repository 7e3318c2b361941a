r"""Linear rotating shallow water on a C-grid, in a periodic square or a basin with walls.

.. math:: h_t = -H (u_x + v_y), \qquad u_t = f v - g h_x, \qquad v_t = -f u - g h_y

with the height anomaly h, the velocity (u, v), gravity g, mean depth H and Coriolis parameter f. Plane waves
obey the dispersion relation :math:`\omega^2 = f^2 + g H (k_x^2 + k_y^2)`, or :math:`\omega = 0` (geostrophic
flow).

Cell (i, j) of the grid (row i to the north, column j to the east, spacing d) holds h at its centre, u at the
middle of its *east* face and v at the middle of its *north* face. The stored fields are these C-grid values,
not averages to the centres: averages would lose the shortest waves, and the residual of the stored frames is
then free of any error in space. :meth:`ShallowWater.tendency` is the only place where the equation is
written; the classical Runge-Kutta steps and the residual both call it. Mass is conserved to rounding, and the
grid operator conserves :math:`\tfrac12 \langle g h^2 + H (u^2 + v^2) \rangle`, with walls too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.simulate.diagnostics import simpson_residual
from fieldfill.simulate.spectral import check_grid, random_bumps, uniform

__all__ = ["ShallowWater"]


@dataclass(frozen=True)
class ShallowWater:
    """Waves and geostrophic flow from random bumps of height, in a square of side ``length`` metres.

    ``gravity`` (m s-2), ``depth`` (m), ``coriolis`` (s-1) and ``balance`` hold the bounds of uniform laws.
    ``balance`` is the share of the geostrophic velocity that the first frame has: 0 starts from rest and
    radiates everything as waves, 1 keeps most of the flow where it is. ``height`` (m) is the root mean square
    of the first heights. ``substeps`` is the number of time steps per frame (0: as many as accuracy requires
    for); ``walls`` closes the square.
    """

    size: int = 32
    frames: int = 50
    interval: float = 600.0
    length: float = 2.0e6
    gravity: tuple[float, float] = (5.0, 15.0)
    depth: tuple[float, float] = (50.0, 150.0)
    coriolis: tuple[float, float] = (0.5e-4, 1.5e-4)
    balance: tuple[float, float] = (0.0, 1.0)
    height: float = 1.0
    bumps: int = 24
    width: tuple[float, float] = (0.04, 0.15)
    substeps: int = 0
    walls: bool = False

    variables: ClassVar[tuple[str, ...]] = ("h", "u", "v")
    units: ClassVar[Mapping[str, str]] = {
        "h": "m",
        "u": "m s-1",
        "v": "m s-1",
        "gravity": "m s-2",
        "depth": "m",
        "coriolis": "s-1",
        "balance": "1",
    }
    long_names: ClassVar[Mapping[str, str]] = {
        "h": "height anomaly at the cell centre",
        "u": "eastward velocity at the east face of the cell",
        "v": "northward velocity at the north face of the cell",
        "gravity": "acceleration of gravity",
        "depth": "mean depth",
        "coriolis": "Coriolis parameter",
        "balance": "geostrophic share of the first velocity",
    }

    def __post_init__(self) -> None:
        check_grid(self.size, self.frames, self.interval)
        if self.balance[1] > 0 and self.coriolis[0] <= 0 <= self.coriolis[1]:
            raise InputError(
                f"coriolis={self.coriolis} holds 0, where no flow is balanced: use balance=(0, 0) or other bounds"
            )

    @property
    def spacing(self) -> float:
        return self.length / self.size

    def coordinates(self) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
        cells = (np.arange(self.size) + 0.5) * self.spacing
        around = {"units": "m", "periodic": int(not self.walls)}
        north = around | {"axis": "Y", "long_name": "northward distance of the cell centre"}
        east = around | {"axis": "X", "long_name": "eastward distance of the cell centre"}
        return {
            "time": (np.arange(self.frames) * self.interval, {"units": "s", "axis": "T"}),
            "y": (cells, north),
            "x": (cells, east),
        }

    def simulate(self, count: int, generator: Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns fields (B, 3, T, H, W) and the parameters gravity, depth, coriolis, balance (B,)."""
        names = ("gravity", "depth", "coriolis", "balance")
        parameters = {name: uniform(getattr(self, name), (count,), generator) for name in names}
        h = self.height * random_bumps(count, self.size, self.bumps, self.width, generator)
        return self.evolve(self.balanced(h, parameters), parameters), parameters

    def balanced(self, h: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """First state (B, 3, H, W): heights (B, H, W) and their share of non-divergent geostrophic flow."""
        g, f, share = (parameters[name][:, None, None] for name in ("gravity", "coriolis", "balance"))
        # the stream function lives at the north-east corner of each cell and is constant (0) along walls
        psi = torch.where(share > 0, share * g / f, 0) * self._corner_mean(h)
        if self.walls:
            psi[..., -1, :] = 0
            psi[..., :, -1] = 0
        u = -(psi - self._neighbour(psi, -1, -2)) / self.spacing
        v = (psi - self._neighbour(psi, -1, -1)) / self.spacing
        return torch.stack([h, u, v], dim=1)

    def plane_wave(self, n_y: int, n_x: int, time: float, parameters: Mapping[str, Tensor]) -> Tensor:
        """The exact wave h = cos(k x + l y - omega t) of the periodic equation, (B, 3, H, W).

        ``n_y`` and ``n_x`` count its cycles per side; its velocities follow from the momentum equations.
        """
        g, depth, f = (parameters[name][:, None, None] for name in ("gravity", "depth", "coriolis"))
        k, l = (2 * math.pi * n / self.length for n in (n_x, n_y))
        omega = torch.sqrt(f**2 + g * depth * (k**2 + l**2))
        centre = (torch.arange(self.size, dtype=torch.float64, device=f.device) + 0.5) * self.spacing
        face = centre + self.spacing / 2

        def wave(amplitude: Tensor, y: Tensor, x: Tensor) -> Tensor:
            return (amplitude * torch.exp(1j * (k * x + l * y[:, None] - omega * time))).real

        scale = g / (omega**2 - f**2)
        u = wave(scale * (omega * k + 1j * f * l), centre, face)
        v = wave(scale * (omega * l - 1j * f * k), face, centre)
        return torch.stack([wave(torch.ones_like(omega), centre, centre), u, v], dim=1)

    def evolve(self, first: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """The frames (B, 3, T, H, W) that follow from a first state (B, 3, H, W)."""
        substeps = self.substeps or self._stable_substeps()
        step = self.interval / substeps
        fields = first.new_empty(*first.shape[:2], self.frames, *first.shape[2:])
        state = first
        for frame in range(self.frames):
            fields[:, :, frame] = state
            for _ in range(substeps if frame + 1 < self.frames else 0):
                state = self._runge_kutta(state, parameters, step)
        return fields

    def tendency(self, state: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """The equation: the time derivative of a state (B, 3, H, W) or of all frames (B, 3, T, H, W)."""
        h, u, v = state.unbind(1)
        shape = (-1,) + (1,) * (h.ndim - 1)
        g, depth, f = (parameters[name].reshape(shape) for name in ("gravity", "depth", "coriolis"))
        near, d = self._neighbour, self.spacing
        v_east = 0.25 * (v + near(v, -1, -2))
        v_east = v_east + near(v_east, 1, -1)
        u_north = 0.25 * (u + near(u, -1, -1))
        u_north = u_north + near(u_north, 1, -2)
        h_t = (-depth / d) * (u - near(u, -1, -1) + v - near(v, -1, -2))
        u_t = f * v_east - (g / d) * (near(h, 1, -1) - h)
        v_t = -f * u_north - (g / d) * (near(h, 1, -2) - h)
        if self.walls:
            u_t[..., :, -1] = 0
            v_t[..., -1, :] = 0
        return torch.stack([h_t, u_t, v_t], dim=1)

    def residual(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """What the fields leave of the equation, (B, 3, T - 2, H, W): rates of h, u, v; O(interval ** 4)."""
        return simpson_residual(fields, self.tendency(fields, parameters), self.interval)

    def invariants(self, fields: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Mean height anomaly (m) and mean energy per unit of mass and area (m3 s-2), each (B, T)."""
        g, depth = (parameters[name].reshape(-1, 1, 1, 1) for name in ("gravity", "depth"))
        h, u, v = fields.unbind(1)
        energy = 0.5 * (g * h.square() + depth * (u.square() + v.square()))
        return {"mass": h.mean(dim=(-2, -1)), "energy": energy.mean(dim=(-2, -1))}

    def divergence(self, fields: Tensor) -> Tensor:
        """Horizontal divergence (s-1) at the cell centres of fields (B, 3, ..., H, W)."""
        _, u, v = fields.unbind(1)
        return (u - self._neighbour(u, -1, -1) + v - self._neighbour(v, -1, -2)) / self.spacing

    def _neighbour(self, x: Tensor, offset: int, dim: int) -> Tensor:
        """The value one cell further along ``dim`` (offset 1) or one cell back (-1); 0 beyond a wall."""
        moved = torch.roll(x, -offset, dims=dim)
        if self.walls:
            moved.select(dim, -1 if offset == 1 else 0).zero_()
        return moved

    def _corner_mean(self, h: Tensor) -> Tensor:
        rows = 0.5 * (h + self._neighbour(h, 1, -2))
        return 0.5 * (rows + self._neighbour(rows, 1, -1))

    def _stable_substeps(self) -> int:
        # Runge-Kutta is stable up to omega * step = 2.83; a quarter of it keeps its damping far below 1e-3
        fastest_wave = 8 * self.gravity[1] * self.depth[1] / self.spacing**2
        fastest = math.sqrt(fastest_wave + max(abs(f) for f in self.coriolis) ** 2)
        return max(1, math.ceil(fastest * self.interval / 0.7))

    def _runge_kutta(self, state: Tensor, parameters: Mapping[str, Tensor], step: float) -> Tensor:
        k1 = self.tendency(state, parameters)
        k2 = self.tendency(state + step / 2 * k1, parameters)
        k3 = self.tendency(state + step / 2 * k2, parameters)
        k4 = self.tendency(state + step * k3, parameters)
        return state + step / 6 * (k1 + 2 * (k2 + k3) + k4)
