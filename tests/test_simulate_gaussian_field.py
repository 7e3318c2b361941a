"""Gaussian fields: what is simulated has the covariance, and the optimum is the optimum."""

import pytest
import torch
from torch import Tensor

from conftest import dense_covariance, seeded
from fieldfill.errors import InputError
from fieldfill.simulate import smoother
from fieldfill.simulate.gaussian_field import GaussianField

SETTINGS = {
    "even periodic": GaussianField(size=(6, 8), frames=4, velocity=(0.3, -1.4), memory=0.9),
    "odd periodic": GaussianField(size=(5, 7), frames=4, velocity=(1.5, 0.5), memory=0.8, variance=2.5),
    "cropped": GaussianField(size=(5, 6), frames=4, velocity=(-0.7, 0.6), memory=0.95, periodic=False),
    "small scales forget": GaussianField(size=6, frames=4, memory=0.95, memory_k2=0.2, slope=2.0),
    "pure advection": GaussianField(size=(6, 7), frames=4, memory=1.0, noise=0.2),
    "no memory": GaussianField(size=6, frames=4, memory=0.0),
    "steep and noise-free": GaussianField(size=(7, 6), frames=4, knee=1.0, slope=4.0, noise=0.0),
}
every_field = pytest.mark.parametrize("field", SETTINGS.values(), ids=SETTINGS.keys())


def gappy(field: GaussianField, seed: int = 0, share: float = 0.4) -> tuple[Tensor, Tensor, Tensor]:
    """Truth, noisy values and a mask with an empty frame, each (T, H, W)."""
    generator = seeded(seed)
    truth = field.simulate(1, generator)[0][0, 0]
    observed = torch.rand(truth.shape, generator=generator) < share
    observed[1] = False
    return truth, field.observe(truth, generator), observed


@every_field
def test_sample_covariances_match_the_covariance(field: GaussianField) -> None:
    draws = 4000
    x = field.simulate(draws, seeded())[0].reshape(draws, -1)
    expected = dense_covariance(field, field.frames)
    torch.testing.assert_close(expected.diagonal(), torch.full((len(expected),), field.variance).double())
    # In the axes of the covariance every pair of components is a test of its own, small eigenvalues included.
    eigenvalues, axes = torch.linalg.eigh(expected)
    energetic = eigenvalues > 1e-9
    assert ((x @ axes[:, ~energetic]).abs() < 1e-4).all()
    white = x @ axes[:, energetic] / eigenvalues[energetic].sqrt()
    count = white.shape[1]
    excess = (white.T @ white / draws - torch.eye(count)) * draws**0.5
    assert excess.abs().max() < 8
    assert abs(excess.square().mean() - (count + 1) / count) < 0.05


