"""False alarms and power of the mask-field independence test on simulated records.

Fields and clouds are Gaussian fields that drift and renew themselves from window to window (an autocorrelated
record cut into windows), which is where a naive test raises false alarms. The dependent masks hide the cells
where a field with correlation 0.3 to the data exceeds a threshold.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from fieldfill.independence import test_independence
from fieldfill.masks import CloudMask

RESULTS = Path(__file__).parent / "results" / "independence"


def records(
    count: int, windows: int, frames: int, size: int, rho: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (count, N, 1, T, H, W) with 0 at missing cells, and masks; rho = corr(field, cloud field)."""
    shape = (count, 1, windows * frames, size, size)
    x = CloudMask(scale=4.0, speed=0.5, memory=0.9).field(shape, generator)
    e = CloudMask(scale=4.0, speed=0.8, memory=0.8).field(shape, generator)
    observed = rho * x + (1 - rho**2) ** 0.5 * e < 0.25
    shape = (count, windows, 1, frames, size, size)
    return (x * observed).view(shape), observed.view(shape)


def rate(count: int, rho: float, seed: int, windows: int, frames: int, size: int) -> tuple[float, float]:
    """Share of alarms at the 5 % level and mean effect over ``count`` records."""
    generator = torch.Generator().manual_seed(seed)
    domain = torch.ones((1, size, size), dtype=torch.bool)
    outcomes = []
    for first in range(0, count, 10):
        values, observed = records(min(10, count - first), windows, frames, size, rho, generator)
        for x, mask in zip(values, observed):
            outcomes.append(test_independence(x, mask, domain, generator, permutations=399))
    return sum(o.p_value <= 0.05 for o in outcomes) / count, sum(o.effect for o in outcomes) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=32)
    options = parser.parse_args()
    sizes = {"windows": 96, "frames": 4, "size": options.size}
    start = time.perf_counter()
    false_alarms, _ = rate(options.simulations, 0.0, options.seed, **sizes)
    strong = max(20, options.simulations // 5)
    power, effect = rate(strong, 0.3, options.seed + 1000, **sizes)
    row = {
        "bench": "independence",
        "seed": options.seed,
        "simulations": options.simulations,
        "simulations_power": strong,
        **sizes,
        "metrics": {"false_alarms": false_alarms, "power_correlation_0.3": power, "mean_effect": effect},
        "wall_seconds": round(time.perf_counter() - start, 1),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"size{options.size}__seed{options.seed}.json").write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
