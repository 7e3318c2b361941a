"""The Gaussian skip against the exact posterior, and the covariance estimate against brute force."""

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import gappy_dataset
from fieldfill.covariance import Separations, factorise, learn_covariance, separations
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.nn.skip import pull, push
from fieldfill.pde.gaussian import GaussianField
from fieldfill.record import open_record
from fieldfill.windows import Normaliser, Windows

ONE, ZERO = torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, 1, 1)


def exact_separations(field: GaussianField, frames: int) -> Separations:
    """The true covariance of a periodic field in the layout of an estimated one."""
    table = torch.stack([field.covariance(lag) for lag in range(frames)]).float()
    return Separations(table[None, None], torch.full_like(table, 1e6)[None, None])


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
    skip = GaussianSkip(1, 4, (12, 15), (True, True), reach=99, steps=150).eval()
    skip.set_covariance(factorise(exact_separations(field, 4), skip, taper=1e6))
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
    for steps in (5, 20, 80, 320):
        skip = GaussianSkip(1, 4, (12, 15), (True, True), reach=99, steps=steps).eval()
        skip.set_covariance(factorise(exact_separations(field, 4), skip, taper=1e6))
        skip.nugget.fill_(0.05**2)
        errors.append((skip(values.float(), observed, ONE, ZERO)[0, 0] - exact).square().mean().sqrt().item())
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02


@pytest.mark.parametrize("periodic", [(False, False), (True, False)], ids=str)
@pytest.mark.parametrize("shape", [(1, 4, 9, 13), (2, 3, 8, 7)], ids=str)
def test_the_covariance_operator_is_symmetric_and_positive(periodic, shape) -> None:
    variables, frames, *grid = shape
    skip = GaussianSkip(variables, frames, tuple(grid), periodic, reach=5)
    skip.set_covariance(factorise(_of_gaps(variables, frames, grid, periodic), skip, taper=3.0))
    cells = int(np.prod(shape))
    matrix = skip.covary(torch.eye(cells).reshape(cells, *shape)).reshape(cells, cells)
    assert torch.allclose(matrix, matrix.T, atol=1e-4)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-3
    coarse = pull(pull(matrix.reshape(cells, *shape), skip.block).flatten(1).T.reshape(-1, *shape), skip.block).flatten(
        1
    )
    size = pull(torch.ones(1, *shape), skip.block).flatten()
    assert torch.allclose(skip.coarse, coarse / size[:, None] / size, atol=1e-4)


def _of_gaps(variables, frames, grid, periodic) -> Separations:
    ds = gappy_dataset(frames=30, rows=grid[0], columns=grid[1], names=",".join("abc"[:variables]))
    for name, closed in zip(("lat", "lon"), periodic):
        ds[name].attrs["periodic"] = int(closed)
    record = open_record(ds)
    assert record.periodic == periodic
    windows = Windows(record, Normaliser(record.mean, record.std), frames)
    return separations(windows, torch.Generator().manual_seed(0))


def test_covariances_are_means_of_products_of_observed_pairs() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 5, 6))
    values[rng.random(values.shape) < 0.3] = np.nan
    record = open_record(xr.Dataset({"v": (("time", "y", "x"), values)}))
    windows = Windows(record, Normaliser(record.mean, record.std), 3)
    found = separations(windows, torch.Generator().manual_seed(0))
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


def test_pull_and_push_are_transposes() -> None:
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(2, 1, 5, 7, 9, generator=generator)
    coarse = torch.randn(pull(fine, (2, 3, 4)).shape, generator=generator)
    there, back = (pull(fine, (2, 3, 4)) * coarse).sum(), (fine * push(coarse, (2, 3, 4), fine.shape[1:])).sum()
    assert torch.allclose(there, back, atol=1e-4)


def test_a_reloaded_skip_covaries_as_before() -> None:
    first, second = (GaussianSkip(1, 4, (9, 12), (False, False), reach=5) for _ in range(2))
    first.set_covariance(factorise(_of_gaps(1, 4, (9, 12), (False, False)), first, 3.0))
    v = torch.randn(1, 1, 4, 9, 12, generator=torch.Generator().manual_seed(0))
    second.covary(v)  # whatever was prepared before must be forgotten
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.covary(v), second.covary(v)) and first.covary(v).abs().max() > 0.01
