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
            return torch.stack([self.draw(observed, keep, generator) for _ in range(count)])
        return self.balance(observed, count, keep, generator)

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        """All distinct contexts (K, B, C, T, H, W) with K <= count, or None when there are too many to
        list."""
        return None

    def balance(self, observed: Tensor, count: int, keep: float | None, generator: Generator) -> Tensor:
        """Contexts that leave every observed cell out about equally often, (K, B, C, T, H, W).

        Greedy: of a few random contexts the one that hides the cells hidden least so far is taken next.
        """
        hidden = torch.zeros(observed.shape)
        chosen = []
        for _ in range(count):
            trials = torch.stack([self.draw(observed, keep, generator) for _ in range(4)])
            left_out = observed & ~trials
            # Mean number of earlier omissions of the cells that a trial leaves out.
            size = left_out.flatten(2).sum(-1).clamp(min=1)
            price = (left_out * hidden).flatten(2).sum(-1) / size
            best = trials[price.argmin(0), torch.arange(len(observed))]
            hidden += observed & ~best
            chosen.append(best)
        return torch.stack(chosen)
