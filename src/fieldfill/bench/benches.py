"""Every table and ablation of the paper, and ours, as lists of jobs. One job is one row.

Rows that differ only at inference (ensemble size, contexts, density, weighting) name the same model, which is trained
once and kept in the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fieldfill.bench import published
from fieldfill.bench.cases import CASES, UNET, Case, Scale
from fieldfill.bench.methods import methods_of
from fieldfill.config import Settings
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.errors import InputError
from fieldfill.presets import PRESETS
from fieldfill.sampling.contexts import Ensemble

__all__ = ["BENCHES", "Bench", "Job", "jobs_of", "paper_value"]

WEIGHTS = ("none", "linear", "quadratic")
# Context and query in per cent; a query below 100 is what the context leaves.
RATIOS: dict[str, dict[str, Any]] = {
    "50/50": {"keep": (0.5, 0.5)},
    "70/70": {},
    "90/90": {"keep": (0.9, 0.9)},
    "70/100": {"partition": "hide-more"},
}


@dataclass(frozen=True)
class Job:
    """One row to be made.

    Attributes
    ----------
    method
        Name of the row.
    trained
        Method whose settings are used; the same as ``method`` but for ablations.
    changes
        Settings of `fieldfill.config.Settings` that an ablation changes; changes require a model of their own.
    test
        Case whose test samples are filled; None is the training case.
    ensemble
        How the fill is made; None is the method's own.
    omega
        Weighting of a multi-step fill; None is a single step.
    size
        Frames and cells per side of a speed measurement, which needs no data.
    corrected
        Whether the network corrects the first estimate of the model.
    """

    bench: str
    case: str
    method: str
    trained: str
    changes: tuple[tuple[str, Any], ...] = ()
    test: Case | None = None
    ensemble: Ensemble | None = None
    omega: str | None = None
    size: tuple[int, int] | None = None
    corrected: bool = True

    @property
    def model(self) -> str:
        """Name of the trained model in the cache."""
        return self.method if self.changes else self.trained


@dataclass(frozen=True)
class Bench:
    """A named list of jobs, which may depend on the scale."""

    name: str
    title: str
    jobs: Callable[[Scale], list[Job]]


def _all_methods(bench: str, cases: tuple[str, ...]) -> Callable[[Scale], list[Job]]:
    def jobs(scale: Scale) -> list[Job]:
        return [Job(bench, case, name, name) for case in cases for name in methods_of(CASES[case])]

    return jobs


def _named(*parts: str) -> tuple[str, ...]:
    return tuple(name for name in CASES if any(name.startswith(part) for part in parts))


def _real(scale: Scale) -> list[Job]:
    """The ERA5 month, then the real records, which are also filled by the first estimate alone."""
    jobs = _all_methods("real", _named("era5-record"))(scale)
    for case in (case for case in CASES.values() if case.real):
        first = Job("real", case.name, "first_estimate", "fieldfill", ensemble=Ensemble(0), corrected=False)
        *others, ours = (Job("real", case.name, name, name) for name in methods_of(case))
        jobs += [*others, first, ours]
    return jobs


# Our own network, the one of the learnt methods, the paper's shape, and an FNO that can be trained in minutes.
SHAPES: dict[str, tuple[tuple[str, Any], ...]] = {
    "refiner": (),
    "unet": tuple(UNET.items()),
    "space-time-unet": (("network", "space-time-unet"), ("base", 32), ("levels", 3)),
    "fno": (("network", "fno"), ("base", 32), ("levels", 4)),
}
NS = _named("navier-stokes-pixel")
PIXEL = _named("shallow-water-pixel", "advection-pixel")


# A step of rate 0 leaves the first estimate as it is; it is filled from all observations at once.
UNTRAINED: tuple[tuple[str, Any], ...] = (
    ("training", TrainSettings(steps=1, rate=0.0)),
    ("choose_contexts", False),
    ("contexts", 0),
)


def _optimum(scale: Scale) -> list[Job]:
    case = "gaussian-cloud40"
    return [
        *_all_methods("optimum", (case,))(scale),
        Job("optimum", case, "gaussian_mean", "fieldfill", UNTRAINED),
        Job(
            "optimum",
            case,
            "fieldfill-standard",
            "fieldfill",
            tuple((name, getattr(PRESETS["standard"], name)) for name in ("base", "levels")),
        ),
    ]


DEFAULT = Settings().estimators
FIRST_ESTIMATES: dict[str, tuple[str, ...]] = {
    "first_estimate": DEFAULT,
    **{f"without-{name}": tuple(n for n in DEFAULT if n != name) for name in DEFAULT if name != "gaussian"},
    "gaussian": ("climatology", "gaussian"),
    "pull-push": ("climatology", "pull-push"),
}


def _estimators(scale: Scale) -> list[Job]:
    """First estimates without a network: all steps, all but one, and single ones."""
    cases = ("era5-pixel20", "navier-stokes-pixel60", "shallow-water-block8of9", "advection-block8of9")
    return [
        Job("estimators", case, name, "fieldfill", (*UNTRAINED, ("estimators", steps)))
        for case in cases
        for name, steps in FIRST_ESTIMATES.items()
    ]


def _density(scale: Scale) -> list[Job]:
    """Contexts as dense as those of training, where the test holds enough cells for that."""
    jobs = []
    for name in NS:
        for test in map(CASES.__getitem__, NS):
            share = CASES[name].observed * PRESETS["paper"].keep[0] / test.observed
            if share <= 1:
                ensemble = Ensemble(10, keep=share, design="random")
                method = f"paper-on{round(100 * test.observed)}"
                jobs.append(Job("density", name, method, "paper", test=test, ensemble=ensemble))
    return jobs


def _context(scale: Scale) -> list[Job]:
    ways = {"contexts": Ensemble(10, design="random"), "M": Ensemble(0)}
    return [
        Job("context", case, f"{method}-{way}", method, ensemble=ensemble)
        for case in PIXEL
        for method in ("paper", "fieldfill")
        for way, ensemble in ways.items()
    ]


def _backbone(scale: Scale) -> list[Job]:
    jobs = []
    for case in PIXEL:
        for method in ("missdiff", "paper"):
            jobs += [
                Job("backbone", case, method, method),
                Job("backbone", case, f"{method}-fno", method, SHAPES["fno"]),
            ]
    return jobs


def _ratios(scale: Scale) -> list[Job]:
    named = {name: f"ratio-{name.replace('/', '-')}" for name in RATIOS}
    jobs = [
        Job("ratios", case, named[name], "paper", tuple(changes.items()))
        for case in NS
        for name, changes in RATIOS.items()
    ]
    return jobs + [Job("ratios", case, "ratio-100-100", "missdiff") for case in NS]


def _omega(scale: Scale) -> list[Job]:
    return [Job("omega", case, f"paper-{weight}", "paper", omega=weight) for case in NS for weight in WEIGHTS]


def _ensemble(scale: Scale) -> list[Job]:
    return [
        Job("ensemble", case, f"paper-K{count}", "paper", ensemble=Ensemble(int(count), design="random"))
        for case in NS
        for count in published.ENSEMBLE[case]
    ]


LIGHT = ("refiner", "unet")
# Networks on their own, and the light ones with the first estimate.
SPEED: dict[str, tuple[str, ...]] = {
    **{name: steps for network in LIGHT for name, steps in ((network, ()), (f"{network}-gaussian", DEFAULT))},
    "fno": (),
    "space-time-unet": (),
}


def _speed(scale: Scale) -> list[Job]:
    jobs = []
    for name, estimators in SPEED.items():
        network = name.removesuffix("-gaussian")
        changes: tuple[tuple[str, Any], ...] = (*SHAPES[network], ("estimators", estimators))
        jobs += [
            Job("speed", f"{frames}x{size}x{size}", name, "fieldfill", changes, size=(frames, size))
            for frames, size in scale.sizes
            if network in LIGHT or scale.heavy is None or size <= scale.heavy
        ]
    for case in ("advection-block8of9", "gaussian-cloud40"):
        jobs += [
            Job("speed", case, "fieldfill", "fieldfill"),
            Job("speed", case, "paper", "paper"),
            Job("speed", case, "paper-space-time-unet", "paper", SHAPES["space-time-unet"]),
            Job("speed", case, "fieldfill-fno", "fieldfill", SHAPES["fno"]),
        ]
    return jobs


# Every bench with the function that lists its jobs; a new one is a line here.
_LIST = [
    Bench("main", "pixel gaps: Navier–Stokes, ERA5", _all_methods("main", (*NS, *_named("era5-pixel")))),
    Bench(
        "block",
        "block gaps: shallow water, advection, Navier–Stokes",
        _all_methods(
            "block", _named("shallow-water-block") + _named("advection-block") + _named("navier-stokes-block")
        ),
    ),
    Bench("pixel", "pixel gaps: shallow water, advection", _all_methods("pixel", PIXEL)),
    Bench("optimum", "Gaussian fields under clouds, where the least possible error is known", _optimum),
    Bench("real", "records that are learnt from and filled: the ERA5 month, real gappy data", _real),
    Bench("estimators", "first estimates without a network, with and without each of their steps", _estimators),
    Bench("density", "test data denser or sparser than the training data", _density),
    Bench("context", "contexts against all observations at once", _context),
    Bench("backbone", "U-Net against FNO", _backbone),
    Bench("ratios", "share of the observed cells in context and query", _ratios),
    Bench("omega", "weighting of the multi-step sampler", _omega),
    Bench("ensemble", "number of contexts K and its cost", _ensemble),
    Bench("speed", "samples per second of every backbone, error at equal time", _speed),
]
BENCHES: dict[str, Bench] = {bench.name: bench for bench in _LIST}


def jobs_of(names: list[str], scale: Scale, case: str | None = None, method: str | None = None) -> list[Job]:
    """The jobs of some benches, or those of one case or one method."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        raise InputError(f"unknown bench '{unknown[0]}'; choose among {', '.join(BENCHES)}")
    jobs = [job for name in names for job in BENCHES[name].jobs(scale)]
    chosen = [job for job in jobs if case in (None, job.case) and method in (None, job.method)]
    if not chosen:
        cases, methods = (sorted({getattr(job, key) for job in jobs}) for key in ("case", "method"))
        raise InputError(
            f"no row with case {case} and method {method}; cases: {', '.join(cases)}; methods: {', '.join(methods)}"
        )
    return chosen


def paper_value(job: Job) -> float | None:
    """The figure that the paper prints for a row, in the units of the paper."""
    tables: dict[str, dict[str, dict[str, float]]] = {
        "backbone": published.BACKBONE,
        "ratios": {
            case: {f"ratio-{name.replace('/', '-')}": value for name, value in column.items()}
            for case, column in published.RATIOS.items()
        },
        "omega": {case: {f"paper-{k}": v for k, v in column.items()} for case, column in published.OMEGA.items()},
        "ensemble": {
            case: {f"paper-K{k}": v for k, v in column.items()} for case, column in published.ENSEMBLE.items()
        },
        "context": {case: {f"paper-{k}": v for k, v in column.items()} for case, column in published.CONTEXT.items()},
        "density": {
            case: {f"paper-on{share}": value for share, value in column.items() if value is not None}
            for case, column in published.DENSITY.items()
        },
    }
    return tables.get(job.bench, published.MAIN).get(job.case, {}).get(job.method)
