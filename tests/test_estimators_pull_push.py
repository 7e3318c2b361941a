"""Pull–push interpolation: what it keeps, what it makes of nothing, and the sums that it is made of."""

import pytest
import torch

from conftest import draw, given_of, seeded
from fieldfill.estimators.pull_push import Interpolation, pull


@pytest.mark.parametrize("frames", [True, False])
def test_it_keeps_context_values_and_reproduces_constants(frames) -> None:
    generator = seeded()
    x = torch.randn(2, 2, 5, 11, 9, generator=generator)
    context = torch.rand(x.shape, generator=generator) < 0.3
    filled = Interpolation(frames).mean(given_of(x * context, context))
    assert torch.allclose(filled[context], x[context], atol=1e-5)
    constant = Interpolation(frames).mean(given_of(3.0 * context, context))
    assert torch.allclose(constant, torch.full_like(x, 3.0), atol=1e-5)


def test_nothing_gives_zero() -> None:
    x = torch.zeros(1, 1, 3, 8, 8)
    assert torch.equal(Interpolation().mean(given_of(x, x.bool())), x)


def test_noise_shrinks_the_answer_as_it_shrinks_data_of_unit_variance() -> None:
    x = draw(1, 1, 3, 8, 8)
    clear, noisy = (Interpolation().mean(given_of(x, x > 0, noise)) for noise in (0.0, 3.0))
    assert torch.allclose(noisy, clear / 4)


def test_sums_are_the_transpose_of_repeating_coarse_cells() -> None:
    fine, size = draw(2, 1, 5, 7, 9), (2, 3, 4)
    coarse = draw(*pull(fine, size).shape, seed=1)
    repeated = coarse
    for axis, (step, length) in enumerate(zip(size, fine.shape[2:]), start=2):
        repeated = repeated.repeat_interleave(step, axis).narrow(axis, 0, length)
    assert torch.allclose((pull(fine, size) * coarse).sum(), (fine * repeated).sum(), atol=1e-4)
