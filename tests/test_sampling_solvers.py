"""Samplers against the exact posterior of a Gaussian field. Paths are affine in their start: their law is exact."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from conftest import dense_covariance, field_of, seeded
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.errors import InputError
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.gaussian.field import GaussianLaw
from fieldfill.partition import PixelPartition
from fieldfill.sampling.solvers import WEIGHTINGS, Exact, Solver, Weighted, conditional
from fieldfill.simulate.gaussian_field import GaussianField

SCHEDULE = VPSchedule()
FIELD = GaussianField(size=8, frames=2, noise=0.05, velocity=(0.4, 0.7), memory=0.9)
SHAPE = (2, 8, 8)


@dataclass
class Posterior:
    """The exact posterior of the missing cells, and E[x_0 | x_t, observations]."""

    values: Tensor
    observed: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, seed: int) -> "Posterior":
        generator = seeded(seed)
        values = FIELD.observe(FIELD.simulate(1, generator)[0], generator)[0, 0].flatten()
        observed = torch.rand(SHAPE, generator=generator).flatten() < 0.3
        C = dense_covariance(FIELD, FIELD.frames)
        inner = C[observed][:, observed] + FIELD.noise_std**2 * torch.eye(int(observed.sum()), dtype=torch.float64)
        gain = torch.linalg.solve(inner, C[observed]).T
        covariance = (C - gain @ C[observed])[~observed][:, ~observed]
        return cls(values, observed, (gain @ values[observed])[~observed], covariance)

    def __call__(self, t: Tensor, x_t: Tensor) -> Tensor:
        """x_t (B, n)."""
        ratio = (SCHEDULE.sigma(t) / SCHEDULE.alpha(t)) ** 2
        V = self.covariance
        gain = torch.linalg.solve(V + ratio * torch.eye(len(V), dtype=V.dtype), V)
        out = self.values.expand_as(x_t).clone()
        out[:, ~self.observed] = self.mean + (x_t[:, ~self.observed] / SCHEDULE.alpha(t) - self.mean) @ gain
        return out

    def neighbours(self) -> tuple[Tensor, Tensor]:
        """Pairs of missing cells next to each other, as numbers of missing cells."""
        number = torch.full(SHAPE, -1)
        number[~self.observed.view(SHAPE)] = torch.arange(len(self.mean))
        left, right = number[..., :-1].flatten(), number[..., 1:].flatten()
        both = (left >= 0) & (right >= 0)
        return left[both], right[both]

    def errors(self, mean: Tensor, covariance: Tensor) -> tuple[float, float, float]:
        """Error of the mean in posterior standard deviations, variance ratio, error of neighbours' correlation."""
        std = self.covariance.diagonal().sqrt()
        a, b = self.neighbours()
        gap = ((covariance - self.covariance)[a, b] / (std[a] * std[b])).abs().mean()
        ratio = covariance.diagonal().sum() / self.covariance.diagonal().sum()
        return ((mean - self.mean).abs() / std).mean().item(), ratio.item(), gap.item()


def law(run: Callable[[Tensor], Tensor], posterior: Posterior) -> tuple[float, float, float]:
    """What an affine sampler makes of N(0, I), without drawing: its image of 0 and of every unit vector."""
    n = len(posterior.values)
    images = run(torch.cat([torch.zeros(1, n), torch.eye(n)]).double())[:, ~posterior.observed]
    linear = images[1:] - images[0]
    return posterior.errors(images[0], linear.T @ linear)


def passes(found: tuple[float, float, float]) -> bool:
    return found[0] < 0.02 and abs(found[1] - 1) < 0.1 and found[2] < 0.1


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "solver", [Solver(200, 1, "time"), Solver(200, 1, "snr"), Solver(30, 2, "snr"), Solver(60, 2, "time")], ids=str
)
def test_with_the_exact_expectation_the_path_ends_in_the_posterior(solver, seed) -> None:
    posterior = Posterior.of(seed)
    assert passes(law(lambda x: solver(SCHEDULE, posterior, x), posterior))


def test_a_step_without_its_noise_fails_the_same_check() -> None:
    posterior = Posterior.of(0)

    def broken(x: Tensor) -> Tensor:
        times = SCHEDULE.times(200)
        for before, after in pairwise(times):
            x = SCHEDULE.alpha(after) * posterior(before, x)
        return posterior(times[-1], x)

    found = law(broken, posterior)
    assert not passes(found) and found[1] < 0.1


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("grid", ["time", "snr"])
def test_the_error_falls_with_the_steps_as_the_order_says(order, grid) -> None:
    """Twice the steps: half the error of the variance at first order, a quarter at second, against a long path."""
    posterior = Posterior.of(0)

    def spread(steps: int) -> float:
        return law(lambda x: Solver(steps, order, grid)(SCHEDULE, posterior, x), posterior)[1]

    limit = law(lambda x: Solver(800, 2, "snr")(SCHEDULE, posterior, x), posterior)[1]
    coarse, fine = (abs(spread(steps) - limit) for steps in (50, 100))
    assert 0.75 * 2**order < coarse / fine < 1.4 * 2**order


