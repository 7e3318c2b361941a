"""The command line: all commands in one table, and the entry point.

Exit codes: 0 = done, 1 = `check` found cells that cannot be learnt, 2 = the input is wrong (one line on stderr).
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from fieldfill.cli.bench_commands import app as bench
from fieldfill.cli.data_commands import demo, mask, simulate
from fieldfill.cli.model_commands import check, fill, fit
from fieldfill.cli.options import Json, print_result
from fieldfill.cli.progress import noting_warnings
from fieldfill.cli.result_commands import report, score
from fieldfill.errors import InputError
from fieldfill.execution.memory import keep_freed_memory

__all__ = ["app", "main"]

app = typer.Typer(
    help="Fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("fieldfill"))
        raise typer.Exit()


@app.callback()
def main_options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself."""


def versions(as_json: Json = False) -> None:
    """Print the versions of fieldfill and what it uses, for bug reports."""
    from fieldfill.execution.environment import versions as found

    table = found()
    print_result(table, "\n".join(f"{name:<22} {value}" for name, value in table.items()), as_json)


# Commands in the order of the help text, each with an example of its use.
COMMANDS: dict[Callable[..., None], str] = {
    demo: "fieldfill demo -o demo_output",
    check: "fieldfill check sst.nc --window 8",
    fit: "fieldfill fit sst.nc -o sst.ff --window 8 --preset fast",
    fill: "fieldfill fill sst.ff sst.nc -o sst_filled.nc",
    score: "fieldfill score sst_filled.nc --truth truth.nc",
    simulate: "fieldfill simulate navier-stokes -o ns.zarr --samples 64 --seed 0",
    mask: "fieldfill mask truth.nc --pattern cloud --observed 0.4 -o gappy.nc",
    report: "fieldfill report sst_filled.nc -o report.html --truth truth.nc",
    versions: "fieldfill versions",
}
for command, example in COMMANDS.items():
    app.command(epilog=f"Example: {example}")(command)
app.add_typer(bench, name="bench")

# The parser's own errors; newer versions of typer carry their own copy of click, so the class is found by inheritance.
ParserError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main() -> None:
    """Entry point: wrong input becomes one line on stderr and exit code 2."""
    # Threads that spin while they wait make training several times slower as soon as anything else runs on the
    # machine. The setting is read when torch is first imported, which happens inside the commands.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()
    try:
        with noting_warnings():
            code = app(standalone_mode=False)
    except InputError as error:
        _refuse(str(error))
    except ParserError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        _refuse(f"{error.format_message()} (see 'fieldfill --help')")
    except (KeyboardInterrupt, typer.Abort):
        print("fieldfill: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(code or 0)


def _refuse(words: str) -> NoReturn:
    print(f"fieldfill: {' '.join(words.split())}", file=sys.stderr)
    sys.exit(2)
