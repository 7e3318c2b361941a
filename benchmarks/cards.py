"""Figures of the data cards, into docs/images: python benchmarks/cards.py"""

from pathlib import Path

import matplotlib
import torch
from cmcrameri import cm
from torch import Tensor

from fieldfill.pde import Advection, NavierStokes, ShallowWater

matplotlib.use("Agg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def strips(name: str, rows: dict[str, Tensor], times: list[float], unit: str) -> None:
    """One row of frames per entry of ``rows``, each (T, H, W), each with its own symmetric colour scale."""
    shown = [round(n * (len(times) - 1) / 4) for n in range(5)]
    figure, axes = plt.subplots(len(rows), 5, figsize=(8, 1.65 * len(rows) + 0.2), squeeze=False, layout="constrained")
    for line, (label, frames) in zip(axes, rows.items()):
        limit = frames[shown].abs().quantile(0.995).item()
        for axis, frame in zip(line, shown):
            image = axis.imshow(
                frames[frame], origin="lower", cmap=cm.vik, vmin=-limit, vmax=limit, interpolation="nearest"
            )
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, fontsize=8)
        figure.colorbar(image, ax=line, shrink=0.9, pad=0.01).ax.tick_params(labelsize=7)
    for axis, frame in zip(axes[0], shown):
        axis.set_title(f"time {times[frame]:.3g}{unit}", fontsize=8)
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    generator = torch.Generator().manual_seed(4)
    advection = Advection()
    fields, parameters = advection.simulate(2, generator)
    labels = [f"u, velocity ({x:.2f}, {y:.2f})" for x, y in zip(parameters["velocity_x"], parameters["velocity_y"])]
    times = list(advection.coordinates()["time"][0])
    strips("advection", dict(zip(labels, fields[:, 0])), times, "")

    water = ShallowWater()
    fields, _ = water.simulate(1, generator)
    hours = list(water.coordinates()["time"][0] / 3600)
    rows = dict(zip(("h (m)", "u (m s$^{-1}$)", "v (m s$^{-1}$)"), fields[0]))
    strips("shallow-water", rows, hours, " h")

    reynolds = {"reynolds": (1000.0, 1000.0)}
    flows = {"decaying": NavierStokes(**reynolds), "Kolmogorov": NavierStokes.kolmogorov(**reynolds)}
    rows = {f"vorticity, {name}": flow.simulate(1, generator)[0][0, 0] for name, flow in flows.items()}
    strips("navier-stokes", rows, list(NavierStokes().coordinates()["time"][0]), "")


if __name__ == "__main__":
    main()
