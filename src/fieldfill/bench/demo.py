"""The demonstration: a gappy sea-surface temperature whose truth and best possible fill are both known.

The field is a noisy Gaussian one, carried along a coast and slowly renewed; clouds drift over it and hide about 60 %
of the sea. Because everything is linear and Gaussian, the exact posterior mean given each window is available as the
yardstick that no method can pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from fieldfill.api import Filler, budget_of, check
from fieldfill.baselines import EOF, Baseline, BestInpainting, Climatology, GaussianOptimum, LinearTime
from fieldfill.data.io import open_dataset, save_dataset
from fieldfill.data.kinds import NETCDF, PAGE, PICTURE, Kind
from fieldfill.data.output_paths import check_folder, check_output
from fieldfill.errors import InputError
from fieldfill.execution.environment import versions
from fieldfill.masks import CloudMask
from fieldfill.metrics import score
from fieldfill.report import Story, picture, write_report
from fieldfill.simulate.gaussian_field import GaussianField
from fieldfill.stages import Report, Stages
from fieldfill.workflow.model import KIND as MODEL

__all__ = ["DemoData", "make_data", "run", "table"]

# Mean of the field in degrees Celsius.
MEAN = 14.0
TITLE, GAPPY = "fieldfill demonstration", "gappy.nc"  # by which a folder of an earlier run is recognised
PARTS: dict[str, Kind] = {
    GAPPY: NETCDF,
    "truth.nc": NETCDF,
    "model.ff": MODEL,
    "filled.nc": NETCDF,
    "report.html": PAGE,
    "demo.png": PICTURE,
}


@dataclass(frozen=True)
class DemoData:
    """Gappy observations, the noise-free truth (for scoring only), and the law both were drawn from."""

    gappy: xr.Dataset
    truth: xr.Dataset
    field: GaussianField


def make_data(frames: int = 360, size: tuple[int, int] = (32, 40), seed: int = 0, observed: float = 0.4) -> DemoData:
    """Draws the demonstration's data set; the same seed gives the same data."""
    generator = torch.Generator().manual_seed(seed)
    field = GaussianField(
        size=size,
        frames=frames,
        variance=4.0,
        velocity=(0.25, 0.7),
        memory=0.96,
        noise=0.05,
        periodic=False,
        wavelength=32,
    )
    fields, _ = field.simulate(1, generator)
    noisy = field.observe(fields, generator)[0, 0].numpy()
    # Coverage drifts through the record as weather does, between clear spells and overcast ones.
    cloudy = CloudMask(observed=observed, scale=4.5, speed=0.9, memory=0.93)
    seen = cloudy.sample((1, 1, frames, *size), generator)[0, 0].numpy()
    sea = coast(size)
    truth = _dataset(np.where(sea, fields[0, 0].numpy(), np.nan), sea)
    gappy = _dataset(np.where(sea & seen, noisy, np.nan), sea)
    return DemoData(gappy, truth, field)


def coast(size: tuple[int, int]) -> np.ndarray:
    """Where the sea is, (H, W): a wavy coast on the left and an island."""
    rows, columns = np.mgrid[: size[0], : size[1]] / (np.array(size)[:, None, None] - 1)
    shore = 0.12 + 0.06 * np.sin(9 * rows) + 0.05 * np.cos(23 * rows + 1)
    island = ((rows - 0.68) / 0.09) ** 2 + ((columns - 0.7) / 0.07) ** 2 < 1
    return (columns > shore) & ~island


def _dataset(x: np.ndarray, sea: np.ndarray) -> xr.Dataset:
    frames, rows, columns = x.shape
    start = np.datetime64("2024-01-01T00", "ns")
    return xr.Dataset(
        {
            "sst": (
                ("time", "lat", "lon"),
                (MEAN + x).astype(np.float32),
                {
                    "units": "degC",
                    "standard_name": "sea_surface_temperature",
                    "long_name": "sea surface temperature",
                },
            )
        },
        coords={
            "time": ("time", start + np.arange(frames) * np.timedelta64(1, "D"), {"axis": "T"}),
            "lat": (
                "lat",
                40 + 0.05 * np.arange(rows),
                {"units": "degrees_north", "standard_name": "latitude"},
            ),
            "lon": (
                "lon",
                3 + 0.05 * np.arange(columns),
                {"units": "degrees_east", "standard_name": "longitude"},
            ),
        },
        attrs={"title": f"{TITLE}: Gaussian sea-surface temperature under drifting clouds"},
    )


