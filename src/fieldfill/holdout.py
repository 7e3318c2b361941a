"""Validation without truth: which observed cells are held out of training, and why these.

Random single cells would promise an error far below that of the real gaps. So whole gaps are held out: the gaps of
other windows of the same record are laid over a validation window, and the observed cells underneath are hidden.

One donor hides all that it has not seen itself. Where most of a window is missing anyway, that leaves next to nothing,
and the validation would ask a much harder question than filling does. So donors are joined, and what none of them has
seen is hidden. Half of the windows stop at half of the ordinary coverage, whose hidden cells lie deep in gaps; the
other half goes on to the ordinary coverage, which is that of the windows in which the missing cells lie.
`fieldfill.reweight` weighs the cells afterwards.

Where gaps last for some frames and then all change at once, a donor has to change when the window does. Otherwise a
cell would be hidden for one frame of several in which it was seen, and its value an hour later would give it away.
"""

import torch
from torch import Generator, Tensor

from fieldfill.windows import HoldOut, Windows

__all__ = ["hold_out"]

MIN_WINDOWS, MAX_WINDOWS = 12, 48  # the least if there are four times as many
CALIBRATED = 40  # windows that make intervals sure to a point or two, if there are five times as many
FIRST_DONORS = 12  # of which the best begins
MASK_BYTES = 2**27
LEAST_HELD, LEAST_CELLS = 0.02, 96  # of a window's observed cells, and how many; of few cells a fifth is enough
LEAST_LEFT = 0.5  # of the ordinary coverage


def hold_out(windows: Windows, share: float, generator: Generator) -> HoldOut:
    """Chooses about ``share`` of the windows and hides in each the gaps of others.

    A record whose gaps are the same everywhere has no donors; then whole columns of cells (a fifth of the places,
    for all frames of the window) are hidden instead.
    """
    _, variables, _, rows, columns = windows.record.shape
    cells = variables * windows.length * rows * columns
    places = windows.spread_out(256, generator)
    few = max(min(MIN_WINDOWS, len(places) // 4), min(CALIBRATED, len(places) // 5))
    wanted = max(1, min(max(few, round(share * len(places))), MAX_WINDOWS, MASK_BYTES // cells))
    coverage, rhythm = {}, {}
    for place in places:
        observed = _observed(windows, place)
        coverage[place] = observed.float().mean().item()
        rhythm[place] = (observed[:, 1:] != observed[:, :-1]).any(dim=-1).any(dim=-1).any(dim=0).tolist()
    typical = _typical(list(coverage.values()), float(windows.record.domain.mean()))
    # The clearest windows come first: a donor's gaps over them leave an ordinary window.
    clearest = sorted(places, key=lambda place: -coverage[place])[: max(wanted, len(places) // 2)]
    order = torch.randperm(len(clearest), generator=generator).tolist()
    chosen: list[tuple[int, int]] = []
    masks: list[Tensor] = []
    for place in (clearest[i] for i in order):
        least = typical * (1.0 if len(chosen) % 2 else LEAST_LEFT)
        others = [places[i] for i in torch.randperm(len(places), generator=generator).tolist() if places[i] != place]
        alike = [other for other in others if rhythm[other] == rhythm[place]]
        donors = alike if len(alike) >= FIRST_DONORS else others
        held = _gaps_of_others(windows, place, donors, least, typical)
        if held is not None:
            chosen.append(place)
            masks.append(held)
        if len(chosen) == wanted:
            break
    if not chosen:
        chosen = [clearest[i] for i in order[:wanted]]
        masks = [_columns(_observed(windows, place), generator) for place in chosen]
    return HoldOut(tuple(chosen), tuple(masks))


def _typical(coverage: list[float], domain: float) -> float:
    """The coverage that half of the missing cells have less of around them; most of them lie in poor windows."""
    below, half = 0.0, sum(domain - share for share in coverage) / 2
    for share in sorted(coverage):
        below += domain - share
        if below >= half:
            break
    return share


def _observed(windows: Windows, place: tuple[int, int]) -> Tensor:
    return windows.at(*place)[1]


def _gaps_of_others(
    windows: Windows,
    place: tuple[int, int],
    donors: list[tuple[int, int]],
    least: float,
    typical: float,
) -> Tensor | None:
    """Observed cells of a window that none of its donors has seen.

    The first donor is the one of a few that leaves a coverage closest to the ``typical`` one. Others join as long as
    less than ``least`` is left, and only if enough stays hidden.
    """
    observed = _observed(windows, place)
    seen = int(observed.sum())
    enough = max(1, int(LEAST_HELD * seen), min(LEAST_CELLS, seen // 5))
    first: Tensor | None = None
    off = float("inf")
    for donor in donors[:FIRST_DONORS]:
        hidden = observed & ~_observed(windows, donor)
        left = (observed & ~hidden).float().mean().item()
        if int(hidden.sum()) >= enough and left > 0 and abs(left - typical) < off:
            first, off = hidden, abs(left - typical)
    if first is None:
        return None
    hidden = first
    for donor in donors[FIRST_DONORS:]:
        if (observed & ~hidden).float().mean() >= least:
            break
        fewer = hidden & ~_observed(windows, donor)
        if int(fewer.sum()) >= enough:
            hidden = fewer
    return hidden


def _columns(observed: Tensor, generator: Generator, share: float = 0.2) -> Tensor:
    """Hides whole cells, all variables and frames at once; at least one observed cell is hidden and one is left."""
    places = observed.any(dim=0).any(dim=0)
    chance = torch.rand(places.shape, generator=generator).masked_fill(~places, 2.0)
    count = int(places.sum())
    hidden = max(1, min(count - 1, round(share * count)))
    limit = chance.flatten().sort().values[hidden - 1]
    return observed & (chance <= limit)
