"""What the files of a model must hold: types and values of ``model.json``, shapes and values of the arrays.

A file that was cut, edited or mixed up with another is refused when it is read, in one line, instead of filling gaps
with numbers that mean nothing.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any

import torch
from annotated_types import Ge, Len
from pydantic import BaseModel, ValidationError, model_validator
from safetensors import SafetensorError
from torch import Tensor

from fieldfill.config import Settings
from fieldfill.data.axes import Dims
from fieldfill.data.grid import Grid
from fieldfill.data.inputs import DAY_OF_YEAR
from fieldfill.data.transforms import SEASON
from fieldfill.errors import InputError
from fieldfill.sampling.contexts import Ensemble
from fieldfill.uncertainty.quantiles import LEVELS

__all__ = ["Description", "check_arrays", "refusing_damage"]

# Predictors of the local correction of the standard deviation; older models have one fewer.
PREDICTORS = (5, 6)
# Contexts of a fill at most, unless the settings have more.
MOST_CONTEXTS = 1000
# What reading, building and indexing raise if files are not what they should be.
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SafetensorError,
    TypeError,
    UnpicklingError,
    ValueError,
)

Numbers = list[float]


@contextmanager
def refusing_damage(path: Path, kind: str = "model", remedy: str = "fit it again") -> Iterator[None]:
    """Turns whatever is wrong with what was read from ``path`` into one line."""
    try:
        yield
    except DAMAGE as error:
        raise InputError(f"the {kind} {path} is damaged ({_reason(error)}); {remedy}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch begins with what was loaded and goes on with what is wrong.
    return (lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]) if lines else type(error).__name__


class Account(BaseModel, extra="allow"):
    """The calibration's account of itself, for the report."""

    levels: Numbers
    calibrated: Numbers
    uncalibrated: Numbers
    cells: int
    effective_cells: float
    effective_windows: float
    tails: float = 1.0
    missing_beyond_reach: float = 0.0


class Validated(BaseModel, extra="allow"):
    """An entry of the history of training."""

    step: int
    validation: float | None = None
    loss: float | None = None
    seconds: float = 0.0


class Notes(BaseModel, extra="allow"):
    """The notes that reports read; the others are for people."""

    history: list[Validated]
    calibration: Account | Annotated[dict[str, Any], Len(0, 0)]


