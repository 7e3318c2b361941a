"""The tables of the page: methods beside each other, variables beside each other, how it was made."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import xarray as xr

from fieldfill.data.record import Record
from fieldfill.report.contents import Field, Story
from fieldfill.report.headline import BOUNDS, OURS
from fieldfill.report.phrasing import method_name, number, percent

__all__ = ["budget_rows", "made_table", "score_table", "variable_table"]

NAMES = {
    "mse": "MSE",
    "rmse": "RMSE",
    "mae": "MAE",
    "bias": "bias",
    "mse_all": "MSE, all cells",
    "crps": "CRPS",
    "coverage50": "in 50 % int.",
    "coverage90": "in 90 % int.",
    "spread_skill": "spread / skill",
    "crps_ensemble": "CRPS, members",
    "spread_skill_ensemble": "spread / skill, members",
    "rank_flatness": "flatness of ranks",
    "n": "cells",
}
SQUARED, PLAIN = ("mse", "mse_all"), ("rmse", "mae", "bias", "crps", "crps_ensemble")
PARTS = {
    "contexts": ("chance of the contexts", "more contexts would lower it"),
    "information": ("what contexts leave out", "larger contexts would lower it"),
    "rest": ("the rest", "what the observations do not determine, and the network's own error"),
}
MEANING = {"climatology": "the mean, no skill", "optimum": "the exact answer, cannot be passed"}


def score_table(scores: Mapping[str, Mapping[str, float]], units: str) -> str:
    """Every method in a row with its error as a bar; ours is marked, and the two that bound all others."""
    found = {key for row in scores.values() for key in row}
    keys = [key for key in NAMES if key in found]
    # A column with nothing but numbers of cells does not compare methods.
    keys = [key for key in keys if key != "n" and any(np.isfinite(row.get(key, np.nan)) for row in scores.values())]
    by = "mse" if "mse" in keys else keys[0]
    longest = max(row.get(by, 0) for row in scores.values())
    best = scores.get("optimum", {}).get(by)
    # A wide table scrolls: what matters most comes first.
    heads = [
        "method",
        "",
        *([f"{NAMES[by]} ÷ optimum"] if best else []),
        *(_head(key, units) for key in keys),
    ]
    rows = []
    for name, row in scores.items():
        kind = "ours" if name == OURS else "bound" if name in BOUNDS else ""
        meaning = f" – {MEANING[name]}" if name in MEANING else ""
        cells = [number(row.get(by, np.nan) / best)] if best else []
        cells += [_cell(key, row.get(key, np.nan)) for key in keys]
        width = 100 * row.get(by, 0) / longest if longest else 0
        data = "".join(f"<td>{cell}</td>" for cell in cells)
        first = f'<td>{escape(method_name(name) + meaning)}</td><td class="bar"><i style="width:{width:.1f}%"></i></td>'
        rows.append(f'<tr class="{kind}">{first}{data}</tr>')
    text = f"<p>Errors on the missing cells only; smaller is better. The bar is the {NAMES[by]}.</p>"
    return text + _table(heads, rows)


def variable_table(scores: xr.Dataset, fields: Sequence[Field]) -> str:
    """All scores of the fill against the truth, a variable in a row."""
    keys = [key for key in NAMES if key in scores and np.isfinite(scores[key]).any()]
    rows = []
    for field in fields:
        row = scores.sel(variable=field.name)
        cells = [escape(f"{field.label}, {field.units}" if field.units else field.label)]
        cells += [_cell(key, float(row[key])) for key in keys]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "<p>This fill against the truth:</p>" + _table(["variable", *(NAMES[key] for key in keys)], rows)


def budget_rows(budget: Mapping[str, Mapping[str, float]], labels: Mapping[str, str]) -> str:
    """Shares of the stated variance, a part in a row and a variable in a column, with a bar for the mean."""
    rows = []
    for key, (name, remedy) in PARTS.items():
        shares = [row.get(key, np.nan) for row in budget.values()]
        width = 100 * float(np.nanmean(shares)) if np.isfinite(shares).any() else 0
        data = "".join(f"<td>{cell}</td>" for cell in [f"{name} – {remedy}", *map(percent, shares)])
        rows.append(f'<tr>{data}<td class="bar"><i style="width:{width:.1f}%"></i></td></tr>')
    return _table(["part of the stated variance", *(labels.get(name, name) for name in budget), ""], rows)


def made_table(story: Story, record: Record, fields: Sequence[Field]) -> str:
    """Data, command, versions, seed: what it takes to make the same again."""
    samples, _, frames, rows, columns = record.shape
    times = fields[0].times
    size = f"{frames} frames of {rows} × {columns} cells, {times[0]} to {times[-1]}"
    entries = {"data": size if samples == 1 else f"{samples} samples of {size}"}
    entries |= {str(key): str(value) for key, value in story.made.items()}
    if story.filled.attrs.get("history"):
        entries["history of the file"] = str(story.filled.attrs["history"])
    body = "".join(
        f'<tr><th>{escape(key)}</th><td class="{"command" * (key == "command")}">{escape(text)}</td></tr>'
        for key, text in entries.items()
    )
    return f'<table class="made"><tbody>{body}</tbody></table>'


def _head(key: str, units: str) -> str:
    if units and key in SQUARED:
        return f"{NAMES[key]} ({units if units.isalpha() or units.startswith('°') else f'({units})'}²)"
    return f"{NAMES[key]} ({units})" if units and key in PLAIN else NAMES[key]


def _cell(key: str, value: float) -> str:
    if key.startswith("coverage"):
        return percent(value)
    return f"{value:,.0f}" if key == "n" else number(value)


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
