"""Laws of the observation-mask models."""

import pytest
import torch
from torch import Generator

from conftest import seeded
from fieldfill.errors import InputError
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    EmpiricalMask,
    FrameDropout,
    Intersection,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    Union,
    VariableDropout,
    block_labels,
)

SHAPE = (6, 2, 5, 16, 20)
BANK = CloudMask(0.5).sample((9, 2, 5, 16, 20), seeded(7))
MODELS: list[MaskModel] = [
    PixelMask(0.3),
    PixelMask((0.1, 0.9), static=False, shared=False),
    BlockMask(3, 4, 7),
    BlockMask(2, 2, 3, static=False, shared=False),
    SensorMask(20, 0.2),
    SensorMask(20, 0.2, fixed=True),
    TrackMask(),
    SwathMask(),
    CloudMask(0.4),
    CloudMask((0.2, 0.8), memory=1.0),
    FrameDropout(0.5, shared=False),
    VariableDropout(0.5),
    Union((TrackMask(), SensorMask(5))),
    Intersection((SwathMask(), CloudMask(0.7))),
    EmpiricalMask(BANK),
    EmpiricalMask(BANK, shift=True),
]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@each_model
def test_masks_are_bool_of_the_asked_shape(model: MaskModel) -> None:
    mask = model.sample(SHAPE, seeded())
    assert mask.shape == SHAPE and mask.dtype == torch.bool
    assert mask.any() and not mask.all()


@each_model
def test_one_seed_gives_one_mask_and_leaves_the_global_state_alone(model: MaskModel) -> None:
    state = torch.get_rng_state()
    first = model.sample(SHAPE, seeded(3))
    again = model.sample(SHAPE, seeded(3))
    other = model.sample((40, *SHAPE[1:]), seeded(4))[:6]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (PixelMask(0.3), 0.3),
        (PixelMask((0.2, 0.6), static=False), 0.4),
        (BlockMask(3, 3, 5), 5 / 9),
        (SensorMask(36, 0.25), 36 * 0.75 / 144),
        (CloudMask(0.35, scale=2.0), 0.35),
        (SwathMask(width=6, spacing=15), 0.4),
    ],
    ids=lambda v: type(v).__name__,
)
def test_the_share_observed_is_the_one_asked(model: MaskModel, share: float) -> None:
    mask = model.sample((1500, 1, 2, 12, 12), seeded())
    assert mask.float().mean().item() == pytest.approx(share, abs=0.012)


def test_static_and_shared_masks_are_constant_and_others_are_not() -> None:
    g = seeded()
    for kind in (lambda **k: PixelMask(0.5, **k), lambda **k: BlockMask(3, 3, 4, **k)):
        mask = kind(static=True, shared=True).sample(SHAPE, g)
        assert (mask == mask[:, :1, :1]).all()
        free = kind(static=False, shared=False).sample(SHAPE, g)
        assert not (free == free[:, :, :1]).all() and not (free == free[:, :1]).all()


def test_block_masks_show_whole_blocks_and_the_exact_number() -> None:
    labels = block_labels(16, 20, 3, 4)
    assert labels.unique().tolist() == list(range(12))
    mask = BlockMask(3, 4, 7).sample(SHAPE, seeded())
    for row in mask[:, 0, 0]:
        means = torch.stack([row[labels == b].float().mean() for b in range(12)])
        assert set(means.tolist()) == {0.0, 1.0} and means.sum() == 7


def test_every_block_is_seen_equally_often() -> None:
    mask = BlockMask(3, 3, 2).sample((9000, 1, 1, 3, 3), seeded())
    assert torch.allclose(mask.float().mean((0, 1, 2)), torch.tensor(2 / 9), atol=0.02)


def test_stations_stay_in_place_and_fixed_networks_are_common_to_all_samples() -> None:
    g = seeded()
    mask = SensorMask(20, 0.3).sample((30, 2, 40, 16, 20), g)
    assert (mask.any(2).any(1).flatten(1).sum(-1) == 20).all()
    fixed = SensorMask(20, 0.3, fixed=True).sample((30, 2, 40, 16, 20), g)
    assert fixed.any(2).any(1).any(0).sum() == 20


