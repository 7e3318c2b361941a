"""The Gaussian skip against the exact posterior, and the covariance estimate against brute force."""

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import gappy_dataset
from fieldfill.covariance import factorise, learn_covariance, separations, tapered
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.nn.skip import pull, push
from fieldfill.pde.gaussian import GaussianField
from fieldfill.record import open_record
from fieldfill.windows import Normaliser, Windows

ONE, ZERO = torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, 1, 1)


def exact_covariance(field: GaussianField, frames: int) -> torch.Tensor:
    """The true covariance of a periodic field in the layout of an estimated one."""
    return torch.stack([field.covariance(lag) for lag in range(frames)]).float()[None, None]


@pytest.mark.parametrize(
    ("alpha", "sigma", "noise"), [(1.0, 0.0, 0.2), (1.0, 0.0, 0.5), (0.8, 0.6, 0.1), (0.3, 0.95, 0.1)]
)
def test_with_the_true_covariance_the_skip_is_the_exact_denoiser(alpha, sigma, noise) -> None:
    """At every diffusion time: the posterior mean under the noise variance (sigma / alpha)² + nugget."""
    total = (noise**2 + (sigma / alpha) ** 2) ** 0.5
    field = GaussianField(size=(12, 15), frames=4, velocity=(0.4, 0.7), memory=0.9, noise=total)
    generator = torch.Generator().manual_seed(0)
    truth, _ = field.simulate(2, generator)
    values = field.observe(truth, generator)
    observed = torch.rand(values.shape, generator=generator) < 0.4
    skip = GaussianSkip(1, 4, (12, 15), (True, True), reach=99, steps=150, tolerance=1e-12).eval()
    skip.set_covariance(factorise(exact_covariance(field, 4), skip))
    skip.nugget.fill_(noise**2)
    found = skip((alpha * values).float(), observed, alpha * ONE, sigma * ONE)
    for b in range(2):
        exact, _ = field.posterior(values[b, 0], observed[b, 0])
        assert (found[b, 0] - exact).abs().max() < 0.01


def test_more_steps_come_closer_to_the_exact_answer() -> None:
    field = GaussianField(size=(12, 15), frames=4, noise=0.05)
    generator = torch.Generator().manual_seed(0)
    values = field.observe(field.simulate(1, generator)[0], generator)
    observed = torch.rand(values.shape, generator=generator) < 0.4
    exact, _ = field.posterior(values[0, 0], observed[0, 0])
    errors = []
    for steps in (2, 5, 10, 80):
        skip = GaussianSkip(1, 4, (12, 15), (True, True), reach=99, steps=steps, tolerance=0.0).eval()
        skip.set_covariance(factorise(exact_covariance(field, 4), skip))
        skip.nugget.fill_(0.05**2)
        errors.append((skip(values.float(), observed, ONE, ZERO)[0, 0] - exact).square().mean().sqrt().item())
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02


@pytest.mark.parametrize("periodic", [(False, False), (True, False)], ids=str)
@pytest.mark.parametrize("shape", [(1, 4, 9, 13), (2, 3, 8, 7)], ids=str)
def test_the_covariance_operator_is_symmetric_and_positive(periodic, shape) -> None:
    variables, frames, *grid = shape
    skip = GaussianSkip(variables, frames, tuple(grid), periodic, reach=5)
    skip.set_covariance(factorise(_of_gaps(skip, periodic), skip))
    cells = int(np.prod(shape))
    matrix = skip.covary(torch.eye(cells).reshape(cells, *shape)).reshape(cells, cells)
    assert torch.allclose(matrix, matrix.T, atol=1e-4)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-3


def _of_gaps(skip: GaussianSkip, periodic) -> torch.Tensor:
    """The tapered covariance of a small gappy record on the torus of a skip."""
    variables, frames, rows, columns = skip.shape
    ds = gappy_dataset(frames=30, rows=rows, columns=columns, names=",".join("abc"[:variables]))
    for name, closed in zip(("lat", "lon"), periodic):
        ds[name].attrs["periodic"] = int(closed)
    record = open_record(ds)
    assert record.periodic == periodic
    windows = Windows(record, Normaliser(record.mean, record.std), frames)
    return tapered(separations(windows, skip.torus, torch.Generator().manual_seed(0)).covariance, 3.0, (0.0, 0.0))


