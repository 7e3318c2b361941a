"""The gain of a correction, which of two networks to go on with, and on how many crops a choice rests."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import crops_of, gappy_record, seeded
from fieldfill.config import Settings, build_denoiser
from fieldfill.data.crops import VALIDATED_AT_ONCE, Crops
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.diffusion.validation import Validation, validate
from fieldfill.estimators.base import Answer
from fieldfill.uncertainty.held_cells import affordable

# First estimate, estimate and variance.
Compared = tuple[Tensor, Tensor, Tensor | None]


@pytest.fixture(scope="module")
def crops() -> Crops:
    return crops_of(gappy_record(np.random.default_rng(0).standard_normal((60, 8, 9)), 0.6), 4)


class Known:
    """A denoiser whose first estimate is 0 and whose correction is ``share`` of the truth plus noise."""

    def __init__(self, crops: Crops, share: float, noise: float, variance: float | None = None) -> None:
        self.schedule, self.spread, self.variance = VPSchedule(), variance is not None, variance
        self.share, self.noise, self.crops, self.calls = share, noise, crops, 0

    def eval(self) -> None:
        pass

    def compare(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor, first: Answer | None = None) -> Compared:
        x = x_t / self.schedule.alpha(t).view(-1, 1, 1, 1, 1)
        wrong = self.noise * torch.randn(x.shape, generator=seeded(self.calls))
        self.calls += 1
        variance = None if self.variance is None else torch.full_like(x, self.variance)
        return torch.zeros_like(x), self.share * x + wrong, variance


def test_a_correction_that_is_too_strong_is_shrunk(crops) -> None:
    found = validate(Known(crops, 2.0, 0.0), crops, 0, shrink=True)
    assert found.gain == pytest.approx(0.5, abs=0.01) and found.error < 0.01


def test_a_correction_of_noise_is_left_out_and_never_costs_anything(crops) -> None:
    first = validate(Known(crops, 0.0, 0.0), crops, 0, shrink=True)
    found = validate(Known(crops, 0.0, 1.0), crops, 0, shrink=True)
    assert found.gain < 0.1 and found.error <= first.error
    assert validate(Known(crops, 0.0, 1.0), crops, 0).error > 1.5 * first.error


def test_a_gain_never_turns_a_correction_around_or_enlarges_it(crops) -> None:
    assert validate(Known(crops, -1.0, 0.0), crops, 0, shrink=True).gain == 0
    assert validate(Known(crops, 0.5, 0.0), crops, 0, shrink=True).gain == 1


def test_a_correction_that_only_one_crop_speaks_for_is_left_out(crops) -> None:
    class Lucky(Known):
        def compare(
            self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor, first: Answer | None = None
        ) -> Compared:
            guess, estimate, variance = super().compare(t, x_t, context, maps, first)
            return guess, torch.cat([3 * estimate[:1], -0.05 * estimate[1:]]), variance

    few = replace(crops, held=crops.held.part(slice(12)))
    assert 2 < len(few.held.places) <= VALIDATED_AT_ONCE  # all of them in one batch
    first = validate(Known(few, 0.0, 0.0), few, 0, shrink=True)
    found = validate(Lucky(few, 1.0, 0.0), few, 0, shrink=True)
    assert found.gain == 0 and found.error == first.error


def test_the_surprise_is_least_where_the_stated_variance_is_the_error(crops) -> None:
    error = validate(Known(crops, 0.0, 0.0), crops, 0).error
    tried = {factor: validate(Known(crops, 0.0, 0.0, factor * error), crops, 0).surprise for factor in (0.5, 1, 2)}
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


def test_a_gain_of_nothing_leaves_the_first_estimate() -> None:
    settings = Settings(window=2, base=8, levels=1, estimators=("pull-push",))
    denoiser = build_denoiser(settings, (2, 6, 6), 1, (False, False), seed=0)
    with torch.no_grad():
        for weight in denoiser.network.parameters():
            weight.add_(0.1)
    x = torch.randn(1, 1, 2, 6, 6, generator=seeded())
    t, context, maps = torch.tensor([0.1]), torch.ones(x.shape, dtype=torch.bool), torch.zeros(1, 0, 6, 6)
    guess, estimate, _ = denoiser.compare(t, x, context, maps)
    assert not torch.allclose(guess, estimate) and torch.equal(estimate, denoiser(t, x, context, maps))
    denoiser.gain.fill_(0)
    assert torch.equal(denoiser(t, x, context, maps), guess)


def test_a_choice_rests_on_fewer_crops_the_larger_they_are_and_never_on_one() -> None:
    counts = [affordable(2**power) for power in range(10, 32)]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 2
    assert affordable(31 * 50 * 3 * 32**2) == 6  # ten contexts in three ways and all at once, shallow water
    assert affordable(31 * 8 * 256**2) == 4
