"""Does mask swap reach the block partition on block gaps without being told about blocks? Does the pixel one not?

One data set (advection, 3 x 3 blocks, a few of them observed), one network, one budget; only the partition differs.
The network has no skip that interpolates through the gaps by itself, so that what it knows there it was taught.

    python benchmarks/partitions.py [--steps 1000] [--seeds 0,1]

Rows are written as they finish to benchmarks/results/partitions; existing rows are kept.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import fieldfill as ff
from fieldfill.config import Config
from fieldfill.masks import BlockMask
from fieldfill.pde import Advection
from fieldfill.train import TrainSettings

RESULTS = Path(__file__).parent / "results" / "partitions"
SAMPLES, FRAMES = 256, 8
PARTITIONS = ("block:3x3", "swap", "pixel", "all-observed")


def make(blocks: int, seed: int) -> tuple[xr.Dataset, xr.Dataset]:
    """Complete advection sequences and the same with 9 - ``blocks`` blocks hidden."""
    generator = torch.Generator().manual_seed(seed)
    simulator = Advection(frames=FRAMES)
    fields, _ = simulator.simulate(SAMPLES, generator)
    seen = BlockMask(3, 3, blocks).sample(tuple(fields.shape), generator)
    dims = ("sample", "time", "y", "x")
    coords = {name: (name, values, attrs) for name, (values, attrs) in simulator.coordinates().items()}
    truth = xr.Dataset({"u": (dims, fields[:, 0].numpy().astype(np.float32))}, coords=coords)
    return truth, truth.where(xr.DataArray(seen[:, 0].numpy(), dims=dims))


def run(partition: str, blocks: int, steps: int, seed: int) -> dict:
    truth, gappy = make(blocks, seed)
    training = TrainSettings(steps=steps, validate_every=steps // 5, patience=99)
    config = Config(
        window=FRAMES, partition=partition, skip="pull-push", base=24, levels=3, keep=(0.5, 0.95), training=training
    )
    begun = time.monotonic()
    filler = ff.Filler(config=config, seed=seed).fit(gappy)
    fitted = time.monotonic()
    scores = ff.score(filler.fill(gappy), truth).isel(variable=0)
    variance = float(truth.u.var())
    return {
        "bench": "partitions",
        "case": f"advection_block{blocks}of9",
        "method": partition,
        "seed": seed,
        "metrics": {
            "mse_missing": scores.mse.item(),
            "mse_all": scores.mse_all.item(),
            "share_of_variance": scores.mse.item() / variance,
        },
        "unlearnable_share": filler.model_.notes["audit"][partition]["unlearnable_share"],
        "fill": str(filler.model_.ensemble),
        "train_steps": steps,
        "samples": SAMPLES,
        "train_seconds": fitted - begun,
        "fill_seconds": time.monotonic() - fitted,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--blocks", default="8,5")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options.seeds.split(",")):
        for blocks in map(int, options.blocks.split(",")):
            for partition in PARTITIONS:
                path = RESULTS / f"advection_block{blocks}of9__{partition.replace(':', '-')}__seed{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(run(partition, blocks, options.steps, seed), indent=1))
                row = json.loads(path.read_text())
                print(
                    f"{row['case']:<22} {row['method']:<14} seed {seed}  {row['metrics']['share_of_variance']:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
