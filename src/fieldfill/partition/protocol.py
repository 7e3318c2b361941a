"""What every partition is, and the designs of context sets for inference.

``observed`` is M, (B, C, T, H, W) bool. ``context, query`` are subsets of M of the same shape. A row is one
sample.
"""

import abc

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["DESIGNS", "Partition"]

DESIGNS = ("random", "balanced", "enumerated")
# Random contexts that are drawn for each one of a balanced set, if they fit into `CANDIDATE_CELLS`.
CANDIDATES = 8
# Cells of all these contexts at most.
CANDIDATE_CELLS = 2**25


class Partition(abc.ABC):
    """A law of (context, query) given the observed cells."""

    @abc.abstractmethod
    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws one (context, query) per row, both (B, C, T, H, W) and inside ``observed``.

        A row that cannot be split has an all-False query and its observed cells as context: the caller skips
        and counts it.
        """

    @abc.abstractmethod
    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        """Draws one context per row (B, C, T, H, W).

        ``keep`` is the target share of the observed cells in the context; None draws as in training. A row
        that cannot be split keeps all its observed cells.
        """

    def contexts(
        self,
        observed: Tensor,
        count: int,
        generator: Generator,
        keep: float | None = None,
        design: str = "random",
    ) -> Tensor:
        """Contexts for inference, drawn like the training contexts, shape (K, B, C, T, H, W).

        Parameters
        ----------
        count : int
            Number of contexts K. The enumerated design returns fewer when fewer distinct ones exist.
        keep : float or None
            Target share of the observed cells in each context; None: as in training.
        design : str
            ``random``: independent draws. ``balanced``: every observed cell is left out equally often (to
            one, as far as the structure allows), which cuts the 1/K term of the error. ``enumerated``: every
            distinct context of every row equally often, where that takes at most ``count`` contexts;
            otherwise balanced.
        """
        if count < 1 or design not in DESIGNS or not (keep is None or 0 < keep <= 1):
            raise InputError(
                f"contexts: count {count}, keep {keep}, design '{design}': "
                f"give count >= 1, keep in (0, 1] or None, design one of {', '.join(DESIGNS)}"
            )
        if design == "enumerated":
            found = self.enumerate(observed, count, keep)
            if found is not None:
                return found
        if design == "random":
            return self.draw(observed.repeat(count, 1, 1, 1, 1), keep, generator).view(count, *observed.shape)
        return self.balance(observed, count, keep, generator)

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        """All distinct contexts (K, B, C, T, H, W) with K <= count, or None when there are too many to
        list."""
        return None

    def balance(self, observed: Tensor, count: int, keep: float | None, generator: Generator) -> Tensor:
        """Contexts that leave every observed cell out about equally often, (K, B, C, T, H, W).

        A pool of random contexts gives their sizes, spread evenly over its own; each of these contexts is then
        exchanged for another one of the pool that leaves out about as many cells and makes the set more even.
        """
        rows, cells = len(observed), observed[0].numel()
        pool = max(count, min(CANDIDATES * count, CANDIDATE_CELLS // (rows * cells)))
        trials = self.draw(observed.repeat(pool, 1, 1, 1, 1), keep, generator).view(pool, *observed.shape)
        left_out = (observed & ~trials).flatten(2)
        live = observed.flatten(1).sum(1).tolist()
        chosen = torch.stack([_even_choice(left_out[:, b], live[b], count, generator) for b in range(rows)])
        return torch.stack([trials[chosen[:, k], torch.arange(rows)] for k in range(count)])


def _even_choice(
    left_out: Tensor, cells: int, count: int, generator: Generator, alike: float = 0.2, slack: float = 0.05
) -> Tensor:
    """Numbers (count,) of rows of ``left_out`` (P, n) bool that together leave the cells out evenly.

    Contexts that leave out much err more, so balance must not change how many there are: the set begins with one row
    of each ``count``-th part of the sizes, and a row gives way only to one of about its size. With T omissions in
    total and Q the sum over cells of squared omissions, their variance over the cells is (Q - T²/n)/n; it is compared
    with that of as many random omissions, T(1 - T/(K n))/n, so that small ones are not preferred. Where contexts
    share no omissions the larger of these are more even by a little. That is no reason to leave out the same cells
    always, so the first of those that are about as good as the best is taken.

    Sizes count as equal up to the relative difference ``alike``, and unevenness, which is 1 for random sets, up to
    the difference ``slack``.
    """
    flat = left_out.float()
    common, size = flat @ flat.T, flat.sum(1)
    quantiles = (torch.arange(count) + torch.rand((), generator=generator)) / count
    chosen = size.argsort(stable=True)[(quantiles * len(size)).long()]
    fits = (size - size[chosen, None]).abs() <= alike * size[chosen, None]
    for k in [*range(count), *range(count)]:
        others = torch.cat([chosen[:k], chosen[k + 1 :]])
        total = size[others].sum() + size
        squares = common[others][:, others].sum() + 2 * common[others].sum(0) + size
        random = total * (1 - total / (count * max(cells, 1)))
        unevenness = (squares - total**2 / max(cells, 1)) / random.clamp(min=1e-6)
        unevenness = unevenness.masked_fill(~fits[k], torch.inf)
        chosen[k] = (unevenness <= unevenness.min() + slack).nonzero()[0]
    return chosen
