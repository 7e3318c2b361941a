"""Navier-Stokes: exact solutions are kept, budgets close, orders are those of the scheme."""

import math

import pytest
import torch
from torch import Tensor

from conftest import double, seeded
from fieldfill.errors import InputError
from fieldfill.simulate.diagnostics import shell_spectrum, simpson_integral
from fieldfill.simulate.navier_stokes import NavierStokes, divergence, kinetic_energy_spectrum, velocity


def grid(size: int) -> tuple[Tensor, Tensor]:
    cells = 2 * math.pi * torch.arange(size, dtype=torch.float64) / size
    return cells[:, None], cells[None, :]


def smooth(size: int) -> Tensor:
    """A vorticity of a few waves that advect each other, (1, 1, N, N)."""
    y, x = grid(size)
    omega = torch.cos(2 * x + y) + 1.5 * torch.sin(x - 3 * y + 0.4) + torch.cos(3 * x) * torch.cos(2 * y)
    return omega[None, None]


def settings(size: int, **others: float) -> NavierStokes:
    return NavierStokes(**({"size": size, "resolution": size, "warmup": 0.0} | others))  # type: ignore[arg-type]


REYNOLDS = {"reynolds": double([100.0])}


@pytest.mark.parametrize("size", [32, 48])
def test_the_taylor_green_vortex_decays_at_the_analytic_rate(size: int) -> None:
    y, x = grid(size)
    first = (2 * torch.cos(x) * torch.cos(y))[None, None]
    last = settings(size, frames=11, interval=0.1).evolve(first, REYNOLDS)[:, :, -1]
    torch.testing.assert_close(last, first * math.exp(-2 / 100), rtol=0, atol=1e-12)


def test_advection_is_the_analytic_jacobian() -> None:
    # psi = cos(2x) + sin(y) gives omega = 4 cos(2x) + sin(y), u = cos(y), v = 2 sin(2x)
    y, x = grid(24)
    omega = 4 * torch.cos(2 * x) + torch.sin(y)
    exact = torch.cos(y) * (-8 * torch.sin(2 * x)) + 2 * torch.sin(2 * x) * torch.cos(y)
    advection = torch.fft.irfft2(settings(24).nonlinear(torch.fft.rfft2(omega)), s=(24, 24))
    torch.testing.assert_close(advection, -exact, rtol=0, atol=1e-12)


def test_advection_changes_neither_energy_nor_enstrophy() -> None:
    model = settings(32)
    omega = model.random_vorticity(double([5.0, 8.0]), seeded())[:, 0]
    tendency = torch.fft.irfft2(model.nonlinear(torch.fft.rfft2(omega)), s=(32, 32))
    u, v = velocity(omega)
    # d(energy)/dt of a vorticity tendency is u . u_t with u_t the velocity of the tendency
    u_t, v_t = velocity(tendency)
    scale = (omega * tendency).abs().mean()
    assert (omega * tendency).mean().abs() < 1e-13 * scale
    assert (u * u_t + v * v_t).mean().abs() < 1e-13 * scale


def test_the_laminar_kolmogorov_flow_is_steady() -> None:
    model = settings(32, frames=3, interval=0.2, forcing=0.5, drag=0.1)
    y, x = grid(32)
    omega = -0.5 * 4 * torch.cos(4 * y) / (16 / 100 + 0.1) + 0 * x
    fields = model.evolve(omega[None, None], REYNOLDS)
    torch.testing.assert_close(fields[0, 0], omega.expand(3, -1, -1), rtol=0, atol=1e-10)
    # the force points along +x where sin(4 y) > 0, and so does the flow
    u, v = velocity(omega)
    torch.testing.assert_close(u, 0.5 * torch.sin(4 * y) / 0.26 + 0 * x, rtol=0, atol=1e-12)
    assert v.abs().max() < 1e-12


def test_time_steps_are_of_fourth_order() -> None:
    cell = 2 * math.pi / 32
    last = [
        settings(32, frames=2, interval=1.0, courant=1 / (steps * cell)).evolve(smooth(32), REYNOLDS)[:, :, -1]
        for steps in (16, 32, 64)
    ]
    first, second = (last[0] - last[1]).square().mean().sqrt(), (last[1] - last[2]).square().mean().sqrt()
    assert torch.log2(first / second).item() == pytest.approx(4, abs=0.3)


