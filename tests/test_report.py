"""The report as its readers meet it: as text, and opened from a file in a real browser without a network."""

import base64
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from chromium import Browser, in_browser
from fieldfill.data.flags import FLAGS
from fieldfill.data.record import open_record
from fieldfill.errors import InputError, MissingPackage
from fieldfill.metrics import reliability
from fieldfill.report import Story, picture, write_report
from fieldfill.report.contents import PAGE_BYTES, read_fields, read_record, thinning, typical_frame
from fieldfill.report.headline import best_alternative
from fieldfill.report.maps import movie
from fieldfill.report.phrasing import number, percent, pretty_units

pytest.importorskip("plotly", reason="the report needs plotly")
pytest.importorskip("cmcrameri", reason="the report needs cmcrameri")


def gappy(rows: int = 12, columns: int = 15, frames: int = 10, **names: str) -> xr.Dataset:
    """Waves on a sea with a square of land in its south-west corner, half of it hidden."""
    rng = np.random.default_rng(0)
    frame, row, column = np.meshgrid(np.arange(frames), np.arange(rows), np.arange(columns), indexing="ij")
    x = 10 + np.sin(0.5 * row + 0.3 * frame) + 0.1 * column
    x[:, :3, :3] = np.nan
    x[rng.random(x.shape) < 0.5] = np.nan
    x[0, np.isnan(x[0]) & ~((row[0] < 3) & (column[0] < 3))] = 10.0  # every cell of the sea is seen at least once
    coords = {
        "time": np.datetime64("2024-03-01", "ns") + np.arange(frames) * np.timedelta64(1, "D"),
        "lat": ("lat", 50 + 0.5 * np.arange(rows), {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", 4 + 0.5 * np.arange(columns), {"units": "degrees_east", "standard_name": "longitude"}),
    }
    attrs = {"units": "m s-1", "long_name": "speed of </script> & <b>water</b>"}
    variables = {name: (("time", "lat", "lon"), x + i, attrs) for i, name in enumerate(names or ["u"])}
    return xr.Dataset(variables, coords)


def tell(data: xr.Dataset, **more: Any) -> Story:
    """A story about a fill that is the mean plus noise, with an uncertainty."""
    record = open_record(data)
    rng = np.random.default_rng(1)
    shape = record.shape
    mean = np.broadcast_to(record.mean[None, :, None, None, None], shape)
    unsupported = np.zeros(shape, bool)
    unsupported[..., -2:, -2:] = True
    filled = record.to_dataset(mean + 0.3 * rng.standard_normal(shape), np.full(shape, 0.5), unsupported, history="did")
    return Story(filled=filled, **more)


ACCOUNT = {
    "levels": [0.5, 0.9, 0.99],
    "calibrated": [0.52, 0.9, 0.97],
    "uncalibrated": [0.3, 0.61, 0.8],
    "cells": 1234,
    "effective_cells": 600.4,
    "effective_windows": 7.6,
    "missing_beyond_reach": 0.021,
    "tails": 1.173,
}


def whole(data: xr.Dataset) -> Story:
    """A story with everything in it."""
    bare = tell(data)
    names = list(map(str, data.data_vars))
    exposure = xr.Dataset(coords={"lat": data.lat, "lon": data.lon}, attrs={"partition": "swap", "verdict": "partly"})
    for name in names:
        share = np.linspace(0, 0.6, data.lat.size * data.lon.size).reshape(data.lat.size, -1)
        exposure[f"{name}_exposure"] = (("lat", "lon"), share)
        exposure[f"{name}_unsupported"] = (("lat", "lon"), share == 0)
    scores = {"climatology": 4.0, "eof": 2.0, "fieldfill": 1.0, "optimum": 0.8}
    return replace(
        bare,
        truth=bare.filled[names] + 0.1,
        exposure=exposure,
        words="partly: one cell cannot be learnt",
        history=[{"step": s, "seconds": 2.0 * s, "loss": 1 / s, "validation": 1 / s + 0.1} for s in (10, 20, 30)],
        scores={name: {"mse": mse, "rmse": mse**0.5} for name, mse in scores.items()},
        reliability=ACCOUNT,
        budget={name: {"contexts": 0.05, "information": 0.15, "rest": 0.8} for name in names},
        made={"command": "fieldfill demo <x>", "seed": "0"},
        title="A title & more",
    )


def sections(page: Path) -> set[str]:
    return {re.sub(r"\d+$", "", key) for key in re.findall(r'<section id="([a-z]+\d*)"', page.read_text())}


def own_text(page: Path) -> str:
    """The page without plotly's script, which names addresses that it never requests."""
    from plotly.offline import get_plotlyjs

    return page.read_text().replace(get_plotlyjs(), "")


@in_browser
def test_every_figure_is_drawn_without_network_or_complaint(browser: Browser, tmp_path: Path) -> None:
    tab = browser.open(write_report(whole(gappy()), tmp_path / "report.html"))
    assert tab.drawn()
    assert tab.undrawn() == []
    assert tab.run("document.querySelectorAll('.plot').length") == 12
    assert tab.complaints() == []
    assert tab.requests() == []


@in_browser
def test_the_slider_moves_all_maps_to_the_frame_chosen(browser: Browser, tmp_path: Path) -> None:
    story = whole(gappy())
    tab = browser.open(write_report(story, tmp_path / "report.html"))
    assert tab.drawn()
    flag, value = story.filled.u_flag.values, story.filled.u.values
    expected = {
        "observed-0": np.where(flag == 0, value, np.nan),
        "filled-0": value,
        "truth-0": story.truth.u.values,
    }
    for frame in (0, 7):
        tab.run(
            f"var slider = document.querySelector('input'); slider.value = {frame};"
            " slider.dispatchEvent(new Event('input')); 0"
        )
        tab.run("new Promise(done => setTimeout(done, 200))")
        assert tab.run("document.querySelector('output').textContent") == str(story.filled.time.values[frame])[:10]
        for panel, fields in expected.items():
            rows = tab.run(
                f"document.getElementById('{panel}').data[1].z.map(r => [...r].map(v => isNaN(v) ? null : v))"
            )
            np.testing.assert_allclose(np.array(rows, float), fields[frame], atol=1e-3)
    assert tab.complaints() == []


@in_browser
def test_a_story_of_several_variables_and_nothing_else_is_drawn(browser: Browser, tmp_path: Path) -> None:
    tab = browser.open(write_report(tell(gappy(h="", v="")), tmp_path / "report.html"), width=420)
    assert tab.drawn()
    assert tab.undrawn() == [] and tab.complaints() == [] and tab.requests() == []
    assert tab.run("document.documentElement.scrollWidth") <= 420


@in_browser
def test_the_browser_notices_a_script_from_elsewhere_and_a_broken_figure(browser: Browser, tmp_path: Path) -> None:
    page = write_report(whole(gappy()), tmp_path / "report.html")
    text = page.read_text()
    foreign = tmp_path / "foreign.html"
    foreign.write_text(text.replace("<main>", '<main><script src="https://cdn.example.org/x.js"></script>', 1))
    tab = browser.open(foreign)
    assert tab.requests() == ["https://cdn.example.org/x.js"] and tab.complaints()
    empty = tmp_path / "empty.html"
    empty.write_text(
        re.sub(r'"training-curve":\{"data":\[.*?\],"layout"', '"training-curve":{"data":[],"layout"', text)
    )
    tab = browser.open(empty)
    assert tab.drawn() and tab.undrawn() == ["training-curve"]
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace('"training-curve":{', '"training-lost":{', 1))
    tab = browser.open(broken)
    assert tab.complaints() and not tab.drawn(patience=1)


def test_the_page_holds_everything_itself(tmp_path: Path) -> None:
    page = write_report(whole(gappy()), tmp_path / "report.html")
    text = own_text(page)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", text)
    assert "http" not in text and "@import" not in text and "url(" not in text
    assert page.stat().st_size < 12e6
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names)) > 15


