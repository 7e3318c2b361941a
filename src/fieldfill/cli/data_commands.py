"""Commands that make data to try things out: ``simulate``, ``mask`` and ``demo``."""

from pathlib import Path
from typing import Annotated

import typer

from fieldfill.cli.options import (
    Chosen,
    Data,
    DimNames,
    Each,
    Json,
    Overwrite,
    Seed,
    Variables,
    dims_in,
    names_in,
    print_result,
    selection_in,
)
from fieldfill.cli.progress import note, showing_progress
from fieldfill.stages import Stages

__all__ = ["demo", "mask", "simulate"]


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for data, model and report.")] = Path(
        "demo_output"
    ),
    steps: Annotated[int, typer.Option("--steps", help="Steps of the training.")] = 200,
    frames: Annotated[int, typer.Option("--frames", help="Days of data to simulate.")] = 360,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Simulate gappy data, then check, fit, fill and score them, and write a report."""
    from fieldfill.bench import demo as demonstration

    with showing_progress() as report:
        result = demonstration.run(output, steps, frames, seed, overwrite, report=report, say=note)
    print_result(result, demonstration.table(result), as_json)


def simulate(
    equation: Annotated[str, typer.Argument(help="advection, shallow-water, navier-stokes, kolmogorov or gaussian.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Zarr store to write.")],
    samples: Annotated[int, typer.Option("--samples", help="Number of independent sequences.")] = 64,
    size: Annotated[int | None, typer.Option("--size", help="Cells along a side; default: the paper's.")] = None,
    frames: Annotated[int | None, typer.Option("--frames", help="Frames of a sequence; default: the paper's.")] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Simulate a complete data set with an equation. An interrupted run goes on where it stopped."""
    from fieldfill.config import build_simulator
    from fieldfill.simulate.store import write

    simulator = build_simulator(equation, size, frames)
    with showing_progress() as report:
        path = write(simulator, output, samples, seed, overwrite=overwrite, progress=Stages(report).counter(equation))
    print_result(
        {"output": str(path), "equation": equation, "samples": samples, "seed": seed},
        f"written to {path}",
        as_json,
    )


def mask(
    data: Data,
    pattern: Annotated[
        str, typer.Option("--pattern", help="Shape of the gaps: pixel, block, cloud, swath, track, ...")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.nc or OUT.zarr.")],
    observed: Annotated[float, typer.Option("--observed", help="Share of the cells that stay observed.")] = 0.3,
    every: Annotated[
        int | None,
        typer.Option("--every", help="Draw a new mask after so many frames; default: one draw for each sample."),
    ] = None,
    variables: Variables = None,
    dims: DimNames = None,
    sel: Chosen = None,
    each: Each = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Hide cells of complete data. The input file is not changed and can serve as the truth."""
    from fieldfill.api import hide
    from fieldfill.data.io import open_dataset, save_dataset, stored_bytes
    from fieldfill.data.kinds import data_kind
    from fieldfill.data.output_paths import check_distinct, check_output, check_space

    check_distinct(output, data)
    check_output(output, data_kind(output), overwrite)
    ds = open_dataset(data)
    check_space(output, stored_bytes(ds, output))
    chosen, samples = selection_in(sel), names_in(each) or ()
    gappy, share = hide(ds, pattern, observed, every, names_in(variables), dims_in(dims), seed, chosen, samples)
    save_dataset(gappy, output, overwrite)
    result = {"output": str(output), "pattern": pattern, "observed": share, "seed": seed}
    print_result(result, f"{output}: {share:.1%} of the cells observed (pattern {pattern}, seed {seed})", as_json)
