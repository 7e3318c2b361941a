"""Laws of the transforms: each is undone to what it was applied to."""

import numpy as np
import pytest

from fieldfill.data.transforms import Identity, Logarithm, Normaliser, ValueTransform, transform_of

RNG = np.random.default_rng(0)
VALUES = np.exp(RNG.standard_normal((3, 4, 5)))


@pytest.mark.parametrize("transform", [Identity(), Logarithm()], ids=["identity", "logarithm"])
def test_values_come_back(transform: ValueTransform) -> None:
    learnt = transform.apply(VALUES.copy())
    np.testing.assert_allclose(transform.undo(learnt), VALUES, rtol=1e-14)


@pytest.mark.parametrize("transform", [Identity(), Logarithm()], ids=["identity", "logarithm"])
def test_a_small_standard_deviation_is_stretched_like_the_values(transform: ValueTransform) -> None:
    learnt, std = transform.apply(VALUES.copy()), np.full(VALUES.shape, 1e-5)
    slope = (transform.undo(learnt + std) - transform.undo(learnt - std)) / (2 * std)
    np.testing.assert_allclose(transform.stretch(learnt, std) * np.ones_like(std), slope, rtol=1e-6)


def test_the_logarithm_is_taken_only_where_it_is_asked_for() -> None:
    values, where = np.where(VALUES > 1, VALUES, -1.0), VALUES > 1
    learnt = transform_of("chl", ("chl",)).apply(values.copy(), where)
    assert np.array_equal(learnt[where], np.log(VALUES[where])) and (learnt[~where] == -1).all()
    assert np.array_equal(transform_of("sst", ("chl",)).apply(values.copy(), where), values)


def test_normalised_values_come_back() -> None:
    normaliser = Normaliser(np.array([280.0, 1, -3]), np.array([5.0, 1, 2]))
    tensor = normaliser.to_tensor(VALUES[:, None])
    np.testing.assert_allclose(normaliser.to_values(tensor.numpy()), VALUES[:, None], atol=2e-5)