@pytest.mark.parametrize(
    "absent, lost",
    [
        ({}, set()),
        ({"truth": None, "scores": {}}, {"scores", "distance"}),
        ({"truth": None, "reliability": {}}, {"distance", "reliability"}),
        ({"reliability": {}}, set()),
        ({"budget": {}}, {"budget"}),
        ({"scores": {}}, set()),
        ({"truth": None}, {"distance"}),
        ({"exposure": None}, {"exposure"}),
        ({"history": []}, {"training"}),
    ],
)
def test_a_section_is_left_out_with_what_it_tells(absent: dict, lost: set[str], tmp_path: Path) -> None:
    everything = {"observed", "maps", "scores", "distance", "reliability", "budget", "exposure", "training", "made"}
    story = replace(whole(gappy()), **absent)
    assert sections(write_report(story, tmp_path / "report.html")) == everything - lost


def test_names_from_the_file_cannot_break_the_page(tmp_path: Path) -> None:
    text = own_text(write_report(whole(gappy()), tmp_path / "report.html"))
    assert text.count("</script>") == text.count("<script") == 4
    assert "<b>water</b>" not in text and "A title &amp; more" in text


def test_the_headline_says_what_the_scores_say(tmp_path: Path) -> None:
    story = whole(gappy())
    text = own_text(write_report(story, tmp_path / "report.html"))
    lead = re.search(r'<p class="lead">(.*?)</p>', text)[1]
    flag = story.filled.u_flag
    share = float(flag.isin([1, 2]).sum() / (flag != 3).sum())
    assert percent(share) in lead and "0.50 ×" in lead and "1.25 ×" in lead and "DINEOF" in lead
    assert "0.100 m s⁻¹" in lead and "hold <b>100 %</b>" in lead
    assert best_alternative(story.scores) == "eof"


