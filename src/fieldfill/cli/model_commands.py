"""Commands that learn and use a model: ``check``, ``fit`` and ``fill``."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldfill.cli.options import (
    Changes,
    Chosen,
    Crop,
    Data,
    DimNames,
    Domain,
    Each,
    Inputs,
    Json,
    Log,
    Overwrite,
    PartitionName,
    Seed,
    Variables,
    Window,
    dims_in,
    names_in,
    number_in,
    print_result,
    selection_in,
    settings_from,
)
from fieldfill.cli.progress import note, showing_progress
from fieldfill.errors import InputError

__all__ = ["check", "fill", "fit"]


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
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the exposure of each cell to this file, OUT.nc or OUT.zarr."),
    ] = None,
    overwrite: Overwrite = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find out from the gaps alone which cells can be learnt. The exit code is 1 if some cannot."""
    from fieldfill.api import check as audit
    from fieldfill.data.io import open_dataset, save_dataset
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.output_paths import check_distinct, check_output

    if output is not None:
        check_distinct(output, data)
        check_output(output, data_kind(output), overwrite)
    settings = settings_from("fast", window, crop, partition, None, None, inputs, log, changes)
    found = audit(
        open_dataset(data),
        variables=names_in(variables),
        dims=dims_in(dims),
        domain=domain,
        seed=seed,
        settings=settings,
        sel=selection_in(sel),
        each=names_in(each) or (),
    )
    if output is not None:
        save_dataset(found.to_dataset(), output, overwrite)
    print_result(found.to_dict(), str(found), as_json)
    raise typer.Exit(0 if found.audit.verdict == "ok" else 1)


def fit(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory for the fitted model.")],
    variables: Variables = None,
    window: Window = None,
    crop: Crop = None,
    preset: Annotated[
        str, typer.Option("--preset", help="fast (minutes), standard (an hour) or paper (the published method).")
    ] = "fast",
    partition: PartitionName = "auto",
    steps: Annotated[int | None, typer.Option("--steps", help="Training steps; default: the preset's.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Most minutes for the whole fit; default: as long as the preset's steps take."),
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
        int | None,
        typer.Option("--threads", min=1, help="Threads to compute with; default: the fastest number in a short test."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn a model from gappy data. Checkpoints are kept beside OUTPUT; --resume continues from the last one."""
    from fieldfill import api as ff
    from fieldfill.data.io import open_dataset
    from fieldfill.data.output_paths import check_distinct, check_output
    from fieldfill.execution.ddp import LostProcess, join, losing_nobody
    from fieldfill.workflow.checkpoint import RunFolder
    from fieldfill.workflow.model import KIND

    check_distinct(output, data)
    team = join()
    if team.first:
        check_output(output, KIND, overwrite)
    folder = RunFolder(output.with_name(output.name + ".part"))
    settings = settings_from(preset, window, crop, partition, steps, minutes, inputs, log, changes)
    filler = ff.Filler(
        seed=seed,
        variables=names_in(variables),
        dims=dims_in(dims),
        domain=domain,
        sel=selection_in(sel) or None,
        each=names_in(each) or (),
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
    print_result({"model": str(output), **notes, **found}, text, as_json)


def fill(
    model: Annotated[Path, typer.Argument(help="Directory of a fitted model.")],
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.nc or OUT.zarr.")],
    members: Annotated[int, typer.Option("--members", help="Number of realisations to add.")] = 0,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler",
            help="Sampler of the members: conditional, exact or weighted; default: conditional if the model allows it.",
        ),
    ] = None,
    solver_steps: Annotated[
        int | None, typer.Option("--solver-steps", help="Steps of the solver of the exact and the weighted sampler.")
    ] = None,
    order: Annotated[int, typer.Option("--order", help="Order of that solver: 1 (DDIM) or 2.")] = 2,
    guidance: Annotated[
        str,
        typer.Option(
            "--guidance", help="For simulated data: weight of their equation, or auto to choose it on held-out cells."
        ),
    ] = "0",
    budget: Annotated[
        bool, typer.Option("--budget", help="Add v_budget: the parts of the variance of each cell.")
    ] = False,
    quantiles: Annotated[str | None, typer.Option("--quantiles", help="Quantiles to add, such as 0.05,0.95.")] = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes that share the work.")] = 1,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of all random choices; default: the model's.")
    ] = None,
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix",
            help="Goes into the names of new variables: _ff gives v_ff_std, for data with a v_std of their own.",
        ),
    ] = "",
    sel: Chosen = None,
    each: Each = None,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            help="Variable of the file that is not 0 where the field exists, for cells outside the fitted region.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fill the gaps of a file. The output has a standard deviation v_std and a flag v_flag beside each variable v."""
    from fieldfill import api as ff
    from fieldfill.data.companions import companions
    from fieldfill.data.encoding import check_writable
    from fieldfill.data.flags import FLAGS
    from fieldfill.data.io import open_dataset, save_dataset, stored_bytes
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.output_paths import check_distinct, check_output, check_space
    from fieldfill.sampling.solvers import Solver

    check_distinct(output, data, model)
    check_output(output, data_kind(output), overwrite)
    filler = ff.load(model)
    solver = Solver(order=order) if solver_steps is None else Solver(steps=solver_steps, order=order)
    weight = guidance if guidance == "auto" else number_in(guidance, "--guidance", " or 'auto'")
    wanted = [number_in(text, "--quantiles") for text in names_in(quantiles) or ()]
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
            sel=selection_in(sel),
            each=names_in(each) or (),
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
    print_result(result, "\n".join([*lines, f"written to {output}"]), as_json)
