"""The single step with the exact conditional expectation of a Gaussian field in place of the network: Theorem 2."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor

from conftest import no_maps, seeded
from fieldfill.diffusion.schedule import VPSchedule
from fieldfill.errors import InputError
from fieldfill.masks import BlockMask, PixelMask
from fieldfill.partition import BlockPartition, Partition, PixelPartition
from fieldfill.sampling.contexts import Ensemble, Estimate, density_matched, single_step
from fieldfill.simulate.gaussian_field import GaussianField

SIDE = 6
FIELD = GaussianField(size=SIDE, frames=1, noise=0.1)


class Oracle:
    """E[x | context] and Var[x | context] of the field, in the place of a trained denoiser."""

    schedule = VPSchedule(delta=1e-9)

    def __init__(self) -> None:
        i, j = (axis.flatten() for axis in torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"))
        self.covariance = FIELD.covariance(0)[(i[:, None] - i) % SIDE, (j[:, None] - j) % SIDE].float()
        self.calls: list[int] = []

    def predict(self, t: Tensor, x_t: Tensor, context: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.append(len(x_t))
        seen, C = context.flatten(1).float(), self.covariance
        inner = seen[:, :, None] * C * seen[:, None] + torch.diag_embed(seen * FIELD.noise_std**2 + 1 - seen)
        gain = torch.linalg.solve(inner, seen[:, :, None] * C)
        mean = (gain.mT @ (seen * x_t.flatten(1))[:, :, None])[:, :, 0]
        variance = C.diagonal() - (gain * C * seen[:, :, None]).sum(1)
        return mean.view_as(x_t), variance.view_as(x_t)


def drawn(rows: int, observed: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Truth, noisy values and observed cells (B, 1, 1, SIDE, SIDE)."""
    generator = seeded(seed)
    truth = FIELD.simulate(rows, generator)[0]
    values = FIELD.observe(truth, generator).float()
    if observed is None:
        observed = PixelMask(0.3).sample((rows, 1, 1, SIDE, SIDE), generator)
    return truth.float(), values, observed


def step(values: Tensor, observed: Tensor, partition: Partition, ensemble: Ensemble, seed: int = 1) -> Estimate:
    maps = no_maps(values)
    return single_step(Oracle(), values, observed, maps, partition, ensemble, seeded(seed))  # type: ignore[arg-type]


def missing_error(found: Estimate, truth: Tensor, observed: Tensor) -> float:
    return (found.mean - truth)[~observed].square().mean().item()


def test_the_error_falls_like_one_over_the_number_of_contexts() -> None:
    """MSE(K) = a + b/K, b the variance over contexts."""
    truth, values, observed = drawn(20)
    truth, values, observed = (part.repeat(16, 1, 1, 1, 1) for part in (truth, values, observed))
    counts = [1, 2, 3, 5, 10, 20, 50]
    ensemble = Ensemble(50, keep=0.6, design="random")
    found = {count: step(values, observed, PixelPartition(), replace(ensemble, count=count)) for count in counts}
    error = torch.tensor([missing_error(found[count], truth, observed) for count in counts])
    inverse = 1 / torch.tensor(counts, dtype=torch.float32)
    line = torch.linalg.lstsq(torch.stack([torch.ones(7), inverse], 1), error[:, None]).solution[:, 0]
    left = error - line[0] - line[1] * inverse
    assert 1 - left.square().sum() / (error - error.mean()).square().sum() > 0.99
    assert line[1].item() == pytest.approx(found[50].between[~observed].mean().item(), rel=0.1)


def test_what_contexts_do_not_know_is_their_larger_variance() -> None:
    """E |E[x | ctx] - E[x | obs]|² = E Var[x | ctx] - E Var[x | obs]."""
    _, values, observed = drawn(600)
    one = step(values, observed, PixelPartition(), Ensemble(1, keep=0.6, design="random"))
    all_of_it = step(values, observed, PixelPartition(), Ensemble(0))
    gap = (one.mean - all_of_it.mean)[~observed].square().mean().item()
    assert one.variance is not None and all_of_it.variance is not None
    assert gap == pytest.approx((one.variance - all_of_it.variance)[~observed].mean().item(), rel=0.08)


@pytest.mark.parametrize(
    ("partition", "mask"),
    [
        (PixelPartition((0.5, 1.0)), PixelMask(0.3)),
        (PixelPartition(0.7), PixelMask(0.3)),
        (BlockPartition(), BlockMask(3, 3, 5)),
    ],
    ids=["pixel", "pixel-fixed", "block"],
)
def test_five_balanced_contexts_are_as_good_as_ten_random_ones(partition, mask) -> None:
    observed = mask.sample((20, 1, 1, SIDE, SIDE), seeded(5)).repeat(12, 1, 1, 1, 1)
    truth, values, _ = drawn(20)
    truth, values = truth.repeat(12, 1, 1, 1, 1), values.repeat(12, 1, 1, 1, 1)
    balanced = step(values, observed, partition, Ensemble(5))
    random = step(values, observed, partition, Ensemble(10, design="random"))
    assert missing_error(balanced, truth, observed) <= missing_error(random, truth, observed)


