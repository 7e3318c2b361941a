"""Validation without truth: which observed cells are held out of training, and why these.

Random single cells would promise an error far below that of the real gaps. So whole gaps are held out: the gaps of
another window of the same record are laid over a validation window, and the observed cells underneath are hidden.
Windows and donors are paired such that what remains has about the coverage of an ordinary window; otherwise the
validation would ask a harder question than filling does.
"""

import torch
from torch import Generator, Tensor

from fieldfill.windows import HoldOut, Windows

__all__ = ["hold_out"]

MIN_WINDOWS, MAX_WINDOWS = 8, 48
DONORS = 12
MASK_BYTES = 2**27


def hold_out(windows: Windows, share: float, generator: Generator) -> HoldOut:
    """Chooses about ``share`` of the windows and hides in each the gaps of another one.

    A record whose gaps are the same everywhere has no donors; then whole columns of cells (a fifth of the places,
    for all frames of the window) are hidden instead.
    """
    _, variables, _, rows, columns = windows.record.shape
    cells = variables * windows.length * rows * columns
    places = windows.spread_out(256, generator)
    few = min(MIN_WINDOWS, len(places) // 4)
    wanted = max(1, min(max(few, round(share * len(places))), MAX_WINDOWS, MASK_BYTES // cells))
    coverage = {place: _observed(windows, place).float().mean().item() for place in places}
    typical = sorted(coverage.values())[len(places) // 2]
    # The clearest windows come first: a donor's gaps over them leave an ordinary window.
    clearest = sorted(places, key=lambda place: -coverage[place])[: max(wanted, len(places) // 2)]
    order = torch.randperm(len(clearest), generator=generator).tolist()
    chosen: list[tuple[int, int]] = []
    masks: list[Tensor] = []
    for place in (clearest[i] for i in order):
        held = _gaps_of_another(windows, place, places, typical, generator)
        if held is not None:
            chosen.append(place)
            masks.append(held)
        if len(chosen) == wanted:
            break
    if not chosen:
        chosen = [clearest[i] for i in order[:wanted]]
        masks = [_columns(_observed(windows, place), generator) for place in chosen]
    return HoldOut(tuple(chosen), tuple(masks))


def _observed(windows: Windows, place: tuple[int, int]) -> Tensor:
    return windows.at(*place)[1]


def _gaps_of_another(
    windows: Windows,
    place: tuple[int, int],
    places: list[tuple[int, int]],
    typical: float,
    generator: Generator,
) -> Tensor | None:
    """Observed cells of a window under the gaps of the donor that leaves a coverage closest to the typical one."""
    observed = _observed(windows, place)
    domain = torch.from_numpy(windows.record.domain)[:, None]
    enough = max(1, int(0.01 * observed.sum()))
    best, distance = None, float("inf")
    for i in torch.randint(len(places), (DONORS,), generator=generator).tolist():
        gaps = domain & ~_observed(windows, places[i])
        held = observed & gaps
        left = (observed & ~gaps).float().mean().item()
        if places[i] != place and int(held.sum()) >= enough and left > 0 and abs(left - typical) < distance:
            best, distance = held, abs(left - typical)
    return best


def _columns(observed: Tensor, generator: Generator, share: float = 0.2) -> Tensor:
    """Hides whole cells, all variables and frames at once; at least one observed cell is hidden and one is left."""
    places = observed.any(dim=0).any(dim=0)
    chance = torch.rand(places.shape, generator=generator).masked_fill(~places, 2.0)
    count = int(places.sum())
    hidden = max(1, min(count - 1, round(share * count)))
    limit = chance.flatten().sort().values[hidden - 1]
    return observed & (chance <= limit)