def test_dropouts_hide_whole_frames_or_variables_and_never_all() -> None:
    g = seeded()
    frames = FrameDropout(0.2).sample((200, 2, 5, 4, 4), g)
    assert (frames == frames[:, :1, :, :1, :1]).all() and frames.flatten(1).any(-1).all()
    variables = VariableDropout(0.2).sample((200, 3, 5, 4, 4), g)
    assert (variables == variables[:, :, :1, :1, :1]).all() and variables.flatten(1).any(-1).all()


def test_swaths_return_after_the_revisit_time_and_move_in_between() -> None:
    mask = SwathMask(width=6, spacing=15, revisit=3).sample((8, 1, 7, 20, 20), seeded())
    same = (mask[:, :, 0] == mask[:, :, 3]).float().mean()
    moved = (mask[:, :, 0] == mask[:, :, 1]).float().mean()
    assert same > 0.995 and moved < 0.8


def test_clouds_drift_with_their_wind() -> None:
    field = CloudMask(scale=3.0, speed=2.0, memory=1.0).field((64, 1, 4, 32, 32), seeded())
    assert field.var().item() == pytest.approx(1, abs=0.1)
    # Correlation exp(-d²/2l²) after a shift of d = speed * frames.
    for lag, expected in ((1, 0.801), (3, 0.135)):
        assert (field[:, 0] * field[:, lag]).mean().item() == pytest.approx(expected, abs=0.1)


def test_clouds_are_smooth_with_the_asked_length() -> None:
    field = CloudMask(scale=4.0).field((300, 1, 1, 32, 32), seeded())[:, 0]
    correlation = (field[:, :, 4:] * field[:, :, :-4]).mean().item()
    assert correlation == pytest.approx(0.6065, abs=0.06)
    edges = (field[:, :, 0] * field[:, :, -1]).mean().item()
    assert abs(edges) < 0.1


def test_unions_and_intersections_are_what_they_say() -> None:
    models = (PixelMask(0.3), PixelMask(0.5))
    parts = [m.sample(SHAPE, seeded(1)) for m in models[:1]]
    both = Union(models).sample(SHAPE, seeded(1))
    assert not (parts[0] & ~both).any()
    cut = Intersection(models).sample(SHAPE, seeded(1))
    assert not (cut & ~parts[0]).any()
    big = (5000, 1, 1, 4, 4)
    assert Union(models).sample(big, seeded(2)).float().mean().item() == pytest.approx(0.65, abs=0.01)


def test_empirical_masks_come_from_the_bank_and_shifted_ones_are_rolled() -> None:
    g = seeded()
    for mask in EmpiricalMask(BANK).sample(SHAPE, g):
        assert (mask == BANK).flatten(1).all(-1).any()
    for mask in EmpiricalMask(BANK, shift=True).sample(SHAPE, g):
        rolls = (torch.roll(BANK, (y, x), (3, 4)) for y in range(16) for x in range(20))
        assert any((rolled == mask).flatten(1).all(-1).any() for rolled in rolls)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PixelMask(0.0),
        lambda: PixelMask((0.6, 0.2)),
        lambda: BlockMask(3, 3, 10),
        lambda: SensorMask(0),
        lambda: SwathMask(width=9, spacing=5),
        lambda: CloudMask(scale=0),
        lambda: EmpiricalMask(BANK.float()),
        lambda: EmpiricalMask(BANK).sample((1, 1, 1, 3, 3), Generator()),
        lambda: SensorMask(99).sample((1, 1, 1, 3, 3), Generator()),
        lambda: BlockMask(5, 5, 3).sample((1, 1, 1, 3, 3), Generator()),
    ],
)
def test_wrong_parameters_are_refused_with_a_remedy(wrong) -> None:
    with pytest.raises(InputError, match=r"give|use"):
        wrong()
