"""The tutorials "Add your own …" run as they stand: one class of at most 40 lines, one registry line, and its use."""

import re
from pathlib import Path

import numpy as np
import pytest

from fieldfill import baselines, config

PAGES = Path(__file__).parents[1] / "docs" / "tutorials"
# Most lines of code of a class with its imports, blank lines apart.
MOST_LINES = 40


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.M | re.S)


def run(page: str) -> dict:
    """The names that a page defines."""
    known: dict = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), known)
    return known


@pytest.fixture(autouse=True)
def registries(monkeypatch) -> None:
    """What a page registers is gone after its test."""
    monkeypatch.setattr(config, "MASKS", dict(config.MASKS))
    monkeypatch.setattr(config, "ESTIMATORS", dict(config.ESTIMATORS))
    monkeypatch.setattr(baselines, "BASELINES", dict(baselines.BASELINES))


@pytest.mark.parametrize("page", ["mask", "baseline", "estimator"])
def test_a_class_is_short_and_registered_in_one_line(page: str) -> None:
    written, registered, _ = blocks(page)
    assert sum(bool(line.strip()) for line in written.splitlines()) <= MOST_LINES
    assert sum("] = " in line for line in registered.splitlines()) == 1


def test_the_mask_of_the_tutorial_hides_stripes() -> None:
    known = run("mask")
    hidden = known["gappy"].sst.isnull() & known["truth"].sst.notnull()
    assert known["share"] == pytest.approx(0.75, abs=0.05)
    whole = hidden.any("lon") == (hidden | known["truth"].sst.isnull()).all("lon")
    assert bool(whole.all())


def test_the_baseline_of_the_tutorial_fills_every_gap_with_a_recent_value() -> None:
    known = run("baseline")
    filled, gappy = known["filled"].sst, known["data"].gappy.sst
    assert np.isfinite(filled.values[known["filled"].sst_flag == 1]).all()
    repeated = gappy.isnull() & gappy.shift(time=1).notnull()
    assert np.array_equal(filled.values[repeated], gappy.shift(time=1).values[repeated])


def test_the_estimator_of_the_tutorial_is_fitted_with_the_others() -> None:
    known = run("estimator")
    found = known["filler"].model_.notes["first_estimate"]
    assert list(found) == ["climatology", "sources", "frame-offset"]
    assert 0 < found["frame-offset"]["weight"] < 1.5
    assert np.isfinite(known["filled"].sst.values[known["filled"].sst_flag < 3]).all()