def test_the_reliability_diagram_holds_the_calibration_and_the_truth(tmp_path: Path) -> None:
    story = whole(gappy())
    text = own_text(write_report(story, tmp_path / "report.html"))
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text)[1])
    curves = {trace["name"]: trace for trace in figures["reliability-curves"]["data"]}
    assert curves["held-out cells, calibrated"]["y"] == [52, 90, 97]
    assert curves["held-out cells, uncalibrated"]["y"] == [30, 61, 80]
    shares = reliability(story.filled, story.truth, ACCOUNT["levels"]).values[0]
    assert curves["truth"]["x"] == [50, 90, 99] and curves["truth"]["y"] == pytest.approx(100 * shares)
    assert (
        "1,234 observed cells" in text
        and "600 cells of 8 crops" in text
        and "2.1 % of the missing" in text
        and "1.17 times" in text
    )


def test_the_budget_is_a_table_of_shares(tmp_path: Path) -> None:
    text = own_text(write_report(whole(gappy(h="", v="")), tmp_path / "report.html"))
    section = re.search(r'<section id="budget">(.*?)</section>', text, re.DOTALL)[1]
    rows = re.findall(r"<tr><td>(.*?) – .*?</td><td>(.*?)</td><td>(.*?)</td>", section)
    assert rows == [
        ("chance of the contexts", "5.0 %", "5.0 %"),
        ("what contexts leave out", "15 %", "15 %"),
        ("the rest", "80 %", "80 %"),
    ]


def test_ours_and_the_bounds_are_marked_in_the_table(tmp_path: Path) -> None:
    text = own_text(write_report(whole(gappy()), tmp_path / "report.html"))
    rows = dict(re.findall(r'<tr class="(ours|bound)"><td>(.*?)</td>', text))
    assert rows == {"ours": "fieldfill", "bound": "optimum – the exact answer, cannot be passed"}
    assert len(re.findall('<tr class="bound">', text)) == 2


@pytest.mark.parametrize("order", [("time", "lat", "lon"), ("lon", "lat", "time")])
@pytest.mark.parametrize("step", [1, -1])
def test_maps_have_north_up_and_east_right_however_the_file_is_stored(order: tuple[str, ...], step: int) -> None:
    story = whole(gappy())
    straight = read_fields(story, read_record(story))[0]
    turned = story.filled.isel(lat=slice(None, None, step), lon=slice(None, None, step)).transpose(*order)
    turned_story = replace(story, filled=turned)
    field = read_fields(turned_story, read_record(turned_story))[0]
    assert (np.diff(field.grid.y) > 0).all() and (np.diff(field.grid.x) > 0).all()
    assert not field.domain[0, 0] and field.domain[-1, -1]
    for name in ("value", "flag", "std", "truth", "seen", "exposure"):
        np.testing.assert_array_equal(getattr(field, name), getattr(straight, name))


def test_a_degree_of_longitude_is_shorter_than_one_of_latitude() -> None:
    story = tell(gappy())
    grid = read_fields(story, read_record(story))[0].grid
    assert grid.ratio == pytest.approx(1 / np.cos(np.deg2rad(50 + 0.5 * 5.5)))
    assert grid.aspect == pytest.approx(grid.ratio * 12 / 15)
    plain = replace(story, filled=story.filled.drop_vars(["lat", "lon"]).rename(lat="y", lon="x"))
    assert read_fields(plain, read_record(plain))[0].grid.ratio == 1


