"""The facade: `Filler` learns from a gappy data set and fills it."""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Generator, Tensor

from fieldfill.audit import audited, mask_bank, summary
from fieldfill.config import Config, build_denoiser, preset
from fieldfill.covariance import learn_covariance
from fieldfill.denoise import Denoiser
from fieldfill.errors import InputError
from fieldfill.grid import Grid
from fieldfill.holdout import hold_out
from fieldfill.metrics import distance_to_observation
from fieldfill.model import Model
from fieldfill.nn import GaussianSkip
from fieldfill.partition import Partition
from fieldfill.record import Record, open_record
from fieldfill.sample import Ensemble, single_step
from fieldfill.seeds import stream
from fieldfill.train import Progress, Training
from fieldfill.uncertainty import DistanceSpread
from fieldfill.windows import Blend, Normaliser, Windows, cover

__all__ = ["Filler", "load"]

BATCH = 16  # windows filled at once

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
    ) -> None:
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
        up from there and ends as if it had not been.
        """
        config = self.config or preset(self.preset, self.window, self.partition, self.steps, self.minutes)
        record = open_record(ds, self.variables, self.dims, self.domain)
        windows = Windows(record, Normaliser(record.mean, record.std), config.window)
        windows.held = hold_out(windows, config.hold_out, stream(self.seed, "hold-out"))
        bank = mask_bank(windows, self.seed)
        name, partitions, audits = audited(windows, bank, config, self.seed)
        domain = torch.from_numpy(record.domain)
        denoiser = build_denoiser(config, domain, record.periodic, self.seed)
        notes: dict[str, Any] = {}
        if isinstance(denoiser.skip, GaussianSkip):
            notes["covariance"] = learn_covariance(denoiser.skip, windows, stream(self.seed, "covariance"))
        training = Training(denoiser, windows, partitions[name], config.training, self.seed)
        file = None
        if checkpoint is not None:
            file = _checkpoint_file(Path(checkpoint), _identity(config, self.seed, record), resume)
            if file.exists():
                training.load(file)
        training.run(report, file)
        denoiser.eval()
        choice = stream(self.seed, "choice")
        ensemble, choices = _choose_ensemble(denoiser, partitions[name], windows, config, choice)
        spread = _measure_spread(denoiser, partitions[name], windows, ensemble, choice)
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
    ) -> xr.Dataset:
        """Fills ``ds``; for each variable v the result also has v_std (0 where observed) and v_flag."""
        if not hasattr(self, "model_"):
            raise InputError("this Filler has not learnt anything yet; call fit(ds) first, or fieldfill.load(path)")
        if members:
            raise InputError(f"members={members}: realisations are not available in this version; leave members at 0")
        model = self.model_
        model.grid.check(ds, model.dims)
        record = open_record(ds, model.variables, model.dims, model.domain.numpy())
        generator = stream(self.seed if seed is None else seed, "fill")
        windows = Windows(record, model.normaliser, model.config.window)
        length, (samples, _, frames, _, _) = model.config.window, record.shape
        starts = cover(frames, length, max(1, length // 2))
        filled, std = np.empty(record.shape), np.empty(record.shape)
        done = 0
        for sample in range(samples):
            means, spreads = Blend(frames, length), Blend(frames, length)
            for first in range(0, len(starts), BATCH):
                chosen = starts[first : first + BATCH]
                x, observed = windows.training([(sample, start) for start in chosen])
                for start, mean, spread in zip(chosen, *model.estimate(x, observed, generator)):
                    means.add(start, mean)
                    spreads.add(start, spread)
                done += len(chosen)
                if report is not None:
                    report(done, samples * len(starts))
            filled[sample] = model.normaliser.to_values(means.mean())
            std[sample] = model.normaliser.spread_to_values(spreads.mean())
        history = f"fieldfill {version('fieldfill')} filled the gaps of {', '.join(model.variables)}: {model.ensemble}"
        return record.to_dataset(filled, std, model.unsupported.numpy()[None, :, None], history=history)

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


def _checkpoint_file(directory: Path, identity: dict[str, Any], resume: bool) -> Path:
    """The checkpoint's path in ``directory``; an old one is taken up only on request and only if it fits."""
    run, file = directory / "run.json", directory / "checkpoint.pt"
    if resume and run.exists():
        before = json.loads(run.read_text())
        changed = [key for key, value in identity.items() if before.get(key) != value]
        if changed:
            raise InputError(
                f"cannot resume from {directory}: {', '.join(changed)} differ from the interrupted run; "
                "use the same data and settings, or start anew without --resume"
            )
        return file
    directory.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    run.write_text(json.dumps(identity))
    return file


def _held_out_estimates(
    denoiser: Denoiser, partition: Partition, windows: Windows, ensemble: Ensemble, generator: Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared errors, held-out cells and the observations left, (N, C, T, H, W) over the validation windows."""
    errors, masks, left = [], [], []
    for place in windows.held.places:
        x, context, held = windows.held_out([place])
        estimate, _ = single_step(denoiser, x, context, partition, ensemble, generator)
        errors.append(torch.where(held, estimate - x, 0).square())
        masks.append(held)
        left.append(context)
    return torch.cat(errors), torch.cat(masks), torch.cat(left)


def _choose_ensemble(
    denoiser: Denoiser, partition: Partition, windows: Windows, config: Config, generator: Generator
) -> tuple[Ensemble, dict[str, float]]:
    """Contexts or all observations at once, whichever has the smaller error on the held-out cells."""
    candidates = [Ensemble(config.contexts)]
    if config.choose_contexts:
        candidates += [Ensemble(config.contexts, keep=0.9), Ensemble(0)]
    scores = {}
    for ensemble in candidates:
        errors, held, _ = _held_out_estimates(denoiser, partition, windows, ensemble, generator)
        scores[ensemble] = (errors.sum() / held.sum()).item()
    best = min(scores, key=lambda ensemble: scores[ensemble])
    return best, {str(ensemble): score for ensemble, score in scores.items()}


def _measure_spread(
    denoiser: Denoiser, partition: Partition, windows: Windows, ensemble: Ensemble, generator: Generator
) -> DistanceSpread:
    errors, held, left = _held_out_estimates(denoiser, partition, windows, ensemble, generator)
    distance = distance_to_observation(left.numpy(), periodic=windows.record.periodic)
    cells = [held[:, c].numpy() for c in range(held.shape[1])]
    return DistanceSpread.fit(
        [errors[:, c].numpy()[cell] for c, cell in enumerate(cells)],
        [distance[:, c][cell] for c, cell in enumerate(cells)],
    )
