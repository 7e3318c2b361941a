import math

import torch

from conftest import seeded
from fieldfill.diffusion.schedule import PowerTime, VPSchedule

T = torch.linspace(1e-3, 1, 200, dtype=torch.float64)


def test_signal_and_noise_preserve_variance() -> None:
    schedule = VPSchedule()
    assert torch.allclose(schedule.alpha(T) ** 2 + schedule.sigma(T) ** 2, torch.ones_like(T), atol=1e-12)


def test_signal_to_noise_falls_with_t() -> None:
    assert (VPSchedule().log_snr(T).diff() < 0).all()


def test_closed_form_of_the_linear_schedule() -> None:
    t = torch.tensor(0.5, dtype=torch.float64)
    assert math.isclose(VPSchedule().log_alpha(t).item(), -(0.5**2) * 19.9 / 4 - 0.5 * 0.1 / 2, rel_tol=1e-12)


def test_smallest_noise_is_about_one_percent_even_in_float32() -> None:
    t = torch.tensor(1e-3, dtype=torch.float32)
    exact = VPSchedule().sigma(t.double()).item()
    assert abs(exact - 0.0105) < 1e-4
    assert abs(VPSchedule().sigma(t).item() / exact - 1) < 1e-5


def test_times_follow_their_law_and_the_generator() -> None:
    uniform = PowerTime(1.0).sample(20000, seeded())
    cubed = PowerTime(3.0).sample(20000, seeded())
    assert uniform.min() >= 1e-3 and uniform.max() <= 1
    assert abs(uniform.mean().item() - 0.5) < 0.01
    assert abs(cubed.mean().item() - 0.25) < 0.01  # E[u³] = 1/4
    assert torch.equal(uniform, PowerTime(1.0).sample(20000, seeded()))
