"""Laws of the networks, skips, the denoiser and its loss."""

from itertools import pairwise

import pytest
import torch

from fieldfill.config import NETWORKS, PRESETS, SKIPS, build_denoiser
from fieldfill.denoise import noised, query_loss
from fieldfill.nn import PullPush
from fieldfill.schedule import VPSchedule

ONE, ZERO = torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, 1, 1)


def denoiser_for(shape, skip="pull-push", network="unet", periodic=(False, False), land=False):
    _, variables, frames, rows, columns = shape
    domain = torch.ones(variables, rows, columns, dtype=torch.bool)
    if land:
        domain[:, :2] = False
    config = PRESETS["fast"].model_copy(update={"window": frames, "skip": skip, "network": network, "base": 8})
    return build_denoiser(config, domain, periodic, seed=0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("shape", [(2, 1, 4, 16, 16), (1, 3, 5, 13, 18), (2, 2, 1, 7, 33)], ids=str)
@pytest.mark.parametrize("periodic", [(False, False), (True, False), (True, True)], ids=str)
def test_any_grid_is_taken_and_gradients_are_finite(network, skip, shape, periodic) -> None:
    denoiser = denoiser_for(shape, skip, network, periodic, land=True)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    context = x > 0
    estimate = denoiser(torch.tensor([1e-3, 0.7])[: len(x)], x, context)
    assert estimate.shape == x.shape
    query_loss(estimate, x, ~context).backward()
    gradients = [p.grad for p in denoiser.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(g).all() for g in gradients)


def test_estimate_depends_on_the_context_cells_only() -> None:
    shape = (1, 1, 4, 12, 12)
    denoiser = _trained_a_little(shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    context = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.4
    t = torch.tensor([0.1])
    other = torch.where(context, x, torch.full_like(x, 1e3))
    assert torch.equal(denoiser(t, x, context), denoiser(t, other, context))


def test_noise_level_changes_the_answer() -> None:
    shape = (1, 1, 4, 12, 12)
    denoiser = _trained_a_little(shape)
    x, context = torch.ones(shape), torch.ones(shape, dtype=torch.bool)
    answers = [denoiser(torch.tensor([t]), x, context) for t in (1e-3, 0.01, 0.1, 0.5, 1.0)]
    assert all((a - b).abs().max() > 1e-3 for a, b in pairwise(answers))


def _trained_a_little(shape):
    """The untrained network is silent; a few random weights make it speak."""
    denoiser = denoiser_for(shape)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in denoiser.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return denoiser


@pytest.mark.parametrize("periodic", [(True, False), (False, True), (True, True)], ids=str)
def test_periodic_axes_have_no_edge(periodic) -> None:
    """Rolling the input along a periodic axis by a multiple of the coarsest cell rolls the output."""
    shape = (1, 1, 2, 16, 16)
    denoiser = denoiser_for(shape, "none", periodic=periodic)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in denoiser.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    x = torch.randn(shape, generator=generator)
    context = torch.rand(shape, generator=generator) < 0.5
    t = torch.tensor([0.2])
    for axis, around in zip((-2, -1), periodic):
        rolled = denoiser(t, x.roll(8, axis), context.roll(8, axis))
        same = torch.allclose(rolled, denoiser(t, x, context).roll(8, axis), atol=1e-4)
        assert same == around


@pytest.mark.parametrize("frames", [True, False])
def test_pull_push_keeps_context_values_and_reproduces_constants(frames) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 5, 11, 9, generator=generator)
    context = torch.rand(x.shape, generator=generator) < 0.3
    filled = PullPush(frames)(x * context, context, ONE, ZERO)
    assert torch.allclose(filled[context], x[context], atol=1e-5)
    constant = PullPush(frames)(3.0 * context, context, ONE, ZERO)
    assert torch.allclose(constant, torch.full_like(x, 3.0), atol=1e-5)


def test_pull_push_of_nothing_is_zero() -> None:
    x = torch.zeros(1, 1, 3, 8, 8)
    assert torch.equal(PullPush()(x, x.bool(), ONE, ZERO), x)


def test_loss_counts_each_sample_by_its_own_query() -> None:
    """A sample with one query cell weighs as much as one with a hundred; samples without query weigh nothing."""
    x = torch.zeros(3, 1, 1, 10, 10)
    estimate = torch.stack([torch.full((1, 1, 10, 10), v) for v in (1.0, 3.0, 100.0)])
    query = torch.zeros_like(x, dtype=torch.bool)
    query[0] = True
    query[1, 0, 0, 4, 4] = True
    assert query_loss(estimate, x, query).item() == pytest.approx((1 + 9) / 2)
    assert query_loss(estimate, x, torch.zeros_like(query)).item() == 0


def test_loss_sees_query_cells_only() -> None:
    estimate = torch.zeros(1, 1, 2, 4, 4, requires_grad=True)
    query = torch.zeros(1, 1, 2, 4, 4, dtype=torch.bool)
    query[0, 0, 1, 2, 3] = True
    query_loss(estimate, torch.ones_like(estimate), query).backward()
    assert torch.equal(estimate.grad != 0, query)


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
