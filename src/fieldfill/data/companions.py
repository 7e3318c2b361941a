"""Variables that accompany a filled variable v: their names, their attributes, and how to find them again.

With no suffix they are called v_std, v_flag, v_quantile, v_members and v_budget; with a suffix s, vs_std and so on. The
CF attribute ``ancillary_variables`` of v lists them. In a file that does not list them they are found by name.
This module never imports torch.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import xarray as xr

from fieldfill.data.flags import FILLED, flag_attributes, is_our_flag
from fieldfill.errors import InputError, InputWarning

__all__ = [
    "KINDS",
    "LEADING",
    "attributes",
    "check_suffix",
    "companion",
    "companions",
    "earlier_fill",
    "filled_cells",
    "filled_variables",
    "lists",
    "without_earlier_fill",
]

LISTING = "ancillary_variables"
# An earlier fill is recognised by these names.
LONG_NAMES = {
    "std": "standard deviation of the filled {}; 0 where observed",
    "flag": "origin of {}",
    "quantile": "quantiles of {}; the value itself where observed",
    "members": "realisations of {}",
    "budget": "parts of the variance of the filled {}",
}
KINDS = tuple(LONG_NAMES)
# Dimension that a companion has beyond those of v, as it is called without a suffix.
LEADING = {"quantile": "quantile", "members": "member", "budget": "part"}
STANDARD_NAMES = {"std": "standard_error", "flag": "status_flag"}
UNITS_OF_VARIABLE = ("std", "quantile", "members")


def check_suffix(suffix: str) -> None:
    """Refuses a suffix that the name of a variable cannot have."""
    if not isinstance(suffix, str) or re.fullmatch(r"[\w.+@-]*", suffix) is None:
        raise InputError(f"suffix={suffix!r} must consist of letters, digits and _ . + - @, such as '_ff'")


def attributes(kind: str, name: str, attrs: dict) -> dict[str, Any]:
    """Attributes of the companion of variable ``name``, which has the attributes ``attrs``."""
    found: dict[str, Any] = {"long_name": LONG_NAMES[kind].format(name)}
    if kind == "flag":
        found |= flag_attributes()
    if kind in STANDARD_NAMES and "standard_name" in attrs:
        found["standard_name"] = f"{attrs['standard_name']} {STANDARD_NAMES[kind]}"
    if kind in UNITS_OF_VARIABLE and "units" in attrs:
        found["units"] = attrs["units"]
    return found


def lists(attrs: dict, added: Iterable[str] = (), removed: Sequence[str] = ()) -> dict:
    """``attrs`` of a variable, with companions ``added`` to and ``removed`` from those that they list."""
    text = _listing(attrs)
    for name in removed:
        text = text.replace(f" {name} ", " ")
    text = " ".join([*text.split(), *added])
    rest = {key: value for key, value in attrs.items() if key != LISTING}
    return rest | {LISTING: text} if text else rest


def companions(ds: xr.Dataset, name: str) -> dict[str, str]:
    """Names of the variables that accompany ``name``, by kind; without a flag there are none."""
    listed = _listed(ds, name)
    flags = [other for other in listed if other.endswith("_flag") and is_our_flag(ds[other].attrs)]
    flag = flags[0] if flags else f"{name}_flag"
    if flag not in ds or set(ds[flag].dims) != set(ds[name].dims):
        return {}
    # A flag without any meanings may have lost them; one with other meanings is the user's.
    if "flag_meanings" in ds[flag].attrs and not is_our_flag(ds[flag].attrs):
        return {}
    stem = flag.removesuffix("_flag")
    others = {kind: f"{stem}_{kind}" for kind in LONG_NAMES}
    return {kind: other for kind, other in others.items() if other in (listed if flags else ds)}


def filled_variables(ds: xr.Dataset) -> list[str]:
    """Names of the variables that have a flag."""
    return [name for name in ds.data_vars if isinstance(name, str) and companions(ds, name)]


def companion(ds: xr.Dataset, name: str, kind: str) -> xr.DataArray | None:
    """The companion of a ``kind``, its leading dimension called as without a suffix; None if there is none."""
    other = companions(ds, name).get(kind)
    if other is None:
        return None
    found = ds[other]
    extra = [str(dim) for dim in found.dims if dim not in ds[name].dims]
    plain = LEADING.get(kind)
    if plain is None or extra in ([], [plain]):
        return found
    return found.drop_vars(plain, errors="ignore").rename({extra[0]: plain})


def earlier_fill(ds: xr.Dataset, name: str) -> dict[str, str]:
    """Kind by name of all companions of ``name`` that fieldfill wrote, whatever their suffix."""
    found = {}
    for kind, pattern in LONG_NAMES.items():
        begin, end = pattern.split("{}")
        listed = [other for other in _listed(ds, name) if other.endswith(f"_{kind}")]
        for other in dict.fromkeys([*listed, f"{name}_{kind}"]):
            attrs = ds[other].attrs if other in ds else {}
            text = str(attrs.get("long_name", ""))
            ours = is_our_flag(attrs) if kind == "flag" else text.startswith(begin) and text.endswith(end)
            if attrs and ours:
                found[other] = kind
    return found


def filled_cells(ds: xr.Dataset, name: str) -> xr.DataArray | None:
    """Where an earlier fill put the values of ``name``, bool with its dimensions; None if there was no fill."""
    flags = [ds[other] for other, kind in earlier_fill(ds, name).items() if kind == "flag"]
    found = [flag.isin(FILLED) for flag in flags if set(flag.dims) == set(ds[name].dims)]
    return reduce(xr.DataArray.__or__, found).transpose(*ds[name].dims) if found else None


def without_earlier_fill(ds: xr.Dataset, names: Sequence[str]) -> tuple[xr.Dataset, tuple[str, ...]]:
    """The data set as it was before ``names`` were filled, and the names of what that fill had added."""
    added: dict[str, str] = {}
    out = ds
    for name in names:
        found = earlier_fill(ds, name)
        if not found:
            continue
        variable, filled = ds[name], filled_cells(ds, name)
        if filled is not None and filled.any():
            flag = next(other for other, kind in found.items() if kind == "flag")
            text = f"values of '{name}' that {flag} marks as filled are taken for missing; drop {flag} to keep them"
            warnings.warn(text, InputWarning, stacklevel=3)
            variable = variable.where(~filled)
        variable = variable.copy(deep=False)
        variable.attrs, variable.encoding = lists(ds[name].attrs, removed=list(found)), ds[name].encoding
        out = out.assign({name: variable})
        added |= found
    dims = {dim for other in added for dim in ds[other].dims}
    out = out.drop_vars(added)
    used = {dim for label, variable in out.variables.items() for dim in variable.dims if dim != label}
    return out.drop_vars([dim for dim in dims - used if dim in out.coords]), tuple(added)


def _listed(ds: xr.Dataset, name: str) -> list[str]:
    """Variables that ``name`` lists as ancillary; names may have blanks in them."""
    text = _listing(ds[name].attrs)
    return [str(other) for other in ds.variables if f" {other} " in text]


def _listing(attrs: dict) -> str:
    """Names between blanks; some files have an array of them."""
    return f" {' '.join(map(str, np.ravel(attrs.get(LISTING, ''))))} "