def test_the_first_sample_is_shown_and_said_to_be(tmp_path: Path) -> None:
    one = gappy()
    many = xr.concat([one, one + 100], dim="sample")
    many["u"].attrs = one.u.attrs
    story = tell(many)
    field = read_fields(story, read_record(story))[0]
    np.testing.assert_array_equal(field.value, story.filled.u.isel(sample=0).values)
    assert "first of 2 samples" in own_text(write_report(story, tmp_path / "report.html"))


@pytest.mark.parametrize("shape, frames, stride", [((12, 15), 120, 1), ((90, 100), 55, 1), ((300, 400), 24, 3)])
def test_large_records_are_thinned_evenly_and_stay_within_the_budget(
    shape: tuple[int, int], frames: int, stride: int
) -> None:
    total = 300
    found, chosen = thinning((1, 1, total, *shape))
    cells = -(-shape[0] // found) * -(-shape[1] // found)
    assert found == stride and abs(len(chosen) - frames) <= 15
    assert len(chosen) * cells * 10 <= PAGE_BYTES
    assert chosen[0] == 0 and chosen[-1] == total - 1 and np.ptp(np.diff(chosen)) <= 1


def test_the_script_knows_the_flags() -> None:
    assert list(FLAGS.items()) == [
        ("observed", 0),
        ("filled", 1),
        ("filled_without_support", 2),
        ("outside_domain", 3),
    ]


def test_packed_frames_keep_four_digits_and_the_gaps() -> None:
    story = whole(gappy())
    field = read_fields(story, read_record(story))[0]
    packed = movie(field)
    for name in ("value", "truth", "std"):
        codes = np.frombuffer(base64.b64decode(packed[name]["codes"]), "<u2").reshape(field.value.shape)
        values = np.where(codes == 65535, np.nan, packed[name]["low"] + packed[name]["step"] * codes.astype(float))
        np.testing.assert_allclose(values, getattr(field, name), atol=1e-4)
    assert packed["start"] == typical_frame(field) < field.value.shape[0]


def test_a_report_never_overwrites_unasked_and_never_stays_half_written(tmp_path: Path) -> None:
    page = write_report(tell(gappy()), tmp_path / "report.html")
    with pytest.raises(InputError, match="already exists"):
        write_report(tell(gappy()), page)
    assert write_report(tell(gappy()), page, overwrite=True) == page
    with pytest.raises(InputError, match="does not exist"):
        write_report(tell(gappy()), tmp_path / "nowhere" / "report.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_data_set_that_was_not_filled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v_flag.*holds u"):
        write_report(Story(filled=gappy()), tmp_path / "report.html")


@pytest.mark.parametrize("package", ["plotly", "cmcrameri", "matplotlib"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    write = picture if package == "matplotlib" else write_report
    with pytest.raises(MissingPackage, match=rf"'{package}'.*fieldfill\[report\]"):
        write(tell(gappy()), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_picture_is_small_and_replaces_an_older_one_if_asked_to(tmp_path: Path) -> None:
    for overwrite in (False, True):
        path = picture(whole(gappy()), tmp_path / "picture.png", overwrite)
    with pytest.raises(InputError, match="already exists"):
        picture(whole(gappy()), tmp_path / "picture.png")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG") and 5e3 < len(content) < 150e3


@pytest.mark.parametrize(
    "units, printed",
    [
        ("degC", "°C"),
        ("m s-1", "m s⁻¹"),
        ("W m**-2", "W m⁻²"),
        ("1", ""),
        ("K", "K"),
        ("degrees_north", "°N"),
    ],
)
def test_units_are_printed_as_people_write_them(units: str, printed: str) -> None:
    assert pretty_units(units) == printed


def test_numbers_keep_three_digits() -> None:
    printed = {
        0.5: "0.500",
        12.345: "12.3",
        0: "0.00",
        -3.21e-7: "−3.21e−07",
        1234.6: "1235",
        0.09999: "0.100",
    }
    assert {value: number(value) for value in printed} == printed


def test_shares_are_never_rounded_to_none_or_all() -> None:
    printed = {0: "0 %", 1e-4: "< 0.1 %", 0.055: "5.5 %", 0.614: "61 %", 0.999: "99.9 %", 1: "100 %"}
    assert {share: percent(share) for share in printed} == printed
