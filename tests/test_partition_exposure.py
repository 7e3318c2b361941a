"""Exposure: closed forms, the estimated audit beside them, the guarantee of mask swap, and Theorem 1 in
numbers."""

import itertools

import pytest
import torch
from torch import Tensor

from conftest import seeded
from fieldfill.errors import InputError
from fieldfill.masks import BlockMask, CloudMask, PixelMask, SensorMask, block_labels
from fieldfill.partition import (
    AllObserved,
    BlockPartition,
    FramePartition,
    HideMore,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
)
from fieldfill.partition.exposure import Masks, NoClosedForm, audit, compare, exact_exposure
from fieldfill.partition.exposure.estimate import AuditSettings, estimate

TINY = 1e-12
Law = tuple[Tensor, Tensor]


def block_law(observed: int, size: int = 6, frames: int = 2) -> Law:
    """All 3 x 3 block masks with ``observed`` blocks, equally likely."""
    labels = block_labels(size, size, 3, 3)
    sets = list(itertools.combinations(range(9), observed))
    masks = torch.stack([torch.isin(labels, torch.tensor(s)).expand(1, frames, size, size) for s in sets])
    return masks, torch.full((len(sets),), 1 / len(sets), dtype=torch.float64)


def pixel_law(p: list[float], frames: int = 1) -> Law:
    """All static masks of a row of independent cells with probabilities ``p``."""
    bits = torch.tensor(list(itertools.product([False, True], repeat=len(p))))
    q = torch.tensor(p, dtype=torch.float64)
    probability = torch.where(bits, q, 1 - q).prod(-1)
    return bits[:, None, None, None].expand(-1, 1, frames, 1, -1).contiguous(), probability


@pytest.mark.parametrize(("observed", "expected"), [(8, 1 / 2), (5, 1 / 5), (3, 1 / 7)])
def test_blocks_minus_one_have_exposure_one_over_missing_plus_one(observed: int, expected: float) -> None:
    law = block_law(observed)
    partition = BlockPartition()
    context, _ = partition.split(law[0][:5], seeded())
    for c in context:
        exposure = exact_exposure(partition, law, c)
        assert torch.allclose(exposure[~c], torch.tensor(expected, dtype=torch.float64), atol=TINY, rtol=0)
        assert (exposure[c] == 0).all()


@pytest.mark.parametrize("partition", [PixelPartition(), PixelPartition(0.7, 0.7), HideMore(0.7), AllObserved()])
def test_pixel_contexts_on_block_masks_have_no_exposure_on_missing_blocks(partition: Partition) -> None:
    law = block_law(5)
    context, _ = partition.split(law[0][:5], seeded())
    for mask, c in zip(law[0], context):
        assert exact_exposure(partition, law, c)[~mask].abs().max() <= TINY


def test_static_pixels_follow_their_closed_form() -> None:
    p, r, q = 0.8, 0.7, 0.6
    law = pixel_law([p] * 4, frames=3)
    context = torch.tensor([True, False, False, True]).expand(1, 3, 1, 4)
    exposure = exact_exposure(PixelPartition(r, q), law, context)
    expected = q * p * (1 - r) / (p * (1 - r) + 1 - p)
    assert torch.allclose(exposure[~context], torch.tensor(expected, dtype=torch.float64), atol=TINY, rtol=0)


@pytest.mark.parametrize("frames", [1, 5, 100])
def test_contexts_redrawn_per_frame_collapse_on_static_masks(frames: int) -> None:
    p, r, q = 0.8, 0.7, 0.7
    law = pixel_law([p, p], frames)
    context = torch.zeros((1, frames, 1, 2), dtype=torch.bool)
    exposure = exact_exposure(PixelPartition(r, q, static=False), law, context)
    expected = q * p * (1 - r) ** frames / (p * (1 - r) ** frames + 1 - p)
    assert exposure.flatten().tolist() == pytest.approx([expected] * exposure.numel(), rel=1e-10)


