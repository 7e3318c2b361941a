"""Validation without truth: which observed cells are held out of training, and why these.

Random single cells would promise an error far below that of the real gaps. So whole gaps are held out: the gaps of
other crops of the same record are laid over a validation crop, and the observed cells underneath are hidden.

One donor hides all that it has not seen itself. Where most of a crop is missing anyway, that leaves next to nothing,
and the validation would be much harder than filling is. So donors are joined, and what none of them has
seen is hidden. Half of the crops stop at half of the ordinary coverage, whose hidden cells lie deep in gaps; the
other half goes on to the ordinary coverage, which is that of the crops in which the missing cells lie.
`fieldfill.uncertainty.weights` weighs the cells afterwards.

Where gaps last for some frames and then all change at once, a donor has to change when the crop does. Otherwise a
cell would be hidden for one frame of several in which it was seen, and its value an hour later would give it away.

Training has to keep most of the observations, so a smaller record has fewer validation crops. If there were only a
handful of them, more crops are taken and each hides gaps in some of its frames only. That is the last resort: a cell
that is seen in the frames around is easier to fill than one that stays missing, and choices made on such cells rely too
much on time. A gap that lasts is hidden for as long as it lasts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, HoldOut, Place
from fieldfill.data.pieces import MASK_BYTES

__all__ = ["HoldOutSettings", "hold_out"]


@dataclass(frozen=True)
class HoldOutSettings:
    """How many validation crops there are, and how much each hides.

    Attributes
    ----------
    wanted, most
        validation crops that choices and intervals rest on, if the record is large enough, and at most.
    few
        validation crops below which gaps are hidden in fewer frames of each rather than in fewer crops.
    places, least_places
        places of crops that are looked at; they overlap if there are fewer than ``least_places`` that do not.
    most_held
        share of all observations that may be held out.
    usually_hidden
        share of a crop's observations that a donor hides, roughly.
    first_donors
        donors of which the best begins.
    least_held, least_cells
        share of the observed cells that a crop must hold out, and how many; a fifth is enough where there are few.
    least_left
        share of the ordinary coverage that every second validation crop is left with.
    """

    wanted: int = 48
    most: int = 96
    few: int = 12
    places: int = 256
    least_places: int = 32
    most_held: float = 0.15
    usually_hidden: float = 0.4
    first_donors: int = 12
    least_held: float = 0.02
    least_cells: int = 96
    least_left: float = 0.5


def hold_out(crops: Crops, share: float, generator: Generator, settings: HoldOutSettings | None = None) -> HoldOut:
    """Chooses about ``share`` of the crops, and more of a small record, and hides in each the gaps of others.

    A record whose gaps are the same everywhere has no donors; then whole columns of cells (a fifth of the places,
    for all frames of the crop) are hidden instead.
    """
    settings = settings or HoldOutSettings()
    least_places = settings.least_places
    most = max(2, min(settings.places, 2 * MASK_BYTES // crops.cells))
    places = crops.spread_out(most, generator, least_places)
    wanted = min(max(round(share * len(places)), settings.wanted), settings.most, MASK_BYTES // crops.cells)
    wanted = max(1, min(wanted, len(places)))
    room = _room(crops, places)
    if room > 2 * least_places:
        wanted = min(wanted, max(least_places, int(room // 4)))
    whole = settings.most_held * room / settings.usually_hidden
    wanted = min(wanted, max(settings.few, int(whole)))
    run = max(1, min(crops.length, round(whole / wanted * crops.length)))
    left = wanted * run
    coverage, rhythm = {}, {}
    for place in places:
        observed = _observed(crops, place)
        coverage[place] = observed.float().mean().item()
        rhythm[place] = (observed[:, 1:] != observed[:, :-1]).any(dim=-1).any(dim=-1).any(dim=0).tolist()
    typical = _typical(list(coverage.values()), float(crops.record.domain.mean()))
    clearest = _clearest(coverage)[: max(wanted, len(places) // 2)]
    order = torch.randperm(len(clearest), generator=generator).tolist()
    masks_of = cache(lambda place: _mask(crops, place))
    chosen: list[Place] = []
    masks: list[Tensor] = []
    for place in (clearest[i] for i in order):
        least = typical * (1.0 if len(chosen) % 2 else settings.least_left)
        others = [places[i] for i in torch.randperm(len(places), generator=generator).tolist() if places[i] != place]
        alike = [other for other in others if rhythm[other] == rhythm[place]]
        donors = alike if len(alike) >= settings.first_donors else others
        frames = _spells(rhythm[place], run, generator)
        held = _gaps_of_others(crops, place, (masks_of(donor) for donor in donors), least, typical, frames, settings)
        if held is not None:
            chosen.append(place)
            masks.append(held)
            left -= frames.stop - frames.start
        if len(chosen) == wanted or left <= 0:
            break
    if not chosen:
        chosen = [clearest[i] for i in order[:wanted]]
        masks = [_columns(_observed(crops, place), generator) for place in chosen]
    return HoldOut(tuple(chosen), tuple(masks))


def _clearest(coverage: dict[Place, float]) -> list[Place]:
    """Places in order of how much clearer they are than others at the same rows and columns.

    A donor's gaps over a clear crop leave an ordinary one. Rows and columns that are always clear would say little of
    those that hardly ever are, where most cells are missing.
    """
    spots: dict[tuple[int, ...], list[float]] = {}
    for place, share in coverage.items():
        spots.setdefault(place[2:], []).append(share)
    usual = {spot: sum(shares) / len(shares) for spot, shares in spots.items()}
    return sorted(coverage, key=lambda place: usual[place[2:]] - coverage[place])


def _room(crops: Crops, places: list[Place]) -> float:
    """Number of crops with as much of the domain as those at ``places`` that the record holds without overlap."""
    samples, _, frames, _, _ = crops.record.shape
    inside = sum(int(crops.cut(crops.domain, place).sum()) for place in places) / len(places)
    return samples * frames / crops.length * float(crops.domain.sum()) / inside


def _spells(changes: list[bool], run: int, generator: Generator) -> slice:
    """Frames of a crop, at least ``run``, between two changes of its mask; the fewest from where they begin.

    ``changes`` are those from each frame to the next.
    """
    bounds = [0, *(frame for frame, change in enumerate(changes, start=1) if change), len(changes) + 1]
    ends = {begin: next((end for end in bounds if end >= begin + run), None) for begin in bounds}
    found = [slice(begin, end) for begin, end in ends.items() if end is not None]
    return found[int(torch.randint(len(found), (1,), generator=generator))]


def _typical(coverage: list[float], domain: float) -> float:
    """The coverage that half of the missing cells have less of around them; most of them lie in poor crops."""
    below, half = 0.0, sum(domain - share for share in coverage) / 2
    for share in sorted(coverage):
        below += domain - share
        if below >= half:
            break
    return share


def _observed(crops: Crops, place: Place) -> Tensor:
    return crops.at(place)[1]


def _mask(crops: Crops, place: Place) -> Tensor:
    """What a donor has seen; it hides nothing outside its domain."""
    return crops.at(place)[1] | ~crops.cut(crops.domain, place)[:, None]


def _gaps_of_others(
    crops: Crops,
    place: Place,
    donors: Iterator[Tensor],
    least: float,
    typical: float,
    frames: slice,
    settings: HoldOutSettings,
) -> Tensor | None:
    """Observed cells of a crop that none of its donors has seen, in some ``frames`` of it.

    The first donor is the one of a few that leaves a coverage closest to the ``typical`` one. Others join as long as
    less than ``least`` is left, and only if enough stays hidden.
    """
    observed = _observed(crops, place)
    part = observed[:, frames]
    seen = int(part.sum())
    enough = max(1, int(settings.least_held * seen), min(settings.least_cells, seen // 5))
    first: Tensor | None = None
    off = float("inf")
    for donor in islice(donors, settings.first_donors):
        hidden = part & ~donor[:, frames]
        left = (part & ~hidden).float().mean().item()
        if int(hidden.sum()) >= enough and left > 0 and abs(left - typical) < off:
            first, off = hidden, abs(left - typical)
    if first is None:
        return None
    hidden = first
    for donor in donors:
        if (part & ~hidden).float().mean() >= least:
            break
        fewer = hidden & ~donor[:, frames]
        if int(fewer.sum()) >= enough:
            hidden = fewer
    held = torch.zeros_like(observed)
    held[:, frames] = hidden
    return held


def _columns(observed: Tensor, generator: Generator, share: float = 0.2) -> Tensor:
    """Hides whole cells, all variables and frames at once; at least one observed cell is hidden and one is left."""
    places = observed.any(dim=0).any(dim=0)
    chance = torch.rand(places.shape, generator=generator).masked_fill(~places, 2.0)
    count = int(places.sum())
    hidden = max(1, min(count - 1, round(share * count)))
    limit = chance.flatten().sort().values[hidden - 1]
    return observed & (chance <= limit)
