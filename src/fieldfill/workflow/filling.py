"""The steps of `fill`, in order: crops, estimates, blend, members, and back to the data set."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version

import numpy as np
import torch
import xarray as xr

from fieldfill.config import simulator_of
from fieldfill.data.axes import Selection
from fieldfill.data.companions import check_suffix
from fieldfill.data.crops import Crops
from fieldfill.data.finite import floating
from fieldfill.data.record import Record
from fieldfill.data.survey import as_dataset
from fieldfill.data.transforms import SEASON, Season
from fieldfill.errors import InputError, InputWarning
from fieldfill.execution.processes import filled_frames
from fieldfill.sampling.contexts import density_matched
from fieldfill.sampling.equations import Steering
from fieldfill.sampling.members import Sampling, draw_members, missing_cells
from fieldfill.sampling.solvers import Solver
from fieldfill.seeds import stream
from fieldfill.stages import Report, Stages
from fieldfill.uncertainty.budget import Budget
from fieldfill.workflow.model import CropEstimates, Model
from fieldfill.workflow.opening import DataSource, DomainLike, open_source

__all__ = ["PARTS", "FillRequest", "fill_data"]

PARTS = tuple(part.name for part in fields(Budget))


@dataclass(frozen=True, kw_only=True)
class FillRequest:
    """What a fill should hold besides v, v_std and v_flag; see `fieldfill.api.Filler.fill`."""

    seed: int
    members: int = 0
    sampler: str | None = None
    solver: Solver = field(default_factory=Solver)
    guidance: float | str = 0.0
    budget: bool = False
    workers: int = 1
    quantiles: tuple[float, ...] = ()
    suffix: str = ""
    sel: Selection | None = None
    each: str | tuple[str, ...] = ()
    domain: DomainLike = None

    def __post_init__(self) -> None:
        if self.members < 0:
            raise InputError(f"members={self.members}; give 0 or more")
        if self.workers < 1:
            raise InputError(f"workers={self.workers}; give 1 or more")
        if self.sampler is not None:
            Sampling(self.sampler)  # refuses an unknown name
        check_suffix(self.suffix)
        for probability in self.quantiles:
            if not 0 < probability < 1:
                raise InputError(f"quantiles must lie strictly between 0 and 1; got {probability:g}")
        if isinstance(self.guidance, str) and self.guidance != "auto":
            raise InputError(f"guidance='{self.guidance}'; give a weight, or 'auto' to choose it on held-out cells")

    @property
    def kinds(self) -> list[str]:
        """Kinds of variables that the fill adds."""
        wanted = {
            "std": True,
            "flag": True,
            "members": self.members,
            "budget": self.budget,
            "quantile": len(self.quantiles),
        }
        return [kind for kind, present in wanted.items() if present]


@np.errstate(over="ignore", invalid="ignore")  # Record.to_dataset refuses what is not finite, in one line
def fill_data(
    model: Model,
    ds: xr.Dataset | xr.DataArray,
    request: FillRequest,
    report: Report | None = None,
) -> xr.Dataset:
    """The data set with its gaps filled by a model."""
    stages = Stages(report)
    stages.begin("opening")
    record = open_source(_source(model, as_dataset(ds), request), model.config)
    record = replace(record, keeps_all=not model.domain_given and request.domain is None)
    record.check_names(request.kinds, request.suffix)
    model, record = _placed(model, record, request.domain is not None)
    crops = model.crops(record)
    with _solvable():
        result = _Result(model, crops, request)
        frames, rows, columns = crops.shape
        stages.note(f"fills in crops of {frames} frames × {rows} rows × {columns} columns, with {model.ensemble}")
        result.estimate(stages.counter("filling"))
        if request.members or request.guidance:
            stages.begin("members")
        result.draw()
    return result.to_dataset()


def _source(model: Model, ds: xr.Dataset, request: FillRequest) -> DataSource:
    """The data, opened like those that the model was fitted on as far as they have the same dimensions."""
    sel = {name: value for name, value in model.sel.items() if name in ds.dims}
    sel |= request.sel or {}
    asked = (request.each,) if isinstance(request.each, str) else request.each
    each = tuple(dict.fromkeys((*(name for name in model.each if name in ds.dims), *asked)))
    dims = model.dims
    if dims is not None and dims[0] not in ds.dims:  # a single frame without its time
        dims = (None, *dims[1:])
    sel = {name: value for name, value in sel.items() if name not in asked}
    each = tuple(name for name in each if name not in (request.sel or {}))
    return DataSource(ds, model.variables, dims, request.domain, sel, each)


def _placed(model: Model, record: Record, given: bool) -> tuple[Model, Record]:
    """The model on the cells of the record, and the record with the domain of the model where that was fitted.

    Beyond, the field exists inside a ``given`` domain. Without one it exists everywhere if it does so in the
    fitted grid, and otherwise in the cells that were ever observed.
    """
    placement = model.grid.place(record, model.shape)
    everywhere = model.domain.flatten(1).all(1).numpy()[:, None, None]
    own = record.domain if given else (record.counts > 0) | everywhere
    record = placement.arrange(replace(record, domain=own))
    domain = np.where(placement.beyond, record.domain, placement.cut(model.domain.numpy()) & placement.held)
    held, beyond = placement.held, placement.held & placement.beyond
    if beyond.any():
        text = (
            f"{beyond.sum() / held.sum():.0%} of the cells lie outside the grid that the model was fitted on; there it "
            "goes by the nearest fitted cell, and what it fills is flagged 2"
        )
        warnings.warn(text, InputWarning, stacklevel=3)
    return model.placed(placement, domain), replace(record, domain=domain)


class _Result:
    """Arrays of a fill: first the estimates of all frames, then members and guided fields, sample by sample."""

    def __init__(self, model: Model, crops: Crops, request: FillRequest) -> None:
        self.model, self.crops, self.request = model, crops, request
        self.steering = self._steering()
        record = crops.record
        scale = model.normaliser.std.reshape(len(model.variables), -1).max(1)
        self.dtype = np.result_type(np.float32, *(record.ds[name].dtype for name in record.variables))
        self.filled, self.std = np.empty(record.shape, self.dtype), np.empty(record.shape, floating(scale))
        self.parts = np.empty((len(PARTS), *record.shape), floating(scale**2)) if request.budget else None
        self.members: np.ndarray | None = None
        again = request.members or self.steering is not None
        self.unitless = [np.empty(record.shape, np.float32) for _ in range(2 if again else 0)]

    def _steering(self) -> Steering | None:
        guidance = self.request.guidance
        if guidance == 0:
            return None
        weight = None if isinstance(guidance, str) else guidance
        simulator = simulator_of(self.crops.record.ds)
        return Steering.of(simulator, self.crops, weight, self.model.estimate, self.request.seed)

    def estimate(self, report: Callable[[int, int], None]) -> None:
        """Mean and standard deviation of all frames, and the parts of the variance."""
        estimates = CropEstimates(self.model, self.crops, self.request.seed, self.request.budget)
        normaliser = self.model.normaliser
        for sample, frames, mean, spread, shares in filled_frames(estimates, self.crops, report, self.request.workers):
            self.filled[sample, :, frames] = normaliser.to_values(mean)
            self.std[sample, :, frames] = normaliser.spread_to_values(spread)
            for whole, part in zip(self.unitless, (mean, spread)):
                whole[sample, :, frames] = part
            if self.parts is not None:
                std = self.std[sample, :, frames].astype(self.parts.dtype)
                self.parts[:, sample, :, frames] = shares * std**2

    def draw(self) -> None:
        """Guided fields and members."""
        request, model, record = self.request, self.model, self.crops.record
        if not self.unitless:
            return
        default = "conditional" if model.denoiser.chain.can_draw else "weighted"
        sampling = Sampling(request.sampler or default, request.solver)
        if request.members:
            self.members = np.empty((record.shape[0], request.members, *record.shape[1:]), self.dtype)
        for sample in range(record.shape[0]):
            mean, spread = (torch.from_numpy(part[sample]) for part in self.unitless)
            guide = None if self.steering is None else self.steering.at(sample)
            if guide is not None:
                mean = guide(mean[None], missing_cells(self.crops, sample))[0]
                self.filled[sample] = model.normaliser.to_values(mean.numpy())
            if self.members is not None:
                drawn = draw_members(
                    model, self.crops, sample, mean, spread, request.members, sampling, request.seed, guide
                )
                self.members[sample] = model.normaliser.to_values(drawn.numpy())

    def to_dataset(self) -> xr.Dataset:
        """The result in the format of the data."""
        model, record = self.model, self.crops.record
        parts = None if self.parts is None else dict(zip(PARTS, self.parts))
        quantiles = {float(p): model.spread.steps(p) for p in sorted(self.request.quantiles)}
        unsupported = model.unsupported.numpy()[None, :, None]
        out = record.to_dataset(
            self.filled,
            self.std,
            unsupported,
            self.members,
            parts,
            quantiles,
            self._history(record),
            self.request.suffix,
        )
        return Season().undo(out)

    def _history(self, record: Record) -> str:
        """One line on how the fill was made, and how many crops had fewer observations than the contexts need."""
        names = [
            f"{name} (in its logarithm)" if name in record.logarithmic else name
            for name in record.variables
            if name not in SEASON
        ]
        ensemble, few = self.model.ensemble, ""
        if ensemble.density is not None and ensemble.count:
            places = self.crops.spread_out(10**6, stream(0, "choice"))
            observed = (self.crops.visible(place)[1][None] for place in places)
            sparse = sum(bool(density_matched(seen, ensemble.density)[1]) for seen in observed)
            few = f"; {sparse} of {len(places)} crops have fewer observations" if sparse else ""
        return f"fieldfill {version('fieldfill')} filled the gaps of {', '.join(names)}: {ensemble}{few}"


@contextmanager
def _solvable() -> Iterator[None]:
    """Refuses in one line a model with numbers for which its equations have no solution."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        reason = str(error).split(": ", 2)[-1].splitlines()[0]
        raise InputError(f"the equations of the model cannot be solved ({reason}); fit it again") from error
