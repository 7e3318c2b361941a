"""Choices and standard deviations that rest on held-out cells: how to fill, and how sure to be.

Held-out cells stand for missing ones. They are weighted such that they lie as deep in gaps as these
(`fieldfill.uncertainty.weights`); then whatever is measured on them – the error of a way to fill, the share of values
inside an interval – is an estimate of the same for the missing cells.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Batch, Crops
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.estimators.chain import HeldOutError
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import Ensemble, single_step
from fieldfill.uncertainty.calibration import Calibration, HeldCells
from fieldfill.uncertainty.local_scale import surroundings
from fieldfill.uncertainty.weights import Places, matching_weights, places_in_gaps

__all__ = ["affordable", "calibrate", "choose_ensemble", "clear_scene", "held_cells", "missing_places"]

# Crops that are estimated at a time.
BATCH = 8
# Crops in which the missing cells are looked at.
SURVEYED = 64
# Share of the error that contexts must remove to be used: they cost ten passes instead of one.
CONTEXT_GAIN = 0.02


def missing_places(crops: Crops, generator: Generator, most: int = 200_000) -> Places:
    """Where missing cells of the record lie, with all observations in place; at most ``most`` cells are taken.

    Beforehand a cell counts as much as its frame does in what is filled, where crops overlap.
    """
    shares, rarity = crops.tiling.shares(), _rarity(crops)
    parts = []
    for place in crops.spread_out(SURVEYED, generator, least=SURVEYED):
        observed = crops.at(place)[1].numpy()
        missing = crops.cut(crops.domain, place).numpy()[:, None] & ~observed
        rare = crops.cut(rarity, place).numpy()[:, None]
        columns = (
            *places_in_gaps(observed, crops.periodic),
            *(np.broadcast_to(v, missing.shape) for v in (rare, shares)),
        )
        parts.append([column[missing] for column in columns])
    found = Places(*(np.concatenate(columns) for columns in zip(*parts)))
    if len(found) <= most:
        return found
    return found.where(torch.randperm(len(found), generator=generator)[:most].numpy())


def _rarity(crops: Crops, held: int = 0) -> Tensor:
    """Share (C, H, W) of the frames in which a cell is not observed, ``held`` of its observations apart."""
    samples, _, frames, _, _ = crops.record.shape
    return torch.from_numpy(1 - (crops.record.counts - held) / (samples * frames))


def held_cells(
    denoiser: Denoiser,
    partition: Partition,
    crops: Crops,
    ensemble: Ensemble,
    generator: Generator,
    missing: Places | None,
    most: int | None = None,
) -> HeldCells:
    """Errors at the held-out cells, weighted to look like the ``missing`` ones; all alike if these are None.

    ``most`` limits the number of validation crops that are looked at.
    """
    parts = []
    chosen = range(len(crops.held))[:most]
    for some in (chosen[first : first + BATCH] for first in range(0, len(chosen), BATCH)):
        batch, held = crops.held_out(some)
        parts.append(_estimated(denoiser, partition, batch, held, ensemble, crops, generator, some))
    cells = _joined(parts)
    if missing is None:
        return cells
    own = Places(cells.distance, cells.sparsity, cells.rarity, cells.weight)
    return replace(cells, weight=matching_weights(own, missing))


def _estimated(
    denoiser: Denoiser,
    partition: Partition,
    batch: Batch,
    held: Tensor,
    ensemble: Ensemble,
    crops: Crops,
    generator: Generator,
    numbers: Sequence[int],
) -> HeldCells:
    """The ``held`` cells of crops of which the others are observed; ``numbers`` are those of the crops."""
    estimate = single_step(denoiser, batch.x, batch.observed, batch.maps, partition, ensemble, generator)
    chosen = held.numpy()
    distance, sparsity = places_in_gaps(batch.observed.numpy(), crops.periodic)
    crop, variable, frame, row, column = np.nonzero(chosen)
    raw = None if estimate.variance is None else np.sqrt(estimate.variance.numpy()[chosen]).astype(float)
    error = (estimate.mean - batch.x).numpy()[chosen].astype(float)
    prior = crops.tiling.shares()[frame, row, column] * crops.held.weights_of(numbers).numpy()[crop]
    around = surroundings(estimate.mean, batch.observed, batch.domain)[chosen]
    # A held-out cell is observed, but for its own frame it must count like a missing one.
    rare = torch.stack([crops.cut(_rarity(crops, held=1), place) for place in batch.places])[:, :, None]
    rarity = rare.expand(held.shape).numpy()[chosen]
    gaps = distance[chosen], sparsity[chosen], rarity
    return HeldCells(error, raw, *gaps, variable, np.array(numbers)[crop], prior, around)


def _joined(parts: list[HeldCells]) -> HeldCells:
    columns: dict[str, Any] = {
        name: None if getattr(parts[0], name) is None else np.concatenate([getattr(part, name) for part in parts])
        for name in vars(parts[0])
    }
    return HeldCells(**columns)


def choose_ensemble(
    denoiser: Denoiser,
    partition: Partition,
    crops: Crops,
    contexts: int,
    keep: tuple[float, float] | None,
    generator: Generator,
    most: int | None = None,
) -> tuple[Ensemble, dict[str, float]]:
    """Contexts or all observations at once, whichever has the smaller error on the held-out cells.

    Contexts cost a pass each. They must be better by a margin, and by more than the standard error of the difference
    over validation crops. They are balanced, drawn as in training, of nine tenths of
    the observations, or of the density that the training contexts had, which kept a share of the observations within
    ``keep``. Without ``keep`` there is no choice: contexts are drawn at random, as in the paper. ``most`` limits the
    validation crops that the choice is made on.
    """
    candidates = [Ensemble(contexts, design="random")]
    if keep is not None and contexts:
        density = sum(keep) / 2 * _coverage(crops, generator)
        balanced = [Ensemble(contexts, keep=0.9), Ensemble(contexts, density=density)]
        candidates = [Ensemble(contexts), *balanced, Ensemble(0)]
    missing = missing_places(crops, generator)
    evaluations = sum(max(1, ensemble.count) for ensemble in candidates)
    most = min(most or len(crops.held), affordable(evaluations * crops.cells))
    found = {e: held_cells(denoiser, partition, crops, e, generator, missing, most) for e in candidates}
    scores = {e: float(np.average(cells.error**2, weights=cells.weight)) for e, cells in found.items()}
    best, direct = min(scores, key=lambda ensemble: scores[ensemble]), Ensemble(0)
    if direct in found and best != direct:
        gain = _gain(found[best], found[direct])
        if gain.mean <= max(CONTEXT_GAIN * scores[direct], gain.standard_error):
            best = direct
    return best, {str(ensemble): score for ensemble, score in scores.items()}


def _gain(cells: HeldCells, others: HeldCells) -> HeldOutError:
    """By how much the squared error of ``cells`` is below that of ``others``, the same cells filled otherwise."""
    _, crop = np.unique(cells.window, return_inverse=True)
    less = others.weight * (others.error**2 - cells.error**2)
    return HeldOutError.of(np.bincount(crop, less).tolist(), np.bincount(crop, others.weight).tolist())


def affordable(cells: int, usual: int = 2**22, most: int = 2**26, fewest: int = 6) -> int:
    """How many crops a choice is made on if each costs so many cells, over contexts and ways to fill.

    ``usual`` is what a choice costs. It may cost up to ``most`` cells if it would rest on fewer than ``fewest`` crops.
    """
    return max(2, min(fewest, most // cells), usual // cells)


def _coverage(crops: Crops, generator: Generator) -> float:
    """Mean share of the domain that is observed in a crop."""
    seen, cells = 0.0, 0.0
    for place in crops.spread_out(SURVEYED, generator, least=SURVEYED):
        seen += float(crops.visible(place)[1].sum())
        cells += float(crops.cut(crops.domain, place).sum() * crops.length)
    return seen / max(1.0, cells)


def calibrate(
    denoiser: Denoiser,
    partition: Partition,
    crops: Crops,
    ensemble: Ensemble,
    generator: Generator,
    most: int | None = None,
) -> Calibration:
    """The calibration of a fill with ``ensemble``; its summary includes how well held-out cells can stand in.

    ``most`` limits the number of validation crops that it rests on.
    """
    missing = missing_places(crops, generator)
    cells = held_cells(denoiser, partition, crops, ensemble, generator, missing, most)
    fitted = Calibration.fit(cells, crops.record.shape[1])
    beyond = float(missing.prior[missing.distance > fitted.reach].sum() / max(missing.prior.sum(), 1e-9))
    fitted.summary["missing_beyond_reach"] = beyond
    return fitted


def clear_scene(
    denoiser: Denoiser,
    partition: Partition,
    crops: Crops,
    ensemble: Ensemble,
    generator: Generator,
    share: float = 0.05,
) -> Calibration:
    """For comparison only: one factor from a ``share`` of the observed cells, hidden one by one and all counted alike.

    Such cells have close neighbours, and their errors are much smaller than those in the middle of a gap.
    """
    parts = []
    for number in range(len(crops.held)):
        batch, withheld = crops.held_out([number])
        observed = batch.observed | withheld
        held = observed & (torch.rand(observed.shape, generator=generator) < share)
        if held.any():
            clear = replace(batch, observed=observed & ~held)
            parts.append(_estimated(denoiser, partition, clear, held, ensemble, crops, generator, [number]))
    return Calibration.fit(replace(_joined(parts), around=None), crops.record.shape[1], by_distance=False)
