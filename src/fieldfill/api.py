"""The facade: `Filler`, `load`, `check`, `hide`, `score` and `physical_scores` join what lies below."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.config import Settings, build_mask, simulator_of
from fieldfill.data.axes import Dims, Selection
from fieldfill.data.companions import companion, filled_variables
from fieldfill.data.record import open_record
from fieldfill.errors import InputError
from fieldfill.execution.ddp import join
from fieldfill.execution.memory import keep_freed_memory
from fieldfill.masks.hiding import hide_cells
from fieldfill.method import Method
from fieldfill.metrics import physics
from fieldfill.presets import preset
from fieldfill.sampling.solvers import Solver
from fieldfill.stages import Report
from fieldfill.uncertainty.budget import Budget, budget_table
from fieldfill.workflow.checking import Check, check_crops
from fieldfill.workflow.checkpoint import RunFolder
from fieldfill.workflow.filling import PARTS, FillRequest, fill_data
from fieldfill.workflow.fitting import fit_model
from fieldfill.workflow.model import Model
from fieldfill.workflow.opening import DataSource, DomainLike, open_crops

__all__ = ["Filler", "added_bytes", "budget_of", "check", "hide", "load", "physical_scores"]


@dataclass(kw_only=True, eq=False, repr=False)
class Filler(Method):
    """Learns a diffusion model from gappy data and fills the gaps.

    Parameters
    ----------
    variables, dims, domain, log, sel, each
        See `fieldfill.method.Method`.
    window, crop
        Frames, and rows and columns, that the model sees together; by default chosen from the record.
    preset, partition, steps, minutes, inputs
        See `fieldfill.config.Settings`.
    settings
        Complete settings in place of window, crop, preset, partition, steps, minutes, inputs and log.
    seed
        Everything random follows from it.

    Attributes
    ----------
    model_
        The fitted `fieldfill.workflow.model.Model`.

    Examples
    --------
    >>> import fieldfill as ff
    >>> from fieldfill.bench import demo
    >>> data = demo.make_data(frames=24, size=(16, 16))
    >>> filler = ff.Filler(window=4, steps=2)
    >>> filler
    Filler(window=4, steps=2)
    >>> filled = filler.fit(data.gappy).fill(data.gappy, members=2)
    >>> filled.sst.attrs["ancillary_variables"]
    'sst_std sst_flag sst_members'
    >>> int((filled.sst_flag == 1).sum()) == int(data.gappy.sst.isnull().sum() - (filled.sst_flag == 3).sum())
    True
    """

    window: int | None = None
    crop: int | None = None
    preset: str | None = None
    partition: str | None = None
    steps: int | None = None
    minutes: float | None = None
    inputs: tuple[str, ...] = ()
    settings: Settings | None = None
    seed: int = 0
    model_: Model = field(init=False)

    def __post_init__(self) -> None:
        self.resolved_settings()

    def resolved_settings(self) -> Settings:
        """The complete settings; arguments that contradict each other are refused."""
        names = ("window", "crop", "preset", "partition", "steps", "minutes", "inputs", "log")
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, ())}
        if self.settings is None:
            return preset(given.pop("preset", "fast"), **given)
        if given:
            raise InputError(
                f"both settings and {', '.join(given)} were given; put {next(iter(given))} into the settings, or leave "
                "the settings out"
            )
        return self.settings

    @property
    def fitted(self) -> bool:
        return hasattr(self, "model_")

    def fit(
        self,
        ds: xr.Dataset | xr.DataArray,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        report: Report | None = None,
        threads: int | None = None,
    ) -> "Filler":
        """Learns from ``ds``, in which NaN means missing.

        ``checkpoint`` is a directory written during training; with ``resume=True`` a run that was killed is taken
        up from there and ends as if it had not been. Only one run at a time can use it. Under ``torchrun`` all
        processes learn one model together; each ends with it.

        ``report`` is called with a `fieldfill.stages.Progress` at every stage and step. ``threads`` is the number of
        threads of torch; by default the fastest in a short test, or OMP_NUM_THREADS where that is set. Apart from
        rounding the model does not depend on it.
        """
        keep_freed_memory()
        folder = None if checkpoint is None else RunFolder(checkpoint)
        source = DataSource(ds, self.variables, self.dims, self.domain, self.sel, self.each)
        self.model_ = fit_model(source, self.resolved_settings(), self.seed, join(), folder, resume, report, threads)
        return self

    def fill(
        self,
        ds: xr.Dataset | xr.DataArray,
        members: int = 0,
        seed: int | None = None,
        report: Report | None = None,
        sampler: str | None = None,
        solver: Solver | None = None,
        guidance: float | str = 0.0,
        budget: bool = False,
        workers: int = 1,
        quantiles: Sequence[float] = (),
        suffix: str = "",
        sel: Selection | None = None,
        each: str | Sequence[str] = (),
        domain: DomainLike = None,
    ) -> xr.Dataset:
        """Fills ``ds``; for each variable v the result also has v_std (0 where observed) and v_flag.

        Parameters
        ----------
        members
            Number of realisations in v_members. They agree with the observations and are continuous in space and
            time. Drawn by the conditional or the exact sampler, they have the mean v (the median, of a variable learnt
            in its logarithm) and the standard deviation v_std.
        sampler, solver
            See `fieldfill.sampling.members` and `fieldfill.sampling.solvers`. By default ``conditional``, or
            ``weighted`` for a model without the Gaussian estimator.
        guidance
            Weight with which the equation of simulated data steers v and its members, see
            `fieldfill.sampling.guidance`; ``auto`` chooses it on held-out cells. 0 leaves equations out.
        budget
            Whether v_budget holds the parts of the variance of each cell, see `fieldfill.uncertainty.budget`.
        workers
            Processes that share the crops. A script that uses several needs the usual
            ``if __name__ == "__main__":``; each holds a copy of the model and, unless they are read from a file on
            demand, of the data. Members are drawn by this process.
        quantiles
            Probabilities, such as 0.05 and 0.95 for the interval that holds 90 % of the truth; v_quantile has them
            along a leading dimension. They follow the tails of the errors, which are heavier than normal.
        suffix
            Added to v in the names of the new variables, and to those of their coordinates, for data that have
            variables called so: with ``"_ff"`` they are v_ff_std, v_ff_flag and so on.
        sel, each
            Of dimensions beyond time and space, in place of those that the model was fitted with.
        domain
            Where the field exists outside the grid that the model was fitted on.
        """
        if not self.fitted:
            raise InputError("this Filler has not learnt anything yet; call fit(ds) first, or fieldfill.load(path)")
        keep_freed_memory()
        request = FillRequest(
            seed=self.seed if seed is None else seed,
            members=members,
            sampler=sampler,
            solver=solver or Solver(),
            guidance=guidance,
            budget=budget,
            workers=workers,
            quantiles=tuple(quantiles),
            suffix=suffix,
            sel=sel,
            each=each if isinstance(each, str) else tuple(each),
            domain=domain,
        )
        return fill_data(self.model_, ds, request, report)

    def summary(self) -> dict[str, Any]:
        """Partition, stages with their held-out errors, and how well intervals hold; see `Model.summary`."""
        return self.model_.summary() if self.fitted else {}

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Writes the fitted model to a directory of safetensors and JSON, which cannot run code when it is read."""
        if not self.fitted:
            raise InputError("this Filler has not learnt anything yet; there is nothing to save before fit(ds)")
        return self.model_.save(Path(path), overwrite)


