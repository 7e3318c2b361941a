"""Maps drawn by plotly: single ones, and the panels that a time slider moves through the record.

The panels' frames travel as 16-bit numbers in base 64, v = low + step * code, with the last code for NaN; the
page's script turns them into what each panel shows. Every map has the same traces: 0 outside the domain,
1 the quantity, 2 (where there is one) cells without support.
"""

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from fieldfill.errors import MissingPackage
from fieldfill.report.colours import ALARM, INK, LAND, plotly_scale, single_colour
from fieldfill.report.contents import Field, typical_frame
from fieldfill.report.phrasing import figure_text, in_units

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Heatmap

__all__ = ["coverage_map", "exposure_map", "graph_objects", "movie", "panels", "style"]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
# Room around a map in pixels, for its axes and its colour bar.
MARGIN = {"l": 52, "r": 10, "t": 8, "b": 92}
# The last 16-bit number.
NAN_CODE = np.iinfo(np.uint16).max


def graph_objects() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingPackage("plotly", "report", "the report") from error
    return go


def style(figure: "Figure", height: int) -> "Figure":
    """What all figures share."""
    return figure.update_layout(
        template="none",
        height=height,
        font={"family": FONT, "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="#ffffff",
        hoverlabel={"font": {"family": FONT}},
        dragmode="zoom",
    )


def coverage_map(field: Field) -> "Figure":
    """How often each cell was observed."""
    share = 100 * field.seen
    limits = float(np.nanmin(share)), float(np.nanmax(share))
    limits = limits if limits[0] < limits[1] else (0.0, 100.0)
    return _map(field, _heat(field, "share", limits, "observed (% of frames)", share))


def exposure_map(field: Field) -> "Figure":
    """Exposure: how often training scores a cell outside the context; cells that it never scores stand out."""
    assert field.exposure is not None
    exposure = np.where(field.domain, field.exposure, np.nan)
    top = float(np.nanmax(exposure, initial=0)) or 1.0
    title = f"exposure of {field.label}"
    return _map(field, _heat(field, "exposure", (0, top), title, exposure), _unsupported(field, field.unsupported))


def panels(field: Field) -> dict[str, tuple[str, "Figure"]]:
    """Title and figure of each panel, by what it shows; the page's script adds the values of a frame."""
    text = in_units(field.label, field.units)
    quantity = "anomaly" if field.diverging else "value"
    out = {
        "observed": ("Observed", _map(field, _heat(field, quantity, field.limits, text), gaps=True)),
        "filled": ("Filled", _map(field, _heat(field, quantity, field.limits, text), _unsupported(field))),
    }
    if field.truth is not None:
        out["truth"] = ("Truth", _map(field, _heat(field, quantity, field.limits, text)))
    if field.std is not None:
        filled = field.std[~field.observed]
        top = float(np.nanquantile(filled, 0.995)) if np.isfinite(filled).any() else 1.0
        title = in_units("standard deviation", field.units)
        out["std"] = ("Stated uncertainty", _map(field, _heat(field, "std", (0, top or 1.0), title)))
    if field.truth is not None:
        error = np.abs(field.value - field.truth)[~field.observed]
        top = float(np.nanquantile(error, 0.99)) if np.isfinite(error).any() else 1.0
        title = in_units("error", field.units)
        heat = _heat(field, "anomaly", (-(top or 1.0), top or 1.0), title)
        out["error"] = ("Filled − truth, where missing", _map(field, heat))
    return out


def movie(field: Field) -> dict[str, Any]:
    """All frames shown, packed for the page's script."""
    low, high = field.value, field.value
    if field.truth is not None:
        low, high = np.fmin(low, field.truth), np.fmax(high, field.truth)
    limits = float(np.nanmin(low)), float(np.nanmax(high))
    out: dict[str, Any] = {
        "shape": list(field.value.shape),
        "times": [field.times[frame] for frame in field.frames],
        "start": typical_frame(field),
        "units": field.units,
        "flag": base64.b64encode(field.flag.astype(np.uint8).tobytes()).decode(),
        "value": _packed(field.value, limits),
    }
    if field.truth is not None:
        out["truth"] = _packed(field.truth, limits)
    if field.std is not None:
        out["std"] = _packed(field.std, (0.0, float(np.nanmax(field.std))))
    return out


def _packed(values: np.ndarray, limits: tuple[float, float]) -> dict[str, Any]:
    low, high = limits
    step = (high - low) / (NAN_CODE - 1) or 1.0
    codes = np.nan_to_num((values.astype(float) - low) / step, nan=NAN_CODE).round()
    return {"low": low, "step": step, "codes": base64.b64encode(codes.astype("<u2").tobytes()).decode()}


def _heat(
    field: Field, quantity: str, limits: tuple[float, float], title: str, z: np.ndarray | None = None
) -> "Heatmap":
    return graph_objects().Heatmap(
        x=_coordinates(field.grid.x),
        y=_coordinates(field.grid.y),
        z=None if z is None else z.astype(np.float32),
        zmin=limits[0],
        zmax=limits[1],
        colorscale=plotly_scale(quantity),
        hovertemplate="x %{x:.4~g}, y %{y:.4~g}: <b>%{z:.4~g}</b><extra></extra>",
        colorbar={
            "orientation": "h",
            "thickness": 10,
            "len": 0.96,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "outlinewidth": 0,
            "title": {"text": figure_text(title), "side": "bottom"},
            "nticks": 6,
        },
    )


def _unsupported(field: Field, where: np.ndarray | None = None) -> "Heatmap":
    """Cells that the data could not teach, over everything else."""
    z = None if where is None else np.where(where & field.domain, 1.0, np.nan).astype(np.float32)
    hover = "without support: never scored in training<extra></extra>"
    return _mask(field, ALARM, z).update(hoverinfo=None, hovertemplate=hover)


def _mask(field: Field, colour: str, z: np.ndarray | None) -> "Heatmap":
    return graph_objects().Heatmap(
        x=_coordinates(field.grid.x),
        y=_coordinates(field.grid.y),
        z=z,
        colorscale=single_colour(colour),
        showscale=False,
        hoverinfo="skip",
    )


def _map(field: Field, *traces: "Heatmap", gaps: bool = False, width: int = 385) -> "Figure":
    """A map with the land under it; with ``gaps`` what is left open looks hatched.

    Its height is chosen for a panel of ``width`` pixels, as on a wide screen.
    """
    west, east, south, north = field.grid.extent
    outside = np.where(field.domain, np.nan, 1.0).astype(np.float32)
    figure = graph_objects().Figure([_mask(field, LAND, outside), *traces])
    inner = float(np.clip((width - MARGIN["l"] - MARGIN["r"]) * field.grid.aspect, 130, 430))
    style(figure, round(inner) + MARGIN["t"] + MARGIN["b"]).update_layout(margin=MARGIN)
    axis = {
        "showgrid": False,
        "zeroline": False,
        "constrain": "domain",
        "ticks": "outside",
        "ticklen": 3,
        "nticks": 6,
    }
    frame = {"showline": True, "mirror": True, "linecolor": INK, "linewidth": 1}
    figure.update_xaxes(range=[west, east], **axis, **frame)
    scale = {"scaleanchor": "x", "scaleratio": field.grid.ratio}
    figure.update_yaxes(range=[south, north], **scale, **axis, **frame)
    # Titles of axes would not follow a map that is narrowed to its right shape; notes at its edges do.
    edge = {"xref": "x domain", "yref": "y domain", "showarrow": False}
    figure.add_annotation(text=figure_text(field.grid.x_label), x=0.5, y=0, yshift=-19, yanchor="top", **edge)
    turned = {"textangle": -90, "xshift": -31, "xanchor": "right", "yanchor": "middle"}
    figure.add_annotation(text=figure_text(field.grid.y_label), x=0, y=0.5, **turned, **edge)
    if gaps:
        sizes = {"x": west, "y": north, "sizex": east - west, "sizey": north - south}
        place = {"xref": "x", "yref": "y", "sizing": "stretch", "layer": "below"}
        figure.add_layout_image(source=_hatching(field), **sizes, **place)
    return figure


def _hatching(field: Field, units: int = 6) -> str:
    """A hatched picture of the grid, ``units`` a cell, as an address that holds the picture itself."""
    rows, columns = field.seen.shape
    # On a large grid lines at the distance of cells would run into a plain grey.
    cell = units * max(1.0, np.sqrt(rows * columns) / 40)
    width, height = columns * units, rows * units
    box = f"width='{width}' height='{height}'"
    lines = (
        f"<svg xmlns='http://www.w3.org/2000/svg' {box} viewBox='0 0 {width} {height}'"
        f" preserveAspectRatio='none'><defs><pattern id='h' width='{cell:g}' height='{cell:g}'"
        " patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>"
        f"<path d='M0 0V{cell:g}' stroke='#9aa3ad' stroke-width='{cell / 5:g}'/></pattern></defs>"
        f"<rect {box} fill='#fff'/><rect {box} fill='url(#h)'/></svg>"
    )
    return "data:image/svg+xml;base64," + base64.b64encode(lines.encode()).decode()


def _coordinates(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values]
