"""Curves drawn by plotly: coverage over time, error against distance, promised and kept intervals, training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from fieldfill.metrics.cells import LEVELS
from fieldfill.report.colours import OURS, PALE, QUIET, SECOND
from fieldfill.report.contents import Field
from fieldfill.report.maps import graph_objects, style
from fieldfill.report.phrasing import figure_text, in_units

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["coverage_chart", "distance_chart", "honesty_chart", "reliability_chart", "training_chart"]

# Height of a chart in pixels.
HEIGHT = 330
# Room around a chart in pixels, for its axes and its legend.
MARGIN = {"l": 62, "r": 16, "t": 40, "b": 56}
# Look of an axis.
GRID = {"gridcolor": "#e6e9ed", "zeroline": False}
COLOURS = {"coverage90": OURS, "coverage50": SECOND}


def coverage_chart(field: Field, height: int = HEIGHT, points: int = 2000) -> "Figure":
    """Share of the domain observed in every frame, and on average; a curve of at most so many points."""
    go = graph_objects()
    group = -(-len(field.coverage) // points)
    starts = np.arange(0, len(field.coverage), group)
    share = np.add.reduceat(field.coverage, starts) / np.diff([*starts, len(field.coverage)])
    figure = go.Figure(
        go.Scatter(
            x=[figure_text(field.times[start]) for start in starts],
            y=np.round(100 * share, 2).tolist(),
            mode="lines",
            line={"color": OURS, "width": 1.5, "shape": "hvh"},
            fill="tozeroy",
            fillcolor="rgba(15,76,117,0.18)",
            hovertemplate="%{x}: %{y:.0f} %<extra></extra>",
        )
    )
    figure.add_hline(100 * field.coverage.mean(), line={"color": SECOND, "dash": "dash", "width": 1.5})
    style(figure, height).update_layout(margin={**MARGIN, "t": 12}, showlegend=False)
    figure.update_xaxes(nticks=8, **GRID)
    return figure.update_yaxes(range=[0, 100], title="observed (% of the domain)", **GRID)


def distance_chart(binned: xr.Dataset, units: str) -> "Figure":
    """Root-mean-square error and stated standard deviation by distance to the nearest observation."""
    go = graph_objects()
    names, units = _bins(binned), figure_text(units)
    cells = binned.n.values / binned.n.values.sum()
    bars = {"marker": {"color": PALE}, "hovertemplate": "%{y:.1f} % of the missing cells<extra></extra>"}
    figure = go.Figure(go.Bar(x=names, y=np.round(100 * cells, 2).tolist(), yaxis="y2", name="missing cells", **bars))
    stated = binned.rmse * binned.spread_skill
    curves = {
        "error (RMSE)": (binned.rmse, OURS, "solid", "circle"),
        "stated": (stated, SECOND, "dash", "diamond"),
    }
    for label, (values, colour, dash, symbol) in curves.items():
        if np.isfinite(values).any():
            figure.add_scatter(
                x=names,
                y=[float(f"{value:.4g}") if np.isfinite(value) else None for value in values.values],
                name="stated standard deviation" if label == "stated" else label,
                mode="lines+markers",
                line={"color": colour, "width": 2.5, "dash": dash},
                marker={"size": 8, "symbol": symbol},
                hovertemplate=f"%{{y:.3~g}} {units}<extra>{label}</extra>",
            )
    style(figure, HEIGHT).update_layout(margin={**MARGIN, "r": 58}, legend=_above(), bargap=0.35)
    figure.update_layout(
        yaxis={
            "rangemode": "tozero",
            "title": in_units("error", units),
            **GRID,
            "overlaying": "y2",
            "tickmode": "auto",
        },
        yaxis2={"side": "right", "title": "% of the missing cells", "showgrid": False, "rangemode": "tozero"},
    )
    return figure.update_xaxes(title="distance to the nearest observation (cells)", type="category")


def honesty_chart(binned: xr.Dataset) -> "Figure":
    """Share of the truth inside the stated 50 and 90 % intervals, by distance to the nearest observation."""
    figure = graph_objects().Figure()
    names = _bins(binned)
    for key, colour in COLOURS.items():
        level = round(100 * LEVELS[key])
        figure.add_scatter(
            x=names,
            y=[round(100 * share, 1) if np.isfinite(share) else None for share in binned[key].values.tolist()],
            name=f"{level} % intervals",
            mode="lines+markers",
            line={"color": colour, "width": 2.5},
            marker={"size": 8},
            hovertemplate=f"%{{y:.0f}} % inside<extra>stated {level} %</extra>",
        )
        figure.add_hline(level, line={"color": colour, "dash": "dot", "width": 1.5})
    style(figure, HEIGHT).update_layout(margin=MARGIN, legend=_above())
    figure.update_yaxes(range=[0, 102], title="truth inside the interval (%)", **GRID)
    return figure.update_xaxes(title="distance to the nearest observation (cells)", type="category", **GRID)


def reliability_chart(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> "Figure":
    """Share of values inside central intervals against the share that these promise.

    ``curves`` holds levels and shares by name; the first names are drawn boldest. The dotted diagonal is honesty.
    """
    figure = graph_objects().Figure()
    line = {"color": QUIET, "dash": "dot", "width": 1.5}
    figure.add_scatter(x=[0, 100], y=[0, 100], mode="lines", line=line, name="as promised", hoverinfo="skip")
    looks = [(OURS, "solid", "circle"), (SECOND, "dash", "diamond"), *[(QUIET, "solid", "square")] * len(curves)]
    for (curve, (levels, shares)), (colour, dash, symbol) in zip(curves.items(), looks):
        name = figure_text(curve)
        figure.add_scatter(
            x=[round(100 * level, 2) for level in levels],
            y=[round(100 * share, 2) if np.isfinite(share) else None for share in shares],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            marker={"size": 7, "symbol": symbol},
            hovertemplate="%{x:.0f} % promised, %{y:.1f} % inside<extra>" + name + "</extra>",
        )
    style(figure, HEIGHT + 60).update_layout(margin={**MARGIN, "t": 62}, legend=_above())
    figure.update_xaxes(range=[0, 101], title="promised (%)", **GRID)
    return figure.update_yaxes(range=[0, 102], title="inside the interval (%)", **GRID)


def training_chart(history: Sequence[Mapping[str, float]]) -> "Figure":
    """Training loss and error on held-out observations by training step; the best one is marked."""
    go = graph_objects()
    figure = go.Figure()
    steps = [entry["step"] for entry in history]
    minutes = [entry.get("seconds", np.nan) / 60 for entry in history]
    curves = {"loss": ("training loss", QUIET), "validation": ("held-out cells", OURS)}
    for key, (label, colour) in curves.items():
        values = [entry.get(key, np.nan) for entry in history]
        figure.add_scatter(
            x=steps,
            y=[float(f"{value:.5g}") if np.isfinite(value) else None for value in values],
            name=label,
            mode="lines+markers",
            line={"color": colour, "width": 2.5},
            marker={"size": 5},
            customdata=minutes,
            hovertemplate="step %{x}, %{customdata:.1f} min: %{y:.4g}<extra>" + label + "</extra>",
        )
    held = np.array([entry.get("validation", np.nan) for entry in history])
    if np.isfinite(held).any():
        best = int(np.nanargmin(held))
        marker = {"size": 13, "symbol": "star", "color": SECOND}
        name = f"best: {held[best]:.3g} at step {steps[best]}"
        figure.add_scatter(x=[steps[best]], y=[float(held[best])], mode="markers", name=name, marker=marker)
    style(figure, HEIGHT).update_layout(margin=MARGIN, legend=_above())
    figure.update_xaxes(title="training step", rangemode="tozero", **GRID)
    ticks = [digit * 10.0**power for power in range(-8, 5) for digit in (1, 2, 3, 5)]
    places = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return figure.update_yaxes(title="mean squared error (normalised)", type="log", **places, **GRID)


def _above() -> dict[str, Any]:
    """A legend above the chart."""
    return {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def _bins(binned: xr.Dataset) -> list[str]:
    ends = zip(binned.distance.values, binned.distance_high.values)
    return [f"> {low:g}" if np.isinf(high) else f"{low:g}–{high:g}" for low, high in ends]