@every_field
def test_covariance_is_symmetric_and_positive(field: GaussianField) -> None:
    full = dense_covariance(field, 3)
    torch.testing.assert_close(full, full.T, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(full).min() > -1e-10


def test_amplitude_follows_the_asked_spectrum() -> None:
    density = GaussianField(size=16, knee=4.0, slope=3.0).modes.density
    k2 = torch.tensor([0.0, 1.0, 5.0**2 + 3.0**2])
    got = torch.stack([density[0, 0], density[0, 1], density[5, 3]]).sqrt()
    torch.testing.assert_close(got / got[0], ((4 + k2) / 4).to(torch.float64) ** -1.5)


def test_cropping_keeps_the_length_scale_in_cells() -> None:
    near = GaussianField(size=32).covariance(0)[0, 1]
    apart = GaussianField(size=32, periodic=False).covariance(0)[31, 32]
    assert abs(near - apart) < 0.02


def test_pure_advection_by_whole_cells_moves_the_field_unchanged() -> None:
    field = GaussianField(size=(8, 9), frames=5, velocity=(2.0, -3.0), memory=1.0)
    x = field.simulate(2, seeded())[0]
    for t in range(4):
        torch.testing.assert_close(x[:, :, t + 1], x[:, :, t].roll((2, -3), (-2, -1)), rtol=0, atol=1e-12)


@every_field
def test_posterior_is_the_textbook_formula(field: GaussianField) -> None:
    _, values, observed = gappy(field)
    mean, variance = field.posterior(values, observed)
    full = dense_covariance(field, len(values))
    seen = observed.flatten()
    noise = max(field.noise**2, 1e-9) * field.variance
    sigma = full[seen][:, seen] + noise * torch.eye(int(seen.sum()), dtype=torch.float64)
    gain = torch.linalg.solve(sigma, full[seen]).T
    torch.testing.assert_close(mean.flatten(), gain @ values.flatten()[seen], rtol=0, atol=1e-6)
    expected = full.diagonal() - (gain * full[:, seen]).sum(1)
    torch.testing.assert_close(variance.flatten(), expected, rtol=0, atol=1e-6)


@every_field
@pytest.mark.parametrize("frames", [1, 4, 7])
def test_smoother_and_posterior_agree(field: GaussianField, frames: int) -> None:
    generator = seeded(frames)
    values = torch.randn(frames, *field.shape, dtype=torch.float64, generator=generator)
    observed = torch.rand(values.shape, generator=generator) < 0.4
    observed[frames // 2] = False
    domain = torch.rand(field.shape, generator=generator) < 0.8
    by_conditioning, by_smoother = (f(values, observed, domain) for f in (field.posterior, field.smoother))
    for expected, got in zip(by_conditioning, by_smoother):
        assert torch.equal(expected.isnan(), ~domain.expand(observed.shape))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6, equal_nan=True)


def test_mean_error_equals_predicted_variance_and_intervals_cover() -> None:
    field = GaussianField(size=(8, 10), frames=4, velocity=(0.5, 1.2), memory=0.95, periodic=False)
    generator, draws = seeded(1), 4000
    truth = field.simulate(draws, generator)[0][:, 0]
    observed = torch.rand(truth.shape[1:], generator=generator) < 0.15
    given = field.conditioning(observed)
    error = given.mean(field.observe(truth, generator)) - truth
    variance = given.variance()
    for cells in (observed, ~observed):
        mse = error[:, cells].square().mean(1)
        assert abs(mse.mean() - variance[cells].mean()) < 3 * mse.std() / draws**0.5
        inside = (error.abs() <= 1.6448536 * variance.sqrt())[:, cells].double()
        assert abs(inside.mean() - 0.9) < 0.01
    # Cell by cell, too: a variance that is right on average only would pass the above.
    z = (error.square().mean(0) / variance - 1) / (2 / draws) ** 0.5
    assert z.abs().max() < 5


def test_draws_have_the_posterior_mean_variance_and_covariance() -> None:
    field = GaussianField(size=(6, 7), frames=3, noise=0.3)
    _, values, observed = gappy(field)
    count = 6000
    draws = field.draws(values, observed, count, seeded(5))
    mean, variance = field.posterior(values, observed)
    assert ((draws.mean(0) - mean) / (variance / count).sqrt()).abs().max() < 5
    assert (draws.var(0) / variance - 1).abs().max() < 5 * (2 / count) ** 0.5
    full = dense_covariance(field, 3)
    seen = observed.flatten()
    noise = torch.eye(int(seen.sum()), dtype=torch.float64) * field.noise_std**2
    expected = full - full[:, seen] @ torch.linalg.solve(full[seen][:, seen] + noise, full[seen])
    got = torch.cov(draws.reshape(count, -1).T)
    error = ((expected**2 + torch.outer(expected.diagonal(), expected.diagonal())) / count).sqrt()
    assert ((got - expected) / error).abs().max() < 5.5


def test_more_frames_never_raise_the_variance() -> None:
    field = GaussianField(size=6, frames=12, memory=0.9)
    _, values, observed = gappy(field)
    record = field.smoother(values, observed)[1][4:8]
    window = field.posterior(values[4:8], observed[4:8])[1]
    assert (record <= window + 1e-12).all()
    assert record.mean() < 0.95 * window.mean()


@pytest.mark.parametrize("method", ["posterior", "smoother"])
def test_nothing_observed_gives_the_prior(method: str) -> None:
    field = GaussianField(size=6, frames=3, variance=3.0)
    values = torch.full((3, 6, 6), torch.nan)
    mean, variance = getattr(field, method)(values, torch.zeros(3, 6, 6, dtype=torch.bool))
    assert torch.equal(mean, torch.zeros_like(mean))
    torch.testing.assert_close(variance, torch.full_like(mean, 3.0))


@pytest.mark.parametrize("method", ["posterior", "smoother"])
def test_cells_outside_the_domain_are_never_read(method: str) -> None:
    field = GaussianField(size=6, frames=3)
    _, values, observed = gappy(field)
    domain = torch.ones(6, 6, dtype=torch.bool)
    domain[2:4, :3] = False
    poisoned = values.masked_fill(~domain, 1e6)
    call = getattr(field, method)
    torch.testing.assert_close(
        call(poisoned, observed, domain), call(values, observed & domain, domain), equal_nan=True
    )


@pytest.mark.parametrize("method", ["posterior", "smoother"])
def test_skipping_the_variance_keeps_the_mean(method: str) -> None:
    field = GaussianField(size=6, frames=3)
    _, values, observed = gappy(field)
    call = getattr(field, method)
    mean, nothing = call(values, observed, variance=False)
    torch.testing.assert_close(mean, call(values, observed)[0])
    assert nothing.isnan().all()


def test_one_conditioning_serves_many_values() -> None:
    field = GaussianField(size=6, frames=3)
    _, values, observed = gappy(field)
    many = torch.stack([values, -2 * values, values + 1])
    means = field.conditioning(observed).mean(many)
    for row, mean in zip(many, means):
        torch.testing.assert_close(mean, field.posterior(row, observed, variance=False)[0])


def test_large_windows_are_assembled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    field = GaussianField(size=6, frames=3)
    _, values, observed = gappy(field)
    whole = field.posterior(values, observed)
    monkeypatch.setattr(smoother, "CHUNK", 7)
    torch.testing.assert_close(field.posterior(values, observed), whole)


def test_same_seed_same_field_and_global_state_untouched() -> None:
    field = GaussianField(size=6, frames=3)
    state = torch.get_rng_state()
    first, again = (field.observe(field.simulate(2, g)[0], g) for g in (seeded(3), seeded(3)))
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, field.observe(field.simulate(2, seeded(4))[0], seeded(4)))