def test_enumerated_contexts_are_the_limit_of_many() -> None:
    truth, values, _ = drawn(4)
    observed = BlockMask(3, 3, 8).sample((4, 1, 1, SIDE, SIDE), seeded(2))
    enumerated = step(values, observed, BlockPartition(), Ensemble(10, design="enumerated"))
    many = step(values, observed, BlockPartition(), Ensemble(2000, design="random"))
    assert (enumerated.contexts == 8).all() and (many.contexts == 2000).all()
    noise = many.between[~observed].mean().item() / 2000
    assert (enumerated.mean - many.mean)[~observed].square().mean().item() < 3 * noise
    assert missing_error(enumerated, truth, observed) < missing_error(
        step(values, observed, BlockPartition(), Ensemble(1, design="random")), truth, observed
    )


def test_a_tolerance_stops_early_where_contexts_agree() -> None:
    _, values, observed = drawn(6)
    observed[3:] = PixelMask(0.9).sample((3, 1, 1, SIDE, SIDE), seeded(1))  # other rows, other needs
    loose, tight = (
        step(values, observed, PixelPartition(), Ensemble(40, keep=0.8, design="random", tolerance=tolerance))
        for tolerance in (0.08, 0.04)
    )
    for found, tolerance in ((loose, 0.08), (tight, 0.04)):
        for b in range(6):
            error = (found.between[b][~observed[b]].mean() / found.contexts[b]).sqrt()
            assert error < tolerance or found.contexts[b] == 40
    assert (loose.contexts <= tight.contexts).all() and loose.contexts.sum() < tight.contexts.sum()
    assert (loose.contexts >= 2).all() and len(set(tight.contexts.tolist())) > 1


def test_density_is_matched_row_by_row_and_the_impossible_is_flagged() -> None:
    observed = torch.zeros(3, 1, 1, 10, 10, dtype=torch.bool)
    for row, cells in enumerate((80, 40, 20)):
        observed[row].view(-1)[:cells] = True
    keep, too_sparse = density_matched(observed, density=0.3)
    assert torch.allclose(keep, torch.tensor([0.375, 0.75, 1.0])) and too_sparse.tolist() == [False, False, True]
    generators = [seeded(row) for row in range(3)]
    contexts = Ensemble(20, density=0.3).draw(PixelPartition(), observed, generators)
    shares = [row.float().mean().item() for row in contexts]
    assert shares == pytest.approx([0.3, 0.3, 0.2], abs=0.03) and min(shares[:2]) > 0.299  # balance may add cells
    found = step(*drawn(2)[1:], PixelPartition(), Ensemble(3, density=0.5))
    assert found.too_sparse.all()


@pytest.mark.parametrize("ensemble", [Ensemble(0), Ensemble(3), Ensemble(6, tolerance=0.2)], ids=str)
def test_a_row_does_not_depend_on_its_batch(ensemble) -> None:
    _, values, observed = drawn(5)
    generators = [seeded(row) for row in range(5)]
    parts = values, observed, no_maps(values)
    together = single_step(Oracle(), *parts, PixelPartition(), ensemble, generators)  # type: ignore[arg-type]
    own = [part[3:4] for part in parts]
    alone = single_step(Oracle(), *own, PixelPartition(), ensemble, [seeded(3)])  # type: ignore[arg-type]
    assert torch.allclose(together.mean[3], alone.mean[0], atol=1e-4)
    assert together.contexts[3] == alone.contexts[0]


def test_contexts_share_the_batches_of_the_denoiser() -> None:
    _, values, observed = drawn(5)
    oracle, maps = Oracle(), no_maps(values)
    found = single_step(oracle, values, observed, maps, PixelPartition(), Ensemble(8), seeded())  # type: ignore[arg-type]
    assert oracle.calls == [40] and (found.contexts == 8).all()


@pytest.mark.parametrize("ensemble", [Ensemble(0), Ensemble(3), Ensemble(4, 0.9, "enumerated", 0.1, 0.2)], ids=str)
def test_observed_values_are_pasted_back_and_settings_survive_json(ensemble) -> None:
    _, values, observed = drawn(3)
    found = step(values, observed, PixelPartition(), ensemble)
    assert torch.equal(found.mean[observed], values[observed]) and torch.isfinite(found.mean).all()
    assert found.variance is not None
    assert (found.between[observed] == 0).all() and (found.variance[observed] == 0).all()
    assert (found.variance[~observed] > 0).all()
    assert Ensemble(**json.loads(json.dumps(asdict(ensemble)))) == ensemble


@pytest.mark.parametrize(
    "wrong", [{"count": -1}, {"design": "clever"}, {"keep": 0.0}, {"density": 1.5}, {"tolerance": 0.0}], ids=str
)
def test_impossible_settings_are_refused(wrong) -> None:
    with pytest.raises(InputError):
        Ensemble(**wrong)
