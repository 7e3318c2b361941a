"""Options that several commands share, how their text is read, and how results are printed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldfill.errors import InputError

if TYPE_CHECKING:
    from fieldfill.config import Settings
    from fieldfill.data.axes import Dims

__all__ = [
    "Changes",
    "Chosen",
    "Crop",
    "Data",
    "DimNames",
    "Domain",
    "Each",
    "Inputs",
    "Json",
    "Log",
    "Overwrite",
    "PartitionName",
    "Seed",
    "Variables",
    "Window",
    "dims_in",
    "names_in",
    "number_in",
    "print_result",
    "selection_in",
    "settings_from",
]

Data = Annotated[Path, typer.Argument(help="NetCDF, Zarr or GRIB file; NaN or the fill value means missing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output of the same kind.")]
Variables = Annotated[str | None, typer.Option("--vars", help="Variables, separated by commas; default: all.")]
DimNames = Annotated[
    str | None,
    typer.Option(
        "--dims", help="Dimensions of time, rows and columns, such as time,lat,lon; - for one that the data lack."
    ),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option("--sel", help="Take one value of another dimension, such as depth=0; may be given several times."),
]
Each = Annotated[
    str | None, typer.Option("--each", help="Dimensions whose every index is an independent sample, such as level.")
]
Domain = Annotated[
    str | None, typer.Option("--domain", help="Variable of the file that is not 0 where the field exists.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all random choices; the same seed gives the same result.")]
Window = Annotated[
    int | None, typer.Option("--window", help="Frames that the model sees together; default: chosen from the data.")
]
Crop = Annotated[
    int | None,
    typer.Option("--crop", help="Rows and columns that the model sees together; default: chosen from the data."),
]
Inputs = Annotated[
    str | None, typer.Option("--inputs", help="More inputs for the network: coordinates, day-of-year, names of maps.")
]
Log = Annotated[
    str | None, typer.Option("--log", help="Positive variables to learn in their logarithm, separated by commas.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change any setting, such as network=fno or training.precision=bf16; may be given several times."
    ),
]
PartitionName = Annotated[
    str,
    typer.Option(
        "--partition",
        help="How observed cells are divided for training: auto, swap, pixel, block:3x3, station, frame, variable, ...",
    ),
]


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Names separated by commas; None stays None."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text is not None else None


def dims_in(text: str | None) -> "Dims | None":
    """Names of the dimensions of time, rows and columns, from the text of ``--dims``."""
    names = names_in(text)
    if names is None:
        return None
    if len(names) != 3:
        raise InputError(
            f"--dims {text!r} must name three dimensions, such as --dims time,lat,lon, "
            "with - for one that the data lack"
        )
    time, rows, columns = (None if name == "-" else name for name in names)
    return time, rows, columns


def selection_in(texts: list[str] | None) -> dict[str, float | str]:
    """Values by dimension, from the texts of ``--sel``; numbers become floats."""
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


def settings_from(
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
    """The settings of a preset with what the options change."""
    from fieldfill.presets import adjusted
    from fieldfill.presets import preset as named

    settings = named(
        preset,
        window=window,
        crop=crop,
        partition=partition,
        steps=steps,
        minutes=minutes,
        inputs=names_in(inputs) or (),
        log=names_in(log) or (),
    )
    return adjusted(settings, changes or ())


def number_in(text: str, option: str, other: str = "") -> float:
    """The number in the text of an option; ``other`` names what else it may be."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text!r} must be a number{other}") from None


def print_result(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Prints a result on stdout, as text or as one JSON object."""
    print(json.dumps(result, default=float) if as_json else text)
