"""Advection: the exact solution is exact, the grid solver has its order, the residual sees the equation."""

import math

import pytest
import torch
from torch import Tensor

from conftest import double, seeded
from fieldfill.errors import InputError
from fieldfill.simulate.advection import Advection, propagate
from fieldfill.simulate.spectral import random_bumps


def trigonometric(size: int, shift_y: float, shift_x: float) -> Tensor:
    """A fixed sum of waves of up to 7 cycles per side, displaced, evaluated cell by cell: (1, 1, N, N)."""
    draw = seeded(3)
    cells = 2 * math.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size
    y, x = cells[:, None] - 2 * math.pi * shift_y, cells[None, :] - 2 * math.pi * shift_x
    field = torch.zeros(size, size, dtype=torch.float64)
    for _ in range(20):
        n_y, n_x = torch.randint(-7, 8, (2,), generator=draw).tolist()
        field += torch.cos(n_y * y + n_x * x + 6 * torch.rand(1, generator=draw, dtype=torch.float64))
    return field[None, None]


@pytest.mark.parametrize("size", [16, 17, 32])
def test_evolution_is_the_exact_translation(size: int) -> None:
    simulator = Advection(size=size, frames=9, interval=0.13)
    velocity = {"velocity_y": double([-0.71]), "velocity_x": double([0.37])}
    fields = simulator.evolve(trigonometric(size, 0, 0), velocity)
    for frame in range(9):
        time = frame * 0.13
        exact = trigonometric(size, -0.71 * time, 0.37 * time)
        torch.testing.assert_close(fields[:, :, frame], exact, rtol=0, atol=1e-12)


