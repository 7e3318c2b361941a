"""Stated intervals hold what they promise at the cells that are missing, measured where the exact answer is known."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import t as student
from torch import Generator, Tensor

from conftest import seeded, with_hidden_values
from fieldfill.data.crops import Crops
from fieldfill.data.holdout import hold_out
from fieldfill.data.record import open_record
from fieldfill.data.transforms import Normaliser
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.masks import BlockMask, CloudMask, MaskModel, PixelMask
from fieldfill.metrics import distance_to_observation
from fieldfill.partition import PixelPartition
from fieldfill.sampling.contexts import Ensemble, single_step
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.uncertainty.budget import Budget, budget_table
from fieldfill.uncertainty.calibration import CLIMATOLOGY, Calibration, HeldCells
from fieldfill.uncertainty.held_cells import calibrate, choose_ensemble, clear_scene, held_cells, missing_places
from fieldfill.uncertainty.local_scale import surroundings
from fieldfill.uncertainty.weights import FAR, Places, WeightSettings, effective_count, matching_weights, places_in_gaps

SIZE, FRAMES, SAMPLES, RECORDS = 14, 3, 200, 3
FIELD = GaussianField(size=SIZE, frames=FRAMES, noise=0.03, wavelength=10.0)
MASKS = {"cloud": CloudMask(0.45, scale=2.5), "pixel": PixelMask(0.15), "block": BlockMask(3, 3, 5)}
DIRECT = Ensemble(0)
KEEP = (0.5, 1.0)
NO_MAPS = torch.zeros(SAMPLES, 0, SIZE, SIZE)


class Oracle:
    """The exact conditional expectation in the place of a network; its variance is off by a factor, or not stated."""

    def __init__(self, factor: float | None) -> None:
        self.factor, self.schedule = factor, VPSchedule()

    def predict(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        stated = self.factor is not None
        found = [FIELD.posterior(x[0].double(), seen[0], variance=stated) for x, seen in zip(x_t, context)]
        mean, variance = (torch.stack(parts)[:, None].float() for parts in zip(*found))
        return mean, self.factor * variance if stated else None


class UnsureWhereSparse(Oracle):
    """States too large a variance in windows with few observations."""

    def predict(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        mean, variance = super().predict(t, x_t, context, maps)
        assert variance is not None
        return mean, variance / context.float().mean((1, 2, 3, 4), keepdim=True) ** 2


@cache
def world(name: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Truth, noisy values and observed cells, (B, 1, T, H, W)."""
    generator = seeded(seed)
    truth = FIELD.simulate(SAMPLES, generator)[0].float()
    masks: MaskModel = MASKS[name]
    return truth, FIELD.observe(truth, generator).float(), masks.sample(tuple(truth.shape), generator)


@cache
def held_crops(name: str, factor: float = 1.0, seed: int = 0) -> Crops:
    """A gappy record of independent samples in units of ``factor``, with held-out cells."""
    _, values, seen = world(name, seed)
    gappy = factor * torch.where(seen, values, torch.nan)[:, 0].numpy()
    axis = np.arange(float(SIZE))
    coords = {"y": ("y", axis, {"periodic": 1}), "x": ("x", axis, {"periodic": 1})}
    ds = xr.Dataset({"z": (("sample", "time", "y", "x"), gappy)}, coords)
    record = open_record(ds, domain=np.ones((SIZE, SIZE), bool))
    out = Crops(record, Normaliser(np.zeros(1), np.full(1, factor)), (FRAMES, SIZE, SIZE))
    out.held = hold_out(out, 0.4, seeded())
    return out


def generator() -> Generator:
    return seeded(5)


@cache
def calibrated(name: str, factor: float | None, seed: int = 0) -> Calibration:
    return calibrate(Oracle(factor), PixelPartition(), held_crops(name, 1.0, seed), DIRECT, generator())


