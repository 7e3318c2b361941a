"""The few numbers that matter, in one plain paragraph and in tiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
import xarray as xr

from fieldfill.data.companions import companions
from fieldfill.data.flags import FILLED, FLAGS
from fieldfill.report.contents import Field, Story
from fieldfill.report.phrasing import method_name, number, percent, with_units

__all__ = ["BOUNDS", "OURS", "Facts", "best_alternative", "headline", "tiles"]

OURS, OPTIMUM = "fieldfill", "optimum"
BOUNDS = ("climatology", OPTIMUM)


@dataclass(frozen=True)
class Facts:
    """Shares, errors and ratios; absent ones are None.

    Attributes
    ----------
    missing, unsupported
        Share of the domain's cells that were missing; share of these without support.
    cells
        Cells of the domain, all frames and variables.
    errors, covered
        For each variable, RMSE with units, and share of the truth inside the 90 % intervals.
    against
        The best alternative and our MSE over its MSE.
    to_optimum
        Our MSE over the smallest possible one.
    """

    missing: float
    unsupported: float
    cells: int
    errors: dict[str, str]
    covered: dict[str, float]
    against: tuple[str, float] | None
    to_optimum: float | None

    @classmethod
    def of(cls, story: Story, fields: list[Field], filled: xr.Dataset, scores: xr.Dataset | None) -> "Facts":
        inside = missing = unsupported = 0
        for field in fields:
            flag = filled[companions(filled, field.name)["flag"]].values
            inside += int((flag != FLAGS["outside_domain"]).sum())
            missing += int(np.isin(flag, FILLED).sum())
            unsupported += int((flag == FLAGS["filled_without_support"]).sum())
        errors, covered = {}, {}
        rows = {} if scores is None or not missing else {f.name: scores.sel(variable=f.name) for f in fields}
        for field in fields:
            if (row := rows.get(field.name)) is None:
                continue
            errors[field.label] = with_units(number(float(row.rmse)), field.units)
            if np.isfinite(row.coverage90):
                covered[field.label] = float(row.coverage90)
        mse = _mse(story.scores)
        rival = best_alternative(story.scores)
        return cls(
            missing=missing / max(inside, 1),
            unsupported=unsupported / max(missing, 1),
            cells=inside,
            errors=errors,
            covered=covered,
            against=(rival, mse[OURS] / mse[rival]) if rival and OURS in mse and mse[rival] else None,
            to_optimum=mse[OURS] / mse[OPTIMUM] if mse.get(OPTIMUM) and OURS in mse else None,
        )


def _mse(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """MSE of every method for which it is known, from the RMSE if need be."""
    out = {name: row.get("mse", row.get("rmse", np.nan) ** 2) for name, row in scores.items()}
    return {name: value for name, value in out.items() if np.isfinite(value)}


def best_alternative(scores: Mapping[str, Mapping[str, float]]) -> str | None:
    """The method with the smallest error apart from ours and the optimum."""
    others = {name: mse for name, mse in _mse(scores).items() if name not in (OURS, OPTIMUM)}
    return min(others, key=lambda name: others[name]) if others else None


def headline(facts: Facts) -> str:
    """The page's first paragraph."""
    said = [f"{percent(facts.missing)} of the {facts.cells:,} values were missing and have been filled"]
    if facts.errors:
        listed = ", ".join(
            escape(error if len(facts.errors) == 1 else f"{name} {error}") for name, error in facts.errors.items()
        )
        said[0] += f", with a root-mean-square error of <b>{listed}</b>"
    if facts.against:
        name, ratio = facts.against
        text = f"The mean squared error is <b>{number(ratio, 2)} ×</b> that of the best alternative "
        text += f"({escape(method_name(name))})"
        if facts.to_optimum:
            text += f" and <b>{number(facts.to_optimum)} ×</b> the smallest that any method can reach"
        said.append(text)
    elif facts.to_optimum:
        said.append(f"The mean squared error is <b>{number(facts.to_optimum)} ×</b> the smallest possible one")
    if facts.covered:
        listed = ", ".join(
            percent(share) if len(facts.covered) == 1 else f"{percent(share)} ({escape(name)})"
            for name, share in facts.covered.items()
        )
        said.append(f"The stated 90 % intervals hold <b>{listed}</b> of the true values")
    if facts.unsupported:
        said.append(f"{percent(facts.unsupported)} of the filled cells are flagged: the data could not teach them")
    if not facts.errors:
        said.append("There is no truth to score against; the stated uncertainty comes from held-out observations")
    return ". ".join(said) + "."


def tiles(facts: Facts) -> str:
    shown = [(percent(facts.missing), "of the values were missing")]
    if len(facts.errors) == 1:
        shown.append((next(iter(facts.errors.values())), "error (RMSE) where missing"))
    if facts.against:
        shown.append((f"{number(facts.against[1], 2)} ×", f"the MSE of {method_name(facts.against[0])}"))
    if facts.to_optimum:
        shown.append((f"{number(facts.to_optimum)} ×", "the MSE of the exact optimum"))
    if facts.covered:
        worst = max(facts.covered.values(), key=lambda share: abs(share - 0.9))
        which = "" if len(facts.covered) == 1 else ", worst variable"
        shown.append((percent(worst), f"inside the 90 % intervals{which}"))
    if facts.unsupported:
        shown.append((percent(facts.unsupported), "of the filled cells without support"))
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(text)}</span></div>' for value, text in shown
    )
