"""Windows that obey linear equations of their own: finding these, conditioning by them, and choosing to do so."""

import math

import pytest
import torch
from torch import Tensor

from conftest import BRIEF, crops_of, draw, given_of, lesson_of, seeded, simulated_dataset
from fieldfill.data.crops import Crops
from fieldfill.estimators.chain import Chain
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.propagator import NEIGHBOURS, Equations, WaveLaw, WindowEquations
from fieldfill.estimators.waves import Waves
from fieldfill.sampling.solvers import conditional
from fieldfill.simulate import ShallowWater

NONE = torch.zeros(())
SHAPE = (2, 5, 9, 10)


def evolve(first: Tensor, stencil: Tensor, frames: int) -> Tensor:
    """Frames (C, T, H, W) that follow a first one (C, H, W) by matrices (9, C, C) from neighbour to cell."""
    out = [first]
    for _ in range(frames - 1):
        moved = [
            torch.einsum("ihw,io->ohw", torch.roll(out[-1], (-row, -column), (1, 2)), weights)
            for (row, column), weights in zip(NEIGHBOURS, stencil)
        ]
        out.append(torch.stack(moved).sum(0))
    return torch.stack(out, 1)


def turning(seed: int = 0) -> Tensor:
    """Equations (9, 2, 2) that turn one variable into the other and damp: their eigenvalues lie inside of the unit."""
    generator = seeded(seed)
    stencil = 0.02 * torch.randn(9, 2, 2, generator=generator)
    stencil[4] += 0.7 * torch.tensor([[0.9, 0.3], [-0.3, 0.9]])
    return stencil


def law_of_frames(seed: int = 1) -> Equations:
    """A law with a random covariance of the first frame."""
    law = Equations(SHAPE, SHAPE[2:]).eval()
    kernel = torch.randn(2, 2, *SHAPE[2:], generator=seeded(seed))
    spectrum = torch.fft.rfft2(kernel).flatten(2).permute(2, 0, 1)
    law.set_covariance(spectrum @ spectrum.mH / 20)
    return law


def window(seed: int = 2) -> tuple[Tensor, Tensor]:
    """A window (1, C, T, H, W) that obeys equations, and a mask with a hole."""
    first = torch.randn(2, *SHAPE[2:], generator=seeded(seed))
    observed = torch.ones(1, *SHAPE, dtype=torch.bool)
    observed[..., 1:3, 2:4] = False
    return evolve(first, turning(), SHAPE[1])[None], observed


def matrix_of(law: Equations, own: WindowEquations) -> Tensor:
    """Q (cells of the window, unknowns) by applying it to unit vectors."""
    unknowns = SHAPE[0] * SHAPE[2] * SHAPE[3]
    units = torch.eye(unknowns).view(unknowns, SHAPE[0], *SHAPE[2:])
    modes = torch.fft.rfft2(units).flatten(2).permute(2, 1, 0)
    spectra = own.steps[0] @ torch.view_as_complex(law.root) @ modes
    fields = torch.fft.irfft2(spectra.permute(2, 1, 0).unflatten(2, (SHAPE[2], -1)), s=SHAPE[2:])
    return fields.flatten(1).T


def test_the_equations_of_a_window_are_found_around_its_gaps() -> None:
    x, observed = window()
    law = law_of_frames()
    own, clear = law.estimate(x, observed, NONE)
    assert clear.item()
    one = own.steps.view(-1, 2, SHAPE[1], 2)[:, :, 1]
    amplitude = own.amplitude.flatten()
    kernel = torch.zeros(2, 2, *SHAPE[2:])
    for (row, column), weights in zip(NEIGHBOURS, turning()):
        kernel[..., -row % SHAPE[2], -column % SHAPE[3]] += weights.T * amplitude / amplitude[:, None]
    assert torch.allclose(one, torch.fft.rfft2(kernel).flatten(2).permute(2, 0, 1), atol=1e-3)


