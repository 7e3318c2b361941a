"""The benchmark in small: every bench, every method and every case once."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fieldfill.bench import benches, published, rows
from fieldfill.bench.benches import BENCHES, Job, jobs_of
from fieldfill.bench.cases import CASES, SCALES, Unavailable, load
from fieldfill.bench.claims import FAILS, HOLDS, UNKNOWN, check_claims
from fieldfill.bench.figures import draw_figures
from fieldfill.bench.methods import CLASSICAL, LEARNT, METHODS, learnt, methods_of
from fieldfill.bench.real_records import REAL_RECORDS
from fieldfill.bench.result_tables import make_table, to_html
from fieldfill.bench.results_page import results_page
from fieldfill.bench.runner import Runner
from fieldfill.bench.summary import Summary
from fieldfill.cli.bench_commands import app
from fieldfill.errors import InputError

SMOKE = SCALES["smoke"]
CONTRACT = {
    *("bench", "case", "method", "scale", "seed", "metrics", "train_seconds", "train_steps", "fill_seconds", "peak_mb"),
    *("commit", "versions", "sizes", "cpu_seconds", "threads", "paper"),
}


def one_of_each() -> dict[str, list[Job]]:
    """For each bench jobs with all of its methods and with all cases that earlier benches lack, but for real records.

    Those have tests of their own.
    """
    chosen: dict[str, list[Job]] = {bench: [] for bench in BENCHES}
    cases = set(REAL_RECORDS)
    for job in jobs_of(list(BENCHES), SMOKE):
        methods = {other.method for other in chosen[job.bench]}
        if job.case not in REAL_RECORDS and (job.method not in methods or job.case not in cases):
            chosen[job.bench].append(job)
            cases.add(job.case)
    return chosen


ONE_OF_EACH = one_of_each()


@pytest.mark.slow
@pytest.mark.parametrize("bench", BENCHES)
def test_rows_of_every_bench_are_made_and_rendered(bench: str, tmp_path: Path) -> None:
    """``bench run --scale smoke`` with every method and every case, and what is made of its rows."""
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1)
    wanted = ONE_OF_EACH[bench]
    counts = runner.run(wanted, [0])
    assert counts["made"] + counts["not available"] == len(wanted)
    found = rows.read(runner.results)
    assert {(row["case"], row["method"]) for row in found} == {(job.case, job.method) for job in wanted}
    lacking = [row for row in found if row["status"] != rows.MEASURED and not row["case"].startswith("era5")]
    assert not lacking, [row["reason"] for row in lacking]
    measured = Summary(found)
    _keys_of_the_contract(measured)
    _one_backbone_and_one_budget(measured)
    # Rows that differ at inference share a model.
    models = {path.name for path in runner.cache.rglob("*.ff")}
    assert not [name for name in models if "-K" in name or "-on" in name or "-M" in name]
    _table_page_and_claims(measured, bench)
    if bench == "optimum":
        drawn, missing = draw_figures(runner, tmp_path / "figures")
        assert "gaussian" in {path.stem for path in drawn} and all(path.stat().st_size > 5000 for path in drawn)
        assert "blank-block: no trained model of missdiff on navier-stokes-block8of9; run its row first" in missing


def _keys_of_the_contract(measured: Summary) -> None:
    for row in measured.rows:
        lacking = [key for key in CONTRACT if row.get(key) is None]
        assert not lacking and "history" not in row, (row["bench"], row["method"], lacking)
        if not row["case"][0].isdigit():
            assert row["metrics"]["mse_missing"] > row["metrics"]["mse_all"] > 0
            assert 0 < row["metrics"]["share_of_variance"] < 50


def _one_backbone_and_one_budget(measured: Summary) -> None:
    learnt_rows = [row for row in measured.rows if row["method"] in LEARNT]
    assert {row["train_steps"] for row in learnt_rows} <= {SMOKE.steps}
    assert all("unlearnable_share" in row and "ensemble" in row for row in learnt_rows)


def _table_page_and_claims(measured: Summary, bench: str) -> None:
    table = make_table(measured, bench)
    if table is not None:  # without the ERA5 file the bench of real records has none
        assert all(len(line) == len(table.heads) for line in table.lines)
        assert table.markdown().count("\n| ") >= len(table.lines)
        assert to_html([table]).count("<table>") == 1
        assert table.markdown() in results_page(measured)
    assert table is not None or bench == "real"
    assert {finding.verdict for _, finding in check_claims(measured)} <= {HOLDS, FAILS, UNKNOWN}


def test_every_method_and_every_case_is_tried() -> None:
    tried = [job for jobs in ONE_OF_EACH.values() for job in jobs]
    every = [job for job in jobs_of(list(BENCHES), SMOKE) if job.case not in REAL_RECORDS]
    assert {(job.bench, job.method) for job in tried} == {(job.bench, job.method) for job in every}
    assert {job.case for job in tried} == {job.case for job in every}


def test_an_interrupted_run_goes_on_with_the_next_missing_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job for job in jobs_of(["block"], SMOKE, case="advection-block8of9") if job.method in CLASSICAL[:4]]
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1)
    measure, made = Runner.row, []

    def killed(self: Runner, job: Job, seed: int) -> rows.Row:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(job.method)
        return measure(self, job, seed)

    monkeypatch.setattr(Runner, "row", killed)
    with pytest.raises(KeyboardInterrupt):
        runner.run(jobs, [0])
    monkeypatch.setattr(Runner, "row", measure)
    (file,) = (tmp_path / "results").iterdir()
    before = file.read_text()
    assert file.name == "block.jsonl" and before.count("\n") == 2
    assert runner.run(jobs, [0]) == {"made": 2, "kept": 2, "not available": 0}
    assert file.read_text().startswith(before) and file.read_text().count("\n") == 4
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["block.jsonl"]


def test_a_row_of_another_bench_that_is_the_same_measurement_is_taken_over(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", minutes=0.01, threads=1)
    column = {"scale": SMOKE, "case": "navier-stokes-pixel80"}
    runner.run(jobs_of(["main"], **column, method="missdiff"), [0])
    ablation = jobs_of(["ratios"], **column, method="ratio-100-100")
    runner.run(ablation, [0])
    (there,), (taken,) = (rows.read(runner.results, bench) for bench in ("main", "ratios"))
    assert taken == there | {"bench": "ratios", "method": "ratio-100-100", "paper": taken["paper"]}
    assert taken["paper"]["value"] == published.RATIOS["navier-stokes-pixel80"]["100/100"]
    another_budget = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", minutes=0.02, threads=1)
    assert another_budget.row(ablation[0], 0)["budget"]["minutes"] == 0.02
    assert another_budget.row(ablation[0], 1)["seed"] == 1


def test_scales_do_not_share_a_folder(tmp_path: Path) -> None:
    job = jobs_of(["optimum"], SMOKE, method="climatology")
    Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1).run(job, [0])
    with pytest.raises(InputError, match="rows of scale smoke"):
        Runner(tmp_path / "results", SCALES["cpu"], tmp_path / "cache", threads=1).run(job, [0])


def test_the_real_file_is_asked_for_in_one_line_and_its_row_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDFILL_ERA5", "nowhere.grib")
    said: list[str] = []
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1, log=said.append)
    jobs = jobs_of(["main"], SMOKE, case="era5-pixel20", method="climatology")
    for _ in range(2):
        assert runner.run(jobs, [0])["not available"] == 1
    assert "set FIELDFILL_ERA5" in said[0]


def test_era5_windows_of_test_days_are_no_training_windows(era5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDFILL_ERA5", str(era5))
    data = load(CASES["era5-pixel20"], SCALES["cpu"], 0, Path("unused"))
    assert data.train.sizes["sample"] + data.test.sizes["sample"] == 248
    assert data.test.sizes["sample"] == 32
    truth, train = data.truth.t2m.values, data.train.t2m.values
    assert 0.15 < np.isfinite(train).mean() < 0.25
    for gappy in train:
        seen = np.isfinite(gappy)
        assert not (truth[:, seen] == gappy[seen]).all(axis=1).any()


def test_the_real_file_is_filled_as_windows_and_as_a_record(
    era5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDFILL_ERA5", str(era5))
    runner = Runner(tmp_path / "results", SMOKE, tmp_path / "cache", threads=1)
    chosen = {
        ("main", "era5-pixel20", "telea"),
        ("main", "era5-pixel20", "paper"),
        ("real", "era5-record-pixel20", "oi"),
    }
    jobs = [job for job in jobs_of(["main", "real"], SMOKE) if (job.bench, job.case, job.method) in chosen]
    assert runner.run(jobs, [0]) == {"made": 3, "kept": 0, "not available": 0}
    sizes = {row["case"]: row["sizes"] for row in rows.read(runner.results)}
    assert sizes["era5-pixel20"]["frames"] == 3 and sizes["era5-record-pixel20"]["frames"] == 120


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.data in SMOKE.simulators])
def test_gaps_have_the_share_of_their_case_and_stay_over_the_frames(name: str, tmp_path_factory) -> None:
    case = CASES[name]
    cache = tmp_path_factory.getbasetemp() / "shared-data"
    data = load(case, SMOKE, 0, cache)
    for gappy in (data.train, data.test):
        seen = np.stack([np.isfinite(value.values) for value in gappy.data_vars.values()])
        # A cloud is as large as this small grid: three samples may be clear or covered.
        assert abs(seen.mean() - case.observed) < (0.4 if case.pattern == "cloud" else 0.15)
        if case.pattern != "cloud":
            assert (seen == seen[:, :, :1]).all()
    other = load(case, SMOKE, 1, cache)
    assert other.truth.identical(data.truth) and not other.test.identical(data.test)


def test_methods_differ_in_what_they_stand_for_and_in_nothing_else() -> None:
    case = CASES["advection-block8of9"]
    configs = {name: learnt(name, case, SMOKE, 4, None, {}) for name in methods_of(case) if name in LEARNT}
    partitions = {name: config.partition for name, config in configs.items()}
    assert partitions == {
        "missdiff": "all-observed",
        "missdiff_noise": "all-observed",
        "ambientdiff": "hide-more:block:3x3",
        "paper": "block:3x3",
        "paper_wrong_partition": "pixel",
        "fieldfill": "auto",
    }
    theirs = [config for name, config in configs.items() if name != "fieldfill"]
    free = {"partition", "contexts", "prediction"}
    assert (
        len({config.model_copy(update=dict.fromkeys(free)).model_dump_json(warnings=False) for config in theirs}) == 1
    )
    assert all(config.estimators == () and config.training.time_power == 1.0 for config in theirs)
    assert not any(config.spread or config.choose_contexts for config in theirs)
    assert len({(c.training.steps, c.training.minutes, c.training.clock) for c in configs.values()}) == 1


def test_what_is_unknown_is_not_available_instead_of_a_failure() -> None:
    with pytest.raises(Unavailable, match="no-such-network"):
        learnt("paper", CASES["advection-pixel30"], SMOKE, 4, None, {"network": "no-such-network"})
    with pytest.raises(Unavailable):
        learnt("paper", CASES["advection-pixel30"], SMOKE, 4, None, {"no_such_setting": 1})


def test_every_number_of_the_paper_has_its_row() -> None:
    jobs = [job for bench in BENCHES for job in BENCHES[bench].jobs(SCALES["cpu"])]
    named = {(job.case, job.method) for job in jobs if job.bench in ("main", "block", "pixel")}
    assert {(case, method) for case, column in published.MAIN.items() for method in column} <= named
    assert {job.method for job in jobs if job.bench in ("main", "block", "optimum")} >= set(METHODS)
    for bench, count in (("ensemble", 21), ("ratios", 15), ("omega", 9), ("backbone", 16), ("density", 7)):
        assert sum(benches.paper_value(job) is not None for job in jobs if job.bench == bench) == count


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nonsense"], "unknown bench 'nonsense'"),
        (["run", "main", "--case", "nowhere"], "no row with case nowhere"),
        (["run", "main", "--scale", "huge"], "unknown scale 'huge'"),
        (["run", "main", "--seeds", "a"], "give whole numbers"),
        (["run", "main", "--threads", "0"], "give one thread or more"),
        (["table", "--results", "nowhere"], "no rows in nowhere"),
    ],
)
def test_wrong_input_is_named_with_a_remedy(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InputError) and words in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_commands_speak_json(tmp_path: Path) -> None:
    def call(*arguments: str) -> dict:
        result = CliRunner().invoke(app, [*arguments, "--results", str(tmp_path / "results"), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.strip().splitlines()[-1])

    made = call("run", "optimum", "--scale", "smoke", "--method", "optimum", "--threads", "1")
    assert made["made"] == 1 and (tmp_path / ".bench_cache" / ".gitignore").read_text() == "*\n"
    assert call("list", "--scale", "smoke")["optimum"]["measured"] == 1
    assert call("table", "optimum")["optimum"]["lines"][0][0] == "`optimum`"
    assert {entry["verdict"] for entry in call("claims")["claims"]} == {UNKNOWN}
