"""What matters: one setting changed at a time, on three worlds, at one price in processor time.

    python benchmarks/ablation.py [--seconds 5] [--along 60] [--worlds clouds,blocks,pixels] [--variants network,...]
                                  [--parts rows,paces,curves] [--plot]

Worlds: Gaussian fields under moving clouds (the optimum is known), advection behind 3 x 3 blocks, Navier-Stokes seen at
30 % of the pixels; 32 x 32 cells, windows of 8 frames.

*Rows.* First estimates need no training. Networks train for the same processor time each, on the pull-push skip: steps
are cheap there, and most of the error is left to the network. All fill the first 8 frames of each test sample from all
observations of a window at once.

*Paces.* Time of a training step in lower precision, compiled or with two threads, over that of the reference. The
variants take their steps in turns, so that other work on the machine slows all of them.

*Curves.* Held-out error against processor time, that of the first estimate included.

All are written as they finish to benchmarks/results/ablation; what exists is kept. The figures are drawn from them.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Generator, Tensor

from fieldfill.audit import mask_bank
from fieldfill.bench.cases import UNET
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
RESULTS, IMAGES = HERE / "results" / "ablation", HERE.parent / "docs" / "images"
TRAIN, TEST, FRAMES, BATCH = 144, 32, 16, 8
JUDGED = 8  # frames of each test sample, whatever the window
PACED, WARM = 24, 4  # steps of a pace, and the first of them that do not count
NOTED = 20  # steps between two points of a curve


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
    """A folded U-Net on the pull-push skip: fields of the configuration, or of its training settings, replaced."""
    plain = {**UNET, "skip": "pull-push", "transport": False, "local": False, "rate": 1e-3, "time_power": 3.0}
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
    "network: windows of 4": net(window=4),
    "network: windows of 16": net(window=16),
}
VARIANTS = FIRSTS | NETWORKS
REFERENCES = {"first estimate": FIRSTS, "network": NETWORKS}
PACES: dict[str, dict[str, Any]] = {
    "network": NETWORKS["network"],
    "bf16": net(precision="bf16"),
    "compiled": net(compile=True),
    "2 threads": net(threads=2),
}
CURVES: dict[str, dict[str, Any]] = {
    "first estimate": net(skip="gaussian", transport=True, local=True),
    "Gaussian mean": net(skip="gaussian"),
    "pull-push": NETWORKS["network"],
    "pull-push: 24 channels": NETWORKS["24 channels"],
    "pull-push: t uniform": NETWORKS["t uniform"],
    "no skip": NETWORKS["skip: none"],
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
def learnt_skip(name: str, length: int, steps: int) -> tuple[dict[str, Tensor], float]:
    """The Gaussian skip of a world, learnt once for all variants, and the processor seconds it took."""
    windows = windows_of(name, length)
    skip = GaussianSkip(1, length, (32, 32), (True, True), steps=steps)
    begun = time.process_time()
    learn_covariance(skip, windows, stream(0, "covariance"))
    return skip.state_dict(), time.process_time() - begun


def prepare(name: str, chosen: dict[str, Any], **budget: Any) -> tuple[Training, float, float]:
    """A training that has not begun, the held-out error of its first estimate and the processor seconds of that."""
    own = {k: v for k, v in chosen["changes"].items() if k in Config.model_fields}
    rest = {k: v for k, v in chosen["changes"].items() if k not in own}
    training = chosen["settings"](**{"batch": BATCH, "patience": 99, **budget, **rest})
    config = PRESETS["fast"].model_copy(update={**own, "training": training})
    torch.set_num_threads(chosen["threads"])
    windows = windows_of(name, config.window)
    denoiser = build_denoiser(config, torch.ones(1, 32, 32, dtype=torch.bool), (True, True), seed=0)
    partition = build_partition(PARTITIONS[name], mask_bank(windows, 0), config.keep)
    spent = 0.0
    if isinstance(denoiser.skip, GaussianSkip):
        state, spent = learnt_skip(name, config.window, config.skip_steps)
        denoiser.skip.load_state_dict(state)
    begun = time.process_time()
    stages = learn_first_estimate(denoiser, windows, partition, 0)
    spent += time.process_time() - begun
    return Training(denoiser, windows, partition, training, 0), list(stages.values())[-1]["validation"], spent


def run(name: str, chosen: dict[str, Any], seconds: float, every: int) -> dict[str, Any]:
    """Errors of a variant after a training of some processor seconds, validated ``every`` so many steps."""
    begun = time.process_time(), time.monotonic()
    budget = dict(steps=10**6, minutes=seconds / 60, clock="processor", validate_every=every)
    loop, held_out, spent = prepare(name, chosen, **budget)
    if chosen["trained"]:
        loop.run()
        held_out = loop.best["error"]
    return {
        "seed": 0,
        "metrics": {"mse_missing": _test_error(loop.denoiser, name, loop.windows), "validation": held_out},
        "first_cpu_seconds": spent,
        "history": [{key: entry[key] for key in ("step", "seconds", "validation")} for entry in loop.history],
        "train_steps": loop.step,
        "train_cpu_seconds": time.process_time() - begun[0],
        "train_seconds": time.monotonic() - begun[1],
        "threads": chosen["threads"],
    }


def _test_error(denoiser: Denoiser, name: str, windows: Windows) -> float:
    """Mean squared error at the missing cells of the first frames of the test samples, as a share of the variance."""
    _, gappy, truth = world(name)
    held = Windows(open_record(gappy), windows.normaliser, windows.length)
    normalised = windows.normaliser.to_tensor(truth.numpy())
    errors = []
    denoiser.eval()
    for first in range(0, JUDGED, windows.length):
        x, observed = held.training([(sample, first) for sample in range(TEST)])
        partition = build_partition("pixel", observed, (1, 1))
        with torch.no_grad():
            found = single_step(denoiser, x, observed, partition, Ensemble(0), Generator().manual_seed(0))
        error = found.mean - normalised[:, :, first : first + windows.length]
        errors.append(error[:, :, :JUDGED][~observed[:, :, :JUDGED]])
    return float(torch.cat(errors).square().mean() / normalised[:, :, :JUDGED].var())


def pace(name: str) -> dict[str, Any]:
    """Time of a step of each variant over that of the reference, taken in turns, and their errors after these steps."""
    loops = {variant: prepare(name, chosen, steps=PACED)[0] for variant, chosen in PACES.items()}
    preparing: dict[str, float] = {}
    wall: dict[str, list[float]] = {variant: [] for variant in loops}
    processor: dict[str, list[float]] = {variant: [] for variant in loops}
    with ExitStack() as stack:
        for variant, loop in loops.items():
            begun = time.process_time()
            stack.enter_context(loop.batches)
            stack.enter_context(loop._accelerated())
            preparing[variant] = time.process_time() - begun
        for _ in range(PACED):
            for variant, loop in loops.items():
                torch.set_num_threads(PACES[variant]["threads"])
                begun, begun_wall = time.process_time(), time.perf_counter()
                loop._train_step()
                processor[variant].append(time.process_time() - begun)
                wall[variant].append(time.perf_counter() - begun_wall)
        for loop in loops.values():
            loop._validate()
    return {
        "seed": 0,
        "metrics": {
            variant: {
                "wall": _ratio(wall[variant], wall["network"]),
                "processor": _ratio(processor[variant], processor["network"]),
                "validation": loop.history[-1]["validation"],
                "preparing_cpu_seconds": preparing[variant],
            }
            for variant, loop in loops.items()
        },
        "step_cpu_seconds": statistics.median(processor["network"][WARM:]),
        "load": os.getloadavg()[0],
    }


def _ratio(times: list[float], reference: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times[WARM:], reference[WARM:]))


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _kept(part: str, name: str, variant: str, measure: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """A row that is there, or is measured now, of a world and what else is given, and written."""
    words = "".join(letter if letter.isalnum() else "-" for letter in variant)
    path = RESULTS / part / f"{name}__{words}__seed0.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"bench": "ablation", "case": name, "method": variant, **measure(name, *given), "commit": _commit()}
        path.write_text(json.dumps(row, indent=1))
    return _read(path)


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
    grid[0][0].set_xscale("log")
    grid[-1][1].set_xlabel("error on missing cells of the test, times that of the first line of the block")
    figure.tight_layout()
    figure.savefig(IMAGES / "ablation.png", dpi=110)


def plot_curves() -> None:
    """Held-out error against processor time, for each world."""
    import matplotlib.pyplot as plt

    rows = {(r["case"], r["method"]): r for r in map(_read, sorted((RESULTS / "curves").glob("*.json")))}
    figure, axes = plt.subplots(1, len(WORLDS), figsize=(11, 3.4), layout="constrained")
    for axis, name in zip(axes, WORLDS):
        for place, variant in enumerate(CURVES):
            if (name, variant) in rows:
                row = rows[name, variant]
                points = [(row["first_cpu_seconds"] + e["seconds"], e["validation"]) for e in row["history"]]
                axis.plot(*zip(*points), "o-", ms=2.5, lw=1.2, color=f"C{place}", label=variant)
        axis.set(yscale="log", title=name)
        axis.set_xlabel("processor seconds")
    axes[0].set_ylabel("squared error on held-out cells")
    axes[-1].legend(fontsize=7, frameon=False)
    figure.savefig(IMAGES / "ablation_time.png", dpi=110)


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
    parser.add_argument("--seconds", type=float, default=5, help="processor time of training for a row")
    parser.add_argument("--along", type=float, default=60, help="processor time of training for a curve")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--variants", default=",".join(VARIANTS | CURVES))
    parser.add_argument("--parts", default="rows,paces,curves")
    parser.add_argument("--plot", action="store_true", help="only draw the figures")
    options = parser.parse_args()
    worlds, wanted = options.worlds.split(","), options.variants.split(",")
    parts = [] if options.plot else options.parts.split(",")
    for variant in wanted if "rows" in parts else []:
        for name in worlds if variant in VARIANTS else []:
            row = _kept("", name, variant, run, VARIANTS[variant], options.seconds, 10**6)
            _tell(row, f"{row['metrics']['mse_missing']:.4f} of the variance, {row['train_steps']} steps")
    for name in worlds if "paces" in parts else []:
        row = _kept("paces", name, "pace", pace)
        for variant, found in row["metrics"].items():
            _tell(row, f"{variant}: {found['wall']:.2f} of the wall time, {found['processor']:.2f} of the processor's")
    for variant in wanted if "curves" in parts else []:
        for name in worlds if variant in CURVES else []:
            row = _kept("curves", name, variant, run, CURVES[variant], options.along, NOTED)
            _tell(row, f"{row['metrics']['validation']:.4f} on held-out cells, {row['train_steps']} steps")
    plot()
    if (RESULTS / "curves").exists():
        plot_curves()


def _tell(row: dict[str, Any], what: str) -> None:
    print(f"{row['case']:<7} {row['method']:<26} {what}", flush=True)


if __name__ == "__main__":
    main()
