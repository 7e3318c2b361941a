"""Shallow water: waves move at the analytic speed, with the order of the scheme, and the budgets close."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from conftest import double, rms, seeded
from fieldfill.errors import InputError
from fieldfill.simulate.shallow_water import ShallowWater

G, DEPTH, F, LENGTH = 9.0, 100.0, 1.0e-4, 2.0e6


PARAMETERS = {"gravity": double([G]), "depth": double([DEPTH]), "coriolis": double([F])}


def seiche(size: int, time: float) -> Tensor:
    """The standing wave h = cos(2 pi x / L) cos(pi y / L) of a basin without rotation, (1, 3, N, N)."""
    d = LENGTH / size
    k, l = 2 * math.pi / LENGTH, math.pi / LENGTH
    omega = math.sqrt(G * DEPTH * (k**2 + l**2))
    cell = (torch.arange(size, dtype=torch.float64) + 0.5) * d
    face = cell + d / 2

    def wave(factor: float, y: Tensor, x: Tensor) -> Tensor:
        return factor * y[:, None] * x[None, :]

    h = wave(math.cos(omega * time), torch.cos(l * cell), torch.cos(k * cell))
    swing = G / omega * math.sin(omega * time)
    u = wave(swing * k, torch.cos(l * cell), torch.sin(k * face))
    v = wave(swing * l, torch.sin(l * face), torch.cos(k * cell))
    return torch.stack([h, u, v])[None]


def test_plane_waves_obey_the_dispersion_relation_at_second_order_in_space() -> None:
    errors = []
    for size in (16, 32, 64):
        settings = ShallowWater(size=size, length=LENGTH, frames=2, interval=2.0e4)
        last = settings.evolve(settings.plane_wave(-1, 2, 0, PARAMETERS), PARAMETERS)[:, :, -1]
        errors.append(rms(last - settings.plane_wave(-1, 2, 2.0e4, PARAMETERS)))
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert orders == pytest.approx([2, 2], abs=0.2)


def test_the_plane_wave_returns_after_the_period_of_the_dispersion_relation() -> None:
    settings = ShallowWater(size=16, length=LENGTH)
    omega = math.sqrt(F**2 + G * DEPTH * (2 * math.pi / LENGTH) ** 2 * (1 + 9))
    first, later = (settings.plane_wave(1, 3, time, PARAMETERS) for time in (0.0, 2 * math.pi / omega))
    torch.testing.assert_close(first, later, rtol=0, atol=1e-12)


def test_time_steps_are_of_fourth_order() -> None:
    def last(substeps: int) -> Tensor:
        settings = ShallowWater(size=8, frames=2, interval=4.0e4, substeps=substeps)
        return settings.evolve(settings.plane_wave(2, 1, 0, PARAMETERS), PARAMETERS)[:, :, -1]

    reference = last(400)
    assert math.log2(rms(last(20) - reference) / rms(last(40) - reference)) == pytest.approx(4, abs=0.2)


def test_a_basin_seiche_swings_at_the_analytic_frequency() -> None:
    errors = []
    still = PARAMETERS | {"coriolis": torch.zeros(1).double()}
    for size in (16, 32):
        settings = ShallowWater(size=size, frames=2, interval=4.0e4, walls=True)
        last = settings.evolve(seiche(size, 0), still)[:, :, -1]
        errors.append(rms(last - seiche(size, 4.0e4)))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.2)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("walls", [False, True])
def test_the_grid_operator_conserves_energy_for_any_state(walls: bool) -> None:
    settings = ShallowWater(size=9, walls=walls)
    state = torch.randn(1, 3, 9, 9, generator=seeded(), dtype=torch.float64)
    if walls:
        state[:, 1, :, -1] = 0
        state[:, 2, -1, :] = 0
    power = state * settings.tendency(state, PARAMETERS) * torch.tensor([G, DEPTH, DEPTH])[:, None, None]
    assert abs(power.sum()) < 1e-12 * power.abs().sum()


@pytest.mark.parametrize("walls", [False, True])
def test_simulated_mass_and_energy_are_conserved(walls: bool) -> None:
    settings = ShallowWater(walls=walls)
    fields, parameters = settings.simulate(4, seeded())
    invariants = settings.invariants(fields, parameters)
    assert (invariants["mass"] - invariants["mass"][:, :1]).abs().max() < 1e-13
    assert (invariants["energy"] / invariants["energy"][:, :1] - 1).abs().max() < 1e-4


def test_no_flow_crosses_a_wall() -> None:
    fields, _ = ShallowWater(size=12, frames=6, walls=True).simulate(3, seeded())
    assert (fields[:, 1, :, :, -1] == 0).all() and (fields[:, 2, :, -1, :] == 0).all()
    assert fields[:, 1, :, :, :-1].abs().max() > 0


@pytest.mark.parametrize("walls", [False, True])
def test_balanced_flow_starts_without_divergence_and_moves_less_than_flow_from_rest(walls: bool) -> None:
    changes = []
    for share in (1.0, 0.0):
        settings = ShallowWater(frames=20, balance=(share, share), walls=walls, width=(0.1, 0.2))
        fields, _ = settings.simulate(3, seeded())
        assert settings.divergence(fields)[:, 0].abs().max() < 1e-18 + 1e-12 * fields[:, 1:].abs().max()
        changes.append(rms(fields[:, 0, -1] - fields[:, 0, 0]))
    assert changes[0] < 0.5 * changes[1]


def test_without_rotation_the_flow_starts_from_rest() -> None:
    still = {"size": 8, "frames": 3, "coriolis": (0.0, 0.0)}
    with pytest.raises(InputError, match="coriolis"):
        ShallowWater(**still)
    fields, _ = ShallowWater(**still, balance=(0.0, 0.0)).simulate(2, seeded())
    assert torch.isfinite(fields).all() and (fields[:, 1:, 0] == 0).all() and (fields[:, 1:, 1] != 0).any()


@pytest.mark.parametrize("walls", [False, True])
def test_residual_falls_with_the_fourth_power_of_the_interval(walls: bool) -> None:
    values = []
    for interval, frames in ((800.0, 11), (400.0, 21)):
        settings = ShallowWater(size=16, frames=frames, interval=interval, substeps=8, walls=walls)
        fields, parameters = settings.simulate(3, seeded())
        values.append(rms(settings.residual(fields, parameters)[:, 0]))
    assert math.log2(values[0] / values[1]) == pytest.approx(4, abs=0.3)


def test_residual_sees_each_variable_and_each_parameter() -> None:
    settings = ShallowWater()
    fields, parameters = settings.simulate(3, seeded())
    floor = rms(settings.residual(fields, parameters) / settings.tendency(fields, parameters).std())
    assert floor < 1e-3
    for channel in range(3):
        wrong = fields.clone()
        wrong[:, channel] *= 1.2
        assert rms(settings.residual(wrong, parameters)) > 20 * rms(settings.residual(fields, parameters))
    for name in ("gravity", "depth", "coriolis"):
        other = parameters | {name: parameters[name] * 1.2}
        assert rms(settings.residual(fields, other)) > 20 * rms(settings.residual(fields, parameters))


def test_the_generator_decides_everything_and_the_global_state_is_untouched() -> None:
    before = torch.get_rng_state()
    settings = ShallowWater(size=8, frames=3)
    fields, parameters = settings.simulate(3, seeded(5))
    again, same = settings.simulate(3, seeded(5))
    assert torch.equal(before, torch.get_rng_state())
    assert fields.dtype == torch.float64 and fields.shape == (3, 3, 3, 8, 8)
    assert torch.equal(fields, again) and all(torch.equal(parameters[n], same[n]) for n in parameters)
    assert set(parameters) <= set(settings.units) and set(settings.variables) <= set(settings.units)
    for name, values in parameters.items():
        low, high = getattr(settings, name)
        assert ((low <= values) & (values <= high)).all()
