"""What matters: one setting changed at a time, on three worlds, at one number of training steps.

    python benchmarks/ablation.py [--steps 120] [--seeds 0] [--worlds clouds,blocks,pixels] [--variants reference,...]

Worlds: Gaussian fields under moving clouds (the optimum is known), advection behind 3 x 3 blocks, Navier-Stokes seen at
30 % of the pixels; 32 x 32 cells, windows of 8 frames. Rows are written as they finish to benchmarks/results/ablation;
existing rows are kept. The clock is the process's own CPU time, since other work on the machine does not change it.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Generator, Tensor

import fieldfill as ff
from fieldfill.config import PRESETS, Config
from fieldfill.masks import BlockMask, CloudMask, PixelMask
from fieldfill.pde import Advection, NavierStokes
from fieldfill.pde.gaussian import GaussianField
from fieldfill.sample import Ensemble

RESULTS = Path(__file__).parent / "results" / "ablation"
TRAIN, TEST, FRAMES, BATCH = 224, 32, 16, 8


def clouds(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    x = GaussianField(size=32, frames=FRAMES, slope=1.5).simulate(count, generator)[0].float()
    return x, CloudMask(observed=0.4).sample(tuple(x.shape), generator)


def blocks(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    x = Advection(frames=FRAMES).simulate(count, generator)[0].float()
    return x, BlockMask(3, 3, 8).sample(tuple(x.shape), generator)


def pixels(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    flow = NavierStokes(size=32, frames=FRAMES, resolution=96)
    x = torch.cat([flow.simulate(16, generator)[0].float() for _ in range(count // 16)])
    return x, PixelMask(0.3).sample(tuple(x.shape), generator)


WORLDS: dict[str, Callable[[int, Generator], tuple[Tensor, Tensor]]] = {
    "clouds": clouds,
    "blocks": blocks,
    "pixels": pixels,
}


def change(**settings: Any) -> Callable[[Config], Config]:
    """A variant: fields of the configuration, or of its training settings, replaced."""

    def apply(config: Config) -> Config:
        training = {k: v for k, v in settings.items() if k not in Config.model_fields}
        own = {k: v for k, v in settings.items() if k in Config.model_fields}
        return config.model_copy(update={**own, "training": replace(config.training, **training)})

    return apply


VARIANTS: dict[str, Callable[[Config], Config]] = {
    "reference": change(),
    "skip-none": change(skip="none"),
    "skip-pull-push": change(skip="pull-push"),
    "uniform-t": change(time_power=1.0),
    "t-power-6": change(time_power=6.0),
    "keep-70": change(keep=(0.7, 0.7)),
    "keep-30-100": change(keep=(0.3, 1.0)),
    "base-16": change(base=16),
    "base-64": change(base=64),
    "levels-2": change(levels=2),
    "levels-3": change(levels=3),
    "window-4": change(window=4),
    "window-16": change(window=16),
    "no-ema": change(ema=0.0),
    "ema-999": change(ema=0.999),
    "rate-3e-4": change(rate=3e-4),
    "rate-3e-3": change(rate=3e-3),
    "patch-2": change(patch=2, base=64, levels=3),
    "fno": change(network="fno"),
    "velocity": change(prediction="velocity"),
    "no-spread": change(spread=False),
    "no-climatology": change(climatology=False),
    "bf16": change(precision="bf16"),
}


@cache
def world(name: str, seed: int) -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    """Gappy training data, gappy test data and the truth of these."""
    x, observed = WORLDS[name](TRAIN + TEST, Generator().manual_seed(seed))
    side = x.shape[-1]
    cells = {axis: (axis, np.arange(side) * 1.0, {"axis": axis.upper(), "periodic": 1}) for axis in "yx"}
    dims = ("sample", "time", "y", "x")
    truth = xr.Dataset({"u": (dims, x[:, 0].numpy())}, coords={"time": np.arange(x.shape[2]) * 1.0, **cells})
    gappy = truth.where(xr.DataArray(observed[:, 0].numpy(), dims=dims))
    return gappy.isel(sample=slice(TRAIN)), gappy.isel(sample=slice(TRAIN, None)), truth.isel(sample=slice(TRAIN, None))


def run(name: str, variant: str, steps: int, seed: int) -> dict[str, Any]:
    train, test, truth = world(name, seed)
    reference = PRESETS["fast"]
    training = replace(reference.training, steps=steps, batch=BATCH, validate_every=steps // 6, patience=99)
    partition = "block:3x3" if name == "blocks" else "swap"
    config = VARIANTS[variant](reference.model_copy(update={"partition": partition, "training": training}))
    begun = time.process_time()
    filler = ff.Filler(config=config, seed=seed).fit(train)
    fitted = time.process_time()
    scores = ff.score(filler.fill(test), truth).isel(variable=0)
    filling = time.process_time() - fitted
    for parameter in filler.model_.denoiser.network.parameters():
        parameter.data.zero_()  # what is left is the skip
    filler.model_ = replace(filler.model_, ensemble=Ensemble(0))
    skip_alone = ff.score(filler.fill(test), truth).mse.item() if config.prediction == "data" else float("nan")
    return {
        "bench": "ablation",
        "case": name,
        "method": variant,
        "seed": seed,
        "metrics": {
            "mse_missing": scores.mse.item(),
            "share_of_variance": scores.mse.item() / float(truth.u.var()),
            "skip_alone": skip_alone / float(truth.u.var()),
        },
        "history": filler.model_.notes["history"],
        "fill": str(filler.model_.ensemble),
        "train_steps": steps,
        "batch": BATCH,
        "samples": TRAIN,
        "train_cpu_seconds": fitted - begun,
        "fill_cpu_seconds": filling,
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for variant in options.variants.split(","):
        for name in options.worlds.split(","):
            for seed in map(int, options.seeds.split(",")):
                path = RESULTS / f"{name}__{variant}__seed{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(run(name, variant, options.steps, seed), indent=1))
                row = json.loads(path.read_text())
                print(
                    f"{name:<8} {variant:<18} seed {seed}  {row['metrics']['share_of_variance']:.4f} of the variance, "
                    f"skip {row['metrics']['skip_alone']:.4f}, {row['train_cpu_seconds']:.0f} s of CPU",
                    flush=True,
                )


if __name__ == "__main__":
    main()
