"""Whatever stands in a file stands in the report as text: nothing of it becomes an element, a link or a script."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from chromium import Browser, Tab, in_browser
from fieldfill.cli.main import main
from fieldfill.data.record import open_record
from fieldfill.report import Story, picture, write_report

pytest.importorskip("plotly", reason="the report needs plotly")
pytest.importorskip("cmcrameri", reason="the report needs cmcrameri")

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="[^"]*">', re.IGNORECASE)


def hostile(source: str) -> str:
    """A text that runs, links or draws if it is taken for more than a text; ``source`` names its origin."""
    note = f"window.hits=(window.hits||'')+' {source}'"
    return (
        f"""<img src=x onerror="{note}"><svg onload="{note}"></svg><a href="https://evil.example/{source}">{source}</a>"""
        f"""</script><script>{note}</script>--><b class='injected'>%{{x}}</b>" onmouseover="{note}" '"""
    )


def story() -> Story:
    """Two variables in which every string is hostile."""
    rng = np.random.default_rng(0)
    frames, rows, columns = 8, 10, 12
    time, y, x = (hostile(name) for name in ("time", "rows", "columns"))
    x0 = 10 + np.sin(0.5 * np.arange(rows)[:, None] + 0.1 * np.arange(columns)) + np.zeros((frames, 1, 1))
    gappy = np.where(rng.random(x0.shape) < 0.6, np.nan, x0)
    gappy[0, np.isnan(gappy[0])] = 10.0
    names = [hostile("variable"), hostile("second")]
    variables = {
        name: (
            (time, y, x),
            gappy,
            {"units": hostile("units"), "long_name": hostile(f"name{i}"), "n": hostile("attribute")},
        )
        for i, name in enumerate(names)
    }
    coords = {
        time: (time, [f"{n} {hostile('date')}" for n in range(frames)]),
        y: (y, np.arange(rows) * 1.0, {"units": hostile("rowunits"), "long_name": hostile("rowname")}),
        x: (x, np.arange(columns) * 1.0, {"units": hostile("columnunits"), "standard_name": hostile("columnname")}),
    }
    dims = (time, y, x)
    record = open_record(xr.Dataset(variables, coords, {"history": hostile("history")}), dims=dims)
    filled = record.to_dataset(np.full(record.shape, 10.0), np.full(record.shape, 0.5), history=hostile("stamp"))
    exposure = xr.Dataset(attrs={"partition": hostile("partition"), "verdict": hostile("verdict")})
    for name in names:
        exposure[f"{name}_exposure"] = ((y, x), np.full((rows, columns), 0.3))
        exposure[f"{name}_unsupported"] = ((y, x), np.arange(rows * columns).reshape(rows, columns) == 0)
    levels = {"levels": [0.5, 0.9], "calibrated": [0.5, 0.9], "uncalibrated": [0.4, 0.8]}
    return Story(
        filled=filled,
        truth=xr.Dataset({name: ((time, y, x), x0) for name in names}, coords),
        exposure=exposure,
        words=hostile("words"),
        history=[{"step": n, "seconds": 1.0, "loss": 1.0, "validation": 1 / n} for n in (1, 2)],
        scores={name: {"mse": 1.0, "rmse": 1.0} for name in ("fieldfill", "optimum", hostile("method"))},
        reliability={**levels, "cells": 1, "effective_cells": 1.0, "effective_windows": 1.0},
        budget={name: {"contexts": 0.1, "information": 0.2, "rest": 0.7} for name in names},
        made={"command": hostile("command"), hostile("key"): hostile("value")},
        title=hostile("title"),
        dims=dims,
    )


def only_first(whole: Story) -> Story:
    """One variable, times that are numbers and columns without any: some texts are of these cases only."""
    second = [name for name in whole.filled.data_vars if "second" in str(name)]
    time, _, x = whole.dims
    numbers = {time: (time, np.arange(whole.filled.sizes[time]), {"units": hostile("timeunits")})}
    filled, truth = (ds.drop_vars(x).assign_coords(numbers) for ds in (whole.filled.drop_vars(second), whole.truth))
    return Story(filled, truth, title=whole.title, dims=whole.dims, scores=whole.scores)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, whole = tmp_path_factory.mktemp("pages"), story()
    return {
        "two variables": write_report(whole, folder / "two.html"),
        "one variable": write_report(only_first(whole), folder / "one.html"),
    }


def hover(tab: Tab) -> list[str]:
    """Texts of the hover labels of all figures, each in turn at one of its points."""
    return tab.run(
        """(async () => {
            const found = [];
            for (const plot of document.querySelectorAll(".plot")) {
                for (const [curveNumber, trace] of plot.data.entries()) {
                    const pointNumber = trace.type === "heatmap" ? [1, 1] : 1;
                    try { Plotly.Fx.hover(plot, [{curveNumber, pointNumber}]); } catch (error) { continue; }
                    await new Promise(done => setTimeout(done, 30));
                    found.push(...[...plot.querySelectorAll(".hoverlayer text")].map(text => text.textContent));
                }
            }
            return found;
        })()"""
    )


