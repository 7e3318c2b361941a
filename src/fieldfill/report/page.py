"""The HTML page: sections of text, tables and figures, with plotly.js, data, style and script inside it.

Texts out of the data are escaped wherever they are written. As a second line of defence the page carries a policy: the
browser runs the two scripts of the page, known by their digests, and loads nothing from elsewhere.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from fieldfill.data.flags import FLAGS
from fieldfill.data.kinds import PAGE
from fieldfill.data.output_paths import check_output, replacing
from fieldfill.data.record import Record
from fieldfill.errors import MissingPackage
from fieldfill.metrics import reliability, score, score_by_distance
from fieldfill.report import charts, maps
from fieldfill.report.contents import Field, Story, read_fields, read_record, with_axes
from fieldfill.report.headline import Facts, headline, tiles
from fieldfill.report.phrasing import percent
from fieldfill.report.style import CSS, SCRIPT
from fieldfill.report.tables import budget_rows, made_table, score_table, variable_table
from fieldfill.uncertainty.quantiles import LEVELS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["write_report"]

# Cells that an error at some distance is averaged over, at least.
FEWEST_CELLS = 30


def write_report(story: Story, path: Path, overwrite: bool = False) -> Path:
    """Writes the report to ``path``, complete or not at all."""
    path = check_output(path, PAGE, overwrite)
    text = _Page(story).html()
    with replacing(path, PAGE if overwrite else None) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")  # names in files need not be valid text
    return path


class _Page:
    """Gathers the figures while the sections are written; both end up in one file."""

    def __init__(self, story: Story) -> None:
        self.story = story = with_axes(story)
        self.figures: dict[str, Any] = {}
        self.movies: dict[str, Any] = {}
        self.titles: dict[str, str] = {}
        self.plotly_js = _plotly_js()
        self.record: Record = read_record(story)
        self.fields: list[Field] = read_fields(story, self.record)
        # Distances are measured over the last three dimensions, whatever order the file has them in.
        self.filled = story.filled.transpose(..., *self.record.axes.names)
        self.scores = None if story.truth is None else score(self.filled, story.truth, self.record.variables)

    def html(self) -> str:
        facts = Facts.of(self.story, self.fields, self.filled, self.scores)
        sections = "\n".join(self.sections())
        links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title in self.titles.items())
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{_policy(self.plotly_js, SCRIPT)}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fieldfill">
<link rel="icon" href="data:,">
<title>{escape(self.story.title)}</title>
<style>{CSS}</style>
<script>{self.plotly_js}</script>
</head>
<body>
<main>
<header>
<h1>{escape(self.story.title)}</h1>
<p class="lead">{headline(facts)}</p>
<div class="tiles">{tiles(facts)}</div>
<nav>{links}</nav>
</header>
{sections}
</main>
<script type="application/json" id="figures">{_json(self.figures)}</script>
<script type="application/json" id="movies">{_json(self.movies)}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""

    def sections(self) -> Iterator[str]:
        several = len(self.fields) > 1
        for number, field in enumerate(self.fields):
            suffix = f": {field.label}" if several else ""
            yield self.section(f"observed{number}", f"What was observed{suffix}", self.observed(number, field))
            yield self.section(f"maps{number}", f"What was filled{suffix}", self.maps(number, field))
        if self.story.scores or self.scores is not None:
            yield self.section("scores", "How good it is", self.score_tables())
        if self.story.truth is not None:
            binned = self.by_distance(self.story.truth)
            for number, field in enumerate(self.fields):
                suffix = f": {field.label}" if several else ""
                body = self.distance(number, field, binned.sel(variable=field.name))
                yield self.section(f"distance{number}", f"Is the stated uncertainty honest?{suffix}", body)
        if curves := self.reliability_curves():
            yield self.section("reliability", "Do the intervals hold what they promise?", self.reliability(curves))
        if self.story.budget:
            yield self.section("budget", "Where the uncertainty comes from", self.budget())
        if any(field.exposure is not None for field in self.fields):
            yield self.section("exposure", "What the data can teach", self.exposure())
        if self.story.history:
            yield self.section("training", "How training went", self.training())
        yield self.section("made", "How this was made", made_table(self.story, self.record, self.fields))

    def section(self, key: str, title: str, body: str) -> str:
        self.titles[key] = title
        return f'<section id="{key}"><h2>{escape(title)}</h2>\n{body}\n</section>'

    def figure(self, key: str, figure: "Figure", title: str = "", shows: str = "", kind: str = "") -> str:
        """Keeps the figure for the script and returns its place in the page."""
        self.figures[key] = json.loads(figure.to_json())
        heading = f"<h3>{escape(title)}</h3>" if title else ""
        data = f' data-shows="{shows}"' if shows else ""
        height = figure.layout.height
        place = f'<div class="plot" id="{key}"{data} style="height:{height}px"></div>'
        return f'<figure class="{kind}">{heading}{place}</figure>'

    def observed(self, number: int, field: Field) -> str:
        often = maps.coverage_map(field)
        seen = self.figure(f"seen-{number}", often, "How often each cell was observed", kind="map")
        title = f"Observed share over time: {percent(field.coverage.mean())} on average"
        time = self.figure(f"time-{number}", charts.coverage_chart(field, often.layout.height), title, kind="wide")
        samples = self.record.shape[0]
        note = f"<p class='note'>The maps show the first of {samples} samples.</p>" if samples > 1 else ""
        return f'{note}<div class="row">{time}{seen}</div>'

    def maps(self, number: int, field: Field) -> str:
        shown = maps.panels(field)
        self.movies[str(number)] = movie = maps.movie(field)
        places = [
            self.figure(f"{kind}-{number}", figure, title, shows=kind, kind="map")
            for kind, (title, figure) in shown.items()
        ]
        return (
            f'<p class="note">{_frames_shown(field)}</p><div data-movie="{number}"><div class="player">'
            '<button type="button">Play</button>'
            f'<input type="range" min="0" max="{len(field.frames) - 1}" value="{movie["start"]}"'
            ' aria-label="frame"><output data-entry="time"></output></div>'
            f'<div class="row">{"".join(places)}{_key(field)}</div></div>'
        )

    def score_tables(self) -> str:
        units = self.fields[0].units if len(self.fields) == 1 else ""
        parts = [score_table(self.story.scores, units)] if self.story.scores else []
        if self.scores is not None:
            parts.append(variable_table(self.scores, self.fields))
        return "\n".join(parts)

    def by_distance(self, truth: xr.Dataset) -> xr.Dataset:
        return score_by_distance(self.filled, truth, self.record.variables, periodic=self.record.periodic)

    def distance(self, number: int, field: Field, binned: xr.Dataset) -> str:
        binned = binned.isel(distance=binned.n.values >= FEWEST_CELLS)
        if not binned.sizes["distance"]:
            return "<p>Too few cells were missing for a chart.</p>"
        stated = field.std is not None
        text = (
            "<p>Cells far from any observation are harder to fill. "
            f"{'The stated standard deviation should follow the error, ' if stated else ''}"
            f"{'and the intervals hold as much of the truth as they promise (dotted).' if stated else ''}</p>"
        )
        error = self.figure(
            f"error-by-distance-{number}", charts.distance_chart(binned, field.units), "Error by distance"
        )
        inside = ""
        if np.isfinite(binned.coverage90).any():
            inside = self.figure(
                f"inside-by-distance-{number}", charts.honesty_chart(binned), "Truth inside the intervals"
            )
        note = (
            "<p class='note'>Distance in space and time; one frame counts as two cells. "
            f"Distances of fewer than {FEWEST_CELLS} cells are left out.</p>"
        )
        return f'{text}<div class="row two">{error}{inside}</div>{note}'

    def reliability_curves(self) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
        """Levels and shares inside: of the held-out cells if the model has them, of the truth if there is one."""
        account, curves = self.story.reliability, {}
        levels: Sequence[float] = account.get("levels", LEVELS)
        if account:
            curves["held-out cells, calibrated"] = levels, account["calibrated"]
            curves["held-out cells, uncalibrated"] = levels, account["uncalibrated"]
        if self.story.truth is not None and any(field.std is not None for field in self.fields):
            found = reliability(self.filled, self.story.truth, levels, self.record.variables)
            for field in self.fields:
                suffix = f", {field.label}" if len(self.fields) > 1 else ""
                curves[f"truth{suffix}"] = levels, found.sel(variable=field.name).values.tolist()
        return curves

    def reliability(self, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
        chart = self.figure("reliability-curves", charts.reliability_chart(curves))
        account = self.story.reliability
        text = "<p>Intervals of the stated standard deviation, and the share of values that lie inside.</p>"
        if account:
            text += (
                f"<p>It was calibrated, without any truth, on {account['cells']:,} observed cells that were hidden. "
                "A hidden cell has a large weight if many missing cells lie as deep in a gap as it does. With these "
                f"weights the hidden cells count as {account['effective_cells']:,.0f} cells of "
                f"{account['effective_windows']:.0f} crops. The curve of each crop is made with factors that were "
                "fitted on the other crops, such that 50 % and 90 % are right as nearly as one factor allows.</p>"
            )
        if tails := account.get("tails", 0):
            text += (
                f"<p>The tails of the errors are {tails:.2f} times as wide as those of a normal distribution with the "
                "same median error, taken at the largest tenth. Only at 1 can one factor make both levels right.</p>"
            )
        if beyond := account.get("missing_beyond_reach", 0):
            text += (
                f"<p>{percent(beyond)} of the missing cells lie farther from any observation than the hidden ones did; "
                "there the standard deviation grows towards that of the climatology.</p>"
            )
        return f'<div class="row two">{chart}<div>{text}</div></div>'

    def budget(self) -> str:
        text = (
            "<p>The stated variance, over all filled cells, has three parts. The first two are 0 where the fill is "
            "made from all observations at once rather than as a mean over contexts, which are parts of them.</p>"
        )
        return text + budget_rows(self.story.budget, {field.name: field.label for field in self.fields})

    def exposure(self) -> str:
        assert self.story.exposure is not None
        attrs = self.story.exposure.attrs
        verdict = f"<p><b>{escape(self.story.words)}</b></p>" if self.story.words else ""
        chosen = f" Partition: <code>{escape(str(attrs['partition']))}</code>." if "partition" in attrs else ""
        drawn = [
            self.figure(f"exposure-{number}", maps.exposure_map(field), field.label, kind="map")
            for number, field in enumerate(self.fields)
            if field.exposure is not None
        ]
        text = (
            "<p>Exposure is the probability that a cell outside the context is in the loss of the training. Where it "
            f"is zero the model's answer is arbitrary, however long it trains.{chosen}</p>"
        )
        lost = any(field.unsupported is not None and field.unsupported[field.domain].any() for field in self.fields)
        swatch = '<p class="note"><span class="swatch alarm"></span>without support</p>' if lost else ""
        return f'<div class="row">{"".join(drawn)}<div class="wide beside">{verdict}{text}{swatch}</div></div>'

    def training(self) -> str:
        chart = self.figure("training-curve", charts.training_chart(self.story.history))
        text = (
            "<p>The held-out cells are observations hidden in the shape of real gaps and never used in "
            "training; the weights with the smallest error on them are kept.</p>"
        )
        return text + chart


def _frames_shown(field: Field) -> str:
    shown, total = len(field.frames), len(field.coverage)
    frames = f"All {total} frames" if shown == total else f"{shown} of {total} frames, evenly spaced"
    cells = "" if field.stride == 1 else f"; one row and column in {field.stride}"
    zoom = "Drawing a box in one map zooms all, a double click zooms out."
    return f"{frames}{cells}. Drag the slider or press Play. {zoom}"


def _key(field: Field) -> str:
    """Numbers of the frame shown, and what the colours mean."""
    rows = {"observed": "observed"}
    if field.truth is not None:
        rows |= {"rmse": "error (RMSE)"}
    if field.std is not None:
        rows |= {"std": "stated std"}
    if field.truth is not None and field.std is not None:
        rows |= {"covered": "inside 90 % intervals"}
    entries = "".join(f'<dt>{label}</dt><dd data-entry="{key}"></dd>' for key, label in rows.items())
    swatches = {"gap": "missing", "land": "outside the domain", "alarm": "filled without support"}
    if not (field.flag == FLAGS["filled_without_support"]).any():
        del swatches["alarm"]
    if field.domain.all():
        del swatches["land"]
    items = "".join(f'<li><span class="swatch {kind}"></span>{text}</li>' for kind, text in swatches.items())
    return f'<div class="key"><h3>This frame</h3><dl>{entries}</dl><h3>Key</h3><ul>{items}</ul></div>'


def _policy(*scripts: str) -> str:
    """Only the inline ``scripts`` run. Styles are inline since plotly writes its own; pictures are part of the page."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = [
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    # In capitals, so that a search of the page for addresses finds none.
    return f'<meta HTTP-EQUIV="Content-Security-Policy" content="{"; ".join(rules)}">'


def _json(content: Mapping[str, Any]) -> str:
    # A "</script>" inside a text must not end the element that holds it.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingPackage("plotly", "report", "the report") from error
    return get_plotlyjs()
