"""Validation without truth: which observed cells are held out of training, and why these.

Random single cells would promise an error far below that of the real gaps. So whole gaps are held out, where cells are
missing: a box of rows and columns is drawn with the probability with which its cells are missing, and frames of it at
random. Their gaps are laid over the same rows and columns at another time, and the observed cells underneath are
hidden. These lie in a gap that the record really has, in a place that really has gaps.

The other time is one that leaves about as much around as there is around the missing cells. If even the clearest of
some leaves much less, gaps of further times are joined, and what none of them has seen is hidden.

Where gaps last for some frames and then all change at once, the times have to change together. Otherwise a cell would
be hidden for one frame of several in which it was seen, and its value an hour later would give it away.

A record that has no other times lends its own gaps, some frames later; a single frame those of other places.

Training has to keep most of the observations. So boxes are smaller in a smaller record, and there are many of them:
what is hard in one place or season may be easy in another. A box counts as much as cells are missing under its gaps.
`fieldfill.uncertainty.weights` weighs the cells within.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, HoldOut, Place
from fieldfill.data.pieces import MASK_BYTES

__all__ = ["HoldOutSettings", "hold_out"]

Box = tuple[slice, slice]
"""Rows and columns of a crop."""


@dataclass(frozen=True)
class HoldOutSettings:
    """How many validation crops there are, and how much each hides.

    Attributes
    ----------
    wanted, most
        validation crops that choices and intervals rest on, if the record is large enough, and at most.
    smallest
        rows and columns of the smallest box in which a crop hides cells; fewer crops have larger ones.
    most_held
        share of all observations that may be held out.
    usually_hidden
        share of a box's observations that gaps hide, roughly.
    times
        other times of a box that are looked at.
    least_cells
        cells that a crop must hold out, or a fifth of its observed ones where these are few.
    least_left
        share of what is observed around missing cells that must be left around held-out ones in every second crop,
        whose hidden cells lie deep in gaps; in the others it is all of it, if there are such crops.
    trials
        boxes that are drawn for each validation crop at most.
    """

    wanted: int = 64
    most: int = 96
    smallest: int = 6
    most_held: float = 0.15
    usually_hidden: float = 0.4
    times: int = 12
    least_cells: int = 24
    least_left: float = 0.5
    trials: int = 4


def hold_out(crops: Crops, share: float, generator: Generator, settings: HoldOutSettings | None = None) -> HoldOut:
    """Chooses about ``share`` of the crops, and more of a small record, and hides in each the gaps of other times.

    A record whose gaps are the same everywhere has none; then whole columns of cells (a fifth of the places, for all
    frames of the crop) are hidden instead.
    """
    settings = settings or HoldOutSettings()
    wanted, sides = _room(crops, share, settings)
    missing, left = _Missing(crops), settings.most_held * float(crops.record.counts.sum())
    found: list[tuple[Place, Tensor, float]] = []
    for _ in range(settings.trials * wanted):
        least = settings.least_left if len(found) % 2 else 1.0
        held = _held(crops, missing, sides, least, generator, settings)
        if held is not None:
            found.append(held)
            left -= int(held[1].sum())
        if len(found) == wanted or left <= 0:
            break
    if not found:
        found = [(place, _columns(_observed(crops, place), generator), 1.0) for place in crops.some(wanted, generator)]
    return HoldOut(*(tuple(part) for part in zip(*found)))


def _room(crops: Crops, share: float, settings: HoldOutSettings) -> tuple[int, tuple[int, int]]:
    """Number of validation crops, and rows and columns of their boxes, that leave enough to learn from."""
    samples, _, frames, rows, columns = crops.record.shape
    length, height, width = crops.shape
    # Crops of the ordinary domain that the record holds without overlap.
    crops_held = samples * frames * rows * columns / (length * height * width)
    wanted = min(max(round(share * crops_held), settings.wanted), settings.most, MASK_BYTES // crops.cells)
    whole = settings.most_held * crops_held / settings.usually_hidden  # of which all gaps may be held out
    part = min(1.0, whole / max(1, wanted))
    w = min(width, max(settings.smallest, round(math.sqrt(part) * width)))
    h = min(height, max(settings.smallest, round(part * height * width / w)))
    return max(1, min(wanted, round(whole * height * width / (h * w)))), (h, w)


class _Missing:
    """How many values of each cell of a record are missing, and boxes drawn by that."""

    def __init__(self, crops: Crops) -> None:
        samples, _, frames, _, _ = crops.record.shape
        missing = np.where(crops.record.domain, samples * frames - crops.record.counts, 0).sum(0)
        self.crops, self.share = crops, missing / (samples * frames)
        # A cell keeps one value, unless there are missing cells of which none was ever seen.
        seen = crops.record.counts[crops.record.domain]
        self.kept = torch.from_numpy(crops.record.counts > (seen.min() > 0))
        self._below = np.cumsum(missing.ravel(), dtype=float)

    def draw(self, sides: tuple[int, int], generator: Generator) -> tuple[tuple[int, int], Box] | None:
        """The rows and columns at which a crop begins, and a box in it that is drawn where cells are missing."""
        total = self._below[-1]
        if not total:
            return None
        at = float(torch.rand((), generator=generator, dtype=torch.float64)) * total
        cell = np.unravel_index(np.searchsorted(self._below, at, side="right"), self.share.shape)
        spot = self.crops.spot_around((int(cell[0]), int(cell[1])))
        inside = []
        for axis, place, start, side in zip(self.crops.axes[1:], cell, spot, sides):
            within = (int(place) - start) % axis.size
            # Anywhere in the box: cells at an edge of the grid would come too seldom in the middle of one.
            first = within - int(torch.randint(side, (1,), generator=generator))
            first = min(max(0, first), axis.length - side)
            inside.append(slice(first, first + side))
        return spot, (inside[0], inside[1])

    def expected(self, spot: tuple[int, int], box: Box) -> float:
        """Missing values of a frame in a box, mean over the record."""
        return float(self.crops.cut(torch.from_numpy(self.share), (0, 0, *spot))[box].sum())


def _held(
    crops: Crops,
    missing: _Missing,
    sides: tuple[int, int],
    least: float,
    generator: Generator,
    settings: HoldOutSettings,
) -> tuple[Place, Tensor, float] | None:
    """A validation crop, its held-out cells and its weight, or None if a box cannot be hidden where it was drawn.

    ``least`` is the share of what is observed around the missing cells that is left around them.
    """
    drawn = missing.draw(sides, generator)
    if drawn is None:
        return None
    spot, box = drawn
    area = (..., *box)
    lender, candidates, further = _times(crops, spot, settings.times, generator)
    gaps = (crops.cut(crops.domain, (0, 0, *spot))[:, None] & ~lender)[area]
    wanted, best = least * float(lender[area].float().mean()), None
    for place, observed in candidates:
        part = observed[area] & crops.cut(missing.kept, place)[:, None][area]
        hidden = part & gaps
        left = float((part & ~hidden).float().mean())
        if int(hidden.sum()) >= _enough(part, settings) and (best is None or left > best[0]):
            best = left, place, observed, hidden
            if left >= wanted:
                break
    if best is None:
        return None
    left, place, observed, hidden = best
    for mask in further:
        if left >= wanted:
            break
        fewer = hidden & ~mask[area]
        if int(fewer.sum()) >= _enough(observed[area], settings):
            hidden, left = fewer, float((observed[area] & ~fewer).float().mean())
    held = torch.zeros_like(observed)
    held[area] = hidden
    weight = float(gaps.sum()) / max(1.0, missing.expected(spot, box) * crops.length) / int(hidden.sum())
    return place, held, weight


def _enough(observed: Tensor, settings: HoldOutSettings) -> int:
    """Cells that a crop must hold out of those ``observed`` in its box."""
    return min(settings.least_cells, max(1, int(observed.sum()) // 5))


def _times(
    crops: Crops, spot: tuple[int, int], count: int, generator: Generator
) -> tuple[Tensor, list[tuple[Place, Tensor]], list[Tensor]]:
    """A mask (C, T, h, w) at a spot that lends its gaps, crops to hide, and further masks.

    The masks change from frame to frame when those of the crops do, as far as there are such crops.
    """
    samples, _, frames, _, _ = crops.record.shape
    starts = frames - crops.length + 1
    numbers = torch.randperm(samples * starts, generator=generator)[: 2 * count + 1].tolist()
    place, *places = [(number // starts, number % starts, *spot) for number in numbers]
    lender = _observed(crops, place)
    alike: list[tuple[Place, Tensor]] = []
    others: list[tuple[Place, Tensor]] = []
    for other in places:
        observed = _observed(crops, other)
        (alike if _changes(observed) == _changes(lender) else others).append((other, observed))
        if len(alike) == count:
            break
    if places:
        others = alike or others[:count]
        return lender, others, [observed for _, observed in others]
    if crops.length > 1:
        shifts = torch.randperm(crops.length - 1, generator=generator)[:count] + 1
        moved = [lender.roll(int(shift), 1) for shift in shifts]
        return moved[0], [(place, lender)], moved[1:]
    others = [(other, _observed(crops, other)) for other in crops.some(count, generator)]
    return lender, others, [observed for _, observed in others]


def _changes(observed: Tensor) -> list[bool]:
    """Whether the mask (C, T, h, w) changes from each frame to the next."""
    return (observed[:, 1:] != observed[:, :-1]).any(dim=-1).any(dim=-1).any(dim=0).tolist()


def _observed(crops: Crops, place: Place) -> Tensor:
    return crops.at(place)[1]


def _columns(observed: Tensor, generator: Generator, share: float = 0.2) -> Tensor:
    """Hides whole cells, all variables and frames at once; at least one observed cell is hidden and one is left."""
    places = observed.any(dim=0).any(dim=0)
    chance = torch.rand(places.shape, generator=generator).masked_fill(~places, 2.0)
    count = int(places.sum())
    hidden = max(1, min(count - 1, round(share * count)))
    limit = chance.flatten().sort().values[hidden - 1]
    return observed & (chance <= limit)
