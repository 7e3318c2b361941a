"""Time and memory: simulators streamed to disk, masks, the exposure audit, records of all sizes, training steps.

    python benchmarks/scale.py [--cases advection kolmogorov] [--methods simulate]

Every measurement has a process of its own, so that its peak of memory is its own. The record of the fit is a
compressible Zarr store of 256 x 256 cells; two training steps are enough, because their number does not change what is
in memory at once.

`regional sea`: a year of a sea of 400 x 500 cells under clouds, and a small one, from a fit with a time limit to the
scores of the fill. `training step`: processor seconds of a step, with its share of first estimates and validation, on
grids of one record length; their slope is that of log seconds over log cells.
"""

import itertools
import resource
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
from fieldfill.bench.speed import slope
from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.config import build_denoiser
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.diffusion.training import Training
from fieldfill.diffusion.validation import validate
from fieldfill.estimators.gaussian.estimator import Gaussian
from fieldfill.estimators.gaussian.field import red_factor
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
from fieldfill.metrics import score
from fieldfill.partition import PixelPartition
from fieldfill.partition.exposure import Masks, compare
from fieldfill.presets import PRESETS, preset
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.store import Simulator, write
from fieldfill.workflow.opening import DataSource, open_crops

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
# Frames, rows, columns, minutes of the fit of the regional seas.
SEAS = {"25x216x192": (25, 216, 192, 3.5), "365x400x500": (365, 400, 500, 18.0)}
# Observed share, scale of the field and of the clouds in cells, and what a day keeps of each.
CLEAR, FIELD_SCALE, CLOUD_SCALE, MEMORY, CLOUD_MEMORY = 0.4, 12.0, 10.0, 0.95, 0.6
# Cells per side of the grids on which a step is measured, and frames of their records.
GRIDS, STEP_FRAMES = (64, 128, 256, 512), 24
# Pools of steps that are measured, after a first step that prepares what later ones use again.
STEPS = 12


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
    best, audits = compare(candidates(observed), Masks.of(observed, domain), generator)
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


def regional_sea(frames: int, rows: int, columns: int, seed: int) -> tuple[xr.Dataset, xr.Dataset]:
    """A cloudy record, and its truth: a Gaussian field that is renewed day by day, seen with a little noise."""
    rng = np.random.default_rng(seed)
    wave = np.fft.fftfreq(2 * rows)[:, None] ** 2 + np.fft.rfftfreq(2 * columns) ** 2

    def renewed(scale: float, memory: float) -> Any:
        shape, power = (2 * rows, 2 * columns), np.exp(-0.5 * wave * (2 * np.pi * scale / 2) ** 2)
        state = None
        while True:
            new = np.fft.irfft2(np.fft.rfft2(rng.normal(size=shape)) * power, s=shape)[:rows, :columns]
            new /= new.std()
            state = new if state is None else memory * state + np.sqrt(1 - memory**2) * new
            yield state.astype(np.float32)

    field, cloud = renewed(FIELD_SCALE, MEMORY), renewed(CLOUD_SCALE, CLOUD_MEMORY)
    truth, gappy = (np.empty((frames, rows, columns), np.float32) for _ in range(2))
    for t in range(frames):
        truth[t], hidden = 14 + 2 * next(field), next(cloud)
        seen = hidden < np.quantile(hidden, CLEAR)
        noise = 0.1 * rng.normal(size=seen.shape).astype(np.float32)
        gappy[t] = np.where(seen, truth[t] + noise, np.nan)
    coords = {
        "time": np.datetime64("2020-01-01", "ns") + np.arange(frames) * np.timedelta64(1, "D"),
        "lat": 30 + 0.05 * np.arange(rows),
        "lon": 10 + 0.05 * np.arange(columns),
    }
    gappy_ds, truth_ds = (xr.Dataset({"sst": (("time", "lat", "lon"), x)}, coords) for x in (gappy, truth))
    return gappy_ds, truth_ds


def regional(case: str, seed: int) -> dict[str, Any]:
    """Fit with a time limit and fill of a regional sea; its memory does not hold the truth meanwhile."""
    *shape, minutes = SEAS[case]
    with tempfile.TemporaryDirectory() as folder:
        for name, ds in zip(("gappy", "truth"), regional_sea(*shape, seed)):
            ds.to_zarr(Path(folder) / name, mode="w", consolidated=False)
        del ds
        data = ff.open_dataset(Path(folder) / "gappy")
        times = [(time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF))]
        filler = ff.Filler(minutes=minutes, seed=seed).fit(data)
        times.append((time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)))
        filled = filler.fill(data)
        times.append((time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)))
        peak = times[-1][1].ru_maxrss / 1024
        scores = score(filled, ff.open_dataset(Path(folder) / "truth"))
    metrics: dict[str, Any] = {str(key): float(scores[key][0]) for key in ("rmse", "mse", "coverage90")}
    for name, (before, after) in zip(("fit", "fill"), itertools.pairwise(times)):
        user, system = (getattr(after[1], kind) - getattr(before[1], kind) for kind in ("ru_utime", "ru_stime"))
        metrics |= {f"{name}_minutes": (after[0] - before[0]) / 60, f"{name}_user": user, f"{name}_system": system}
    last = filler.model_.notes["history"][-1]
    metrics |= {"minutes_limit": minutes, "peak_of_fit_and_fill_mb": peak}
    return {"metrics": metrics, "train_seconds": last["seconds"], "train_steps": last["step"]}


def training_step(seed: int) -> dict[str, Any]:
    """Processor seconds of a training step on every grid, with crops of one size."""
    seconds = {}
    for side in GRIDS:
        settings = preset("fast", crop=GRIDS[0])
        crops = open_crops(DataSource(regional_sea(STEP_FRAMES, side, side, seed)[0]), settings, seed)
        denoiser = build_denoiser(settings, crops.shape, 1, crops.periodic, seed)
        for source in denoiser.chain.sources:
            if isinstance(source, Gaussian):
                source.field.set_covariance(red_factor(source.field))
        crops.maps = torch.zeros(0, side, side)
        training, known = Training(denoiser, crops, PixelPartition(), settings.training, seed), {}
        validate(denoiser, crops, seed, known=known)
        steps = training.pools.batches * training.pools.reuse * STEPS
        with training.pools:
            training.train_step()
            begun = time.process_time()
            for _ in range(steps):
                training.train_step()
            middle = time.process_time()
        validate(denoiser, crops, seed, known=known)
        validation = (time.process_time() - middle) / settings.training.validate_every
        seconds[side] = (middle - begun) / steps + validation
    exponent = slope([side**2 for side in GRIDS], list(seconds.values()))
    return {"metrics": {"seconds_per_step": seconds, "slope": exponent, "slope_limit": 0.1}}


def main() -> None:
    measurements = [
        *(Measurement(case, "simulate", partial(simulate, case)) for case in SIMULATORS),
        Measurement(f"{MASKS} masks of 64x64", "draw", draw_masks),
        Measurement("x".join(map(str, AUDITED)), "exposure audit", audit),
        *(Measurement(f"{frames}x{SIDE}x{SIDE}", "fit", partial(fit, frames)) for frames in FRAMES),
        *(Measurement(case, "regional sea", partial(regional, case)) for case in SEAS),
        Measurement("x".join(map(str, GRIDS)), "training step", training_step),
    ]
    for row in Study("scale", measurements, apart=True).run(options_of(__doc__).parse_args()):
        print(f"{row['case']:26s} {row['method']:15s} peak {row['peak_mb'] or 0:5.0f} MB  {row['metrics']}")


if __name__ == "__main__":
    main()
