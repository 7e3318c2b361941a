"""Time and memory of the simulators, streamed to disk: python benchmarks/simulators.py [case ...]

Each case runs in its own process, so that its peak memory is its own; one JSON per case goes to
benchmarks/results/simulators/.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from fieldfill.pde import Advection, NavierStokes, ShallowWater
from fieldfill.pde.store import write

RESULTS = Path(__file__).parent / "results" / "simulators"
MEMORY_LIMIT = 2048

# case: simulator, samples, limit in seconds on two cores (None: memory only)
CASES = {
    "advection": (Advection(), 1000, 30),
    "shallow-water": (ShallowWater(), 1000, 60),
    "shallow-water-walls": (ShallowWater(walls=True), 1000, 60),
    "navier-stokes": (NavierStokes(), 64, 600),
    "kolmogorov": (NavierStokes.kolmogorov(), 16, 150),
    "advection-5000": (Advection(), 5000, None),
    "advection-large-grid": (Advection(size=512), 4, None),
    "shallow-water-large-grid": (ShallowWater(size=256), 4, None),
}


def measure(case: str, seed: int) -> dict:
    """Runs one case in this process."""
    simulator, samples, limit = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        start, cpu_start = time.perf_counter(), time.process_time()
        path = write(simulator, Path(folder) / "fields.zarr", samples, seed)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "bench": "simulators",
        "case": case,
        "method": "simulate",
        "scale": "cpu",
        "seed": seed,
        "metrics": {
            "samples": samples,
            "seconds": round(seconds, 2),
            "seconds_limit": limit,
            "cpu_seconds": round(cpu, 2),
            "disk_mb": round(disk / 2**20, 1),
            "within_limits": peak <= MEMORY_LIMIT and (limit is None or seconds <= limit),
        },
        "peak_mb": round(peak),
        "settings": str(simulator),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--verify", "-q", "HEAD"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return answer.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="run the one case in this process, print its row")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.case[0], options.seed)))
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    for case in options.case or CASES:
        command = [sys.executable, __file__, case, "--here", "--seed", str(options.seed)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        (RESULTS / f"{case}__simulate__seed{options.seed}.json").write_text(json.dumps(row, indent=1) + "\n")
        metrics = row["metrics"]
        print(
            f"{case:26s} {metrics['samples']:5d} samples {metrics['seconds']:8.1f} s "
            f"(limit {metrics['seconds_limit']})  peak {row['peak_mb']} MB  disk {metrics['disk_mb']} MB  "
            f"{'ok' if metrics['within_limits'] else 'TOO MUCH'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
