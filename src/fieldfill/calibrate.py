"""Choices and standard deviations that rest on held-out cells: how to fill, and how sure to be.

Held-out cells stand for missing ones. They are weighted such that they lie as deep in gaps as these
(`fieldfill.reweight`); then whatever is measured on them – the error of a way to fill, the share of values inside an
interval – is an estimate of the same for the missing cells.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.config import Config
from fieldfill.denoise import Denoiser
from fieldfill.partition import Partition
from fieldfill.reweight import matching_weights, places_in_gaps
from fieldfill.sample import Ensemble, single_step
from fieldfill.surroundings import surroundings
from fieldfill.uncertainty import Calibration, HeldCells
from fieldfill.windows import Windows, frame_shares

__all__ = ["affordable", "calibrate", "choose_ensemble", "clear_scene", "held_cells", "missing_places"]

BATCH = 8  # windows estimated at a time
CHOICE_CELLS = 2**22  # cells of windows, over contexts and ways to fill, that a choice may cost
MIN_CHOSEN = 6  # windows it is made on, unless they cost more than
DEAR_CELLS = 2**26  # cells
SURVEYED = 64  # windows in which the missing cells are looked at
MAX_PLACES = 200_000  # missing cells that describe them all
ONE_PASS = 0.98  # of its error counts if all observations are used at once, which costs one pass and not ten
CLEAR_SHARE = 0.05  # of the observed cells, hidden one by one

Places = tuple[np.ndarray, np.ndarray, np.ndarray]


def missing_places(windows: Windows, generator: Generator) -> Places:
    """Distance, sparsity and prior weight (n,) of missing cells of the record, with all observations in place.

    The prior is the share of the cell's frame in what is filled, where windows overlap.
    """
    domain = windows.record.domain[:, None]
    shares = frame_shares(windows.record.shape[2], windows.length)[:, None, None]
    parts = []
    for place in windows.spread_out(SURVEYED, generator):
        observed = windows.at(*place)[1].numpy()
        missing = domain & ~observed
        distance, sparsity = places_in_gaps(observed, windows.record.periodic)
        parts.append((distance[missing], sparsity[missing], np.broadcast_to(shares, missing.shape)[missing]))
    distance, sparsity, prior = (np.concatenate(columns) for columns in zip(*parts))
    if len(distance) > MAX_PLACES:
        kept = torch.randperm(len(distance), generator=generator)[:MAX_PLACES].numpy()
        distance, sparsity, prior = distance[kept], sparsity[kept], prior[kept]
    return distance, sparsity, prior


def held_cells(
    denoiser: Denoiser,
    partition: Partition,
    windows: Windows,
    ensemble: Ensemble,
    generator: Generator,
    missing: Places | None,
    most: int | None = None,
) -> HeldCells:
    """Errors at the held-out cells, weighted to look like the ``missing`` ones; all alike if these are None.

    ``most`` limits the number of validation windows that are looked at.
    """
    parts = []
    places = windows.held.places[:most]
    for first in range(0, len(places), BATCH):
        x, left, held = windows.held_out(places[first : first + BATCH])
        parts.append(_estimated(denoiser, partition, x, left, held, ensemble, windows, generator, first))
    cells = _joined(parts)
    if missing is None:
        return cells
    weight = matching_weights((cells.distance, cells.sparsity, cells.weight), missing)
    return replace(cells, weight=weight)


def _estimated(
    denoiser: Denoiser,
    partition: Partition,
    x: Tensor,
    left: Tensor,
    held: Tensor,
    ensemble: Ensemble,
    windows: Windows,
    generator: Generator,
    first: int,
) -> HeldCells:
    """The ``held`` cells of windows (B, C, T, H, W) of which only ``left`` is seen; windows count from ``first``."""
    estimate = single_step(denoiser, x, left, partition, ensemble, generator)
    chosen = held.numpy()
    distance, sparsity = places_in_gaps(left.numpy(), windows.record.periodic)
    window, variable, frame, _, _ = np.nonzero(chosen)
    raw = None if estimate.variance is None else np.sqrt(estimate.variance.numpy()[chosen]).astype(float)
    error = (estimate.mean - x).numpy()[chosen].astype(float)
    prior = frame_shares(windows.record.shape[2], windows.length)[frame]
    around = surroundings(estimate.mean, left, torch.from_numpy(windows.record.domain))[chosen]
    return HeldCells(error, raw, distance[chosen], sparsity[chosen], variable, window + first, prior, around)


def _joined(parts: list[HeldCells]) -> HeldCells:
    columns: dict[str, Any] = {
        name: None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts])
        for name in vars(parts[0])
    }
    return HeldCells(**columns)


def choose_ensemble(
    denoiser: Denoiser, partition: Partition, windows: Windows, config: Config, generator: Generator
) -> tuple[Ensemble, dict[str, float]]:
    """Contexts or all observations at once, whichever has the smaller error on the held-out cells.

    Contexts cost a pass each and must be better by a margin. They are balanced, drawn as in training, of nine tenths of
    the observations, or of the density that the training contexts had. Without a choice they are drawn at random, as in
    the paper.
    """
    candidates = [Ensemble(config.contexts, design="random")]
    if config.choose_contexts and config.contexts:
        density = sum(config.keep) / 2 * _coverage(windows, generator)
        balanced = [Ensemble(config.contexts, keep=0.9), Ensemble(config.contexts, density=density)]
        candidates = [Ensemble(config.contexts), *balanced, Ensemble(0)]
    missing = missing_places(windows, generator)
    evaluations = sum(max(1, ensemble.count) for ensemble in candidates)
    most = affordable(evaluations * windows.at(*windows.places[0])[0].numel())
    scores = {}
    for ensemble in candidates:
        cells = held_cells(denoiser, partition, windows, ensemble, generator, missing, most)
        scores[ensemble] = float(np.average(cells.error**2, weights=cells.weight))
    best = min(scores, key=lambda ensemble: scores[ensemble] * (1 if ensemble.count else ONE_PASS))
    return best, {str(ensemble): score for ensemble, score in scores.items()}


def affordable(cells: int) -> int:
    """How many windows a choice is made on if each costs so many cells."""
    return max(2, min(MIN_CHOSEN, DEAR_CELLS // cells), CHOICE_CELLS // cells)


def _coverage(windows: Windows, generator: Generator) -> float:
    """Mean share of the domain that is observed in a window."""
    domain = float(windows.record.domain.sum() * windows.length)
    places = windows.spread_out(SURVEYED, generator)
    return sum(float(windows.visible(*place)[1].sum()) for place in places) / (len(places) * domain)


def calibrate(
    denoiser: Denoiser, partition: Partition, windows: Windows, ensemble: Ensemble, generator: Generator
) -> Calibration:
    """The calibration of a fill with ``ensemble``; its summary also says how well held-out cells can stand in."""
    missing = missing_places(windows, generator)
    cells = held_cells(denoiser, partition, windows, ensemble, generator, missing)
    fitted = Calibration.fit(cells, windows.record.shape[1])
    beyond = float(missing[2][missing[0] > fitted.reach].sum() / max(missing[2].sum(), 1e-9))
    fitted.summary["missing_beyond_reach"] = beyond
    return fitted


def clear_scene(
    denoiser: Denoiser, partition: Partition, windows: Windows, ensemble: Ensemble, generator: Generator
) -> Calibration:
    """For comparison only: one factor from single cells hidden at random among the observations, all counted alike.

    Such cells have close neighbours, whose errors say little about the middle of a gap.
    """
    parts = []
    for number, place in enumerate(windows.held.places):
        x, observed = (part[None] for part in windows.at(*place))
        held = observed & (torch.rand(observed.shape, generator=generator) < CLEAR_SHARE)
        if held.any():
            parts.append(
                _estimated(denoiser, partition, x, observed & ~held, held, ensemble, windows, generator, number)
            )
    return Calibration.fit(replace(_joined(parts), around=None), windows.record.shape[1], by_distance=False)
