r"""Mean and spread of every cell of a gappy record, smoothed as much as held-out cells require.

A field with a coast, mountains or a gradient in latitude is not stationary; its anomalies are more so. With n the
number of visible values of a cell and G_s a Gaussian smoother of s cells,

.. math:: m_s = \frac{G_s \sum x}{G_s\, n}, \qquad v_s = \frac{G_s \sum (x - m)^2}{G_s\, n}

A short record needs much smoothing, a long one none. s is chosen where the held-out cells are nearest to m_s
of the other parts of the record, and most likely under v_s; if no map is better by a margin than one number for all
cells, one number it is.

That does not measure how well the anomalies can be interpolated. Noise in the maps is the same in every frame, and a
covariance takes it for a field. So the choice is challenged by both maps under the same s, and by none: a Gaussian law,
quickly made of pairs of observed values, interpolates the anomalies of a few frames, and the maps under which it misses
the held-out cells least, in the units of the data, are taken if that is better by a margin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, Place
from fieldfill.data.transforms import Normaliser
from fieldfill.estimators.base import Claim, Given, Lesson, Source
from fieldfill.estimators.chain import LEAST_JUDGED
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.pairs import factorise, separations, tapered

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Climatology", "ClimatologySettings", "learn_normaliser", "least_missed"]


@dataclass(frozen=True)
class ClimatologySettings:
    """How mean and spread of each cell are learnt.

    Attributes
    ----------
    smoothing
        widths of the Gaussian smoother that are tried, in cells.
    margin
        gain on held-out cells, as a share of their variance, below which a map is not worth its noise.
    least_std
        smallest spread of a cell, as a share of that of the variable: almost constant cells must not blow up errors.
    folds
        parts of the record, each judged by maps of the others.
    most_frames
        frames of the record that are read.
    less
        share of the interpolation error that other maps must stay below to be taken.
    taper, nugget
        width (cells) of the taper and the nugget of the Gaussian field that interpolates.
    judged_frames, judged_cells
        frames of each validation crop, and cells of all of them, on which maps are compared.
    """

    smoothing: tuple[float, ...] = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)
    margin: float = 0.01
    least_std: float = 0.1
    folds: int = 8
    most_frames: int = 8000
    less: float = 0.95
    taper: float = 9.0
    nugget: float = 0.01
    judged_frames: int = 4
    judged_cells: int = 2**17


class Climatology(Source):
    """Answers every crop by the climatology: 0, because crops hold anomalies from it.

    The climatology itself is a normaliser (`learn_normaliser`), which is fitted before anything else: all other
    estimators and the network see anomalies.
    """

    name: ClassVar[str] = "climatology"

    def claim(self, given: Given) -> Claim:
        return Claim(torch.arange(len(given.y), device=given.y.device), NoAnomaly())

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        return {}


class NoAnomaly:
    """The answer of a climatology."""

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        return torch.zeros_like(given.y)


def learn_normaliser(crops: Crops, generator: Generator, settings: ClimatologySettings | None = None) -> Normaliser:
    """The normaliser of ``crops``, one number for each variable, or maps (C, H, W) where these lower the error."""
    settings = settings or ClimatologySettings()
    own, periodic = crops.normaliser, crops.record.periodic
    folds = _Folds(crops, generator, settings)
    zero, sums = torch.zeros(len(own.mean), 1, 1), folds.sums(lambda x: x)
    mean = folds.best(
        lambda total, count, cells: zero if cells is None else _smooth(total, count, cells, periodic),
        sums,
        lambda x, m: (x - m).square(),
    )
    squares = folds.sums(lambda x: (x - mean[:, None]).square())

    def variance_of(total: Tensor, count: Tensor, cells: float | None) -> Tensor:
        overall = total.sum((1, 2), keepdim=True) / count.sum((1, 2), keepdim=True).clamp(min=1)
        overall = torch.where(overall > 0, overall, 1)  # a constant variable keeps the scale it has
        found = overall if cells is None else _smooth(total, count, cells, periodic)
        return torch.maximum(found, settings.least_std**2 * overall)

    variance = folds.best(variance_of, squares, lambda x, v: torch.log(v) + (x - mean[:, None]).square() / v)
    pairs, (total, count), power = [(mean, variance)], sums.sum(0), folds.sums(torch.square).sum(0)[0]
    for cells in (None, *settings.smoothing):
        centre = zero if cells is None else _smooth(total, count, cells, periodic)
        around = (power - 2 * centre * total + centre.square() * count).clamp(min=0)
        pairs.append((centre, variance_of(around, count, cells)))
    scale, shift = own.std[:, None, None], own.mean[:, None, None]
    options = [Normaliser(shift + scale * m.double().numpy(), scale * v.sqrt().double().numpy()) for m, v in pairs]
    return least_missed(crops, options, generator, settings)


def least_missed(
    crops: Crops, options: list[Normaliser], generator: Generator, settings: ClimatologySettings
) -> Normaliser:
    """The first of the options, unless another is clearly better to interpolate with."""
    own, state = crops.normaliser, generator.get_state()
    errors = []
    for option in options:
        crops.normalise(option)
        generator.set_state(state)  # all are judged by the same frames
        errors.append(_interpolation_error(crops, generator, settings))
    crops.normalise(own)
    best = int(np.argmin(errors))
    return options[best if errors[best] < settings.less * errors[0] else 0]


@torch.no_grad()
def _interpolation_error(crops: Crops, generator: Generator, settings: ClimatologySettings) -> float:
    """Mean squared error at held-out cells of a law made of pairs of values, as a share of the variance."""
    variables, (length, rows, columns) = crops.record.shape[1], crops.shape
    frames = min(settings.judged_frames, length)
    field = LearntField(variables, frames, (rows, columns), crops.periodic).eval()
    found = separations(crops, field.torus, generator, frames).covariance
    field.set_covariance(factorise(tapered(found, settings.taper, (0.0, 0.0)), field), None)
    field.nugget.fill_(settings.nugget)
    total, cells = 0.0, 0
    judged = max(LEAST_JUDGED, settings.judged_cells // (variables * frames * rows * columns))
    for place in crops.held.places[:judged]:
        batch, held = crops.held_out([place])
        x, context, held = (part[:, :, :frames] for part in (batch.x, batch.observed, held))
        error = crops.scale_at(place)[:, None] * (field.condition(x, context, torch.zeros(())) - x)
        total, cells = total + error[held].square().sum().item(), cells + int(held.sum())
    return total / max(1, cells)


class _Folds:
    """Parts of a record in time (or of its samples), so that a map can be judged by what it was not made of.

    A mean over the weeks around a validation crop would be credited for what any interpolation in time achieves.
    """

    def __init__(self, crops: Crops, generator: Generator, settings: ClimatologySettings) -> None:
        self.crops, self.settings = crops, settings
        parts = crops.slabs(settings.most_frames, generator)
        count = min(settings.folds, len(parts))
        self.parts = [parts[i * len(parts) // count : (i + 1) * len(parts) // count] for i in range(count)]

    def sums(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over the visible values of ``of(x)`` and their number in each fold, (folds, 2, C, H, W)."""
        _, variables, _, rows, columns = self.crops.record.shape
        sums = torch.zeros(len(self.parts), 2, variables, rows, columns)
        for fold, parts in enumerate(self.parts):
            for part in parts:
                x, visible = self.crops.frames(*part)
                sums[fold] += torch.stack([torch.where(visible, of(x), 0).sum(1), visible.sum(1)])
        return sums

    def best(
        self,
        make: Callable[[Tensor, Tensor, float | None], Tensor],
        sums: Tensor,
        price: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """``make(total, count, smoothing)`` (C, H, W) of the smoothing with the lowest price on held-out cells.

        None, one number for all cells, wins unless another gains by the margin. A single fold allows no judgement.
        """
        whole = sums.sum(0)
        options = [None, *self.settings.smoothing] if len(self.parts) > 1 else [None]
        others = [[make(whole[0] - part[0], whole[1] - part[1], smoothing) for smoothing in options] for part in sums]
        prices, cells = np.zeros(len(options)), 0
        for place in self.crops.held.places:
            batch, held = self.crops.held_out([place])
            cells += int(held.sum())
            maps = [m if m.shape[-1] == 1 else self.crops.cut(m, place) for m in others[self._fold_of(place)]]
            prices += [torch.where(held[0], price(batch.x[0], m[:, None]), 0).sum().item() for m in maps]
        prices /= max(1, cells)
        choice = int(prices.argmin())
        return make(whole[0], whole[1], options[choice] if prices[choice] < prices[0] - self.settings.margin else None)

    def _fold_of(self, place: Place) -> int:
        """The fold that a validation crop lies in, or that comes last before it."""
        begins = [parts[0][:2] for parts in self.parts]
        return max(0, sum(begin <= place[:2] for begin in begins) - 1)


def _smooth(total: Tensor, count: Tensor, cells: float, periodic: tuple[bool, bool], trace: float = 0.01) -> Tensor:
    """Weighted mean over the neighbourhood of every cell, (C, H, W); far from any value, the overall mean.

    The overall mean has the weight of ``trace`` observations: a cell without any neighbour has nothing else to go by.
    """
    sums = torch.stack([total, count]).numpy()
    for axis, closed in zip((-2, -1), periodic):
        if cells:
            sums = gaussian_filter1d(sums, cells, axis=axis, mode="wrap" if closed else "constant")
    overall = total.sum((1, 2), keepdim=True) / count.sum((1, 2), keepdim=True).clamp(min=1)
    values, weights = torch.from_numpy(sums)
    return (values + trace * overall) / (weights + trace)
