"""Does the comparison of partitions pick one with the structure of the masks? 200 simulated data sets.

Each data set draws a mask model and its parameters at random. Right are the partition that hides what the
model hides and mask swap (one donor or a union), which takes the structure from the masks themselves;
everything else is wrong.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import torch

from fieldfill.exposure import compare
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    FrameDropout,
    Intersection,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    Union,
    VariableDropout,
)
from fieldfill.partition import (
    BlockPartition,
    FramePartition,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
    VariablePartition,
)

RESULTS = Path(__file__).parent / "results" / "exposure"
SWAP = {"swap", "swap_single"}


def draw_model(number: int, generator: torch.Generator) -> tuple[str, MaskModel, set[str]]:
    """A mask model with random parameters, and the partitions that are right for it."""
    u, v = torch.rand(2, generator=generator).tolist()
    share = 0.2 + 0.6 * u
    blocks = 3 + int(6 * u)
    cloud = CloudMask(share, scale=2.5 + 3 * v)
    swath = SwathMask(width=5 + 5 * u, spacing=14 + 4 * v, tilt=20 * v, revisit=3)
    track = TrackMask(spacing=8 + 8 * u, tilt=20 + 20 * v)
    kinds: list[tuple[str, MaskModel, set[str]]] = [
        ("pixel static", PixelMask(share), {"pixel", "station"}),
        ("pixel moving", PixelMask(share, static=False), {"pixel"}),
        ("block", BlockMask(3, 3, min(8, blocks)), {"block"}),
        ("sensor", SensorMask(20 + int(60 * u), 0.05 + 0.25 * v), {"station"}),
        ("track", track, set()),
        ("swath", swath, set()),
        ("cloud", cloud, set()),
        ("frame", FrameDropout(0.4 + 0.4 * u), {"frame"}),
        ("variable", VariableDropout(0.5 + 0.3 * u), {"variable"}),
        ("swath and cloud", Intersection((swath, CloudMask(0.7))), set()),
        ("track or sensor", Union((track, SensorMask(20, 0.1))), set()),
    ]
    name, model, right = kinds[number % len(kinds)]
    return name, model, right | SWAP


def candidates(observed: torch.Tensor) -> dict[str, Partition]:
    return {
        "pixel": PixelPartition(),
        "block": BlockPartition(),
        "station": StationPartition(),
        "frame": FramePartition(),
        "variable": VariablePartition(),
        "swap": MaskSwap(observed),
        "swap_single": MaskSwap(observed, keep=None),
    }


def clock(seed: int) -> None:
    """Wall time of one full comparison: 500 windows of 8 x 64 x 64 under clouds, default settings."""
    generator = torch.Generator().manual_seed(seed)
    observed = CloudMask().sample((500, 1, 8, 64, 64), generator)
    start = time.perf_counter()
    best, audits = compare(candidates(observed), observed, torch.ones((1, 64, 64), dtype=torch.bool), generator)
    row = {
        "bench": "exposure_time",
        "seed": seed,
        "shape": list(observed.shape),
        "threads": torch.get_num_threads(),
        "best": best,
        "unlearnable_share": {name: round(a.unlearnable_share, 4) for name, a in audits.items()},
        "wall_seconds": round(time.perf_counter() - start, 1),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"time__seed{seed}.json").write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", action="store_true", help="only time one comparison at full size")
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", type=int, default=20_000)
    options = parser.parse_args()
    if options.clock:
        clock(options.seed)
        return
    generator = torch.Generator().manual_seed(options.seed)
    shape = (60, 2, 4, 24, 24)
    domain = torch.ones((shape[1], *shape[3:]), dtype=torch.bool)
    start, right_count, choices = time.perf_counter(), 0, Counter[str]()
    for number in range(options.datasets):
        name, model, right = draw_model(number, generator)
        observed = model.sample(shape, generator)
        best, _ = compare(candidates(observed), observed, domain, generator, options.cells)
        right_count += best in right
        choices[f"{name} -> {best}"] += 1
        if best not in right:
            print(f"{number}: {model} -> {best}", flush=True)
        if number % 11 == 10:
            print(f"{right_count} of {number + 1} right, {time.perf_counter() - start:.0f} s", flush=True)
    row = {
        "bench": "exposure_auto",
        "seed": options.seed,
        "datasets": options.datasets,
        "shape": shape,
        "cells": options.cells,
        "metrics": {"right_share": right_count / options.datasets},
        "choices": dict(sorted(choices.items())),
        "wall_seconds": round(time.perf_counter() - start, 1),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"auto__seed{options.seed}.json").write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
