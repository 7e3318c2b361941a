"""Laws of the denoiser and its loss."""

from itertools import pairwise

import pytest
import torch

from conftest import no_maps, seeded, stir
from fieldfill.config import NETWORKS, Settings, build_denoiser
from fieldfill.diffusion.denoiser import FIRST_VARIANCE, PREDICTIONS, Denoiser, noised
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.estimators.base import Given
from fieldfill.estimators.chain import Chain

# First estimates: none at all, one that needs no learning, all that a fill uses.
FIRST = {
    "none": (),
    "pull-push": ("pull-push", "motion", "neighbourhood"),
    "gaussian": ("climatology", "gaussian", "drift", "waves", "motion", "neighbourhood"),
}


def denoiser_for(shape, first="pull-push", network="unet", periodic=(False, False), maps=0, **settings):
    _, variables, *crop = shape
    config = Settings(window=crop[0], estimators=FIRST[first], network=network, base=8, **settings)
    return build_denoiser(config, tuple(crop), variables, periodic, seed=0, maps=maps)


class Says(torch.nn.Module):
    """A network that always gives the same answer."""

    frames_alike = True

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer = torch.nn.Parameter(answer)

    def forward(self, features, log_snr):
        return self.answer


def saying(answer, prediction="data", spread=False):
    return Denoiser(Says(answer), VPSchedule(), Chain([]), prediction, spread)


