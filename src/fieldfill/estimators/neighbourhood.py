r"""Correction by the neighbourhood: a first estimate is sharpened or smoothed, and bent along maps of the place.

Covariances are the same everywhere, places are not: along a coast or a slope, fields follow the land. With u a map of
the place (mean or spread of each cell, height, distance; standardised) and <·> the mean over the context cells around
a cell, weighted by a Gaussian of two cells, the field is bent along the map as steeply as its values near by are,

.. math:: \frac{\langle y u \rangle - \langle y \rangle \langle u \rangle}
          {\langle u^2 \rangle - \langle u \rangle^2 + \epsilon} \; (u - \langle u \rangle)

which is called kriging with external drift in geostatistics, here with a slope of its own for every place and frame.
Further parts are the map u and its fine detail u - G u, and three bands of the first estimate g, from fine to coarse,
each as it is and times these. Every part has one weight for each variable (`fieldfill.estimators.regression`). Without
any map the bands are left: they correct the way in which the estimate was filtered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fieldfill.estimators.base import Answer, Correction, Given, Lesson
from fieldfill.estimators.regression import weights_of_parts

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Neighbourhood", "NeighbourhoodSettings", "around", "blurred"]


@dataclass(frozen=True)
class NeighbourhoodSettings:
    """Scales of the correction by bands and maps.

    Attributes
    ----------
    fine, middle, coarse
        widths of the Gaussian smoothers, in cells: bands lie between fine and coarse, slopes are means over middle.
    flat
        added to the variance of a map near a cell, so that flat places get no slope.
    most_maps
        maps that are used at most.
    """

    fine: Annotated[float, Gt(0), Le(64)] = 1.0
    middle: Annotated[float, Gt(0), Le(64)] = 2.0
    coarse: Annotated[float, Gt(0), Le(64)] = 5.0
    flat: Annotated[float, Gt(0)] = 0.05
    most_maps: Annotated[int, Ge(0)] = 6


class Neighbourhood(Correction):
    """Correction of a first estimate by its bands and by maps.

    Parameters
    ----------
    variables
        number of variables.
    maps
        number K of maps.
    periodic
        whether rows and columns close on themselves.
    settings
        widths of the bands, and the number of maps that are used.
    """

    name: ClassVar[str] = "neighbourhood"
    weights: Tensor

    def __init__(
        self, variables: int, maps: int, periodic: tuple[bool, bool], settings: NeighbourhoodSettings | None = None
    ) -> None:
        super().__init__()
        self.periodic, self.settings = periodic, settings or NeighbourhoodSettings()
        self.maps = min(maps, self.settings.most_maps)
        self.register_buffer("weights", torch.zeros(variables, 3 + 9 * self.maps))

    def correct(self, given: Given, estimate: Tensor) -> Answer:
        if not self.weights.any():
            return Answer(estimate)
        total = torch.zeros_like(estimate)
        for part, weight in zip(self.parts(given, estimate), self.weights.T):
            total = total + weight[:, None, None, None] * part
        return Answer(estimate + total)

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        _, weights = weights_of_parts(lesson.examples, lambda example: self.parts(example.given, example.estimate))
        self.weights.copy_(weights)
        return {}

    def forget(self) -> None:
        self.weights.zero_()

    def parts(self, given: Given, guess: Tensor) -> Iterator[Tensor]:
        """What may be added to ``guess``, one part (B, C, T, H, W) after the other."""
        settings = self.settings
        fine, coarse = (blurred(guess, cells, self.periodic) for cells in (settings.fine, settings.coarse))
        bands = guess - fine, fine - coarse, coarse
        yield from bands
        maps = given.maps[:, : self.maps, None, None]  # (B, K, 1, 1, H, W)
        for u, detail in zip(maps.unbind(1), (maps - blurred(maps, settings.middle, self.periodic)).unbind(1)):
            for place in (u, detail):
                yield place.expand_as(guess)
                yield from (band * place for band in bands)
        if self.maps:
            y = torch.where(given.context, given.seen(guess), 0)
            yield from self._slopes(y, given.context.to(guess.dtype), maps)

    def _slopes(self, y: Tensor, mask: Tensor, maps: Tensor) -> Iterator[Tensor]:
        cells, flat = self.settings.middle, self.settings.flat
        near = blurred(mask, cells, self.periodic) + 1e-3
        mean = blurred(y, cells, self.periodic) / near
        for u in maps.unbind(1):
            level, square, product = (blurred(v, cells, self.periodic) / near for v in (mask * u, mask * u**2, y * u))
            yield (product - mean * level) / (square - level**2 + flat) * (u - level)


def blurred(x: Tensor, cells: float, periodic: Sequence[bool]) -> Tensor:
    """x (..., H, W) smoothed by a Gaussian of that many cells; beyond an edge its values go on."""
    margin = round(2.5 * cells)
    offsets = torch.arange(-margin, margin + 1, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-0.5 * (offsets / cells) ** 2)
    kernel = kernel / kernel.sum()
    flat = around(x.reshape(-1, 1, *x.shape[-2:]), margin, periodic)
    return F.conv2d(F.conv2d(flat, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1)).view_as(x)


def around(x: Tensor, margin: int, periodic: Sequence[bool]) -> Tensor:
    """Continues x (..., H, W) by ``margin`` cells on all sides: around periodic axes, with the edge on others."""
    for axis, closed in zip((-2, -1), periodic):
        size = x.shape[axis]
        index = torch.arange(-margin, size + margin, device=x.device)
        x = x.index_select(axis, index % size if closed else index.clamp(0, size - 1))
    return x