@in_browser
@pytest.mark.parametrize("policy", [True, False], ids=["as written", "without the policy"])
@pytest.mark.parametrize("name", ["two variables", "one variable"])
def test_no_text_of_a_file_becomes_more_than_a_text(
    name: str, policy: bool, browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = pages[name]
    if not policy:  # the texts must be harmless by themselves
        page = tmp_path / "bare.html"
        text, count = POLICY.subn("", pages[name].read_text(encoding="utf-8"))
        assert count == 1
        page.write_text(text, encoding="utf-8")
    tab = browser.open(page)
    assert tab.drawn() and tab.undrawn() == []
    shown = hover(tab)
    assert tab.run("window.hits || ''") == ""
    assert tab.run("document.title").startswith('<img src=x onerror="')
    assert (
        tab.run("document.querySelectorAll('img, [onerror], [onload], [onmouseover], .injected, .plot a').length") == 0
    )
    assert tab.run("[...document.querySelectorAll('a')].every(link => link.getAttribute('href').startsWith('#'))")
    assert tab.run("document.querySelectorAll('script').length") == 4
    assert tab.complaints() == [] and tab.requests() == []
    assert len(shown) > 5


SHOWN = {
    "two variables": (
        *("units", "name0", "name1", "title", "words", "partition", "command", "key", "value", "history", "stamp"),
        *("rowunits", "rowname", "columnunits", "columnname", "method", "date"),
    ),
    "one variable": ("units", "name0", "title", "history", "rowunits", "columns", "time", "timeunits", "method"),
}


@in_browser
@pytest.mark.parametrize("name", SHOWN)
def test_the_texts_are_shown_as_they_are(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    tab = browser.open(pages[name])
    assert tab.drawn()
    shown = tab.run("document.body.innerText") + tab.run(
        "[...document.querySelectorAll('.plot text')].map(text => text.textContent).join(' ')"
    )
    for source in SHOWN[name]:
        assert f"</script><script>window.hits=(window.hits||'')+' {source}'</script>" in shown, source
    assert "&lt;" not in shown and "%{x}" in shown


@in_browser
def test_the_policy_stops_what_is_put_into_the_page(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["one variable"].read_text(encoding="utf-8")
    foreign = (
        '<main><img src="data:," onerror="window.hits=1"><svg onload="window.hits=2"></svg>'
        '<script>window.hits=3</script><a id="go" href="javascript:window.hits=4">x</a>'
        '<script>eval("window.hits=5")</script><iframe srcdoc="<script>parent.hits=6</script>"></iframe>'
    )
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("<main>", foreign, 1), encoding="utf-8")
    tab = browser.open(changed)
    assert tab.drawn() and tab.undrawn() == []
    tab.run("document.getElementById('go').click(); 0")
    tab.run("new Promise(done => setTimeout(done, 200))")
    assert tab.run("window.hits === undefined") and tab.complaints()


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(pages: dict[str, Path]) -> None:
    text = pages["one variable"].read_text(encoding="utf-8")
    policy = POLICY.search(text)
    assert policy is not None and policy.start() < text.index("<script") and policy.start() < text.index("<style")
    content = policy[0]
    assert "default-src 'none'" in content and content.count("'sha256-") == 2
    assert "unsafe-eval" not in content and "unsafe-inline" not in re.search("script-src[^;]*", content)[0]


@in_browser
def test_a_file_with_a_hostile_name_is_reported(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "<img src=x onerror=window.hits=1>&lt;.nc"
    first = story()
    short = dict(zip(first.dims, ("time", "lat", "lon")))
    filled = first.filled.rename(short).drop_vars("time")
    filled = filled.drop_vars([name for name in filled.data_vars if "second" in str(name)])
    variable = next(name for name in filled.data_vars if f"{name}_flag" in filled)
    filled = filled.rename({old: str(old).replace(str(variable), "u") for old in filled.data_vars})
    ff.save_dataset(filled, name)
    monkeypatch.setattr(sys, "argv", ["fieldfill", "report", name, "-o", "out.html", "--json"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    tab = browser.open(tmp_path / "out.html")
    assert tab.drawn() and tab.run("window.hits || 0") == 0 and tab.complaints() == []
    assert tab.run("document.querySelector('h1').textContent") == f"The gaps of {name}, filled"


def test_embedded_json_is_what_was_put_in(pages: dict[str, Path]) -> None:
    text = pages["two variables"].read_text(encoding="utf-8")
    for key in ("figures", "movies"):
        block = re.search(rf'id="{key}">(.*?)</script>', text)[1]
        assert "<" not in block and json.loads(block)


def test_texts_that_are_none_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    data = story()
    broken = "a\udc80b"
    for name in data.filled.variables:
        data.filled[name].attrs |= {"units": broken, "long_name": broken}
    data = replace(data, filled=data.filled.assign_attrs(history=broken), title=broken, words=broken)
    assert "a?b" in write_report(data, tmp_path / "page.html").read_text(encoding="utf-8")
    assert picture(data, tmp_path / "picture.png").stat().st_size > 5000


def test_a_picture_takes_dollars_for_dollars(tmp_path: Path) -> None:
    data = story()
    for name in data.filled.data_vars:
        if f"{name}_flag" in data.filled:
            data.filled[name].attrs |= {"units": r"$\frac{", "long_name": "$_^"}
    assert picture(data, tmp_path / "picture.png").stat().st_size > 5000