def test_covariances_are_means_of_products_of_observed_pairs() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 5, 6))
    values[rng.random(values.shape) < 0.3] = np.nan
    record = open_record(xr.Dataset({"v": (("time", "y", "x"), values)}))
    windows = Windows(record, Normaliser(record.mean, record.std), 3)
    found = separations(windows, (10, 12), torch.Generator().manual_seed(0))
    x = (values - record.mean[0]) / record.std[0]
    for lag, dy, dx in [(0, 0, 0), (1, 0, 1), (2, 2, -3), (1, -1, 2)]:
        early, late = x[: 12 - lag], x[lag:]
        rows = [(i, i + dy) for i in range(5) if 0 <= i + dy < 5]
        columns = [(j, j + dx) for j in range(6) if 0 <= j + dx < 6]
        products = np.array([early[:, i, j] * late[:, k, m] for i, k in rows for j, m in columns])
        assert found.pairs[0, 0, lag, dy, dx] == np.isfinite(products).sum()
        assert found.covariance[0, 0, lag, dy, dx].item() == pytest.approx(np.nanmean(products), abs=1e-5)


def test_learning_beats_the_mean_on_held_out_gaps() -> None:
    record = open_record(gappy_dataset(frames=60))
    windows = Windows(record, Normaliser(record.mean, record.std), 4)
    windows.held = hold_out(windows, 0.3, torch.Generator().manual_seed(0))
    skip = GaussianSkip(1, 4, (9, 12), record.periodic)
    best = learn_covariance(skip, windows, torch.Generator().manual_seed(0))
    assert best["validation"] < 0.1  # the waves are smooth; the variance is 1
    assert skip.nugget.item() == pytest.approx(best["nugget"])


SMALL = [((1, 4, 7, 6), (False, False)), ((2, 2, 6, 5), (True, False)), ((1, 3, 5, 8), (True, True))]


def small_skip(shape, periodic, patterns: int = 0, steps: int = 300) -> tuple[GaussianSkip, torch.Tensor]:
    """A skip on a tiny grid and its covariance as a dense matrix, float64."""
    variables, frames, *grid = shape
    skip = GaussianSkip(variables, frames, tuple(grid), periodic, reach=5, steps=steps, tolerance=1e-14).eval()
    extra = 0.3 * torch.randn(patterns, *shape, generator=torch.Generator().manual_seed(1))
    skip.set_covariance(factorise(_of_gaps(skip, periodic), skip), extra)
    cells = int(np.prod(shape))
    dense = skip.covary(torch.eye(cells).reshape(cells, *shape)).reshape(cells, cells).double()
    return skip, (dense + dense.T) / 2


@pytest.mark.parametrize("patterns", [0, 3])
@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_the_posterior_mean_is_that_of_dense_algebra_for_noise_over_four_orders(shape, periodic, patterns) -> None:
    skip, dense = small_skip(shape, periodic, patterns)
    generator = torch.Generator().manual_seed(0)
    y, exponent = (torch.randn(2, *shape, generator=generator) for _ in range(2))
    context = torch.rand(2, *shape, generator=generator) < 0.5
    noise = 10 ** (4 * torch.sigmoid(2 * exponent) - 3)
    assert noise.max() / noise.min() > 1e3
    found = skip.posterior_mean(y, context, noise)
    for b in range(2):
        seen = context[b].flatten()
        system = dense[seen][:, seen] + torch.diag(noise[b].flatten()[seen] + skip.nugget).double()
        exact = dense[:, seen] @ torch.linalg.solve(system, y[b].flatten()[seen].double())
        assert (found[b].flatten() - exact).abs().max() < 1e-4 * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("patterns", [0, 3])
