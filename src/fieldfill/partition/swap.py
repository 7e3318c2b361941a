r"""Mask swap: contexts cut out by the masks of other windows of the same data set.

p_mask of a real data set is unknown, but its own windows are draws of it. Lay the mask M' of another window
over the observed cells M:

.. math:: ctx = M \wedge M', \qquad qry = M \wedge \neg M'

*Guarantee.* If M and M' are exchangeable, (M, M') and (M', M) have one law, and both give the same context.
Hence, given the context, a cell is observed in M alone as often as in M' alone:

.. math:: P(qry_i | ctx) = P(i \in M \setminus M' | ctx) = \tfrac12 P(i \in M \triangle M' | ctx)

so every cell outside the context that was seen by either of the two masks has positive exposure. A cell that
no mask of the data set ever sees has none.

*Union of donors.* One donor leaves the context much sparser than M (clouds that hide 60 % leave 16 % of the
grid, a 1 % pixel mask nothing at all). With U the union of donor masks, added one by one until a share r of M
is covered,

.. math:: ctx = M \wedge U, \qquad qry = M \wedge \neg U

keeps static or moving, common or separate structure of the masks because the donors have it, at any density:
for independent pixels it is the pixel partition. What it hides is what *all* donors hide, so the middle of
large gaps is queried rarely: part of the rows (``single``) therefore use one donor whatever its share. The
equality above is proved for one donor only; the exposure audit checks the union.

*Limits.* Masks that are identical everywhere cannot be split, nor can the smallest of nested masks. Where the
context betrays the whole geometry of both masks (swaths of a regular orbit), the cells that neither of them
sees have no exposure *for that context*: a fill there rests on the contexts whose donor does see the cell.
"""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError
from fieldfill.masks.mask_model import check_share, draw_share
from fieldfill.partition.protocol import Partition

__all__ = ["MaskSwap"]

# Entries of donor masks that are looked up at a time.
LOOK_UPS = 2**22


