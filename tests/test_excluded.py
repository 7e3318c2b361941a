r"""Why diffusion probabilistic fields (DPF) are no baseline, by our schedule, loss and solver; see docs/excluded.md.

x_0 ~ N(0, Sigma). DPF sees a context and a query, z = alpha x_0 + sigma e with *independent* noise e in each, and is
asked for x_0 at the query. Its optimum is E[x_0 | z_ctx, z_qry]. In sampling both are cut from one x_t. All is linear
and Gaussian, so that optimum, samples and errors are matrices.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import seeded
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.diffusion.loss import matching_losses
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.estimators.chain import Chain
from fieldfill.sampling.solvers import Solver

PAGE = Path(__file__).parents[1] / "docs" / "excluded.md"
SCHEDULE = VPSchedule()
CELLS = 12
PLACE = torch.arange(CELLS)
EYE = torch.eye(CELLS, dtype=torch.float64)
SIGMA = torch.exp(-0.5 * ((PLACE[:, None] - PLACE) / 2.0) ** 2).double() + 1e-6 * EYE
CONTEXTS = {
    "none": torch.zeros(CELLS, dtype=torch.bool),
    "every 4th cell": PLACE % 4 == 0,
    "every 2nd cell": PLACE % 2 == 0,
    "all cells": torch.ones(CELLS, dtype=torch.bool),
}
EVERYTHING = CONTEXTS["all cells"]


def levels(t: float) -> tuple[float, float]:
    time = torch.tensor(t, dtype=torch.float64)
    return SCHEDULE.alpha(time).item(), SCHEDULE.sigma(time).item()


def needed(t: float, seen: Tensor) -> Tensor:
    """Matrix (cells, seen cells) of E[x_0 | x_t at the cells seen], which a denoiser needs."""
    alpha, sigma = levels(t)
    inside = alpha**2 * SIGMA[seen][:, seen] + sigma**2 * torch.eye(int(seen.sum()), dtype=torch.float64)
    return alpha * torch.linalg.solve(inside, SIGMA[seen]).T


def dpf(t: float, context: Tensor, query: Tensor = EVERYTHING) -> Tensor:
    """What the optimum of DPF does in sampling, (cells, cells): context and query are cut from one x_t."""
    alpha, sigma = levels(t)
    select = torch.eye(2 * CELLS, dtype=torch.float64)[torch.cat([context, query])]
    twice = torch.ones(2, 2, dtype=torch.float64)
    joint = alpha**2 * torch.kron(twice, SIGMA) + sigma**2 * torch.eye(2 * CELLS, dtype=torch.float64)
    cross = alpha * torch.cat([SIGMA, SIGMA], 1) @ select.T
    return cross @ torch.linalg.inv(select @ joint @ select.T) @ select @ torch.cat([EYE, EYE])


def error(t: float, estimate: Tensor) -> float:
    """Mean squared error of x_0 = estimate x_t, exactly."""
    alpha, sigma = levels(t)
    left = EYE - alpha * estimate
    return (torch.trace(left @ SIGMA @ left.T + sigma**2 * estimate @ estimate.T) / CELLS).item()


def sampled_variance(context: Tensor) -> float:
    """Variance of what the solver makes of N(0, I): its path is linear in its start."""
    end = Solver(400, 1, "time")(SCHEDULE, lambda t, x: x @ dpf(t.item(), context).T, EYE)
    return (end.square().sum() / torch.trace(SIGMA)).item()


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_page_says_what_the_schedule_and_the_solver_give(context: str) -> None:
    (row,) = re.findall(rf"^\| {context}\b[^|]*\|(.*)\|$", PAGE.read_text(), re.M)
    *errors, variance = map(float, row.split("|"))
    found = [error(t, dpf(t, CONTEXTS[context])) for t in (0.1, 0.3, 0.5)]
    assert found == pytest.approx(errors, rel=0.01)
    assert sampled_variance(CONTEXTS[context]) == pytest.approx(variance, abs=0.02)


def test_only_without_a_context_is_the_optimum_of_dpf_the_denoiser_that_sampling_needs() -> None:
    for name, context in CONTEXTS.items():
        gap = (dpf(0.3, context) - needed(0.3, EVERYTHING)).abs().max()
        assert gap < 1e-9 if name == "none" else gap > 0.01
        for t in (0.1, 0.3, 0.5):
            more = error(t, dpf(t, context)) / error(t, needed(t, EVERYTHING))
            assert more == pytest.approx(1) if name == "none" else more > 1.001


class Linear(nn.Module):
    """A network that is a matrix on what it sees of x_t, the first of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(CELLS, CELLS))

    def forward(self, features: Tensor, log_snr: Tensor) -> Tensor:
        return features[:, :1] @ self.matrix.T


@pytest.mark.parametrize("query", ["every 2nd cell", "all cells"])
def test_our_loss_has_one_optimum_whatever_is_queried(query: str) -> None:
    """The least loss over all matrices is at E[x_0 | context], in the rows that are queried."""
    count, t, generator = 100_000, 0.3, seeded(1)
    root = torch.linalg.cholesky(SIGMA).float()
    x = (torch.randn(count, CELLS, generator=generator) @ root.T).view(count, 1, 1, 1, CELLS)
    noise = torch.randn(x.shape, generator=generator)
    context, asked = CONTEXTS["every 4th cell"], CONTEXTS[query]
    denoiser = Denoiser(Linear(), SCHEDULE, Chain([]))
    optimiser = torch.optim.LBFGS(denoiser.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        cells = context.expand_as(x), asked.expand_as(x)
        losses, _ = matching_losses(
            denoiser, torch.full((count,), t), x, noise, *cells, x.new_zeros(count, 0, 1, CELLS)
        )
        losses.mean().backward()
        return losses.mean()

    optimiser.step(loss)
    found = denoiser.network.matrix.detach()
    assert (found[asked][:, context] - needed(t, context)[asked]).abs().max() < 0.02
    assert not found[:, ~context].any() and not found[~asked].any()  # neither seen nor asked
