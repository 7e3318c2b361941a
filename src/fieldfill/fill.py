"""The facade: `Filler` learns from a gappy data set and fills it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from fieldfill.audit import audited, mask_bank, summary
from fieldfill.axes import find_axes
from fieldfill.budget import Budget, budget_table
from fieldfill.calibrate import calibrate, choose_ensemble
from fieldfill.climatology import learn_normaliser
from fieldfill.config import Config, build_denoiser, preset, static_features
from fieldfill.covariance import learn_covariance
from fieldfill.errors import InputError
from fieldfill.estimates import Estimator, estimates
from fieldfill.grid import Grid
from fieldfill.holdout import hold_out
from fieldfill.inputs import DAY_OF_YEAR, SEASON, static_maps, with_season
from fieldfill.members import Sampling, draw_members, missing_cells
from fieldfill.model import Model
from fieldfill.multistep import Solver
from fieldfill.nn import GaussianSkip
from fieldfill.parallel import join
from fieldfill.record import Record, as_dataset, open_record
from fieldfill.refine import learn_first_estimate
from fieldfill.sample import density_matched
from fieldfill.seeds import stream
from fieldfill.steering import Steering
from fieldfill.train import Progress, Training
from fieldfill.windows import Normaliser, Windows, cover

__all__ = ["Filler", "budget_of", "load"]

CHECKPOINT = "checkpoint.pt"
PARTS = tuple(field.name for field in fields(Budget))

Dims = tuple[str, str, str]
DomainLike = str | xr.DataArray | np.ndarray | None


class Filler:
    """Learns a diffusion model from gappy data and fills the gaps.

    Parameters
    ----------
    window
        Number of consecutive frames that the model sees together.
    seed
        Everything random follows from it.
    variables, dims, domain
        See `fieldfill.record.open_record`.
    preset, partition, steps, minutes
        See `fieldfill.config`; ``partition="auto"`` takes the one that the exposure audit recommends.
    config
        A complete `Config` in place of window, preset, partition, steps and minutes.
    inputs
        What else the network may know: ``coordinates``, ``day-of-year``, names of maps; see `fieldfill.inputs`.
    log
        Names of positive variables that are learnt in their logarithm: v is the median, never below 0.

    Attributes
    ----------
    model_
        The fitted `fieldfill.model.Model`.
    """

    model_: Model

    def __init__(
        self,
        window: int = 8,
        seed: int = 0,
        variables: Sequence[str] | None = None,
        dims: Dims | None = None,
        domain: DomainLike = None,
        preset: str = "fast",
        partition: str = "auto",
        steps: int | None = None,
        minutes: float | None = None,
        config: Config | None = None,
        inputs: Sequence[str] = (),
        log: Sequence[str] = (),
    ) -> None:
        self.inputs, self.log = tuple(inputs), tuple(log)
        self.window, self.seed, self.variables, self.dims, self.domain = window, seed, variables, dims, domain
        self.preset, self.partition, self.steps, self.minutes, self.config = (
            preset,
            partition,
            steps,
            minutes,
            config,
        )

    def fit(
        self,
        ds: xr.Dataset | xr.DataArray,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        report: Callable[[Progress], None] | None = None,
    ) -> "Filler":
        """Learns from ``ds``, in which NaN means missing.

        ``checkpoint`` is a directory written during training; with ``resume=True`` a run that was killed is taken
        up from there and ends as if it had not been. Under ``torchrun`` all processes learn one model together;
        each ends with it.
        """
        team = join()
        config = self.config or preset(self.preset, self.window, self.partition, self.steps, self.minutes)
        config = config.model_copy(update={"inputs": self.inputs or config.inputs, "log": self.log or config.log})
        record = _open(ds, self.variables, self.dims, self.domain, config)
        windows = Windows(record, Normaliser(record.mean, record.std), config.window)
        windows.held = hold_out(windows, config.hold_out, stream(self.seed, "hold-out"))
        if config.climatology:
            windows.normalise(learn_normaliser(windows, stream(self.seed, "climatology")))
        bank = mask_bank(windows, self.seed)
        name, partitions, audits = audited(windows, bank, config, self.seed)
        domain = torch.from_numpy(record.domain)
        maps = static_maps(record.ds, record.axes, config.inputs, record.periodic)
        static = torch.cat([static_features(domain, windows.normaliser), torch.from_numpy(maps)])
        denoiser = build_denoiser(config, domain, record.periodic, self.seed, static)
        notes: dict[str, Any] = {}
        if isinstance(denoiser.skip, GaussianSkip):
            notes["covariance"] = learn_covariance(denoiser.skip, windows, stream(self.seed, "covariance"))
        notes["first_estimate"] = learn_first_estimate(denoiser, windows, partitions[name], self.seed)
        training = Training(denoiser, windows, partitions[name], config.training, self.seed, team)
        identity = _identity(config, self.seed, record)
        team.agree({**identity, "partition": name, "held-out windows": windows.held.places})
        file = None
        if checkpoint is not None:
            file = Path(checkpoint) / CHECKPOINT
            if team.first:
                _prepare_checkpoint(file, identity, resume)
            team.wait()
            if file.exists():
                training.load(file)
        training.run(report if team.first else None, file)
        denoiser.eval()
        choice = stream(self.seed, "choice")
        ensemble, choices = choose_ensemble(denoiser, partitions[name], windows, config, choice)
        spread = calibrate(denoiser, partitions[name], windows, ensemble, choice)
        self.model_ = Model(
            config=config,
            seed=self.seed,
            variables=record.variables,
            dims=self.dims,
            grid=Grid.of(record),
            normaliser=windows.normaliser,
            denoiser=denoiser,
            partition_name=name,
            partition=partitions[name],
            bank=bank,
            domain=domain,
            unsupported=audits[name].unsupported,
            exposure=audits[name].per_cell,
            ensemble=ensemble,
            spread=spread,
            notes={
                **notes,
                "history": training.history,
                "skipped_windows": training.skipped,
                "held_out_cells": sum(int(mask.sum()) for mask in windows.held.masks),
                "validation": choices,
                "calibration": spread.summary,
                "audit": {key: summary(value) for key, value in audits.items()},
            },
        )
        return self

    def fill(
        self,
        ds: xr.Dataset | xr.DataArray,
        members: int = 0,
        seed: int | None = None,
        report: Callable[[int, int], None] | None = None,
        sampler: str | None = None,
        solver: Solver | None = None,
        guidance: float | str = 0.0,
        budget: bool = False,
        workers: int = 1,
        quantiles: Sequence[float] = (),
    ) -> xr.Dataset:
        """Fills ``ds``; for each variable v the result also has v_std (0 where observed) and v_flag.

        Parameters
        ----------
        members
            Number of realisations in v_members. They agree with the observations and are continuous in time. Drawn
            by the conditional or the exact sampler, they have the mean v (the median, of a variable learnt in its
            logarithm) and the standard deviation v_std.
        sampler, solver
            See `fieldfill.members` and `fieldfill.multistep`. By default ``conditional``, or ``weighted`` for a model
            without the Gaussian skip.
        guidance
            Weight with which the equation of simulated data steers v and its members, see `fieldfill.guide`;
            ``auto`` chooses it on held-out cells. 0 leaves equations out.
        budget
            Whether v_budget says where the variance of each cell comes from, see `fieldfill.budget`.
        workers
            Processes that share the windows. A script that asks for several needs the usual
            ``if __name__ == "__main__":``; each holds a copy of the model and, unless they are read from a file on
            demand, of the data. Members are drawn by this process.
        quantiles
            Probabilities, such as 0.05 and 0.95 for the interval that holds 90 % of the truth; v_quantile has them
            along a leading dimension. They know how much heavier than normal the tails of errors are.
        """
        if not hasattr(self, "model_"):
            raise InputError("this Filler has not learnt anything yet; call fit(ds) first, or fieldfill.load(path)")
        if members < 0:
            raise InputError(f"members={members}; give 0 or more")
        if workers < 1:
            raise InputError(f"workers={workers}; give 1 or more")
        wrong = [p for p in quantiles if not 0 < p < 1]
        if wrong:
            raise InputError(f"the quantile {wrong[0]:g} is no probability between 0 and 1, such as 0.05 or 0.95")
        model, seed = self.model_, self.seed if seed is None else seed
        default = "conditional" if isinstance(model.denoiser.skip, GaussianSkip) else "weighted"
        sampling = Sampling(sampler or default, solver or Solver())
        model.grid.check(ds, model.dims)
        record = _open(ds, model.variables, model.dims, model.domain.numpy(), model.config)
        windows = Windows(record, model.normaliser, model.config.window)
        steering = _steering(model, windows, guidance, seed)
        dtype = np.result_type(np.float32, *(record.ds[name].dtype for name in record.variables))
        filled, std = np.empty(record.shape, dtype), np.empty(record.shape, np.float32)
        shape = (record.shape[0], members, *record.shape[1:])
        drawn = np.empty(shape, dtype) if members else None
        parts = np.empty((len(PARTS), *record.shape), np.float32) if budget else None
        estimator = Estimator(model, windows, seed, budget)
        for sample, (mean, spread, shares) in enumerate(estimates(estimator, report, workers)):
            guide = None if steering is None else steering.at(sample)
            if guide is not None:
                mean = guide(mean[None], missing_cells(model, windows, sample))[0]
            filled[sample] = model.normaliser.to_values(mean.numpy())
            std[sample] = model.normaliser.spread_to_values(spread.numpy())
            if parts is not None:
                parts[:, sample] = shares * std[sample] ** 2
            if drawn is not None:
                found = draw_members(model, windows, sample, mean, spread, members, sampling, seed, guide)
                drawn[sample] = model.normaliser.to_values(found.numpy())
        names = [f"{name} (in its logarithm)" if name in record.logarithmic else name for name in model.variables]
        history = f"fieldfill {version('fieldfill')} filled the gaps of {', '.join(names)}: {_told(model, windows)}"
        unsupported = model.unsupported.numpy()[None, :, None]
        named = None if parts is None else dict(zip(PARTS, parts))
        steps = {float(p): model.spread.steps(p) for p in sorted(quantiles)}
        return _without_season(record.to_dataset(filled, std, unsupported, drawn, named, steps, history))

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Writes the fitted model to a directory of safetensors and JSON, which cannot run code when it is read."""
        if not hasattr(self, "model_"):
            raise InputError("this Filler has not learnt anything yet; there is nothing to save before fit(ds)")
        return self.model_.save(Path(path), overwrite)