def test_thirty_steps_of_second_order_are_as_good_as_two_hundred_of_first() -> None:
    posterior = Posterior.of(0)
    short = law(lambda x: Solver(30, 2, "snr")(SCHEDULE, posterior, x), posterior)
    for grid in ("time", "snr"):
        long = law(lambda x: Solver(200, 1, grid)(SCHEDULE, posterior, x), posterior)  # noqa: B023
        assert abs(short[1] - 1) <= abs(long[1] - 1) and short[2] <= long[2]


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_noise_drawn_on_the_way_leaves_the_posterior_as_it_is(eta) -> None:
    posterior, rows = Posterior.of(0), 400
    generators = [seeded(row) for row in range(rows)]
    start = torch.randn(rows, 128, generator=seeded(9), dtype=torch.float64)
    drawn = Solver(100, 1, "snr", eta)(SCHEDULE, posterior, start, generators)[:, ~posterior.observed]
    mean, ratio, gap = posterior.errors(drawn.mean(0), drawn.T.cov())
    assert mean < 0.07 and abs(ratio - 1) < 0.1 and gap < 0.1  # Monte-Carlo error of the mean: 0.05


def test_observed_values_are_exact_and_every_step_costs_one_call() -> None:
    posterior, times = Posterior.of(0), []

    def counted(t: Tensor, x_t: Tensor) -> Tensor:
        times.append(t.item())
        return posterior(t, x_t)

    for solver in (Solver(7, 1, "time"), Solver(9, 2, "snr")):
        times.clear()
        drawn = solver(SCHEDULE, counted, torch.zeros(3, 128, dtype=torch.float64))
        assert (drawn[:, posterior.observed] == posterior.values[posterior.observed]).all()
        assert len(times) == solver.steps and times == sorted(times, reverse=True)
        assert times[0] == 1 and times[-1] == pytest.approx(SCHEDULE.delta)


@pytest.mark.parametrize("grid", ["time", "snr"])
def test_times_are_evenly_spaced_on_their_grid(grid) -> None:
    times = SCHEDULE.times(50, grid)
    level = times if grid == "time" else SCHEDULE.log_snr(times)
    assert torch.allclose(level.diff(), level.diff().mean().expand(49), rtol=1e-6)
    assert torch.allclose(SCHEDULE.time(SCHEDULE.log_snr(times)), times, rtol=1e-6)


