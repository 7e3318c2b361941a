"""The command line: it parses, calls and prints; all logic is below.

Exit codes: 0 = done, 1 = `check` found cells that cannot be learnt, 2 = the input is wrong (one line on stderr).
"""

import json
import os
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fieldfill.cli.bench import app as bench
from fieldfill.cli.progress import note, noting_warnings, showing_progress
from fieldfill.errors import InputError
from fieldfill.execution.memory import keep_freed_memory
from fieldfill.stages import Stages

if TYPE_CHECKING:
    import xarray as xr

    from fieldfill.config import Settings
    from fieldfill.data.axes import Dims

__all__ = ["main"]

app = typer.Typer(
    help="Fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("fieldfill"))
        raise typer.Exit()


@app.callback()
def main_options(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself."""


# The parser's own errors; newer versions of typer carry their own copy of click, so the class is found by inheritance.
ParserError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

Data = Annotated[Path, typer.Argument(help="NetCDF, Zarr or GRIB file; NaN (or the fill value) means missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output of the same kind.")]
Variables = Annotated[str | None, typer.Option("--vars", help="Variables, separated by commas; default: all.")]
DimNames = Annotated[
    str | None, typer.Option("--dims", help="Names of time, rows, columns: time,lat,lon; - for one that is not there.")
]
Chosen = Annotated[
    list[str] | None, typer.Option("--sel", help="Value of another dimension: depth=0; may be given several times.")
]
Each = Annotated[
    str | None, typer.Option("--each", help="Other dimensions along which every index is a sample of its own: level.")
]
Domain = Annotated[str | None, typer.Option("--domain", help="Variable that is non-zero where the field exists.")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
Window = Annotated[
    int | None, typer.Option("--window", help="Frames that the model sees together; default: chosen from the data.")
]
Crop = Annotated[
    int | None, typer.Option("--crop", help="Rows and columns seen together; default: chosen from the data.")
]
Inputs = Annotated[
    str | None, typer.Option("--inputs", help="More for the network: coordinates, day-of-year, names of maps.")
]
Log = Annotated[str | None, typer.Option("--log", help="Positive variables to learn in their logarithm.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, such as network=fno or training.precision=bf16.")
]
PartitionName = Annotated[
    str, typer.Option("--partition", help="auto, swap, pixel, block:3x3, station, frame, variable, ...")
]


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text is not None else None


def _dims(text: str | None) -> "Dims | None":
    names = _names(text)
    if names is None:
        return None
    if len(names) != 3:
        raise InputError(
            f"--dims {text!r} must name three dimensions, such as --dims time,lat,lon, with - for one that is not there"
        )
    time, rows, columns = (None if name == "-" else name for name in names)
    return time, rows, columns


def _sel(texts: list[str] | None) -> dict[str, float | str]:
    chosen: dict[str, float | str] = {}
    for text in [part for whole in texts or () for part in whole.split(",")]:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"--sel {text!r} must name a dimension and a value, such as --sel depth=0")
        try:
            chosen[name] = float(value)
        except ValueError:
            chosen[name] = value
    return chosen


def _settings(
    preset: str,
    window: int | None,
    crop: int | None,
    partition: str,
    steps: int | None,
    minutes: float | None,
    inputs: str | None,
    log: str | None,
    changes: list[str] | None,
) -> "Settings":
    from fieldfill.presets import adjusted
    from fieldfill.presets import preset as named

    settings = named(
        preset,
        window=window,
        crop=crop,
        partition=partition,
        steps=steps,
        minutes=minutes,
        inputs=_names(inputs) or (),
        log=_names(log) or (),
    )
    return adjusted(settings, changes or ())


def _number(text: str, option: str, other: str = "") -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r} must be a number{other}") from None


def _say(result: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(result, default=float) if as_json else text)


@app.command(epilog="Example: fieldfill demo -o demo_output")
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for data, model and report.")] = Path(
        "demo_output"
    ),
    steps: Annotated[int, typer.Option("--steps", help="Training steps.")] = 200,
    frames: Annotated[int, typer.Option("--frames", help="Days of data to make.")] = 360,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make gappy data, check, fit, fill and score it, and write a report."""
    from fieldfill.bench import demo as demonstration

    with showing_progress() as report:
        result = demonstration.run(output, steps, frames, seed, overwrite, report=report, say=note)
    _say(result, demonstration.table(result), as_json)


@app.command(epilog="Example: fieldfill check sst.nc --window 8")
def check(
    data: Data,
    window: Window = None,
    crop: Crop = None,
    partition: PartitionName = "auto",
    variables: Variables = None,
    inputs: Inputs = None,
    log: Log = None,
    changes: Changes = None,
    dims: DimNames = None,
    domain: Domain = None,
    sel: Chosen = None,
    each: Each = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the exposure map here.")] = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Audit, from the masks alone, which cells can be learnt. Exit code 1 if some cannot."""
    from fieldfill.api import check as audit
    from fieldfill.data.io import open_dataset, save_dataset
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.outputs import check_distinct, check_output

    if output is not None:
        check_distinct(output, data)
        check_output(output, data_kind(output), overwrite)
    settings = _settings("fast", window, crop, partition, None, None, inputs, log, changes)
    found = audit(
        open_dataset(data),
        variables=_names(variables),
        dims=_dims(dims),
        domain=domain,
        seed=seed,
        settings=settings,
        sel=_sel(sel),
        each=_names(each) or (),
    )
    if output is not None:
        save_dataset(found.to_dataset(), output, overwrite)
    _say(found.to_dict(), str(found), as_json)
    raise typer.Exit(0 if found.audit.verdict == "ok" else 1)


@app.command(epilog="Example: fieldfill fit sst.nc -o sst.ff --window 8 --preset fast")
def fit(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the fitted model.")],
    variables: Variables = None,
    window: Window = None,
    crop: Crop = None,
    preset: Annotated[str, typer.Option("--preset", help="fast, standard or paper.")] = "fast",
    partition: PartitionName = "auto",
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps; default: the preset's.")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Time of the whole fit; default: the preset's steps.")
    ] = None,
    inputs: Inputs = None,
    log: Log = None,
    changes: Changes = None,
    dims: DimNames = None,
    domain: Domain = None,
    sel: Chosen = None,
    each: Each = None,
    seed: Seed = 0,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of torch; default: the fastest in a short test.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn a model from gappy data. Progress is kept beside OUTPUT; --resume takes it up after a crash."""
    from fieldfill import api as ff
    from fieldfill.data.io import open_dataset
    from fieldfill.data.outputs import check_distinct, check_output
    from fieldfill.execution.ddp import LostProcess, join, losing_nobody
    from fieldfill.workflow.checkpoint import RunFolder
    from fieldfill.workflow.model import KIND

    check_distinct(output, data)
    team = join()
    if team.first:
        check_output(output, KIND, overwrite)
    folder = RunFolder(output.with_name(output.name + ".part"))
    settings = _settings(preset, window, crop, partition, steps, minutes, inputs, log, changes)
    filler = ff.Filler(
        seed=seed,
        variables=_names(variables),
        dims=_dims(dims),
        domain=domain,
        sel=_sel(sel) or None,
        each=_names(each) or (),
        settings=settings,
    )
    with folder.held() if team.first else nullcontext():
        if team.first and folder.interrupted and not (resume or overwrite):
            raise InputError(f"{folder.path} holds an interrupted run; --resume continues it, --overwrite starts anew")
        try:
            with losing_nobody(folder.state), showing_progress() if team.first else nullcontext() as report:
                filler.fit(open_dataset(data), folder.path, resume, report, threads)
        except LostProcess as error:
            if team.rank < 2:  # one of the two is alive
                note(f"fieldfill: {error}")
            raise typer.Exit(1) from None
        if not team.first:
            return
        try:
            filler.save(output, overwrite)
        except InputError as error:
            raise InputError(f"{error}; the training is kept in {folder.path}: --resume saves it") from error
        folder.discard()
    notes, found = filler.model_.notes, filler.summary()
    early = " (stopped early: validation had stopped improving)" if found["stopped_early"] else ""
    text = (
        f"{output}: {found['steps']:.0f} steps{early} in {found['seconds']:.0f} s, partition {found['partition']}, "
        f"error on held-out cells {min(notes['validation'].values()):.4f} (share of the variance, "
        f"{found['validation_crops']} crops), fills with {found['fill']}"
    )
    _say({"model": str(output), **notes, **found}, text, as_json)


@app.command(epilog="Example: fieldfill fill sst.ff sst.nc -o sst_filled.nc")
def fill(
    model: Annotated[Path, typer.Argument(help="Directory of a fitted model.")],
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.nc or OUT.zarr.")],
    members: Annotated[int, typer.Option("--members", help="Number of realisations to add.")] = 0,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="Of the members: conditional, exact or weighted.")
    ] = None,
    solver_steps: Annotated[
        int | None, typer.Option("--solver-steps", help="Steps of the exact and the weighted sampler.")
    ] = None,
    order: Annotated[int, typer.Option("--order", help="Order of their solver: 1 (DDIM) or 2.")] = 2,
    guidance: Annotated[
        str, typer.Option("--guidance", help="Weight of the equation of simulated data, or auto.")
    ] = "0",
    budget: Annotated[bool, typer.Option("--budget", help="Add where the error of each cell comes from.")] = False,
    quantiles: Annotated[str | None, typer.Option("--quantiles", help="Quantiles to add: 0.05,0.95.")] = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes that share the windows.")] = 1,
    seed: Annotated[int | None, typer.Option("--seed", help="Default: the model's.")] = None,
    suffix: Annotated[
        str, typer.Option("--suffix", help="For data with a v_std of their own: _ff gives v_ff_std.")
    ] = "",
    sel: Chosen = None,
    each: Each = None,
    domain: Annotated[
        str | None, typer.Option("--domain", help="The domain outside the region that was fitted, a variable.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fill the gaps of a file: the same file with the holes filled, v_std and v_flag beside each variable."""
    from fieldfill import api as ff
    from fieldfill.data.ancillary import FLAGS, companions
    from fieldfill.data.encoding import check_writable
    from fieldfill.data.io import open_dataset, save_dataset, stored_bytes
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.outputs import check_distinct, check_output, check_space
    from fieldfill.sampling.solvers import Solver

    check_distinct(output, data, model)
    check_output(output, data_kind(output), overwrite)
    filler = ff.load(model)
    solver = Solver(order=order) if solver_steps is None else Solver(steps=solver_steps, order=order)
    weight = guidance if guidance == "auto" else _number(guidance, "--guidance", " or 'auto'")
    wanted = [_number(text, "--quantiles") for text in _names(quantiles) or ()]
    ds = check_writable(open_dataset(data), output)
    added = ff.added_bytes(ds, filler.model_.variables, members, budget, len(wanted))
    check_space(output, stored_bytes(ds, output, added))
    with showing_progress() as report:
        filled = filler.fill(
            ds,
            members=members,
            seed=seed,
            report=report,
            sampler=sampler,
            solver=solver,
            guidance=weight,
            budget=budget,
            workers=workers,
            quantiles=wanted,
            suffix=suffix,
            sel=_sel(sel),
            each=_names(each) or (),
            domain=domain,
        )
    save_dataset(filled, output, overwrite)
    flags = {
        name: filled[companions(filled, name)["flag"]].values for name in filler.model_.variables if name in filled
    }
    counts = {
        name: {kind: int((values == flag).sum()) for kind, flag in FLAGS.items()} for name, values in flags.items()
    }
    lines = [f"{name}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()) for name, kinds in counts.items()]
    result: dict[str, Any] = {"output": str(output), "cells": counts}
    if budget:
        result["budget"] = ff.budget_of(filled)
        lines += [
            f"{name}: variance from " + ", ".join(f"{part} {share:.0%}" for part, share in parts.items())
            for name, parts in result["budget"].items()
        ]
    _say(result, "\n".join([*lines, f"written to {output}"]), as_json)


@app.command(epilog="Example: fieldfill score sst_filled.nc --truth truth.nc")
def score(
    output: Annotated[Path, typer.Argument(help="A filled file.")],
    truth: Annotated[Path, typer.Option("--truth", help="The complete data.")],
    variables: Variables = None,
    as_json: Json = False,
) -> None:
    """Score a filled file against the truth, on the missing cells only; simulated truth also by its equation."""
    from fieldfill.data.io import open_dataset
    from fieldfill.metrics import score as score_records

    names = _names(variables)
    filled, true = open_dataset(output), open_dataset(truth)
    scores = score_records(filled, true, list(names) if names else None)
    table = {
        str(name): {str(key): scores[key].sel(variable=name).item() for key in scores}
        for name in scores.variable.values
    }
    keys = [str(key) for key in scores]
    lines = [f"{'variable':<12}" + "".join(f"{key:>13}" for key in keys)]
    lines += [f"{name:<12}" + "".join(f"{row[key]:13.6g}" for key in keys) for name, row in table.items()]
    result: dict[str, Any] = {"variables": table}
    physics = _physics(filled, true)
    if physics:
        result["physics"] = {name: value for name, (value, _) in physics.items()}
        lines += ["", *(line for _, line in physics.values())]
    _say(result, "\n".join(lines), as_json)


def _physics(filled: "xr.Dataset", true: "xr.Dataset") -> dict[str, tuple[Any, str]]:
    """Value and line of text of each physical score; none if the truth was not simulated or does not fit."""
    if "simulator" not in true.attrs:  # spares real data the wait for torch
        return {}
    from fieldfill.api import physical_scores

    try:
        scores = physical_scores(filled, true)
    except InputError as error:
        note(f"no physical scores: {error}")
        return {}
    assert scores is not None
    found = {}
    for name, score in scores.items():
        value = score.to_series().to_dict() if score.ndim else score.item()
        numbers = ", ".join(f"{band} {number:.4g}" for band, number in value.items()) if score.ndim else f"{value:.4g}"
        units = "" if score.attrs["units"] == "1" else f" {score.attrs['units']}"
        found[str(name)] = value, f"{name} = {numbers}{units}  ({score.attrs['long_name']})"
    return found


@app.command(epilog="Example: fieldfill simulate navier-stokes -o ns.zarr --samples 64 --seed 0")
def simulate(
    equation: Annotated[str, typer.Argument(help="advection, shallow-water, navier-stokes, kolmogorov or gaussian.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Zarr store to write.")],
    samples: Annotated[int, typer.Option("--samples", help="Independent sequences.")] = 64,
    size: Annotated[int | None, typer.Option("--size", help="Cells along a side; default: the paper's.")] = None,
    frames: Annotated[int | None, typer.Option("--frames", help="Frames of a sequence; default: the paper's.")] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a complete data set of an equation. An interrupted run goes on where it stopped."""
    from fieldfill.config import build_simulator
    from fieldfill.simulate.store import write

    simulator = build_simulator(equation, size, frames)
    with showing_progress() as report:
        path = write(simulator, output, samples, seed, overwrite=overwrite, progress=Stages(report).counter(equation))
    _say(
        {"output": str(path), "equation": equation, "samples": samples, "seed": seed},
        f"written to {path}",
        as_json,
    )


@app.command(epilog="Example: fieldfill mask truth.nc --pattern cloud --observed 0.4 -o gappy.nc")
def mask(
    data: Data,
    pattern: Annotated[str, typer.Option("--pattern", help="pixel, block, cloud, swath, track, ...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.nc or OUT.zarr.")],
    observed: Annotated[float, typer.Option("--observed", help="Share of the cells that stay observed.")] = 0.3,
    every: Annotated[int | None, typer.Option("--every", help="Draw a new mask every so many frames.")] = None,
    variables: Variables = None,
    dims: DimNames = None,
    sel: Chosen = None,
    each: Each = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Hide cells of complete data; the input stays as the truth."""
    from fieldfill.api import hide
    from fieldfill.data.io import open_dataset, save_dataset, stored_bytes
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.outputs import check_distinct, check_output, check_space

    check_distinct(output, data)
    check_output(output, data_kind(output), overwrite)
    ds = open_dataset(data)
    check_space(output, stored_bytes(ds, output))
    chosen, samples = _sel(sel), _names(each) or ()
    gappy, share = hide(ds, pattern, observed, every, _names(variables), _dims(dims), seed, chosen, samples)
    save_dataset(gappy, output, overwrite)
    result = {"output": str(output), "pattern": pattern, "observed": share, "seed": seed}
    _say(result, f"{output}: {share:.1%} of the cells observed (pattern {pattern}, seed {seed})", as_json)


@app.command(epilog="Example: fieldfill report sst_filled.nc -o report.html --truth truth.nc")
def report(
    filled: Annotated[Path, typer.Argument(help="A filled file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML page to write.")],
    truth: Annotated[Path | None, typer.Option("--truth", help="The complete data, if there are any.")] = None,
    model: Annotated[Path | None, typer.Option("--model", help="The model, for its training curve.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a page about a filled file: maps, uncertainty, errors. It opens without a network."""
    from fieldfill import api as ff
    from fieldfill.data.io import open_dataset
    from fieldfill.data.kinds import PAGE
    from fieldfill.data.outputs import check_distinct, check_output
    from fieldfill.execution.environment import versions as found
    from fieldfill.report import Story, write_report

    check_distinct(output, filled, truth, model)
    check_output(output, PAGE, overwrite)
    notes = {} if model is None else ff.load(model).model_.notes
    ds = open_dataset(filled)
    story = Story(
        filled=ds,
        truth=None if truth is None else open_dataset(truth),
        history=notes.get("history", []),
        reliability=notes.get("calibration", {}),
        budget=ff.budget_of(ds),
        made={"file": filled.name, **found()},
        title=f"The gaps of {filled.name}, filled",
    )
    path = write_report(story, output, overwrite)
    _say({"report": str(path)}, f"written to {path}", as_json)


@app.command(epilog="Example: fieldfill versions")
def versions(as_json: Json = False) -> None:
    """Print the versions that matter in a bug report."""
    from fieldfill.execution.environment import versions as found

    table = found()
    _say(table, "\n".join(f"{name:<22} {value}" for name, value in table.items()), as_json)


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
