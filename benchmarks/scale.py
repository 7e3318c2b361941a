"""Time and memory: simulators streamed to disk, masks, the exposure audit, a fit of a record larger than memory.

    python benchmarks/scale.py [--cases advection kolmogorov] [--methods simulate]

Every measurement has a process of its own, so that its peak of memory is its own. The record of the fit is a
compressible Zarr store of 256 x 256 cells; two training steps are enough, because their number does not change what is
in memory at once.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import torch
import xarray as xr

import fieldfill as ff
from audit import candidates
from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.diffusion.training import TrainSettings
from fieldfill.masks import (
    BlockMask,
    CloudMask,
    EmpiricalMask,
    FrameDropout,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    VariableDropout,
)
from fieldfill.partition.exposure import compare
from fieldfill.presets import PRESETS
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.store import Simulator, write

# Simulator, samples, limit in seconds on two cores; None where only memory is limited.
SIMULATORS: dict[str, tuple[Simulator, int, float | None]] = {
    "advection": (Advection(), 1000, 30),
    "shallow-water": (ShallowWater(), 1000, 60),
    "shallow-water-walls": (ShallowWater(walls=True), 1000, 60),
    "navier-stokes": (NavierStokes(), 64, 600),
    "kolmogorov": (NavierStokes.kolmogorov(), 16, 150),
    "advection-5000": (Advection(), 5000, None),
    "advection-large-grid": (Advection(size=512), 4, None),
    "shallow-water-large-grid": (ShallowWater(size=256), 4, None),
}
# Rows and columns of the large record.
SIDE = 256
# Cells per side of its blocks of constant values.
BLOCK = 16
# Frames in a chunk of its store.
CHUNK = 80
# Frames of the records that are fitted: above 1 GiB, which is read window by window, and far above memory.
FRAMES = (8000, 80000)
# Masks of 64 x 64 cells that are drawn of each model.
MASKS = 10_000
# Windows, variables, frames, rows, columns of the audit.
AUDITED = (500, 1, 8, 64, 64)


def simulate(case: str, seed: int) -> dict[str, Any]:
    simulator, samples, limit = SIMULATORS[case]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        path = write(simulator, Path(folder) / "fields.zarr", samples, seed)
        seconds = time.perf_counter() - begun
        disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    metrics = {"samples": samples, "seconds": seconds, "seconds_limit": limit, "disk_mb": disk / 2**20}
    return {"metrics": metrics, "settings": str(simulator)}


def draw_masks(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    bank = CloudMask().sample((100, 1, 1, 64, 64), generator)
    models: dict[str, MaskModel] = {
        "pixel": PixelMask(),
        "block": BlockMask(),
        "sensor": SensorMask(),
        "track": TrackMask(),
        "swath": SwathMask(),
        "cloud": CloudMask(),
        "frame": FrameDropout(),
        "variable": VariableDropout(),
        "empirical": EmpiricalMask(bank),
    }
    seconds, observed = {}, {}
    for name, model in models.items():
        model.sample((10, 1, 1, 64, 64), generator)  # the first draw prepares what later ones reuse
        begun = time.perf_counter()
        mask = model.sample((MASKS, 1, 1, 64, 64), generator)
        seconds[name], observed[name] = time.perf_counter() - begun, mask.float().mean().item()
    return {"metrics": {"seconds": seconds, "observed": observed}}


def audit(seed: int) -> dict[str, Any]:
    """One comparison of all partitions under clouds, with default settings."""
    generator = torch.Generator().manual_seed(seed)
    observed = CloudMask().sample(AUDITED, generator)
    begun = time.perf_counter()
    domain = torch.ones((1, *AUDITED[3:]), dtype=torch.bool)
    best, audits = compare(candidates(observed), observed, domain, generator)
    shares = {name: found.unlearnable_share for name, found in audits.items()}
    return {"metrics": {"seconds": time.perf_counter() - begun, "best": best, "unlearnable_share": shares}}


def fit(frames: int, seed: int) -> dict[str, Any]:
    config = PRESETS["fast"].model_copy(update={"training": TrainSettings(steps=2)})
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "record.zarr"
        large_record(frames, seed).to_zarr(store, mode="w", consolidated=False)
        filler = ff.Filler(settings=config, seed=seed).fit(ff.open_dataset(store))
    last = filler.model_.notes["history"][-1]
    metrics = {"record_gb": frames * SIDE**2 * 4 / 1e9, "waited_seconds": last["waited"]}
    return {"metrics": metrics, "train_seconds": last["seconds"], "train_steps": last["step"]}


def large_record(frames: int, seed: int) -> xr.Dataset:
    """Coarse blocks of constant values that drift together with their gaps; the gaps jump from chunk to chunk."""
    coarse = SIDE // BLOCK
    waves = np.fft.rfft2(np.random.default_rng(seed).normal(size=(2, coarse, coarse)))
    k2 = np.fft.fftfreq(coarse)[:, None] ** 2 + np.fft.rfftfreq(coarse) ** 2
    field, cloud = np.fft.irfft2(waves * np.exp(-k2 / 0.02), s=(coarse, coarse))
    field = np.where(cloud > np.quantile(cloud, 0.4), np.round(field / field.std(), 1), np.nan).astype(np.float32)

    def chunk(block_info: Any) -> np.ndarray:
        first, last = block_info[None]["array-location"][0]
        parts = [np.roll(field, (t // 3, t // 2 + 7 * (t // CHUNK)), (0, 1)) for t in range(first, last)]
        return np.repeat(np.repeat(np.stack(parts), BLOCK, 1), BLOCK, 2)

    lengths = (CHUNK,) * (frames // CHUNK)
    values = da.map_blocks(chunk, chunks=(lengths, (SIDE,), (SIDE,)), dtype=np.float32, meta=np.empty((0, 0, 0)))
    times = np.datetime64("2000-01-01", "ns") + np.arange(frames) * np.timedelta64(1, "h")
    grid = np.linspace(0, 20, SIDE)
    return xr.Dataset({"sst": (("time", "lat", "lon"), values)}, coords={"time": times, "lat": grid, "lon": grid})


def main() -> None:
    measurements = [
        *(Measurement(case, "simulate", partial(simulate, case)) for case in SIMULATORS),
        Measurement(f"{MASKS} masks of 64x64", "draw", draw_masks),
        Measurement("x".join(map(str, AUDITED)), "exposure audit", audit),
        *(Measurement(f"{frames}x{SIDE}x{SIDE}", "fit", partial(fit, frames)) for frames in FRAMES),
    ]
    for row in Study("scale", measurements, apart=True).run(options_of(__doc__).parse_args()):
        print(f"{row['case']:26s} {row['method']:15s} peak {row['peak_mb'] or 0:5.0f} MB  {row['metrics']}")


if __name__ == "__main__":
    main()
