"""The steps of `fit`, in order: crops, climatology, partition, first estimate, network, contexts, calibration."""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from fieldfill.config import Settings, build_denoiser, static_features
from fieldfill.data.crops import Crops
from fieldfill.data.grid import Grid
from fieldfill.diffusion.team import Team
from fieldfill.diffusion.training import Progress, Training
from fieldfill.estimators.base import Lesson
from fieldfill.estimators.climatology import Climatology, learn_normaliser
from fieldfill.seeds import stream
from fieldfill.uncertainty.held_cells import calibrate, choose_ensemble
from fieldfill.workflow.checking import audited, mask_bank, summary
from fieldfill.workflow.checkpoint import RunFolder
from fieldfill.workflow.model import Model
from fieldfill.workflow.opening import Source, given_maps, open_crops

__all__ = ["fit_model"]


def fit_model(
    source: Source,
    settings: Settings,
    seed: int,
    team: Team,
    folder: RunFolder | None = None,
    resume: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> Model:
    """Learns a model from gappy data; with ``folder`` a run that was killed can be taken up again."""
    with folder.held() if folder is not None and team.first else nullcontext():
        return _fit(source, settings, seed, team, folder, resume, report)


def _fit(
    source: Source,
    settings: Settings,
    seed: int,
    team: Team,
    folder: RunFolder | None,
    resume: bool,
    report: Callable[[Progress], None] | None,
) -> Model:
    crops = open_crops(source, settings, seed)
    record = crops.record
    identity = _identity(settings, seed, crops)
    team.agree({**identity, "held-out crops": crops.held.places})
    if folder is not None and resume:
        folder.check_fit(identity)  # before anything is learnt
    if Climatology.name in settings.estimators:
        crops.normalise(learn_normaliser(crops, stream(seed, "climatology")))
    bank = mask_bank(crops, seed)
    name, partition, audits = audited(crops, bank, settings, seed)
    maps = torch.cat([static_features(crops.domain, crops.normaliser), given_maps(record, settings)])
    crops.maps = maps
    denoiser = build_denoiser(settings, crops.shape, len(record.variables), crops.periodic, seed, len(maps))
    training = Training(denoiser, crops, partition, settings.training, seed, team)
    state = None if folder is None else folder.state
    if resume and state is not None and state.exists():
        training.load(state)
    else:
        lesson = Lesson(crops, partition, denoiser.schedule.least_noise, seed, stream(seed, "covariance"))
        training.notes = denoiser.learn_first(lesson)
    if folder is not None and team.first:
        folder.prepare(identity, resume)
    team.wait()
    training.run(report if team.first else None, state)
    denoiser.eval()
    choice = stream(seed, "choice")
    keep = settings.keep if settings.choose_contexts else None
    ensemble, choices = choose_ensemble(denoiser, partition, crops, settings.contexts, keep, choice)
    spread = calibrate(denoiser, partition, crops, ensemble, choice)
    notes: dict[str, Any] = {
        "first_estimate": training.notes,
        "history": training.history,
        "skipped_crops": training.skipped,
        "validation_crops": len(crops.held.places),
        "held_out_cells": sum(int(mask.sum()) for mask in crops.held.masks),
        "validation": choices,
        "calibration": spread.summary,
        "audit": {key: summary(value) for key, value in audits.items()},
    }
    sel = source.sel or {}
    return Model(
        config=settings,
        seed=seed,
        variables=record.variables,
        dims=source.dims,
        sel={name: value if isinstance(value, str | float) else str(value) for name, value in sel.items()},
        each=record.axes.each,
        grid=Grid.of(record),
        shape=crops.shape,
        normaliser=crops.normaliser,
        denoiser=denoiser,
        partition_name=name,
        partition=partition,
        bank=bank,
        domain=crops.domain,
        maps=maps,
        unsupported=audits[name].unsupported,
        exposure=audits[name].per_cell,
        ensemble=ensemble,
        spread=spread,
        notes=notes,
    )


def _identity(settings: Settings, seed: int, crops: Crops) -> dict[str, Any]:
    """What a checkpoint must share with the run that takes it up."""
    record = crops.record
    return {
        "config": settings.model_dump(mode="json"),
        "seed": seed,
        "variables": list(record.variables),
        "dims": list(record.axes.names),
        "shape": list(record.shape),
        "domain": hashlib.sha256(np.packbits(record.domain).tobytes()).hexdigest(),
        "mean": record.mean.tolist(),
        "std": record.std.tolist(),
    }