@pytest.mark.parametrize(
    "partition",
    [
        PixelPartition(0.6),
        PixelPartition((0.3, 0.9)),
        PixelPartition(0.6, 0.5),
        HideMore(0.6),
        HideMore(structure=PixelPartition((0.2, 0.8))),
        StationPartition(0.5, dropout=0.0),
        BlockPartition(1, 4, (1, 3)),
        BlockPartition(1, 4, 2, query=1),
        MaskSwap(pixel_law([0.5] * 4)[0][[1, 6, 7, 11, 12, 14]], keep=None),
        FramePartition(0.5),
    ],
    ids=str,
)
def test_enumeration_agrees_with_the_frequencies_of_draws(partition: Partition) -> None:
    law = pixel_law([0.4, 0.6, 0.7, 0.8], frames=2 if isinstance(partition, FramePartition) else 1)
    pick = torch.multinomial(law[1], 60_000, replacement=True, generator=seeded())
    context, query = partition.split(law[0][pick], seeded(1))
    code = (context.flatten(1) * 2 ** torch.arange(context[0].numel())).sum(-1)
    values, counts = code.unique(return_counts=True)
    common = values[counts.argsort(descending=True)[:6]]
    for value in common:
        rows = code == value
        expected = exact_exposure(partition, law, context[rows][0])
        error = 4.5 * ((expected * (1 - expected)).clamp(min=0) / rows.sum()).sqrt() + 1e-9
        assert ((query[rows].double().mean(0) - expected).abs() <= error).all()


def test_contexts_that_cannot_occur_have_no_exposure_and_unions_no_closed_form() -> None:
    law = block_law(5)
    assert exact_exposure(BlockPartition(), law, law[0][0]).isnan().all()
    with pytest.raises(NoClosedForm, match="estimated"):
        exact_exposure(MaskSwap(law[0]), law, law[0][0])


@pytest.mark.parametrize("seed", range(25))
def test_mask_swap_exposes_every_cell_seen_by_either_mask_of_a_pair(seed: int) -> None:
    """Exhaustive over all ordered pairs of a small random bank."""
    bank = PixelMask((0.2, 0.9)).sample((6, 1, 1, 2, 4), seeded(seed)).unique(dim=0)
    law = (bank, torch.full((len(bank),), 1 / len(bank), dtype=torch.float64))
    partition = MaskSwap(bank, keep=None)
    for mask, donor in itertools.permutations(bank, 2):
        context = mask & donor
        if not context.any() or context.equal(mask):
            continue
        exposure = exact_exposure(partition, law, context)
        assert (exposure[(mask | donor) & ~context] > 0).all()
        assert (exposure[~bank.any(0)] == 0).all()


def test_mask_swap_on_blocks_equals_the_block_partition() -> None:
    law = block_law(8)
    context = law[0][0] & law[0][1]
    swapped = exact_exposure(MaskSwap(law[0], keep=None), law, context)
    assert torch.allclose(swapped, exact_exposure(BlockPartition(), law, context), atol=TINY)