def draws(*shape, seed=0):
    generator = seeded(seed)
    return [torch.randn(shape, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("shape", [(2, 1, 4, 16, 16), (1, 3, 5, 13, 18), (2, 2, 1, 7, 33)], ids=str)
@pytest.mark.parametrize("periodic", [(False, False), (True, False)], ids=str)
def test_any_grid_is_taken_and_gradients_are_finite(first, shape, periodic, prediction) -> None:
    denoiser = denoiser_for(shape, first, "unet", periodic, maps=1, prediction=prediction)
    x, noise, _, _ = draws(*shape)
    land = torch.zeros(len(x), 1, *shape[-2:])
    land[:, :, :2] = 1
    context = x > 0
    t = torch.tensor([1e-3, 1.0])[: len(x)]
    assert denoiser(t, x, context, land).shape == shape
    losses, counted = matching_losses(denoiser, t, x, noise, context, ~context, land)
    assert losses.shape == counted.shape == (len(x),)
    losses.sum().backward()
    gradients = [p.grad for p in denoiser.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("first", FIRST)
def test_untrained_denoiser_is_the_first_estimate_with_a_constant_variance(network, first) -> None:
    shape = (2, 1, 4, 9, 12)
    denoiser = denoiser_for(shape, first, network)
    x, mask, _, _ = draws(*shape)
    context, t = mask > 0, torch.tensor([1e-3, 0.4])
    alpha_t, sigma_t = (f(t).view(-1, 1, 1, 1, 1) for f in (denoiser.schedule.alpha, denoiser.schedule.sigma))
    estimate, variance = denoiser.predict(t, x, context, no_maps(x))
    y, noise = torch.where(context, x, 0) / alpha_t, (sigma_t / alpha_t) ** 2
    assert torch.equal(estimate, denoiser.chain(Given(y, context, noise, no_maps(x))).estimate)
    assert torch.allclose(variance, torch.full(shape, FIRST_VARIANCE))


def test_estimate_depends_on_the_context_cells_only() -> None:
    shape = (1, 1, 4, 12, 12)
    denoiser = _trained_a_little(shape)
    x = torch.randn(shape, generator=seeded(1))
    context = torch.rand(shape, generator=seeded(2)) < 0.4
    t = torch.tensor([0.1])
    other = torch.where(context, x, torch.full_like(x, 1e3))
    assert torch.equal(denoiser(t, x, context, no_maps(x)), denoiser(t, other, context, no_maps(x)))


def test_noise_level_changes_the_answer() -> None:
    shape = (1, 1, 4, 12, 12)
    denoiser = _trained_a_little(shape)
    x, context = torch.ones(shape), torch.ones(shape, dtype=torch.bool)
    answers = [denoiser(torch.tensor([t]), x, context, no_maps(x)) for t in (1e-3, 0.01, 0.1, 0.5, 1.0)]
    assert all((a - b).abs().max() > 1e-3 for a, b in pairwise(answers))


def _trained_a_little(shape):
    """The untrained network is silent; a few random weights make it speak."""
    denoiser = denoiser_for(shape)
    stir(denoiser)
    return denoiser


@pytest.mark.parametrize("periodic", [(True, False), (False, True), (True, True)], ids=str)
def test_periodic_axes_have_no_edge(periodic) -> None:
    """Rolling the input along a periodic axis by a multiple of the coarsest cell rolls the output."""
    shape = (1, 1, 2, 16, 16)
    denoiser = denoiser_for(shape, "none", periodic=periodic)
    stir(denoiser)
    generator = seeded()
    x = torch.randn(shape, generator=generator)
    context = torch.rand(shape, generator=generator) < 0.5
    t = torch.tensor([0.2])
    for axis, around in zip((-2, -1), periodic):
        rolled = denoiser(t, x.roll(8, axis), context.roll(8, axis), no_maps(x))
        same = torch.allclose(rolled, denoiser(t, x, context, no_maps(x)).roll(8, axis), atol=1e-4)
        assert same == around


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("t", [1e-3, 0.1, 0.5, 1.0])
def test_each_prediction_means_the_same_field(prediction, t) -> None:
    """Field → target of the network → field; and the loss of that target is 0."""
    x, noise, mask, _ = draws(1, 2, 3, 4, 5)
    context, time = mask > 0, torch.tensor([t])
    denoiser = saying(x, prediction)
    x_t = noised(denoiser.schedule, time, x, noise)
    target = denoiser.target(time, x, noise, context)
    tolerance = 1e-6 / denoiser.schedule.alpha(time).item()  # noise prediction divides by alpha_t
    assert torch.allclose(denoiser.convert(time, x_t, context, target), x, atol=max(1e-5, tolerance))
    query, right = torch.ones_like(context), saying(target, prediction)
    assert matching_losses(right, time, x, noise, context, query, no_maps(x))[0].item() < 1e-10
    assert torch.allclose(right(time, x_t, context, no_maps(x)), x, atol=max(1e-5, tolerance))


def test_targets_are_those_of_the_definitions() -> None:
    x, noise, mask, _ = draws(1, 1, 2, 4, 4)
    context, t, schedule = mask > 0, torch.tensor([0.3]), VPSchedule()
    alpha, sigma = schedule.alpha(t), schedule.sigma(t)
    expected = {"data": x, "noise": noise, "velocity": alpha * noise - sigma * x}
    for prediction, inside in expected.items():
        target = saying(x, prediction).target(t, x, noise, context)
        assert torch.allclose(target[context], inside[context])
        assert torch.equal(target[~context], x[~context])  # no noise is seen there: the field itself


def test_loss_is_the_error_in_the_space_of_the_prediction() -> None:
    x, noise, mask, answer = draws(1, 1, 2, 4, 4)
    t, context, query = torch.tensor([0.5]), torch.ones_like(mask, dtype=torch.bool), mask > 0
    for prediction in PREDICTIONS:
        denoiser = saying(answer, prediction)
        expected = (answer - denoiser.target(t, x, noise, context)).square()[query].mean()
        found = matching_losses(denoiser, t, x, noise, context, query, no_maps(x))[0]
        assert found.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("spread", [False, True])
def test_loss_counts_each_sample_by_its_own_query(prediction, spread) -> None:
    """A sample with one query cell is judged like one with a hundred; one without has loss 0 and does not count."""
    x, t = torch.zeros(3, 1, 1, 10, 10), torch.full((3,), 0.2)
    answer = torch.full((3, 1 + spread, 1, 10, 10), 2.0)
    query = torch.zeros_like(x, dtype=torch.bool)
    query[0] = True
    query[1, 0, 0, 4, 4] = True
    losses, counted = matching_losses(
        saying(answer, prediction, spread), t, x, torch.zeros_like(x), torch.zeros_like(query), query, no_maps(x)
    )
    assert counted.tolist() == [True, True, False]
    assert losses[0].item() == pytest.approx(losses[1].item()) and losses[2].item() == 0
    assert spread or losses[0].item() == pytest.approx(4)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("spread", [False, True])
def test_loss_sees_query_cells_only(prediction, spread) -> None:
    x, noise, mask, _ = draws(1, 1, 2, 4, 4)
    query = torch.zeros_like(x, dtype=torch.bool)
    query[0, 0, 1, 2, 3] = True
    denoiser = saying(torch.zeros(1, 1 + spread, 2, 4, 4), prediction, spread)
    losses, _ = matching_losses(denoiser, torch.tensor([0.4]), x, noise, mask > 0, query, no_maps(x))
    losses.sum().backward()
    assert torch.equal(denoiser.network.answer.grad != 0, query.expand(-1, 1 + spread, -1, -1, -1))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_variance_does_not_pull_at_the_mean(prediction) -> None:
    x, noise, mask, answer = draws(1, 1, 2, 4, 4)
    raw, gradients = torch.full_like(answer, 0.7), []
    for spread in (False, True):
        denoiser = saying(torch.cat([answer, raw], dim=1) if spread else answer.clone(), prediction, spread)
        query = torch.ones_like(mask, dtype=torch.bool)
        matching_losses(denoiser, torch.tensor([0.4]), x, noise, mask > 0, query, no_maps(x))[0].sum().backward()
        gradients.append(denoiser.network.answer.grad[:, :1])
    assert torch.equal(*gradients)


def test_variance_learns_the_mean_squared_residual() -> None:
    """The optimum of the likelihood is the error variance of the mean, here of a mean that is always 0."""
    generator = seeded()
    scale = torch.tensor([0.05, 1.5]).view(1, 2, 1, 1, 1)
    denoiser = saying(torch.zeros(1, 4, 1, 1, 1), spread=True)
    t, everywhere = torch.tensor([0.1]), torch.ones(1, 2, 1, 40, 40, dtype=torch.bool)
    denoiser.network.answer.register_hook(lambda g: g * torch.tensor([0.0, 0.0, 1.0, 1.0]).view(1, 4, 1, 1, 1))
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=0.1)
    for _ in range(200):
        x = scale * torch.randn(1, 2, 1, 40, 40, generator=generator)
        loss = matching_losses(denoiser, t, x, torch.zeros_like(x), everywhere, everywhere, no_maps(x))[0].sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    _, variance = denoiser.predict(t, x, everywhere, no_maps(x))
    assert variance.flatten().tolist() == pytest.approx(scale.square().flatten().tolist(), rel=0.1)


def test_variance_stays_in_a_sane_range() -> None:
    raw = torch.linspace(-1e4, 1e4, 40).view(1, 1, 1, 5, 8)
    denoiser = saying(torch.cat([torch.zeros_like(raw), raw], dim=1), spread=True)
    x = torch.zeros_like(raw)
    _, variance = denoiser.predict(torch.tensor([0.1]), x, x.bool(), no_maps(x))
    assert 0 < variance.min() < 1e-4 and 5 < variance.max() < 20


def test_noising_mixes_signal_and_noise_by_the_schedule() -> None:
    t = torch.tensor([1e-3, 1.0])
    x, noise = torch.ones(2, 1, 1, 2, 2), torch.full((2, 1, 1, 2, 2), 2.0)
    schedule = VPSchedule()
    expected = schedule.alpha(t) + 2 * schedule.sigma(t)
    assert torch.allclose(noised(schedule, t, x, noise)[:, 0, 0, 0, 0], expected)


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first = denoiser_for((1, 1, 4, 8, 8))
    assert torch.equal(before, torch.random.get_rng_state())
    second = denoiser_for((1, 1, 4, 8, 8))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
