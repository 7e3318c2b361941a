"""What a network adds to the first estimate, and which of its properties matter, at one price in processor time.

    python benchmarks/corrections.py [--cases era5-pixel20,navier-stokes-pixel60] [--minutes 2] [--variants ...]
                                     [--cache benchmarks/.bench_cache]

For each case of the benchmark at the scale ``cpu`` all variants start from one first estimate. A row tells the error on
held-out cells before and along the training, and on the missing cells of the test windows, filled from all their
observations at once, before and after it. Rows go to benchmarks/results/corrections. One thread.
"""

import argparse
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fieldfill.bench.cases import CASES, SCALES, UNET
from fieldfill.bench.methods import learnt
from fieldfill.config import build_denoiser
from fieldfill.refine import learn_first_estimate
from fieldfill.train import Training
from first_estimate import HERE, Prepared, commit

RESULTS = HERE / "results" / "corrections"
# What is different from the default: settings of the network, of the training, or none of the units.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "one network over all frames": {"network": UNET},
    "units of the data": {"units": False},
    "batches of 16": {"training": {"batch": 16}},
    "t power 3": {"training": {"time_power": 3.0}},
    "rate 1e-3": {"training": {"rate": 1e-3}},
    "as before": {"network": UNET, "units": False, "training": {"batch": 16, "time_power": 3.0, "rate": 1e-3}},
}


def run(name: str, variant: str, prepared: Prepared, minutes: float, seed: int = 0) -> dict[str, Any]:
    chosen, first = VARIANTS[variant], prepared.denoiser
    windows = prepared.windows
    config = learnt("fieldfill", CASES[name], SCALES["cpu"], windows.length, minutes, chosen.get("network", {}))
    domain = torch.from_numpy(windows.record.domain)
    denoiser = build_denoiser(config, domain, windows.record.periodic, seed, first.static)
    for part in ("skip", "transport", "local", "scales"):
        setattr(denoiser, part, getattr(first, part))
    if not chosen.get("units", True):
        denoiser.scales = None
    settings = replace(config.training, **chosen.get("training", {}))
    judged = replace(prepared, denoiser=denoiser)
    before = judged.error()
    training = Training(denoiser, windows, prepared.partition, settings, seed)
    training.run()
    return {
        "bench": "corrections",
        "case": name,
        "variant": variant,
        "seed": seed,
        "budget": {"minutes": minutes, "clock": "processor", "threads": 1},
        "metrics": {
            "first": before,
            "mse_missing": judged.error(),
            "held_out_first": training.history[0]["validation"],
            "held_out": training.best["error"],
            "gain": training.best["gain"],
        },
        "train_steps": training.step,
        "history": [{key: entry[key] for key in ("step", "seconds", "validation")} for entry in training.history],
        "commit": commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="era5-pixel20,navier-stokes-pixel60")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--cache", type=Path, default=HERE / ".bench_cache")
    options = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in options.cases.split(","):
        prepared = None
        for variant in options.variants.split(","):
            path = RESULTS / f"{name}__{variant.replace(' ', '-')}__seed0.json"
            if not path.exists():
                if prepared is None:
                    prepared = Prepared.of(CASES[name], options.cache)
                    learn_first_estimate(prepared.denoiser, prepared.windows, prepared.partition, 0)
                path.write_text(json.dumps(run(name, variant, deepcopy(prepared), options.minutes), indent=1) + "\n")
            found = json.loads(path.read_text())["metrics"]
            print(
                f"{name}, {variant}: held out {found['held_out_first']:.5f} -> {found['held_out']:.5f}, "
                f"test {found['first']:.5f} -> {found['mse_missing']:.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
