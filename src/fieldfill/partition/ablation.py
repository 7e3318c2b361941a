"""The partitions of two earlier methods, which Theorem 1 finds wanting: MissDiff and AmbientDiff."""

from dataclasses import dataclass, field

from torch import Generator, Tensor

from fieldfill.partition.protocol import Partition
from fieldfill.partition.structures import PixelPartition

__all__ = ["AllObserved", "HideMore"]


@dataclass(frozen=True)
class AllObserved(Partition):
    """MissDiff: context = query = M. Missing cells are outside the context and never in the query: exposure 0.

    It has one context, all observed cells, whatever share is asked for.
    """

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return observed.clone(), observed.clone()

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        return observed.clone()

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        return observed[None].clone()


@dataclass(frozen=True)
class HideMore(Partition):
    """AmbientDiff: the context is a random subset of M, the query all of M.

    ``keep`` is the share of M in the context, None what ``structure`` does in training;
    ``structure`` defines what is hidden together.
    """

    keep: float | None = None
    structure: Partition = field(default_factory=PixelPartition)

    def split(self, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        return self.structure.draw(observed, self.keep, generator), observed.clone()

    def draw(self, observed: Tensor, keep: float | None, generator: Generator) -> Tensor:
        return self.structure.draw(observed, self.keep if keep is None else keep, generator)

    def enumerate(self, observed: Tensor, count: int, keep: float | None) -> Tensor | None:
        return self.structure.enumerate(observed, count, self.keep if keep is None else keep)

    def balance(self, observed: Tensor, count: int, keep: float | None, generator: Generator) -> Tensor:
        return self.structure.balance(observed, count, self.keep if keep is None else keep, generator)
