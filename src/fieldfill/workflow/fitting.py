"""The steps of `fit`, in order: crops, climatology, partition, first estimate, network, contexts, calibration."""

import hashlib
import json
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldfill.config import UNLIMITED_STEPS, Settings, build_denoiser, static_features
from fieldfill.data.crops import Crops
from fieldfill.data.grid import Grid
from fieldfill.data.other_times import OtherTimes
from fieldfill.data.transforms import Normaliser
from fieldfill.diffusion.saved_state import saved_normaliser
from fieldfill.diffusion.team import Team
from fieldfill.diffusion.training import Step, Training
from fieldfill.errors import InputError
from fieldfill.estimators.base import Lesson
from fieldfill.estimators.climatology import ZeroAnomaly, learn_normaliser
from fieldfill.estimators.standing import Standing
from fieldfill.execution.threads import using_threads
from fieldfill.seeds import stream
from fieldfill.stages import Report, Stages
from fieldfill.workflow.checking import audited, check_number, mask_bank, summary
from fieldfill.workflow.checkpoint import RunFolder
from fieldfill.workflow.description import refusing_damage
from fieldfill.workflow.ending import Ending
from fieldfill.workflow.model import Model
from fieldfill.workflow.opening import DataSource, crop_reason, given_maps, open_crops
from fieldfill.workflow.plan import make_plan

__all__ = ["fit_model"]

# What a damaged file is, and the way out.
RESTART = ("checkpoint", "start anew with --overwrite (in Python, without resume=True)")


def fit_model(
    source: DataSource,
    settings: Settings,
    seed: int,
    team: Team,
    folder: RunFolder | None = None,
    resume: bool = False,
    report: Report | None = None,
    threads: int | None = None,
) -> Model:
    """Learns a model from gappy data; with ``folder`` a run that was killed can be taken up again."""
    limit = math.inf if settings.minutes is None else 60 * settings.minutes
    stages = Stages(report if team.first else None, limit, team.of_first)
    stages.begin("opening")
    with folder.held() if folder is not None and team.first else nullcontext():
        opened = _open(source, settings, seed, team, folder, resume)
        plan = make_plan(opened.crops, settings, seed, threads)
        stages.note(*plan.lines(crop_reason(opened.crops, settings)))
        with using_threads(plan.threads):
            return _fit(source, opened, settings, seed, team, folder, resume, stages)


@dataclass(frozen=True)
class _Opened:
    """What is known before anything is learnt; all that can be wrong with the input was found by then.

    ``normaliser`` is that of the checkpoint that is taken up, if there is one.
    """

    crops: Crops
    maps: torch.Tensor
    identity: dict[str, Any]
    normaliser: Normaliser | None


def _open(
    source: DataSource, settings: Settings, seed: int, team: Team, folder: RunFolder | None, resume: bool
) -> _Opened:
    crops = open_crops(source, settings, seed)
    check_number(crops)
    maps, identity, normaliser = given_maps(crops.record, settings), _identity(settings, seed, crops), None
    _check_text(identity)
    team.agree({**identity, "held-out crops": crops.held.places})
    if folder is not None and resume:
        folder.check_fit(identity)
        if folder.state.exists():
            with refusing_damage(folder.state, *RESTART):
                normaliser = saved_normaliser(folder.state)
    return _Opened(crops, maps, identity, normaliser)


def _fit(
    source: DataSource,
    opened: _Opened,
    settings: Settings,
    seed: int,
    team: Team,
    folder: RunFolder | None,
    resume: bool,
    stages: Stages,
) -> Model:
    crops, state = opened.crops, None if folder is None else folder.state
    record = crops.record
    stages.begin("mean and spread", share=settings.climatology.share)
    if opened.normaliser is not None:
        crops.normalise(opened.normaliser)
    elif ZeroAnomaly.name in settings.estimators:
        crops.normalise(learn_normaliser(crops, stream(seed, "climatology"), settings.climatology, stages))
    stages.begin("audit")
    bank = mask_bank(crops, settings, seed)
    name, partition, audits = audited(crops, bank, settings, seed)
    maps = torch.cat([static_features(crops.domain, crops.normaliser), opened.maps])
    crops.maps = maps
    if Standing.name in settings.estimators and record.shape[2] > crops.length:
        crops.others = OtherTimes.of(crops, settings.standing.weight, settings.standing.rounds)
    others = crops.others is not None
    denoiser = build_denoiser(settings, crops.shape, len(record.variables), crops.periodic, seed, len(maps), others)
    training = Training(denoiser, crops, partition, settings.training, seed, team)
    if opened.normaliser is not None and state is not None:
        with refusing_damage(state, *RESTART):
            training.load(state)
    else:
        generator = stream(seed, "covariance")
        lesson = Lesson(crops, partition, denoiser.schedule.least_noise, seed, generator, stages=stages)
        training.notes = denoiser.learn_first(lesson)
    if folder is not None and team.first:
        folder.prepare(opened.identity, resume)
    team.wait()
    ending = Ending.of(denoiser, partition, crops, settings, seed, stages)
    _train(training, ending, stages, state)
    choice = stream(seed, "choice")
    ensemble, choices = ending.choose(choice)
    spread = ending.calibrated(ensemble, choice)
    notes: dict[str, Any] = {
        "first_estimate": training.notes,
        "history": training.history,
        "skipped_crops": training.skipped,
        "stopped_early": training.stopped_early,
        "fit_seconds": stages.seconds,
        "validation_crops": len(crops.held),
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
        domain_given=source.domain is not None,
        maps=maps,
        others=None if crops.others is None else crops.others.known(),
        unsupported=audits[name].unsupported,
        exposure=audits[name].per_cell,
        ensemble=ensemble,
        spread=spread,
        notes=notes,
    )


def _train(training: Training, ending: Ending, stages: Stages, state: Path | None) -> None:
    """Trains until the steps are made, or until the time is used up that the rest of the fit leaves."""
    settings = training.settings
    if stages.limited and math.isinf(training.limit):
        training.limit = max(0.0, stages.left - ending.seconds)
    stages.begin("training", settings.steps if settings.steps < UNLIMITED_STEPS else 0)

    def report(step: Step) -> None:
        detail = f"loss {step.loss:.4f}, validation {step.validation:.4f}, {step.windows_per_second:.0f} crops/s"
        stages.advance(detail, step.step, step.seconds_left)

    training.run(report, state)
    training.denoiser.eval()
    if training.stopped_early:
        stages.note(
            f"training stopped at step {training.step}: no improvement on held-out cells in the last "
            f"{training.stale} validations"
        )


def _check_text(identity: dict[str, Any]) -> None:
    """Refuses names that no description of a model can hold: some files have names that are no valid UTF-8."""
    try:
        json.dumps(identity, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        raise InputError(f"a name in {around!r} is no valid text; rename the variable or dimension") from error


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
