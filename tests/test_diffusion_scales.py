"""Units of a network: its inputs and outputs are of order one at every noise level."""

import pytest
import torch

from conftest import crops_of, gappy_record, lesson_of, seeded
from fieldfill.config import Settings, build_denoiser
from fieldfill.diffusion.denoiser import FIRST_VARIANCE, noised
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.scales import Scales
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.estimators.neighbourhood import blurred
from fieldfill.partition import PixelPartition

LEVELS = torch.tensor([-4.0, 0.0, 6.0])


def test_nothing_is_scaled_before_anything_was_learnt() -> None:
    assert all((part == 1).all() for part in Scales(2, LEVELS)(torch.tensor([-9.0, 0.0, 1.0, 9.0])))


def test_scales_are_those_of_their_levels_and_geometric_means_half_way() -> None:
    scales = Scales(1, LEVELS)
    for level, (misfit, residual) in enumerate(((1.0, 0.5), (0.25, 0.04), (0.01, 0.04))):
        scales.learn(level, torch.tensor([misfit]) ** 2, torch.tensor([residual]) ** 2)
    misfit, residual = (part.flatten() for part in scales(torch.tensor([-9.0, -4.0, -2.0, 0.0, 3.0, 6.0, 9.0])))
    assert torch.allclose(misfit, torch.tensor([1.0, 1.0, 0.5, 0.25, 0.05, 0.01, 0.01]))
    assert torch.allclose(residual, torch.tensor([0.5, 0.5, 0.02**0.5, 0.04, 0.04, 0.04, 0.04]))


def test_a_level_without_cells_keeps_what_it_had() -> None:
    scales = Scales(2, LEVELS)
    scales.learn(1, torch.tensor([0.04, torch.nan]), torch.tensor([torch.nan, 0.0]))
    misfit, residual = (part.flatten() for part in scales(LEVELS[1:2]))
    assert misfit.tolist() == pytest.approx([0.2, 1.0])
    assert residual.tolist() == pytest.approx([1.0, 1e-3])  # never nothing


@pytest.fixture(scope="module")
def learnt():
    generator = seeded()
    values = blurred(torch.randn(40, 16, 16, generator=generator), 2.0, (False, False)).numpy()
    crops = crops_of(gappy_record(values), 2)
    config = Settings(window=2, base=8, estimators=("pull-push", "motion", "neighbourhood"))
    denoiser = build_denoiser(config, crops.shape, 1, crops.periodic, seed=0)
    denoiser.learn_first(lesson_of(crops))
    return denoiser, crops


@pytest.mark.parametrize("t", [1e-3, 0.05, 0.3, 0.9])
def test_a_silent_network_has_a_loss_of_about_one_at_every_noise_level(learnt, t) -> None:
    denoiser, crops = learnt
    generator = seeded(1)
    batch = crops.draw(24, generator)
    context, query = PixelPartition().split(batch.observed, generator)
    noise = torch.randn(batch.x.shape, generator=generator)
    denoiser.spread = False
    losses, _ = matching_losses(denoiser, torch.full((24,), t), batch.x, noise, context, query, batch.maps)
    denoiser.spread = True
    assert 0.6 < losses.mean() < 1.6
    unit = denoiser.unit(torch.full((24,), t))
    assert (unit < 0.7).all() == (t < 0.1), "the estimate of a clear window is good, that of a noisy one is not"


def test_what_a_network_says_is_in_units_of_the_residual(learnt) -> None:
    denoiser, crops = learnt
    batch = crops.draw(2, seeded(2))
    t = torch.tensor([1e-3, 0.5])
    x_t = noised(denoiser.schedule, t, batch.x, torch.zeros_like(batch.x))
    before, variance = denoiser.predict(t, x_t, batch.observed, batch.maps)
    unit = denoiser.unit(t)
    assert torch.allclose(variance, (FIRST_VARIANCE * unit**2).expand_as(variance))
    bias = denoiser.network.head.bias
    with torch.no_grad():
        bias[: len(bias) // 2] = 1.0  # of the estimate; the other half is the spread
        after = denoiser.predict(t, x_t, batch.observed, batch.maps)[0]
        bias.zero_()
    assert torch.allclose(after - before, unit.expand_as(before), atol=1e-5)


def test_units_are_those_of_the_data_without_a_first_estimate_or_for_noise() -> None:
    for settings in (Settings(estimators=()), Settings(estimators=("climatology",)), Settings(prediction="noise")):
        denoiser = build_denoiser(settings, (8, 8, 8), 1, (False, False), seed=0)
        assert denoiser.scales is None
    assert VPSchedule().log_snr(VPSchedule().times(8, "snr")).diff().min() > 0  # levels rise, as Scales requires