def test_noise_that_is_known_does_not_damp_the_equations() -> None:
    first = torch.randn(2, 100, 101, generator=seeded(2))
    x = evolve(first, turning() / 0.75, 5)[None]
    y = x + 0.06 * torch.randn(x.shape, generator=seeded(3))
    law = Equations((2, 5, 100, 101), (100, 101))
    everywhere = torch.ones_like(x, dtype=torch.bool)
    exact, blind, aware = (
        law.estimate(value, everywhere, noise)[0].steps.view(-1, 2, 5, 2)[:, :, 1]
        for value, noise in ((x, NONE), (y, NONE), (y, torch.tensor(0.06**2)))
    )
    assert (aware - exact).abs().mean() < 0.5 * (blind - exact).abs().mean()


def test_equations_hold_whatever_the_units_of_cells_and_windows() -> None:
    """A map of the normaliser and an amplitude change nothing but the units of the answer."""
    x, observed = window()
    plain, mapped = law_of_frames(), law_of_frames()
    mapped.unit.copy_(0.5 + torch.rand(mapped.unit.shape, generator=seeded(3)))
    expected = plain.condition(x, observed, NONE, plain.estimate(x, observed, NONE)[0])
    y = 7 * x / mapped.unit
    found = mapped.condition(y, observed, NONE, mapped.estimate(y, observed, NONE)[0])
    assert torch.allclose(found * mapped.unit / 7, expected, atol=1e-3)
    assert not torch.allclose(
        plain.condition(y, observed, NONE, plain.estimate(x, observed, NONE)[0]) / 7, expected, atol=0.1
    )


def test_the_mean_is_that_of_the_dense_equations() -> None:
    """For noise that differs from cell to cell, against a matrix of all cells."""
    x, observed = window()
    law = law_of_frames()
    own, _ = law.estimate(x, observed, NONE)
    noise = 0.2 * torch.rand(x.shape, generator=seeded(4))
    q = matrix_of(law, own).double()
    unit = (own.amplitude / law.unit).expand_as(x).flatten()
    scaled = unit[:, None].double() * q
    error = (noise + law.error_of(own)).expand_as(x).flatten().double()
    seen = observed.flatten()
    rows = scaled[seen]
    gain = scaled @ rows.T @ torch.linalg.inv(rows @ rows.T + torch.diag(error[seen]))
    expected = gain @ x.flatten()[seen].double()
    found = law.condition(x, observed, noise, own).flatten().double()
    assert torch.allclose(found, expected, atol=1e-3 * expected.abs().max())


def test_draws_have_the_covariance_of_the_law_and_agree_with_what_is_known() -> None:
    x, observed = window()
    law = law_of_frames()
    own, _ = law.estimate(x, observed, NONE)
    q = matrix_of(law, own) * (own.amplitude / law.unit).expand_as(x).flatten()[:, None]
    drawn = law.draw(4000, seeded(5), own).flatten(1)
    expected = q @ q.T
    assert (drawn.T @ drawn / len(drawn) - expected).abs().max() < 0.1 * expected.diagonal().max()
    error = law.error_of(own).expand_as(x)[0]
    r = conditional(WaveLaw(law, own), torch.zeros(2000, *SHAPE), observed[0], error, seeded(6))
    assert (r[:, observed[0]] == 0).all()
    seen = observed.flatten()
    rows = q[seen]
    gain = q @ rows.T @ torch.linalg.inv(rows @ rows.T + torch.diag(error.flatten()[seen]))
    posterior = (expected - gain @ rows @ q.T).diagonal()[~seen]
    assert torch.allclose(r[:, ~observed[0]].square().mean(0), posterior, rtol=0.2)


def test_completed_windows_scatter_around_the_mean() -> None:
    x, observed = window()
    law = law_of_frames()
    own, _ = law.estimate(x, observed, NONE)
    many = x.expand(1000, -1, -1, -1, -1)
    drawn = law.complete(many, observed.expand_as(many), seeded(10), own)
    expected = (law.condition(x, observed, NONE, own) * law.unit / own.amplitude)[0]
    error = (drawn.mean(0) - expected) / drawn.std(0)
    assert error.abs().max() < 5 / math.sqrt(len(many))