def as_windows(posterior: Posterior, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values, observed cells and posterior mean as (B, C, T, H, W)."""
    mean = posterior.values.clone()
    mean[~posterior.observed] = posterior.mean
    parts = posterior.values.float(), posterior.observed, mean.float()
    values, observed, centre = (part.view(1, 1, *SHAPE).expand(rows, 1, *SHAPE) for part in parts)
    return values, observed, centre


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_exact_estimate_is_the_conditional_expectation_of_a_scaled_residual(scale) -> None:
    posterior, truth = Posterior.of(0), GaussianLaw(field_of(FIELD))
    values, observed, mean = as_windows(posterior, 3)
    everywhere = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    scales = torch.full_like(mean, scale)
    exact = Exact(truth, SCHEDULE, values, observed, everywhere, mean, scales, truth.error)
    wide = Posterior(posterior.values, posterior.observed, posterior.mean, scale**2 * posterior.covariance)
    x = torch.randn(3, 128, generator=seeded(), dtype=torch.float64)
    for t in SCHEDULE.times(8, "snr"):
        x_t = SCHEDULE.alpha(t) * wide.values + SCHEDULE.sigma(t) * x
        found = exact(t, x_t.float().view(values.shape)).flatten(1)
        assert (found - wide(t, x_t)).abs().mean() < 0.01 * scale
        assert (found[:, posterior.observed] == values.flatten(1)[:, posterior.observed]).all()


def test_the_exact_estimate_takes_all_the_steps_it_needs() -> None:
    """Its errors add up along the equation, so the few steps of a fill are not enough."""
    posterior = Posterior.of(0)
    values, observed, mean = as_windows(posterior, 3)
    everywhere = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    hasty, patient = (
        Exact(GaussianLaw(field), SCHEDULE, values, observed, everywhere, mean, torch.ones_like(mean), field.nugget)
        for field in (field_of(FIELD, steps) for steps in (2, 400))
    )
    for t in SCHEDULE.times(6, "snr"):
        noise = torch.randn(values.shape, generator=seeded(1))
        x_t = (SCHEDULE.alpha(t) * values + SCHEDULE.sigma(t) * noise).float()
        assert torch.allclose(hasty(t, x_t), patient(t, x_t), atol=1e-3)


def test_conditional_draws_have_the_law_of_the_posterior() -> None:
    posterior, field = Posterior.of(0), field_of(FIELD, 100)
    known = posterior.observed.view(1, *SHAPE)
    r = conditional(GaussianLaw(field), torch.zeros(2000, 1, *SHAPE), known, field.nugget, seeded())
    drawn = r.flatten(1)[:, ~posterior.observed].double() + posterior.mean
    mean, ratio, gap = posterior.errors(drawn.mean(0), drawn.T.cov())
    assert mean < 0.035 and abs(ratio - 1) < 0.1 and gap < 0.1
    assert (r[:, known] == 0).all()


def test_conditional_draws_continue_what_is_known() -> None:
    """Given one frame of a free realisation, the pair of frames has the joint law of the field."""
    field = field_of(FIELD, 100)
    first = field.draw(1500, seeded())
    known = torch.zeros(1, *SHAPE, dtype=torch.bool)
    known[:, 0] = True
    pair = conditional(GaussianLaw(field), first, known, torch.tensor(1e-3), seeded(1))
    assert torch.equal(pair[:, :, 0], first[:, :, 0])
    free = field.draw(1500, seeded(2))
    for drawn, wanted in ((pair, free), (pair.roll(1, -1), free.roll(1, -1))):
        for frame in (0, 1):
            found = (pair[:, :, 1] * drawn[:, :, frame]).mean().item()
            assert found == pytest.approx((free[:, :, 1] * wanted[:, :, frame]).mean().item(), abs=0.05)


class Counting(Denoiser):
    """A denoiser that returns what the noise has left, and counts its calls."""

    rows = 0

    def forward(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> Tensor:
        self.rows += len(x_t)
        return torch.where(context, x_t, 0) * SCHEDULE.alpha(t).view(-1, 1, 1, 1, 1)


def weighted(rows: int, weighting: str = "linear", seeds: int = 0) -> Weighted:
    generator = seeded(3)
    x = torch.randn(1, 1, 2, 5, 6, generator=generator).expand(rows, 1, 2, 5, 6)
    known = (torch.rand(1, 1, 2, 5, 6, generator=generator) < 0.4).expand_as(x)
    bank = torch.rand(9, 1, 2, 5, 6, generator=generator) < 0.5
    denoiser = Counting(torch.nn.Identity(), SCHEDULE, Chain([]))
    streams = [seeded(seeds + row) for row in range(rows)]
    maps = torch.zeros(rows, 0, 5, 6)
    return Weighted(denoiser, PixelPartition(), bank, x, known, x + 1, maps, streams, weighting, contexts=3)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_observations_decide_at_first_and_the_path_in_the_end(weighting) -> None:
    mixture = weighted(2, weighting)
    x_t = torch.randn(2, 1, 2, 5, 6, generator=seeded())
    gap = [mixture(t, x_t) - mixture.mean for t in torch.tensor([1.0, 0.5, 1e-3])]
    sizes = [part[~mixture.known].abs().mean().item() for part in gap]
    assert all(torch.allclose(part[mixture.known], torch.tensor(-1.0)) for part in gap)
    if weighting != "none":
        assert sizes[0] == 0 and sizes == sorted(sizes)
    assert sizes[2] > 0.5


def test_sixteen_members_of_two_hundred_steps_cost_what_they_should() -> None:
    mixture = weighted(16)
    drawn = Solver(200, 1)(SCHEDULE, mixture, torch.zeros(16, 1, 2, 5, 6))
    assert mixture.denoiser.rows == 16 * 200 * mixture.contexts
    assert torch.equal(drawn[mixture.known], mixture.x[mixture.known])


def test_a_row_does_not_depend_on_the_rest_of_its_batch() -> None:
    start = torch.randn(4, 1, 2, 5, 6, generator=seeded())
    together = Solver(5)(SCHEDULE, weighted(4), start)
    alone = Solver(5)(SCHEDULE, weighted(1, seeds=2), start[2:3])
    assert torch.allclose(together[2:3], alone, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"order": 3}, {"eta": 1.5, "order": 1}, {"eta": 0.5}, {"grid": "log"}, {"steps": 0}], ids=str
)
def test_impossible_solvers_are_refused(settings) -> None:
    with pytest.raises(InputError):
        Solver(**settings)


def test_an_unknown_weighting_is_refused() -> None:
    with pytest.raises(InputError, match="cubic"):
        weighted(1, "cubic")
