"""Commands about a filled file: ``score`` and ``report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldfill.cli.options import Json, Overwrite, Variables, names_in, print_result
from fieldfill.cli.progress import note
from fieldfill.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["report", "score"]


def score(
    output: Annotated[Path, typer.Argument(help="A filled file.")],
    truth: Annotated[Path, typer.Option("--truth", help="The complete data.")],
    variables: Variables = None,
    as_json: Json = False,
) -> None:
    """Score a filled file against the truth, on the missing cells only, and simulated data also by their equation."""
    from fieldfill.data.io import open_dataset
    from fieldfill.metrics import score as score_records

    names = names_in(variables)
    filled, true = open_dataset(output), open_dataset(truth)
    scores = score_records(filled, true, list(names) if names else None)
    table = {
        str(name): {str(key): scores[key].sel(variable=name).item() for key in scores}
        for name in scores.variable.values
    }
    widths = {str(key): max(13, len(str(key)) + 2) for key in scores}
    lines = [f"{'variable':<12}" + "".join(f"{key:>{width}}" for key, width in widths.items())]
    lines += [
        f"{name:<12}" + "".join(f"{row[key]:{width}.6g}" for key, width in widths.items())
        for name, row in table.items()
    ]
    result: dict[str, Any] = {"variables": table}
    physics = _physics(filled, true)
    if physics:
        result["physics"] = {name: value for name, (value, _) in physics.items()}
        lines += ["", *(line for _, line in physics.values())]
    print_result(result, "\n".join(lines), as_json)


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


def report(
    filled: Annotated[Path, typer.Argument(help="A filled file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML page to write.")],
    truth: Annotated[
        Path | None, typer.Option("--truth", help="The complete data, if there are any; adds errors.")
    ] = None,
    model: Annotated[Path | None, typer.Option("--model", help="The fitted model; adds its training curve.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write one HTML page about a filled file: maps, uncertainty, errors. It needs no internet connection."""
    from fieldfill import api as ff
    from fieldfill.data.io import open_dataset
    from fieldfill.data.kinds import PAGE
    from fieldfill.data.output_paths import check_distinct, check_output
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
    print_result({"report": str(path)}, f"written to {path}", as_json)