@dataclass(frozen=True, eq=False)
class MaskSwap(Partition):
    """Contexts cut out of M by masks of other windows; see the module's text for the law and its guarantee.

    Parameters
    ----------
    bank : Tensor
        Masks of the data set's own windows, (N, C, T, H, W) bool.
    keep : float, (lo, hi) or None
        Share r of M that the union of donors covers at least; a range gives every row its own r; None: one
        donor.
    single : float
        Probability that a row uses exactly one donor whatever its share (at least ``least``).
    least : float
        A single donor that covers less than this share of M is joined by others.
    tries : int
        Donors that would leave the query empty are redrawn this often; donors that add nothing, twenty times
        as often in a row. Then the row stays as it is; one without any usable donor is given up (query all
        False).

    Examples
    --------
    >>> import torch
    >>> from fieldfill.masks import CloudMask
    >>> bank = CloudMask(0.5).sample((20, 1, 4, 16, 16), torch.Generator().manual_seed(0))
    >>> context, query = MaskSwap(bank).split(bank[:5], torch.Generator().manual_seed(1))
    >>> torch.equal(context | query, bank[:5]), bool((context & query).any())
    (True, False)
    """

    bank: Tensor
    keep: float | tuple[float, float] | None = (0.5, 0.95)
    single: float = 0.5
    least: float = 0.05
    tries: int = 25
    _bank: Tensor = field(init=False, repr=False)
    _density: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.bank.ndim != 5 or self.bank.dtype != torch.bool or len(self.bank) < 2:
            shape = tuple(self.bank.shape)
            raise InputError(f"mask bank is {self.bank.dtype} {shape}: give at least 2 bool masks (N, C, T, H, W)")
        if self.keep is not None:
            check_share(self.keep, "keep")
        object.__setattr__(self, "_bank", _squeeze(self.bank))
        object.__setattr__(self, "_density", max(1e-3, int(self.bank.sum()) / self.bank.numel()))

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        context = self.draw(observed, None, generator)
        return context, observed & ~context

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        B = len(observed)
        if keep == 1:
            return observed.clone()
        if keep is not None:
            target, alone = torch.full((B,), keep), torch.zeros(B, dtype=torch.bool)
        elif self.keep is None:
            target, alone = torch.zeros(B), torch.ones(B, dtype=torch.bool)
        else:
            target = draw_share(self.keep, B, generator)
            alone = torch.rand(B, generator=generator) < self.single
        least = 0.0 if self.keep is None else self.least
        return self._cover(observed, torch.where(alone, least, target), generator)

    def _cover(self, observed: Tensor, target: Tensor, generator: Generator) -> Tensor:
        """M & U with U grown donor by donor until it covers the share ``target`` (B,) of M, and never all of
        it."""
        cells = _shrink(observed, self._bank)
        bank = (self._bank if cells.shape[1:] == self._bank.shape[1:] else self.bank).flatten(1)
        where, held = _lists(cells.flatten(1))
        covered = torch.zeros_like(held)
        total = held.sum(-1)
        goal = torch.maximum((target * total).ceil().long(), torch.ones_like(total))
        full, idle = torch.zeros((2, len(cells)), dtype=torch.long)
        rows = (total > 0).nonzero().squeeze(-1)
        while len(rows):
            count = max(1, min(64, round(1 / self._density), LOOK_UPS // (len(rows) * where.shape[1])))
            pick = torch.randint(len(bank), (len(rows), count, 1), generator=generator)
            donors = bank[pick, where[rows, None]] & held[rows, None]
            grown, completes = _grow(covered[rows], donors, goal[rows], total[rows])
            idle[rows] = torch.where((grown == covered[rows]).all(-1), idle[rows] + count, 0)
            full[rows] += completes.long()
            covered[rows] = grown
            unfinished = grown.sum(-1) < goal[rows]
            rows = rows[unfinished & (full[rows] < self.tries) & (idle[rows] < 20 * self.tries)]
        # Rows without a usable donor keep all they have: their query is empty.
        covered = torch.where(covered.any(-1, keepdim=True), covered, held)
        context = torch.zeros_like(cells)
        context[cells] = covered[held]
        return observed & context


def _grow(covered: Tensor, donors: Tensor, goal: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Adds the donors (B, J, n) one by one to ``covered`` (B, n) until the ``goal`` (B,) of cells is reached.

    Stops before the donor that would cover all cells; returns the new cover and whether that happened (B,).
    """
    steps = torch.cat([covered[:, None], donors], 1).long().cumsum(1) > 0
    count = steps.sum(-1)
    enough = (count >= goal[:, None]).long()
    last = torch.where(enough.any(-1), enough.argmax(-1), count.shape[1] - 1)
    completes = count.gather(1, last[:, None]).squeeze(1) == total
    incomplete = (count < total[:, None]).sum(-1) - 1
    last = torch.where(completes, incomplete, last)
    return steps[torch.arange(len(steps)), last], completes


def _lists(cells: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the True cells of each row (B, n), padded at the end, and which entries are real (B, n)."""
    row, cell = cells.nonzero(as_tuple=True)
    position = (cells.long().cumsum(-1) - 1)[row, cell]
    n = int(cells.sum(-1).max().clamp(min=1))
    where = torch.zeros((len(cells), n), dtype=torch.long).index_put_((row, position), cell)
    held = torch.zeros((len(cells), n), dtype=torch.bool).index_put_((row, position), torch.tensor(True))
    return where, held


def _squeeze(bank: Tensor) -> Tensor:
    """The bank with one frame if all its masks are static, one variable if all are shared: up to C * T less
    work."""
    if bool((bank == bank[:, :, :1]).all()):
        bank = bank[:, :, :1]
    if bool((bank == bank[:, :1]).all()):
        bank = bank[:, :1]
    return bank.contiguous()


def _shrink(observed: Tensor, bank: Tensor) -> Tensor:
    """M with one frame or variable where the bank has one and M is constant along it too."""
    for dim in (1, 2):
        first = observed.narrow(dim, 0, 1)
        if bank.shape[dim] == 1 and bool((observed == first).all()):
            observed = first
    return observed
