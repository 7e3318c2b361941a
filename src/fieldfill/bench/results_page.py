"""The page of results: all tables, the verdicts on the statements, and the cost of the rows."""

from collections import Counter

from fieldfill.bench.benches import BENCHES
from fieldfill.bench.claims import REFERENCES, Finding, Statement, check_claims, ratio_table
from fieldfill.bench.result_tables import WITH_CLASSICAL, Table, make_table, real_table
from fieldfill.bench.summary import COVERAGE, CRPS, Summary
from fieldfill.data.kinds import FileKind

__all__ = ["RESULTS", "ratios", "results_page"]

# Methods that state a standard deviation.
WITH_SPREAD = ("eof", "oi", "missdiff", "ambientdiff", "paper", "fieldfill")

BEGINNING = """# Results

Made by `fieldfill bench page`"""
HEAD = f"""{BEGINNING} from the rows in `benchmarks/results`; the rules and what the names mean are on the page
[Benchmark](benchmarks.md), the methods on [Baselines](baselines.md).
"""
RESULTS = FileKind("a page of 'fieldfill bench page'", (BEGINNING.encode(),))


def results_page(found: Summary) -> str:
    """Markdown; the same rows give the same page."""
    claims = check_claims(found)
    tables = [table for name in BENCHES if (table := make_table(found, name)) is not None]
    if (real := real_table(found)) is not None:
        tables.insert(0, real)
    if found.further:
        tables.append(_further(found))
    parts = [
        *(HEAD, _costs(found), "## Statements", _verdicts(claims).markdown()),
        *("## Ratios", ratios(found).markdown(), "## Uncertainty", _uncertainty(found).markdown()),
        *("## What the network adds", _learning(found).markdown()),
        *("## Tables", *(table.markdown() for table in tables)),
        *("## Statement by statement", _numbers(claims)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _uncertainty(found: Summary) -> Table:
    """Coverage and CRPS of the stated standard deviations in every column."""
    lines = [
        (case, *(_spread(found, bench, case, method) for method in WITH_SPREAD))
        for bench in WITH_CLASSICAL
        for case in found.cases(bench)
    ]
    legend = (
        "Share of the missing values inside the 90 % intervals of `v_std` and a normal law (CRPS over the standard "
        "deviation of the truth), means over variables."
    )
    return Table("What is stated and what is true", legend, ("column", *map(_code, WITH_SPREAD)), tuple(lines))


def _spread(found: Summary, bench: str, case: str, method: str) -> str:
    share, crps = (found.mean(bench, case, method, key) for key in (COVERAGE, CRPS))
    return "–" if share is None or crps is None else f"{share.value:.1%} ({crps})"


def _learning(found: Summary) -> Table:
    """Held-out error of fieldfill before and after its training."""
    columns = [(bench, case, "fieldfill") for bench in WITH_CLASSICAL for case in found.cases(bench)]
    rows = [row for row in found.rows if row.get("learning")]
    lines = []
    for row in (row for key in columns for row in rows if (row["bench"], row["case"], row["method"]) == key):
        first, least = row["learning"]["first_validation"], row["learning"]["best_validation"]
        numbers = (str(row["train_steps"]), _number(first), _number(least), f"{least / first - 1:+.1%}")
        lines.append((row["case"], str(row["seed"]), *numbers))
    legend = (
        "Mean squared error at held-out cells, unitless, of the first estimate and of the best state of the training."
    )
    heads = ("column", "seed", "steps", "first estimate", "trained", "change")
    return Table("Held-out error of fieldfill", legend, heads, tuple(lines))


def _further(found: Summary) -> Table:
    """Rows of seeds that not all methods of a column have."""
    lines = [
        (
            row["bench"],
            row["case"],
            _code(row["method"]),
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
    trainings = ", ".join(f"{count} for {budget}" for budget, count in budgets.most_common())
    hours = sum(row.get("cpu_seconds", 0.0) for row in found.rows) / 3600
    seeds = sorted({row["seed"] for row in found.rows})
    return (
        f"{len(found.rows)} rows, seeds {', '.join(map(str, seeds))}, {hours:.1f} hours of processor time. Rows of "
        f"trained models: {trainings}."
    )


def _budget(budget: dict) -> str:
    if budget["minutes"] is None:
        return f"{budget['steps']} steps"
    return f"{budget['minutes']:g} {'minutes of the whole fit' if budget.get('of') == 'fit' else 'processor minutes'}"


def _verdicts(claims: list[tuple[Statement, Finding]]) -> Table:
    lines = [(claim.text, claim.source, f"**{finding.verdict}**", finding.count) for claim, finding in claims]
    legend = "Who makes the statement, whether it holds, in how many columns. The numbers are at the end of this page."
    return Table("Statements of the paper, and ours", legend, ("", "by", "verdict", "columns"), tuple(lines))


def _numbers(claims: list[tuple[Statement, Finding]]) -> str:
    return "\n".join(
        f"- {claim.text} ({claim.source}): **{finding.verdict}**. {finding.detail}".rstrip()
        for claim, finding in claims
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


def _code(name: str) -> str:
    return f"`{name}`"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
