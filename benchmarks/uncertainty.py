"""Are the error bars honest, and what do realisations cost? On the trained models of the benchmark.

    python benchmarks/uncertainty.py [--cases gaussian-cloud40:1.5,era5-pixel20:1.5] [--parts intervals] [--seed 1]
    python benchmarks/uncertainty.py --figure docs/images/uncertainty.png

A case is followed by the minutes of the training budget, which name the model in the cache; a model that is not there
is trained, one that is there is calibrated anew. One JSON per case and part goes to benchmarks/results/uncertainty;
existing ones are kept. Measured on test samples with known truth, at cells that were missing:

* intervals: coverage of 50 % and 90 % intervals, overall and by distance to an observation, and CRPS – calibrated, by
  v_std and by v_quantile; as the network says, and calibrated on clear scenes as other tools do;
* baselines: CRPS of the climatology and of the EOF fill with its own error;
* contexts: error of balanced and random contexts; on 3 x 3 blocks also of all distinct ones;
* cost: what v_std adds to a fill, in processor time;
* members: CRPS of the samplers, second order with 30 steps against DDIM with 200, and their forward passes;
* guidance (shallow water): residual of the equation and error of a fill with and without it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import fieldfill as ff
import fieldfill.model
from contexts import contexts
from fieldfill.bench import rows
from fieldfill.bench.benches import Job
from fieldfill.bench.cases import CASES, SCALES, Data, load
from fieldfill.bench.methods import classical, learnt
from fieldfill.bench.run import Runner, default_cache
from fieldfill.calibrate import calibrate, clear_scene
from fieldfill.config import build_denoiser
from fieldfill.denoise import Denoiser
from fieldfill.holdout import hold_out
from fieldfill.members import PROBES
from fieldfill.metrics import crps_gaussian, reliability, score_by_distance
from fieldfill.multistep import Solver
from fieldfill.nn import GaussianSkip
from fieldfill.nn.dynamics import LinearDynamics
from fieldfill.physics import physical_scores
from fieldfill.record import open_record
from fieldfill.sample import Estimate, single_step
from fieldfill.seeds import stream
from fieldfill.windows import Windows

RESULTS = Path(__file__).parent / "results"
FOLDER = RESULTS / "uncertainty"
GUIDED = 12  # test samples of guidance, which takes many fills
EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 1e9)
MORE = {"advection": 256}  # test samples of intervals: one gap each, and the coverage differs much between gaps
LARGE = 20_000  # cells of a sample from which on fewer members are drawn and fewer windows timed
CASES_MINUTES = (
    "gaussian-cloud40:1.5,advection-block8of9:1.5,navier-stokes-pixel60:1.5,era5-pixel20:1.5,"
    "shallow-water-block8of9:1.5"
)
COLOURS = {"quantiles": "C2", "calibrated": "C0", "as the network says": "C1", "clear scenes": "C3"}
LEVELS = tuple(np.round(np.arange(0.1, 1.0, 0.1), 1))
QUANTILES = sorted((1 + sign * level) / 2 for level in LEVELS for sign in (-1, 1))


def training_windows(filler: ff.Filler, data: Data) -> Windows:
    """The record of the training with the cells that it held out."""
    model = filler.model_
    windows = Windows(open_record(data.train, None, None, data.domain), model.normaliser, model.config.window)
    windows.held = hold_out(windows, model.config.hold_out, stream(model.seed, "hold-out"))
    return windows


def calibrated(filler: ff.Filler, data: Data) -> None:
    """Calibrates a model from the cache anew, so that a change of the calibration needs no training."""
    model = filler.model_
    windows = training_windows(filler, data)
    spread = calibrate(model.denoiser, model.partition, windows, model.ensemble, stream(model.seed, "choice"))
    filler.model_ = replace(model, spread=spread)


def intervals(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """Coverage and CRPS of what users get, and of what they would get otherwise."""
    model, windows = filler.model_, training_windows(filler, data)
    record = windows.record
    clear = clear_scene(model.denoiser, model.partition, windows, model.ensemble, stream(0, "choice"))
    found = {}
    with answered_once():
        for name, spread in {"calibrated": model.spread, "as the network says": _raw, "clear scenes": clear}.items():
            filler.model_ = replace(model, spread=spread)
            found[name] = _judged(filler.fill(data.test), data.truth, record.periodic)
        filler.model_ = model
        found["quantiles"] = _judged(filler.fill(data.test, quantiles=QUANTILES), data.truth, record.periodic)
    found["held-out cells"] = model.spread.summary
    return found


def more_tests(case: str, data: Data, seed: int, cache: Path) -> Data:
    """The data with more test samples than a row of the benchmark has, where few of them say little."""
    few, kind = SCALES["cpu"], CASES[case].data
    if kind not in MORE:
        return data
    more = load(CASES[case], replace(few, name="tests", samples={kind: (1, MORE[kind])}), seed, cache)
    return replace(data, test=more.test, truth=more.truth)


@contextmanager
def answered_once() -> Iterator[None]:
    """Fills inside that differ in the calibration alone ask the network once for every window."""
    plain, kept = fieldfill.model.single_step, {}

    def once(denoiser: Denoiser, x: torch.Tensor, *others: Any) -> Estimate:
        key = sha256(x.numpy().tobytes()).digest()
        if key not in kept:
            kept[key] = plain(denoiser, x, *others)
        return kept[key]

    fieldfill.model.single_step = once
    try:
        yield
    finally:
        fieldfill.model.single_step = plain


def baselines(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """CRPS of a normal law around the climatology, and of the EOF fill."""
    periodic = open_record(data.train, None, None, data.domain).periodic
    eof = classical("eof", CASES[case], SCALES["cpu"], data.domain)
    train = data.train if eof.fit_samples is None else data.train.isel(sample=slice(eof.fit_samples))
    filled = eof.method.fit(train).fill(data.test)
    return {"climatology": {"crps": _climatology(data)}, "eof": _judged(filled, data.truth, periodic)}


def _raw(raw: np.ndarray, distance: np.ndarray, around: np.ndarray) -> np.ndarray:
    return raw


def _judged(filled: xr.Dataset, truth: xr.Dataset, periodic: tuple[bool, bool]) -> dict[str, Any]:
    scores = ff.score(filled, truth).isel(variable=0)
    near = score_by_distance(filled, truth, edges=EDGES, periodic=periodic).isel(variable=0)
    return {
        **{key: scores[key].item() for key in ("mse", "crps", "coverage50", "coverage90", "spread_skill")},
        "coverage90_error": _standard_error(filled, truth),
        "samples": truth.sizes["sample"],
        "reliability": reliability(filled, truth, LEVELS)[0].values.tolist(),
        "by_distance": {key: near[key].values.tolist() for key in ("coverage50", "coverage90", "n", "mse")},
    }


def _standard_error(filled: xr.Dataset, truth: xr.Dataset) -> float:
    """Of the coverage of 90 % intervals, from its differences between samples."""
    samples = range(truth.sizes["sample"])
    each = [ff.score(filled.isel(sample=k), truth.isel(sample=k)).coverage90.item() for k in samples]
    return float(np.std(each, ddof=1) / len(each) ** 0.5)


def _climatology(data: Data) -> float:
    """CRPS of a normal law with mean and spread of the observed training values."""
    (name,) = data.truth.data_vars
    seen = data.train[name].values
    true = data.truth[name].transpose(*data.test[name].dims).values[np.isnan(data.test[name].values)]
    mean, std = np.nanmean(seen), np.nanstd(seen)
    return float(crps_gaussian(np.full(true.shape, mean), np.full(true.shape, std), true).mean())


def _is_large(data: Data) -> bool:
    return bool(data.test.isel(sample=0).to_dataarray().size > LARGE)


def cost(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """Seconds of a fill with its standard deviation and of the mean alone, in turns."""
    model = filler.model_
    plain = build_denoiser(model.config.model_copy(update={"spread": False}), model.domain, model.grid.periodic, 0)
    for name in ("skip", "transport", "local"):
        setattr(plain, name, getattr(model.denoiser, name))
    record = open_record(data.test, model.variables, model.dims, model.domain.numpy())
    count = 1 if _is_large(data) else 8
    x, observed = Windows(record, model.normaliser, model.config.window).training([(s, 0) for s in range(count)])
    generators = [torch.Generator().manual_seed(i) for i in range(count)]
    ways: dict[str, Callable[[], object]] = {
        "with": lambda: model.estimate(x, observed, generators),
        "without": lambda: single_step(plain.eval(), x, observed, model.partition, model.ensemble, generators),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(9):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            seconds[name].append(time.process_time() - begun)
    ratios = np.array(seconds["with"]) / np.array(seconds["without"])
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {"seconds": medians, "v_std_adds": float(np.median(ratios)) - 1, "windows": count}


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the windows that are conditioned by a Gaussian law: every forward pass of a denoiser does so once."""
    passes, plain = [0], {law: law.condition for law in (GaussianSkip, LinearDynamics)}

    def counting(law: type) -> Callable[..., torch.Tensor]:
        def condition(self: Any, y: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
            passes[0] += len(y)
            return plain[law](self, y, *args, **more)

        return condition

    try:
        for law in plain:
            law.condition = counting(law)  # type: ignore[method-assign]
        yield passes
    finally:
        for law, condition in plain.items():
            law.condition = condition  # type: ignore[method-assign]


def members(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """CRPS, forward passes and cost of realisations on a few test samples; all samplers start from the same noise."""
    large = _is_large(data)
    count, few = 2 if large else 16, slice(0, 1)
    test, truth = data.test.isel(sample=few), data.truth.isel(sample=few)
    skip = filler.model_.denoiser.skip
    assert isinstance(skip, GaussianSkip)
    ways = {
        "conditional": ("conditional", Solver()),
        "exact, second order, 30 steps": ("exact", Solver(30, 2)),
        "exact, DDIM, 200 steps": ("exact", Solver(200, 1)),
    }
    if not large:
        ways["weighted, second order, 30 steps"] = ("weighted", Solver(30, 2))
    with counted() as passes:
        plain = ff.score(filler.fill(test), truth).isel(variable=0)
    found: dict[str, Any] = {"normal law with v_std": {"crps": plain.crps.item(), "passes": passes[0]}}
    for name, (sampler, solver) in ways.items():
        begun = time.process_time()
        with counted() as passes:
            filled = filler.fill(test, members=count, sampler=sampler, solver=solver)
        seconds = time.process_time() - begun
        scores = ff.score(filled, truth).isel(variable=0)
        keys = ("crps_ensemble", "spread_skill_ensemble", "rank_flatness")
        found[name] = {**{key: scores[key].item() for key in keys}, "seconds": seconds, "passes": passes[0]}
    first, second = (found[f"exact, {name} steps"]["crps_ensemble"] for name in ("DDIM, 200", "second order, 30"))
    found["second order over DDIM"] = second / first - 1
    found["members"], found["samples"], found["probes"] = count, test.sizes["sample"], PROBES
    return found


def guidance(filler: ff.Filler, data: Data, case: str) -> dict[str, Any]:
    """Residual of the equation and error at missing cells, with the weight chosen on held-out cells and without."""
    some = data.judged_by(GUIDED)
    test, truth = some.test, some.truth
    found: dict[str, Any] = {}
    for name, weight in (("plain", 0.0), ("guided", "auto")):
        filled = filler.fill(test, guidance=weight)
        physics = physical_scores(filled, truth)
        assert physics is not None
        found[name] = {
            "residual": {v: physics[f"{v}_residual"].item() for v in filler.model_.variables},
            "mse": ff.score(filled, truth).mse.to_series().to_dict(),
        }
    for key in ("residual", "mse"):
        plain, guided = found["plain"][key], found["guided"][key]
        found[f"{key}_ratio"] = {v: guided[v] / plain[v] for v in plain}
    return found


PARTS = {
    "intervals": intervals,
    "cost": cost,
    "baselines": baselines,
    "contexts": contexts,
    "members": members,
    "guidance": guidance,
}
STATED = {"intervals", "cost", "members"}  # parts that look at v_std


def applies(part: str, case: str) -> bool:
    """Guidance needs an equation, and its case serves that part alone."""
    return (part == "guidance") == (CASES[case].data == "shallow-water")


def measure(case: str, minutes: float, parts: list[str], seed: int, threads: int, cache: Path) -> None:
    todo = [part for part in parts if applies(part, case) and not row_path(case, part, seed).exists()]
    if not todo:
        return
    runner = Runner(RESULTS, SCALES["cpu"], cache, minutes, threads)
    torch.set_num_threads(threads)
    data = runner.data(case, seed)
    job = Job("uncertainty", case, "fieldfill", "fieldfill")
    changes = {"contexts": 0} if todo == ["guidance"] else {}  # which contexts are best does not matter there
    config = learnt("fieldfill", CASES[case], runner.scale, data.frames, minutes, changes)
    filler, facts = runner.trained(job, config, data, seed)
    if STATED.intersection(todo):
        calibrated(filler, data)
    for part in todo:
        begun = time.monotonic()
        judged = more_tests(case, data, seed, cache) if part == "intervals" else data
        row = {
            "bench": "uncertainty",
            "case": case,
            "method": part,
            "seed": seed,
            "scale": "cpu",
            "budget": {"minutes": minutes},
            "train_steps": facts["train_steps"],
            "ensemble": str(filler.model_.ensemble),
            "metrics": PARTS[part](filler, judged, case),
            "seconds": time.monotonic() - begun,
            **rows.provenance(threads),
        }
        row_path(case, part, seed).write_text(json.dumps(row, indent=1, default=float))
        print(f"{case} {part}: {row['seconds']:.0f} s", flush=True)


def row_path(case: str, part: str, seed: int) -> Path:
    return FOLDER / f"{case}__{part}__seed{seed}.json"


def draw(path: Path) -> None:
    """Reliability of the calibrations, and coverage by distance, one column a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*__intervals__seed0.json"))]
    figure, axes = plt.subplots(2, len(found), figsize=(2.7 * len(found), 5.2), layout="constrained", squeeze=False)
    for (above, below), row in zip(axes.T, found):
        above.plot([0, 1], [0, 1], color="0.6", lw=1)
        for name, colour in COLOURS.items():
            result = row["metrics"][name]
            above.plot(LEVELS, result["reliability"], "o-", ms=3, color=colour, label=name)
            cells = np.array(result["by_distance"]["n"]) >= 200
            below.plot(np.flatnonzero(cells), np.array(result["by_distance"]["coverage90"])[cells], "o-", color=colour)
        below.axhspan(0.84, 0.96, color="0.9", zorder=0)
        below.set(
            ylim=(0, 1), xticks=range(5), xticklabels=["≤1", "2", "4", "8", ">8"], xlabel="cells from an observation"
        )
        above.set_title(row["case"], fontsize=9)
        above.set(xlabel="nominal")
    axes[0, 0].set_ylabel("share of missing cells covered")
    axes[1, 0].set_ylabel("covered by 90 % intervals")
    axes[1, -1].legend(*axes[0, 0].get_legend_handles_labels(), loc="lower right", fontsize=7, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES_MINUTES)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=default_cache(RESULTS))
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure is not None:
        draw(options.figure)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for named in options.cases.split(","):
        case, minutes = named.split(":")
        measure(case, float(minutes), options.parts.split(","), options.seed, options.threads, options.cache)


if __name__ == "__main__":
    main()