def test_noisy_equations_must_be_many() -> None:
    first = torch.randn(2, *SHAPE[2:], generator=seeded(2))
    law, x = law_of_frames(), evolve(first, turning() / 0.75, SHAPE[1])[None]
    observed = torch.ones_like(x, dtype=torch.bool)
    y = x + 0.1 * torch.randn(x.shape, generator=seeded(3))
    assert law.estimate(x, observed, NONE)[1].all()
    assert not law.estimate(y, observed, torch.tensor(0.1**2))[1].any()


@pytest.mark.parametrize("what", ["noise", "still", "few"])
def test_windows_without_clear_equations_say_so(what) -> None:
    x, observed = window()
    if what == "noise":
        x = torch.randn(x.shape, generator=seeded(7))
    elif what == "still":
        x = x[:, :, :1].expand_as(x)
    else:
        observed = torch.rand(x.shape, generator=seeded(8)) < 0.3
    assert not law_of_frames().estimate(x, observed, NONE)[1].any()


def test_what_would_grow_stays() -> None:
    """Equations whose waves grow: the frames of the law do not."""
    grows = turning() * (1.1 / 0.7)
    first = torch.randn(2, *SHAPE[2:], generator=seeded(9))
    x = evolve(first, grows, SHAPE[1])[None]
    own, clear = law_of_frames().estimate(x, torch.ones_like(x, dtype=torch.bool), NONE)
    assert clear.item()
    one = own.steps.view(-1, 2, SHAPE[1], 2)[:, :, 1]
    assert torch.linalg.eigvals(one).abs().max() < 1.0001
    assert x[0, :, -1].norm() > 1.1 * x[0, :, 0].norm()


def waves(count: int = 40, noise: bool = False) -> tuple[Crops, Tensor, Tensor]:
    """Shallow water, each sample with a depth and rotation of its own, behind one of nine blocks; truth and masks.

    With ``noise`` the values are white noise instead.
    """
    law = ShallowWater(size=12, frames=8)
    truth = law.simulate(count, seeded())[0].float()
    truth = draw(*truth.shape, seed=2) if noise else truth / truth.std((0, 2, 3, 4), keepdim=True)
    hidden = torch.rand(count, 9, generator=seeded(1)).argmax(1)
    blocks = (torch.arange(9).expand(count, 9) != hidden[:, None]).view(count, 1, 1, 3, 3)
    observed = blocks.repeat_interleave(4, 3).repeat_interleave(4, 4).expand(truth.shape)
    return crops_of(simulated_dataset(law, truth, observed), 8, 0.2, unit=True), truth, observed


def chain_of_waves() -> Chain:
    common = LearntField(3, 8, (12, 12), (True, True))
    return Chain([Gaussian(common, BRIEF), Waves(common)])


def test_waves_get_a_law_of_their_own_that_knows_more_than_a_covariance() -> None:
    crops, truth, observed = waves()
    chain = chain_of_waves()
    assert chain.learn(lesson_of(crops))["waves"]["used"] == 1
    x, seen = (torch.stack(part) for part in zip(*(crops.visible((b, 0, 0, 0)) for b in range(10))))
    assert isinstance(chain.law(x[0], seen[0]), WaveLaw)
    common = Chain([chain.steps["gaussian"]])

    def error(of: Chain) -> float:
        return (of.answer(given_of(x, seen)) - truth[:10])[~observed[:10]].square().mean().item()

    assert error(chain) < 0.5 * error(common)
    again = chain_of_waves().eval()
    again.load_state_dict(chain.state_dict())
    assert torch.equal(again.answer(given_of(x, seen)), chain.answer(given_of(x, seen)))
    loud = given_of(x, seen, torch.full((10, 1, 1, 1, 1), 0.5))
    assert torch.equal(chain.answer(loud), common.answer(loud))  # too noisy to tell equations


def test_a_record_of_noise_gets_no_such_law() -> None:
    crops, _, _ = waves(24, noise=True)
    x, observed = crops.at((3, 0, 0, 0))
    assert x[observed].std() > 0.9
    chain = chain_of_waves()
    assert chain.learn(lesson_of(crops))["waves"] == {"used": 0.0}
    assert not isinstance(chain.law(*crops.visible((0, 0, 0, 0))), WaveLaw)
