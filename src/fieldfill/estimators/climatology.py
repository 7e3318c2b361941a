r"""Mean and spread of every cell of a gappy record, drawn to those of all cells where that lowers the error.

A field with a coast, mountains or a gradient in latitude is not stationary; its anomalies are more so. With n the
number of visible values of a cell, G_s a Gaussian smoother of s cells that covers A_s cells, and k values of the
overall mean and variance,

.. math:: m_{s,k} = \frac{A_s G_s \sum x + k \bar x}{A_s G_s\, n + k}, \qquad
          v_{s,k} = \frac{A_s G_s \sum (x - m)^2 + k\, \bar v}{A_s G_s\, n + k}

The record is divided in time, and each part is predicted by the maps of the others: s and k are those with the least
squared error, or the highest likelihood of the spread. One number for all cells stays unless the maps gain more than a
margin and more than the standard error over the parts.

Gaps are often in the same places, where few values were seen and a map is least certain. So a value counts as often
as there are missing values in its cell for one that was observed.

That does not show how well the anomalies can be interpolated. What is wrong in the maps is the same in every frame, and
a covariance takes it for a field. So one number for all cells, the mean alone, and both maps are compared: a Gaussian
field is learnt briefly with each of them, and the simplest stays unless another interpolates the held-out cells better,
in the units of the data, by a margin and by more than the standard error over validation crops. Maps that are obvious
come first: they stay unless something simpler is better.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.ndimage import gaussian_filter1d
from torch import Generator, Tensor

from fieldfill.data.crops import Crops
from fieldfill.data.transforms import Normaliser
from fieldfill.estimators.base import Claim, Given, Lesson, Source
from fieldfill.estimators.chain import Chain, HeldOutError
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.learning import GaussianSettings, learn_covariance
from fieldfill.partition import AllObserved
from fieldfill.stages import Stages

__all__ = ["ClimatologySettings", "ZeroAnomaly", "learn_normaliser", "least_missed"]

# Alpha and sigma of observations without noise.
NO_NOISE = (1.0, 0.0)


@dataclass(frozen=True)
class ClimatologySettings:
    """How mean and spread of each cell are learnt.

    Attributes
    ----------
    smoothing
        widths of the Gaussian smoother that are tried, in cells.
    mean_weights, spread_weights
        numbers of values that the overall mean and variance count as, which are tried.
    margin
        gain of a map, as a share of the variance or in log-likelihood per value, below which it is left out.
    least_std
        smallest spread of a cell, as a share of that of the variable: almost constant cells must not blow up errors.
    folds, least_folds
        parts of the record, each predicted by maps of the others, and fewer than allow maps: the mean of a few crops
        in time is mostly that of their weather.
    most_frames
        frames of the record that are read.
    obvious_mean, obvious_spread
        gains from which on a map stays unless something simpler interpolates better.
    rounds
        of expectation–maximisation in which the Gaussian fields that compare maps are learnt.
    share
        of the time limit of a fit that may be used for this.
    most_weight
        missing values for one observed that a value counts as, at most.
    """

    smoothing: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    mean_weights: tuple[float, ...] = (0.25, 1.0, 4.0, 16.0, 64.0)
    spread_weights: tuple[float, ...] = (0.5, 2.0, 8.0, 32.0, 128.0)
    margin: float = 0.01
    least_std: float = 0.1
    folds: int = 8
    least_folds: int = 8
    most_frames: int = 8000
    obvious_mean: float = 0.5
    obvious_spread: float = 0.3
    rounds: int = 2
    share: float = 0.25
    most_weight: float = 20.0


class ZeroAnomaly(Source):
    """Answers every crop by the climatology: 0, because crops hold anomalies from it.

    The climatology itself is a normaliser (`learn_normaliser`), which is fitted before anything else: all other
    estimators and the network see anomalies.
    """

    name: ClassVar[str] = "climatology"

    def claim(self, given: Given) -> Claim:
        return Claim(torch.arange(len(given.y), device=given.y.device), NoAnomaly())

    def learn(self, lesson: Lesson, chain: Chain) -> dict[str, float]:
        return {}


class NoAnomaly:
    """The answer of a climatology."""

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        return torch.zeros_like(given.y)


def learn_normaliser(
    crops: Crops, generator: Generator, settings: ClimatologySettings | None = None, stages: Stages | None = None
) -> Normaliser:
    """The normaliser of ``crops``, one number for each variable, or maps (C, H, W) where these lower the error."""
    settings = settings or ClimatologySettings()
    own, folds = crops.normaliser, _Folds(crops, generator, settings)
    if len(folds) < settings.least_folds:
        return own
    mean = folds.mean()
    spread = folds.spread(mean.squares)
    shift, scale = own.mean[:, None, None], own.std[:, None, None]
    centre = shift if mean.found is None else shift + scale * mean.found.double().numpy()
    options, first = [own], 0
    if mean.found is not None:
        first = len(options) if mean.gain > settings.obvious_mean else first
        options.append(Normaliser(centre, scale * folds.overall(mean.squares).sqrt().double().numpy()))
    if spread.found is not None:
        first = len(options) if spread.gain > settings.obvious_spread else first
        options.append(Normaliser(centre, scale * spread.found.sqrt().double().numpy()))
    options.insert(0, options.pop(first))
    return least_missed(crops, options, generator, settings, stages or Stages())


def least_missed(
    crops: Crops, options: Sequence[Normaliser], generator: Generator, settings: ClimatologySettings, stages: Stages
) -> Normaliser:
    """The first of the options, unless a later one interpolates clearly better."""
    own, state, chosen = crops.normaliser, generator.get_state(), 0
    errors: list[list[float]] = []
    held = crops.held
    cells = [weight * int(mask.sum()) for weight, mask in zip(held.weights, held.masks)]
    for number, option in enumerate(options if len(options) > 1 else []):
        if errors and stages.late():
            break
        crops.normalise(option)
        generator.set_state(state)  # all learn from the same crops
        errors.append(_interpolation_errors(crops, generator, settings.rounds, stages))
        gain = HeldOutError.of([a - b for a, b in zip(errors[chosen], errors[number])], cells)
        mean = sum(errors[number]) / (sum(cells) or 1)
        if gain.mean > max(settings.margin * (mean + gain.mean), gain.standard_error):
            chosen = number
        stages.advance(f"held-out error {mean:.4f}")
    crops.normalise(own)
    return options[chosen]


def _interpolation_errors(crops: Crops, generator: Generator, rounds: int, stages: Stages) -> list[float]:
    """Summed squared errors at the held-out cells of each validation crop, weighted, in variances of the record."""
    field = LearntField(crops.record.shape[1], crops.length, crops.shape[1:], crops.periodic)
    chain = Chain([Gaussian(field)]).eval()
    brief = GaussianSettings(rounds=rounds, memory_parts=(), pattern_rounds=0)
    learn_covariance(field, Lesson(crops, AllObserved(), NO_NOISE, 0, generator, stages=stages), chain, brief)
    errors = []
    for number, place in enumerate(crops.held.places):
        batch, held = crops.held_out([number])
        error = chain.answer(Given(batch.x * batch.observed, batch.observed, torch.zeros(()), batch.maps)) - batch.x
        total = (crops.scale_at(place)[:, None] * error)[held].double().square().sum().item()
        errors.append(crops.held.weights[number] * total)
    return errors


@dataclass(frozen=True)
class _Map:
    """A map (C, H, W) that is clearly better than one number, or None, its gain, and what the other folds leave.

    ``squares`` (folds, C, H, W) are summed squared distances of the values from the mean.
    """

    found: Tensor | None
    gain: float
    squares: Tensor


class _Folds:
    """Sums over parts of a record in time (or over some of its samples), to judge maps by what they were not made of.

    A mean that includes the weeks around would get the credit for what any interpolation in time finds.
    """

    def __init__(self, crops: Crops, generator: Generator, settings: ClimatologySettings) -> None:
        self.settings, self.periodic = settings, crops.record.periodic
        slabs = crops.slabs(settings.most_frames, settings.folds, generator)
        count = min(settings.folds, len(slabs))
        _, variables, _, rows, columns = crops.record.shape
        # (folds, C, H, W): sums of the visible values and of their squares, and their number.
        self.total, self.power, self.count = torch.zeros(3, count, variables, rows, columns)
        for fold in range(count):
            for slab in slabs[fold * len(slabs) // count : (fold + 1) * len(slabs) // count]:
                x, visible = crops.frames(*slab)
                x = torch.where(visible, x, 0)
                self.total[fold] += x.sum(1)
                self.power[fold] += x.square().sum(1)
                self.count[fold] += visible.sum(1)

        # (C, H, W): missing values for one that was observed.
        samples, _, frames, _, _ = crops.record.shape
        seen = self.count.sum(0)
        missing = (samples * frames - seen).clamp(min=0)
        self.weight = torch.where(seen > 0, (missing / seen.clamp(min=1)).clamp(max=settings.most_weight), 0)
        if not self.weight.any():
            self.weight = torch.ones_like(self.weight)

    def __len__(self) -> int:
        return len(self.count)

    def mean(self) -> _Map:
        """Map of the mean; its gain is a share of the variance."""

        def off(m: Tensor) -> Tensor:
            return self.power - 2 * m * self.total + m.square() * self.count

        def make(smoothing: float, weight: float, left: Sequence[int]) -> Tensor:
            return self._drawn(self.total, smoothing, weight, left)

        options = list(itertools.product(self.settings.smoothing, self.settings.mean_weights))
        return self._best(options, make, off, off(torch.zeros(())))

    def spread(self, squares: Tensor) -> _Map:
        """Map of the variance from ``squares`` (folds, C, H, W); its gain is in log-likelihood per value."""

        def make(smoothing: float, weight: float, left: Sequence[int]) -> Tensor:
            least = self.settings.least_std**2 * self.overall(squares, left)
            return torch.maximum(self._drawn(squares, smoothing, weight, left), least)

        def surprise(v: Tensor) -> Tensor:
            return self.count * v.log() + squares / v

        overall = torch.stack([self.overall(squares, (fold,)) for fold in range(len(self))])
        options = list(itertools.product(self.settings.smoothing, self.settings.spread_weights))
        return self._best(options, make, surprise, surprise(overall))

    def overall(self, sums: Tensor, left: Sequence[int] = ()) -> Tensor:
        """Mean (C, 1, 1) over the visible values of all folds that are not ``left`` out."""
        kept = [fold for fold in range(len(self)) if fold not in left]
        total, count = (part[kept].sum((0, 2, 3))[:, None, None] for part in (sums, self.count))
        found = total / count.clamp(min=1)
        return torch.where(found != 0, found, torch.finfo(found.dtype).tiny ** 0.5)  # of a constant variable

    def _drawn(self, sums: Tensor, smoothing: float, weight: float, left: Sequence[int]) -> Tensor:
        """Mean of every cell (C, H, W), smoothed, and drawn to the mean of all cells."""
        kept = [fold for fold in range(len(self)) if fold not in left]
        both = torch.stack([sums[kept].sum(0), self.count[kept].sum(0)]).numpy()
        for axis, closed in zip((-2, -1), self.periodic):
            if smoothing:
                both = gaussian_filter1d(both, smoothing, axis=axis, mode="wrap" if closed else "constant")
        total, count = max(1.0, 4 * math.pi * smoothing**2) * torch.from_numpy(both)
        return (total + weight * self.overall(sums, left)) / (count + weight)

    def _best(
        self,
        options: list[tuple[float, float]],
        make: Callable[[float, float, Sequence[int]], Tensor],
        price: Callable[[Tensor], Tensor],
        simple: Tensor,
    ) -> _Map:
        """The map with the lowest price if that is clearly below the ``simple`` one; its squares are prices."""
        count = (self.weight * self.count).sum((1, 2, 3)).tolist()
        best, least = None, simple
        for option in options:
            found = price(torch.stack([make(*option, (fold,)) for fold in range(len(self))]))
            if best is None or (self.weight * found).sum() < (self.weight * least).sum():
                best, least = option, found
        gain = HeldOutError.of((self.weight * (simple - least)).sum((1, 2, 3)).tolist(), count)
        if best is None or gain.mean <= max(self.settings.margin, gain.standard_error):
            return _Map(None, 0.0, simple)
        return _Map(make(*best, ()), gain.mean, least)
