"""Simulators of physical fields; each equation is written once, to simulate and as a residual.

One module per equation. A simulator is a frozen dataclass of settings that follows one protocol
(:class:`fieldfill.simulate.store.Simulator`), so that :func:`fieldfill.simulate.store.write` takes any of them:

``variables``
    names of the C variables, in the order of the channels: ``("h", "u", "v")``.
``units``
    mapping from each variable *and each parameter* to its CF unit: ``{"h": "m", "gravity": "m s-2"}``;
    ``"1"`` for a number without a unit.
``long_names``
    mapping from the same names to a few words for a plot's axis.
``coordinates()``
    mapping ``"time"``, ``"y"``, ``"x"`` to ``(values, attributes)``: a 1-D numpy array of length T, H or W,
    and a mapping with at least ``units``.
``simulate(count, generator)``
    ``(fields, parameters)``: a float64 tensor (B, C, T, H, W) with B = ``count``, and a mapping from the name
    of each random parameter to a tensor (B,). All randomness comes from the ``torch.Generator``.
``residual(fields, parameters)``
    what is left of the equation when ``fields`` are put into it: (B, C, T - 2, H, W), at the interior frames.
``invariants(fields, parameters)``
    mapping from the name of each conserved or budgeted quantity (mass, energy, enstrophy ...) to a tensor (B,
    T).
"""

from fieldfill.simulate.advection import Advection
from fieldfill.simulate.navier_stokes import NavierStokes
from fieldfill.simulate.shallow_water import ShallowWater

__all__ = ["Advection", "NavierStokes", "ShallowWater"]
