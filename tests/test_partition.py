"""Laws of the context-query partitions and of the context designs."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from conftest import seeded
from fieldfill.errors import InputError
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    FrameDropout,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    VariableDropout,
    block_labels,
)
from fieldfill.partition import (
    AllObserved,
    BlockPartition,
    FramePartition,
    HideMore,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
    VariablePartition,
)

SHAPE = (12, 3, 4, 12, 12)
MASKS: list[MaskModel] = [
    PixelMask(0.3),
    PixelMask(0.02),
    PixelMask(0.5, static=False, shared=False),
    BlockMask(3, 3, 5),
    SensorMask(15, 0.2),
    TrackMask(),
    SwathMask(5, 12),
    CloudMask(0.4),
    FrameDropout(0.6),
    VariableDropout(0.6),
]


def partitions(bank: Tensor) -> list[Partition]:
    return [
        PixelPartition(),
        PixelPartition(0.7, 0.7),
        PixelPartition(0.7, static=True),
        BlockPartition(),
        BlockPartition(3, 3, (1, 6)),
        BlockPartition(3, 3, 4, query=1),
        StationPartition(),
        FramePartition(),
        VariablePartition(),
        MaskSwap(bank),
        MaskSwap(bank, keep=None),
        AllObserved(),
        HideMore(0.7),
        HideMore(structure=BlockPartition()),
    ]


@pytest.mark.parametrize("model", MASKS, ids=lambda m: type(m).__name__)
def test_contexts_and_queries_stay_inside_observed(model: MaskModel) -> None:
    bank = model.sample((40, *SHAPE[1:]), seeded())
    observed = bank[:12].clone()
    observed[0] = False
    for partition in partitions(bank):
        context, query = partition.split(observed, seeded(1))
        assert context.dtype == query.dtype == torch.bool
        assert not (context & ~observed).any() and not (query & ~observed).any(), partition
        unsplit = ~query.flatten(1).any(-1)
        assert unsplit[0]
        printed = isinstance(partition, PixelPartition) and partition.query is not None
        assert printed or (context[unsplit] == observed[unsplit]).all()


@pytest.mark.parametrize("model", MASKS, ids=lambda m: type(m).__name__)
def test_one_seed_gives_one_split_and_leaves_input_and_global_state_alone(model: MaskModel) -> None:
    bank = model.sample((40, *SHAPE[1:]), seeded())
    observed, state = bank[:12].clone(), torch.get_rng_state()
    for partition in partitions(bank):
        first, again = partition.split(observed, seeded(5)), partition.split(observed, seeded(5))
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert torch.equal(observed, bank[:12]) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("design", ["random", "balanced", "enumerated"])
@pytest.mark.parametrize("model", MASKS, ids=lambda m: type(m).__name__)
def test_inference_contexts_stay_inside_observed(model: MaskModel, design: str) -> None:
    bank = model.sample((20, *SHAPE[1:]), seeded())
    observed = bank[:4]
    for partition in partitions(bank):
        contexts = partition.contexts(observed, 3, seeded(1), design=design)
        assert contexts.shape[1:] == observed.shape and 1 <= len(contexts) <= 3
        assert not (contexts & ~observed).any()
        everything = partition.contexts(observed, 2, seeded(1), keep=1.0, design=design)
        assert (everything == observed).all(), partition


def test_static_masks_get_static_contexts_and_moving_ones_do_not() -> None:
    static, moving = (PixelMask(0.5, static=s).sample(SHAPE, seeded()) for s in (True, False))
    context, _ = PixelPartition(0.7).split(torch.cat([static, moving]), seeded(1))
    constant = (context == context[:, :, :1]).flatten(1).all(-1)
    assert constant[: len(static)].all() and not constant[len(static) :].any()
    redrawn, _ = PixelPartition(0.7, static=False).split(static, seeded(1))
    assert not (redrawn == redrawn[:, :, :1]).flatten(1).all(-1).any()


def test_variables_with_one_mask_share_contexts_and_others_have_their_own() -> None:
    mask = PixelMask(0.5, shared=False).sample(SHAPE, seeded())
    mask[:, 2] = mask[:, 0]
    context, _ = PixelPartition(0.6).split(mask, seeded(1))
    assert (context[:, 2] == context[:, 0]).all()
    common = mask[:, 0] & mask[:, 1]
    assert (context[:, 0] & common).ne(context[:, 1] & common).any()


def test_pixel_ratios_are_those_asked_and_the_printed_query_is_independent() -> None:
    mask = PixelMask(0.6).sample((400, 1, 1, 20, 20), seeded())
    context, query = PixelPartition(0.7, 0.4).split(mask, seeded(1))
    n = mask.sum()
    assert context.sum() / n == pytest.approx(0.7, abs=0.01)
    assert query.sum() / n == pytest.approx(0.4, abs=0.01)
    assert (context & query).sum() / n == pytest.approx(0.28, abs=0.01)
    complement = PixelPartition(0.7).split(mask, seeded(1))
    assert (complement[0] ^ complement[1]).equal(mask)


def test_a_range_of_ratios_gives_each_row_its_own() -> None:
    mask = torch.ones((500, 1, 1, 20, 20), dtype=torch.bool)
    context, _ = PixelPartition((0.2, 0.9)).split(mask, seeded())
    share = context.float().mean((1, 2, 3, 4))
    assert share.min() < 0.25 and share.max() > 0.85 and share.mean() == pytest.approx(0.55, abs=0.03)


def test_two_observed_units_are_always_split_and_one_never() -> None:
    mask = torch.zeros((200, 1, 2, 5, 5), dtype=torch.bool)
    mask[:, :, :, 2, 2] = True
    _, query = PixelPartition((0.9, 1.0)).split(mask, seeded())
    assert not query.any()
    mask[:, :, :, 0, 4] = True
    context, query = PixelPartition((0.9, 1.0)).split(mask, seeded())
    assert (query.flatten(1).sum(-1) == 2).all() and (context.flatten(1).sum(-1) == 2).all()


def test_blocks_stay_whole_and_the_numbers_are_those_asked() -> None:
    mask = BlockMask(3, 3, 6).sample((50, 2, 3, 12, 12), seeded())
    labels = block_labels(12, 12, 3, 3)
    for partition, k, q in (
        (BlockPartition(), 5, 1),
        (BlockPartition(3, 3, 4), 4, 2),
        (BlockPartition(3, 3, 4, query=2), 4, 2),
    ):
        for part, count in zip(partition.split(mask, seeded(1)), (k, q)):
            assert (part == part[:, :1, :1]).all()
            means = torch.stack([part[:, 0, 0][:, labels == b].float().mean(-1) for b in range(9)], 1)
            assert ((means == 0) | (means == 1)).all() and (means.sum(1) == count).all()


def test_printed_block_queries_are_independent_of_the_context() -> None:
    mask = BlockMask(3, 3, 5).sample((4000, 1, 1, 3, 3), seeded())
    context, query = BlockPartition(3, 3, 4, query=1).split(mask, seeded(1))
    assert (query & context).any((1, 2, 3, 4)).float().mean() == pytest.approx(4 / 5, abs=0.03)


def test_rows_with_too_few_blocks_are_not_split() -> None:
    mask = BlockMask(3, 3, 2).sample((5, 1, 1, 6, 6), seeded())
    for partition in (
        BlockPartition(3, 3, 2),
        BlockPartition(3, 3, 3, query=1),
        BlockPartition(3, 3, 1, query=3),
    ):
        assert not partition.split(mask, seeded())[1].any()


def test_stations_frames_and_variables_stay_whole() -> None:
    mask = PixelMask(0.4, static=False, shared=False).sample(SHAPE, seeded())
    kept = StationPartition(dropout=0.0).split(mask, seeded())[0]
    assert not (kept.any(2).any(1) & (mask & ~kept).any(2).any(1)).any()
    for partition, dims in ((FramePartition(), (3, 4)), (VariablePartition(), (2, 3, 4))):
        context, query = partition.split(mask, seeded())
        assert not (context.any(dims) & query.any(dims)).any()
    lost = StationPartition(1.0, dropout=0.25).split(PixelMask(0.4).sample(SHAPE, seeded()), seeded())[1]
    assert lost.any(2).any(1).float().mean() > 0.3


def test_a_single_donor_cuts_the_context_out_of_the_mask() -> None:
    bank = CloudMask(0.5).sample((20, 1, 3, 12, 12), seeded())
    context, query = MaskSwap(bank, keep=None).split(bank, seeded(1))
    for mask, c, q in zip(bank, context, query):
        donors = [m for m in bank if (mask & m).equal(c)]
        assert donors and q.equal(mask & ~donors[0]) and c.any() and q.any()


@pytest.mark.parametrize("model", MASKS, ids=lambda m: type(m).__name__)
def test_the_union_of_donors_covers_the_asked_share_but_never_all(model: MaskModel) -> None:
    bank = model.sample((60, *SHAPE[1:]), seeded())
    swap = MaskSwap(bank, keep=0.6, single=0.0)
    context, query = swap.split(bank, seeded(1))
    split = query.flatten(1).any(-1)
    several = bank.flatten(1).sum(-1) > 1
    share = context[split].flatten(1).sum(-1) / bank[split].flatten(1).sum(-1)
    assert split[several].float().mean() > 0.6
    assert (share < 1).all() and share.mean() > 0.45


def test_the_union_on_sparse_pixels_is_the_pixel_partition() -> None:
    bank = PixelMask(0.02).sample((400, 2, 5, 20, 20), seeded())
    context, query = MaskSwap(bank, keep=0.5, single=0.0).split(bank, seeded(1))
    assert (context == context[:, :1, :1]).all()
    # Static units hidden one by one: the query has no neighbours more often than cells of the mask have.
    share = context.flatten(1).sum(-1) / bank.flatten(1).sum(-1).clamp(min=1)
    assert share.mean() == pytest.approx(0.57, abs=0.08) and query.flatten(1).any(-1).float().mean() > 0.95


def test_identical_masks_cannot_be_split() -> None:
    bank = PixelMask(0.3).sample((1, 1, 2, 8, 8), seeded()).expand(10, -1, -1, -1, -1).contiguous()
    context, query = MaskSwap(bank).split(bank, seeded())
    assert not query.any() and context.equal(bank)


def test_kept_shares_at_inference_are_those_asked() -> None:
    bank = PixelMask(0.4).sample((60, 1, 2, 16, 16), seeded())
    for partition in (PixelPartition(), StationPartition(), MaskSwap(bank), HideMore()):
        for design in ("random", "balanced"):
            contexts = partition.contexts(bank[:20], 4, seeded(), keep=0.8, design=design)
            share = (contexts.flatten(2).sum(-1) / bank[:20].flatten(1).sum(-1)).mean()
            assert share == pytest.approx(0.8, abs=0.06), (partition, design)


@pytest.mark.parametrize("count", [3, 7, 10])
def test_balanced_contexts_leave_every_unit_out_equally_often(count: int) -> None:
    for partition, model in (
        (PixelPartition((0.5, 0.9)), PixelMask(0.3)),
        (BlockPartition(), BlockMask(3, 3, 7)),
        (FramePartition(0.7), FrameDropout(0.9)),
    ):
        observed = model.sample((6, 2, 6, 12, 12), seeded())
        contexts = partition.contexts(observed, count, seeded(1), design="balanced")
        out = (observed & ~contexts).sum(0)
        for row, mask in zip(out, observed):
            assert row[mask].max() - row[mask].min() <= 1


@pytest.mark.parametrize("ratio", [0.7, (0.4, 0.6)])
def test_balanced_contexts_go_round_a_whole_number_of_times(ratio) -> None:
    observed = PixelMask(0.3).sample((6, 1, 2, 16, 16), seeded())
    contexts = PixelPartition(ratio).contexts(observed, 5, seeded(1), design="balanced")
    out = (observed & ~contexts).sum(0)
    for row, mask in zip(out, observed):
        assert row[mask].max() == row[mask].min()
    share = contexts.flatten(2).sum(-1) / observed.flatten(1).sum(-1)
    assert (share >= (0.69 if ratio == 0.7 else 0.39)).all() and (share < 1).all()


def test_balanced_swaps_are_more_even_than_random_ones() -> None:
    bank = CloudMask(0.5).sample((60, 1, 2, 16, 16), seeded())
    observed = bank[:10]

    def unevenness(design: str) -> float:
        out = (observed & ~MaskSwap(bank).contexts(observed, 12, seeded(2), keep=0.7, design=design)).sum(0).float()
        return float(torch.stack([row[mask].var() for row, mask in zip(out, observed)]).mean())

    assert unevenness("balanced") < unevenness("random")


def test_balanced_swaps_do_not_prefer_large_or_small_omissions() -> None:
    """A grid of 32 has blocks of 100, 110 and 121 cells; each is to be left out about as often as any other."""
    bank = torch.ones((9, 1, 1, 32, 32), dtype=torch.bool)
    for k, (row, column) in enumerate(itertools.product((0, 11, 22), repeat=2)):
        bank[k, ..., row : row + 11, column : column + 11] = False
    observed = bank[:1].repeat(300, 1, 1, 1, 1)
    contexts = MaskSwap(bank).contexts(observed, 5, seeded(1), design="balanced")
    often = (observed & ~contexts).float().mean((0, 1, 2, 3))[5::11, 5::11].flatten()[1:]
    assert often.sum() == pytest.approx(1) and (often - 1 / 8).abs().max() < 0.03


def test_balanced_swaps_hold_rare_large_omissions_as_often_as_random_ones() -> None:
    """Contexts without two blocks are rare and err most; they are also a little more even."""
    bank = torch.ones((20, 1, 1, 9, 9), dtype=torch.bool)
    places = list(itertools.product((0, 3, 6), repeat=2))
    for k in range(20):
        for row, column in (places[k % 9], places[(k + 4) % 9])[: 1 if k < 18 else 2]:
            bank[k, ..., row : row + 3, column : column + 3] = False
    observed = bank[:1].repeat(1000, 1, 1, 1, 1)

    def large(design: str) -> float:
        contexts = MaskSwap(bank).contexts(observed, 5, seeded(3), design=design)
        return float(((observed & ~contexts).flatten(2).sum(-1) > 9).float().mean())

    assert 0.04 < large("random") < 0.12
    assert large("balanced") == pytest.approx(large("random"), abs=0.012)


def test_enumeration_lists_every_context_once() -> None:
    observed = BlockMask(3, 3, 5).sample((4, 1, 2, 9, 9), seeded())
    contexts = BlockPartition().contexts(observed, 8, seeded(), design="enumerated")
    assert len(contexts) == 5
    for b in range(4):
        assert len({tuple(c[b].flatten().tolist()) for c in contexts}) == 5
    assert len(BlockPartition(3, 3, 3).contexts(observed, 12, seeded(), design="enumerated")) == math.comb(5, 3)
    mixed = torch.cat([observed[:1], BlockMask(3, 3, 3).sample((1, 1, 2, 9, 9), seeded())])
    assert len(BlockPartition().contexts(mixed, 20, seeded(), design="enumerated")) == 15
    assert len(BlockPartition().contexts(mixed, 8, seeded(), design="enumerated")) == 8


def test_missdiff_and_ambientdiff_are_partitions() -> None:
    mask = PixelMask(0.5).sample((200, 1, 1, 10, 10), seeded())
    context, query = AllObserved().split(mask, seeded(1))
    assert context.equal(mask) and query.equal(mask)
    context, query = HideMore(0.6).split(mask, seeded(1))
    assert query.equal(mask) and context.sum() / mask.sum() == pytest.approx(0.6, abs=0.02)
    assert AllObserved().contexts(mask, 2, seeded(), keep=0.5).equal(mask.expand(2, *mask.shape))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PixelPartition(1.2),
        lambda: PixelPartition(0.5, query=0.0),
        lambda: BlockPartition(3, 3, 0),
        lambda: BlockPartition(3, 3, 2, query=0),
        lambda: MaskSwap(torch.ones((1, 1, 1, 2, 2), dtype=torch.bool)),
        lambda: MaskSwap(torch.ones((4, 1, 1, 2, 2)), 0.5),
        lambda: PixelPartition().contexts(torch.ones((1, 1, 1, 2, 2), dtype=torch.bool), 0, seeded()),
        lambda: PixelPartition().contexts(torch.ones((1, 1, 1, 2, 2), dtype=torch.bool), 2, seeded(), design="best"),
    ],
)
def test_wrong_parameters_are_refused_with_a_remedy(wrong) -> None:
    with pytest.raises(InputError, match="give"):
        wrong()
