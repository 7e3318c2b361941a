r"""Why diffusion probabilistic fields (DPF) are no baseline: their optimum on the Gaussian case of the appendix.

x_0 ~ N(0, Sigma). DPF sees a context and a query, z = alpha x_0 + sigma e with *independent* noise e in each, and is
asked for x_0 at the query. Its optimum is E[x_0 | z_ctx, z_qry]. In sampling both are cut from one x_t. All is linear
and Gaussian, so that optimum, samples and errors are matrices. docs/excluded.md holds the numbers.
"""

from itertools import pairwise

import numpy as np
import pytest

CELLS = 12
SIGMA = np.exp(-0.5 * (np.subtract.outer(np.arange(CELLS), np.arange(CELLS)) / 2.0) ** 2) + 1e-6 * np.eye(CELLS)
EVERYTHING = np.ones(CELLS, bool)
HALF = np.arange(CELLS) % 2 == 0
FEW = np.arange(CELLS) % 4 == 0


def alpha_sigma(t: float) -> tuple[float, float]:
    alpha = np.exp(-0.25 * t**2 * 19.9 - 0.05 * t)
    return alpha, np.sqrt(1 - alpha**2)


def dpf_optimum(t: float, context: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Matrix (cells, context cells + query cells) of the appendix: E[x_0 | y] = matrix y, y the selected entries."""
    alpha, sigma = alpha_sigma(t)
    select = np.eye(2 * CELLS)[np.concatenate([context, query])]
    joint = alpha**2 * np.kron(np.ones((2, 2)), SIGMA) + sigma**2 * np.eye(2 * CELLS)
    cross = alpha * np.kron(np.ones((1, 2)), SIGMA) @ select.T
    return cross @ np.linalg.inv(select @ joint @ select.T)


def target(t: float, seen: np.ndarray) -> np.ndarray:
    """Matrix (cells, seen cells) of E[x_0 | x_t at the cells seen], which a denoiser needs."""
    alpha, sigma = alpha_sigma(t)
    inside = SIGMA[np.ix_(seen, seen)]
    return alpha * SIGMA[:, seen] @ np.linalg.inv(alpha**2 * inside + sigma**2 * np.eye(seen.sum()))


def in_sampling(t: float, context: np.ndarray, query: np.ndarray) -> np.ndarray:
    """What the optimum does in sampling, (cells, cells): context and query are cut from one x_t."""
    select = np.eye(2 * CELLS)[np.concatenate([context, query])]
    return dpf_optimum(t, context, query) @ select @ np.kron(np.ones((2, 1)), np.eye(CELLS))


def error(t: float, estimate: np.ndarray) -> float:
    """Mean squared error of x_0 = estimate x_t, exactly."""
    alpha, sigma = alpha_sigma(t)
    left = np.eye(CELLS) - alpha * estimate
    return float(np.trace(left @ SIGMA @ left.T + sigma**2 * estimate @ estimate.T) / CELLS)


def sampled_covariance(denoiser, steps: int = 400) -> np.ndarray:
    """Covariance of the samples of the deterministic sampler that starts at N(0, I)."""
    times = np.linspace(1, 1e-3, steps)
    path = np.eye(CELLS)
    for now, after in pairwise(times):
        (alpha, sigma), (alpha_, sigma_) = alpha_sigma(now), alpha_sigma(after)
        x_0 = denoiser(now) @ path
        path = alpha_ * x_0 + sigma_ * (path - alpha * x_0) / sigma
    return path @ path.T


@pytest.mark.parametrize("query", [EVERYTHING, HALF], ids=["query everything", "query half"])
def test_regression_on_pairs_of_independent_noise_finds_the_matrix_of_the_appendix(query: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    alpha, sigma = alpha_sigma(0.3)
    x_0 = rng.multivariate_normal(np.zeros(CELLS), SIGMA, size=200_000)
    noisy = [alpha * x_0 + sigma * rng.standard_normal(x_0.shape) for _ in range(2)]
    y = np.concatenate([noisy[0][:, FEW], noisy[1][:, query]], axis=1)
    learnt = np.linalg.lstsq(y, x_0, rcond=None)[0].T
    assert np.abs(learnt - dpf_optimum(0.3, FEW, query)).max() < 0.01


def test_the_optimum_of_dpf_depends_on_the_masks_of_one_and_the_same_noisy_field() -> None:
    answers = [in_sampling(0.3, context, EVERYTHING) for context in (FEW, HALF, EVERYTHING)]
    assert all(np.abs(one - other).max() > 0.03 for one, other in pairwise(answers))


@pytest.mark.parametrize("context", [FEW, HALF, EVERYTHING], ids=["few", "half", "everything"])
@pytest.mark.parametrize("t", [0.1, 0.3, 0.5])
def test_in_sampling_dpf_errs_more_than_the_denoiser_it_stands_for(t: float, context: np.ndarray) -> None:
    assert error(t, in_sampling(t, context, EVERYTHING)) > 1.001 * error(t, target(t, EVERYTHING))


def test_the_target_is_reached_when_the_context_is_empty_and_only_then() -> None:
    nothing = np.zeros(CELLS, bool)
    np.testing.assert_allclose(in_sampling(0.3, nothing, EVERYTHING), target(0.3, EVERYTHING), atol=1e-9)
    assert np.abs(in_sampling(0.3, FEW, EVERYTHING) - target(0.3, EVERYTHING)).max() > 0.01


def test_samples_of_dpf_have_the_wrong_variance_and_those_of_the_target_the_right_one() -> None:
    right = sampled_covariance(lambda t: target(t, EVERYTHING))
    assert abs(np.trace(right) / np.trace(SIGMA) - 1) < 0.03
    for context in (FEW, HALF, EVERYTHING):
        wrong = sampled_covariance(lambda t, context=context: in_sampling(t, context, EVERYTHING))
        assert abs(np.trace(wrong) / np.trace(SIGMA) - 1) > 0.1


def test_a_model_that_sees_the_context_alone_has_one_optimum_whatever_the_query() -> None:
    rng = np.random.default_rng(1)
    alpha, sigma = alpha_sigma(0.3)
    x_0 = rng.multivariate_normal(np.zeros(CELLS), SIGMA, size=200_000)
    z = (alpha * x_0 + sigma * rng.standard_normal(x_0.shape))[:, FEW]
    for query in (HALF, EVERYTHING):
        learnt = np.linalg.lstsq(z, x_0[:, query], rcond=None)[0].T
        assert np.abs(learnt - target(0.3, FEW)[query]).max() < 0.01