@cache
def answers(
    name: str, factor: float | None, kind: type[Oracle] = Oracle
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
    """Error, raw std, distance, surroundings and missing cells of windows that were not in the record."""
    truth, values, seen = (part[:60] for part in world(name, 99))
    found = single_step(kind(factor), values * seen, seen, NO_MAPS[:60], PixelPartition(), DIRECT, generator())
    raw = None if found.variance is None else found.variance.sqrt().numpy()
    distance = distance_to_observation(seen.numpy(), periodic=(True, True))
    around = surroundings(found.mean, seen, torch.ones(60, 1, SIZE, SIZE, dtype=torch.bool))
    return (found.mean - truth).numpy(), raw, distance, around, ~seen.numpy()


def covered(
    fitted: Calibration, name: str, factor: float | None, level: float = 0.9, kind: type[Oracle] = Oracle
) -> float:
    error, raw, distance, around, missing = answers(name, factor, kind)
    inside = np.abs(error) <= ndtri((1 + level) / 2) * fitted(raw, distance, around)
    return float(inside[missing].mean())


def typical(fitted: Calibration) -> np.ndarray:
    """The mean surroundings (5,) of the held-out cells."""
    assert fitted.local is not None
    return fitted.local.centre[1:]


# Intervals


def test_intervals_hold_90_percent_of_the_missing_cells() -> None:
    """On average over records: the 48 validation windows of one tell the coverage within a per cent or so."""
    fitted = [calibrated("cloud", 0.1, seed) for seed in range(RECORDS)]
    assert np.mean([covered(f, "cloud", 0.1) for f in fitted]) == pytest.approx(0.9, abs=0.02)
    assert np.mean([covered(f, "cloud", 0.1, 0.5) for f in fitted]) == pytest.approx(0.5, abs=0.04)


def test_a_factor_in_the_raw_variance_does_not_matter() -> None:
    stated = [calibrated("block", factor)(*answers("block", factor)[1:4]) for factor in (0.3, 4.0)]
    missing = answers("block", 0.3)[4]
    np.testing.assert_allclose(stated[0][missing], stated[1][missing], rtol=1e-3)


@pytest.mark.parametrize("name", ["pixel", "block"])
def test_intervals_hold_under_other_gaps(name: str) -> None:
    assert covered(calibrated(name, 0.3), name, 0.3) == pytest.approx(0.9, abs=0.03)


def test_a_model_without_a_variance_is_covered_too_and_clear_scenes_promise_too_much() -> None:
    fitted = [calibrated("cloud", None, seed) for seed in range(RECORDS)]
    assert np.mean([covered(f, "cloud", None) for f in fitted]) == pytest.approx(0.9, abs=0.04)
    clear = clear_scene(Oracle(None), PixelPartition(), held_crops("cloud"), DIRECT, generator())
    assert covered(clear, "cloud", None) < 0.75


def test_the_account_of_the_held_out_cells_foretells_the_coverage_of_the_missing_ones() -> None:
    summary = calibrated("cloud", 0.1).summary
    curve = dict(zip(summary["levels"], summary["calibrated"]))
    raw = dict(zip(summary["levels"], summary["uncalibrated"]))
    assert 0.88 < curve[0.9] < 0.93 and raw[0.9] < 0.6 and summary["tails"] == pytest.approx(1, abs=0.15)
    for level in (0.5, 0.8, 0.95):
        assert covered(calibrated("cloud", 0.1), "cloud", 0.1, level) == pytest.approx(curve[level], abs=0.05)
    assert summary["squared_score"] == pytest.approx(1, abs=0.2)
    assert summary["effective_windows"] <= len(held_crops("cloud").held.places)
    assert summary["effective_cells"] <= summary["cells"] and 0 <= summary["missing_beyond_reach"] < 0.2


def test_units_change_the_std_and_nothing_else() -> None:
    small, large = (
        calibrate(Oracle(0.5), PixelPartition(), held_crops("block", factor), DIRECT, generator())
        for factor in (1.0, 10.0)
    )
    _, raw, distance, around, _ = answers("block", 0.5)
    spreads = [
        held_crops("block", factor).normaliser.spread_to_values(fitted(raw, distance, around))
        for factor, fitted in ((1.0, small), (10.0, large))
    ]
    np.testing.assert_allclose(spreads[1], 10 * spreads[0], rtol=1e-3)


@pytest.mark.parametrize("factor", [0.1, None])
def test_far_from_every_observation_the_std_is_at_least_that_of_the_climatology(factor: float | None) -> None:
    fitted = calibrated("cloud", factor)
    distance = np.array([1.0, fitted.reach, 1.5 * fitted.reach, 2 * fitted.reach, np.inf]).reshape(1, 5, 1, 1)
    around = np.broadcast_to(typical(fitted), (*distance.shape, 5))
    std = fitted(None if factor is None else np.full(distance.shape, 0.05), distance, around).ravel()
    assert (std > 0).all() and (std[3:] >= CLIMATOLOGY).all()
    assert std[1] < std[2] < std[3]


def test_a_larger_raw_std_never_gives_a_smaller_one() -> None:
    fitted = calibrated("cloud", 0.1)
    raw, distance = np.meshgrid(np.linspace(0.01, 2, 30), np.linspace(0.5, 30, 40))
    shape = (1, 1, *raw.shape)
    around = np.broadcast_to(typical(fitted), (*shape, 5))
    assert (np.diff(fitted(raw.reshape(shape), distance.reshape(shape), around), axis=-1) >= 0).all()


@pytest.mark.parametrize("factor", [0.1, None])
def test_a_calibration_comes_back_from_its_arrays_as_it_was(factor: float | None) -> None:
    fitted = calibrated("cloud", factor)
    again = Calibration.of(fitted.arrays(), dict(fitted.summary))
    cells = answers("cloud", factor)[1:4]
    assert np.array_equal(fitted(*cells), again(*cells)) and again.summary == fitted.summary


def test_few_windows_are_raised_until_windows_that_took_no_part_are_covered() -> None:
    """Cells of one window err alike: five windows are five draws, however many cells they have.

    Their errors have tails for which no factor is right at both levels: at 90 % two points are given up.
    """
    rng = np.random.default_rng(0)
    inside = []
    window = np.arange(5).repeat(100)
    ones, zeros = np.ones(len(window)), np.zeros(len(window), int)
    for _ in range(100):
        error = np.exp(0.8 * rng.normal(size=5))[window] * rng.normal(size=len(window))
        fitted = Calibration.fit(HeldCells(error, ones, ones, ones, ones, zeros, window, ones), 1)
        new = np.exp(0.8 * rng.normal(size=500))[:, None] * rng.normal(size=(500, 20))
        inside.append((np.abs(new) <= ndtri(0.95) * fitted.factors[0, 0]).mean())
    assert np.mean(inside) == pytest.approx(0.88, abs=0.02)


@pytest.mark.parametrize("freedom", [3, 6, 1000])
def test_the_factor_shares_the_miss_between_50_and_90_percent(freedom: int) -> None:
    """Student's law has heavier tails than a normal one; its quantiles are known exactly."""
    share = (np.arange(20_000) + 0.5) / 20_000
    error = student.ppf(share, freedom)
    ones = np.ones(len(error))
    fitted = Calibration.fit(HeldCells(error, *[ones] * 4, 0 * ones.astype(int), 0 * ones.astype(int), ones), 1)
    covers = {level: (np.abs(error) <= ndtri((1 + level) / 2) * fitted.factors[0, 0]).mean() for level in (0.5, 0.9)}
    assert 0.879 < covers[0.9] < 0.901 and 0.499 < covers[0.5] < 0.56
    if freedom == 1000:
        assert covers[0.9] == pytest.approx(0.9, abs=0.002) and fitted.summary["tails"] == pytest.approx(1, abs=0.01)
    else:
        alone = np.quantile(np.abs(error), 0.9) / ndtri(0.95)
        assert fitted.factors[0, 0] < alone and fitted.summary["tails"] > 1.05


# Surroundings


def test_a_held_out_value_does_not_set_its_own_standard_deviation() -> None:
    """What is hidden may change as it likes: the surroundings and the raw standard deviation stay."""
    crops = held_crops("cloud")
    cells = held_cells(Oracle(1.0), PixelPartition(), crops, DIRECT, generator(), None, 4)
    changed = with_hidden_values(crops, lambda values: values + 5.0)
    others = held_cells(Oracle(1.0), PixelPartition(), changed, DIRECT, generator(), None, 4)
    assert np.abs(cells.error - others.error).min() > 4.9
    assert np.array_equal(cells.around, others.around) and np.array_equal(cells.raw, others.raw)


def test_windows_made_sparser_for_validation_do_not_mislead_about_ordinary_ones() -> None:
    """Half of the validation windows have half of the usual observations left."""
    unsure = UnsureWhereSparse
    fitted = calibrate(unsure(1.0), PixelPartition(), held_crops("pixel"), DIRECT, generator())
    assert covered(fitted, "pixel", 1.0, kind=unsure) == pytest.approx(0.9, abs=0.02)
    assert covered(fitted, "pixel", 1.0, 0.5, unsure) == pytest.approx(0.5, abs=0.04)


def test_surroundings_measure_differences_amplitude_and_gaps_inside_the_domain() -> None:
    frames, rows, columns = torch.meshgrid(torch.arange(5.0), torch.arange(9.0), torch.arange(9.0), indexing="ij")
    x = (0.5 * frames + 2 * rows + 0 * columns)[None, None]
    domain, observed = torch.ones(1, 1, 9, 9, dtype=torch.bool), torch.ones(x.shape, dtype=torch.bool)
    observed[..., 5:] = False
    found = surroundings(x, observed, domain)
    np.testing.assert_allclose(found[..., 0], np.log(0.5), atol=1e-5)
    # Of a cell's neighbours two differ by 2 and two by nothing.
    assert found[0, 0, 2, 4, 4, 1] == pytest.approx(np.log(2 / np.sqrt(2)), abs=1e-5)
    np.testing.assert_allclose(found[..., 2], 0.5 * np.log(x.square().mean().item()), atol=1e-5)
    assert found[0, 0, 2, 4, :, 3] == pytest.approx([0, 0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1], abs=1e-5)
    np.testing.assert_allclose(found[..., 4], np.log(5 / 9), atol=1e-5)
    domain[..., 6:] = False
    wild = torch.where(domain[:, :, None], x, 1e3)
    inside = (slice(None), slice(None), slice(None), slice(None), slice(0, 6))
    again = surroundings(wild, observed, domain)[inside]
    np.testing.assert_allclose(again, surroundings(x, observed, domain)[inside])
    assert np.isfinite(surroundings(x[:, :, :1], observed[:, :, :1], domain)).all()


# Weights


@pytest.mark.parametrize("name", list(MASKS))
def test_weighted_held_out_cells_lie_where_the_missing_cells_lie(name: str) -> None:
    crops = held_crops(name)
    missing = missing_places(crops, generator())
    cells = held_cells(Oracle(None), PixelPartition(), crops, DIRECT, generator(), missing)
    far = np.quantile(cells.distance, 0.99)
    edges = [0, 1, 1.5, 2.1, 3, far]
    wanted = np.histogram(missing.distance, edges, weights=missing.prior)[0] / missing.prior.sum()
    plain = np.histogram(cells.distance, edges)[0] / len(cells)
    found = np.histogram(cells.distance, edges, weights=cells.weight)[0] / cells.weight.sum()
    assert np.abs(found - wanted).sum() < 0.12
    assert np.abs(found - wanted).sum() < 0.6 * np.abs(plain - wanted).sum() + 0.03
    sparse = np.average(cells.sparsity, weights=cells.weight)
    assert sparse == pytest.approx(np.average(missing.sparsity, weights=missing.prior), abs=0.03)
    rare = [np.average(cells.rarity, weights=weights) for weights in (None, cells.weight)]
    wanted = np.average(missing.rarity, weights=missing.prior)
    assert abs(rare[1] - wanted) < 0.03 + 0.3 * abs(rare[0] - wanted)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_weights_are_bounded_and_have_mean_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = Places(rng.gamma(rng.uniform(0.5, 4), size=500), rng.random(500), rng.random(500), np.ones(500))
    wanted = Places(
        rng.gamma(rng.uniform(0.5, 4), size=800), rng.random(800) ** 2, rng.random(800) ** 0.5, 1 + rng.random(800)
    )
    weights = matching_weights(held, wanted)
    assert weights.mean() == pytest.approx(1) and (weights >= 0).all() and weights.max() <= 1.5 * WeightSettings().cap
    assert 0 < effective_count(weights) <= 500


def test_without_missing_cells_or_evidence_all_count_as_they_come() -> None:
    held, none = Places(*[np.ones(20)] * 4), Places(*[np.empty(0)] * 4)
    far = Places(np.full(9, FAR), *[np.ones(9)] * 3)
    assert (matching_weights(held, none) == 1).all() and (matching_weights(held, far) == 1).all()


def test_sparsity_is_the_unobserved_share_around_a_cell() -> None:
    observed = np.zeros((1, 3, 12, 12), bool)
    observed[..., 6:] = True
    distance, sparsity = places_in_gaps(observed, (False, False))
    assert sparsity[0, 1, 6, 0] > 0.95 > 0.5 > sparsity[0, 1, 6, 11] >= 0
    assert (np.diff(sparsity[0, 1, 6]) <= 1e-6).all() and distance[0, 1, 6, 0] == 6
    assert (places_in_gaps(observed & False, (False, False))[0] == FAR).all()


# Held-out cells


@pytest.mark.parametrize("name", list(MASKS))
def test_hidden_cells_leave_a_coverage_like_that_of_the_record(name: str) -> None:
    crops = held_crops(name)
    ordinary = crops.masks(99, generator()).float().mean().item()
    left = [crops.held_out([i])[0].observed.float().mean().item() for i in range(len(crops.held))]
    assert min(left) > 0 and 0.6 * ordinary < np.mean(left) < 1.1 * ordinary


def test_hidden_blocks_are_whole_blocks() -> None:
    crops = held_crops("block")
    edges = np.linspace(0, SIZE, 4).round().astype(int)
    for place, mask in zip(crops.held.places, crops.held.masks):
        observed = crops.at(place)[1]
        for low, high in pairwise(edges):
            for left, right in pairwise(edges):
                block = mask[..., low + 1 : high - 1, left + 1 : right - 1]
                seen = observed[..., low + 1 : high - 1, left + 1 : right - 1]
                assert not block.any() or torch.equal(block, seen)


# The budget and the choice


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_parts_of_a_budget_are_not_negative_and_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, 3, 2, 2, 2)
    variance = rng.random(shape)
    budget = Budget.split(variance, rng.normal(size=shape), rng.normal(size=shape))
    parts = list(vars(budget).values())
    assert all((part >= 0).all() for part in parts)
    np.testing.assert_allclose(sum(parts), variance)
    total = budget.over(np.ones(shape, bool)) + budget.over(np.zeros(shape, bool))
    table = budget_table(total, ("a", "b", "c"))
    assert all(sum(row.values()) == pytest.approx(1) for row in table.values())


