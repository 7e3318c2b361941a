"""Laws of the test whether gaps depend on the field."""

import pytest
import torch
from torch import Generator, Tensor

from conftest import seeded
from fieldfill.errors import InputError
from fieldfill.masks import CloudMask
from fieldfill.partition.independence import cloudiness
from fieldfill.partition.independence import test_independence as independence

DOMAIN = torch.ones((2, 12, 12), dtype=torch.bool)


def data(rho: float, generator: Generator, windows: int = 30) -> tuple[Tensor, Tensor]:
    """Two variables; only the second has gaps that follow a field with correlation ``rho`` to it."""
    shape = (2 * windows, 1, 2, 12, 12)
    x = CloudMask(scale=2.0).field(shape, generator).unflatten(0, (windows, 2))
    e = CloudMask(scale=2.0).field(shape, generator).unflatten(0, (windows, 2))
    rho_by_variable = torch.tensor([0.0, rho]).view(1, 2, 1, 1, 1)
    observed = rho_by_variable * x + (1 - rho_by_variable**2).sqrt() * e < 0.2
    return x * observed, observed


def test_independent_gaps_raise_few_alarms() -> None:
    g = seeded(1)
    alarms = sum(independence(*data(0.0, g), DOMAIN, g, 199).p_value <= 0.05 for _ in range(80))
    assert alarms <= 10


@pytest.mark.parametrize("sign", [1, -1])
def test_gaps_that_follow_the_field_are_found_with_their_variable_and_sign(sign: int) -> None:
    g = seeded(2)
    values, observed = data(0.7, g, windows=80)
    result = independence(sign * values, observed, DOMAIN, g)
    assert result.p_value <= 0.02 and result.variable == 1 and result.effect * sign > 0.1
    assert ("high" if sign > 0 else "low") in result.words("sst")


def test_the_mean_of_a_place_and_land_do_not_matter() -> None:
    values, observed = data(0.5, seeded(3), windows=40)
    before = independence(values, observed, DOMAIN, seeded())
    place = torch.randn((2, 1, 12, 12), generator=seeded(4)) * 10
    after = independence((values + place) * observed, observed, DOMAIN, seeded())
    assert after.p_value == before.p_value and after.effect == pytest.approx(before.effect, abs=1e-4)
    domain = DOMAIN.clone()
    domain[:, :, 6:] = False
    land = observed & domain[:, None]
    assert independence(values * land, land, domain, seeded()).p_value <= 1


def test_swapping_the_masks_of_all_pairs_only_turns_the_sign() -> None:
    """The symmetry on which the test rests, with complete fields so that any mask can be laid over them."""
    g = seeded(5)
    x = CloudMask(scale=2.0).field((40, 1, 2, 12, 12), g).unsqueeze(1).expand(-1, 2, -1, -1, -1)
    mask = CloudMask(0.6, scale=2.0).sample((40, 2, 2, 12, 12), g)
    swapped = mask.roll(20, 0)
    first = independence(x * mask, mask, DOMAIN, seeded())
    second = independence(x * swapped, swapped, DOMAIN, seeded())
    assert first.effect == pytest.approx(-second.effect, abs=1e-6) and first.p_value == second.p_value


def test_cloudiness_is_the_hidden_share_of_the_domain_nearby() -> None:
    observed = torch.ones((1, 1, 3, 9, 9), dtype=torch.bool)
    observed[0, 0, :, 4, 4] = False
    domain = torch.ones((1, 9, 9), dtype=torch.bool)
    g = cloudiness(observed, domain, size=3)
    assert g[0, 0, 1, 4, 4].item() == pytest.approx(1 / 9) and g[0, 0, 1, 4, 6] == 0
    domain[0, :, 5:] = False
    assert cloudiness(observed & domain[None, :, None], domain, size=3)[0, 0, 1, 4, 4].item() == pytest.approx(1 / 6)


def test_one_seed_gives_one_result_and_few_windows_are_refused() -> None:
    values, observed = data(0.3, seeded(6))
    assert independence(values, observed, DOMAIN, seeded(1)) == independence(values, observed, DOMAIN, seeded(1))
    with pytest.raises(InputError, match="shorter windows"):
        independence(values[:8], observed[:8], DOMAIN, seeded())
