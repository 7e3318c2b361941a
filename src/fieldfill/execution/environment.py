"""The versions that matter when a result has to be reproduced or a bug be reported."""

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]

PACKAGES = (
    "fieldfill",
    "torch",
    "numpy",
    "scipy",
    "xarray",
    "dask",
    "zarr",
    "h5netcdf",
    "netCDF4",
    "cfgrib",
    "eccodes",
    "opencv-python-headless",
    "scikit-image",
    "plotly",
)


def versions() -> dict[str, str]:
    """Name → version; "not installed" for optional packages that are absent."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
