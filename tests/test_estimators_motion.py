"""What the flow carries: motion is found, gaps are filled from upstream and downstream, and still fields stay still."""

import math

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor

from conftest import crops_of, given_of, lesson_of, seeded
from fieldfill.config import Settings, build_denoiser
from fieldfill.data.crops import Crops
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.motion import Motion, MotionSettings, carry, contrast, turned_gradient
from fieldfill.estimators.pull_push import PullPush
from fieldfill.masks import BlockMask
from fieldfill.partition import BlockPartition
from fieldfill.simulate import Advection

SMOOTHED = MotionSettings().smoothed
BOTH = (True, True)


def waves(d: tuple[float, float], frames: int = 6, size: int = 24, seed: int = 0) -> Tensor:
    """A periodic field of a few waves (1, 1, T, H, W) that moves by d rows and columns a frame."""
    generator = seeded(seed)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    field = torch.zeros(frames, size, size)
    for _ in range(12):
        k, m, phase = (
            *torch.randint(-3, 4, (2,), generator=generator).tolist(),
            6.3 * torch.rand((), generator=generator),
        )
        for n in range(frames):
            field[n] += torch.cos(2 * math.pi * (k * (y - n * d[0]) + m * (x - n * d[1])) / size + phase)
    return field[None, None] / 3


def motion_of(x: Tensor, context: Tensor, wider: float) -> Tensor:
    motion = Motion(1, BOTH)
    motion.wider.fill_(wider)
    return motion.motion(x, context)


@pytest.mark.parametrize("wider", [0.01, 1.0])
@pytest.mark.parametrize("d", [(0.5, 0.0), (-0.3, 0.4), (0.0, -0.8), (0.6, 0.6)], ids=str)
def test_the_motion_of_a_field_is_found(d, wider) -> None:
    x = waves(d)
    found = motion_of(x, torch.ones_like(x, dtype=torch.bool), wider)
    assert found.shape == (1, 5, 2, 24, 24)
    assert (found.mean((0, 1, 3, 4)) - torch.tensor(d)).abs().max() < 0.08


def test_a_small_reach_tells_neighbouring_flows_apart_and_a_large_one_does_not() -> None:
    x = torch.cat([waves((0.5, 0.0)), waves((-0.5, 0.0))], dim=-1)
    everywhere = torch.ones_like(x, dtype=torch.bool)
    near, wide = (motion_of(x, everywhere, wider)[0, :, 0] for wider in (0.01, 100.0))
    assert near[..., 4:20].mean() > 0.35 and near[..., 28:44].mean() < -0.35
    assert wide.abs().max() < 0.25


@pytest.mark.parametrize("x", [torch.zeros(2, 1, 4, 9, 12), waves((0, 0)), torch.ones(1, 2, 2, 3, 5)], ids=str)
def test_a_field_that_does_not_move_stays_where_it_is(x) -> None:
    context = torch.rand(x.shape, generator=seeded()) < 0.7
    parts, trust = Motion(x.shape[1], (True, False)).parts(given_of(x, context), x)
    assert parts.abs().max() < 0.05 and torch.isfinite(trust).all() and (trust[context] == 0).all()


def test_a_gap_is_filled_by_what_comes_out_of_it_and_goes_into_it() -> None:
    x = waves((0.5, 0.5), frames=20)
    context = torch.ones_like(x, dtype=torch.bool)
    context[..., 8:14, 8:14] = False
    d = motion_of(torch.where(context, x, 0), context, 1.0)
    values, trust = carry(torch.where(context, x, 0), context, d, BOTH, MotionSettings())
    reached = ~context & (trust > MotionSettings().trust ** 16)
    assert reached.float().sum() > 0.5 * (~context).float().sum()
    assert (values - x)[reached].square().mean() < 0.15 * x.square().mean()
    assert (trust[context] == 1).all() and (trust[:, :, 0][~context[:, :, 0]] == 0).all()


def test_parts_do_not_depend_on_values_outside_the_context_other_than_the_guess() -> None:
    x, guess = waves((0.5, 0.2)), waves((0.4, 0.2), seed=1)
    context = torch.rand(x.shape, generator=seeded()) < 0.6
    motion = Motion(1, BOTH)
    first = motion.parts(given_of(x, context), guess)
    second = motion.parts(given_of(torch.where(context, x, 1e3), context), guess)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("axis", [-1, -2])
def test_periodic_axes_have_no_edge(axis) -> None:
    x = waves((0.5, 0.2))
    context = torch.rand(x.shape, generator=seeded()) < 0.6
    motion = Motion(1, BOTH)
    parts, trust = motion.parts(given_of(x, context), x)
    rolled = motion.parts(given_of(x.roll(8, axis), context.roll(8, axis)), x.roll(8, axis))
    assert torch.allclose(parts.roll(8, axis), rolled[0], atol=1e-4)
    assert torch.allclose(trust.roll(8, axis), rolled[1], atol=1e-4)


def test_time_reversed_swaps_both_directions() -> None:
    x = waves((0.5, 0.2))
    context = torch.rand(x.shape, generator=seeded()) < 0.6
    motion = Motion(1, BOTH)
    parts, _ = motion.parts(given_of(x, context), x)
    reversed_parts, _ = motion.parts(given_of(x.flip(2), context.flip(2)), x.flip(2))
    assert torch.allclose(parts[[0, 1, 3, 2]], reversed_parts.flip(3), atol=1e-4)


