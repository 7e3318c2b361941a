"""Figure of the ERA5 card: FIELDFILL_ERA5=file python benchmarks/era5_card.py [docs/images/era5.png]

One hour of 2 m temperature, what masks of 20, 10 and 1 % leave of it, and what optimal interpolation makes of that.
"""

import os
import sys
from pathlib import Path

import matplotlib
import numpy as np
import xarray as xr
from cmcrameri import cm

from fieldfill.baselines import LinearTime, OptimalInterpolation
from fieldfill.gaps import hide
from fieldfill.io import open_dataset

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HOURS = slice(0, 240)
SERIES = slice(0, 96)
SHOWN = 38
SHARES = (0.2, 0.1, 0.01)


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


def main(path: Path) -> None:
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/era5.png"))