def load(path: str | Path) -> Filler:
    """Reads a model that `Filler.save` wrote."""
    model = Model.load(Path(path))
    filler = Filler(seed=model.seed, variables=model.variables, dims=model.dims, config=model.config)
    filler.model_ = model
    return filler


def _open(
    ds: xr.Dataset | xr.DataArray,
    variables: Sequence[str] | None,
    dims: Dims | None,
    domain: DomainLike,
    config: Config,
) -> Record:
    """The record of ``ds``, with the season beside the other variables if it is an input."""
    if DAY_OF_YEAR in config.inputs:
        whole = as_dataset(ds)
        ds = with_season(whole, find_axes(whole, dims))
        variables = variables if variables is None else (*(name for name in variables if name not in SEASON), *SEASON)
    return open_record(ds, variables, dims, domain, config.log)


def _without_season(ds: xr.Dataset) -> xr.Dataset:
    return ds.drop_vars([name for name in ds.data_vars if str(name).startswith(SEASON)])


def budget_of(filled: xr.Dataset) -> dict[str, dict[str, float]]:
    """Shares of the parts of the variance, over all missing cells of each variable of a fill with ``budget=True``."""
    names = [str(name).removesuffix("_budget") for name in filled.data_vars if str(name).endswith("_budget")]
    sums = [[float(filled[f"{name}_budget"].sel(part=part).sum()) for name in names] for part in PARTS]
    return budget_table(Budget(*map(np.array, sums)), names)


