"""Pictures of the data cards and of the mask models, into docs/images.

FIELDFILL_ERA5=file python benchmarks/card_pictures.py [advection shallow-water navier-stokes era5 masks]
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import torch
import xarray as xr
from cmcrameri import cm
from matplotlib.colors import ListedColormap
from torch import Tensor

from fieldfill.api import hide
from fieldfill.baselines import LinearTime, OptimalInterpolation
from fieldfill.data.io import open_dataset
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    EmpiricalMask,
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
from fieldfill.simulate import Advection, NavierStokes, ShallowWater

matplotlib.use("Agg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parents[1] / "docs" / "images"
# Hours of the ERA5 file that are filled, those of the time series, and the one of the maps.
HOURS = slice(0, 240)
SERIES = slice(0, 96)
SHOWN = 38
# Shares of the ERA5 points that are observed.
SHARES = (0.2, 0.1, 0.01)
# Windows, variables, frames, rows, columns of the masks.
MASKED = (40, 2, 4, 48, 48)
# Hidden, observed or context, query.
COLOURS = ListedColormap(["#d9d4c7", "#2c6e9b", "#e08a2e"])


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
    figure.savefig(IMAGES / f"{name}.png", dpi=80)
    plt.close(figure)


def advection() -> None:
    simulator = Advection()
    fields, parameters = simulator.simulate(2, torch.Generator().manual_seed(4))
    labels = [f"u, velocity ({x:.2f}, {y:.2f})" for x, y in zip(parameters["velocity_x"], parameters["velocity_y"])]
    strips("advection", dict(zip(labels, fields[:, 0])), list(simulator.coordinates()["time"][0]), "")


def shallow_water() -> None:
    water = ShallowWater()
    fields, _ = water.simulate(1, torch.Generator().manual_seed(4))
    hours = list(water.coordinates()["time"][0] / 3600)
    strips("shallow-water", dict(zip(("h (m)", "u (m s$^{-1}$)", "v (m s$^{-1}$)"), fields[0])), hours, " h")


def navier_stokes() -> None:
    generator, reynolds = torch.Generator().manual_seed(4), {"reynolds": (1000.0, 1000.0)}
    flows = {"decaying": NavierStokes(**reynolds), "Kolmogorov": NavierStokes.kolmogorov(**reynolds)}
    rows = {f"vorticity, {name}": flow.simulate(1, generator)[0][0, 0] for name, flow in flows.items()}
    strips("navier-stokes", rows, list(NavierStokes().coordinates()["time"][0]), "")


def draw_map(axis: plt.Axes, field: xr.DataArray, limits: tuple[float, float], title: str) -> None:
    axis.set_facecolor("0.85")
    axis.pcolormesh(field.longitude, field.latitude, field, cmap=cm.batlow, vmin=limits[0], vmax=limits[1])
    axis.set_title(title, fontsize=8)
    axis.set(xticks=[], yticks=[], aspect=1.7)  # a degree of longitude is 0.59 of one of latitude at 54 degrees north


def draw_series(axis: plt.Axes, truth: xr.DataArray, filled: dict[str, xr.Dataset], gappy: xr.Dataset) -> None:
    """Four days of one cell in the middle of England."""
    cell = {"latitude": 52.5, "longitude": -1.5}
    truth, hours = truth.isel(time=SERIES), np.arange(SERIES.stop)
    axis.plot(hours, truth.sel(cell) - 273.15, "k-", lw=1, label="truth")
    for name, ds in filled.items():
        axis.plot(hours, ds.t2m.isel(time=SERIES).sel(cell) - 273.15, lw=1, label=name)
    axis.plot(hours, gappy.t2m.isel(time=SERIES).sel(cell) - 273.15, "o", ms=3, color="k", label="observed")
    axis.set_xlabel("hours since 1 March 2019, 0 UTC", fontsize=8)
    axis.set_ylabel("°C at 52.5 N, 1.5 W", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False, ncols=4)


def era5() -> None:
    """One hour of 2 m temperature, masks of 20, 10 and 1 % of it, and optimal interpolation of these."""
    truth = open_dataset(os.environ["FIELDFILL_ERA5"])[["t2m"]].isel(time=HOURS).load()
    now = truth.t2m.isel(time=SHOWN)
    limits = (float(now.min()), float(now.max()))
    domain = np.ones(now.shape, bool)
    figure = plt.figure(figsize=(8.5, 6.6), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(2.7, 1))
    axes = above.subplots(2, 4)
    draw_map(axes[0, 0], now, limits, f"truth, {np.datetime_as_string(now.time.values, 'h').replace('T', ' ')} UTC")
    axes[1, 0].axis("off")
    for share, column in zip(SHARES, axes.T[1:]):
        gappy, _ = hide(truth, "pixel", share, every=3)
        filled = OptimalInterpolation(domain=domain).fit(gappy).fill(gappy)
        missing = np.isnan(gappy.t2m)
        rmse = float((((filled.t2m - truth.t2m) ** 2).where(missing)).mean()) ** 0.5
        draw_map(column[0], gappy.t2m.isel(time=SHOWN), limits, f"{share:.0%} observed")
        draw_map(column[1], filled.t2m.isel(time=SHOWN), limits, f"oi: RMSE {rmse:.2f} K")
        if share == SHARES[1]:
            lines = {"linear_time": LinearTime(domain=domain).fit(gappy).fill(gappy), "oi": filled}
            draw_series(below.subplots(), truth.t2m, lines, gappy)
    colours = plt.cm.ScalarMappable(plt.Normalize(*[limit - 273.15 for limit in limits]), cm.batlow)
    above.colorbar(colours, ax=axes[1, 0], location="bottom", fraction=0.5, shrink=0.9).set_label("°C", fontsize=8)
    figure.savefig(IMAGES / "era5.png", dpi=80)


def mask_models(generator: torch.Generator) -> dict[str, MaskModel]:
    bank = CloudMask(0.5, scale=8).sample(MASKED, generator)
    return {
        "PixelMask(0.3)": PixelMask(0.3),
        "PixelMask(0.3, static=False)": PixelMask(0.3, static=False),
        "BlockMask(3, 3, 5)": BlockMask(3, 3, 5),
        "SensorMask(120, 0.2)": SensorMask(120, 0.2),
        "TrackMask()": TrackMask(width=1.5),
        "SwathMask()": SwathMask(),
        "CloudMask(0.4)": CloudMask(0.4),
        "FrameDropout(0.6)": FrameDropout(0.6),
        "VariableDropout(0.6)": VariableDropout(0.6),
        "SwathMask & CloudMask": Intersection((SwathMask(20, 30), CloudMask(0.6))),
        "TrackMask | SensorMask": Union((TrackMask(), SensorMask(60))),
        "EmpiricalMask(bank, shift)": EmpiricalMask(bank, shift=True),
    }


def matching(model: MaskModel, bank: Tensor) -> Partition:
    """The partition with the structure of ``model``; ``bank`` (N, C, T, H, W) holds masks of the data set.

    Shapes that are not units of a grid (tracks, swaths, clouds, combinations) are matched by swapping masks.
    """
    match model:
        case PixelMask():
            return PixelPartition(static=model.static)
        case BlockMask():
            return BlockPartition(model.rows, model.cols)
        case SensorMask():
            return StationPartition(dropout=max(model.dropout, 0.02))
        case FrameDropout():
            return FramePartition()
        case VariableDropout():
            return VariablePartition()
        case _:
            return MaskSwap(bank)


def masks() -> None:
    """Two frames of every mask model, and a context of its matching partition."""
    generator = torch.Generator().manual_seed(3)
    figure, axes = plt.subplots(6, 6, figsize=(9, 9.6), layout="constrained")
    cells = axes.reshape(12, 3)
    for row, (name, model) in zip(cells, mask_models(generator).items()):
        mask = model.sample(MASKED, generator)
        context, query = matching(model, mask).split(mask, generator)
        # A window with a query in the first frame, and if possible with a change to the next.
        moves = (mask[:, 0, 0] != mask[:, 0, 1]).flatten(1).any(-1)
        shown = int((2 * query[:, 0, 0].flatten(1).any(-1).int() + moves.int()).argmax())
        code = context.int() + 2 * (query & ~context).int()
        pictures = [mask[shown, 0, 0].int(), mask[shown, 0, 1].int(), code[shown, 0, 0]]
        for axis, picture, title in zip(row, pictures, (name, "next frame", "context, query")):
            axis.imshow(picture, cmap=COLOURS, vmin=0, vmax=2, interpolation="nearest")
            axis.set_title(title, fontsize=7)
            axis.set_xticks([])
            axis.set_yticks([])
    figure.savefig(IMAGES / "masks.png", dpi=90)


PICTURES: dict[str, Callable[[], None]] = {
    "advection": advection,
    "shallow-water": shallow_water,
    "navier-stokes": navier_stokes,
    "era5": era5,
    "masks": masks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="picture", help="all by default")
    for name in parser.parse_args().pictures or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