def gappy_crops(x: Tensor, frames: int) -> Crops:
    observed = BlockMask(3, 3, 7).sample(tuple(x.shape), seeded(1))
    values = np.where(observed[:, 0].numpy(), x[:, 0].numpy(), np.nan)
    cells = {axis: (axis, np.arange(x.shape[-1]) * 1.0, {"axis": axis.upper(), "periodic": 1}) for axis in "yx"}
    ds = xr.Dataset(
        {"u": (("sample", "time", "y", "x"), values)}, coords={"time": np.arange(x.shape[2]) * 1.0, **cells}
    )
    return crops_of(ds, frames)


def denoiser_for(frames: int, size: int):
    config = Settings(window=frames, base=8, levels=1, estimators=("pull-push", "motion"))
    return build_denoiser(config, (frames, size, size), 1, BOTH, seed=0)


def test_motion_pays_on_moving_fields_and_is_left_out_of_those_without_any() -> None:
    partition = BlockPartition(3, 3)
    # Of 24 samples nine are validated; with four of twelve the gain depends on which of them move fast.
    moving = Advection(size=24, frames=12).simulate(24, seeded())[0].float()
    found = Chain([PullPush(), Motion(1, BOTH)]).learn(lesson_of(gappy_crops(moving, 12), partition))
    assert found["motion"]["validation"] < 0.8 * found["sources"]["validation"]
    random = torch.randn(moving.shape, generator=seeded(2))
    motion = Motion(1, BOTH)
    found = Chain([PullPush(), motion]).learn(lesson_of(gappy_crops(random, 12), partition))
    assert found["motion"]["validation"] == found["sources"]["validation"] and not motion.weights.any()


def test_an_estimate_with_motion_depends_on_the_context_cells_only() -> None:
    denoiser = denoiser_for(6, 24)
    denoiser.chain.steps["motion"].weights.fill_(0.5)
    x = waves((0.5, 0.2))
    context = torch.rand(x.shape, generator=seeded()) < 0.6
    t, maps = torch.tensor([1e-3]), torch.zeros(1, 0, 24, 24)
    estimate = denoiser(t, x, context, maps)
    assert torch.equal(estimate, denoiser(t, torch.where(context, x, 1e3), context, maps))
    still = denoiser_for(6, 24)(t, x, context, maps)
    assert (estimate - still)[context].abs().max() < 0.1 < (estimate - still)[~context].abs().max()


def vortices(frames: int, size: int, count: int) -> Tensor:
    """Vorticity carried by the flow that it makes, (B, 1, T, H, W): smooth enough for a simple scheme."""
    generator = seeded(3)
    k = 2 * math.pi * torch.fft.fftfreq(size)
    k_y, k_x = k[:, None], k[None, :]
    k2 = (k_y**2 + k_x**2).clamp(min=1e-9)
    x = torch.fft.ifft2(torch.fft.fft2(torch.randn(count, size, size, generator=generator)) * torch.exp(-6 * k2)).real
    x = x / x.std()
    field = [x]
    for _ in range(frames - 1):
        for _ in range(4):
            stream = 0.02 * torch.fft.fft2(x) / k2
            stream[:, 0, 0] = 0
            d_y, d_x = (torch.fft.ifft2(v).real for v in (-1j * k_x * stream, 1j * k_y * stream))
            slope_y, slope_x = (torch.fft.ifft2(1j * k_ * torch.fft.fft2(x)).real for k_ in (k_y, k_x))
            x = x - 0.25 * (d_y * slope_y + d_x * slope_x)
        field.append(x)
    return torch.stack(field, dim=1)[:, None]


def test_vortices_tell_the_law_of_their_flow() -> None:
    """The flow that is learnt from gappy vorticity explains most of its change where nothing is missing."""
    x = vortices(frames=8, size=24, count=12)
    crops = gappy_crops(x, 8)
    motion = Motion(1, BOTH)
    found = Chain([PullPush(), motion]).learn(lesson_of(crops, BlockPartition(3, 3)))
    assert found["motion"]["stream"] == 1 and motion.weights.any()
    complete = x[:4] / float(crops.record.std[0])
    down, right, change, _ = contrast(complete, torch.ones_like(complete, dtype=torch.bool), BOTH)
    d = turned_gradient(0.5 * (complete[:, :, 1:] + complete[:, :, :-1]), motion.turn, SMOOTHED, BOTH)[:, None]
    left = change + d[:, :, :, 0] * down + d[:, :, :, 1] * right
    assert left.square().mean() < 0.4 * change.square().mean()


def test_a_turned_gradient_runs_along_the_lines_of_the_field() -> None:
    x = waves((0.0, 0.0), frames=2)
    turn = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    d = turned_gradient(x, turn, SMOOTHED, BOTH)
    smooth = turned_gradient(x, 0 * turn, SMOOTHED, BOTH)
    assert not smooth.any() and d.shape == (1, 2, 2, 24, 24)
    ahead = (d[..., 0, :, :].roll(-1, -2) - d[..., 0, :, :].roll(1, -2)) + (
        d[..., 1, :, :].roll(-1, -1) - d[..., 1, :, :].roll(1, -1)
    )
    assert ahead.abs().max() < 0.05 * d.abs().max()  # no divergence
