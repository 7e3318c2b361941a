"""Numbers and figure of the Gaussian card.

    python benchmarks/gaussian_card.py [--figure docs/images/gaussian.png]

The optimum (mean posterior variance on missing cells) for the usual masks, and a check on 400 draws: the error of the
posterior mean is the predicted variance, and 90 % intervals cover 90 %.
"""

import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from cmcrameri import cm
from torch import Generator, Tensor

from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.metrics import distance_to_observation, energy_spectrum
from fieldfill.simulate.gaussian_field import GaussianField

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FIELD = GaussianField(size=32, frames=8)
# Sequences of the check.
DRAWS = 400
# Masks of each kind.
MASKS = 4
# Half-width of a 90 % interval, in standard deviations of a normal law.
NORMAL90 = 1.6448536


def clouds(share: float, generator: Generator) -> Tensor:
    """Observed cells (T, H, W) between moving clouds that hide ``share`` of the grid."""
    cover = GaussianField(size=FIELD.size, frames=FIELD.frames, velocity=(-0.8, 2.0), memory=0.9)
    shade = cover.simulate(1, generator)[0][0, 0]
    return shade < torch.quantile(shade, 1 - share)


def blocks(kept: int, generator: Generator) -> Tensor:
    """Observed cells (T, H, W) of ``kept`` out of 3 x 3 blocks, the same in every frame."""
    chosen = torch.zeros(9, dtype=torch.bool)
    chosen[torch.randperm(9, generator=generator)[:kept]] = True
    third = torch.arange(32) * 3 // 32
    return chosen.view(3, 3)[third][:, third].expand(FIELD.frames, -1, -1)


def pixels(share: float, generator: Generator) -> Tensor:
    """Observed cells (T, H, W), independent in space and the same in every frame."""
    return (torch.rand(32, 32, generator=generator) < share).expand(FIELD.frames, -1, -1)


def measure(seed: int) -> dict[str, Any]:
    generator = Generator().manual_seed(seed)
    optima = optimum(generator)
    return {"metrics": {"optimum": optima, "check": check(clouds(0.6, generator), generator)[0]}}


def optimum(generator: Generator) -> dict[str, dict[str, float]]:
    """The optimum of each kind of mask; it depends on the masks alone, not on the values."""
    masks = {f"pixel {share:.0%}": (pixels, share) for share in (0.8, 0.6, 0.2, 0.1, 0.01)}
    masks |= {f"blocks {kept}/9": (blocks, kept) for kept in (8, 5)}
    masks |= {"clouds, 40 % clear": (clouds, 0.6)}
    nothing = torch.zeros(FIELD.frames, 32, 32)
    found = {}
    for name, (draw, argument) in masks.items():
        observed = torch.stack([draw(argument, generator) for _ in range(MASKS)])
        variance = torch.stack([FIELD.smoother(nothing, mask)[1] for mask in observed])
        missing = (~observed).double().mean().item()
        least = variance[~observed].mean().item()
        # All-cells scores paste the noisy observations back.
        pasted = missing * least + (1 - missing) * FIELD.noise_std**2
        found[name] = {"missing": missing, "missing_cells": least, "all_cells": pasted}
    return found


