"""What each stage of the first estimate adds to the Gaussian mean, before any network is trained.

    python benchmarks/first_estimate.py [--cases era5-pixel20,...] [--cache benchmarks/.bench_cache]

For each case of the benchmark at the scale ``cpu``: the error on held-out cells, by which stages are kept or left out,
and on the missing cells of the test windows, filled from all their observations at once; where values are carried along
the motion, also with the motion seen in the truth, which is the most that seeing it better could give. Rows go to
benchmarks/results/first_estimate; existing rows are kept. The clock is the process's own.
"""

import argparse
import json
import subprocess
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Generator, Tensor

from fieldfill.audit import mask_bank
from fieldfill.bench.cases import CASES, SCALES, Case, load
from fieldfill.bench.methods import learnt
from fieldfill.climatology import learn_normaliser
from fieldfill.config import build_denoiser, build_partition, static_features
from fieldfill.covariance import learn_covariance
from fieldfill.denoise import Denoiser
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.nn.transport import Transport
from fieldfill.partition import Partition
from fieldfill.record import open_record
from fieldfill.refine import learn_first_estimate
from fieldfill.sample import Ensemble, single_step
from fieldfill.seeds import stream
from fieldfill.windows import Normaliser, Windows

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "first_estimate"
SHOWN = "era5-pixel20,advection-block8of9,navier-stokes-pixel60,gaussian-cloud40"
BATCH = 8


@dataclass
class Prepared:
    """Everything up to the Gaussian mean of a case, and how it is judged on the test."""

    denoiser: Denoiser
    windows: Windows
    partition: Partition
    test: Windows
    truth: Tensor
    cpu_seconds: float

    @classmethod
    def of(cls, case: Case, cache: Path, seed: int = 0) -> "Prepared":
        scale = SCALES["cpu"]
        data = load(case, scale, seed, cache)
        config = learnt("fieldfill", case, scale, data.frames, None, {})
        record = open_record(data.train, None, None, data.domain)
        windows = Windows(record, Normaliser(record.mean, record.std), config.window)
        windows.held = hold_out(windows, config.hold_out, stream(seed, "hold-out"))
        windows.normalise(learn_normaliser(windows, stream(seed, "climatology")))
        domain = torch.from_numpy(record.domain)
        static = static_features(domain, windows.normaliser)
        denoiser = build_denoiser(config, domain, record.periodic, seed, static)
        partition = build_partition(case.unit, mask_bank(windows, seed), config.keep)
        assert isinstance(denoiser.skip, GaussianSkip)
        begun = time.process_time()
        learn_covariance(denoiser.skip, windows, stream(seed, "covariance"))
        spent = time.process_time() - begun
        test = Windows(open_record(data.test, None, None, data.domain), windows.normaliser, config.window)
        truth = np.stack([data.truth[name].values for name in record.variables], axis=1)
        return cls(denoiser, windows, partition, test, windows.normaliser.to_tensor(truth), spent)

    def error(self, known: bool = False) -> float:
        """Mean squared error, unitless, at the missing cells of the first window of each test sample.

        ``known`` lets the motion be seen in the truth.
        """
        self.denoiser.eval()
        total, cells = 0.0, 0
        for first in range(0, len(self.truth), BATCH):
            samples = range(first, min(first + BATCH, len(self.truth)))
            x, observed = self.test.training([(sample, 0) for sample in samples])
            partition = build_partition("pixel", observed, (1, 1))
            true = self.truth[first : first + BATCH, :, : self.test.length].to(x)
            with torch.no_grad(), _moving_as(self.denoiser.transport, true) if known else nullcontext():
                found = single_step(self.denoiser, x, observed, partition, Ensemble(0), Generator().manual_seed(first))
            error = (found.mean - true)[~observed]
            total, cells = total + float(error.double().square().sum()), cells + len(error)
        return total / cells


def run(case: Case, cache: Path, seed: int = 0) -> dict[str, Any]:
    prepared = Prepared.of(case, cache, seed)
    metrics = {"skip": prepared.error()}
    begun = time.process_time()
    stages = learn_first_estimate(prepared.denoiser, prepared.windows, prepared.partition, seed)
    spent = time.process_time() - begun
    metrics["mse_missing"] = prepared.error()
    transport = prepared.denoiser.transport
    if transport is not None and transport.weights.any():
        metrics["with_the_true_motion"] = prepared.error(known=True)
    return {
        "bench": "first_estimate",
        "case": case.name,
        "seed": seed,
        "held_out": stages,
        "metrics": metrics,
        "covariance_cpu_seconds": prepared.cpu_seconds,
        "stages_cpu_seconds": spent,
        "commit": commit(),
    }


def _moving_as(transport: Transport | None, true: Tensor) -> AbstractContextManager[object]:
    """The motion is seen in ``true`` and not in an estimate."""
    assert transport is not None
    seen = transport.motion
    return patch.object(transport, "motion", lambda _, context: seen(true, context))


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=SHOWN)
    parser.add_argument("--cache", type=Path, default=HERE / ".bench_cache")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in options.cases.split(","):
        path = RESULTS / f"{name}__seed0.json"
        if not path.exists():
            path.write_text(json.dumps(run(CASES[name], options.cache), indent=1))
        row = json.loads(path.read_text())
        stages = ", ".join(f"{stage} {found['validation']:.4f}" for stage, found in row["held_out"].items())
        print(f"{name}: held out: {stages}; test: {row['metrics']['skip']:.4f} -> {row['metrics']['mse_missing']:.4f}")


if __name__ == "__main__":
    main()
