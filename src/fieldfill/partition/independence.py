r"""Do the gaps depend on the field? A permutation test on the gappy data themselves.

The method assumes that masks are independent of the field (that clouds do not prefer cold water). Values
under the gaps are unknown, but a dependence shows at their rim: let :math:`g_i(M)` be the *cloudiness* of
cell i under the mask M, the share of hidden domain cells around it in space and time. Take windows n and m
and the cells that both observe:

.. math:: D_{nm} = \sum_{i \in M_n \cap M_m} (x_{n,i} - x_{m,i}) \, (g_i(M_n) - g_i(M_m))

If masks do not depend on the field and windows are exchangeable, swapping the two masks changes nothing but
the sign of D. So the windows are paired, the sum of all D is compared with its values under random swaps, and
the test is exact whatever the laws of field and masks. Differences of two windows also remove the mean of
each place. Neighbouring pairs are alike in a time series: runs of consecutive pairs are swapped together,
with a pair left out between runs.

The two windows of a pair lie half a record apart. A season that moves both the field and the cloud cover is a
dependence for this test, as it is for the method.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["IndependenceResult", "cloudiness", "test_independence"]


@dataclass(frozen=True)
class IndependenceResult:
    """Outcome of :func:`test_independence`.

    ``p_value``: of the strongest variable, corrected for the number of variables. ``effect``: its correlation
    of anomaly and cloudiness; positive: high values near gaps. ``variable``: its number. ``blocks``: number
    of runs of pairs that were swapped independently.
    """

    p_value: float
    effect: float
    variable: int
    blocks: int

    def words(self, name: str) -> str:
        """One sentence for the user about the variable called ``name``."""
        if self.p_value > 0.05:
            return f"No sign that the gaps depend on the field (p = {self.p_value:.2g})."
        side = "high" if self.effect > 0 else "low"
        return (
            f"The gaps seem to depend on the field: {side} values of {name} lie near gaps "
            f"(correlation {self.effect:+.2f}, p = {self.p_value:.2g}); fills may be biased the other way."
        )


def cloudiness(observed: Tensor, domain: Tensor, size: int = 7) -> Tensor:
    """Share of hidden domain cells in a box of ``size`` cells and three frames, (N, C, T, H, W) float32."""
    N, C, T, H, W = observed.shape
    ground = domain[None, :, None].expand(N, C, T, H, W)
    hidden = ground & ~observed
    box = (min(3, T - 1 + T % 2), size, size)
    pad = tuple(b // 2 for b in box)
    maps = torch.stack([hidden, ground], 1).float().flatten(1, 2)
    # The box filter is separable: three short averages instead of one long one.
    for d in range(3):
        kernel = [1, 1, 1]
        kernel[d] = box[d]
        margin = [0, 0, 0]
        margin[d] = pad[d]
        maps = F.avg_pool3d(maps, kernel, stride=1, padding=margin)
    maps = maps.unflatten(1, (2, C))
    return maps[:, 0] / maps[:, 1].clamp(min=1e-6)


def test_independence(
    values: Tensor,
    observed: Tensor,
    domain: Tensor,
    generator: Generator,
    permutations: int = 999,
    blocks: int = 10,
) -> IndependenceResult:
    """Tests whether masks depend on the field.

    Parameters
    ----------
    values : Tensor
        (N, C, T, H, W), 0 where missing, windows in time order.
    observed : Tensor
        (N, C, T, H, W) bool.
    domain : Tensor
        (C, H, W) bool.
    permutations : int
        Number of random swaps; the smallest p-value is 1 / (permutations + 1).
    blocks : int
        Most runs of pairs (of at least three where possible) swapped independently; fewer are safer for
        slowly varying records.
    """
    pairs = len(values) // 2
    if pairs < 5:
        raise InputError(f"{len(values)} windows: the test needs at least 10; use shorter windows")
    terms, norm = _pair_terms(values, observed, domain, pairs)
    blocks = max(5, min(blocks, pairs // 3))
    run = torch.arange(pairs) * blocks // pairs
    # The first pair of a run is left out: it is like the last of the run before it.
    inner = torch.cat([torch.tensor([False]), run[1:] == run[:-1]]) | (pairs < 3 * blocks)
    sums = torch.zeros((blocks, terms.shape[1]), dtype=torch.float64).index_add_(0, run[inner], terms[inner])
    sign = torch.randint(2, (permutations, blocks), generator=generator).double() * 2 - 1
    # Each variable in units of its own spread under swaps, so that the largest of them can be compared.
    spread = sums.square().sum(0).sqrt().clamp(min=1e-300)
    statistic = (sums.sum(0) / spread).abs()
    null = (sign @ sums / spread).abs().amax(-1)
    strongest = int(statistic.argmax())
    p = (1 + int((null >= statistic[strongest] * (1 - 1e-12)).sum())) / (permutations + 1)
    return IndependenceResult(p, float(terms[:, strongest].sum() / norm[strongest]), strongest, blocks)


def _pair_terms(values: Tensor, observed: Tensor, domain: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """D of every pair and variable (pairs, C), and the product of norms that makes their sum a correlation
    (C,)."""
    terms, squares = [], torch.zeros((2, values.shape[1]), dtype=torch.float64)
    for n in torch.arange(pairs).split(16):
        m = n + pairs
        both = observed[n] & observed[m]
        count = both.flatten(2).sum(-1)
        dx = ((values[n] - values[m]) * both).double()
        dg = ((cloudiness(observed[n], domain) - cloudiness(observed[m], domain)) * both).double()
        # A pair with few common cells has few terms: its D is small by itself.
        terms.append((dx * dg).flatten(2).sum(-1) * (count > 0))
        squares += torch.stack([d.square().sum((0, 2, 3, 4)) for d in (dx, dg)])
    return torch.cat(terms), squares.prod(0).sqrt().clamp(min=1e-300)


test_independence.__test__ = False  # type: ignore[attr-defined]  # a test of data, not of this package
