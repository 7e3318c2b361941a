"""The processes that train one model together, as training sees them; here there is one."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["ALONE", "Team"]


@dataclass(frozen=True)
class Team:
    """The processes of a run, seen from one of them. This one works alone; `fieldfill.execution.ddp` has others.

    Attributes
    ----------
    rank, size
        number of this process, and of all of them.
    device
        where this process computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """Which of ``count`` things are this process's: neighbours, and as many as anybody else's, to one."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, *values: float) -> list[float]:
        """The sum over all processes of each value."""
        return list(values)

    def of_first(self, value: float) -> float:
        """The value that the first process has, for what must not differ, such as the time."""
        return self.sum(value if self.first else 0.0)[0]

    def wait(self) -> None:
        """Returns when all processes are here."""
        self.sum(0.0)

    def shared(self, model: nn.Module, network: nn.Module) -> nn.Module:
        """``network`` such that a backward pass through it averages gradients over the team.

        Weights and buffers of the ``model`` that it belongs to become those of the first process.
        """
        return network

    def exchanging(self, network: nn.Module, yes: bool) -> AbstractContextManager:
        """Whether backward passes inside exchange gradients; all but the last of a step only add to them."""
        return nullcontext()

    def agree(self, facts: dict[str, Any]) -> None:
        """Checks that all processes start from the same facts; one with another file would spoil the run."""


ALONE = Team()
