"""Guidance: the equation lowers its own residual and, on the way, the error."""

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import fieldfill as ff
from conftest import NO_COVARIANCE, given_of, seeded
from fieldfill.api import physical_scores
from fieldfill.config import Settings
from fieldfill.data.transforms import Normaliser
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.errors import InputError
from fieldfill.estimators.pull_push import Interpolation
from fieldfill.sampling.guidance import Guidance, choose_weight, unitless_residual
from fieldfill.sampling.solvers import Solver
from fieldfill.simulate import Advection, ShallowWater
from fieldfill.simulate.store import write

WATER = ShallowWater(size=12, frames=6, interval=1200.0)
WIND = Advection(size=12, frames=6, interval=0.04)


def case(simulator) -> tuple[Tensor, Tensor, Tensor, Normaliser, dict[str, Tensor]]:
    """Unitless truth, observed cells, a plain interpolation, the normaliser and the parameters."""
    generator = seeded()
    fields, parameters = simulator.simulate(6, generator)
    values = fields.transpose(0, 1).flatten(1)
    normaliser = Normaliser(values.mean(1).numpy(), values.std(1).numpy())
    truth = normaliser.to_tensor(fields.numpy())
    observed = (torch.rand(6, 1, 1, 12, 12, generator=generator) < 0.4).expand_as(truth)
    guess = Interpolation().mean(given_of(truth, observed))
    return truth, observed, torch.where(observed, truth, guess), normaliser, parameters


def row_rms(residual: Tensor) -> Tensor:
    return residual.square().transpose(0, 1).flatten(1).mean(1).sqrt()


@pytest.mark.parametrize("simulator", [WATER, WIND], ids=["shallow water", "advection"])
def test_guidance_lowers_the_residual_and_not_at_the_price_of_the_error(simulator) -> None:
    truth, observed, guess, normaliser, parameters = case(simulator)
    residual = unitless_residual(simulator.residual, normaliser, parameters)
    guided = Guidance(residual, weight=0.3)(guess, ~observed)
    assert (row_rms(residual(guided)) < 0.7 * row_rms(residual(guess))).all()
    before, after = ((field - truth)[~observed].square().mean() for field in (guess, guided))
    assert after < 1.02 * before
    assert torch.equal(guided[observed], guess[observed])


def test_a_velocity_can_be_freed_of_divergence() -> None:
    _, observed, guess, normaliser, _ = case(WATER)
    residual = unitless_residual(WATER.divergence, normaliser)
    assert residual(guess).shape == (6, 1, 6, 12, 12)
    guided = Guidance(residual, weight=1.0)(guess, ~observed)
    assert (row_rms(residual(guided)) < 0.5 * row_rms(residual(guess))).all()
    assert torch.equal(guided[:, 0], guess[:, 0])  # heights do not diverge


def test_the_residual_of_unitless_fields_is_that_of_the_fields() -> None:
    fields, parameters = WATER.simulate(2, seeded())
    spread = np.random.default_rng(0).uniform(0.5, 2, (3, 12, 12))
    for normaliser in (Normaliser(np.arange(3.0), np.full(3, 0.3)), Normaliser(0.1 * spread, spread)):
        unitless = normaliser.to_tensor(fields.numpy())
        found, wanted = (
            unitless_residual(WATER.residual, normaliser, parameters)(unitless),
            WATER.residual(fields, parameters),
        )
        noise = WATER.residual(fields + 1e-5 * torch.randn(fields.shape, generator=Generator()), parameters)
        assert (found - wanted).square().mean() < 4 * (noise - wanted).square().mean()


def test_units_of_the_residual_and_neighbours_in_the_batch_do_not_matter() -> None:
    _, observed, guess, normaliser, parameters = case(WATER)
    residual = unitless_residual(WATER.residual, normaliser, parameters)
    units = torch.tensor([1.0, 1e3, 1e-4]).view(3, 1, 1, 1)
    first = Guidance(residual, 0.3, 30)(guess, ~observed)
    assert torch.allclose(first, Guidance(lambda x: residual(x) * units, 0.3, 30)(guess, ~observed), atol=1e-5)
    own = unitless_residual(WATER.residual, normaliser, {name: value[2:3] for name, value in parameters.items()})
    assert torch.allclose(first[2:3], Guidance(own, 0.3, 30)(guess[2:3], ~observed[2:3]), atol=1e-5)


def test_no_weight_changes_nothing_and_more_steps_go_further() -> None:
    _, observed, guess, normaliser, parameters = case(WATER)
    residual = unitless_residual(WATER.residual, normaliser, parameters)
    assert torch.equal(Guidance(residual, 0.0)(guess, ~observed), guess)
    left = [row_rms(residual(Guidance(residual, 0.3, steps)(guess, ~observed))).sum().item() for steps in (1, 5, 25)]
    assert left == sorted(left, reverse=True)
    with pytest.raises(InputError):
        Guidance(residual, -1.0)


def test_the_chosen_weight_lowers_the_residual_without_spoiling_the_error() -> None:
    scores = {0.0: (1.0, 1.0), 0.1: (0.9, 0.8), 0.3: (1.019, 0.5), 1.0: (1.03, 0.1)}
    assert choose_weight(lambda weight: scores[weight], list(scores))[0] == 0.3
    worse = {0.0: (1.0, 1.0), 0.1: (1.2, 0.5)}
    assert choose_weight(lambda weight: worse[weight], list(worse)) == (0.0, worse)


@pytest.fixture(scope="module")
def water(tmp_path_factory) -> tuple:
    path = tmp_path_factory.mktemp("water") / "sw.zarr"
    write(ShallowWater(size=12, frames=8, interval=1200.0), path, samples=6)
    truth = ff.open_dataset(path).load()
    gappy, _ = ff.hide(truth, "pixel", 0.4)
    training = TrainSettings(steps=4, batch=4, validate_every=4)
    config = Settings(
        window=4, base=8, levels=2, contexts=2, partition="pixel", estimators=NO_COVARIANCE, training=training
    )
    return truth, gappy, ff.Filler(settings=config, domain=np.ones((12, 12), bool)).fit(gappy)


@pytest.mark.parametrize("guidance", [0.3, "auto"])
def test_a_guided_fill_obeys_the_equation_better(water, guidance) -> None:
    truth, gappy, filler = water
    outs = filler.fill(gappy), filler.fill(gappy, guidance=guidance)
    before, after = (float(physical_scores(out, truth)["h_residual"]) for out in outs)
    assert after < 0.7 * before
    seen = np.isfinite(gappy.h.values)
    plain, guided = (((out.h - truth.h).values[~seen] ** 2).mean() for out in outs)
    assert guided < 1.02 * plain
    assert np.array_equal(outs[1].h.values[seen], gappy.h.values[seen])


def test_guided_members_obey_the_equation_better(water) -> None:
    truth, gappy, filler = water
    some = gappy.isel(sample=slice(0, 1))
    found = []
    for guidance in (0.0, 0.3):
        members = filler.fill(some, members=2, solver=Solver(6), guidance=guidance)
        one = members[["h_members", "u_members", "v_members"]].isel(member=0, drop=True)
        one = one.rename({f"{name}_members": name for name in "huv"})
        found.append(float(physical_scores(one, truth)["h_residual"]))
    assert found[1] < 0.7 * found[0]


def test_guidance_needs_the_variables_and_parameters_of_the_equation(water) -> None:
    _, gappy, filler = water
    with pytest.raises(InputError, match="gravity"):
        filler.fill(gappy.drop_vars("gravity"), guidance=0.3)