def test_the_information_that_contexts_leave_out_is_the_growth_of_the_variance() -> None:
    """mean V_k - V_M - Var_k(E_k) is the squared distance of the mean over contexts from E_M."""
    _, values, seen = (part[:20] for part in world("cloud", 99))
    oracle, many = Oracle(1.0), Ensemble(12, keep=0.5, design="random")
    found = single_step(oracle, values * seen, seen, NO_MAPS[:20], PixelPartition(), many, generator())
    whole = single_step(oracle, values * seen, seen, NO_MAPS[:20], PixelPartition(), DIRECT, generator())
    missing = ~seen
    by_variance = (found.variance - whole.variance - found.between)[missing].mean().item()
    by_distance = ((found.mean - whole.mean).square() - found.between / 12)[missing].mean().item()
    assert by_variance == pytest.approx(by_distance, rel=0.35) and by_distance > 0


def test_the_ensemble_with_the_smaller_weighted_error_is_chosen() -> None:
    best, scores = choose_ensemble(Oracle(None), PixelPartition(), held_crops("block"), 2, KEEP, generator())
    assert best == DIRECT and scores[str(DIRECT)] < 1.02 * min(scores.values()) and len(scores) == 4


def test_contexts_that_few_crops_prefer_by_chance_are_not_used() -> None:
    """All observations at once are best on average over many crops; on a few of them, contexts look better."""
    everywhere, misled = held_crops("block").held, 0
    for first in range(0, len(everywhere), 3):
        crops = replace(held_crops("block"), held=everywhere.part(slice(first, first + 3)))
        best, scores = choose_ensemble(Oracle(None), PixelPartition(), crops, 2, KEEP, generator())
        misled += best == DIRECT and min(scores.values()) < 0.98 * scores[str(DIRECT)]
    assert misled


@pytest.mark.parametrize(("share", "contexts"), [(0.99, 0), (0.9, 2)])
def test_contexts_are_used_if_they_are_worth_their_price(monkeypatch, share: float, contexts: int) -> None:
    """``share`` is what contexts leave of the error of all observations at once."""

    def answered(denoiser, partition, crops, ensemble, *others) -> HeldCells:
        ones = np.ones(4)
        return HeldCells(ones * (share if ensemble.count else 1) ** 0.5, *[ones] * 7)

    monkeypatch.setattr("fieldfill.uncertainty.held_cells.held_cells", answered)
    best, _ = choose_ensemble(Oracle(None), PixelPartition(), held_crops("pixel"), 2, KEEP, generator())
    assert best.count == contexts