@pytest.mark.parametrize(
    ("model", "partition", "expected"),
    [
        (BlockMask(3, 3, 8), BlockPartition(), 1 / 2),
        (BlockMask(3, 3, 5), BlockPartition(), 1 / 5),
        (BlockMask(3, 3, 3), BlockPartition(), 1 / 7),
        (PixelMask(0.8), PixelPartition(0.7, 0.7), 0.7 * 0.24 / 0.44),
        (PixelMask(0.8), PixelPartition(0.7, 0.7, static=False), 0.7 * 0.8 * 0.3**4 / (0.8 * 0.3**4 + 0.2)),
        (PixelMask(0.5), AllObserved(), 0.0),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_estimated_exposure_is_right_within_its_stated_error(model, partition, expected: float) -> None:
    observed = model.sample((150, 1, 4, 12, 12), seeded())
    domain = torch.ones((1, 12, 12), dtype=torch.bool)
    cases = estimate(partition, Masks.of(observed, domain), seeded(1), AuditSettings(cells=30_000))
    standard = cases.exposure.std() / len(cases.window.unique()) ** 0.5
    assert cases.exposure.mean().item() == pytest.approx(expected, abs=0.025 + 2 * float(standard) + cases.gap)


def test_the_audit_is_exact_when_few_masks_repeat_and_estimated_otherwise() -> None:
    domain = torch.ones((1, 9, 9), dtype=torch.bool)
    few = BlockMask(3, 3, 8).sample((300, 1, 2, 9, 9), seeded())
    exact = audit(BlockPartition(), Masks.of(few, domain), seeded())
    assert exact.method == "exact" and exact.verdict == "ok" and exact.unlearnable_share == 0
    assert exact.mean == pytest.approx(0.5, abs=0.06)
    many = CloudMask(0.5, scale=2).sample((40, 1, 2, 9, 9), seeded())
    assert (
        audit(MaskSwap(many), Masks.of(many, domain), seeded(), settings=AuditSettings(cells=5_000)).method
        == "estimated"
    )


def test_cells_that_no_window_observes_are_named_and_land_is_not() -> None:
    observed = PixelMask(0.5).sample((60, 1, 2, 12, 12), seeded())
    domain = torch.ones((1, 12, 12), dtype=torch.bool)
    domain[:, :, :3] = False
    observed &= domain[:, None]
    observed[..., 5:7, 5:7] = False
    report = audit(PixelPartition(), Masks.of(observed, domain), seeded(), settings=AuditSettings(cells=20_000))
    hole = torch.zeros_like(domain)
    hole[:, 5:7, 5:7] = True
    assert report.never_observed.equal(hole) and not (report.unsupported & ~hole).any()
    assert (hole & ~report.unsupported).sum() == 0
    assert report.per_cell[~domain].isnan().all() and report.verdict == "partly"
    assert "never observed" in report.words


@pytest.mark.parametrize(
    ("model", "right"),
    [
        (PixelMask(0.3), {"pixel", "swap", "single"}),
        (BlockMask(3, 3, 5), {"block", "swap", "single"}),
        (CloudMask(0.4, scale=4), {"swap", "single"}),
        (SensorMask(20, 0.2), {"station", "swap", "single"}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_comparison_recommends_a_partition_with_the_structure_of_the_masks(model, right: set[str]) -> None:
    observed = model.sample((80, 1, 3, 18, 18), seeded())
    candidates: dict[str, Partition] = {
        "pixel": PixelPartition(),
        "block": BlockPartition(),
        "station": StationPartition(),
        "swap": MaskSwap(observed),
        "single": MaskSwap(observed, keep=None),
    }
    masks = Masks.of(observed, torch.ones((1, 18, 18), dtype=torch.bool))
    best, audits = compare(candidates, masks, seeded(1), AuditSettings(cells=25_000))
    assert best in right, {n: a.unlearnable_share for n, a in audits.items()}
    if not isinstance(model, PixelMask):
        assert audits["pixel"].verdict == "unlearnable"


def test_one_seed_gives_one_audit() -> None:
    observed = CloudMask(0.5, scale=2).sample((20, 1, 2, 10, 10), seeded())
    domain = torch.ones((1, 10, 10), dtype=torch.bool)
    state = torch.get_rng_state()
    first, again = (
        audit(MaskSwap(observed), Masks.of(observed, domain), seeded(4), settings=AuditSettings(cells=5_000))
        for _ in range(2)
    )
    assert first.mean == again.mean and torch.equal(first.unsupported, again.unsupported)
    assert torch.equal(state, torch.get_rng_state())


def test_wrong_masks_are_refused_with_a_remedy() -> None:
    domain = torch.ones((1, 4, 4), dtype=torch.bool)
    with pytest.raises(InputError, match="window"):
        audit(PixelPartition(), Masks.of(torch.ones((2, 1, 2, 4, 4), dtype=torch.bool), domain), seeded())
    with pytest.raises(InputError, match="give"):
        Masks.of(torch.ones((5, 1, 2, 4, 5), dtype=torch.bool), domain)
    with pytest.raises(InputError, match="give bool"):
        Masks.of(torch.ones((5, 1, 2, 4, 4)), domain)


# Theorem 1 on a Gaussian row of cells whose masks, contexts and conditional means are all known.
PROBABILITY = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97]


@pytest.fixture(scope="module")
def theorem() -> dict[str, Tensor]:
    """Draws (x, query) of all rows whose context is the last cell, their exact exposure and the
    covariance."""
    generator = seeded(11)
    law = pixel_law(PROBABILITY)
    partition = PixelPartition(0.7, 0.7)
    place = torch.arange(len(PROBABILITY), dtype=torch.float64)
    covariance = torch.exp(-(place[:, None] - place).abs() / 2)
    pick = torch.multinomial(law[1], 600_000, replacement=True, generator=generator)
    context, query = partition.split(law[0][pick], generator)
    wanted = torch.zeros(len(PROBABILITY), dtype=torch.bool)
    wanted[-1] = True
    query = query[(context.flatten(1) == wanted).all(-1)].flatten(1)
    noise = torch.randn(query.shape, generator=generator, dtype=torch.float64)
    x = noise @ torch.linalg.cholesky(covariance).T
    exposure = exact_exposure(partition, law, wanted.view(1, 1, 1, -1)).flatten()
    return {"x": x, "query": query.double(), "exposure": exposure, "covariance": covariance}


def test_update_frequency_equals_exposure(theorem: dict[str, Tensor]) -> None:
    frequency, exposure = theorem["query"].mean(0), theorem["exposure"]
    error = 4 * (exposure * (1 - exposure) / len(theorem["query"])).sqrt() + 1e-12
    assert len(theorem["query"]) > 10_000 and ((frequency - exposure).abs() <= error).all()


def test_squared_gradients_are_proportional_to_exposure(theorem: dict[str, Tensor]) -> None:
    x, query = theorem["x"][:, :-1], theorem["query"][:, :-1]
    weight = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    residual = weight * theorem["x"][:, -1:] - x
    # Per-sample gradient of the query-masked squared error with respect to the weight of each cell.
    gradient = (2 * query * residual * theorem["x"][:, -1:]).detach()
    # Cells correlate with the context to different degrees, so unit gradients are taken out.
    unit = (2 * residual * theorem["x"][:, -1:]).detach().square().mean(0)
    size = gradient.square().mean(0) / unit
    r = torch.corrcoef(torch.stack([size, theorem["exposure"][:-1]]))[0, 1]
    assert r**2 >= 0.98 and size[0] == 0
    slope = (size[1:] / theorem["exposure"][1:-1]).tolist()
    assert slope == pytest.approx([1.0] * len(slope), abs=0.15)


def test_the_conditional_mean_is_learnt_where_exposure_is_positive_and_only_there(
    theorem: dict[str, Tensor],
) -> None:
    x, query, covariance = theorem["x"], theorem["query"], theorem["covariance"]
    start, seen = 5.0, x[:, -1]
    # Minimiser of the query-masked loss nearest to the start: itself where no gradient arrives.
    power = (query * seen[:, None].square()).sum(0)
    moment = (query * seen[:, None] * x).sum(0)
    learnt = torch.where(power > 0, moment / power.clamp(min=1e-30), start)
    truth = covariance[:, -1] / covariance[-1, -1]
    error = 4.5 * (1 - truth**2).clamp(min=0).sqrt() / power.clamp(min=1).sqrt() + 1e-9
    assert ((learnt - truth).abs() <= error)[theorem["exposure"] > 0].all()
    assert theorem["exposure"][0] == 0 and learnt[0] == start and abs(learnt[0] - truth[0]) > 1