@pytest.mark.parametrize("forced", [False, True])
def test_energy_and_enstrophy_budgets_close(forced: bool) -> None:
    grid_settings = {"size": 48, "resolution": 48, "frames": 41, "interval": 0.05, "reynolds": (100.0, 200.0)}
    model = NavierStokes.kolmogorov(**grid_settings) if forced else NavierStokes(**grid_settings)
    fields, parameters = model.simulate(2, seeded())
    sources = model.sources(fields, parameters)
    for name, series in model.invariants(fields, parameters).items():
        gain = simpson_integral(sources[name], model.interval)
        assert ((series[:, -1] - series[:, 0] - gain) / series[:, 0]).abs().max() < 1e-4, name
        assert (gain.abs() > 1e-2 * series[:, 0]).any(), "the budget is not trivial"


def test_residual_falls_with_the_fourth_power_of_the_interval() -> None:
    rms = []
    for interval in (0.1, 0.05):
        model = settings(32, frames=5, interval=interval, courant=0.1)
        fields = model.evolve(smooth(32), REYNOLDS)
        rms.append(model.residual(fields, REYNOLDS).square().mean().sqrt().item())
    assert math.log2(rms[0] / rms[1]) == pytest.approx(4, abs=0.3)
    assert rms[1] < 1e-3 * model.tendency(fields, REYNOLDS).square().mean().sqrt()
    wrong = model.residual(fields, {"reynolds": REYNOLDS["reynolds"] / 2})
    assert wrong.square().mean().sqrt() > 20 * rms[1]


def test_frames_are_the_low_modes_of_the_inner_flow() -> None:
    fine = NavierStokes(size=48, resolution=48, frames=3, warmup=0.2).simulate(1, seeded())[0]
    coarse = NavierStokes(size=24, resolution=48, frames=3, warmup=0.2).simulate(1, seeded())[0]
    fine_hat = torch.fft.rfft2(fine, norm="forward")
    coarse_hat = torch.fft.rfft2(coarse, norm="forward")
    torch.testing.assert_close(coarse_hat[..., :12, :12], fine_hat[..., :12, :12], rtol=0, atol=1e-12)
    torch.testing.assert_close(coarse_hat[..., -11:, :12], fine_hat[..., -11:, :12], rtol=0, atol=1e-12)


def test_the_velocity_has_no_divergence_and_the_given_curl() -> None:
    omega = smooth(32)
    u, v = velocity(omega)
    assert divergence(u, v).abs().max() < 1e-12
    # the curl of (u, v) is the divergence of (v, -u)
    torch.testing.assert_close(divergence(v, -u), omega, rtol=0, atol=1e-12)
    assert divergence(u + omega, v).abs().max() > 1


def test_first_velocity_is_one_and_its_energy_peaks_where_asked() -> None:
    omega = NavierStokes(resolution=64).random_vorticity(torch.full((200,), 6.0).double(), seeded())
    energy = kinetic_energy_spectrum(omega)[:, 0]
    torch.testing.assert_close(energy.sum(-1), torch.full((200,), 0.5).double())
    # a lone cell has equal power in every mode: its spectrum counts the modes of each shell
    lone = torch.zeros(64, 64, dtype=torch.float64)
    lone[0, 0] = 1
    density = (energy.mean(0) / shell_spectrum(lone))[1:20]
    k = torch.arange(1, 20).double()
    expected = 1 / (3 + (k / 6) ** 4)
    torch.testing.assert_close(density / density.sum(), expected / expected.sum(), rtol=0.15, atol=0)


@pytest.mark.parametrize("size", [15, 16])
def test_the_spectrum_sums_to_the_mean_square_and_finds_a_wave(size: int) -> None:
    noise = torch.randn(3, size, size, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(shell_spectrum(noise).sum(-1), noise.square().mean(dim=(-2, -1)))
    y, x = grid(size)
    wave = shell_spectrum(torch.cos(3 * x + 4 * y))
    assert wave[5].item() == pytest.approx(0.5) and wave.sum().item() == pytest.approx(0.5)


def test_the_generator_decides_everything_and_the_global_state_is_untouched() -> None:
    before = torch.get_rng_state()
    model = NavierStokes(size=16, resolution=16, frames=3, warmup=0.1)
    fields, parameters = model.simulate(6, seeded(5))
    again, same = model.simulate(6, seeded(5))
    assert torch.equal(before, torch.get_rng_state())
    assert fields.dtype == torch.float64 and fields.shape == (6, 1, 3, 16, 16)
    assert torch.equal(fields, again) and all(torch.equal(parameters[n], same[n]) for n in parameters)
    assert parameters["reynolds"].max() <= 1000


def test_unstable_steps_and_unresolved_forces_are_refused() -> None:
    with pytest.raises(InputError, match="courant"):
        settings(32, frames=30, interval=1.0, courant=20.0).evolve(30 * smooth(32), REYNOLDS)
    with pytest.raises(InputError, match="forcing_wavenumber"):
        NavierStokes(size=8, resolution=8, forcing=1.0)
