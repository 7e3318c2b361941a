"""Files of rows: appended whole, by several processes at once, one row for each key."""

import json
import multiprocessing
from pathlib import Path

import pytest

from fieldfill.bench import rows
from fieldfill.bench.benches import BENCHES
from fieldfill.bench.cases import SCALES
from fieldfill.bench.real_records import REAL_RECORDS
from fieldfill.errors import InputError

ROOT = Path(__file__).parents[1]


def row_of(method: str, case: str = "one", seed: int = 0, error: float = 0.5, status: str = rows.MEASURED) -> rows.Row:
    """A row as small as a row can be; its words are not all ASCII."""
    return {
        "status": status,
        "note": "Navier–Stokes",
        "seed": seed,
        "method": method,
        "case": case,
        "bench": "main",
        "scale": "smoke",
        "metrics": {"mse_missing": error},
    }


def keys_of(found: list[rows.Row]) -> list[tuple[str, str, int]]:
    return [(row["case"], row["method"], row["seed"]) for row in found]


def test_a_row_has_the_common_columns_first_and_all_else_after_them(tmp_path: Path) -> None:
    path = rows.write(tmp_path, row_of("paper") | {"fill_seconds": float("nan"), "more": {"b": 1, "a": 2}})
    (line,) = path.read_text().splitlines()
    row = json.loads(line, parse_constant=pytest.fail)  # NaN is no JSON
    columns = ["bench", "case", "method", "scale", "seed", "metrics", "train_seconds", "train_steps", "fill_seconds"]
    columns += ["peak_mb", "commit", "versions"]
    assert list(row) == [*columns, "status", "note", "more"]
    assert row["fill_seconds"] is None and row["note"] == "Navier–Stokes" and list(row["more"]) == ["b", "a"]


def test_rows_are_read_in_one_order_whatever_the_order_of_their_lines(tmp_path: Path) -> None:
    every = [row_of(method, case, seed) for case in ("two", "one") for method in ("paper", "eof") for seed in (1, 0)]
    for folder, order in (("there", every), ("back", every[::-1])):
        for row in order:
            rows.write(tmp_path / folder, row)
    there, back = rows.read(tmp_path / "there"), rows.read(tmp_path / "back")
    assert there == back and keys_of(there) == sorted(keys_of(there)) and len(there) == len(every)


def test_a_row_measured_again_replaces_the_old_one(tmp_path: Path) -> None:
    rows.write(tmp_path, row_of("paper", status=rows.UNAVAILABLE))
    path = rows.write(tmp_path, row_of("eof"))
    assert not rows.is_measured(rows.find(tmp_path, "main", "one", "paper", 0))
    rows.write(tmp_path, row_of("paper", error=0.25))
    found = rows.read(tmp_path, "main")
    assert keys_of(found) == [("one", "eof", 0), ("one", "paper", 0)] and found[1]["metrics"]["mse_missing"] == 0.25
    assert path.read_text().count("\n") == 2
    assert rows.is_measured(rows.find(tmp_path, "main", "one", "paper", 0))


def test_the_last_of_several_lines_of_a_row_counts(tmp_path: Path) -> None:
    path = rows.write(tmp_path, row_of("paper", error=0.5))
    with path.open("a") as file:
        file.write(json.dumps(row_of("paper", error=0.25)) + "\n")
    (row,) = rows.read(tmp_path)
    assert row["metrics"]["mse_missing"] == 0.25


@pytest.mark.parametrize("lost", [1, 2, 30, 200])
def test_a_line_that_was_cut_off_is_left_out_and_removed_by_the_next_write(tmp_path: Path, lost: int) -> None:
    rows.write(tmp_path, row_of("eof"))
    path = rows.write(tmp_path, row_of("paper"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    if lost == 1:  # only the end of the line is lacking: nothing is lost
        assert keys_of(rows.read(tmp_path)) == [("one", "eof", 0), ("one", "paper", 0)]
        rows.write(tmp_path, row_of("telea"))
        assert path.read_bytes().startswith(whole)
        return
    with pytest.warns(UserWarning, match="is cut off"):
        assert keys_of(rows.read(tmp_path)) == [("one", "eof", 0)]
    with pytest.warns(UserWarning, match="is cut off"):
        rows.write(tmp_path, row_of("paper"))
    assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = rows.write(tmp_path, row_of("eof"))
    path.write_bytes(b'{"bench": \n' + path.read_bytes())
    with pytest.raises(InputError, match=r"line 1 of .*main\.jsonl is no JSON"):
        rows.read(tmp_path)


def _write_many(results: Path, method: str, count: int) -> None:
    for seed in range(count):
        rows.write(results, row_of(method, seed=seed) | {"much": "x" * 20_000})
        rows.write(results, row_of("shared", seed=seed, error=float(seed)))


def test_processes_that_write_at_once_lose_no_row(tmp_path: Path) -> None:
    count, methods = 15, ("eof", "paper", "telea")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, method, count)) for method in methods]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        rows.read(tmp_path)  # never sees half a line
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    wanted = [("one", method, seed) for method in (*methods, "shared") for seed in range(count)]
    assert keys_of(rows.read(tmp_path)) == sorted(wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["main.jsonl"]


def test_committed_rows_are_compact_and_every_job_of_the_paper_is_recognised_as_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    for path in results.iterdir():
        assert path.suffix == ".jsonl" and path.stat().st_size < 2**20, path.name
        lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
        assert sorted(keys_of(lines)) == keys_of(rows.read(results, path.stem)), f"{path.name} holds a row twice"
        assert all(row["bench"] == path.stem and "history" not in row for row in lines)
    found = {(row["bench"], row["case"], row["method"]) for row in rows.read(results) if rows.is_measured(row)}
    for name, bench in BENCHES.items():
        # Real records and first estimates have not been measured yet.
        jobs = {(job.bench, job.case, job.method) for job in bench.jobs(SCALES["cpu"]) if job.case not in REAL_RECORDS}
        assert jobs <= found or name == "estimators", jobs - found
