"""Are the error bars honest, and what do realisations cost? On the trained models of the benchmark.

    python benchmarks/uncertainty.py [--cases gaussian-cloud40 era5-pixel20] [--methods intervals] [--seed 1]
    python benchmarks/uncertainty.py --figure docs/images/uncertainty.png
    python benchmarks/uncertainty.py --scale smoke --results rows-of-smoke     (a minute, to see that all parts run)

A model that is not in the cache of the benchmark is trained; one that is there is calibrated again, so that a change of
the calibration needs no training. Measured on test samples with known truth, at cells that were missing:

* intervals: coverage of 50 % and 90 % intervals, overall and by distance to an observation, and CRPS – calibrated, by
  v_std and by v_quantile; by the standard deviation of the network itself; on clear scenes as other tools do;
* baselines: CRPS of the climatology and of the EOF fill with its own error;
* contexts: error of balanced and random contexts; on 3 x 3 blocks also of all distinct ones;
* cost: processor time that v_std adds to a fill;
* members: CRPS and processor time of the samplers, second order with 30 steps against DDIM with 200;
* guidance (shallow water): residual of the equation and error of a fill with and without it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import fieldfill as ff
from contexts import contexts
from fieldfill.api import physical_scores
from fieldfill.bench import rows
from fieldfill.bench.benches import Job
from fieldfill.bench.cases import CASES, SCALES, Case, Data, Scale, load
from fieldfill.bench.methods import classical, learnt
from fieldfill.bench.runner import Runner, default_cache
from fieldfill.bench.study import Measurement, Study, options_of
from fieldfill.config import build_denoiser
from fieldfill.data.crops import Crops
from fieldfill.data.record import open_record
from fieldfill.metrics import crps_gaussian, reliability, score_by_distance
from fieldfill.sampling.contexts import single_step
from fieldfill.sampling.solvers import Solver
from fieldfill.seeds import stream
from fieldfill.uncertainty.held_cells import calibrate, clear_scene
from fieldfill.workflow.opening import DataSource, open_crops

CASES_OF = (
    "gaussian-cloud40",
    "advection-block8of9",
    "navier-stokes-pixel60",
    "era5-pixel20",
    "shallow-water-block8of9",
)
# Test samples of guidance, which takes many fills.
GUIDED = 12
# Distances to an observation that separate the classes, in cells.
EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 1e9)
# Test samples of intervals where the coverage differs much between gaps and a sample has one gap.
MORE = {"advection": 256}
# Cells of a sample from which on fewer members are drawn and fewer samples timed.
LARGE = 20_000
COLOURS = {"quantiles": "C2", "calibrated": "C0", "as the network says": "C1", "clear scenes": "C3"}
LEVELS = tuple(np.round(np.arange(0.1, 1.0, 0.1), 1))
QUANTILES = sorted((1 + sign * level) / 2 for level in LEVELS for sign in (-1, 1))


def training_crops(filler: ff.Filler, data: Data) -> Crops:
    """The crops of the training, of which each is a whole sample, with the cells that it held out."""
    model = filler.model_
    assert model.others is None
    crops = open_crops(DataSource(data.train, domain=data.domain), model.config, model.seed)
    crops.normalise(model.normaliser)
    crops.maps = model.maps
    return crops


def calibrated(filler: ff.Filler, data: Data) -> None:
    """Calibrates a model from the cache anew, so that a change of the calibration needs no training."""
    model, crops = filler.model_, training_crops(filler, data)
    spread = calibrate(model.denoiser, model.partition, crops, model.ensemble, stream(model.seed, "choice"))
    filler.model_ = replace(model, spread=spread)


def intervals(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
    """Coverage and CRPS of what users get, and of what they would get otherwise."""
    model, crops = filler.model_, training_crops(filler, data)
    record = crops.record
    clear = clear_scene(model.denoiser, model.partition, crops, model.ensemble, stream(0, "choice"))
    found = {}
    for name, spread in {"calibrated": model.spread, "as the network says": _raw, "clear scenes": clear}.items():
        filler.model_ = replace(model, spread=spread)
        found[name] = _judged(filler.fill(data.test), data.truth, record.periodic)
    filler.model_ = model
    found["quantiles"] = _judged(filler.fill(data.test, quantiles=QUANTILES), data.truth, record.periodic)
    found["held-out cells"] = model.spread.summary
    return found


def more_tests(case: Case, scale: Scale, data: Data, seed: int, cache: Path) -> Data:
    """The data with more test samples than a row of the benchmark has, where few of them say little."""
    if case.data not in MORE:
        return data
    larger = replace(scale, name=f"{scale.name}-tests", samples={case.data: (1, MORE[case.data])})
    more = load(case, larger, seed, cache)
    return replace(data, test=more.test, truth=more.truth)


def baselines(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
    """CRPS of a normal law around the climatology, and of the EOF fill."""
    periodic = open_record(data.train, None, None, data.domain).periodic
    eof = classical("eof", case, scale, data.domain)
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


def cost(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
    """Seconds of a fill with its standard deviation and of the mean alone, in turns."""
    model = filler.model_
    crops = model.crops(open_record(data.test, model.variables, model.dims, model.domain.numpy()))
    settings = model.config.model_copy(update={"spread": False})
    plain = build_denoiser(settings, crops.shape, len(model.variables), crops.periodic, seed=0, maps=len(model.maps))
    plain.chain, plain.scales = model.denoiser.chain, model.denoiser.scales
    count = 1 if _is_large(data) else min(8, len(crops))
    batch = crops.training([crops.place(i) for i in range(count)])
    generators = [torch.Generator().manual_seed(i) for i in range(count)]
    partition, ensemble = model.partition, model.ensemble
    ways: dict[str, Callable[[], object]] = {
        "with": lambda: model.estimate(batch, generators),
        "without": lambda: single_step(
            plain.eval(), batch.x, batch.observed, batch.maps, partition, ensemble, generators
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(9):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            seconds[name].append(time.process_time() - begun)
    ratios = np.array(seconds["with"]) / np.array(seconds["without"])
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {"seconds": medians, "v_std_adds": float(np.median(ratios)) - 1, "samples": count}


def members(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
    """CRPS and cost of realisations on a few test samples; all samplers start from the same noise."""
    large = _is_large(data)
    count, few = 2 if large else 16, slice(0, 1)
    test, truth = data.test.isel(sample=few), data.truth.isel(sample=few)
    ways = {
        "conditional": ("conditional", Solver()),
        "exact, second order, 30 steps": ("exact", Solver(30, 2)),
        "exact, DDIM, 200 steps": ("exact", Solver(200, 1)),
    }
    if not large:
        ways["weighted, second order, 30 steps"] = ("weighted", Solver(30, 2))
    plain = ff.score(filler.fill(test), truth).isel(variable=0)
    found: dict[str, Any] = {"normal law with v_std": {"crps": plain.crps.item()}}
    for name, (sampler, solver) in ways.items():
        begun = time.process_time()
        filled = filler.fill(test, members=count, sampler=sampler, solver=solver)
        seconds = time.process_time() - begun
        scores = ff.score(filled, truth).isel(variable=0)
        keys = ("crps_ensemble", "spread_skill_ensemble", "rank_flatness")
        found[name] = {**{key: scores[key].item() for key in keys}, "seconds": seconds}
    first, second = (found[f"exact, {name} steps"]["crps_ensemble"] for name in ("DDIM, 200", "second order, 30"))
    found["second order over DDIM"] = second / first - 1
    found["members"], found["samples"] = count, test.sizes["sample"]
    return found


def guidance(filler: ff.Filler, data: Data, case: Case, scale: Scale) -> dict[str, Any]:
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


PARTS: dict[str, Callable[[ff.Filler, Data, Case, Scale], dict[str, Any]]] = {
    "intervals": intervals,
    "cost": cost,
    "baselines": baselines,
    "contexts": contexts,
    "members": members,
    "guidance": guidance,
}
# Parts that use v_std.
CALIBRATED = ("intervals", "cost", "members")


def applies(part: str, case: str) -> bool:
    """Guidance needs an equation, and its case serves that part alone."""
    return (part == "guidance") == (CASES[case].data == "shallow-water")


@dataclass
class Models:
    """The models of the study; the last one is kept in memory."""

    runner: Runner
    minutes: float
    last: dict[tuple[str, int], tuple[ff.Filler, dict[str, Any]]] = field(default_factory=dict)

    def measure(self, name: str, part: str, seed: int) -> dict[str, Any]:
        case, scale, data = CASES[name], self.runner.scale, self.runner.data(name, seed)
        filler, facts = self.model(name, seed, data)
        if part in CALIBRATED:
            calibrated(filler, data)
        judged = more_tests(case, scale, data, seed, self.runner.cache) if part == "intervals" else data
        return {
            "metrics": PARTS[part](filler, judged, case, scale),
            "train_steps": facts["train_steps"],
            "train_seconds": facts["train_seconds"],
            "budget": {"minutes": self.minutes},
            "ensemble": str(filler.model_.ensemble),
        }

    def model(self, case: str, seed: int, data: Data) -> tuple[ff.Filler, dict[str, Any]]:
        if (case, seed) not in self.last:
            job = Job("uncertainty", case, "fieldfill", "fieldfill")
            config = learnt("fieldfill", CASES[case], self.runner.scale, data.frames, self.minutes, {})
            self.last = {(case, seed): self.runner.trained(job, config, data, seed)}
        return self.last[case, seed]


def draw(found: list[rows.Row], path: Path) -> None:
    """Reliability of the calibrations, and coverage by distance, one column a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(found), figsize=(2.7 * len(found), 5.2), layout="constrained", squeeze=False)
    for (above, below), row in zip(axes.T, found):
        above.plot([0, 1], [0, 1], color="0.6", lw=1)
        for name, colour in COLOURS.items():
            result = row["metrics"][name]
            above.plot(LEVELS, result["reliability"], "o-", ms=3, color=colour, label=name)
            cells = np.array(result["by_distance"]["n"]) >= 200
            below.plot(
                np.flatnonzero(cells), np.array(result["by_distance"]["coverage90"], float)[cells], "o-", color=colour
            )
        below.axhspan(0.84, 0.96, color="0.9", zorder=0)
        below.set(
            ylim=(0, 1), xticks=range(5), xticklabels=["≤1", "2", "4", "8", ">8"], xlabel="cells from an observation"
        )
        above.set_title(row["case"], fontsize=9)
        above.set(xlabel="nominal")
    axes[0, 0].set_ylabel("share of missing cells covered")
    axes[1, 0].set_ylabel("covered by 90 % intervals")
    axes[1, -1].legend(*axes[0, 0].get_legend_handles_labels(), loc="lower right", fontsize=7, frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=1.5, help="processor minutes of a training")
    parser.add_argument("--scale", choices=["smoke", "cpu"], default="cpu", help="size of the data and of the network")
    parser.add_argument("--cache", type=Path, help="data and models; default: that of the benchmark")
    parser.add_argument("--figure", type=Path, help="only draw the rows of intervals that are there")
    options = parser.parse_args()
    if options.figure is not None:
        there = rows.read(options.results, "uncertainty")
        draw([row for row in there if (row["method"], row["seed"]) == ("intervals", options.seed)], options.figure)
        return
    cache = options.cache or default_cache(options.results)
    runner = Runner(options.results, SCALES[options.scale], cache, options.minutes, options.threads)
    models = Models(runner, options.minutes)
    measurements = [
        Measurement(case, part, partial(models.measure, case, part))
        for case in CASES_OF
        for part in PARTS
        if applies(part, case)
    ]
    Study("uncertainty", measurements, scale=options.scale).run(options)


if __name__ == "__main__":
    main()
