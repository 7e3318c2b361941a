"""Shared data: small, seeded, made on the fly; the real ERA5 file where it is present."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

ERA5 = Path(os.environ.get("FIELDFILL_ERA5", Path(__file__).parents[2] / "shared/data/era5-2mt-2019-03-uk.grib"))

# Two test processes share two cores; more threads each would only make them wait for one another.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def era5() -> Path:
    if not ERA5.exists():
        pytest.skip(f"no ERA5 file at {ERA5}: set FIELDFILL_ERA5 to a GRIB file of hourly 2 m temperature")
    return ERA5


def gappy_dataset(
    frames: int = 20,
    rows: int = 9,
    columns: int = 12,
    dtype: str = "float32",
    seed: int = 0,
    names: str = "sst",
) -> xr.Dataset:
    """Smooth moving waves with random gaps; the first column is land."""
    rng = np.random.default_rng(seed)
    t, y, x = np.meshgrid(np.arange(frames), np.arange(rows), np.arange(columns), indexing="ij")
    variables = {}
    for i, name in enumerate(names.split(",")):
        field = 10 + np.sin(0.6 * x + 0.3 * t + i) + np.cos(0.5 * y - 0.2 * t)
        field[rng.random(field.shape) < 0.4] = np.nan
        field[:, :, 0] = np.nan
        variables[name] = (
            ("time", "lat", "lon"),
            field.astype(dtype),
            {"units": "degC", "long_name": f"test {name}"},
        )
    time = np.datetime64("2020-01-01", "ns") + np.arange(frames) * np.timedelta64(1, "D")
    return xr.Dataset(
        variables,
        coords={
            "time": time,
            "lat": ("lat", np.linspace(50, 40, rows), {"units": "degrees_north"}),
            "lon": ("lon", np.linspace(0, 5.5, columns), {"units": "degrees_east"}),
        },
        attrs={"title": "test", "history": "made by a test"},
    )
