"""Pools: a first estimate serves several steps, every crop equally often, and nothing depends on what came before."""

import torch

from conftest import make_training
from fieldfill.diffusion.team import Team
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.training import Training
from fieldfill.estimators.propagator import Equations


def training(reuse: int = 3, **given) -> Training:
    made = make_training(TrainSettings(steps=100, batch=4, reuse=reuse), **given)
    made.denoiser.train()
    return made


def same(a, b) -> bool:
    names = ("t", "x", "noise", "context", "query", "maps")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    pairs += [(a.first.estimate, b.first.estimate), *zip(a.first.fields, b.first.fields)]
    return all(torch.equal(*pair) for pair in pairs)


def test_every_crop_of_a_pool_is_used_equally_often_and_in_another_company() -> None:
    pools = training(reuse=3).pools
    steps = [pools(step) for step in range(3 * pools.batches)]
    uses: dict[float, list[int]] = {}
    for number, drawn in enumerate(steps):
        for noise in drawn.noise.flatten(1)[:, 0].tolist():
            uses.setdefault(noise, []).append(number)
    assert len(uses) == 4 * pools.batches and {len(used) for used in uses.values()} == {3}
    together = {tuple(used) for used in uses.values()}
    assert len(together) > pools.batches, "crops that are always together would be one large crop"


def test_a_pool_is_estimated_once_and_the_steps_have_its_estimates(monkeypatch) -> None:
    made = training(reuse=3)
    calls, first = [], made.denoiser.first
    monkeypatch.setattr(made.denoiser, "first", lambda *given: calls.append(len(given[0])) or first(*given))
    for step in range(3 * made.pools.batches):
        drawn = made.pools(step)
        x_t = made.denoiser.schedule.alpha(drawn.t).view(-1, 1, 1, 1, 1) * drawn.x
        x_t = x_t + made.denoiser.schedule.sigma(drawn.t).view(-1, 1, 1, 1, 1) * drawn.noise
        again = first(drawn.t, torch.where(drawn.context, x_t, 0), drawn.context, drawn.maps)
        assert torch.allclose(drawn.first.estimate, again.estimate, atol=1e-4)
    assert sum(calls) == 4 * made.pools.batches


def test_a_step_in_the_middle_of_a_pool_is_the_same_without_the_steps_before() -> None:
    whole, late = training(), training()
    steps = [whole.pools(step) for step in range(2 * 3 * whole.pools.batches)]
    for step in (1, len(steps) // 2 + 1, len(steps) - 1):
        assert same(steps[step], late.pools(step))


def test_processes_have_their_own_crops_of_a_step() -> None:
    whole = training().pools(5)
    parts = [training(team=Team(rank, 2)).pools(5) for rank in range(2)]
    assert torch.equal(whole.noise, torch.cat([part.noise for part in parts]))


def test_a_crop_is_used_again_only_where_its_first_estimate_is_dear() -> None:
    made = training(reuse=0)
    assert made.pools.reuse == 1 and not torch.equal(made.pools(0).noise, made.pools(1).noise)
    common = made.denoiser.chain.steps["gaussian"].field
    made.denoiser.chain.steps["waves"].equations = Equations(common.shape, common.torus)
    assert made.pools.reuse == 8 and made.pools.batches > 1
