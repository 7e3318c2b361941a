"""A positive variable that spans decades, filled as it is and in its logarithm.

    python benchmarks/logarithm.py [--seeds 0,1,2]

A made-up chlorophyll, e to the power of a Gaussian field with standard deviation 1, is hidden under clouds that leave
40 % and filled twice from the same gaps. Scores are those at missing cells; one row for each seed is written.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import fieldfill as ff
from fieldfill.bench.rows import provenance
from fieldfill.pde.gaussian import GaussianField

RESULTS = Path(__file__).parent / "results" / "logarithm"
SIZE, FRAMES, OBSERVED, STEPS = 40, 160, 0.4, 300


def chlorophyll(seed: int) -> xr.Dataset:
    fields, _ = GaussianField(size=SIZE, frames=FRAMES, periodic=False).simulate(1, torch.Generator().manual_seed(seed))
    days = np.datetime64("2020-01-01", "ns") + np.arange(FRAMES) * np.timedelta64(1, "D")
    units = {"units": "mg m-3"}
    return xr.Dataset({"chl": (("time", "y", "x"), np.exp(fields[0, 0].numpy()), units)}, coords={"time": days})


def scores(filled: xr.Dataset, truth: xr.Dataset) -> dict[str, float]:
    told, gaps = ff.score(filled, truth), filled.chl_flag.values == 1
    value, true, low = filled.chl.values[gaps], truth.chl.values[gaps], filled.chl_quantile.values[0, gaps]
    return {name: float(told[name].item()) for name in ("mae", "rmse", "coverage90")} | {
        "median_factor": float(np.exp(np.median(np.abs(np.log(np.maximum(value, 1e-3) / true))))),
        "not_positive": float((value <= 0).mean()),
        "interval_below_0": float((low < 0).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in map(int, options.seeds.split(",")):
        truth = chlorophyll(seed)
        gappy, observed = ff.hide(truth, "cloud", OBSERVED, seed=seed)
        row = {
            "bench": "logarithm",
            "seed": seed,
            "sizes": {"grid": [SIZE, SIZE], "frames": FRAMES, "observed": round(observed, 4)},
            "steps": STEPS,
            **provenance(options.threads),
        }
        for name, log in (("as it is", ()), ("logarithm", ("chl",))):
            start = time.perf_counter()
            filled = ff.Filler(seed=seed, steps=STEPS, log=log).fit(gappy).fill(gappy, quantiles=(0.05, 0.95))
            row[name] = scores(filled, truth) | {"wall_seconds": round(time.perf_counter() - start, 1)}
        (RESULTS / f"seed{seed}.json").write_text(json.dumps(row, indent=1) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    main()