def _told(model: Model, windows: Windows) -> str:
    """How the fill was made, and how many of its windows had fewer observations than the contexts ask for."""
    density, length = model.ensemble.density, windows.length
    if density is None or not model.ensemble.count:
        return str(model.ensemble)
    samples, _, frames, _, _ = windows.record.shape
    places = [(sample, start) for sample in range(samples) for start in cover(frames, length, length)]
    sparse = sum(bool(density_matched(windows.visible(*place)[1][None], density)[1]) for place in places)
    few = f"; {sparse} of {len(places)} windows have fewer observations" if sparse else ""
    return f"{model.ensemble}{few}"


def _steering(model: Model, windows: Windows, guidance: float | str, seed: int) -> Steering | None:
    if guidance == 0:
        return None
    if isinstance(guidance, str) and guidance != "auto":
        raise InputError(f"guidance='{guidance}'; give a weight, or 'auto' to choose it on held-out cells")
    return Steering.of(model, windows, None if isinstance(guidance, str) else guidance, seed)


def _identity(config: Config, seed: int, record: Record) -> dict[str, Any]:
    """What a checkpoint must share with the run that takes it up."""
    return {
        "config": config.model_dump(mode="json"),
        "seed": seed,
        "variables": list(record.variables),
        "shape": list(record.shape),
        "mean": record.mean.tolist(),
        "std": record.std.tolist(),
    }


def _prepare_checkpoint(file: Path, identity: dict[str, Any], resume: bool) -> None:
    """Clears the way for a checkpoint; an old one is taken up only on request and only if it fits."""
    directory, run = file.parent, file.with_name("run.json")
    if resume and run.exists():
        before = json.loads(run.read_text())
        changed = [key for key, value in identity.items() if before.get(key) != value]
        if changed:
            raise InputError(
                f"cannot resume from {directory}: {', '.join(changed)} differ from the interrupted run; "
                "use the same data and settings, or start anew without --resume"
            )
        return
    directory.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    run.write_text(json.dumps(identity))