class Description(BaseModel):
    """The content of ``model.json``; see `fieldfill.workflow.model.Model`."""

    config: Settings
    seed: int
    variables: Annotated[tuple[str, ...], Len(1)]
    dims: Dims | None
    sel: dict[str, float | str] = {}
    each: tuple[str, ...] = ()
    grid: Grid
    crop: tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)], Annotated[int, Ge(1)]]
    partition: str
    bank: tuple[
        Annotated[int, Ge(1)],
        Annotated[int, Ge(1)],
        Annotated[int, Ge(1)],
        Annotated[int, Ge(1)],
        Annotated[int, Ge(1)],
    ]
    domain_given: bool = False
    ensemble: Ensemble
    notes: Notes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)"""
        rows, columns = (len(values) for values in self.grid.coordinates.values())
        return len(self.variables), rows, columns

    @property
    def crop_periodic(self) -> tuple[bool, bool]:
        """Whether rows and columns of a crop close on themselves."""
        rows, columns = (
            closed and size == length for closed, size, length in zip(self.grid.periodic, self.shape[1:], self.crop[1:])
        )
        return rows, columns

    @model_validator(mode="after")
    def _agree(self) -> "Description":
        names, config = self.variables, self.config
        _need(len(set(names)) == len(names), "a variable is named twice")
        _need(len(self.grid.coordinates) == 2, "the grid has not two dimensions")
        finite = all(math.isfinite(x) for values in self.grid.coordinates.values() for x in values)
        _need(finite, "a coordinate is not finite")
        _need(self.bank[1:] == (self.shape[0], *self.crop), "bank: its masks have another shape")
        _need(self.ensemble.count <= max(config.contexts, MOST_CONTEXTS), "ensemble.count: too many contexts")
        _need(0 < config.keep[0] <= config.keep[1] <= 1, "config.keep: no shares")
        _need((DAY_OF_YEAR in config.inputs) == set(SEASON).issubset(names), "the season is an input or it is not")
        _need(set(config.log) <= set(names), "config.log: none of the variables")
        return self


def check_arrays(description: Description, arrays: Mapping[str, Tensor]) -> None:
    """Refuses arrays that do not fit the description or hold what they must not."""
    shape = description.shape
    _array(arrays, "domain", torch.bool, shape)
    _array(arrays, "unsupported", torch.bool, shape)
    exposure = _array(arrays, "exposure", torch.float32, shape)
    _need(not bool(((exposure < 0) | (exposure > 1)).any()), "exposure holds no probabilities")  # NaN where unknown
    _array(arrays, "bank", torch.uint8, (math.ceil(math.prod(description.bank) / 8),))
    for name, law in (("normaliser.mean", _finite), ("normaliser.std", _positive)):
        array = _array(arrays, name, torch.float64)
        _need(tuple(array.shape) in (shape, shape[:1], (shape[0], 1, 1)), f"{name} has the shape {_size(array)}")
        law(name, array)
    maps = _array(arrays, "maps", torch.float32)
    _need(maps.ndim == 3 and maps.shape[1:] == shape[1:], f"maps has the shape {_size(maps)}")
    _finite("maps", maps)
    if "others" in arrays:
        _finite("others", _array(arrays, "others", torch.float32, (2, *shape)))
        _need(not bool((arrays["others"][1] < 0).any()), "others counts fewer than no values")
    for name, array in arrays.items():
        if name.startswith("denoiser."):
            _finite(name, _array(arrays, name, torch.float32))
            if name.endswith("nugget"):
                _positive(name, array)
    _check_network(description.config, arrays)
    _check_calibration({name: array for name, array in arrays.items() if name.startswith("spread.")}, shape[0])


def _check_network(config: Settings, arrays: Mapping[str, Tensor]) -> None:
    """A network has base² weights at least and an array a level: no larger one is built, only to fail."""
    sizes = [array.numel() for name, array in arrays.items() if name.startswith("denoiser.network.")]
    _need(config.base**2 <= sum(sizes) and config.levels <= len(sizes), "the network has other weights than described")


def _check_calibration(arrays: Mapping[str, Tensor], variables: int) -> None:
    """See `fieldfill.uncertainty.calibration.Calibration.arrays`."""
    for prefix, name in (("spread.", "factors"), ("spread.spread.", "spreads")):
        if prefix == "spread." or any(key.startswith(prefix) for key in arrays):
            distances = _array(arrays, f"{prefix}distances", torch.float64)
            _rising(f"{prefix}distances", distances)
            _positive(f"{prefix}{name}", _array(arrays, f"{prefix}{name}", torch.float64, (variables, len(distances))))
    _finite("spread.reach", _array(arrays, "spread.reach", torch.float64, (1,)))
    if "spread.tails" in arrays:
        tails = _array(arrays, "spread.tails", torch.float64, (variables, len(LEVELS)))
        _positive("spread.tails", tails)
        for row in tails:
            _rising("spread.tails", row)
    if any(name.startswith("spread.local.") for name in arrays):
        slopes = _array(arrays, "spread.local.slopes", torch.float64)
        _need(slopes.ndim == 1 and len(slopes) in PREDICTORS, f"spread.local.slopes has the shape {_size(slopes)}")
        count = len(slopes)
        _finite("spread.local.slopes", slopes)
        _finite("spread.local.centre", _array(arrays, "spread.local.centre", torch.float64, (count,)))
        _positive("spread.local.width", _array(arrays, "spread.local.width", torch.float64, (count,)))
        ends = _array(arrays, "spread.local.ends", torch.float64, (2, count))
        _finite("spread.local.ends", ends)
        _need(bool((ends[0] <= ends[1]).all()), "spread.local.ends are in the wrong order")
        ridge = _array(arrays, "spread.local.ridge", torch.float64, (1,))
        _need(float(ridge[0]) > 0, "spread.local.ridge is not positive")  # infinite if nothing is corrected


def _array(arrays: Mapping[str, Tensor], name: str, dtype: torch.dtype, shape: tuple[int, ...] | None = None) -> Tensor:
    array = arrays[name]
    _need(array.dtype == dtype, f"{name} is {str(array.dtype).removeprefix('torch.')}")
    _need(shape is None or tuple(array.shape) == shape, f"{name} has the shape {_size(array)}")
    return array


def _size(array: Tensor) -> str:
    return " x ".join(map(str, array.shape)) or "of a single number"


def _finite(name: str, array: Tensor) -> None:
    _need(bool(array.isfinite().all()), f"{name} has {int((~array.isfinite()).sum())} numbers that are not finite")


def _positive(name: str, array: Tensor) -> None:
    _finite(name, array)
    _need(bool((array > 0).all()), f"{name} has {int((array <= 0).sum())} numbers that are not positive")


def _rising(name: str, array: Tensor) -> None:
    _finite(name, array)
    _need(array.ndim == 1 and len(array) > 0 and bool((array.diff() >= 0).all()), f"{name} must not fall")


def _need(met: bool, otherwise: str) -> None:
    if not met:
        raise ValueError(otherwise)
