"""The Gaussian mean alone: error against conjugate-gradient steps, preconditioner and cost, on Gaussian clouds.

    python benchmarks/gaussian_mean.py [--figure docs/images/gaussian_mean.png]

The covariance is learnt from the gappy training samples of the benchmark's case gaussian-cloud40; the error is that
on the missing cells of its test samples, as a multiple of the exact optimum for the same cells. The price is in
forward passes of the default network, measured in turns with it, in processor time of one thread. One JSON goes to
benchmarks/results/gaussian_mean; it is kept if it exists.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldfill.bench import rows
from fieldfill.bench.benches import jobs_of
from fieldfill.bench.cases import CASES, SCALES
from fieldfill.bench.methods import learnt
from fieldfill.bench.run import Runner, default_cache
from fieldfill.config import PRESETS, build_denoiser
from fieldfill.nn import GaussianSkip, gaussian
from fieldfill.pde.gaussian import GaussianField
from fieldfill.record import open_record
from fieldfill.windows import Windows

RESULTS = Path(__file__).parent / "results"
ROW = RESULTS / "gaussian_mean" / "gaussian-cloud40__steps__seed0.json"
WINDOWS = 16
STEPS = (2, 5, 10, 15, 20, 30, 40, 80, 160)
MODES = {"200 modes solved exactly": 200, "50 modes": 50, "plain": 1}


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    scale = SCALES["cpu"]
    runner = Runner(RESULTS, scale, default_cache(RESULTS))
    (job,) = jobs_of(["optimum"], scale, method="gaussian_mean")
    data = runner.data(job.case, 0)
    config = learnt("fieldfill", CASES[job.case], scale, data.frames, None, dict(job.changes))
    model = runner.trained(job, config, data, 0)[0].model_
    skip = model.denoiser.skip
    assert isinstance(skip, GaussianSkip)
    record = open_record(data.test, model.variables, None, model.domain.numpy())
    x, observed = Windows(record, model.normaliser, data.frames).training([(s, 0) for s in range(WINDOWS)])
    truth = model.normaliser.to_tensor(data.truth.z.values[:WINDOWS, None])
    best = _optimum(x, observed, truth, model.normaliser.std.item())
    network = _network(x, observed)
    found: dict[str, Any] = {"optimum_mse": best, "curves": {}}
    for name, modes in MODES.items():
        gaussian.MODES = modes
        curve = []
        for steps in STEPS:
            skip.steps, skip._modes = steps, None
            skip.effort.fill_(1)
            mse = _error(skip.condition(x, observed, torch.zeros(())), truth, observed)
            seconds, passes = _price(lambda: skip.condition(x, observed, torch.zeros(())), network)
            curve.append({"steps": steps, "ratio": mse / best, "ms": 1e3 * seconds / WINDOWS, "passes": passes})
            print(f"{name:<26} {steps:4} steps  {mse / best:.3f} x optimum  {passes:.2f} forward passes", flush=True)
        found["curves"][name] = curve
    return found


def _error(estimate: Tensor, truth: Tensor, observed: Tensor) -> float:
    return (estimate - truth)[~observed].square().mean().item()


def _optimum(x: Tensor, observed: Tensor, truth: Tensor, std: float) -> float:
    law = SCALES["cpu"].simulators["gaussian"]
    assert isinstance(law, GaussianField)
    means = [law.smoother((values[0] * std).double(), mask[0])[0] / std for values, mask in zip(x, observed)]
    return _error(torch.stack(means)[:, None], truth, observed)


def _network(x: Tensor, observed: Tensor) -> Callable[[], Tensor]:
    config = PRESETS["fast"].model_copy(update={"skip": "none"})
    denoiser = build_denoiser(config, torch.ones(1, *x.shape[-2:], dtype=torch.bool), (True, True), 0).eval()
    t = torch.full((len(x),), denoiser.schedule.delta)

    @torch.no_grad()
    def call() -> Tensor:
        return denoiser(t, x, observed)

    return call


def _price(work: Callable[[], object], unit: Callable[[], object], repeats: int = 3) -> tuple[float, float]:
    """Processor seconds of ``work``, and how many times those of ``unit`` that is; both run in turns."""
    seconds, ratios = [], []
    for _ in range(repeats):
        begun = time.process_time()
        unit()
        between = time.process_time()
        work()
        seconds.append(time.process_time() - between)
        ratios.append(seconds[-1] / (between - begun))
    return statistics.median(seconds), statistics.median(ratios)


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
    for name, curve in found["curves"].items():
        left.plot([p["steps"] for p in curve], [p["ratio"] for p in curve], "o-", ms=3, label=name)
        right.plot([p["passes"] for p in curve], [p["ratio"] for p in curve], "o-", ms=3)
    right.axvspan(0, 3, color="0.92", zorder=0)
    for axis in (left, right):
        axis.axhline(1.35, color="0.5", lw=0.8, ls="--")
        axis.set(xscale="log", yscale="log")
        axis.set_yticks([1, 1.35, 2, 3], labels=["1", "1.35", "2", "3"])
        axis.minorticks_off()
    left.set(xlabel="conjugate-gradient steps", ylabel="MSE / optimum")
    right.set(xlabel="cost in forward passes of the default network")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if not ROW.exists():
        ROW.parent.mkdir(parents=True, exist_ok=True)
        row = {
            "bench": "gaussian_mean",
            "case": "gaussian-cloud40",
            "method": "steps",
            "seed": 0,
            "metrics": measure(),
            **rows.provenance(1),
        }
        ROW.write_text(json.dumps(row, indent=1))
    if options.figure is not None:
        draw(json.loads(ROW.read_text())["metrics"], options.figure)


if __name__ == "__main__":
    main()
