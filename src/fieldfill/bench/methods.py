"""The methods of the benchmark by name: classical ones from `fieldfill.baselines`, learnt ones as configurations.

All learnt methods have one budget, and all but ours one backbone of one size (see `fieldfill.bench.cases.Scale`); they
differ in the partition, the objective and what is done at inference, as the methods they stand for do:

* ``missdiff``: context = query = everything observed; ``missdiff_noise`` predicts the noise, as first published;
* ``ambientdiff``: the context is a random subset, the query all observed cells, one context at inference;
* ``paper``: contexts with the structure of the gaps, 70 % of the cells, uniform t, no first estimate, mean over ten;
* ``paper_wrong_partition``: the same with single-pixel contexts on block gaps;
* ``fieldfill``: our defaults, with a network of their own.

Real records are filled by the classical methods and by ``fieldfill`` as its users have it: defaults, and a time for the
whole fit. ``first_estimate`` is the same fitted model without the correction of its network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from fieldfill import baselines
from fieldfill.baselines import Baseline
from fieldfill.bench.cases import Case, Scale, Unavailable
from fieldfill.bench.real_records import REAL_RECORDS
from fieldfill.config import Settings
from fieldfill.errors import MissingPackage
from fieldfill.presets import PRESETS, preset
from fieldfill.sampling.contexts import Ensemble
from fieldfill.simulate.gaussian_field import GaussianField

__all__ = [
    "CLASSICAL",
    "LEARNT",
    "METHODS",
    "Classical",
    "check_size",
    "classical",
    "ensemble_of",
    "learnt",
    "methods_of",
]

# The best of several inpaintings would repeat one of their rows, and the optimum learns nothing from the data.
CLASSICAL = tuple(name for name in baselines.BASELINES if name not in ("inpainting", "optimum"))
# Learnt methods; `learnt` builds each of them.
LEARNT = ("missdiff", "missdiff_noise", "ambientdiff", "paper", "paper_wrong_partition", "fieldfill")
METHODS = (*CLASSICAL, *LEARNT, "optimum")
# Methods that need several frames.
IN_TIME = ("linear_time", "temporal", "eof")
# Cells (variables, frames, rows, columns) of the largest real record that slow methods fill, in about ten minutes.
MOST_CELLS = {"biharmonic": 1_500_000, "oi": 5_000_000}


def methods_of(case: Case) -> tuple[str, ...]:
    """The methods that a case is filled by."""
    if case.real:
        left_out = set(IN_TIME) if REAL_RECORDS[case.data].timeless else set()
        return tuple(name for name in (*CLASSICAL, "fieldfill") if name not in left_out)
    if case.record:
        return (*CLASSICAL, "fieldfill")
    left_out = set() if case.pattern == "block" else {"paper_wrong_partition"}
    if case.data != "gaussian":
        left_out.add("optimum")
    return tuple(name for name in METHODS if name not in left_out)


@dataclass(frozen=True)
class Classical:
    """A classical method and the number of training samples it learns from; None takes all."""

    method: Baseline
    fit_samples: int | None = None


def classical(name: str, case: Case, scale: Scale, domain: np.ndarray) -> Classical:
    """A classical method for a case."""
    # Simulated fields have the same mean everywhere, which a few samples of a cell would estimate less well; a single
    # frame has no mean of a cell.
    own_mean = _measured(case) and not (case.real and REAL_RECORDS[case.data].timeless)
    special: dict[str, Callable[[], Classical]] = {
        "climatology": lambda: Classical(baselines.Climatology(domain=domain, per_cell=own_mean)),
        "eof": lambda: Classical(baselines.EOF(domain=domain, max_rank=20, iterations=60), _eof_samples(case, scale)),
        "oi": lambda: Classical(_interpolation(case, scale, domain)),
        "optimum": lambda: Classical(
            baselines.GaussianOptimum(field=_law(scale), domain=domain, uncertainty=False), fit_samples=1
        ),
    }
    try:
        return special[name]() if name in special else Classical(baselines.BASELINES[name](domain=domain))
    except MissingPackage as error:
        raise Unavailable(str(error)) from error


def _interpolation(case: Case, scale: Scale, domain: np.ndarray) -> Baseline:
    """Optimal interpolation in the windows that `fieldfill` sees."""
    window = 8 if _measured(case) else _frames(case, scale)  # at most the frames of a sample
    return baselines.OptimalInterpolation(domain=domain, window=window, probes=4)


def _eof_samples(case: Case, scale: Scale) -> int | None:
    """As many samples as hold about 800 frames: the refill costs frames times cells times iterations."""
    return None if _measured(case) else max(4, 800 // _frames(case, scale))


def _measured(case: Case) -> bool:
    """Whether the data are real ones instead of simulated ones."""
    return case.real or case.data == "era5"


def check_size(name: str, case: Case, cells: int) -> None:
    """Leaves a slow method out of a large real record."""
    most = MOST_CELLS.get(name, cells)
    if case.real and cells > most:
        raise Unavailable(f"{name} is left out above {most:,} cells because it is slow; {case.name} has {cells:,}")


def _frames(case: Case, scale: Scale) -> int:
    return len(scale.simulators[case.data].coordinates()["time"][0])


def _law(scale: Scale) -> GaussianField:
    law = scale.simulators["gaussian"]
    assert isinstance(law, GaussianField)
    return law


def learnt(
    name: str, case: Case, scale: Scale, frames: int, minutes: float | None, changes: Mapping[str, Any]
) -> Settings:
    """The configuration of a learnt method for samples of ``frames`` frames; ``changes`` are those of an ablation."""
    ours = name == "fieldfill"
    if case.real:
        return _validated(_as_used(scale, minutes) | dict(changes))
    base = PRESETS["fast"] if ours else PRESETS["paper"]
    training = replace(
        base.training,
        steps=scale.steps,
        minutes=scale.minutes if minutes is None else minutes,
        clock="processor",  # a busy machine must not change a row
        batch=base.training.batch if ours else scale.batch[case.data],
        validate_every=scale.validate_every,
        patience=10**6,  # the budget alone ends a training, so that it is the same for all
    )
    window = 8 if case.record else frames if ours else min(frames, scale.window)
    settings = (
        base.model_dump() | {"window": window, "training": training} | dict(scale.ours if ours else scale.network)
    )
    return _validated(settings | _differences(name, case) | dict(changes))


def _as_used(scale: Scale, minutes: float | None) -> dict[str, Any]:
    """The defaults with a time for the whole fit, or with the steps and the network of a scale that has none."""
    minutes = scale.fit_minutes if minutes is None else minutes
    if minutes is not None:
        return preset("fast", minutes=minutes).model_dump()
    chosen = preset("fast", steps=scale.steps)
    training = replace(chosen.training, validate_every=scale.validate_every)
    return chosen.model_dump() | {"training": training} | dict(scale.ours)


def _validated(settings: Mapping[str, Any]) -> Settings:
    try:
        return Settings.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        raise Unavailable(f"the setting {first['loc'][0]} = {first['input']!r}: {first['msg']}") from error


def _differences(name: str, case: Case) -> dict[str, Any]:
    hide_more = "hide-more:block:3x3" if case.pattern == "block" else "hide-more"
    differences: dict[str, dict[str, Any]] = {
        "missdiff": {"partition": "all-observed", "contexts": 0},
        "missdiff_noise": {"partition": "all-observed", "contexts": 0, "prediction": "noise"},
        "ambientdiff": {"partition": hide_more, "contexts": 1},
        "paper": {"partition": case.unit},
        "paper_wrong_partition": {"partition": "pixel"},
        "fieldfill": {},
    }
    return differences[name]


def ensemble_of(name: str, config: Settings) -> Ensemble | None:
    """How the method fills; None leaves it to the model, which has chosen on its held-out cells.

    The earlier methods draw contexts at random, as they were published.
    """
    return None if name == "fieldfill" else Ensemble(config.contexts, design="random")
