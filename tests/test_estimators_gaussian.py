"""The learnt Gaussian field against the exact posterior, and the covariance estimate against brute force."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import crops_of, field_of, gappy_dataset, given_of, lesson_of, seeded
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import GaussianLaw, LearntField
from fieldfill.estimators.gaussian.pairs import enlarged, factorise, separations, tapered
from fieldfill.simulate.gaussian_field import GaussianField


@pytest.mark.parametrize(
    ("alpha", "sigma", "noise"), [(1.0, 0.0, 0.2), (1.0, 0.0, 0.5), (0.8, 0.6, 0.1), (0.3, 0.95, 0.1)]
)
def test_with_the_true_covariance_the_field_is_the_exact_denoiser(alpha, sigma, noise) -> None:
    """At every diffusion time: the posterior mean under the noise variance (sigma / alpha)² + nugget."""
    total = (noise**2 + (sigma / alpha) ** 2) ** 0.5
    field = GaussianField(size=(12, 15), frames=4, velocity=(0.4, 0.7), memory=0.9, noise=total)
    generator = seeded()
    truth, _ = field.simulate(2, generator)
    values = field.observe(truth, generator)
    observed = torch.rand(values.shape, generator=generator) < 0.4
    learnt = field_of(replace(field, noise=noise), steps=150, tolerance=1e-12)
    x_t = (alpha * values).float()
    found = GaussianLaw(learnt).mean(given_of(x_t / alpha, observed, (sigma / alpha) ** 2))
    for b in range(2):
        exact, _ = field.posterior(values[b, 0], observed[b, 0])
        assert (found[b, 0] - exact).abs().max() < 0.01


def test_more_steps_come_closer_to_the_exact_answer() -> None:
    field = GaussianField(size=(12, 15), frames=4, noise=0.05)
    generator = seeded()
    values = field.observe(field.simulate(1, generator)[0], generator)
    observed = torch.rand(values.shape, generator=generator) < 0.4
    exact, _ = field.posterior(values[0, 0], observed[0, 0])
    errors = []
    for steps in (2, 5, 10, 80):
        found = field_of(field, steps, tolerance=0.0).condition(values.float(), observed, torch.zeros(()))
        errors.append((found[0, 0] - exact).square().mean().sqrt().item())
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02


@pytest.mark.parametrize("periodic", [(False, False), (True, False)], ids=str)
@pytest.mark.parametrize("shape", [(1, 4, 9, 13), (2, 3, 8, 7)], ids=str)
def test_the_covariance_operator_is_symmetric_and_positive(periodic, shape) -> None:
    variables, frames, *grid = shape
    field = LearntField(variables, frames, tuple(grid), periodic, reach=5)
    field.set_covariance(factorise(_of_gaps(field, periodic), field))
    cells = int(np.prod(shape))
    matrix = field.covary(torch.eye(cells).reshape(cells, *shape)).reshape(cells, cells)
    assert torch.allclose(matrix, matrix.T, atol=1e-4)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-3


def _of_gaps(field: LearntField, periodic) -> torch.Tensor:
    """The tapered covariance of a small gappy record on the torus of a field."""
    variables, frames, rows, columns = field.shape
    ds = gappy_dataset(frames=30, rows=rows, columns=columns, names=",".join("abc"[:variables]))
    for name, closed in zip(("lat", "lon"), periodic):
        ds[name].attrs["periodic"] = int(closed)
    crops = crops_of(ds, frames, held=0)
    assert crops.record.periodic == periodic
    return tapered(separations(crops, field.torus, seeded()).covariance, 3.0, (0.0, 0.0))


def test_covariances_are_means_of_products_of_observed_pairs() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 5, 6))
    values[rng.random(values.shape) < 0.3] = np.nan
    crops = crops_of(xr.Dataset({"v": (("time", "y", "x"), values)}), 3, held=0)
    record = crops.record
    found = separations(crops, (10, 12), seeded())
    x = (values - record.mean[0]) / record.std[0]
    for lag, dy, dx in [(0, 0, 0), (1, 0, 1), (2, 2, -3), (1, -1, 2)]:
        early, late = x[: 12 - lag], x[lag:]
        rows = [(i, i + dy) for i in range(5) if 0 <= i + dy < 5]
        columns = [(j, j + dx) for j in range(6) if 0 <= j + dx < 6]
        products = np.array([early[:, i, j] * late[:, k, m] for i, k in rows for j, m in columns])
        assert found.pairs[0, 0, lag, dy, dx] == np.isfinite(products).sum()
        assert found.covariance[0, 0, lag, dy, dx].item() == pytest.approx(np.nanmean(products), abs=1e-5)


def test_learning_beats_the_mean_on_held_out_gaps() -> None:
    crops = crops_of(gappy_dataset(frames=60), 4)
    field = LearntField(1, 4, (9, 12), crops.record.periodic)
    best = Chain([Gaussian(field)]).learn(lesson_of(crops))["gaussian"]
    assert best["validation"] < 0.1  # the waves are smooth; the variance is 1
    assert field.nugget.item() == pytest.approx(best["nugget"])


SMALL = [((1, 4, 7, 6), (False, False)), ((2, 2, 6, 5), (True, False)), ((1, 3, 5, 8), (True, True))]


def small_field(shape, periodic, patterns: int = 0, steps: int = 300) -> tuple[LearntField, torch.Tensor]:
    """A field on a tiny grid and its covariance as a dense matrix, float64."""
    variables, frames, *grid = shape
    field = LearntField(variables, frames, tuple(grid), periodic, reach=5, steps=steps, tolerance=1e-14).eval()
    extra = 0.3 * torch.randn(patterns, *shape, generator=seeded(1))
    field.set_covariance(factorise(_of_gaps(field, periodic), field), extra)
    cells = int(np.prod(shape))
    dense = field.covary(torch.eye(cells).reshape(cells, *shape)).reshape(cells, cells).double()
    return field, (dense + dense.T) / 2


@pytest.mark.parametrize("patterns", [0, 3])
@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_the_posterior_mean_is_that_of_dense_algebra_for_noise_over_four_orders(shape, periodic, patterns) -> None:
    field, dense = small_field(shape, periodic, patterns)
    generator = seeded()
    y, exponent = (torch.randn(2, *shape, generator=generator) for _ in range(2))
    context = torch.rand(2, *shape, generator=generator) < 0.5
    noise = 10 ** (4 * torch.sigmoid(2 * exponent) - 3)
    assert noise.max() / noise.min() > 1e3
    found = field.condition(y, context, noise)
    for b in range(2):
        seen = context[b].flatten()
        system = dense[seen][:, seen] + torch.diag(noise[b].flatten()[seen] + field.nugget).double()
        exact = dense[:, seen] @ torch.linalg.solve(system, y[b].flatten()[seen].double())
        assert (found[b].flatten() - exact).abs().max() < 1e-4 * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("patterns", [0, 3])
@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_draws_have_the_covariance_of_the_field(shape, periodic, patterns) -> None:
    field, dense = small_field(shape, periodic, patterns)
    # An eigenvector is known up to a phase, which must not matter.
    angle = torch.randn(field.factor.shape[0], 1, field.factor.shape[2], generator=seeded(3))
    turned = torch.view_as_complex(field.factor) * torch.polar(torch.ones_like(angle), 3 * angle)
    field.set_covariance(torch.view_as_real(turned.contiguous()), field.patterns)
    count = 20000
    drawn = field.draw(count, seeded()).flatten(1).double()
    error = drawn.T @ drawn / count - dense
    spread = ((dense**2 + dense.diagonal()[:, None] * dense.diagonal()) / count).sqrt()
    assert (error / spread).abs().max() < 5.5 and (error / spread).square().mean() < 1.5
    assert (drawn.mean(0) / (dense.diagonal() / count).sqrt()).abs().max() < 5


@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_realisations_have_the_posterior_covariance_and_vanish_where_observed(shape, periodic) -> None:
    field, dense = small_field(shape, periodic, patterns=2, steps=80)
    observed = torch.rand(shape, generator=seeded(2)) < 0.3
    seen, count = observed.flatten(), 4000
    system = dense[seen][:, seen] + field.nugget.double() * torch.eye(int(seen.sum()))
    exact = dense - dense[:, seen] @ torch.linalg.solve(system, dense[seen])
    drawn = field.realise(observed, count, seeded()).flatten(1).double()
    assert (drawn[:, seen] == 0).all()
    hidden = ~seen
    exact, drawn = exact[hidden][:, hidden], drawn[:, hidden]
    error = drawn.T @ drawn / count - exact
    spread = ((exact**2 + exact.diagonal()[:, None] * exact.diagonal()) / count).sqrt()
    # Neighbouring cells included: the whole matrix agrees within its Monte-Carlo error.
    assert (error / spread).abs().max() < 5.5 and (error / spread).square().mean() < 1.5
    variance = field.variance(observed[None], 400, seeded(1))[0].flatten().double()[hidden]
    assert ((variance / exact.diagonal() - 1) / (2 / 400) ** 0.5).abs().max() < 5


def test_a_solution_does_not_depend_on_the_other_samples_of_its_batch() -> None:
    shape = (1, 4, 7, 6)
    field, _ = small_field(shape, (False, False), steps=40)
    generator = seeded()
    y = torch.randn(3, *shape, generator=generator)
    context = torch.rand(3, *shape, generator=generator) < torch.tensor([0.02, 0.4, 0.9]).view(3, 1, 1, 1, 1)
    noise = torch.tensor([10.0, 0.1, 0.0]).view(3, 1, 1, 1, 1)
    together = field.condition(y, context, noise)
    alone = torch.cat([field.condition(y[b, None], context[b, None], noise[b, None]) for b in range(3)])
    assert torch.allclose(together, alone, atol=1e-4)


def test_a_window_without_context_is_filled_with_the_mean() -> None:
    shape = (1, 4, 7, 6)
    field, _ = small_field(shape, (False, False), patterns=2)
    found = field.condition(torch.ones(1, *shape), torch.zeros(1, *shape, dtype=torch.bool), torch.zeros(()))
    assert torch.equal(found, torch.zeros_like(found))


def test_a_reloaded_field_covaries_as_before() -> None:
    first, second = (LearntField(1, 4, (9, 12), (False, False), reach=5) for _ in range(2))
    extra = torch.randn(2, 1, 4, 9, 12, generator=seeded(1))
    first.set_covariance(factorise(_of_gaps(first, (False, False)), first), extra)
    v = torch.randn(1, 1, 4, 9, 12, generator=seeded())
    second.covary(v)  # whatever was prepared before must be forgotten
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.covary(v), second.covary(v)) and first.covary(v).abs().max() > 0.01


# Small crops of large grids: (grid of the crop, larger grid, whether that is periodic)
LARGER = {
    "open": ((10, 12), (31, 26), (False, False)),
    "periodic": ((10, 12), (31, 26), (True, True)),
    "little larger": ((10, 12), (11, 13), (False, False)),
    "periodic and little larger": ((10, 12), (11, 13), (True, True)),
    "one periodic axis that fits": ((10, 12), (25, 12), (False, True)),
}


def compact_field(grid: tuple[int, int], periodic: tuple[bool, bool], reach: int = 8) -> LearntField:
    """Two variables that inform each other, with a drift, and next to no covariance beyond four cells."""
    field = LearntField(2, 3, grid, periodic, reach=reach, steps=300, tolerance=1e-14).eval()
    flat = torch.full((2, 2, 3, *field.torus), 0.5)
    flat[range(2), range(2)] = 1.0
    field.set_covariance(factorise(tapered(flat, 1.0, (0.3, -0.4), 2.0), field))
    field.nugget.fill_(0.02)
    field.effort.fill_(2.0)
    return field


@pytest.mark.parametrize("case", LARGER)
def test_a_field_on_a_larger_grid_answers_in_its_middle_as_on_the_small_one(case) -> None:
    """Observations in a patch of a crop, which lies in the middle of a larger grid."""
    crop, grid, periodic = LARGER[case]
    closed = (False, crop[1] == grid[1] and periodic[1])
    small = compact_field(crop, closed)
    large = enlarged(small, grid, periodic)
    assert large.shape == (2, 3, *grid) and large.periodic == periodic and not large.training
    assert large.nugget == small.nugget and large.effort == small.effort
    assert (large.steps, large.tolerance, large.reach) == (small.steps, small.tolerance, small.reach)
    row, column = ((n - m) // 2 for n, m in zip(grid, crop))
    y = torch.randn(2, 2, 3, *crop, generator=seeded())
    patch = torch.zeros(y.shape, dtype=torch.bool)
    patch[..., 4:7, 5:8] = torch.rand(2, 2, 3, 3, 3, generator=seeded(1)) < 0.7
    wide, seen = torch.zeros(2, 2, 3, *grid), torch.zeros(2, 2, 3, *grid, dtype=torch.bool)
    inner = (..., slice(row, row + crop[0]), slice(column, column + crop[1]))
    wide[inner], seen[inner] = torch.where(patch, y, 0), patch
    for noise in (0.0, 0.5):
        here = small.condition(y, patch, torch.tensor(noise))
        there = large.condition(wide, seen, torch.tensor(noise))
        assert here.abs().max() > 0.5 and (there[inner] - here).abs().max() < 1e-3
