"""A static picture of one frame: observed, filled, truth and uncertainty beside each other."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fieldfill.data.kinds import PICTURE
from fieldfill.data.output_paths import check_output, replacing
from fieldfill.errors import MissingPackage
from fieldfill.report.colours import INK, LAND, colour_map
from fieldfill.report.contents import Field, Story, read_fields, read_record, typical_frame, with_axes
from fieldfill.report.phrasing import in_units, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["picture"]


def picture(story: Story, path: Path, overwrite: bool = False, width: float = 2.9) -> Path:
    """Writes a PNG of a typical frame of the first variable, with panels of ``width`` inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("matplotlib", "report", "the picture") from error
    path = check_output(path, PICTURE, overwrite)
    story = with_axes(story)
    field = read_fields(story, read_record(story))[0]
    k = typical_frame(field)
    panels = _panels(field, k)
    height = float(np.clip(width * field.grid.aspect, 1.2, 4.5)) + 0.75
    figure = Figure(figsize=(width * len(panels), height), dpi=130, layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, (values, quantity, limits)) in zip(all_axes, panels.items()):
        _draw(axes, field, values, quantity, limits)
        axes.set_title(title, fontsize=10, color=INK, parse_math=False)
        text = "standard deviation" if quantity == "std" else field.label
        bar = figure.colorbar(axes.collections[-1], ax=axes, orientation="horizontal", aspect=28, pad=0.03)
        bar.set_label(in_units(text, field.units), fontsize=8, parse_math=False)
        bar.ax.tick_params(labelsize=7.5)
        bar.outline.set_visible(False)
    with replacing(path, PICTURE if overwrite else None) as partial:
        _save(figure, partial)
    return path


def _panels(field: Field, k: int) -> dict[str, tuple[np.ndarray, str, tuple[float, float]]]:
    quantity = "anomaly" if field.diverging else "value"
    seen = field.observed[k]
    share = field.coverage[field.frames[k]]
    out = {
        f"observed ({percent(share)}), {field.times[field.frames[k]]}": (
            np.where(seen, field.value[k], np.nan),
            quantity,
            field.limits,
        ),
        "filled": (field.value[k], quantity, field.limits),
    }
    if field.truth is not None:
        out["truth"] = (field.truth[k], quantity, field.limits)
    if field.std is not None:
        out["stated uncertainty"] = (field.std[k], "std", (0.0, float(np.nanmax(field.std[k])) or 1.0))
    return out


def _draw(axes: "Axes", field: Field, values: np.ndarray, quantity: str, limits: tuple[float, float]) -> None:
    """A map over hatched ground, so that gaps look like gaps, with land in grey."""
    west, east, south, north = field.grid.extent
    axes.set_xlim(west, east)
    axes.set_ylim(south, north)
    axes.set_aspect(field.grid.ratio)
    axes.patch.set(hatch="//////", edgecolor="#aab2ba", facecolor="white")
    land = np.where(field.domain, np.nan, 1.0)
    grid = field.grid.x, field.grid.y
    axes.pcolormesh(*grid, land, cmap=_single(LAND), shading="nearest")
    low, high = limits
    axes.pcolormesh(*grid, values, cmap=colour_map(quantity), vmin=low, vmax=high, shading="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def _single(colour: str) -> "Colormap":
    from matplotlib.colors import ListedColormap

    return ListedColormap([colour])


def _save(figure: "Figure", path: Path, most: int = 140_000) -> None:
    """Writes a PNG; one of more than ``most`` bytes is reduced to 256 colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    image.save(path, format="PNG", optimize=True)
    if path.stat().st_size > most:
        image.quantize(256).save(path, format="PNG", optimize=True)
