"""Time to draw 10,000 masks of 64 x 64 from every mask model."""

import argparse
import json
import time
from pathlib import Path

import torch

from fieldfill.masks import (
    BlockMask,
    CloudMask,
    EmpiricalMask,
    FrameDropout,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    VariableDropout,
)

RESULTS = Path(__file__).parent / "results" / "masks"
LIMITS = {"pixel": 1.0, "block": 1.0, "cloud": 10.0, "swath": 10.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    bank = CloudMask().sample((100, 1, 1, 64, 64), generator)
    models: dict[str, MaskModel] = {
        "pixel": PixelMask(),
        "block": BlockMask(),
        "sensor": SensorMask(),
        "track": TrackMask(),
        "swath": SwathMask(),
        "cloud": CloudMask(),
        "frame": FrameDropout(),
        "variable": VariableDropout(),
        "empirical": EmpiricalMask(bank),
    }
    seconds, observed = {}, {}
    for name, model in models.items():
        model.sample((10, 1, 1, 64, 64), generator)
        start = time.perf_counter()
        mask = model.sample((options.count, 1, 1, 64, 64), generator)
        seconds[name] = round(time.perf_counter() - start, 3)
        observed[name] = round(mask.float().mean().item(), 4)
        limit = f"of {LIMITS[name]:.0f} s allowed" if name in LIMITS else ""
        print(f"{name:10s} {seconds[name]:7.3f} s {limit:18s} observed {observed[name]:.3f}")
    row = {
        "bench": "masks",
        "seed": options.seed,
        "count": options.count,
        "threads": torch.get_num_threads(),
        "wall_seconds": seconds,
        "observed": observed,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"draw__seed{options.seed}.json").write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
