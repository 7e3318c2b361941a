r"""The protocol of first estimates, which a network then corrects.

An estimator answers :math:`E[x_0 \mid y]` under a simple law, where

.. math:: y = x_t / \alpha_t = x_0 + e, \qquad \mathrm{Var}\, e = (\sigma_t / \alpha_t)^2

is seen at the context cells only. There are two kinds of estimators:

* a `Source` answers from the observations alone. It claims the crops that its law fits; a later source may claim some
  of them for a better law (a crop that drifts, a crop made of waves).
* a `Correction` improves the estimate of the steps before it.

`fieldfill.estimators.chain.Chain` joins them. Sources whose law can also be drawn from answer with a `Law`.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from fieldfill.data.crops import Batch, Crops
from fieldfill.partition import Partition
from fieldfill.stages import Stages

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = [
    "Answer",
    "Claim",
    "Correction",
    "Estimator",
    "Example",
    "Given",
    "Law",
    "Lesson",
    "Mean",
    "Source",
]


@dataclass(frozen=True)
class Given:
    """What is known of a batch of crops.

    Attributes
    ----------
    y
        (B, C, T, H, W) noisy values at the context cells, 0 elsewhere.
    context
        bool, as y or broadcastable: where y was seen.
    noise
        variance of y around the field, broadcastable to y.
    maps
        (B, K, H, W) what does not change in time, standardised.
    """

    y: Tensor
    context: Tensor
    noise: Tensor
    maps: Tensor

    def rows(self, chosen: Tensor) -> "Given":
        """Some crops of the batch, by number or bool."""
        parts = {name: _rows(getattr(self, name), chosen) for name in ("context", "noise", "maps")}
        return replace(self, y=self.y[chosen], **parts)

    def seen(self, estimate: Tensor, misfit: float = 0.01) -> Tensor:
        """Best knowledge of the field at the context cells: y where it is clear, the estimate where it is noisy.

        ``misfit`` is the variance by which a first estimate misses the values it was given, because it smooths a
        little. Where the noise is smaller, the value itself is better than the estimate.
        """
        return torch.lerp(estimate, self.y, misfit / (misfit + self.noise))

    def unseen(self, misfit: float = 0.01) -> Tensor:
        """Share of a correction that is used at each cell: all of it beyond the context, little where y is clear."""
        return torch.where(self.context, self.noise / (misfit + self.noise), 1)


def _rows(values: Tensor, chosen: Tensor) -> Tensor:
    return values[chosen] if values.ndim >= 4 and len(values) > 1 else values


@dataclass(frozen=True)
class Answer:
    """The estimate of a step, and what it offers to the network beside it.

    Attributes
    ----------
    estimate
        (B, C, T, H, W).
    fields
        features of that shape in the units of the field.
    shares
        features of that shape between 0 and 1.
    """

    estimate: Tensor
    fields: tuple[Tensor, ...] = ()
    shares: tuple[Tensor, ...] = ()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Answer":
        """The same with every tensor changed, such as some rows or frames of it."""
        return Answer(change(self.estimate), tuple(map(change, self.fields)), tuple(map(change, self.shares)))

    @classmethod
    def joined(cls, answers: Sequence["Answer"]) -> "Answer":
        """The answers to several batches as one."""
        fields, shares = (
            tuple(map(torch.cat, zip(*(getattr(answer, name) for answer in answers)))) for name in ("fields", "shares")
        )
        return cls(torch.cat([answer.estimate for answer in answers]), fields, shares)


@runtime_checkable
class Mean(Protocol):
    """The answer of a source for some crops, with what these crops revealed of themselves."""

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        """E[x_0 | y] (B, C, T, H, W); ``thorough`` solves to the last digits that single precision has."""
        ...


@runtime_checkable
class Law(Mean, Protocol):
    """An answer that can also be drawn from."""

    @property
    def error(self) -> Tensor:
        """Variance of the observations' own errors, broadcastable to the crops."""
        ...

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Unconditional realisations (count, C, T, H, W)."""
        ...


@dataclass(frozen=True)
class Claim:
    """Crops (N,) of a batch, by number, and the law that they follow."""

    rows: Tensor
    law: Mean


@dataclass
class Example:
    """Crops from which corrections are learnt: what is given, the truth at the query cells, the estimate so far."""

    given: Given
    x: Tensor
    query: Tensor
    estimate: Tensor


@dataclass
class Lesson:
    """What estimators learn from.

    Attributes
    ----------
    crops
        of the record, with held-out cells.
    partition
        draws context and query.
    level
        alpha_t and sigma_t of a fill, the least noise there is.
    generator
        of all random choices but those of the examples, which follow from ``seed``.
    examples
        crops for corrections, made by the chain after its sources have learnt.
    stages
        of the fit, for progress and its time limit.
    """

    crops: Crops
    partition: Partition
    level: tuple[float, float]
    seed: int
    generator: Generator
    examples: list[Example] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)

    def given(self, batch: Batch, context: Tensor, noise: Tensor) -> Given:
        """Crops seen at ``context`` at the noise of a fill; ``noise`` is standard normal."""
        alpha, sigma = self.level
        y = torch.where(context, (alpha * batch.x + sigma * noise) / alpha, 0)
        return Given(y, context, torch.full((len(y), 1, 1, 1, 1), (sigma / alpha) ** 2), batch.maps)


class Estimator(nn.Module, abc.ABC):
    """One step of a chain. Everything it learns is a buffer, so that it is saved and moved with the model."""

    name: ClassVar[str]
    features: ClassVar[int] = 0  # number of features offered to the network, for each variable
    optional: ClassVar[bool] = False  # whether a fit without time for it may leave it out

    @abc.abstractmethod
    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        """Learns what the steps before it leave; ``chain`` ends with this step. Returns what was found, for people."""

    @property
    def cost(self) -> float:
        """Time of an answer while the network trains, in steps of the network, where it is more than half a step."""
        return 0.0

    def set_effort(self, effort: float) -> None:
        """Multiplies the iterations of a solver, for estimators that have one."""

    @property
    def iterations(self) -> int:
        """Iterations of a solver in an answer of a fill with the effort 1; 0 for estimators without one."""
        return 0

    def rehearse(self) -> None:
        """Puts typical values in the place of what is not learnt yet, so that answers take the time they will take."""


class Source(Estimator):
    """Answers from the observations alone."""

    draws: ClassVar[bool] = False  # whether it answers every crop with a `Law`, which can be drawn from

    @abc.abstractmethod
    def claim(self, given: Given) -> Claim | None:
        """The crops of a batch that this source answers, or None."""

    def on_grid(self, grid: tuple[int, int], periodic: tuple[bool, bool]) -> Law | None:
        """The law of all crops on a larger grid, if there is one."""
        return None


class Correction(Estimator):
    """Improves the estimate of the steps before it."""

    @abc.abstractmethod
    def correct(self, given: Given, estimate: Tensor) -> Answer:
        """The new estimate (B, C, T, H, W) and the features of this step, ``features`` of them."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Undoes `learn`: the estimate stays as it is."""