def test_simulated_frames_are_translations_of_the_first() -> None:
    # a velocity of whole cells per frame: translation is a roll of the array
    simulator = Advection(size=16, frames=5, interval=1 / 16)
    first = random_bumps(2, 16, 10, (0.05, 0.2), seeded())[:, None]
    velocity = {"velocity_y": double([1.0, -2.0]), "velocity_x": double([3.0, 0.0])}
    fields = simulator.evolve(first, velocity)
    torch.testing.assert_close(fields[0, 0, 4], torch.roll(first[0, 0], (4, 12), (0, 1)), rtol=0, atol=1e-12)
    torch.testing.assert_close(fields[1, 0, 4], torch.roll(first[1, 0], (-8, 0), (0, 1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_grid_solver_converges_at_its_order(order: int) -> None:
    errors = []
    for size in (64, 128):
        steps = size // 2
        cells = double([[0.37, -0.41]])
        first = torch.exp(torch.sin(2 * math.pi * torch.arange(size) / size).double())
        first = (first[:, None] * first[None, :].roll(size // 8))[None, None]
        last = propagate(first, cells, steps, order)[:, :, -1]
        settings = Advection(size=size, frames=2, interval=float(steps))
        velocity = {"velocity_y": cells[:, 0] / size, "velocity_x": cells[:, 1] / size}
        errors.append((last - settings.evolve(first, velocity)[:, :, -1]).square().mean().sqrt().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_the_grid_solver_is_exact_for_whole_cells_and_keeps_the_mean(order: int) -> None:
    first = torch.randn(2, 1, 8, 8, generator=seeded(), dtype=torch.float64)
    cells = double([[2.0, -1.0], [0.0, 11.0]])
    frames = propagate(first, cells, 3, order)
    torch.testing.assert_close(frames[0, 0, 3], torch.roll(first[0, 0], (6, -3), (0, 1)), rtol=0, atol=1e-12)
    torch.testing.assert_close(frames[1, 0, 3], torch.roll(first[1, 0], (0, 33), (0, 1)), rtol=0, atol=1e-12)
    moved = propagate(first, cells + 0.3, 30, order)
    torch.testing.assert_close(moved.mean(dim=(-2, -1)), first.mean(dim=(-2, -1))[:, :, None].expand(-1, -1, 31))
    assert moved.abs().max() <= 2 * first.abs().max(), "stable"


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_the_grid_solver_does_not_prefer_a_direction(order: int) -> None:
    first = torch.randn(1, 1, 9, 9, generator=seeded(), dtype=torch.float64)
    cells = double([[0.7, -1.2]])
    mirrored = propagate(first.flip(-2, -1), -cells, 4, order).flip(-2, -1)
    torch.testing.assert_close(mirrored, propagate(first, cells, 4, order), rtol=0, atol=1e-12)


def test_noise_carried_forth_and_back_is_the_same_noise() -> None:
    # noise has power at the Nyquist wavenumber, where half a shift would not be real
    simulator = Advection(size=8, frames=2, interval=0.3)
    first = torch.randn(1, 1, 8, 8, generator=seeded(), dtype=torch.float64)
    velocity = {"velocity_y": double([0.5]), "velocity_x": double([-0.9])}
    there = simulator.evolve(first, velocity)[:, :, -1]
    back = simulator.evolve(there, {name: -values for name, values in velocity.items()})[:, :, -1]
    torch.testing.assert_close(back, first, rtol=0, atol=1e-12)


def test_residual_falls_with_the_fourth_power_of_the_interval() -> None:
    rms = []
    for interval in (0.01, 0.005):
        simulator = Advection(size=16, frames=5, interval=interval, width=(0.1, 0.2))
        fields, parameters = simulator.simulate(4, seeded())
        rms.append(simulator.residual(fields, parameters).square().mean().sqrt().item())
    assert math.log2(rms[0] / rms[1]) == pytest.approx(4, abs=0.1)


def test_residual_is_small_for_the_solution_and_large_for_another_velocity() -> None:
    simulator = Advection()
    fields, parameters = simulator.simulate(6, seeded())
    scale = simulator.tendency(fields, parameters).square().mean().sqrt()
    assert simulator.residual(fields, parameters).square().mean().sqrt() < 2e-3 * scale
    wrong = {name: -values for name, values in parameters.items()}
    assert simulator.residual(fields, wrong).square().mean().sqrt() > scale


def test_mass_and_energy_are_conserved() -> None:
    simulator = Advection(size=17, frames=8)
    fields, parameters = simulator.simulate(5, seeded())
    for series in simulator.invariants(fields, parameters).values():
        torch.testing.assert_close(series, series[:, :1].expand_as(series), rtol=0, atol=1e-12)


def test_propagation_error_compares_with_the_true_sequence() -> None:
    simulator = Advection()
    truth, parameters = simulator.simulate(4, seeded())
    floor = simulator.propagation_error(truth[:, :, 0], truth, parameters)
    assert (floor < 0.01).all()
    # a first frame that is wrong by a constant stays wrong by it: a comparison with itself would see nothing
    error = simulator.propagation_error(truth[:, :, 0] + 0.5, truth, parameters)
    torch.testing.assert_close(error, floor + 0.25, rtol=0, atol=1e-6)


def test_the_generator_decides_everything_and_the_global_state_is_untouched() -> None:
    before = torch.get_rng_state()
    fields, parameters = Advection(size=8, frames=3).simulate(3, seeded(5))
    again, same = Advection(size=8, frames=3).simulate(3, seeded(5))
    other, _ = Advection(size=8, frames=3).simulate(3, seeded(6))
    assert torch.equal(before, torch.get_rng_state())
    assert fields.dtype == torch.float64 and fields.shape == (3, 1, 3, 8, 8)
    assert torch.equal(fields, again) and all(torch.equal(parameters[n], same[n]) for n in parameters)
    assert not torch.equal(fields, other)


def test_random_bumps_are_standard_and_do_not_depend_on_the_grid() -> None:
    coarse = random_bumps(3, 16, 12, (0.15, 0.3), seeded())
    fine = random_bumps(3, 64, 12, (0.15, 0.3), seeded())
    torch.testing.assert_close(coarse, fine[:, ::4, ::4], rtol=0, atol=1e-6)
    torch.testing.assert_close(fine.square().mean(dim=(-2, -1)), torch.ones(3).double())
    torch.testing.assert_close(fine.mean(dim=(-2, -1)), torch.zeros(3).double())


@pytest.mark.parametrize("settings", [{"size": 2}, {"frames": 0}, {"interval": 0.0}])
def test_impossible_grids_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        Advection(**settings)
