"""Side inputs: variables that are always shown and never asked for.

A variable whose mask is the same in every window – most often a complete one, such as wind from a reanalysis beside a
cloudy satellite image – has no gap that could be learnt. Hiding parts of it would only take information away, so it
stays in every context, and the other variables are split as if it were not there.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.partition.protocol import Partition

__all__ = ["WithSideInputs", "varying_variables"]


def varying_variables(bank: Tensor) -> Tensor:
    """Which variables of a bank of masks (N, C, T, H, W) have gaps that differ between windows, bool (C,).

    If none has, all are called varying: there is nothing to set apart.
    """
    varying = (bank != bank[:1]).transpose(0, 1).flatten(1).any(1)
    return varying if varying.any() else torch.ones_like(varying)


@dataclass(frozen=True, eq=False)
class WithSideInputs(Partition):
    """A partition of the variables ``varying`` (C,) bool; all others are context wherever they are observed."""

    inner: Partition
    varying: Tensor

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        context, query = observed.clone(), torch.zeros_like(observed)
        context[:, self.varying], query[:, self.varying] = self.inner.split(observed[:, self.varying], generator)
        return context, query

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        context = observed.clone()
        context[:, self.varying] = self.inner.draw(observed[:, self.varying], keep, generator)
        return context

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        found = self.inner.enumerate(observed[:, self.varying], count, keep)
        return None if found is None else self._beside(observed, found)

    def balance(self, observed: Tensor, count: int, keep: float | None, generator: Generator) -> Tensor:
        return self._beside(observed, self.inner.balance(observed[:, self.varying], count, keep, generator))

    def _beside(self, observed: Tensor, contexts: Tensor) -> Tensor:
        """Contexts (K, B, C', T, H, W) of the varying variables with the side inputs beside them."""
        whole = observed.expand(len(contexts), *observed.shape).clone()
        whole[:, :, self.varying] = contexts
        return whole
