"""Verification: simulators against analytic solutions, the audit against masks of known structure.

    python benchmarks/verification.py [--cases advection residuals] [--figure docs/images/verification.png]

Prints all checks and ends with exit code 1 if a check of a simulator misses its bound. The audit takes twelve minutes,
the rest two.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from torch import Tensor

from audit import chosen_partitions, independence
from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.advection import propagate
from fieldfill.simulate.diagnostics import simpson_integral
from fieldfill.simulate.navier_stokes import resample

# Gravity (m s-2), depth (m) and Coriolis parameter (s-1) of the plane waves.
G = 9.0
DEPTH = 100.0
F = 1.0e-4


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


WATER = {"gravity": double(G), "depth": double(DEPTH), "coriolis": double(F)}


def order_row(check: str, refinement: list[float], errors: list[float], expected: int) -> dict:
    """A row for errors that fall as refinement ** -expected; the order is that of the finest pair."""
    orders = [
        math.log(coarse / fine) / math.log(b / a)
        for (coarse, fine), (a, b) in zip(pairwise(errors), pairwise(refinement))
    ]
    return {
        "check": check,
        "refinement": refinement,
        "errors": errors,
        "orders": orders,
        "value": orders[-1],
        "must": f"order {expected}",
        "ok": abs(orders[-1] - expected) < 0.2,
    }


def bound_row(check: str, value: float, bound: float) -> dict:
    return {"check": check, "value": value, "must": f"<= {bound:g}", "ok": abs(value) <= bound}


def advection_rows() -> list[dict]:
    # 1/32 of the side per frame is one cell: the exact solution is a roll of the array
    simulator = Advection(interval=1 / 64)
    first = simulator.simulate(8, seeded())[0][:, :, 0]
    velocity = {"velocity_y": double(*[2.0] * 8), "velocity_x": double(*[-6.0] * 8)}
    fields = simulator.evolve(first, velocity)
    rolled = torch.stack([torch.roll(first, (n, -3 * n), (-2, -1)) for n in range(50)], dim=2)
    rows = [bound_row("advection: spectral solution, largest error", (fields - rolled).abs().max().item(), 1e-12)]
    for order in (1, 2, 3, 5):
        errors, sizes = [], [64, 128, 256]
        for size in sizes:
            wave = torch.exp(torch.sin(2 * math.pi * torch.arange(size, dtype=torch.float64) / size))
            first = (wave[:, None] * wave.roll(size // 8))[None, None]
            cells, steps = double(0.37, -0.41)[None], size // 2
            exact = Advection(size=size, frames=2, interval=float(steps)).evolve(
                first, {"velocity_y": cells[:, 0] / size, "velocity_x": cells[:, 1] / size}
            )
            errors.append(rms(propagate(first, cells, steps, order)[:, :, -1] - exact[:, :, -1]))
        rows.append(order_row(f"advection: grid solver of degree {order}", sizes, errors, order))
    return rows


def shallow_water_rows() -> list[dict]:
    errors, sizes = [], [16, 32, 64, 128]
    for size in sizes:
        model = ShallowWater(size=size, frames=2, interval=2.0e4)
        last = model.evolve(model.plane_wave(-1, 2, 0, WATER), WATER)[:, :, -1]
        errors.append(rms(last - model.plane_wave(-1, 2, 2.0e4, WATER)))
    rows = [order_row("shallow water: plane wave, grid", sizes, errors, 2)]

    def last_frame(substeps: int) -> Tensor:
        model = ShallowWater(size=16, frames=2, interval=4.0e4, substeps=substeps)
        return model.evolve(model.plane_wave(2, 1, 0, WATER), WATER)[:, :, -1]

    steps = [40, 80, 160]
    reference = last_frame(1280)
    errors = [rms(last_frame(n) - reference) for n in steps]
    rows.append(order_row("shallow water: plane wave, time step", steps, errors, 4))
    for walls in (False, True):
        where = "walls" if walls else "periodic"
        model = ShallowWater(walls=walls)
        invariants = model.invariants(*model.simulate(50, seeded()))
        drift = (invariants["mass"] - invariants["mass"][:, :1]).abs().max().item()
        rows.append(bound_row(f"shallow water ({where}): drift of the mean height, m", drift, 1e-12))
        drift = (invariants["energy"] / invariants["energy"][:, :1] - 1).abs().max().item()
        rows.append(bound_row(f"shallow water ({where}): relative drift of energy", drift, 1e-4))
    return rows


def navier_stokes_rows() -> list[dict]:
    def model(size: int, **others: float) -> NavierStokes:
        return NavierStokes(size=size, resolution=size, **{"warmup": 0.0, **others})

    cells = 2 * math.pi * torch.arange(64, dtype=torch.float64) / 64
    first = (2 * torch.cos(cells[:, None]) * torch.cos(cells))[None, None]
    thousand = {"reynolds": double(1000.0)}
    last = model(64, frames=2, interval=1.0).evolve(first, thousand)[:, :, -1]
    error = (last - first * math.exp(-2 / 1000)).abs().max().item()
    rows = [bound_row("Navier-Stokes: Taylor-Green vortex, largest error at t = 1", error, 1e-6)]
    first = model(64).random_vorticity(double(4.0), seeded())
    steps, last_frames = [32, 64, 128, 256], []
    for n in [*steps, 1024]:
        courant = 64 / (2 * math.pi * n)
        last_frames.append(model(64, frames=2, interval=1.0, courant=courant).evolve(first, thousand)[:, :, -1])
    errors = [rms(last - last_frames[-1]) for last in last_frames[:-1]]
    rows.append(order_row("Navier-Stokes: turbulence at Re 1000, time step", steps, errors, 4))
    full = {"size": 160, "frames": 101, "reynolds": (1000.0, 1000.0)}
    for name, flow in (("decaying", NavierStokes(**full)), ("Kolmogorov", NavierStokes.kolmogorov(**full))):
        fields, parameters = flow.simulate(2, seeded())
        sources = flow.sources(fields, parameters)
        for quantity, series in flow.invariants(fields, parameters).items():
            gap = series[:, -1] - series[:, 0] - simpson_integral(sources[quantity], flow.interval)
            worst = (gap / series[:, 0]).abs().max().item()
            rows.append(bound_row(f"Navier-Stokes ({name}, Re 1000): {quantity} budget", worst, 1e-4))
    return rows


def residual_rows() -> list[dict]:
    def falls(name: str, make: Callable[[float, int], tuple], interval: float) -> dict:
        refinement, errors = [1, 2, 4], []
        for factor in refinement:
            model, fields, parameters = make(interval / factor, 10 * factor + 1)
            share = rms(model.residual(fields, parameters)) / rms(model.tendency(fields, parameters))
            errors.append(share)
        return order_row(f"{name}: residual as a share of the tendency, interval", refinement, errors, 4)

    def advection(interval: float, frames: int) -> tuple:
        model = Advection(interval=interval, frames=frames)
        return model, *model.simulate(8, seeded())

    def water(interval: float, frames: int) -> tuple:
        model = ShallowWater(interval=interval, frames=frames, substeps=4)
        return model, *model.simulate(8, seeded())

    def flow(interval: float, frames: int) -> tuple:
        model = NavierStokes(size=64, resolution=64, interval=interval, frames=frames, courant=0.05)
        parameters = {"reynolds": double(200.0)}
        first = model.random_vorticity(double(3.0), seeded())
        return model, model.evolve(first, parameters), parameters

    return [
        falls("advection", advection, 0.02),
        falls("shallow water", water, 600.0),
        falls("Navier-Stokes (64 x 64, Re 200)", flow, 0.05),
    ]


def resolution_rows() -> list[dict]:
    """How much the default inner grid of Navier-Stokes loses at the largest Reynolds number."""
    coarse = NavierStokes(frames=6, interval=1.0, warmup=0.0)
    fine = replace(coarse, resolution=256)
    first = coarse.random_vorticity(double(2.5, 5.0), seeded())
    refined = torch.fft.irfft2(resample(torch.fft.rfft2(first), 256), s=(256, 256))
    parameters = {"reynolds": double(1000.0, 1000.0)}
    flows = [coarse.evolve(first, parameters), fine.evolve(refined, parameters)]
    ours, reference = (coarse.invariants(flow, parameters) for flow in flows)
    rows = []
    for quantity, bound in (("energy", 0.01), ("enstrophy", 0.05)):
        worst = (ours[quantity] / reference[quantity] - 1).abs().max().item()
        check = f"Navier-Stokes, Re 1000: {quantity} with {coarse.inner} against 256 cells, t <= 5"
        rows.append(bound_row(check, worst, bound))
    return rows


def dispersion() -> tuple[Tensor, Tensor, Tensor]:
    """Wavenumbers (m-1), frequencies (s-1) and the power of h over both for waves along x in a long run."""
    start = ShallowWater(size=64, frames=1, width=(0.01, 0.2), balance=(0.0, 0.0))
    first = start.simulate(1, seeded(1))[0][:, :, 0]
    model = ShallowWater(size=64, frames=1024, interval=250.0)
    h = model.evolve(first, WATER)[0, 0]
    window = torch.hann_window(len(h), dtype=torch.float64)[:, None]
    modes = torch.fft.rfft(h.mean(dim=1), dim=-1)
    power = torch.fft.fft(modes * window, dim=0).abs().square()[: len(h) // 2]
    k = 2 * math.pi * torch.arange(modes.shape[1]) / model.length
    omega = 2 * math.pi * torch.arange(len(power)) / (len(h) * model.interval)
    return k, omega, power


def draw(rows: list[dict], path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 5), layout="constrained")
    draw_dispersion(axes[0])
    residuals = [row for row in rows if "residual" in row["check"]]
    solvers = [row for row in rows if "refinement" in row and row not in residuals]
    draw_orders(axes[1], solvers, "error of the solvers")
    draw_orders(axes[2], residuals, "residual / tendency of simulated frames")
    figure.savefig(path, dpi=80)


def draw_dispersion(axis: Axes) -> None:
    k, omega, power = dispersion()
    image = torch.log10(power / power.amax(dim=0) + 1e-8)
    inside = slice(1, -1)  # the mean has no power, and neither has the Nyquist mode
    axis.pcolormesh(k[inside] * 1e6, omega * 1e3, image[:, inside], cmap="Blues", vmin=-6, vmax=0, rasterized=True)
    axis.plot(k * 1e6, (F**2 + G * DEPTH * k**2).sqrt() * 1e3, "C3", lw=1, label="equation")
    d = 2.0e6 / 64
    grid = ((F * torch.cos(k * d / 2)) ** 2 + G * DEPTH * (2 / d * torch.sin(k * d / 2)) ** 2).sqrt()
    axis.plot(k * 1e6, grid * 1e3, "C1--", lw=1, label="C-grid")
    axis.set(xlabel="wavenumber ($10^{-6}$ m$^{-1}$)", ylabel="frequency ($10^{-3}$ s$^{-1}$)", ylim=(0, 3.2))
    axis.set_title("shallow water: power of h, dispersion", fontsize=10)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=8)


def draw_orders(axis: Axes, rows: list[dict], title: str) -> None:
    for row in rows:
        label = f"{row['check'].split(': residual')[0]}: order {row['value']:.2f}"
        relative = [x / row["refinement"][0] for x in row["refinement"]]
        axis.loglog(relative, row["errors"], "o-", ms=3, lw=1, label=label)
    axis.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"], minor=False)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("refinement of grid, step or interval")
    axis.set_title(title, fontsize=10)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=8)


ANALYTIC: dict[str, Callable[[], list[dict]]] = {
    "advection": advection_rows,
    "shallow-water": shallow_water_rows,
    "navier-stokes": navier_stokes_rows,
    "residuals": residual_rows,
    "resolution": resolution_rows,
}


def analytic(case: str, seed: int) -> dict[str, Any]:
    """All checks of a case; their seeds are fixed."""
    return {"metrics": {row.pop("check"): row for row in ANALYTIC[case]()}}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    measurements = [
        *(Measurement(case, "analytic", partial(analytic, case)) for case in ANALYTIC),
        Measurement("exposure-audit", "statistics", chosen_partitions),
        Measurement("independence-test", "statistics", independence),
    ]
    found = Study("verification", measurements).run(options)
    checks = [
        {"check": name, **row} for one in found if one["case"] in ANALYTIC for name, row in one["metrics"].items()
    ]
    for row in checks:
        print(f"{'ok ' if row['ok'] else 'NOT'}  {row['check']:75s} {row['value']:10.3g}   {row['must']}")
    for row in (row for row in found if row["case"] not in ANALYTIC):
        print(f"{row['case']}: {row['metrics']}")
    if options.figure is not None:
        draw(checks, options.figure)
    sys.exit(0 if all(row["ok"] for row in checks) else 1)


if __name__ == "__main__":
    main()
