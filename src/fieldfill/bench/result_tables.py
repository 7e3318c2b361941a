"""Tables of the rows, as Markdown and as HTML: methods down, cases across.

An entry is the mean squared error on missing cells as a share of the variance of the truth there (mean ± standard
deviation over seeds), then in brackets its ratio to a reference row of the column and, after a semicolon, the same
ratio in the paper. The reference is the best classical row, in ablations the best row of the column.
"""

import html
import re
from dataclasses import dataclass

from fieldfill.bench.benches import BENCHES
from fieldfill.bench.cases import CASES
from fieldfill.bench.published import TIME_RATIO
from fieldfill.bench.rows import Row
from fieldfill.bench.speed import slope
from fieldfill.bench.summary import COLUMNS, Summary
from fieldfill.data.kinds import FileKind

__all__ = ["TABLES", "WITH_CLASSICAL", "Table", "growth", "make_table", "real_table", "to_html"]

WITH_CLASSICAL = (*COLUMNS, "real")
HEAD = "<!doctype html><html lang=en><meta charset=utf-8><title>fieldfill benchmark</title>"
TABLES = FileKind("a page of 'fieldfill bench table'", (HEAD.encode(),))
# Root mean squared errors that a variable of a real record can have, and what they are of.
PARTS = {"rmse": "", "rmse_above_zero": ", above 0", "rmse_zero": ", 0"}


@dataclass(frozen=True)
class Table:
    """Text of a table; the first head is that of the row names."""

    title: str
    legend: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        def line(cells: tuple[str, ...]) -> str:
            return "| " + " | ".join(cells) + " |"

        rule = "|---" + "|---:" * (len(self.heads) - 1) + "|"
        return "\n".join([f"**{self.title}**", "", line(self.heads), rule, *map(line, self.lines), "", self.legend])

    def html(self) -> str:
        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{_bold(html.escape(cell))}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(cells, "td") for cells in self.lines)
        return (
            f"<h2>{html.escape(self.title)}</h2><table><thead>{line(self.heads, 'th')}</thead><tbody>{body}</tbody>"
            f"</table><p>{html.escape(self.legend)}</p>"
        )


def _bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)


def make_table(found: Summary, bench: str) -> Table | None:
    """The table of one bench, for `real` that of the ERA5 month (see `real_table`); None without rows."""
    cases = [case for case in found.cases(bench) if case not in CASES or not CASES[case].real]
    if not cases:
        return None
    return _speed_table(found) if bench == "speed" else _error_table(found, bench, cases)


def real_table(found: Summary) -> Table | None:
    """Root mean squared errors of the real records in their units; None without rows."""
    cases = [case for case in found.cases("real") if CASES[case].real]
    methods = [name for name in found.methods("real") if any(found.mean("real", case, name) for case in cases)]
    lines = [line for case in cases for line in _real_lines(found, case, methods)]
    if not lines:
        return None
    legend = (
        "Root mean squared error at hidden cells in the units of the data, mean over seeds; the least of each line is "
        "bold. Covered: share of the hidden values inside the 50 % and 90 % intervals of `fieldfill`."
    )
    heads = ("", *(f"`{name}`" for name in methods), "covered 50 / 90 %")
    return Table("Real records", legend, heads, tuple(lines))


def _real_lines(found: Summary, case: str, methods: list[str]) -> list[tuple[str, ...]]:
    """One line for each variable, and for its zeros and its values above zero where these are told apart."""
    rows = [row for row in found.rows if (row["bench"], row["case"]) == ("real", case)]
    lines = []
    for variable, entry in rows[0]["metrics"]["variables"].items():
        units = f" ({entry['units']})" if entry.get("units") else ""
        for key, part in PARTS.items():
            errors = {name: _mean_of(rows, name, variable, key) for name in methods}
            least = min((error for error in errors.values() if error is not None), default=None)
            if least is None:
                continue
            cells = (_rmse(errors[name], least) for name in methods)
            shares = [_mean_of(rows, "fieldfill", variable, level) for level in ("coverage50", "coverage90")]
            covered = " / ".join(f"{share:.0%}" for share in shares if share is not None) if key == "rmse" else ""
            lines.append((f"{case}: {variable}{part}{units}", *cells, covered or "–"))
    return lines


def _mean_of(rows: list[Row], method: str, variable: str, key: str) -> float | None:
    """Mean over seeds of a score of one variable."""
    values = [row["metrics"]["variables"][variable].get(key) for row in rows if row["method"] == method]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rmse(error: float | None, least: float) -> str:
    if error is None:
        return "–"
    return f"**{error:.3g}**" if error == least else f"{error:.3g}"


def _error_table(found: Summary, bench: str, cases: list[str]) -> Table:
    methods = [name for name in found.methods(bench) if any(found.mean(bench, case, name) for case in cases)]
    classical = bench in WITH_CLASSICAL
    lines = [(f"`{name}`", *(_entry(found, bench, case, name, classical) for case in cases)) for name in methods]
    lines.append(("variance of the truth", *(_variance(found, bench, case) for case in cases)))
    lines.append(("processor minutes of a training", *(_minutes(found, bench, case) for case in cases)))
    reference = "the best classical row" if classical else "the best row of the column"
    legend = (
        f"MSE on missing cells / variance of the truth there (ratio to {reference}; the same ratio in the paper, whose "
        "errors count all cells)."
    )
    heads = ["", *cases]
    if bench == "ensemble":
        heads.append("time / K = 1 (paper)")
        lines = [(*line, _time_ratio(found, cases, name)) for line, name in zip(lines, [*methods, "", ""])]
    return Table(BENCHES[bench].title, legend, tuple(heads), tuple(lines))


