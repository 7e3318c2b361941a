"""How things are said: units, numbers, names of methods, labels of axes and times."""

import re
from html import escape

import numpy as np
import xarray as xr

__all__ = [
    "axis_label",
    "figure_text",
    "in_units",
    "method_name",
    "number",
    "percent",
    "plain",
    "pretty_units",
    "time_labels",
    "with_units",
]

UNITS = {
    "degc": "°C",
    "celsius": "°C",
    "degrees_celsius": "°C",
    "degree_celsius": "°C",
    "deg_c": "°C",
    "1": "",
}
COMPASS = {
    "degrees_north": "°N",
    "degree_north": "°N",
    "degrees_east": "°E",
    "degree_east": "°E",
    "degrees": "°",
}
METHODS = {
    "linear_time": "linear in time",
    "inpainting": "best inpainting, frame by frame",
    "eof": "EOF fill, DINEOF-style",
    "oi": "optimal interpolation",
    "nearest": "nearest observation",
    "temporal": "temporal consistency",
    "telea": "Telea inpainting",
    "navier_stokes": "Navier–Stokes inpainting",
    "missdiff": "MissDiff (matched backbone)",
    "ambientdiff": "AmbientDiff (matched backbone)",
}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(text: object) -> str:
    """A text out of a file with a question mark for what is no character, which no font and no page can show."""
    return str(text).encode(errors="replace").decode()


def pretty_units(units: object) -> str:
    """Units as they are printed: degC becomes °C, m s-1 becomes m s⁻¹; nothing for the unit 1."""
    text = plain(units).strip()
    if text.lower() in UNITS:
        return UNITS[text.lower()]
    raised = re.sub(r"(?<=[A-Za-z])(?:\*\*|\^)?(-?\d+)", lambda m: m[1].translate(SUPERSCRIPTS), text)
    return COMPASS.get(text.lower(), raised)


def figure_text(text: str) -> str:
    """A text out of the data for a figure of plotly, which takes some tags and ``%{...}`` for more than a text."""
    return escape(text, quote=False).replace("%{", "%&#123;")


def with_units(text: str, units: str) -> str:
    return f"{text} {units}" if units else text


def in_units(text: str, units: str) -> str:
    """What a quantity is called beside an axis."""
    return f"{text} ({units})" if units else text


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, without an exponent where that is readable."""
    if not np.isfinite(value):
        return "–"
    if value == 0 or 1e-4 <= abs(value) < 1e5:
        # The exponent is that of the rounded value: 0.09999 gets as many decimals as 0.1.
        exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
        return f"{value:.{max(0, digits - 1 - exponent)}f}".replace("-", "−")
    return f"{value:.{digits - 1}e}".replace("-", "−")


def percent(share: float) -> str:
    """A share in per cent, with a decimal where rounding would hide that something is left."""
    if not np.isfinite(share):
        return "–"
    near_end = share != 0 and share != 1 and (share < 0.1 or share > 0.9)
    text = f"{100 * share:.1f}" if near_end else f"{100 * share:.0f}"
    return f"{'< 0.1' if share > 0 and text == '0.0' else text} %"


def method_name(name: str) -> str:
    return METHODS.get(name, name.replace("_", " "))


def axis_label(ds: xr.Dataset, name: str) -> str:
    """Name and units of a dimension, as written beside an axis."""
    if name not in ds.coords:
        return f"{name} (cell)"
    attrs = ds[name].attrs
    text = plain(attrs.get("long_name") or attrs.get("standard_name") or name).replace("_", " ")
    return in_units(text, pretty_units(attrs.get("units", "")))


def time_labels(ds: xr.Dataset, name: str) -> list[str]:
    """What every frame is called: a date where there is one, else its coordinate, else its number."""
    if name not in ds.coords:
        return [f"frame {i}" for i in range(ds.sizes[name])]
    values = ds[name].values
    if values.dtype.kind == "M":
        minutes = np.datetime_as_string(values.astype("datetime64[m]"))
        daily = all(text.endswith("T00:00") for text in minutes)
        return [str(text)[:10] if daily else str(text).replace("T", " ") for text in minutes]
    if values.dtype.kind in "iuf":
        units = pretty_units(ds[name].attrs.get("units", ""))
        return [f"{name} = {with_units(f'{value:g}', units)}" for value in values]
    return [plain(value) for value in values]
