"""Colours: perceptually even maps (cmcrameri) for plotly and for matplotlib, and a few plain ones."""

from typing import TYPE_CHECKING

from fieldfill.errors import MissingPackage

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

__all__ = ["ALARM", "INK", "LAND", "OURS", "PALE", "QUIET", "SECOND", "colour_map", "plotly_scale", "single_colour"]

INK, QUIET, PALE, LAND, ALARM = "#1d2733", "#96a1ab", "#d5dae0", "#b9bcbf", "#c2255c"
OURS, SECOND = "#0f4c75", "#d9730d"
# What each quantity is drawn in; uncertainty and shares run from light (little) to dark (much),
# exposure from dark, so that what is hardly learnt stands out.
MAPS = {"value": "batlow", "anomaly": "vik", "std": "lajolla_r", "share": "devon_r", "exposure": "bamako"}


def colour_map(quantity: str) -> "Colormap":
    try:
        from cmcrameri import cm
    except ImportError as error:
        raise MissingPackage("cmcrameri", "report", "the report") from error
    return getattr(cm, MAPS[quantity])


def plotly_scale(quantity: str, stops: int = 33) -> list[tuple[float, str]]:
    chosen = colour_map(quantity)
    places = [i / (stops - 1) for i in range(stops)]
    return [(place, "rgb({}, {}, {})".format(*(round(255 * part) for part in chosen(place)[:3]))) for place in places]


def single_colour(colour: str) -> list[tuple[float, str]]:
    """A scale of a single colour, for masks."""
    return [(0.0, colour), (1.0, colour)]
