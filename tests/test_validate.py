"""The gain of a correction, which of two networks to go on with, and on how many windows a choice rests."""

import math

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Generator, Tensor

from fieldfill.calibrate import affordable
from fieldfill.config import PRESETS, build_denoiser
from fieldfill.holdout import hold_out
from fieldfill.record import open_record
from fieldfill.schedule import VPSchedule
from fieldfill.validate import Validation, validate
from fieldfill.windows import Normaliser, Windows


@pytest.fixture(scope="module")
def windows() -> Windows:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((60, 8, 9)) < 0.6, rng.standard_normal((60, 8, 9)), np.nan)
    record = open_record(xr.Dataset({"v": (("time", "lat", "lon"), values)}))
    windows = Windows(record, Normaliser(record.mean, record.std), 4)
    windows.held = hold_out(windows, 0.3, Generator().manual_seed(0))
    return windows


class Known:
    """A denoiser whose skip is 0 and whose correction is ``share`` of the truth plus noise."""

    def __init__(self, windows: Windows, share: float, noise: float, variance: float | None = None) -> None:
        self.schedule, self.spread, self.variance = VPSchedule(), variance is not None, variance
        self.share, self.noise, self.windows, self.calls = share, noise, windows, 0

    def eval(self) -> None:
        pass

    def compare(self, t: Tensor, x_t: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x = x_t / self.schedule.alpha(t).view(-1, 1, 1, 1, 1)
        wrong = self.noise * torch.randn(x.shape, generator=Generator().manual_seed(self.calls))
        self.calls += 1
        variance = None if self.variance is None else torch.full_like(x, self.variance)
        return torch.zeros_like(x), self.share * x + wrong, variance


def test_a_correction_that_is_too_strong_is_shrunk(windows) -> None:
    found = validate(Known(windows, 2.0, 0.0), windows, 0, shrink=True)
    assert found.gain == pytest.approx(0.5, abs=0.01) and found.error < 0.01


def test_a_correction_of_noise_is_left_out_and_never_costs_anything(windows) -> None:
    skip = validate(Known(windows, 0.0, 0.0), windows, 0, shrink=True)
    found = validate(Known(windows, 0.0, 1.0), windows, 0, shrink=True)
    assert found.gain < 0.1 and found.error <= skip.error
    assert validate(Known(windows, 0.0, 1.0), windows, 0).error > 1.5 * skip.error


def test_a_gain_never_turns_a_correction_around_or_enlarges_it(windows) -> None:
    assert validate(Known(windows, -1.0, 0.0), windows, 0, shrink=True).gain == 0
    assert validate(Known(windows, 0.5, 0.0), windows, 0, shrink=True).gain == 1


def test_a_correction_that_only_one_window_speaks_for_is_left_out(windows) -> None:
    class Lucky(Known):
        def compare(self, t: Tensor, x_t: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            guess, estimate, variance = super().compare(t, x_t, context)
            return guess, torch.cat([3 * estimate[:1], -0.05 * estimate[1:]]), variance

    assert 2 < len(windows.held.places) <= 16  # all of them in one batch
    skip = validate(Known(windows, 0.0, 0.0), windows, 0, shrink=True)
    found = validate(Lucky(windows, 1.0, 0.0), windows, 0, shrink=True)
    assert found.gain == 0 and found.error == skip.error


def test_the_surprise_is_least_where_the_stated_variance_is_the_error(windows) -> None:
    error = validate(Known(windows, 0.0, 0.0), windows, 0).error
    tried = {factor: validate(Known(windows, 0.0, 0.0, factor * error), windows, 0).surprise for factor in (0.5, 1, 2)}
    assert min(tried, key=lambda factor: tried[factor]) == 1
    assert tried[1] == pytest.approx(math.log(error) + 1, rel=1e-4)


def test_a_clearly_smaller_error_wins_and_among_equals_the_smaller_surprise() -> None:
    nothing = Validation(math.inf)
    one, better, surer = Validation(0.2, 1, 0.5), Validation(0.15, 1, 0.9), Validation(0.2002, 1, 0.1)
    assert one.beats(nothing, 0.2)
    assert better.beats(one, 0.15) and not one.beats(better, 0.15)
    assert surer.beats(one, 0.2) and not one.beats(surer, 0.2)
    mute = Validation(0.2)
    assert not Validation(0.2001).beats(mute, 0.2) and Validation(0.1999).beats(mute, 0.1999)


def test_a_gain_of_nothing_leaves_the_skip() -> None:
    denoiser = build_denoiser(
        PRESETS["fast"].model_copy(update={"window": 2, "base": 8, "levels": 1, "skip": "pull-push"}),
        torch.ones(1, 6, 6, dtype=torch.bool),
        (False, False),
        seed=0,
    )
    with torch.no_grad():
        for weight in denoiser.network.parameters():
            weight.add_(0.1)
    x = torch.randn(1, 1, 2, 6, 6, generator=Generator().manual_seed(0))
    t, context = torch.tensor([0.1]), torch.ones(x.shape, dtype=torch.bool)
    guess, estimate, _ = denoiser.compare(t, x, context)
    assert not torch.allclose(guess, estimate) and torch.equal(estimate, denoiser(t, x, context))
    denoiser.gain.fill_(0)
    assert torch.equal(denoiser(t, x, context), guess)


def test_a_choice_rests_on_fewer_windows_the_larger_they_are_and_never_on_one() -> None:
    counts = [affordable(2**power) for power in range(10, 32)]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 2
    assert affordable(31 * 50 * 3 * 32**2) == 6  # ten contexts in three ways and all at once, shallow water
    assert affordable(31 * 8 * 256**2) == 4
