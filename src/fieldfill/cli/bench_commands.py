"""``fieldfill bench``: parses, calls and prints."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldfill.cli.options import Json, print_result
from fieldfill.errors import InputError

if TYPE_CHECKING:
    from fieldfill.bench.cases import Scale
    from fieldfill.bench.runner import Runner

__all__ = ["app"]

app = typer.Typer(
    help="The benchmark: every table of the paper and ours, row by row.", no_args_is_help=True, rich_markup_mode=None
)

Names = Annotated[list[str] | None, typer.Argument(help="Benches; all of them by default (see 'bench list').")]
ScaleName = Annotated[
    str,
    typer.Option(
        "--scale", help="Size of the problems: smoke (seconds), cpu (the committed rows) or paper (meant for a GPU)."
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Folder of the rows; default: benchmarks/results, or benchmarks/results-SCALE for other scales than cpu.",
    ),
]
Cache = Annotated[
    Path | None, typer.Option("--cache", help="Folder for data and models; default: .bench_cache beside the rows.")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", help="Processor minutes of each training; default: those of the scale.")
]
Threads = Annotated[int, typer.Option("--threads", help="Threads of each training.")]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _scale(name: str) -> "Scale":
    from fieldfill.bench.cases import SCALES

    if name not in SCALES:
        raise InputError(f"unknown scale '{name}'; choose one of {', '.join(SCALES)}")
    return SCALES[name]


def _folder(results: Path | None, scale: str) -> Path:
    return results or Path("benchmarks") / ("results" if scale == "cpu" else f"results-{scale}")


def _runner(scale: str, results: Path | None, cache: Path | None, minutes: float | None, threads: int) -> "Runner":
    from fieldfill.bench.runner import Runner, default_cache

    if threads < 1 or (minutes is not None and not minutes > 0):
        raise InputError(
            f"--threads {threads}, --minutes {minutes} cannot be used; give one thread or more and a time above 0"
        )
    folder = _folder(results, scale)
    return Runner(folder, _scale(scale), cache or default_cache(folder), minutes, threads, _note)


@app.command("list", epilog="Example: fieldfill bench list")
def list_benches(scale: ScaleName = "cpu", results: Results = None, as_json: Json = False) -> None:
    """List every bench, and how many of its rows have been measured."""
    from fieldfill.bench.benches import BENCHES
    from fieldfill.bench.rows import MEASURED, read

    rows, size = read(_folder(results, scale)), _scale(scale)
    found: dict[str, Any] = {}
    for name, bench in BENCHES.items():
        jobs = bench.jobs(size)
        done = {(row["case"], row["method"]) for row in rows if row["bench"] == name and row["status"] == MEASURED}
        found[name] = {
            "title": bench.title,
            "cases": list(dict.fromkeys(job.case for job in jobs)),
            "methods": list(dict.fromkeys(job.method for job in jobs)),
            "rows": len(jobs),
            "measured": len(done),
        }
    lines = [
        f"{name:<10} {entry['measured']:>3} of {entry['rows']:>3}  {entry['title']}" for name, entry in found.items()
    ]
    print_result(found, "\n".join(lines), as_json)


@app.command(epilog="Example: fieldfill bench run block --case advection-block8of9 --seeds 0,1 --minutes 12")
def run(
    names: Names = None,
    scale: ScaleName = "cpu",
    case: Annotated[str | None, typer.Option("--case", help="Measure only this case.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Measure only this method.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas, such as 0,1.")] = "0",
    minutes: Minutes = None,
    threads: Threads = 2,
    results: Results = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Measure the rows that are missing. An interrupted run goes on with the next missing row."""
    from fieldfill.bench.benches import BENCHES, jobs_of

    try:
        numbers = [int(seed) for seed in seeds.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds '{seeds}': give whole numbers separated by commas, such as 0,1") from error
    runner = _runner(scale, results, cache, minutes, threads)
    counts = runner.run(jobs_of(names or list(BENCHES), runner.scale, case, method), numbers)
    text = ", ".join(f"{count} rows {kind}" for kind, count in counts.items())
    print_result({**counts, "results": str(runner.results)}, f"{text}; in {runner.results}", as_json)


@app.command(epilog="Example: fieldfill bench table block --html tables.html")
def table(
    names: Names = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the tables to this HTML file.")] = None,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Print the rows as Markdown tables, with the paper's ratios beside ours."""
    from fieldfill.bench.benches import BENCHES
    from fieldfill.bench.result_tables import TABLES, make_table, real_table, to_html
    from fieldfill.bench.rows import read
    from fieldfill.bench.summary import Summary
    from fieldfill.data.output_paths import check_output, replacing

    unknown = [name for name in names or [] if name not in BENCHES]
    if unknown:
        raise InputError(f"unknown bench '{unknown[0]}'; choose among {', '.join(BENCHES)}")
    found = Summary(read(_folder(results, "cpu")))
    tables = {name: made for name in names or BENCHES if (made := make_table(found, name)) is not None}
    if "real" in (names or BENCHES) and (made := real_table(found)) is not None:
        tables["real records"] = made
    if not tables:
        raise InputError(f"no rows in {_folder(results, 'cpu')}; make some with 'fieldfill bench run'")
    if html is not None:
        with replacing(check_output(html, TABLES, overwrite=True), TABLES) as partial:
            partial.write_text(to_html(list(tables.values())))
    content = {name: {"heads": made.heads, "lines": made.lines} for name, made in tables.items()}
    print_result(content, "\n\n".join(made.markdown() for made in tables.values()), as_json)


@app.command(epilog="Example: fieldfill bench claims")
def claims(results: Results = None, as_json: Json = False) -> None:
    """Check each statement of the paper, and ours, against the rows."""
    from fieldfill.bench.claims import check_claims, ratio_table
    from fieldfill.bench.results_page import ratios
    from fieldfill.bench.rows import read
    from fieldfill.bench.summary import Summary

    found = Summary(read(_folder(results, "cpu")))
    checked = [
        {"source": claim.source, "claim": claim.text, "verdict": finding.verdict, "detail": finding.detail}
        for claim, finding in check_claims(found)
    ]
    lines = [
        f"{entry['verdict']:<14} {entry['source']}: {entry['claim']}\n{'':<15}{entry['detail']}" for entry in checked
    ]
    text = "\n".join([*lines, "", ratios(found).markdown()])
    print_result({"claims": checked, "ratios": ratio_table(found)}, text, as_json)


@app.command(epilog="Example: fieldfill bench page -o docs/results.md")
def page(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Markdown file to write; an existing page of results is replaced.")
    ],
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Write all tables and statements to one Markdown page."""
    from fieldfill.bench.results_page import RESULTS, results_page
    from fieldfill.bench.rows import read
    from fieldfill.bench.summary import Summary
    from fieldfill.data.output_paths import check_output, replacing

    check_output(output, RESULTS, overwrite=True)
    with replacing(output, RESULTS) as partial:
        partial.write_text(results_page(Summary(read(_folder(results, "cpu")))))
    print_result({"page": str(output)}, f"written to {output}", as_json)


@app.command(epilog="Example: fieldfill bench figures -o docs/images/bench")
def figures(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write the pictures to.")],
    scale: ScaleName = "cpu",
    minutes: Minutes = None,
    threads: Threads = 2,
    results: Results = None,
    cache: Cache = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace pictures of the same names.")] = False,
    as_json: Json = False,
) -> None:
    """Draw the paper's figures from the models that 'bench run' has trained."""
    from fieldfill.bench.figures import draw_figures

    drawn, missing = draw_figures(_runner(scale, results, cache, minutes, threads), output, overwrite=overwrite)
    lines = [*(f"written to {path}" for path in drawn), *(f"left out: {reason}" for reason in missing)]
    print_result({"figures": [str(path) for path in drawn], "missing": missing}, "\n".join(lines), as_json)
