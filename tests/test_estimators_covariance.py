"""Learning a covariance from gaps: the estimate, its drift, the rounds of completion, and what large crops cost."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import covariance_table, crops_of, field_of, lesson_of, seeded, simulated_dataset
from fieldfill.data.crops import Crops
from fieldfill.estimators.base import Lesson
from fieldfill.estimators.chain import Chain, HeldOutErrors
from fieldfill.estimators.gaussian import field as field_module
from fieldfill.estimators.gaussian.deflation import Deflation, StrongModes
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.learning import CovarianceSearch, GaussianSettings, complete_crops
from fieldfill.estimators.gaussian.pairs import drift_of, factorise, separations, tapered
from fieldfill.masks import CloudMask
from fieldfill.simulate.gaussian_field import GaussianField

LAW = GaussianField(size=(16, 18), frames=5, velocity=(-0.5, 1.0), noise=0.05)
NONE = (0.0, 0.0)


def cloudy(count: int, law: GaussianField = LAW) -> tuple[Crops, torch.Tensor, torch.Tensor]:
    """Crops of a periodic moving field under clouds, the truth and the mask (B, 1, T, H, W)."""
    generator = seeded()
    truth = law.simulate(count, generator)[0]
    observed = CloudMask(observed=0.4, scale=2.5).sample(tuple(truth.shape), generator)
    ds = simulated_dataset(law, law.observe(truth, generator), observed)
    return crops_of(ds, law.frames, 0.2, unit=True), truth.float(), observed


def learnt(field: LearntField, crops: Crops, settings: GaussianSettings | None = None) -> dict[str, float]:
    """What is found of a field by itself."""
    return Chain([Gaussian(field, settings)]).learn(lesson_of(crops))["gaussian"]


@pytest.mark.parametrize("velocity", [(-0.5, 1.0), (0.0, 0.0), (1.3, -2.0)], ids=str)
def test_the_drift_is_the_velocity_of_the_field(velocity) -> None:
    law = GaussianField(size=(16, 18), frames=5, velocity=velocity)
    assert drift_of(covariance_table(law)) == pytest.approx(velocity, abs=0.15)


def test_a_taper_keeps_the_way_of_a_moving_pattern_and_damps_what_is_far_from_it() -> None:
    flat = torch.ones(1, 1, 4, 12, 12)
    damped = tapered(flat, 2.0, (1.0, -1.0))[0, 0]
    for lag in range(4):
        assert damped[lag, lag, -lag] == pytest.approx(1.0)
        assert damped[lag, lag + 2, -lag] == pytest.approx(math.exp(-0.5))
    assert torch.equal(tapered(flat, math.inf, (1.0, -1.0)), flat)
    for lag in range(4):
        faded = tapered(flat, math.inf, NONE, memory=2.0)[0, 0, lag]
        assert torch.allclose(faded, torch.full((12, 12), math.exp(-(lag**2) / 8)))


def test_waves_with_a_frequency_of_their_own_in_every_sample_need_a_memory() -> None:
    """The lines in the spectrum of a few samples are not those of the next; without damping they are taken for law."""
    generator = seeded()
    frequency, phase = (math.pi * torch.rand(24, 6, 1, 1, 1, generator=generator) for _ in range(2))
    rows, columns = (torch.randint(1, 4, (24, 6, 1, 1, 1), generator=generator) for _ in range(2))
    t, y, x = torch.meshgrid(torch.arange(24.0), torch.arange(10.0), torch.arange(12.0), indexing="ij")
    angle = 2 * math.pi * (rows * y / 10 + columns * x / 12) + frequency * t + 2 * phase
    values = torch.cos(angle).sum(1) / math.sqrt(3)
    hidden = torch.rand(24, 1, 10, 12, generator=generator) < 0.4
    coords = {name: (name, np.arange(float(n)), {"periodic": 1}) for name, n in (("y", 10), ("x", 12))}
    gappy = values.masked_fill(hidden, torch.nan).numpy()
    crops = crops_of(xr.Dataset({"z": (("sample", "time", "y", "x"), gappy)}, coords), 24, unit=True)
    once = GaussianSettings(rounds=1)
    errors = [
        learnt(LearntField(1, 24, (10, 12), (True, True)), crops, settings)["validation"]
        for settings in (once, replace(once, memory_parts=()))
    ]
    assert errors[0] < 0.8 * errors[1] and errors[0] < 0.5, errors


def test_completing_crops_with_the_true_law_returns_the_true_law() -> None:
    crops, _, _ = cloudy(60)
    found, nugget = complete_crops(field_of(LAW), crops, [crops.place(i) for i in range(len(crops))], seeded())
    assert nugget == pytest.approx(0.05**2, rel=0.1)
    # The noise of an estimate is a share of the power at each wavenumber, small scales included.
    power, true = (torch.fft.rfft2(c[0, 0, 0]).real for c in (found, covariance_table(LAW)))
    kept = true > 1e-3
    assert (power[kept] / true[kept]).log().abs().median() < 0.2


def test_what_is_learnt_comes_close_to_the_optimum_and_needs_the_drift() -> None:
    crops, truth, observed = cloudy(60)
    field = LearntField(1, 5, (16, 18), (True, True))
    best = learnt(field, crops)
    assert (best["drift_rows"], best["drift_columns"]) == pytest.approx((-0.5, 1.0), abs=0.2)
    assert field.nugget.item() == pytest.approx(best["nugget"])
    some = 24
    x = torch.stack([crops.at((sample, 0, 0, 0))[0] for sample in range(some)])
    values = field.condition(x, observed[:some], torch.zeros(()))
    exact = torch.stack([LAW.posterior(x[b, 0].double(), observed[b, 0], variance=False)[0] for b in range(some)])
    hidden = ~observed[:some]
    error, least = ((v - truth[:some])[hidden].square().mean().item() for v in (values, exact[:, None]))
    assert error < 1.3 * least
    assert best["validation"] < 0.5


def test_patterns_are_found_where_the_field_is_not_stationary() -> None:
    """One fixed pattern with a random amplitude, sparsely seen: no stationary covariance knows its shape."""
    generator = seeded()
    law = GaussianField(size=(16, 18), frames=3, periodic=False, wavelength=6.0)
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(18.0), indexing="ij")
    shape = torch.cos(rows * columns / 20)
    amplitude = 2 * torch.randn(120, 1, 1, 1, generator=generator)
    values = law.simulate(120, generator)[0][:, 0] + amplitude * shape
    observed = torch.rand(120, 1, 16, 18, generator=generator).expand_as(values) < 0.05
    ds = xr.Dataset({"z": (("sample", "time", "y", "x"), values.masked_fill(~observed, torch.nan).numpy())})
    crops = crops_of(ds, 3, domain=np.ones((16, 18), bool))
    field = LearntField(1, 3, (16, 18), crops.record.periodic)
    assert learnt(field, crops)["patterns"] >= 1
    first = field.patterns[field.patterns.flatten(1).norm(dim=1).argmax(), 0, 1]
    assert abs(np.corrcoef(first.flatten(), shape.flatten())[0, 1]) > 0.8


def test_a_law_forgets_only_if_that_pays(monkeypatch) -> None:
    """What forgets before the first round stays so; a gain of three per cent may be chance, or one in two crops."""
    errors = iter([[1.0, 1.0], [0.97, 0.97], [0.9, 0.9], [0.6, 1.1]])
    monkeypatch.setattr(Chain, "source_errors", lambda *_: HeldOutErrors(next(errors), [1.0, 1.0]))
    field = LearntField(1, 5, (16, 18), (True, True))
    search = CovarianceSearch(field, lesson_of(cloudy(4)[0]), Chain([Gaussian(field)]))
    kept = []
    for memory, least in ((math.inf, 0.0), *3 * [(2.0, GaussianSettings().least_memory_gain)]):
        search.attempt(covariance_table(LAW), math.inf, NONE, 0.01, memory, least)
        kept.append((search.memory, search.best["validation"]))
    assert kept == [(math.inf, 1.0), (math.inf, 1.0), (2.0, 0.9), (2.0, 0.9)]


@pytest.mark.parametrize("patterns", [0, 2])
def test_the_preconditioner_is_the_inverse_on_its_own_modes_and_positive_everywhere(patterns: int) -> None:
    """With all of the covariance in the modes and f = 0 it is the inverse of the system."""
    law = GaussianField(size=(6, 5), frames=2, noise=0.1)
    field = LearntField(1, 2, (6, 5), (True, True))
    drawn = torch.randn(patterns, 1, 2, 6, 5, generator=seeded(1))
    field.set_covariance(factorise(covariance_table(law), field), drawn)
    modes = StrongModes(torch.view_as_complex(field.factor), field.torus, (6, 5), 1000)
    generator = seeded()
    mask = (torch.rand(1, 1, 2, 6, 5, generator=generator) < 0.6).float()
    noise = 10 ** (2 * torch.rand(1, 1, 2, 6, 5, generator=generator) - 1)
    eye = torch.eye(60).reshape(60, 1, 2, 6, 5)
    assert torch.allclose(modes.gram(mask)[0], _dense_gram(modes, mask), atol=1e-3)
    system = (mask * field.covary(mask * eye) + noise * eye).reshape(60, 60)
    for count in (3, 1000):
        chosen = StrongModes(torch.view_as_complex(field.factor), field.torus, (6, 5), count)
        matrix = Deflation(chosen, mask, noise, field.patterns)(eye).reshape(60, 60)
        seen = mask.flatten() > 0
        matrix = matrix[seen][:, seen]
        assert torch.allclose(matrix, matrix.T, atol=1e-4) and torch.linalg.eigvalsh(matrix).min() > 0
    assert torch.allclose(matrix @ system[seen][:, seen], torch.eye(int(seen.sum())), atol=0.02)


def _dense_gram(modes: StrongModes, weight: torch.Tensor) -> torch.Tensor:
    size = 2 * len(modes.place)
    functions = modes.synthesise(torch.eye(size), (size, *weight.shape[1:]))
    assert torch.allclose(modes.analyse(functions), functions.flatten(1) @ functions.flatten(1).T, atol=1e-3)
    return (functions * weight).flatten(1) @ functions.flatten(1).T


def test_the_strongest_modes_are_few_steps_from_the_answer(monkeypatch) -> None:
    """Ten steps with them are closer than forty without."""
    crops, _, observed = cloudy(4)
    x = torch.stack([crops.at((sample, 0, 0, 0))[0] for sample in range(4)])
    exact = torch.stack([LAW.posterior(x[b, 0].double(), observed[b, 0], variance=False)[0] for b in range(4)])
    distances = []
    for count, steps in ((60, 10), (1, 40)):
        monkeypatch.setattr(field_module, "MODES", count)
        found = field_of(LAW, steps, tolerance=0.0).condition(x, observed, torch.zeros(()))[:, 0]
        distances.append((found - exact).square().mean().item())
    assert distances[0] < 0.5 * distances[1]


class Known(Gaussian):
    """A source with nothing to learn."""

    def learn(self, lesson: Lesson, chain: Chain) -> dict[str, float]:
        return {}


def test_steps_are_doubled_as_long_as_that_pays_and_a_saved_law_remembers_it() -> None:
    crops, _, _ = cloudy(12)
    chosen = {}
    for steps in (2, 80):
        field = field_of(LAW, steps, tolerance=0.0)
        chain, lesson = Chain([Known(field)]), lesson_of(crops)
        before = chain.source_errors(lesson).summary.mean
        chosen[steps] = chain.learn(lesson)["sources"]["effort"]
        assert field.effort.item() == chosen[steps] and chain.source_errors(lesson).summary.mean <= before
    assert chosen[2] > 1 and chosen[80] == 1
    field.effort.fill_(4)
    again = LearntField(1, 5, (16, 18), (True, True))
    again.load_state_dict(field.state_dict())
    assert again.effort == 4


def test_a_large_window_keeps_fewer_combinations_and_says_what_it_keeps(monkeypatch) -> None:
    monkeypatch.setattr(field_module, "MAX_FACTOR_BYTES", 8 * 16 * 10 * 5 * 2)
    field = LearntField(1, 5, (16, 18), (True, True), steps=80).eval()
    assert field.factor.shape == (160, 5, 2, 2)
    field.set_covariance(factorise(covariance_table(LAW), field))
    drawn = field.draw(400, seeded())
    assert drawn.square().mean().item() == pytest.approx(1.0, abs=0.1)
    v = torch.randn(2, 1, 5, 16, 18, generator=seeded(1))
    monkeypatch.undo()
    full = LearntField(1, 5, (16, 18), (True, True))
    full.set_covariance(_widen(field.factor))
    assert torch.allclose(field.covary(v), full.covary(v), atol=1e-4)


def _widen(factor: torch.Tensor) -> torch.Tensor:
    """The same factor with columns of zeros up to full rank."""
    return torch.cat([factor, factor.new_zeros(*factor.shape[:2], factor.shape[1] - factor.shape[2], 2)], 2)


def test_no_more_is_read_than_needed(monkeypatch) -> None:
    crops, _, _ = cloudy(40)
    read = []
    original = Crops.visible

    def visible(self, place, length=None):
        read.append(length or self.length)
        return original(self, place, length)

    monkeypatch.setattr(Crops, "visible", visible)
    separations(crops, (16, 18), seeded(), most_values=12 * 16 * 18)
    assert 0 < sum(read) <= 12