def load(path: str | Path) -> Filler:
    """Reads a model that `Filler.save` wrote; fitted again to the same data, the filler gives the same model."""
    model = Model.load(Path(path))
    domain = model.domain.numpy()
    filler = Filler(
        seed=model.seed,
        variables=model.own_variables,
        dims=model.dims,
        domain=domain,
        sel=model.sel or None,
        each=model.each,
        settings=model.config,
    )
    filler.model_ = model
    return filler


def check(
    ds: xr.Dataset | xr.DataArray,
    window: int | None = None,
    variables: Sequence[str] | None = None,
    dims: Dims | None = None,
    domain: DomainLike = None,
    partition: str | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    log: Sequence[str] = (),
    inputs: Sequence[str] = (),
    sel: Selection | None = None,
    each: str | Sequence[str] = (),
) -> Check:
    """Audits, from the masks alone, which cells of ``ds`` can be learnt and with which partition.

    It sees the same crops with the same held-out cells as `Filler.fit` with the same arguments.

    Examples
    --------
    >>> import fieldfill as ff
    >>> from fieldfill.bench import demo
    >>> found = ff.check(demo.make_data(frames=24, size=(16, 16)).gappy)
    >>> found.to_dict()["partition"]
    'swap'
    """
    names = None if variables is None else tuple(variables)
    filler = Filler(
        window=window, partition=partition, settings=settings, log=tuple(log), inputs=tuple(inputs), variables=names
    )
    chosen = filler.resolved_settings()
    return check_crops(open_crops(DataSource(ds, names, dims, domain, sel, each), chosen, seed), chosen, seed)


