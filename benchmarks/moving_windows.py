"""The Gaussian mean alone: one covariance for all windows, and a drift or linear equations for every window.

    python benchmarks/moving_windows.py [CASE ...]

Prints, for each case of the benchmark at the scale "cpu", the mean squared error on held-out cells (unitless), that on
the missing cells of the test samples over the variance, and the processor time of learning and of a window. Nothing is
written.
"""

import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from fieldfill.bench.cases import CASES, SCALES, Data, load
from fieldfill.bench.run import default_cache
from fieldfill.climatology import learn_normaliser
from fieldfill.covariance import learn_covariance
from fieldfill.holdout import hold_out
from fieldfill.nn import GaussianSkip
from fieldfill.record import open_record
from fieldfill.seeds import stream
from fieldfill.windows import Normaliser, Windows

DEFAULT = ("advection-block8of9", "advection-block5of9", "advection-pixel30", "gaussian-cloud40")
TOGETHER = 2**19  # cells of the windows that are solved for together


def whole(data: Data, name: str, windows: Windows) -> tuple[Tensor, Tensor]:
    """Samples (B, C, T, H, W) of a part of the data, each one window, and their observed cells."""
    record = open_record(getattr(data, name), domain=data.domain)
    samples = Windows(record, windows.normaliser, windows.length)
    x, observed = zip(*(samples.visible(sample, 0) for sample in range(record.shape[0])))
    return torch.stack(x), torch.stack(observed)


def mean(skip: GaussianSkip, x: Tensor, observed: Tensor) -> Tensor:
    size = max(1, TOGETHER // x[0].numel())
    parts = zip(x.split(size), observed.split(size))
    return torch.cat([skip.posterior_mean(*part, torch.zeros(())) for part in parts])


def measure(name: str) -> None:
    data = load(CASES[name], SCALES["cpu"], 0, default_cache(Path(__file__).parent / "results"))
    record = open_record(data.train, domain=data.domain)
    windows = Windows(record, Normaliser(record.mean, record.std), data.frames)
    windows.held = hold_out(windows, 0.1, stream(0, "hold-out"))
    windows.normalise(learn_normaliser(windows, stream(0, "climatology")))
    x, observed = whole(data, "test", windows)
    truth, _ = whole(data, "truth", windows)
    x_held, context, held = windows.held_out(list(windows.held.places))
    for moving in (False, True):
        skip = GaussianSkip(x.shape[1], data.frames, x.shape[3:], record.periodic, steps=20)
        begin = time.process_time()
        found = learn_covariance(skip, windows, stream(0, "covariance"), moving)
        learnt = time.process_time()
        filled = mean(skip, x, observed)
        each = (time.process_time() - learnt) / len(x)
        error = ((filled - truth)[~observed].square().mean() / truth[~observed].var()).item()
        hidden = (mean(skip, x_held, context) - x_held)[held].square().mean()
        law = next((name for name in ("dynamics", "moving") if found.get(name)), "common")
        print(
            f"{name:24} {law}: held-out {hidden:.5f}, test {error:.5f}, "
            f"{learnt - begin:.1f} s to learn, {1000 * each:.0f} ms a window",
            flush=True,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or DEFAULT:
        measure(case)
