"""Measures jobs: loads or simulates the data, loads or trains the model, fills, writes the row."""

import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from fieldfill.api import Filler
from fieldfill.api import load as load_model
from fieldfill.baselines import Baseline
from fieldfill.bench import rows, speed
from fieldfill.bench.benches import BENCHES, Job, jobs_of, paper_value
from fieldfill.bench.cases import CASES, Case, Data, Scale, Unavailable, load
from fieldfill.bench.measuring import Clock, clocked, learning, metrics, provenance
from fieldfill.bench.methods import LEARNT, check_size, classical, ensemble_of, learnt
from fieldfill.bench.multistep import realise
from fieldfill.bench.published import best_classical
from fieldfill.bench.real_records import REAL_RECORDS
from fieldfill.config import Settings
from fieldfill.data.output_paths import check_folder
from fieldfill.errors import InputError
from fieldfill.sampling.contexts import Ensemble
from fieldfill.workflow.checkpoint import RunFolder

__all__ = ["Runner", "default_cache", "uncorrected", "use_ensemble"]


def default_cache(results: Path) -> Path:
    """A folder beside the results; a file in it keeps it out of version control."""
    return results.resolve().parent / ".bench_cache"


@dataclass
class Runner:
    """Measures rows with one scale, one cache and one budget.

    Attributes
    ----------
    minutes
        Training budget in place of the scale's.
    log
        Takes a line of text after each row.
    """

    results: Path
    scale: Scale
    cache: Path
    minutes: float | None = None
    threads: int = 2
    log: Callable[[str], None] = field(default=lambda text: None)
    _loaded: tuple[tuple[str, int], Data] | None = None

    def run(self, jobs: list[Job], seeds: list[int]) -> dict[str, int]:
        """Makes the rows that are not there yet; returns how many were made, were there and could not be made."""
        rows.check_scale(self.results, self.scale.name)
        check_folder(self.results)
        ignore = check_folder(self.cache) / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        torch.set_num_threads(self.threads)
        counts = {"made": 0, "kept": 0, "not available": 0}
        todo = [(seed, job) for seed in seeds for job in jobs]
        for number, (seed, job) in enumerate(todo, start=1):
            if rows.is_measured(rows.find(self.results, job.bench, job.case, job.method, seed)):
                counts["kept"] += 1
                continue
            begun = time.monotonic()
            row = self.row(job, seed)
            rows.write(self.results, row)
            counts["made" if row["status"] == rows.MEASURED else "not available"] += 1
            self.log(f"[{number}/{len(todo)}] {_line(row)}  ({time.monotonic() - begun:.0f} s)")
        return counts

    def row(self, job: Job, seed: int) -> rows.Row:
        """Measures one job."""
        row: rows.Row = {
            "bench": job.bench,
            "case": job.case,
            "method": job.method,
            "scale": self.scale.name,
            "seed": seed,
            "status": rows.MEASURED,
            "paper": {"value": paper_value(job), "best_classical": best_classical(job.case)},
            **provenance(self.threads),
        }
        twin = self._measured_elsewhere(job, seed)
        if twin is not None:
            return twin | {name: row[name] for name in ("bench", "method", "paper")}
        try:
            if job.size is not None:
                return row | self._speed(job)
            return row | self._fill(job, seed)
        except Unavailable as error:
            return rows.unavailable(row, str(error))

    def _measured_elsewhere(self, job: Job, seed: int) -> rows.Row | None:
        """The row of another bench in which the same model, trained as long, fills the same data in the same way."""
        minutes = (self.minutes or self.scale.minutes) if job.trained in LEARNT else None
        twins = {
            (other.bench, other.case, other.method, seed)
            for other in jobs_of(list(BENCHES), self.scale)
            if replace(other, bench=job.bench, method=job.method) == job
        }
        for row in rows.read(self.results):
            same = (row["bench"], row["case"], row["method"], row["seed"]) in twins
            if same and rows.is_measured(row) and row.get("budget", {}).get("minutes") == minutes:
                return row
        return None

    def _speed(self, job: Job) -> dict[str, Any]:
        assert job.size is not None
        frames, cells = job.size
        case = CASES["advection-pixel30"]
        config = learnt(job.trained, case, self.scale, frames, self.minutes, dict(job.changes))
        batch = max(1, min(8, 2**19 // (frames * cells**2)))
        with clocked() as clock:
            found = speed.measure(config, cells, batch)
        return {"metrics": found, "sizes": {"frames": frames, "cells": cells, "batch": batch}, **_cost(clock)}

    def _fill(self, job: Job, seed: int) -> dict[str, Any]:
        case = CASES[job.case]
        if job.trained in LEARNT:
            config = learnt(job.trained, case, self.scale, 1, self.minutes, dict(job.changes))  # are all names known?
        data = self.data(job.case, seed)
        test = data if job.test is None else self.data(job.test.name, seed)
        if job.omega is not None:
            test = test.judged_by(self.scale.realised)
        sizes = {
            "train": data.train.sizes.get("sample", 1),
            "test": test.truth.sizes.get("sample", 1),
            "frames": data.frames,
            "grid": list(data.domain.shape[-2:]),
        }
        if job.trained not in LEARNT:
            check_size(job.trained, case, data.frames * data.domain.size)
            chosen = classical(job.trained, case, self.scale, data.domain)
            return self._classical(chosen.method, chosen.fit_samples, case, data, sizes)
        config = learnt(job.trained, case, self.scale, data.frames, self.minutes, dict(job.changes))
        filler, facts = self.trained(job, config, data, seed)
        if case.real and job.corrected:
            first = _scored(case, uncorrected(filler).fill(test.test), test.truth)
            facts["first_estimate"] = {name: entry["rmse"] for name, entry in first["variables"].items()}
        filler = filler if job.corrected else uncorrected(filler)
        use_ensemble(filler, job.ensemble or ensemble_of(job.trained, config))
        with clocked() as clock:
            if job.omega is None:
                filled = filler.fill(test.test)
            else:
                filled = realise(filler, test.test, job.omega, self.scale.solver_steps, seed)
        if not job.corrected:  # the standard deviation is calibrated for the corrected fill
            filled = filled.drop_vars([f"{name}_std" for name in test.truth.data_vars])
        return {
            "metrics": _scored(case, filled, test.truth),
            "sizes": sizes | {"window": filler.model_.shape[0]},
            "budget": _budget(config),
            **facts,
            "fill_seconds": clock.seconds,
            "peak_mb": max(clock.peak_mb, facts["peak_mb"]),
        }

    def _classical(
        self, method: Baseline, fit_samples: int | None, case: Case, data: Data, sizes: dict[str, Any]
    ) -> dict[str, Any]:
        train = data.train
        if fit_samples is not None and "sample" in train.dims:
            train = train.isel(sample=slice(fit_samples))
        with clocked() as learning:
            method.fit(train)
        with clocked() as filling:
            filled = method.fill(data.test)
        return {
            "metrics": _scored(case, filled, data.truth),
            "sizes": sizes | {"train": train.sizes.get("sample", 1)},
            "budget": {"minutes": None, "steps": 0},
            "train_seconds": learning.seconds,
            "train_steps": 0,
            "fill_seconds": filling.seconds,
            "cpu_seconds": learning.cpu_seconds + filling.cpu_seconds,
            "peak_mb": max(learning.peak_mb, filling.peak_mb),
            "settings": repr(method),
        }

    def data(self, case: str, seed: int) -> Data:
        """The data of a case; those of the last one stay in memory."""
        if self._loaded is None or self._loaded[0] != (case, seed):
            self._loaded = None  # two large cases need not be in memory together
            self._loaded = (case, seed), load(CASES[case], self.scale, seed, self.cache, self.log)
        return self._loaded[1]

    def trained(self, job: Job, config: Settings, data: Data, seed: int) -> tuple[Filler, dict[str, Any]]:
        """The model of a job, from the cache if it was trained before, and what its training cost."""
        path = self.model_path(job, config, seed)
        facts_file = path.with_suffix(".json")
        if path.exists() and facts_file.exists():
            return load_model(path), json.loads(facts_file.read_text())
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint = path.with_suffix(".part")
        with clocked() as clock:
            filler = _fit(Filler(settings=config, seed=seed, domain=data.domain), data.train, checkpoint)
        notes = filler.model_.notes
        last = notes["history"][-1]
        partition = filler.model_.partition_name
        found = filler.summary()
        facts = {
            # A run that was interrupted and resumed has trained for longer than this process.
            "train_seconds": max(clock.seconds, last["seconds"]),
            "train_steps": int(last["step"]),
            "cpu_seconds": clock.cpu_seconds,
            "peak_mb": clock.peak_mb,
            "ensemble": str(filler.model_.ensemble),
            "partition": partition,
            "unlearnable_share": notes["audit"][partition]["unlearnable_share"],
            "validation": notes["validation"],
            "learning": learning(notes["history"]),
            "stopped_early": found["stopped_early"],
            "crop": found["crop"],
            "stages": found["stages"],
            "validation_crops": found["validation_crops"],
            "effective_crops": notes["calibration"].get("effective_windows"),
        }
        filler.save(path, overwrite=True)
        partial = facts_file.with_suffix(f".tmp{os.getpid()}")
        partial.write_text(json.dumps(facts, default=float))
        os.replace(partial, facts_file)
        RunFolder(checkpoint).discard()
        return filler, facts

    def model_path(self, job: Job, config: Settings, seed: int) -> Path:
        """Where the model of a job is kept: apart for each budget."""
        minutes, steps = _budget(config)["minutes"], config.training.steps
        budget = f"{steps}steps" if minutes is None else f"{minutes:g}min"
        folder = self.cache / self.scale.name / "models" / budget
        return folder / f"{job.case}__{job.model}__seed{seed}.ff"


def _fit(filler: Filler, train: xr.Dataset, checkpoint: Path) -> Filler:
    """Goes on with an interrupted training if there is one that fits."""
    if checkpoint.exists():
        try:
            return filler.fit(train, checkpoint, resume=True)
        except InputError as error:
            if not str(error).startswith("cannot resume"):
                raise
    return filler.fit(train, checkpoint)


def _budget(config: Settings) -> dict[str, Any]:
    """What ends a training: minutes of the training loop, those of the whole fit, or steps."""
    training = config.training
    if config.minutes is not None:
        return {"minutes": config.minutes, "steps": None, "of": "fit"}
    return {"minutes": training.minutes, "steps": training.steps}


def _scored(case: Case, filled: xr.Dataset, truth: xr.Dataset) -> dict[str, Any]:
    return metrics(filled, truth, case.real and REAL_RECORDS[case.data].zeros_apart)


def uncorrected(filler: Filler) -> Filler:
    """The same fitted model without the correction of its network, filling from all observations at once."""
    denoiser = copy.deepcopy(filler.model_.denoiser)
    denoiser.gain.zero_()
    first = copy.copy(filler)
    first.model_ = replace(filler.model_, denoiser=denoiser, ensemble=Ensemble(0))
    return first


def use_ensemble(filler: Filler, ensemble: Ensemble | None) -> None:
    """Makes the model fill in another way than the one it has chosen; None changes nothing."""
    if ensemble is not None:
        filler.model_ = replace(filler.model_, ensemble=ensemble)


def _cost(clock: Clock) -> dict[str, Any]:
    return {
        "train_seconds": clock.seconds,
        "train_steps": 0,
        "fill_seconds": 0.0,
        "cpu_seconds": clock.cpu_seconds,
        "peak_mb": clock.peak_mb,
    }


def _line(row: rows.Row) -> str:
    name = f"{row['bench']} {row['case']} {row['method']} seed {row['seed']}"
    if row["status"] != rows.MEASURED:
        return f"{name}: not available: {row['reason']}"
    found = row["metrics"]
    if "share_of_variance" in found:
        return f"{name}: {found['share_of_variance']:.4f} of the variance"
    return f"{name}: {found['samples_per_second']:.2f} samples/s"