def hide(
    ds: xr.Dataset | xr.DataArray,
    pattern: str,
    observed: float = 0.3,
    every: int | None = None,
    variables: Sequence[str] | None = None,
    dims: Dims | None = None,
    seed: int = 0,
    sel: Selection | None = None,
    each: str | Sequence[str] = (),
) -> tuple[xr.Dataset, float]:
    """A copy of ``ds`` with cells set to NaN, for experiments in which the truth is known, and the share left observed.

    Parameters
    ----------
    pattern, observed
        Name of a mask model (see `fieldfill.config.build_mask`) and the share of the cells it leaves.
    every
        Frames per mask: the record is cut into pieces of so many frames and each draws its own mask, as if it were
        a sample of its own. None draws one mask per sample.

    Examples
    --------
    >>> import fieldfill as ff
    >>> from fieldfill.bench import demo
    >>> truth = demo.make_data(frames=24, size=(16, 16)).truth
    >>> gappy, share = ff.hide(truth, "pixel", observed=0.3, every=1)
    >>> round(share, 1)
    0.3
    >>> gappy.attrs["fieldfill_mask"]
    '{"pattern": "pixel", "observed": 0.3, "every": 1, "seed": 0}'
    """
    record = open_record(ds, variables, dims, sel=sel, each=each)
    gappy, share = hide_cells(record, build_mask(pattern, observed, record.shape[3:]), every, seed)
    made = {"pattern": pattern, "observed": observed, "every": every, "seed": seed}
    gappy.attrs["fieldfill_mask"] = json.dumps(made)
    return gappy, share


def physical_scores(filled: xr.Dataset, truth: xr.Dataset) -> xr.Dataset | None:
    """Scores of a fill by the equation that made the truth, or None if no simulator did.

    See `fieldfill.metrics.physics.physical_scores`.
    """
    simulator = simulator_of(truth)
    return None if simulator is None else physics.physical_scores(filled, truth, simulator)


def added_bytes(
    ds: xr.Dataset, variables: Sequence[str], members: int = 0, budget: bool = False, quantiles: int = 0
) -> int:
    """Size of what `Filler.fill` adds to ``ds``: v_std and v_flag always, the others on request."""
    single = np.dtype(np.float32).itemsize
    each = single + 1 + (len(PARTS) * single if budget else 0)
    found = [ds[name] for name in variables if name in ds]
    return sum(array.size * (each + (members + quantiles) * array.dtype.itemsize) for array in found)


def budget_of(filled: xr.Dataset) -> dict[str, dict[str, float]]:
    """Shares of the parts of the variance, over all missing cells of each variable of a fill with ``budget=True``."""
    found = {name: companion(filled, name, "budget") for name in filled_variables(filled)}
    budgets = {name: budget for name, budget in found.items() if budget is not None}
    sums = [[float(budget.sel(part=part).sum()) for budget in budgets.values()] for part in PARTS]
    return budget_table(Budget(*map(np.array, sums)), list(budgets))