def check(observed: Tensor, generator: Generator) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Numbers of the check, then squared errors over many draws and predicted variance, each (T, H, W)."""
    begun = time.perf_counter()
    given = FIELD.conditioning(observed)
    variance = given.variance()
    seconds = time.perf_counter() - begun
    truth = FIELD.simulate(DRAWS, generator)[0][:, 0]
    error = given.mean(FIELD.observe(truth, generator)) - truth
    mse, predicted = error[:, ~observed].square().mean(1), variance[~observed].mean()
    covered = (error.abs() <= NORMAL90 * variance.sqrt())[:, ~observed].double().mean()
    numbers = {
        "observations": int(observed.sum()),
        "conditioning_seconds": seconds,
        "mse": mse.mean().item(),
        "predicted": predicted.item(),
        "standard_errors_apart": ((mse.mean() - predicted) / (mse.std() / DRAWS**0.5)).item(),
        "coverage90": covered.item(),
    }
    return numbers, error.square().mean(0).numpy(), variance.numpy()


def draw_maps(axes: np.ndarray, observed: Tensor, generator: Generator) -> None:
    """Truth, observations, optimum and its standard deviation at three frames."""
    truth = FIELD.simulate(1, generator)[0][0, 0]
    values = FIELD.observe(truth, generator)
    mean, variance = FIELD.smoother(values, observed)
    rows = {
        "truth": truth,
        "observed": values.where(observed, torch.nan),
        "posterior mean": mean,
        "posterior std": variance.sqrt(),
    }
    for line, (name, field) in zip(axes, rows.items()):
        scale = (
            {"cmap": cm.batlow, "vmin": 0, "vmax": 1} if "std" in name else {"cmap": cm.vik, "vmin": -2.5, "vmax": 2.5}
        )
        for axis, t in zip(line, (1, 3, 5)):
            axis.set_facecolor("0.85")
            axis.imshow(field[t], origin="lower", **scale)
            axis.set_xticks([]), axis.set_yticks([])
            if name == "truth":
                axis.set_title(f"frame {t}", fontsize=9)
        line[0].set_ylabel(name, fontsize=9)


def draw_spectrum(axis: plt.Axes, generator: Generator) -> None:
    wavenumber, energy = energy_spectrum(FIELD.simulate(50, generator)[0][:, 0].numpy())
    _, asked = energy_spectrum(np.fft.irfft2(FIELD.modes.density.sqrt().numpy(), s=FIELD.torus) * 32)
    axis.loglog(wavenumber[1:16], energy.mean((0, 1))[1:16], "o", ms=4, label="50 sequences")
    axis.loglog(wavenumber[1:16], asked[1:16], "k-", lw=1, label="asked")
    axis.set(xlabel="wavenumber", ylabel="energy")


def draw_covariance(axis: plt.Axes, generator: Generator) -> None:
    x = FIELD.simulate(400, generator)[0][:, 0]
    apart = torch.arange(-8, 9)
    for lag in (0, 2, 4):
        pairs = [(x[:, lag:] * x[:, : 8 - lag].roll(int(d), -1)).mean() for d in apart]
        (points,) = axis.plot(apart, pairs, "o", ms=3)
        axis.plot(apart, FIELD.covariance(lag)[0, apart], "-", color=points.get_color(), label=f"lag {lag}")
    axis.set(xlabel="separation along x (cells)", ylabel="covariance")


def draw_check(axis: plt.Axes, observed: Tensor, generator: Generator) -> None:
    _, squares, variance = check(observed, generator)
    distance = np.rint(distance_to_observation(observed.numpy(), periodic=(True, True)))
    near = np.arange(1, 7)
    for values, style, name in (
        (squares, "o", f"error², {DRAWS} draws"),
        (variance, "k-", "predicted variance"),
    ):
        axis.plot(near, [values[distance == d].mean() for d in near], style, ms=4, lw=1, label=name)
    axis.set(xlabel="distance to an observation (cells, frame = 2)", ylabel="MSE", ylim=(0, None))


def draw(path: Path) -> None:
    generator = Generator().manual_seed(0)
    observed = clouds(0.6, generator)
    figure = plt.figure(figsize=(9.5, 7.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.25, 1))
    draw_maps(left.subplots(4, 3), observed, generator)
    spectrum, covariance, error = right.subplots(3, 1)
    draw_spectrum(spectrum, generator)
    draw_covariance(covariance, generator)
    draw_check(error, observed, generator)
    for axis in (spectrum, covariance, error):
        axis.legend(fontsize=8, frameon=False)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=75)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    (row,) = Study("cards", [Measurement("gaussian-law", "optimum", measure)]).run(options)
    print("| observed | share missing | optimum, missing cells | optimum, all cells |\n|---|---|---|---|")
    for name, found in row["metrics"]["optimum"].items():
        print(f"| {name} | {found['missing']:.3f} | {found['missing_cells']:.4f} | {found['all_cells']:.4f} |")
    print(row["metrics"]["check"])
    if options.figure is not None:
        draw(options.figure)


if __name__ == "__main__":
    main()
