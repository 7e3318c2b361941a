"""The protocol of every method that fills gaps, ours and the baselines.

A method is a keyword-only dataclass: its parameters are its fields, what it learns ends in ``_``. Any method can take
the place of any other, and `sklearn.base.clone` copies it without what it learnt.
"""

import abc
import html
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

import numpy as np
import xarray as xr

from fieldfill.data.axes import Dims, Selection
from fieldfill.errors import InputError

__all__ = ["Method"]

Data = xr.Dataset | xr.DataArray


@dataclass(kw_only=True, eq=False, repr=False)
class Method(abc.ABC):
    """Base class of all methods.

    Parameters
    ----------
    variables, dims, domain, sel, each
        As in `fieldfill.data.record.open_record`: ``sel={"depth": 0}`` cuts another dimension at a value,
        ``each="level"`` takes every index along one as an independent sample.
    log
        Names of positive variables that are filled in their logarithm: v is the median, never below 0.
    """

    variables: tuple[str, ...] | None = None
    dims: Dims | None = None
    domain: str | xr.DataArray | np.ndarray | None = field(default=None)
    log: tuple[str, ...] = ()
    sel: Selection | None = None
    each: str | tuple[str, ...] = ()

    @abc.abstractmethod
    def fit(self, ds: Data) -> Self:
        """Learns from a gappy data set (NaN = missing)."""

    @abc.abstractmethod
    def fill(self, ds: Data) -> xr.Dataset:
        """Fills the gaps of a data set on the grid known from `fit`; observed values stay bit-identical."""

    @property
    @abc.abstractmethod
    def fitted(self) -> bool:
        """Whether `fit` was called."""

    def summary(self) -> dict[str, Any]:
        """What was learnt and how well, as plain numbers and words."""
        return {}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name. ``deep`` is there for scikit-learn; parameters hold no other methods."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.init}

    def set_params(self, **params: Any) -> Self:
        """Changes parameters; what was learnt stays until the next `fit`."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"{type(self).__name__} has no parameter '{name}'; choose one of {', '.join(known)}")
            setattr(self, name, value)
        return self

    def _changed(self) -> dict[str, Any]:
        """Parameters that differ from their defaults."""
        changed = {}
        for part in fields(self):
            if not (part.init and part.repr):
                continue
            value = getattr(self, part.name)
            default = part.default_factory() if part.default_factory is not MISSING else part.default
            if isinstance(value, xr.DataArray | np.ndarray):
                changed[part.name] = f"<{type(value).__name__} {value.shape}>"
            elif value is not default and value != default:
                changed[part.name] = repr(value)
        return changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self._changed().items())})"

    def _repr_html_(self) -> str:
        """A table for notebooks: settings, then what was learnt."""
        rows = [*self._changed().items()]
        rows += [(key, str(value)) for key, value in self.summary().items()] if self.fitted else []
        state = "fitted" if self.fitted else "not fitted yet"
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(key))}</th><td>{html.escape(str(text))}</td></tr>"
            for key, text in rows
        )
        return f"<b>{html.escape(type(self).__name__)}</b> ({state})<table>{body}</table>"
