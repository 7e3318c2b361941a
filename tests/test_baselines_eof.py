"""The EOF fill finds what was planted, chooses its rank where the gaps are, and knows its error."""

import numpy as np
import pytest
import xarray as xr
from scipy.ndimage import gaussian_filter

from fieldfill.baselines import EOF, Climatology
from fieldfill.baselines.eof import leading, project

ROWS, COLUMNS, FRAMES = 9, 11, 70


def planted(seed: int, rank: int = 3, noise: float = 0.0, variables: int = 1) -> tuple[xr.Dataset, xr.Dataset]:
    """``rank`` patterns with random amplitudes, half hidden by smooth clouds: (gappy, truth)."""
    rng = np.random.default_rng(seed)
    amplitudes = rng.normal(size=(rank, FRAMES)) * (3.0 / np.arange(1, rank + 1))[:, None]
    clouds = gaussian_filter(rng.normal(size=(FRAMES, ROWS, COLUMNS)), (0, 1.5, 1.5))
    clouds = clouds > np.median(clouds, axis=(1, 2), keepdims=True)
    gappy, truth = {}, {}
    for c in range(variables):
        patterns = gaussian_filter(rng.normal(size=(rank, ROWS, COLUMNS)), (0, 1, 1))
        x = np.einsum("kt,kyx->tyx", amplitudes, patterns / patterns.std(axis=(1, 2), keepdims=True))
        x = 10.0**c * (x + 5.0 + gaussian_filter(rng.normal(size=(ROWS, COLUMNS)), 1))
        hidden = clouds if c == 0 else rng.random(clouds.shape) < 0.5
        truth[f"v{c}"] = (("time", "y", "x"), x)
        seen = x + noise * 10.0**c * rng.normal(size=x.shape)
        gappy[f"v{c}"] = (("time", "y", "x"), np.where(hidden, np.nan, seen))
    return xr.Dataset(gappy), xr.Dataset(truth)


def error(filled: xr.Dataset, truth: xr.Dataset, name: str = "v0") -> float:
    missing = filled[f"{name}_flag"].values > 0
    return float(np.sqrt(((filled[name].values - truth[name].values)[missing] ** 2).mean()))


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_low_rank_signal_is_recovered(seed: int) -> None:
    ds, truth = planted(seed)
    exact = EOF(tolerance=1e-9, iterations=20_000, seed=seed).fit(ds)
    assert exact.rank_ == 3
    assert error(exact.fill(ds), truth) < 1e-6 * float(truth.v0.std())


def test_the_chosen_rank_does_not_depend_on_the_seed() -> None:
    ds, _ = planted(1, rank=4, noise=0.2)
    assert {EOF(seed=seed).fit(ds).rank_ for seed in range(6)} == {4}


def test_variables_help_each_other() -> None:
    ds, truth = planted(1, rank=2, noise=0.05, variables=2)
    ds["v0"][:40:2] = np.nan
    together, alone = EOF().fit(ds).fill(ds), EOF(variables=("v0",)).fit(ds).fill(ds)
    assert error(together, truth) < 0.2 * error(alone, truth)
    assert error(together, truth, "v1") < 0.1 * float(truth.v1.std())


def test_new_frames_are_filled_with_the_modes_learnt() -> None:
    ds, truth = planted(2, noise=0.05)
    fitted = EOF().fit(ds.isel(time=slice(0, 50)))
    new = fitted.fill(ds.isel(time=slice(50, None)))
    clear = Climatology().fit(ds).fill(ds.isel(time=slice(50, None)))
    rest = truth.isel(time=slice(50, None))
    assert error(new, rest) < 0.2 * error(clear, rest)


def test_the_error_map_is_honest_where_the_model_holds() -> None:
    z = []
    for seed in range(4):
        ds, truth = planted(seed, noise=0.3)
        filled = EOF().fit(ds).fill(ds)
        missing = filled.v0_flag.values == 1
        z.append(((filled.v0 - truth.v0) / filled.v0_std).values[missing])
    inside = np.abs(np.concatenate(z)) < 1.645
    assert 0.85 < inside.mean() < 0.99


def test_random_points_promise_more_than_clouds() -> None:
    """A field of many scales that drifts: next to an observed cell everything is easy."""
    rng = np.random.default_rng(0)
    x = gaussian_filter(rng.normal(size=(FRAMES, 20, 20)), (2, 2, 2))
    x /= x.std()
    hidden = gaussian_filter(rng.normal(size=x.shape), (2, 4, 4)) > 0
    ds = xr.Dataset({"v0": (("time", "y", "x"), np.where(hidden, np.nan, x))})
    true = error(EOF().fit(ds).fill(ds), xr.Dataset({"v0": (("time", "y", "x"), x)})) ** 2
    clouds, random = (EOF(cross_validation=kind, inflation=(1.0,)).fit(ds) for kind in ("clouds", "random"))
    assert random.errors_[random.rank_] < 0.5 * clouds.errors_[clouds.rank_]
    assert random.errors_[random.rank_] < 0.5 * true


def test_a_given_rank_is_taken() -> None:
    ds, _ = planted(0)
    fitted = EOF(rank=2).fit(ds)
    assert fitted.rank_ == 2 and fitted.fit_.scaled.shape == (ROWS * COLUMNS, 2)


def test_leading_vectors_are_those_of_the_singular_value_decomposition() -> None:
    rng = np.random.default_rng(0)
    for shape in ((12, 30), (30, 12)):
        x = rng.normal(size=shape)
        u = np.linalg.svd(x)[0][:, :4]
        modes = leading(x, 4)
        np.testing.assert_allclose(modes @ modes.T, u @ u.T, atol=1e-9)


def test_the_projection_is_gaussian_conditioning() -> None:
    """Against E[x | x_p] and its covariance with the prior L Lᵀ and noise mu², written out for one frame."""
    rng = np.random.default_rng(1)
    scaled, x, mu2 = rng.normal(size=(8, 3)), rng.normal(size=(8, 2)), 0.3
    seen = rng.random((8, 2)) < 0.5
    fit, variance = project(scaled, x, seen, mu2)
    prior = scaled @ scaled.T
    for t in range(2):
        p = seen[:, t]
        gain = prior[:, p] @ np.linalg.inv(prior[np.ix_(p, p)] + mu2 * np.eye(p.sum()))
        np.testing.assert_allclose(fit[:, t], gain @ x[p, t], atol=1e-10)
        np.testing.assert_allclose(variance[:, t], np.diag(prior - gain @ prior[p]), atol=1e-10)
