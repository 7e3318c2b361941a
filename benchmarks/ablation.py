"""What matters: one setting changed at a time, on three worlds, at one price in processor time.

    python benchmarks/ablation.py [--seconds 15] [--worlds clouds,blocks,pixels] [--variants reference,...] [--plot]

Worlds: Gaussian fields under moving clouds (the optimum is known), advection behind 3 x 3 blocks, Navier-Stokes seen at
30 % of the pixels; 32 x 32 cells, windows of 8 frames. Every variant trains for the same processor time, after the
covariance and the motion have been learnt, and then fills test windows from all their observations at once. Rows are
written as they finish to benchmarks/results/ablation; existing rows are kept. The figure is drawn from them.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Generator, Tensor

from fieldfill.audit import mask_bank
from fieldfill.config import PRESETS, Config, build_denoiser, build_partition
from fieldfill.covariance import learn_covariance
from fieldfill.denoise import Denoiser
from fieldfill.holdout import hold_out
from fieldfill.masks import BlockMask, CloudMask, PixelMask
from fieldfill.motion import learn_motion
from fieldfill.nn import GaussianSkip
from fieldfill.pde import Advection, NavierStokes
from fieldfill.pde.gaussian import GaussianField
from fieldfill.record import open_record
from fieldfill.sample import Ensemble, single_step
from fieldfill.seeds import stream
from fieldfill.train import Training, TrainSettings
from fieldfill.windows import Normaliser, Windows

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results" / "ablation", HERE.parent / "docs" / "images" / "ablation.png"
TRAIN, TEST, FRAMES, BATCH = 160, 32, 16, 8


def clouds(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    x = GaussianField(size=32, frames=FRAMES, slope=1.5).simulate(count, generator)[0].float()
    return x, CloudMask(observed=0.4).sample(tuple(x.shape), generator)


def blocks(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    x = Advection(frames=FRAMES).simulate(count, generator)[0].float()
    return x, BlockMask(3, 3, 8).sample(tuple(x.shape), generator)


def pixels(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    flow = NavierStokes(size=32, frames=FRAMES, resolution=64)
    x = torch.cat([flow.simulate(16, generator)[0].float() for _ in range(count // 16)])
    return x, PixelMask(0.3).sample(tuple(x.shape), generator)


WORLDS: dict[str, Callable[[int, Generator], tuple[Tensor, Tensor]]] = {
    "clouds": clouds,
    "blocks": blocks,
    "pixels": pixels,
}
PARTITIONS = {"clouds": "swap", "blocks": "block:3x3", "pixels": "pixel"}


@dataclass(frozen=True)
class ConstantRate(TrainSettings):
    """The learning rate stays at its peak after the warm-up."""

    def learning_rate(self, progress: float) -> float:
        return self.rate * min(1.0, (progress + 1e-3) / (self.warmup + 1e-3))


def change(threads: int = 1, settings: type[TrainSettings] = TrainSettings, **changes: Any) -> dict[str, Any]:
    """A variant: fields of the configuration, or of its training settings, replaced."""
    return {"threads": threads, "settings": settings, "changes": changes}


VARIANTS: dict[str, dict[str, Any]] = {
    "reference": change(),
    "skip: none": change(skip="none"),
    "skip: pull-push": change(skip="pull-push"),
    "no motion": change(transport=False),
    "t uniform": change(time_power=1.0),
    "t power 10": change(time_power=10.0),
    "contexts 70 %": change(keep=(0.7, 0.7)),
    "contexts 30-100 %": change(keep=(0.3, 1.0)),
    "24 channels": change(base=24),
    "96 channels": change(base=96),
    "2 levels": change(levels=2),
    "windows of 4": change(window=4),
    "windows of 16": change(window=16),
    "no EMA": change(ema=0.0),
    "EMA 0.95": change(ema=0.95),
    "rate 3e-4": change(rate=3e-4),
    "rate 3e-3": change(rate=3e-3),
    "constant rate": change(settings=ConstantRate),
    "no patches": change(patch=1),
    "batches of 4": change(batch=4),
    "bf16": change(precision="bf16"),
    "compiled": change(compile=True),
    "2 threads": change(threads=2),
}


@cache
def world(name: str) -> tuple[xr.Dataset, xr.Dataset, Tensor]:
    """Gappy training data, gappy test data and the truth of these (N, 1, T, H, W)."""
    x, observed = WORLDS[name](TRAIN + TEST, Generator().manual_seed(0))
    cells = {axis: (axis, np.arange(x.shape[-1]) * 1.0, {"axis": axis.upper(), "periodic": 1}) for axis in "yx"}
    dims = ("sample", "time", "y", "x")
    truth = xr.Dataset({"u": (dims, x[:, 0].numpy())}, coords={"time": np.arange(x.shape[2]) * 1.0, **cells})
    gappy = truth.where(xr.DataArray(observed[:, 0].numpy(), dims=dims))
    return gappy.isel(sample=slice(TRAIN)), gappy.isel(sample=slice(TRAIN, None)), x[TRAIN:]


@cache
def windows_of(name: str, length: int) -> Windows:
    record = open_record(world(name)[0])
    windows = Windows(record, Normaliser(record.mean, record.std), length)
    windows.held = hold_out(windows, 0.1, stream(0, "hold-out"))
    return windows


@cache
def learnt_skip(name: str, length: int, steps: int) -> dict[str, Tensor]:
    """The Gaussian skip of a world, learnt once for all variants."""
    windows = windows_of(name, length)
    skip = GaussianSkip(1, length, (32, 32), (True, True), steps=steps)
    learn_covariance(skip, windows, stream(0, "covariance"))
    return skip.state_dict()


@cache
def learnt_motion(name: str, length: int, skip: str) -> dict[str, Tensor]:
    """The motion of a world, learnt once for all variants."""
    windows = windows_of(name, length)
    config = PRESETS["fast"].model_copy(update={"window": length, "skip": skip})
    denoiser = build_denoiser(config, torch.ones(1, 32, 32, dtype=torch.bool), (True, True), seed=0)
    if isinstance(denoiser.skip, GaussianSkip):
        denoiser.skip.load_state_dict(learnt_skip(name, length, config.skip_steps))
    assert denoiser.transport is not None
    learn_motion(denoiser, windows, build_partition(PARTITIONS[name], mask_bank(windows, 0), config.keep), 0)
    return denoiser.transport.state_dict()


def run(name: str, variant: str, seconds: float) -> dict[str, Any]:
    chosen = VARIANTS[variant]
    own = {k: v for k, v in chosen["changes"].items() if k in Config.model_fields}
    rest = {k: v for k, v in chosen["changes"].items() if k not in own}
    training = dict(
        steps=10**6, minutes=seconds / 60, clock="processor", batch=BATCH, validate_every=10**6, patience=99
    )
    config = PRESETS["fast"].model_copy(update={**own, "training": chosen["settings"](**{**training, **rest})})
    torch.set_num_threads(chosen["threads"])
    windows = windows_of(name, config.window)
    denoiser = build_denoiser(config, torch.ones(1, 32, 32, dtype=torch.bool), (True, True), seed=0)
    partition = build_partition(PARTITIONS[name], mask_bank(windows, 0), config.keep)
    if isinstance(denoiser.skip, GaussianSkip):
        denoiser.skip.load_state_dict(learnt_skip(name, config.window, config.skip_steps))
    if denoiser.transport is not None:
        denoiser.transport.load_state_dict(learnt_motion(name, config.window, config.skip))
    first = _test_error(denoiser, name, windows)
    begun = time.process_time(), time.monotonic()
    run = Training(denoiser, windows, partition, config.training, 0)
    run.run()
    return {
        "bench": "ablation",
        "case": name,
        "method": variant,
        "seed": 0,
        "metrics": {
            "mse_missing": _test_error(denoiser, name, windows),
            "first_estimate": first,
            "validation": run.best["error"],
            "gain": run.best["gain"],
        },
        "train_steps": run.step,
        "train_cpu_seconds": time.process_time() - begun[0],
        "train_seconds": time.monotonic() - begun[1],
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _test_error(denoiser: Denoiser, name: str, windows: Windows) -> float:
    """Mean squared error at the missing cells of one window of each test sample, as a share of the variance."""
    _, gappy, truth = world(name)
    held = Windows(open_record(gappy), windows.normaliser, windows.length)
    x, observed = held.training([(sample, 0) for sample in range(TEST)])
    denoiser.eval()
    with torch.no_grad():
        generator = Generator().manual_seed(0)
        found = single_step(denoiser, x, observed, build_partition("pixel", observed, (1, 1)), Ensemble(0), generator)
    normalised = windows.normaliser.to_tensor(truth[:, :, : windows.length].numpy())
    return float((found.mean - normalised)[~observed].square().mean() / normalised.var())


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _path(name: str, variant: str) -> Path:
    words = "".join(letter if letter.isalnum() else "-" for letter in variant)
    return RESULTS / f"{name}__{words}__seed0.json"


def plot() -> None:
    """Test error of each variant, times that of the reference, for each world."""
    import matplotlib.pyplot as plt

    rows = {(r["case"], r["method"]): r["metrics"] for r in map(_read, sorted(RESULTS.glob("*.json")))}
    variants = [v for v in VARIANTS if any((name, v) in rows for name in WORLDS)]
    figure, axes = plt.subplots(1, len(WORLDS), figsize=(11, 0.26 * len(variants) + 1.1), sharey=True)
    for axis, name in zip(axes, WORLDS):
        reference = rows[name, "reference"]["mse_missing"]
        for place, variant in enumerate(variants):
            if (name, variant) in rows:
                ratio = rows[name, variant]["mse_missing"] / reference
                axis.plot([1, ratio], [place, place], color="0.75", zorder=1)
                axis.scatter(ratio, place, color="C3" if ratio > 1.02 else "C0", s=24, zorder=2)
                axis.annotate(f"{ratio:.2f}", (ratio, place), (5, -3), textcoords="offset points", fontsize=7)
        axis.axvline(1, color="0.4", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xlim(0.75, 12)
        axis.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axis.minorticks_off()
        axis.set_title(f"{name}: reference {reference:.3f} of the variance", fontsize=9)
    axes[0].set_yticks(range(len(variants)), variants, fontsize=8)
    axes[0].invert_yaxis()
    axes[1].set_xlabel("error on missing cells of the test, times that of the reference")
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--plot", action="store_true", help="only draw the figure")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for variant in [] if options.plot else options.variants.split(","):
        for name in options.worlds.split(","):
            path = _path(name, variant)
            if not path.exists():
                path.write_text(json.dumps(run(name, variant, options.seconds), indent=1))
            row = _read(path)
            print(
                f"{name:<7} {variant:<18} {row['metrics']['mse_missing']:.4f} of the variance (first estimate "
                f"{row['metrics']['first_estimate']:.4f}), {row['train_steps']} steps",
                flush=True,
            )
    plot()


if __name__ == "__main__":
    main()