def test_simulator_protocol_is_complete() -> None:
    field = GaussianField(size=(5, 6), frames=3)
    fields, parameters = field.simulate(2, seeded())
    assert fields.shape == (2, len(field.variables), 3, 5, 6)
    assert fields.dtype == torch.float64
    assert all(value.shape == (2,) for value in parameters.values())
    assert set(field.units) == set(field.long_names) == {*field.variables, *parameters}
    sizes = {name: len(values) for name, (values, _) in field.coordinates().items()}
    assert sizes == {"time": 3, "y": 5, "x": 6}


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 2},
        {"frames": 0},
        {"memory": 1.1},
        {"memory": -0.1},
        {"memory_k2": -1.0},
        {"noise": -0.1},
        {"knee": 0.0},
        {"variance": 0.0},
        {"wavelength": -3.0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(InputError, match=f"{name} {value}"):
        GaussianField(**wrong)


def test_wrong_observations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    field = GaussianField(size=6, frames=3)
    _, values, observed = gappy(field)
    with pytest.raises(InputError, match=r"\(3, 6, 5\)"):
        field.posterior(values[..., :5], observed)
    with pytest.raises(InputError, match=r"domain \(6, 5\)"):
        field.posterior(values, observed, torch.ones(6, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="NaN"):
        field.posterior(values.masked_fill(observed, torch.nan), observed)
    monkeypatch.setattr(smoother, "MAX_OBSERVATIONS", 5)
    with pytest.raises(InputError, match="more than 5"):
        field.posterior(values, observed)
    monkeypatch.setattr(smoother, "MAX_STATE", 35)
    with pytest.raises(InputError, match="35"):
        field.smoother(values, observed)
