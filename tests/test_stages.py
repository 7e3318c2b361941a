"""Stages keep the time of a run, tell when one has to end, and are shown as lines that never stop for long."""

import math
import time

import pytest

from conftest import QUICK, gappy_dataset
from fieldfill import api as ff
from fieldfill.cli import progress
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.presets import preset
from fieldfill.stages import Progress, Stages


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stages(limit: float = math.inf, **given) -> tuple[Stages, Clock, list[Progress]]:
    clock, seen = Clock(), []
    return Stages(seen.append, limit, clock=clock, **given), clock, seen


def test_a_stage_is_late_when_another_part_like_the_longest_would_not_fit() -> None:
    run, clock, _ = stages(limit=100)
    run.begin("learning", share=0.5)
    assert not run.late()
    clock.now += 20
    run.advance()
    clock.now += 5
    run.advance()
    assert not run.late() and run.left == 75
    clock.now += 6
    assert run.late(), "31 s have passed, the longest part took 20 s, and the stage ends at 50 s"
    run.begin("training")
    assert not run.late()


def test_without_a_limit_nothing_is_ever_late() -> None:
    run, clock, _ = stages()
    run.begin("learning", share=0.1)
    clock.now += 1e9
    run.advance()
    assert not run.late() and not run.limited and run.left == math.inf


def test_processes_go_by_the_time_that_they_agree_on() -> None:
    run, _, _ = stages(limit=100, agreed=lambda seconds: 99.0)
    run.begin("learning", share=0.5)
    assert run.late() and run.left == 1


def test_what_is_left_follows_from_the_pace() -> None:
    run, clock, seen = stages()
    count = run.counter("filling")
    clock.now += 10
    count(2, 10)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total, seen[-1].seconds_left) == ("filling", 2, 10, 40)
    run.begin("members")
    clock.now += 10
    run.advance()
    assert math.isnan(seen[-1].seconds_left) and seen[-1].seconds == 20


def test_a_line_is_printed_while_a_single_step_takes_its_time(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.2)
    with progress.showing_progress() as report:
        report(Progress("covariance", 3, 8, "held-out error 0.1"))
        time.sleep(2.5)
        report(Progress("training", notes=("crops of 8 frames",)))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "crops of 8 frames"
    assert len(lines) > 3 and all(line.startswith("covariance 3 of 8, held-out error 0.1, ") for line in lines[:-1])


SMALL = QUICK.model_copy(update={"partition": "auto", "training": TrainSettings(steps=6, batch=2, validate_every=2)})


def test_a_fit_and_a_fill_report_every_stage_after_the_plan() -> None:
    ds, seen = gappy_dataset(frames=16), []
    filler = ff.Filler(settings=SMALL).fit(ds, report=seen.append)
    names = list(dict.fromkeys(at.stage for at in seen))
    assert names[0] == "opening" and names[-3:] == ["training", "contexts", "calibration"]
    assert {"mean and spread", "audit", "gaussian", "motion", "neighbourhood"} <= set(names)
    plan = next(at.notes for at in seen if at.notes)
    assert "crops of 4 frames × 9 rows × 12 columns" in plan[0] and "as set, the whole grid" in plan[0]
    assert "expected time about" in plan[2] and "GB" in plan[2] and "threads" in plan[2]
    assert [at.done for at in seen if at.stage == "training" and not at.notes] == [0, 1, 2, 3, 4, 5, 6]
    seen.clear()
    filler.fill(ds, members=1, report=seen.append)
    assert list(dict.fromkeys(at.stage for at in seen)) == ["opening", "filling", "members"]


def test_minutes_cover_the_whole_fit_which_leaves_out_what_there_is_no_time_for() -> None:
    seen: list[Progress] = []
    settings = SMALL.model_copy(update={"minutes": 1e-6})
    filler = ff.Filler(settings=settings).fit(gappy_dataset(frames=16), report=seen.append)
    notes = filler.model_.notes
    assert filler.summary()["steps"] == 0, "training has no time left"
    assert not {"drift", "waves", "motion", "neighbourhood"} & set(notes["first_estimate"])
    assert list(notes["validation"]) == ["all observations at once"]
    assert "gaussian" in notes["first_estimate"] and math.isfinite(notes["history"][0]["validation"])


def test_minutes_alone_end_a_training() -> None:
    assert preset("fast", minutes=3).minutes == 3
    assert preset("fast", minutes=3).training.steps > 10**5 > preset("fast", minutes=3, steps=7).training.steps == 7


@pytest.mark.parametrize("steps", [40, 2])
def test_a_training_that_stops_early_says_so(steps) -> None:
    training = TrainSettings(steps=steps, batch=2, validate_every=1, patience=3, rate=0.0)
    seen: list[Progress] = []
    settings = SMALL.model_copy(update={"training": training})
    filler = ff.Filler(settings=settings).fit(gappy_dataset(frames=16), report=seen.append)
    told = [line for at in seen for line in at.notes if "stopped" in line]
    assert filler.summary()["stopped_early"] == (steps == 40)
    words = "training stopped at step 3: no improvement on held-out cells in the last 3 validations"
    assert told == ([words] if steps == 40 else [])
