"""Windows that move, each with its own drift: finding it, conditioning in the moving frame, and choosing to do so."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from conftest import BRIEF, crops_of, field_of, given_of, lesson_of, seeded, simulated_dataset
from fieldfill.data.crops import Crops
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.drift import Drift
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import GaussianLaw, LearntField
from fieldfill.estimators.gaussian.pairs import factorise, tapered
from fieldfill.estimators.gaussian.phases import phases, wavenumbers
from fieldfill.estimators.velocity import estimate_drift, fastest_drift
from fieldfill.sampling.solvers import conditional
from fieldfill.simulate.gaussian_field import GaussianField

FAST = (4.0, 4.0)
LAW = GaussianField(size=(16, 18), frames=8, velocity=(0.0, 0.0), memory=0.99, noise=0.05)
NONE = torch.zeros(())


def moving_fields(drifts: Tensor, law: GaussianField = LAW, seed: int = 0) -> Tensor:
    """One realisation (N, 1, T, H, W) of a law for each drift (N, 2)."""
    generator = seeded(seed)
    laws = [dataclasses.replace(law, velocity=tuple(v.tolist())) for v in drifts]
    return torch.cat([own.simulate(1, generator)[0] for own in laws]).float()


def gaps(kind: str, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    """Masks (N, 1, T, H, W) that stay the same over the frames: 30 % of the cells, or 5 of 9 blocks."""
    generator = seeded(seed)
    rows, columns = shape[-2:]
    if kind == "pixel":
        return (torch.rand(shape[0], 1, 1, rows, columns, generator=generator) < 0.3).expand(shape)
    kept = torch.rand(shape[0], 9, generator=generator).argsort(1) < 5
    blocks = kept.view(-1, 1, 1, 3, 3).repeat_interleave(-(-rows // 3), 3).repeat_interleave(-(-columns // 3), 4)
    return blocks[..., :rows, :columns].expand(shape)


def random_drifts(count: int, fastest: float, seed: int = 2) -> Tensor:
    return fastest * (2 * torch.rand(count, 2, generator=seeded(seed)) - 1)


@pytest.mark.parametrize("frames", [6, 30])
@pytest.mark.parametrize("kind", ["pixel", "block"])
def test_the_planted_drift_is_found_under_gaps_and_noise(kind, frames) -> None:
    """Within 0.02 cells a frame over 30 frames. A window of 6 sees a fifth of the way, and slow ones are left out."""
    drifts = random_drifts(12, 1.2)
    law = GaussianField(size=(30, 33), frames=frames, memory=1.0)
    x = moving_fields(drifts, law)
    x = x + 0.1 * torch.randn(x.shape, generator=seeded(3))
    found, clear = estimate_drift(x, gaps(kind, x.shape), (30, 33), FAST)
    error = (found - drifts).abs().amax(1)[clear]
    if frames == 30:
        assert clear.all() and error.max() < 0.02
    else:
        assert clear.float().mean() > 0.6 and error.median() < 0.03


def test_the_drift_of_a_grid_with_edges_is_found_and_several_variables_count_together() -> None:
    drifts = random_drifts(8, 0.8)
    law = GaussianField(size=(24, 20), frames=10, memory=1.0, periodic=False)
    x = torch.cat([moving_fields(drifts, law, seed) for seed in range(2)], 1)
    mask = torch.cat([gaps("pixel", (8, 1, 10, 24, 20), seed) for seed in range(2)], 1)
    found, clear = estimate_drift(x, mask, (45, 40), fastest_drift((24, 20), (45, 40), 10))
    assert clear.float().mean() > 0.8 and (found - drifts)[clear].abs().max() < 0.05


def nothing_moves(name: str) -> Tensor:
    generator = seeded()
    noise = torch.randn(6, 1, 12, 16, 18, generator=generator)
    still = moving_fields(torch.zeros(6, 2), dataclasses.replace(LAW, frames=12, memory=1.0))
    moving = moving_fields(random_drifts(6, 1.0), dataclasses.replace(LAW, frames=12))
    return {
        "white noise": noise,
        "standing still": still,
        "standing still under noise": still + noise,
        "moving under far too much noise": moving + 20 * noise,
        "constant": torch.ones_like(noise),
        "zero": torch.zeros_like(noise),
    }[name]


@pytest.mark.parametrize("kind", ["pixel", "block"])
@pytest.mark.parametrize(
    "name",
    [
        "white noise",
        "standing still",
        "standing still under noise",
        "moving under far too much noise",
        "constant",
        "zero",
    ],
)
def test_where_nothing_is_seen_to_move_the_drift_is_zero(name, kind) -> None:
    x = nothing_moves(name)
    drift, clear = estimate_drift(x, gaps(kind, x.shape), (16, 18), FAST)
    assert not clear.any() and torch.equal(drift, torch.zeros(6, 2))


@pytest.mark.parametrize("shape", [(3, 1, 1, 16, 18), (3, 1, 2, 3, 3)], ids=str)
def test_the_smallest_windows_and_empty_masks_have_an_answer(shape) -> None:
    x = torch.randn(shape, generator=seeded())
    for share in (0.0, 0.1, 1.0):
        mask = torch.rand(shape, generator=seeded(1)) < share
        drift, clear = estimate_drift(x, mask, shape[-2:], fastest_drift(shape[-2:], shape[-2:], shape[2]))
        assert drift.isfinite().all() and clear.shape == (3,)
        assert share > 0 or not clear.any()


def test_a_drift_does_not_depend_on_units_hidden_values_or_the_other_windows() -> None:
    x = moving_fields(random_drifts(4, 1.0))
    mask = gaps("block", x.shape)
    together, _ = estimate_drift(x, mask, (16, 18), FAST)
    for b in range(4):
        alone, _ = estimate_drift(torch.where(mask, 50 * x, 7.0)[b, None], mask[b, None], (16, 18), FAST)
        assert torch.allclose(alone[0], together[b], atol=1e-4)


@pytest.mark.parametrize("torus", [(8, 10), (7, 10), (8, 9), (7, 9)], ids=str)
def test_phases_move_fields_and_keep_them_real(torus) -> None:
    x = torch.randn(1, *torus, generator=seeded())
    spectrum = torch.fft.rfft2(x).flatten(1)
    for drift in ([0.3, -0.7], [1.0, 2.0]):
        turned = (spectrum * phases(wavenumbers(torus), torch.tensor([drift]), 4)[0]).unflatten(1, (torus[0], -1))
        fields = torch.fft.irfft2(turned, s=torus)
        # A half spectrum that is not that of a real field would not come back.
        assert torch.allclose(torch.fft.rfft2(fields), turned, atol=1e-4)
        assert torch.allclose(fields.square().sum((1, 2)), x.square().sum().expand(4), rtol=1e-4)
    smooth = torch.cos(2 * math.pi * torch.arange(torus[0]) / torus[0])[:, None].expand(torus)
    turn = phases(wavenumbers(torus), torch.tensor([[1.0, 2.0]]), 4)[0].unflatten(1, (torus[0], -1))
    moved = torch.fft.irfft2(torch.fft.rfft2(smooth) * turn, s=torus)
    for frame in range(4):
        assert torch.allclose(moved[frame], smooth.roll((frame, 2 * frame), (0, 1)), atol=1e-5)


@pytest.mark.parametrize("velocity", [(0.4, -0.7), (0.0, 0.0), (-1.3, 0.25)], ids=str)
@pytest.mark.parametrize("size", [(9, 12), (8, 11)], ids=str)
def test_a_law_at_rest_with_the_drift_is_the_law_that_moves(size, velocity) -> None:
    """Against the exact posterior of the moving law, with a mask that shows a third of the cells."""
    rest = GaussianField(size=size, frames=4, velocity=(0.0, 0.0), memory=0.9, noise=0.2)
    moving = dataclasses.replace(rest, velocity=velocity)
    generator = seeded()
    values = moving.observe(moving.simulate(2, generator)[0], generator)
    observed = torch.rand(values.shape, generator=generator) < 0.3
    found = field_of(rest).condition(values.float(), observed, NONE, torch.tensor([velocity, velocity]))
    for b in range(2):
        exact, _ = moving.posterior(values[b, 0], observed[b, 0], variance=False)
        assert (found[b, 0] - exact).abs().max() < 2e-3


SMALL = [((1, 4, 7, 6), (False, False)), ((2, 3, 6, 5), (True, False))]


def small_field(shape, periodic, steps: int = 300) -> LearntField:
    """A field whose covariance is compact, with variables that inform each other."""
    variables, frames, *grid = shape
    field = LearntField(variables, frames, tuple(grid), periodic, reach=5, steps=steps, tolerance=1e-14).eval()
    flat = torch.full((variables, variables, frames, *field.torus), 0.5)
    flat[range(variables), range(variables)] = 1.0
    flat = flat * torch.exp(-0.1 * torch.arange(frames))[:, None, None]
    field.set_covariance(factorise(tapered(flat, 1.0, (0.0, 0.0)), field))
    return field


def moving_covariance(field: LearntField, drift: Tensor) -> Tensor:
    """The moving covariance as a matrix: waves summed cell by cell, without any FFT."""
    variables, frames, rows, columns = field.shape
    factor = torch.view_as_complex(field.factor).to(torch.complex128).unflatten(1, (variables, frames))
    angle = -torch.arange(frames) * (wavenumbers(field.torus).double() @ drift.double())[:, None]
    factor = factor * torch.exp(1j * angle)[:, None, :, None]
    half = field.torus[1] // 2 + 1
    k = torch.cartesian_prod(torch.arange(field.torus[0]), torch.arange(half))
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    wave = torch.exp(2j * math.pi * (k[:, None] * cells / torch.tensor(field.torus).double()).sum(-1))
    # Half of the spectrum stands for all of it, but for the columns that are their own conjugates.
    own = (2 * k[:, 1] % field.torus[1]) == 0
    wave = wave * torch.where(own, 1.0, math.sqrt(2))[:, None] / math.sqrt(math.prod(field.torus))
    functions = torch.einsum("kcfr,ks->cfskr", factor, wave).flatten(3).flatten(0, 2)
    return (functions @ functions.mH).real


@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_the_posterior_mean_is_that_of_dense_algebra_with_the_moved_covariance(shape, periodic) -> None:
    field = small_field(shape, periodic)
    generator = seeded()
    drifts = torch.tensor([[0.3, -0.4], [-0.5, 0.2]])
    y, exponent = (torch.randn(2, *shape, generator=generator) for _ in range(2))
    context = torch.rand(2, *shape, generator=generator) < 0.5
    noise = 10 ** (3 * torch.sigmoid(2 * exponent) - 3)
    found = field.condition(y, context, noise, drifts)
    for b in range(2):
        dense, seen = moving_covariance(field, drifts[b]), context[b].flatten()
        system = dense[seen][:, seen] + torch.diag(noise[b].flatten()[seen] + field.nugget).double()
        exact = dense[:, seen] @ torch.linalg.solve(system, y[b].flatten()[seen].double())
        assert (found[b].flatten() - exact).abs().max() < 1e-4 * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize(("shape", "periodic"), SMALL, ids=str)
def test_no_drift_is_a_drift_of_zero(shape, periodic) -> None:
    field = small_field(shape, periodic)
    y = torch.randn(2, *shape, generator=seeded())
    context = torch.rand(2, *shape, generator=seeded(1)) < 0.5
    still = torch.zeros(2, 2)
    assert torch.allclose(field.condition(y, context, NONE), field.condition(y, context, NONE, still), atol=1e-5)
    drawn, same = (field.draw(2, seeded(), drift) for drift in (None, still))
    assert torch.allclose(drawn, same, atol=1e-5)


@pytest.mark.parametrize(("shape", "periodic"), SMALL[:1], ids=str)
def test_draws_have_the_posterior_covariance_of_the_moving_law(shape, periodic) -> None:
    field, drift, count = small_field(shape, periodic, steps=80), torch.tensor([[0.4, -0.5]]), 3000
    dense = moving_covariance(field, drift[0])
    observed = torch.rand(shape, generator=seeded(2)) < 0.3
    seen = observed.flatten()
    system = dense[seen][:, seen] + field.nugget.double() * torch.eye(int(seen.sum()))
    exact = (dense - dense[:, seen] @ torch.linalg.solve(system, dense[seen]))[~seen][:, ~seen]
    spread = ((exact**2 + exact.diagonal()[:, None] * exact.diagonal()) / count).sqrt()
    realised = field.realise(observed, count, seeded(), drift)
    zero, generator = torch.zeros(count, *shape), seeded(1)
    members = conditional(GaussianLaw(field, drift), zero, observed, field.nugget.expand(shape), generator)
    for drawn in (realised, members):
        assert (drawn[:, observed] == 0).all()
        hidden = drawn.flatten(1)[:, ~seen].double()
        error = (hidden.T @ hidden / count - exact) / spread
        assert error.abs().max() < 5.5 and error.square().mean() < 1.5


def test_what_leaves_on_one_side_does_not_come_back_on_the_other() -> None:
    """At the fastest drift that is allowed, the covariance is that on a torus with room for everything."""
    shape, reaches = (1, 4, 10, 12), (8, 40)
    fields = [LearntField(1, 4, (10, 12), (False, False), reach=reach) for reach in reaches]
    for field in fields:
        flat = torch.ones(1, 1, 4, *field.torus)
        field.set_covariance(factorise(tapered(flat, 1.0, (0.0, 0.0)), field))
    fastest = fastest_drift((10, 12), fields[0].torus, 4)
    assert min(fastest) > 1
    drift = torch.tensor([[fastest[0], -fastest[1]]])
    point = torch.zeros(1, *shape)
    point[0, 0, 0, 9, 0] = 1.0
    near, wide = (field.covary(point, phases(wavenumbers(field.torus), drift, 4)) for field in fields)
    assert wide.abs().max() > 0.5 and (near - wide).abs().max() < 0.01


def own_drifts(count: int, fastest: float) -> tuple[Crops, Tensor, Tensor, Tensor]:
    """Windows with a drift each, seen through 5 of 9 blocks; the truth, the masks and the drifts."""
    drifts = random_drifts(count, fastest)
    truth = moving_fields(drifts)
    observed = gaps("block", truth.shape)
    noise = LAW.noise_std * torch.randn(truth.shape, generator=seeded(5))
    crops = crops_of(simulated_dataset(LAW, truth + noise, observed), LAW.frames, 0.2, unit=True)
    return crops, truth, observed, drifts


def chain_of(common: LearntField) -> Chain:
    return Chain([Gaussian(common, BRIEF), Drift(common, search=BRIEF)])


def test_windows_with_a_drift_each_get_a_law_that_moves_and_comes_close_to_the_optimum() -> None:
    crops, truth, observed, drifts = own_drifts(60, 1.5)
    chain = chain_of(LearntField(1, LAW.frames, LAW.shape, (True, True)))
    found = chain.learn(lesson_of(crops))["drift"]
    assert found["used"] == 1 and found["validation"] < 0.7 * found["before"]
    x, seen = (torch.stack(part) for part in zip(*(crops.visible((b, 0, 0, 0)) for b in range(12))))
    mean = chain.answer(given_of(x, seen))
    exact = []
    for b in range(12):
        law = dataclasses.replace(LAW, velocity=tuple(drifts[b].tolist()))
        exact.append(law.posterior(x[b, 0].double(), seen[b, 0], variance=False)[0][None])
    hidden = ~observed[:12]
    error, least = ((v - truth[:12])[hidden].square().mean().item() for v in (mean, torch.stack(exact)))
    assert error < 1.4 * least
    alone = Chain([Gaussian(LearntField(1, LAW.frames, LAW.shape, (True, True)), BRIEF)])
    common = alone.learn(lesson_of(crops))
    assert set(common) == {"gaussian", "sources"}
    assert alone.source_errors(lesson_of(crops)).summary.mean == pytest.approx(common["gaussian"]["validation"])


def test_fields_that_stand_still_keep_one_law() -> None:
    crops, _, _, _ = own_drifts(40, 0.0)
    chain = chain_of(LearntField(1, LAW.frames, LAW.shape, (True, True)))
    assert chain.learn(lesson_of(crops))["drift"] == {"used": 0.0}
    batch = crops.training([crops.place(i) for i in range(3)])
    assert [len(claim.rows) for claim in chain.claims(given_of(batch.x, batch.observed))] == [3]


def chain_with_two_laws() -> tuple[Chain, LearntField, LearntField]:
    """A chain whose common field forgets and whose moving one does not, and both fields."""
    common, moving = (field_of(dataclasses.replace(LAW, memory=memory), steps=40) for memory in (0.3, LAW.memory))
    drift = Drift(common)
    drift.field = moving
    return Chain([Gaussian(common), drift]), common, moving


def test_each_window_of_a_batch_is_conditioned_by_its_own_law() -> None:
    chain, common, moving = chain_with_two_laws()
    x = moving_fields(torch.tensor([[0.6, 0.9], [0.0, 0.0], [-1.0, 0.3]]))
    mask = gaps("pixel", x.shape)
    drifts, clear = estimate_drift(x, mask, common.torus, fastest_drift(LAW.shape, common.torus, LAW.frames))
    assert clear.tolist() == [True, False, True]
    for noise in (NONE, torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1, 1, 1)):
        found = chain.answer(given_of(x, mask, noise))
        for b in range(3):
            law = chain.law(x[b], mask[b])
            assert isinstance(law, GaussianLaw) and law.field is (moving if clear[b] else common)
            own = drifts[b, None] if clear[b] else None
            assert own is None or torch.allclose(law.drift, own, atol=1e-5)
            expected = law.field.condition(x[b, None], mask[b, None], noise if noise.ndim == 0 else noise[b, None], own)
            assert torch.allclose(found[b], expected[0], atol=1e-4)


def test_a_reloaded_chain_moves_as_before_or_not_at_all() -> None:
    first, plain = chain_with_two_laws()[0], chain_of(field_of(LAW, steps=40))
    given = given_of(x := moving_fields(torch.tensor([[0.6, 0.9]])), gaps("pixel", x.shape))
    second = chain_of(LearntField(1, LAW.frames, LAW.shape, (True, True), steps=40, tolerance=1e-14)).eval()
    answers = []
    for chain in (first, plain, first):
        second.load_state_dict(chain.state_dict())
        assert torch.equal(second.answer(given), chain.answer(given))
        answers.append(second.answer(given))
    assert torch.equal(answers[0], answers[2]) and not torch.allclose(answers[0], answers[1], atol=1e-2)