def run(
    output: Path,
    steps: int = 200,
    frames: int = 360,
    seed: int = 0,
    overwrite: bool = False,
    report: Report | None = None,
    say: Callable[[str], None] = lambda text: None,
    window: int = 8,
) -> dict[str, Any]:
    """Makes the data, checks, fits, fills, scores them against other methods and the optimum, writes the report.

    Few training ``steps`` are enough: the field is Gaussian, and the first estimate close to the best there is.
    """
    _make_folder(output, overwrite)
    stages = Stages(report)
    data = make_data(frames, seed=seed)
    save_dataset(data.gappy, output / GAPPY, overwrite)
    save_dataset(data.truth, output / "truth.nc", overwrite)
    say(f"data: {frames} days, {_hidden(data):.0%} of the sea hidden by clouds ({output / GAPPY})")
    audit = check(data.gappy, window=window, seed=seed)
    say(str(audit))
    filler = Filler(window=window, seed=seed, steps=steps).fit(data.gappy, report=report)
    filler.save(output / "model.ff", overwrite)
    say(f"model: {output / 'model.ff'}, fills with {filler.model_.ensemble}")
    stages.begin("filling")
    filled = filler.fill(data.gappy, budget=True)
    save_dataset(filled, output / "filled.nc", overwrite)
    others: dict[str, Baseline | xr.Dataset] = {
        "climatology": Climatology(),
        "linear_time": LinearTime(),
        "inpainting": BestInpainting(),
        "eof": EOF(tolerance=3e-4, max_rank=25),
        "fieldfill": filled,
        "optimum": GaussianOptimum(field=data.field, mean=MEAN, window=window, uncertainty=False),
    }
    scores = {}
    for name, method in others.items():
        stages.begin(name)
        result = method if isinstance(method, xr.Dataset) else method.fit(data.gappy).fill(data.gappy)
        scores[name] = _scores(result, data.truth)
        say(f"  {name:<12} mse {scores[name]['mse']:.4f}")
    seconds = stages.seconds
    stages.begin("report")
    story = Story(
        filled=filled,
        truth=data.truth,
        exposure=audit.to_dataset(),
        words=audit.audit.words,
        history=filler.model_.notes["history"],
        reliability=filler.model_.notes["calibration"],
        budget=budget_of(filled),
        scores=scores,
        made={"command": f"fieldfill demo --seed {seed}", "wall time": f"{seconds:.0f} s", **versions()},
        title=f"{TITLE}: sea-surface temperature under drifting clouds",
    )
    page = write_report(story, output / "report.html", overwrite)
    picture(story, output / "demo.png", overwrite)
    return {"scores": scores, "report": str(page), "seconds": seconds, "seed": seed, "window": window}


def _make_folder(output: Path, overwrite: bool) -> None:
    """Makes the folder, and refuses an existing one that is neither empty nor of an earlier demonstration."""
    if output.exists() and not overwrite:
        raise InputError(f"{output} already exists; choose another folder or pass --overwrite")
    if any(check_folder(output).iterdir()) and not _is_demonstration(output / GAPPY):
        raise InputError(f"{output} holds other things than a demonstration; choose another folder")
    for name, kind in PARTS.items():
        check_output(output / name, kind, overwrite)


def _is_demonstration(path: Path) -> bool:
    try:
        return str(open_dataset(path).attrs.get("title", "")).startswith(TITLE)
    except InputError:
        return False


def table(result: dict[str, Any]) -> str:
    """The score table in words, with what it means."""
    scores = result["scores"]
    lines = [f"{'method':<14}{'MSE':>9}{'RMSE':>9}   on the missing sea cells, degC"]
    lines += [f"{name:<14}{row['mse']:9.4f}{row['rmse']:9.4f}" for name, row in scores.items()]
    ours = scores["fieldfill"]["mse"]
    simple = min(scores["linear_time"]["mse"], scores["inpainting"]["mse"])
    lines += [
        f"fieldfill / best simple method: {ours / simple:.2f}",
        f"fieldfill / optimum:            {ours / scores['optimum']['mse']:.2f}",
        f"90 % intervals cover            {scores['fieldfill']['coverage90']:.1%} of the missing cells",
        f"finished in {result['seconds']:.0f} s; report: {result['report']}",
    ]
    return "\n".join(lines)


def _scores(filled: xr.Dataset, truth: xr.Dataset) -> dict[str, float]:
    found = score(filled, truth).isel(variable=0)
    return {str(key): found[key].item() for key in found.data_vars}


def _hidden(data: DemoData) -> float:
    sea = np.isfinite(data.truth.sst.values)
    return float(np.isnan(data.gappy.sst.values[sea]).mean())
