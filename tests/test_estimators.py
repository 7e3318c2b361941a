"""Laws that every estimator and every chain of estimators obeys, whatever it has learnt."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import QUICK, crops_of, draw, gappy_dataset, given_of, lesson_of, seeded
from fieldfill.config import ESTIMATORS, NEEDED, CropShape, Settings, build_chain, build_denoiser
from fieldfill.data.crops import Crops
from fieldfill.data.other_times import OtherTimes
from fieldfill.estimators.base import Correction, Given
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.drift import Drift
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.pairs import factorise, tapered
from fieldfill.estimators.propagator import Equations
from fieldfill.estimators.waves import Waves
from fieldfill.simulate.gaussian_field import GaussianField

FRAMES, GRID, PERIODIC = 5, (9, 12), (False, True)
SHAPE = (2, FRAMES, *GRID)
MAPS = draw(2, *GRID, seed=7)
# Means of two variables at other times, and the shares that say how far they can be relied on.
OTHER_TIMES = torch.cat([draw(2, *GRID, seed=8), draw(2, *GRID, seed=9).sigmoid()])
SMALL = CropShape(2, FRAMES, GRID, PERIODIC, maps=len(MAPS), others=True, settings=QUICK)
CORRECTIONS = [name for name, make in ESTIMATORS.items() if isinstance(make(SMALL), Correction)]


def names_with(name: str) -> tuple[str, ...]:
    """A chain that holds an estimator, with what it needs, and with a source for a correction to begin with."""
    if name in CORRECTIONS:
        return ("pull-push", name)
    return (NEEDED[name], name) if name in NEEDED else (name,)


CHAINS = {name: names_with(name) for name in ESTIMATORS} | {"default": Settings().estimators, "none": ()}


def build(names: tuple[str, ...]) -> Chain:
    settings = QUICK.model_copy(update={"estimators": names, "solver_steps": 24})
    return build_chain(settings, (FRAMES, *GRID), 2, PERIODIC, len(MAPS), others=True).eval()


@cache
def record() -> Crops:
    ds = gappy_dataset(frames=30, names="a,b")
    ds.lon.attrs["periodic"] = 1
    crops = crops_of(ds, FRAMES, domain=np.ones(GRID, bool), maps=MAPS)
    crops.others = OtherTimes.of(crops, weight=0.5, rounds=2)
    return crops


@cache
def lessons(name: str, state: int = 0) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    """What a chain learns, and its notes on that, while the global random state is ``state``."""
    chain = build(CHAINS[name])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(state)
        np.random.seed(state)  # noqa: NPY002
        before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        found = chain.learn(lesson_of(record()))
        assert torch.equal(before[0], torch.random.get_rng_state()), "learning draws from the global state of torch"
        assert np.array_equal(before[1], np.random.get_state()[1]), "learning draws from the global state of numpy"  # noqa: NPY002
    return chain.state_dict(), found


@cache
def learnt(name: str) -> Chain:
    """A chain that has learnt; corrections that did not pay are given some weight, so that they do something."""
    chain = build(CHAINS[name])
    chain.load_state_dict(lessons(name)[0])
    for step in chain.corrections:
        if not step.weights.any():
            step.weights.fill_(0.1)
    return chain


def windows(rows: int = 3) -> Given:
    """Noisy windows with different numbers of observations."""
    share = torch.linspace(0.2, 0.9, rows).view(-1, 1, 1, 1, 1)
    context = torch.rand(rows, *SHAPE, generator=seeded(1)) < share
    noise = torch.linspace(0.0, 0.3, rows).view(-1, 1, 1, 1, 1)
    return given_of(torch.where(context, smooth(rows), 0), context, noise, torch.cat([MAPS, OTHER_TIMES]))


def smooth(rows: int) -> Tensor:
    field = draw(rows, *SHAPE, seed=2)
    return sum(field.roll((i, j), (-2, -1)) for i in range(3) for j in range(3)) / 3


def every_part(chain: Chain, given: Given) -> list[Tensor]:
    answer = chain(given)
    return [answer.estimate, *answer.fields, *answer.shares]


all_chains = pytest.mark.parametrize("name", CHAINS)
new_and_learnt = pytest.mark.parametrize("made", [lambda name: build(CHAINS[name]), learnt], ids=["new", "learnt"])


@all_chains
@new_and_learnt
def test_shapes_and_types_are_kept(name, made) -> None:
    given = windows()
    for part in every_part(made(name), given):
        assert part.shape == given.y.shape and part.dtype == given.y.dtype and part.isfinite().all()


@all_chains
@new_and_learnt
def test_the_number_of_features_is_what_the_chain_says(name, made) -> None:
    chain = made(name)
    answer = chain(windows())
    assert len(answer.fields) + len(answer.shares) == chain.features
    for share in answer.shares:
        assert share.min() >= 0 and share.max() <= 1


@all_chains
def test_values_outside_the_context_change_nothing(name) -> None:
    given = windows()
    other = Given(torch.where(given.context, given.y, 1e3), given.context, given.noise, given.maps)
    for one, same in zip(every_part(learnt(name), given), every_part(learnt(name), other)):
        assert torch.equal(one, same)


@all_chains
def test_values_inside_the_context_matter(name) -> None:
    """Without this, a chain that answers 0 would obey every other law."""
    given = windows()
    other = Given(1.5 * given.y, given.context, given.noise, given.maps)
    same = torch.equal(learnt(name)(given).estimate, learnt(name)(other).estimate)
    assert same == (name in ("climatology", "none"))


@all_chains
def test_windows_of_a_batch_do_not_influence_each_other(name) -> None:
    given, chain = windows(), learnt(name)
    together = every_part(chain, given)
    wild = given.y.clone()
    wild[1] *= -50
    for part, other in zip(together, every_part(chain, Given(wild, given.context, given.noise, given.maps))):
        assert torch.equal(part[[0, 2]], other[[0, 2]])
    for row in range(3):
        alone = every_part(chain, given.rows(torch.tensor([row])))
        for part, own in zip(together, alone):
            assert torch.allclose(part[row], own[0], atol=2e-3)  # batches of another size are rounded otherwise


@all_chains
def test_learning_follows_the_seed_and_leaves_the_global_state_alone(name) -> None:
    (first, found), (second, same) = lessons(name), lessons(name, state=5)
    assert first.keys() == second.keys() and found == same
    assert all(torch.equal(first[key], second[key]) for key in first)


@all_chains
def test_everything_that_was_learnt_is_told_with_the_error_after_it(name) -> None:
    _, found = lessons(name)
    assert set(found) == {*CHAINS[name], "sources"}
    errors = [found[step]["validation"] for step in ("sources", *CORRECTIONS) if step in found]
    assert errors == sorted(errors, reverse=True) and all(np.isfinite(errors))


@all_chains
def test_a_saved_chain_answers_as_before(name) -> None:
    """Every number that a correction learns is moved from where it began, so that each must be saved."""
    chain, again = build(CHAINS[name]), build(CHAINS[name])
    chain.load_state_dict(learnt(name).state_dict())
    for step in chain.corrections:
        for buffer in step.buffers():
            buffer.add_(0.1)
    again.load_state_dict(chain.state_dict())
    for one, same in zip(every_part(chain, windows()), every_part(again, windows())):
        assert torch.equal(one, same)


@pytest.mark.parametrize("name", CHAINS)
def test_before_anything_is_learnt_a_rehearsal_gives_answers_to_time(name) -> None:
    chain, given = build(CHAINS[name]), windows()
    for source in chain.sources:
        assert source.iterations >= 0
        source.rehearse()
        source.set_effort(2 / max(1, source.iterations))
    estimate = chain(given).estimate
    assert torch.isfinite(estimate).all()
    assert estimate.any() or not any(source.iterations for source in chain.sources)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_that_is_forgotten_leaves_the_estimate_as_it_is(name) -> None:
    chain = build(CHAINS[name])
    chain.load_state_dict(learnt(name).state_dict())
    step, estimate = chain.steps[name], smooth(3)
    assert not torch.equal(step.correct(windows(), estimate).estimate, estimate)
    step.forget()
    assert torch.equal(step.correct(windows(), estimate).estimate, estimate)


# Windows that drift, windows that are waves, and windows that are neither

TORUS = (9, 12)
MOVING = GaussianField(size=TORUS, frames=FRAMES, velocity=(0.6, -0.8), memory=1.0)


def three_kinds() -> Given:
    """A field that moves, seen around a hole, which reveals its equations; noise; a moving field sparsely seen."""
    whole, sparse = MOVING.simulate(4, seeded())[0].float().view(2, 1, *SHAPE)
    y = torch.cat([whole, draw(1, *SHAPE), sparse])
    context = torch.rand(3, *SHAPE, generator=seeded(3)) < torch.tensor([1.0, 0.5, 0.6]).view(3, 1, 1, 1, 1)
    context[0, :, :, 3:5, 4:6] = False
    return given_of(torch.where(context, y, 0), context)


def chain_of_laws(kept: str) -> Chain:
    """A chain whose drift and waves were kept or not; their covariances differ, so their answers do."""
    fields = []
    for width in (2.0, 1.0):
        field = LearntField(2, FRAMES, TORUS, (True, True)).eval()
        flat = torch.zeros(2, 2, FRAMES, *field.torus)
        flat[0, 0] = flat[1, 1] = 1.0
        field.set_covariance(factorise(tapered(flat, width, (0.0, 0.0), 2.0), field))
        fields.append(field)
    drift, waves = Drift(fields[0]), Waves(fields[0])
    if "drift" in kept:
        drift.field = fields[1]
    if "waves" in kept:
        waves.equations = Equations(fields[0].shape, TORUS)
        waves.equations.set_covariance(fields[1].frame_covariance())
    return Chain([Gaussian(fields[0]), drift, waves]).eval()


CLAIMS = {
    "neither": {"gaussian": [0, 1, 2]},
    "drift": {"gaussian": [1], "drift": [0, 2]},
    "waves": {"gaussian": [1, 2], "waves": [0]},
    "drift and waves": {"gaussian": [1], "drift": [2], "waves": [0]},
}


@pytest.mark.parametrize("kept", CLAIMS)
def test_each_window_is_answered_by_the_last_source_that_claims_it(kept) -> None:
    chain, given = chain_of_laws(kept), three_kinds()
    claims = list(chain.claims(given))
    assert sorted(claim.rows.tolist() for claim in claims) == sorted(CLAIMS[kept].values())
    answer = chain.answer(given)
    for claim in claims:
        assert torch.equal(answer[claim.rows], claim.law.mean(given.rows(claim.rows)))
    for name, rows in CLAIMS[kept].items():
        own = Chain([chain.steps["gaussian"], chain.steps[name]]) if name != "gaussian" else Chain([chain.steps[name]])
        assert torch.allclose(answer[rows], own.answer(given)[rows], atol=1e-3)


@pytest.mark.parametrize("kept", CLAIMS)
def test_no_law_sees_what_lies_outside_the_context_or_in_other_windows(kept) -> None:
    chain, given = chain_of_laws(kept), three_kinds()
    answer = chain.answer(given)
    other = Given(torch.where(given.context, given.y, 1e3), given.context, given.noise, given.maps)
    assert torch.equal(chain.answer(other), answer)
    for row in range(3):
        alone = chain.answer(given.rows(torch.tensor([row])))
        assert torch.allclose(alone[0], answer[row], atol=2e-3)


@pytest.mark.parametrize("kept", CLAIMS)
@pytest.mark.parametrize("before", ["neither", "drift and waves"])
def test_a_saved_chain_keeps_its_drift_and_its_waves_or_none(kept, before) -> None:
    chain, again, given = chain_of_laws(kept), chain_of_laws(before), three_kinds()
    again.load_state_dict(chain.state_dict())
    assert torch.equal(again.answer(given), chain.answer(given))
    assert again.state_dict().keys() == chain.state_dict().keys()
    assert not any(part.training for part in again.modules())  # training takes fewer steps
    if kept != before:
        assert not torch.allclose(again.answer(given), chain_of_laws(before).answer(given), atol=1e-3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_can_be_drawn_from_has_a_law(name) -> None:
    given = windows(1)
    law = learnt(name).law(given.y[0], given.context[0])
    assert (law is not None) == learnt(name).can_draw == ("gaussian" in CHAINS[name])
    if law is not None:
        assert law.draw(2, seeded()).shape == (2, *SHAPE) and law.error.expand(1, *SHAPE).min() > 0


# Settings


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_can_be_switched_off(name) -> None:
    """With it go those that need it; the rest is as it was, and a denoiser can be built of it."""
    rest = tuple(other for other in ESTIMATORS if other != name and NEEDED.get(other) != name)
    settings = Settings(window=FRAMES, base=8, levels=1, estimators=rest)
    denoiser = build_denoiser(settings, (FRAMES, *GRID), 2, PERIODIC, seed=0, maps=len(MAPS), others=True)
    assert tuple(denoiser.chain.steps) == rest
    given = windows()
    assert denoiser(torch.full((3,), 0.1), given.y, given.context, given.maps).shape == given.y.shape


def test_the_estimators_of_settings_are_the_steps_of_the_chain_in_their_order() -> None:
    for names in CHAINS.values():
        assert tuple(build(names).steps) == names
    alone = build_chain(Settings(window=1), (1, *GRID), 2, PERIODIC, 0)
    assert "motion" in Settings().estimators and "motion" not in alone.steps  # one frame does not move
    assert "standing" in Settings().estimators and "standing" not in alone.steps  # and there are no other times


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("kriging",), "unknown estimator 'kriging'; choose one of climatology"),
        (("gaussian", "gaussian"), "'gaussian' is named twice"),
        (("gaussian", "motion", "motion"), "'motion' is named twice"),
        (("drift",), "'drift' needs 'gaussian' before it"),
        (("pull-push", "waves"), "'waves' needs 'gaussian' before it"),
        (("drift", "gaussian"), "'drift' needs 'gaussian' before it"),
    ],
    ids=str,
)
def test_impossible_estimators_are_refused_when_settings_are_made(names, words) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(estimators=names)