@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_draws_have_the_covariance_of_the_field(shape, periodic, patterns) -> None:
    skip, dense = small_skip(shape, periodic, patterns)
    # An eigenvector is known up to a phase, which must not matter.
    angle = torch.randn(skip.factor.shape[0], 1, skip.factor.shape[2], generator=torch.Generator().manual_seed(3))
    turned = torch.view_as_complex(skip.factor) * torch.polar(torch.ones_like(angle), 3 * angle)
    skip.set_covariance(torch.view_as_real(turned.contiguous()), skip.patterns)
    count = 20000
    drawn = skip.draw(count, torch.Generator().manual_seed(0)).flatten(1).double()
    error = drawn.T @ drawn / count - dense
    spread = ((dense**2 + dense.diagonal()[:, None] * dense.diagonal()) / count).sqrt()
    assert (error / spread).abs().max() < 5.5 and (error / spread).square().mean() < 1.5
    assert (drawn.mean(0) / (dense.diagonal() / count).sqrt()).abs().max() < 5


@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_realisations_have_the_posterior_covariance_and_vanish_where_observed(shape, periodic) -> None:
    skip, dense = small_skip(shape, periodic, patterns=2, steps=80)
    observed = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.3
    seen, count = observed.flatten(), 4000
    system = dense[seen][:, seen] + skip.nugget.double() * torch.eye(int(seen.sum()))
    exact = dense - dense[:, seen] @ torch.linalg.solve(system, dense[seen])
    drawn = skip.realise(observed, count, torch.Generator().manual_seed(0)).flatten(1).double()
    assert (drawn[:, seen] == 0).all()
    hidden = ~seen
    exact, drawn = exact[hidden][:, hidden], drawn[:, hidden]
    error = drawn.T @ drawn / count - exact
    spread = ((exact**2 + exact.diagonal()[:, None] * exact.diagonal()) / count).sqrt()
    # Neighbouring cells included: the whole matrix agrees within its Monte-Carlo error.
    assert (error / spread).abs().max() < 5.5 and (error / spread).square().mean() < 1.5
    variance = skip.variance(observed[None], 400, torch.Generator().manual_seed(1))[0].flatten().double()[hidden]
    assert ((variance / exact.diagonal() - 1) / (2 / 400) ** 0.5).abs().max() < 5


def test_a_solution_does_not_depend_on_the_other_samples_of_its_batch() -> None:
    shape = (1, 4, 7, 6)
    skip, _ = small_skip(shape, (False, False), steps=40)
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(3, *shape, generator=generator)
    context = torch.rand(3, *shape, generator=generator) < torch.tensor([0.02, 0.4, 0.9]).view(3, 1, 1, 1, 1)
    noise = torch.tensor([10.0, 0.1, 0.0]).view(3, 1, 1, 1, 1)
    together = skip.posterior_mean(y, context, noise)
    alone = torch.cat([skip.posterior_mean(y[b, None], context[b, None], noise[b, None]) for b in range(3)])
    assert torch.allclose(together, alone, atol=1e-4)


def test_a_window_without_context_is_filled_with_the_mean() -> None:
    shape = (1, 4, 7, 6)
    skip, _ = small_skip(shape, (False, False), patterns=2)
    found = skip.posterior_mean(torch.ones(1, *shape), torch.zeros(1, *shape, dtype=torch.bool), torch.zeros(()))
    assert torch.equal(found, torch.zeros_like(found))


def test_pull_and_push_are_transposes() -> None:
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(2, 1, 5, 7, 9, generator=generator)
    coarse = torch.randn(pull(fine, (2, 3, 4)).shape, generator=generator)
    there, back = (pull(fine, (2, 3, 4)) * coarse).sum(), (fine * push(coarse, (2, 3, 4), fine.shape[1:])).sum()
    assert torch.allclose(there, back, atol=1e-4)


def test_a_reloaded_skip_covaries_as_before() -> None:
    first, second = (GaussianSkip(1, 4, (9, 12), (False, False), reach=5) for _ in range(2))
    extra = torch.randn(2, 1, 4, 9, 12, generator=torch.Generator().manual_seed(1))
    first.set_covariance(factorise(_of_gaps(first, (False, False)), first), extra)
    v = torch.randn(1, 1, 4, 9, 12, generator=torch.Generator().manual_seed(0))
    second.covary(v)  # whatever was prepared before must be forgotten
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.covary(v), second.covary(v)) and first.covary(v).abs().max() > 0.01
