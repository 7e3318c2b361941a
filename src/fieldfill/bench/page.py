"""The page of results: every table, what the statements of the paper come to, and what the rows cost."""

from collections import Counter

from fieldfill.bench.benches import BENCHES
from fieldfill.bench.claims import REFERENCES, check_claims, ratio_table
from fieldfill.bench.summary import Summary
from fieldfill.bench.tables import Table, make_table

__all__ = ["ratios", "results_page"]

HEAD = """# Results

Made by `fieldfill bench page` from the rows in `benchmarks/results`; the rules and what the names mean are on the page
[Benchmark](benchmarks.md), the methods on [Baselines](baselines.md).
"""


def results_page(found: Summary) -> str:
    """Markdown; the same rows give the same page."""
    tables = [table for name in BENCHES if (table := make_table(found, name)) is not None]
    parts = [HEAD, _costs(found), "## Statements", _claims(found), "## Ratios", ratios(found).markdown(), "## Tables"]
    if found.further:
        tables.append(_further(found))
    return "\n\n".join(part.strip() for part in [*parts, *(table.markdown() for table in tables)]) + "\n"


def _further(found: Summary) -> Table:
    """Rows of seeds that not all methods of a column have."""
    lines = [
        (
            row["bench"],
            row["case"],
            f"`{row['method']}`",
            str(row["seed"]),
            _number(row["metrics"]["share_of_variance"]),
        )
        for row in found.further
        if "share_of_variance" in row["metrics"]
    ]
    legend = "MSE on missing cells / variance of the truth there. Not among the columns above."
    return Table("Further seeds", legend, ("bench", "case", "method", "seed", "error"), tuple(lines))


def _costs(found: Summary) -> str:
    """Budgets and processor time of the rows."""
    trained = [row for row in found.rows if row.get("train_steps")]
    budgets = Counter(_budget(row["budget"]) for row in trained)
    told = ", ".join(f"{count} for {budget}" for budget, count in budgets.most_common())
    hours = sum(row.get("cpu_seconds", 0.0) for row in found.rows) / 3600
    seeds = sorted({row["seed"] for row in found.rows})
    return (
        f"{len(found.rows)} rows, seeds {', '.join(map(str, seeds))}, {hours:.1f} hours of processor time. Rows of "
        f"trained models: {told}."
    )


def _budget(budget: dict) -> str:
    return f"{budget['steps']} steps" if budget["minutes"] is None else f"{budget['minutes']:g} processor minutes"


def _claims(found: Summary) -> str:
    return "\n".join(
        f"- **{finding.verdict}** ({claim.source}): {claim.statement}. {finding.detail}".rstrip()
        for claim, finding in check_claims(found)
    )


def ratios(found: Summary) -> Table:
    """The ratios of fieldfill to other methods in every column."""
    lines = [
        (str(entry["case"]), *(_number(entry[key]) for name in REFERENCES for key in (name, f"paper_{name}")))
        for entry in ratio_table(found)
    ]
    others = (
        "best classical",
        "best of the paper's classical",
        "MissDiff",
        "its classical, as printed",
        "MissDiff, as printed",
    )
    heads = ("column", *(head for name in others for head in (name, "paper")))
    legend = (
        "Beside each ratio that of the paper's own method. Errors are those on missing cells. As printed, they are in "
        "the paper's quantities: shallow water, the squared residual of its equations; advection, the error of the "
        "first frame carried forward."
    )
    return Table("fieldfill over other methods", legend, heads, tuple(lines))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
