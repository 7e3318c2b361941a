"""What matters: one setting changed at a time, on three worlds, at one price in processor time.

    python benchmarks/ablation.py [--seconds 5] [--worlds clouds,blocks,pixels] [--variants reference,...] [--plot]

Worlds: Gaussian fields under moving clouds (the optimum is known), advection behind 3 x 3 blocks, Navier-Stokes seen at
30 % of the pixels; 32 x 32 cells, windows of 8 frames. *First estimates* need no training. *Networks* train for the
same processor time each, on the pull-push skip: steps are cheap there, and most of the error is left to the network.
All fill the first window of each test sample from all its observations at once. Rows are written as they finish to
benchmarks/results/ablation; existing rows are kept. The figure is drawn from them.
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
from fieldfill.nn import GaussianSkip
from fieldfill.pde import Advection, NavierStokes
from fieldfill.pde.gaussian import GaussianField
from fieldfill.record import open_record
from fieldfill.refine import learn_first_estimate
from fieldfill.sample import Ensemble, single_step
from fieldfill.seeds import stream
from fieldfill.train import Training, TrainSettings
from fieldfill.windows import Normaliser, Windows

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "results" / "ablation", HERE.parent / "docs" / "images" / "ablation.png"
TRAIN, TEST, FRAMES, BATCH = 144, 32, 16, 8


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


def first(**changes: Any) -> dict[str, Any]:
    """A way to the first estimate: fields of the configuration replaced; no training."""
    return {"trained": False, "threads": 1, "settings": TrainSettings, "changes": changes}


def net(threads: int = 1, settings: type[TrainSettings] = TrainSettings, **changes: Any) -> dict[str, Any]:
    """A network on the pull-push skip: fields of the configuration, or of its training settings, replaced."""
    plain = {"skip": "pull-push", "transport": False, "local": False}
    return {"trained": True, "threads": threads, "settings": settings, "changes": plain | changes}


FIRSTS: dict[str, dict[str, Any]] = {
    "first estimate": first(),
    "no neighbourhood": first(local=False),
    "no motion": first(transport=False),
    "Gaussian mean alone": first(transport=False, local=False),
    "pull-push with both": first(skip="pull-push"),
    "pull-push alone": first(skip="pull-push", transport=False, local=False),
    "windows of 4": first(window=4),
    "windows of 16": first(window=16),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "network": net(),
    "skip: none": net(skip="none"),
    "t uniform": net(time_power=1.0),
    "t power 10": net(time_power=10.0),
    "contexts 70 %": net(keep=(0.7, 0.7)),
    "24 channels": net(base=24),
    "96 channels": net(base=96),
    "2 levels": net(levels=2),
    "no patches": net(patch=1),
    "no EMA": net(ema=0.0),
    "EMA 0.95": net(ema=0.95),
    "rate 3e-4": net(rate=3e-4),
    "rate 3e-3": net(rate=3e-3),
    "constant rate": net(settings=ConstantRate),
    "batches of 4": net(batch=4),
    "no spread": net(spread=False),
    "bf16": net(precision="bf16"),
    "2 threads": net(threads=2),
    "compiled": net(compile=True),
}
VARIANTS = FIRSTS | NETWORKS
REFERENCES = {"first estimate": FIRSTS, "network": NETWORKS}


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


def run(name: str, variant: str, seconds: float) -> dict[str, Any]:
    chosen = VARIANTS[variant]
    own = {k: v for k, v in chosen["changes"].items() if k in Config.model_fields}
    rest = {k: v for k, v in chosen["changes"].items() if k not in own}
    budget = dict(steps=10**6, minutes=seconds / 60, clock="processor", validate_every=10**6, patience=99)
    training = chosen["settings"](**{**budget, "batch": BATCH, **rest})
    config = PRESETS["fast"].model_copy(update={**own, "training": training})
    torch.set_num_threads(chosen["threads"])
    windows = windows_of(name, config.window)
    denoiser = build_denoiser(config, torch.ones(1, 32, 32, dtype=torch.bool), (True, True), seed=0)
    partition = build_partition(PARTITIONS[name], mask_bank(windows, 0), config.keep)
    if isinstance(denoiser.skip, GaussianSkip):
        denoiser.skip.load_state_dict(learnt_skip(name, config.window, config.skip_steps))
    begun = time.process_time(), time.monotonic()
    stages = learn_first_estimate(denoiser, windows, partition, 0)
    held_out, steps = list(stages.values())[-1]["validation"], 0
    if chosen["trained"]:
        loop = Training(denoiser, windows, partition, training, 0)
        loop.run()
        held_out, steps = loop.best["error"], loop.step
    return {
        "bench": "ablation",
        "case": name,
        "method": variant,
        "seed": 0,
        "metrics": {"mse_missing": _test_error(denoiser, name, windows), "validation": held_out},
        "train_steps": steps,
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
    """Test error of each variant, times that of its reference, for each world."""
    import matplotlib.pyplot as plt

    rows = {(r["case"], r["method"]): r["metrics"]["mse_missing"] for r in map(_read, sorted(RESULTS.glob("*.json")))}
    families = {one: [v for v in family if any((w, v) in rows for w in WORLDS)] for one, family in REFERENCES.items()}
    sizes = [len(family) for family in families.values()]
    figure, grid = plt.subplots(
        len(sizes), len(WORLDS), figsize=(11, 0.24 * sum(sizes) + 1.6), sharex="row", sharey="row", height_ratios=sizes
    )
    for line, (reference, family) in zip(grid, families.items()):
        for axis, name in zip(line, WORLDS):
            _ratios(axis, rows, name, reference, family)
        line[0].set_yticks(range(len(family)), family, fontsize=8)
        line[0].invert_yaxis()
    grid[-1][1].set_xlabel("error on missing cells of the test, times that of the first line of the block")
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=110)


def _ratios(axis: Any, rows: dict[tuple[str, str], float], name: str, reference: str, variants: list[str]) -> None:
    one = rows[name, reference]
    for place, variant in enumerate(variants):
        if (name, variant) in rows:
            ratio = rows[name, variant] / one
            axis.plot([1, ratio], [place, place], color="0.75", zorder=1)
            axis.scatter(ratio, place, color="C3" if ratio > 1.01 else "C0", s=22, zorder=2)
            axis.annotate(f"{ratio:.2f}", (ratio, place), (6, -3), textcoords="offset points", fontsize=7)
    axis.axvline(1, color="0.4", linewidth=0.8)
    axis.margins(x=0.2, y=0.08)
    axis.set_title(f"{name}, {reference}: {one:.3f} of the variance", fontsize=9)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
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
                f"{name:<7} {variant:<34} {row['metrics']['mse_missing']:.4f} of the variance, "
                f"{row['train_steps']} steps",
                flush=True,
            )
    plot()


if __name__ == "__main__":
    main()