def _entry(found: Summary, bench: str, case: str, method: str, classical: bool) -> str:
    mean = found.mean(bench, case, method)
    if mean is None:
        return "–"
    if classical:
        ratio, published = found.ratio(bench, case, method), found.paper_ratio(bench, case, method)
    else:
        ratio, published = found.ratio(bench, case, method, found.methods(bench)), _paper_ratio(found, case, method)
    ratios = [f"{value:.2f}" if value > 0.1 else f"{value:.1g}" for value in (ratio, published) if value is not None]
    return f"{mean} ({'; '.join(ratios)})" if ratios else str(mean)


def _paper_ratio(found: Summary, case: str, method: str) -> float | None:
    """An ablation's value in the paper over the least of its column."""
    bench_rows = [row for row in found.rows if row["case"] == case and row["paper"]["value"] is not None]
    own = [row for row in bench_rows if row["method"] == method and row["bench"] not in WITH_CLASSICAL]
    if not own:
        return None
    column = [row["paper"]["value"] for row in bench_rows if row["bench"] == own[0]["bench"]]
    return own[0]["paper"]["value"] / min(column)


def _variance(found: Summary, bench: str, case: str) -> str:
    values = [found.mean(bench, case, name, "variance_missing") for name in found.methods(bench)]
    return next((f"{value.value:.4g}" for value in values if value is not None), "–")


def _minutes(found: Summary, bench: str, case: str) -> str:
    """The budget of most trainings of a column, then those that had another one."""
    methods: dict[float, list[str]] = {}
    for row in found.rows:
        if (row["bench"], row["case"]) == (bench, case) and row.get("train_steps") and row["budget"]["minutes"]:
            methods.setdefault(row["budget"]["minutes"], []).append(f"`{row['method']}`")
    budgets = sorted(methods.items(), key=lambda item: -len(item[1]))
    rest = [f"{', '.join(sorted(set(names)))}: {minutes:g}" for minutes, names in budgets[1:]]
    return "; ".join([f"{budgets[0][0]:g}", *rest]) if budgets else "–"


def _time_ratio(found: Summary, cases: list[str], method: str) -> str:
    pairs = [
        (found.mean("ensemble", case, method, "fill_seconds"), found.mean("ensemble", case, "paper-K1", "fill_seconds"))
        for case in cases
    ]
    ratios = [one.value / base.value for one, base in pairs if one is not None and base is not None and base.value]
    if not ratios:
        return "–"
    published = TIME_RATIO.get(method.removeprefix("paper-K"))
    return f"{sum(ratios) / len(ratios):.2f} ({published})"


def _speed_table(found: Summary) -> Table:
    """Milliseconds of a training step per sample by size; error of the trained rows after the same time."""
    sizes = [case for case in found.cases("speed") if case[0].isdigit()]
    trained = [case for case in found.cases("speed") if case not in sizes]
    lines = []
    for name in found.methods("speed"):
        steps = [found.mean("speed", case, name, "train_seconds_per_sample") for case in sizes]
        errors = [found.mean("speed", case, name) for case in trained]
        times = ["–" if step is None else f"{1000 * step.value:.1f}" for step in steps]
        lines.append(
            (
                f"`{name}`",
                *times,
                _slope_text(found, name),
                *("–" if error is None else str(error) for error in errors),
            )
        )
    heads = ("", *(f"{size}: ms" for size in sizes), "slope", *(f"{case}: error" for case in trained))
    legend = (
        "Milliseconds of one training step per sample by frames × rows × columns; slope of their logarithm against "
        "that of the number of cells, at the smallest number of frames; error as a share of the variance after the "
        "same training time."
    )
    return Table(BENCHES["speed"].title, legend, heads, tuple(lines))


def _slope_text(found: Summary, method: str) -> str:
    value = growth(found, method)
    return "–" if value is None else f"{value:.2f}"


def growth(found: Summary, method: str, key: str = "train_seconds_per_sample") -> float | None:
    """Exponent of the cost per sample in the number of cells, over the grids with the fewest frames."""
    sizes = [case for case in found.cases("speed") if case[0].isdigit()]
    points = []
    for case in sizes:
        frames, rows, columns = map(int, case.split("x"))
        mean = found.mean("speed", case, method, key)
        if mean is not None:
            points.append((frames, rows * columns, mean.value))
    least = min((point[0] for point in points), default=0)
    points = [point for point in points if point[0] == least]
    return None if len(points) < 2 else slope([cells for _, cells, _ in points], [cost for *_, cost in points])


def to_html(tables: list[Table]) -> str:
    """One page with all tables and no external resources."""
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:110rem}table{border-collapse:collapse}"
        "td,th{padding:.2rem .7rem;border-bottom:1px solid #ccc;text-align:right;white-space:nowrap}"
        "td:first-child{text-align:left}"
    )
    body = "".join(table.html() for table in tables)
    return f"{HEAD}<style>{style}</style><body><h1>fieldfill benchmark</h1>{body}</body></html>\n"
