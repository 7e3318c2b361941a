"""How much memory does a fit of a record take that is far larger than memory?

A Zarr store of 256 x 256 cells (compressible: coarse blocks of constant values that drift under drifting gaps) is
written chunk by chunk. A child process then fits a model to it with the preset ``fast``, but only two steps: their
number does not change what is in memory at once. The row tells the peak of the child's memory after each stage.

    python benchmarks/memory.py [--frames 80000] [--skips gaussian,pull-push] [--store DIR]

Rows are written as they finish to benchmarks/results/memory; existing rows are kept.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

RESULTS = Path(__file__).parent / "results" / "memory"
SIDE, BLOCK, CHUNK, WINDOW = 256, 16, 80, 8
STAGES = (
    "open_record",
    "hold_out",
    "learn_normaliser",
    "mask_bank",
    "audited",
    "learn_covariance",
    "learn_first_estimate",
    "Training.run",
    "choose_ensemble",
    "calibrate",
)


def write(path: Path, frames: int) -> None:
    """A store of ``frames`` frames in chunks of CHUNK."""
    import dask.array as da

    coarse = SIDE // BLOCK
    rng = np.random.default_rng(0)
    waves = np.fft.rfft2(rng.normal(size=(2, coarse, coarse)))
    k2 = np.fft.fftfreq(coarse)[:, None] ** 2 + np.fft.rfftfreq(coarse) ** 2
    field, cloud = np.fft.irfft2(waves * np.exp(-k2 / 0.02), s=(coarse, coarse))
    field = np.where(cloud > np.quantile(cloud, 0.4), np.round(field / field.std(), 1), np.nan).astype(np.float32)

    def chunk(block_info) -> np.ndarray:
        first, last = block_info[None]["array-location"][0]
        # Field and gaps drift together in one direction, and the gaps jump from chunk to chunk.
        parts = [np.roll(field, (t // 3, t // 2 + 7 * (t // CHUNK)), (0, 1)) for t in range(first, last)]
        return np.repeat(np.repeat(np.stack(parts), BLOCK, 1), BLOCK, 2)

    lengths = (CHUNK,) * (frames // CHUNK)
    values = da.map_blocks(chunk, chunks=(lengths, (SIDE,), (SIDE,)), dtype=np.float32, meta=np.empty((0, 0, 0)))
    time_axis = np.datetime64("2000-01-01", "ns") + np.arange(frames) * np.timedelta64(1, "h")
    grid = np.linspace(0, 20, SIDE)
    ds = xr.Dataset({"sst": (("time", "lat", "lon"), values)}, coords={"time": time_axis, "lat": grid, "lon": grid})
    ds.to_zarr(path, mode="w", consolidated=False)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def watched(name: str, function, stages: dict):
    @functools.wraps(function)
    def call(*args, **kwargs):
        begun = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            stages[name] = {"peak_mb": round(peak_mb()), "seconds": round(time.monotonic() - begun, 1)}
            print(
                f"{name:<20} peak {peak_mb():6.0f} MB  {time.monotonic() - begun:7.1f} s", file=sys.stderr, flush=True
            )

    return call


def child(store: Path, skip: str) -> None:
    """Fits and prints the peaks; runs in a process of its own so that nothing else counts."""
    import fieldfill as ff
    from fieldfill import fill
    from fieldfill.config import PRESETS
    from fieldfill.train import Training, TrainSettings

    stages: dict = {"import": {"peak_mb": round(peak_mb()), "seconds": 0.0}}
    for name in STAGES:
        if hasattr(fill, name):
            setattr(fill, name, watched(name, getattr(fill, name), stages))
    Training.run = watched("Training.run", Training.run, stages)
    changes = {"window": WINDOW, "skip": skip, "training": TrainSettings(steps=2)}
    config = PRESETS["fast"].model_copy(update=changes)
    filler = ff.Filler(config=config).fit(ff.open_dataset(store))
    last = filler.model_.notes["history"][-1]
    print(json.dumps({"stages": stages, "peak_mb": peak_mb(), **{k: last[k] for k in ("seconds", "waited")}}))


def run(store: Path, frames: int, skip: str) -> dict:
    command = [sys.executable, __file__, "--child", str(store), "--skips", skip]
    begun = time.monotonic()
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "bench": "memory",
        "case": f"{frames}x{SIDE}x{SIDE}",
        "method": f"fit_{skip}",
        "record_gb": frames * SIDE * SIDE * 4 / 1e9,
        "peak_mb": told["peak_mb"],
        "stages": told["stages"],
        "train_seconds": told["seconds"],
        "waited_seconds": told["waited"],
        "seconds": time.monotonic() - begun,
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=80000)
    parser.add_argument("--skips", default="gaussian")
    parser.add_argument("--store", type=Path, help="folder for the store; default: a temporary one")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.skips)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = (options.store or Path(folder)) / f"record{options.frames}.zarr"
        for skip in options.skips.split(","):
            path = RESULTS / f"{options.frames}x{SIDE}x{SIDE}__fit_{skip}.json"
            if not path.exists():
                if not store.exists():
                    write(store, options.frames)
                path.write_text(json.dumps(run(store, options.frames, skip), indent=1))
            row = json.loads(path.read_text())
            print(f"{row['case']:<16} {row['method']:<14} {row['record_gb']:5.1f} GB  peak {row['peak_mb']:.0f} MB")


if __name__ == "__main__":
    main()
