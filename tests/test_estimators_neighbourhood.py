"""Correction by the neighbourhood: filters, slopes along maps, weights that help or are left out."""

import numpy as np
import pytest
import torch

from conftest import crops_of, draw, gappy_record, given_of, lesson_of, seeded
from fieldfill.config import static_features
from fieldfill.data.transforms import Normaliser
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.motion import Motion
from fieldfill.estimators.neighbourhood import Neighbourhood, NeighbourhoodSettings, blurred
from fieldfill.estimators.pull_push import PullPush

PERIODIC = [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize("periodic", PERIODIC, ids=str)
@pytest.mark.parametrize("cells", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("shape", [(2, 3, 9, 12), (1, 3, 4)], ids=str)
def test_smoothing_keeps_constants_and_lowers_variance(shape, cells, periodic) -> None:
    assert torch.allclose(blurred(torch.full(shape, 3.0), cells, periodic), torch.full(shape, 3.0), atol=1e-5)
    assert blurred(draw(*shape), cells, periodic).var() < 0.5 * draw(*shape).var()


@pytest.mark.parametrize("maps", [0, 2, 9])
@pytest.mark.parametrize("variables", [1, 3])
def test_every_part_has_a_weight(maps, variables) -> None:
    local = Neighbourhood(variables, maps, (False, True))
    x, static = draw(2, variables, 3, 9, 12), draw(maps, 9, 12)
    given = given_of(x, x > 0, maps=static)
    parts = list(local.parts(given, x))
    assert len(parts) == local.weights.shape[1] == 3 + 9 * min(maps, NeighbourhoodSettings().most_maps)
    assert all(part.shape == x.shape and torch.isfinite(part).all() for part in parts)
    assert torch.equal(local.correct(given, x).estimate, x)
    local.weights[:, 0] = 1
    assert torch.allclose(local.correct(given, x).estimate, x + parts[0])


def test_a_field_that_follows_a_map_is_bent_along_it() -> None:
    """Each half of the grid follows the map by a slope of its own; the parts know both from the context."""
    u = draw(1, 20, 40)
    slope = torch.where(torch.arange(40) < 20, 1.0, -2.0)
    bend = (slope * u).expand(1, 1, 2, 20, 40)
    x = 3 + bend
    context = torch.rand(x.shape, generator=seeded(1)) < 0.6
    local = Neighbourhood(1, 1, (False, False))
    bent = list(local.parts(given_of(x, context, maps=u), torch.zeros_like(x)))[-1]
    away = ~context & ((torch.arange(40) - 20).abs() > 6)
    assert (bent - bend)[away].square().mean() < 0.15 * bend[away].square().mean()


def test_parts_do_not_know_what_lies_outside_the_context() -> None:
    x, guess, static = draw(1, 1, 2, 9, 12), draw(1, 1, 2, 9, 12, seed=1), draw(2, 9, 12, seed=2)
    local = Neighbourhood(1, 2, (True, True))
    context = x > 0
    values = x, torch.where(context, x, 1e3)
    for one, other in zip(*(local.parts(given_of(y, context, maps=static), guess) for y in values)):
        assert torch.equal(one, other)


def test_maps_pay_where_fields_follow_them_and_nothing_is_added_to_noise() -> None:
    rng = np.random.default_rng(0)
    u = rng.standard_normal((12, 14))
    static = torch.from_numpy(u).float()[None]
    follows = rng.standard_normal((60, 1, 1)) * u + 0.1 * rng.standard_normal((60, 12, 14))
    found = []
    for values in (follows, rng.standard_normal((60, 12, 14))):
        chain = Chain([PullPush(), Motion(1, (False, False)), Neighbourhood(1, 1, (False, False))])
        found.append(chain.learn(lesson_of(crops_of(gappy_record(values), 2, maps=static))))
    errors = [one["neighbourhood"]["validation"] / one["motion"]["validation"] for one in found]
    assert errors[0] < 0.5
    assert errors[1] > 0.6 and found[1]["neighbourhood"]["validation"] > 0.9  # what is left of noise is its variance


def test_networks_know_mean_and_spread_of_a_cell_where_these_are_maps() -> None:
    domain = torch.ones(2, 5, 6, dtype=torch.bool)
    flat = Normaliser(np.zeros(2), np.ones(2))
    assert static_features(domain, flat).shape == static_features(domain).shape == (0, 5, 6)
    rng = np.random.default_rng(0)
    maps = static_features(domain, Normaliser(rng.standard_normal((2, 5, 6)), 1 + rng.random((2, 5, 6))))
    assert maps.shape == (4, 5, 6) and torch.allclose(maps.mean((1, 2)), torch.zeros(4), atol=1e-5)
    domain[:, 0] = False
    land = static_features(domain, Normaliser(rng.standard_normal((2, 5, 6)), np.ones((2, 1, 1))))
    assert land.shape == (4, 5, 6) and (land[2:, 0] == 0).all()
