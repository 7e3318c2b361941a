"""Outputs: nothing foreign is deleted, nothing is half replaced, a full disk is an error, runs are kept apart."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK, contents, gappy_dataset
from fieldfill.bench import rows
from fieldfill.bench.cases import SCALES
from fieldfill.bench.runner import Runner
from fieldfill.cli.main import main
from fieldfill.data.io import open_dataset, save_dataset
from fieldfill.data.output_paths import MACHINE, replacing
from fieldfill.data.writer import written
from fieldfill.errors import InputError
from fieldfill.workflow.checkpoint import RunFolder

FIT = ["--window", "4", "--steps", "1", "--partition", "pixel"]
PIXEL = QUICK.model_copy(update={"partition": "pixel"})


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of the command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["fieldfill", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """The one line on stderr of a command that ends with exit code 2."""
    capsys.readouterr()
    assert call(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("fieldfill: ") and said.out == ""
    return lines[0]


def script(code: str, *arguments: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **options)


def dead_process() -> int:
    ended = script("pass")
    ended.wait()
    return ended.pid


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small file system of its own, for what a full or read-only disk does."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "-o", "size=2m") as folder:
        yield folder


@pytest.fixture
def read_only_disk(tmp_path) -> Iterator[Path]:
    with mounted(tmp_path / "read-only", "-o", "ro") as folder:
        yield folder


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    return ff.Filler(settings=PIXEL).fit(gappy_dataset())


@pytest.fixture(scope="module")
def files(tmp_path_factory, filler) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    save_dataset(gappy_dataset(), folder / "gappy.nc")
    filler.save(folder / "m.ff")
    save_dataset(filler.fill(gappy_dataset()), folder / "filled.nc")
    return folder


# Each command that writes, without its output.
COMMANDS = {
    "fit": ["fit", "gappy.nc", *FIT],
    "fill": ["fill", "m.ff", "gappy.nc"],
    "check": ["check", "gappy.nc", "--window", "4", "--partition", "pixel"],
    "mask": ["mask", "gappy.nc", "--pattern", "pixel"],
    "report": ["report", "filled.nc"],
    "simulate": ["simulate", "advection", "--samples", "1", "--size", "8", "--frames", "2"],
    "demo": ["demo", "--frames", "24", "--steps", "1"],
}
OUTPUTS = [
    *[("fit", "m.ff"), ("fit", "home"), ("report", "r.html"), ("simulate", "s.zarr"), ("demo", "home")],
    *[(command, name) for command in ("fill", "check", "mask") for name in ("o.nc", "o.zarr")],
]


def command(files: Path, name: str) -> list[str]:
    return [str(files / word) if word.endswith((".nc", ".ff")) else word for word in COMMANDS[name]]


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_overwrite_never_deletes_a_foreign_folder(files, tmp_path, monkeypatch, capsys, name, output) -> None:
    (tmp_path / output).mkdir()
    (tmp_path / output / "thesis.txt").write_text("dear")
    line = refused(monkeypatch, capsys, *command(files, name), "-o", tmp_path / output, "--overwrite")
    assert str(tmp_path / output) in line
    assert contents(tmp_path) == {f"{output}/thesis.txt": b"dear"}


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_overwrite_never_replaces_a_foreign_file(files, tmp_path, monkeypatch, capsys, name, output) -> None:
    (tmp_path / output).write_text("dear")
    refused(monkeypatch, capsys, *command(files, name), "-o", tmp_path / output, "--overwrite")
    assert contents(tmp_path) == {output: b"dear"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_link_to_itself_is_in_the_way(files, tmp_path, monkeypatch, capsys, name) -> None:
    output = tmp_path / dict(OUTPUTS)[name]
    output.symlink_to(output)
    for flags in ([], ["--overwrite"]):
        line = refused(monkeypatch, capsys, *command(files, name), "-o", output, *flags)
        assert str(output) in line and output.is_symlink() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("place", ["thesis.txt", "sst/thesis.txt", "sst/c/0/thesis.txt"])
def test_a_store_with_a_foreign_file_inside_is_not_replaced(tmp_path, place) -> None:
    path = save_dataset(gappy_dataset(), tmp_path / "o.zarr")
    (path / place).write_text("dear")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"thesis\.txt"):
        save_dataset(gappy_dataset(seed=1), path, overwrite=True)
    assert contents(tmp_path) == before


def test_a_simulated_store_with_a_foreign_file_inside_is_not_replaced(files, tmp_path, monkeypatch, capsys) -> None:
    simulate = [*command(files, "simulate"), "-o", tmp_path / "s.zarr"]
    assert call(monkeypatch, *simulate) == 0
    (tmp_path / "s.zarr" / "thesis.txt").write_text("dear")
    before = contents(tmp_path)
    assert "thesis.txt" in refused(monkeypatch, capsys, *simulate, "--seed", "1", "--overwrite")
    assert contents(tmp_path) == before


def test_foreign_files_beside_an_unfinished_simulation_survive(files, tmp_path, monkeypatch, capsys) -> None:
    simulate = [*command(files, "simulate"), "-o", tmp_path / "s.zarr"]
    part = tmp_path / "s.zarr.part"
    part.mkdir()
    (part / "progress.json").write_text(json.dumps({"identity": {}, "batches": 0}))
    (part / "thesis.txt").write_text("dear")
    assert "thesis.txt" in refused(monkeypatch, capsys, *simulate, "--overwrite")
    assert (part / "thesis.txt").read_text() == "dear"


def test_a_model_with_a_foreign_file_inside_is_not_replaced(filler, tmp_path) -> None:
    path = filler.save(tmp_path / "m.ff")
    (path / "thesis.txt").write_text("dear")
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"thesis\.txt"):
        filler.save(path, overwrite=True)
    assert contents(tmp_path) == before


def test_a_store_behind_a_link_is_replaced_and_the_link_stays(tmp_path) -> None:
    (tmp_path / "scratch").mkdir()
    save_dataset(gappy_dataset(), tmp_path / "scratch" / "o.zarr")
    (tmp_path / "o.zarr").symlink_to(tmp_path / "scratch" / "o.zarr")
    save_dataset(gappy_dataset(seed=1), tmp_path / "o.zarr", overwrite=True)
    assert (tmp_path / "o.zarr").is_symlink()
    assert open_dataset(tmp_path / "scratch" / "o.zarr").load().identical(gappy_dataset(seed=1))
    assert len(list(tmp_path.iterdir())) == 2 and len(list((tmp_path / "scratch").iterdir())) == 1


@pytest.mark.parametrize("old_format", [2, 3])
def test_stores_of_either_format_are_replaced(tmp_path, old_format) -> None:
    path = tmp_path / "o.zarr"
    gappy_dataset().chunk(time=7).to_zarr(path, zarr_format=old_format)
    save_dataset(gappy_dataset(seed=1), path, overwrite=True)
    assert open_dataset(path).load().identical(gappy_dataset(seed=1))
    assert [p.name for p in tmp_path.iterdir()] == ["o.zarr"]


def test_what_appears_during_the_work_is_kept_and_so_is_the_result(tmp_path) -> None:
    target = tmp_path / "o.nc"
    with pytest.raises(InputError, match="kept"), replacing(target) as partial:
        partial.write_text("result")
        target.write_text("dear")
    assert target.read_text() == "dear"
    assert sorted(contents(tmp_path).values()) == [b"dear", b"result"]


@pytest.mark.parametrize("flags", [["--resume"], ["--overwrite"], []])
def test_a_foreign_folder_in_the_place_of_a_checkpoint_survives(files, tmp_path, monkeypatch, capsys, flags) -> None:
    for name in ("thesis.txt", "checkpoint.pt", "run.json", "run.lock"):
        folder = tmp_path / f"{name}.ff.part"
        folder.mkdir()
        (folder / name).write_text("dear")
        line = refused(monkeypatch, capsys, *command(files, "fit"), "-o", tmp_path / f"{name}.ff", *flags)
        assert str(folder) in line and contents(folder) == {name: b"dear"}


def test_a_foreign_file_beside_a_checkpoint_survives_the_end_of_the_run(tmp_path) -> None:
    folder = tmp_path / "m.ff.part"
    ff.Filler(settings=PIXEL).fit(gappy_dataset(), checkpoint=folder)
    (folder / "thesis.txt").write_text("dear")
    with pytest.raises(InputError, match="thesis"):
        ff.Filler(settings=PIXEL).fit(gappy_dataset(), checkpoint=folder, resume=True)
    RunFolder(folder).discard()
    assert contents(folder) == {"thesis.txt": b"dear"}


@pytest.mark.parametrize("kind", ["page", "table"])
@pytest.mark.parametrize("foreign", ["dear", "<!doctype html>dear", "# Results\n\ndear"])
def test_bench_pages_replace_pages_of_their_own_only(tmp_path, monkeypatch, capsys, kind, foreign) -> None:
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    output = tmp_path / "thesis"
    arguments = ["bench", kind, "-o" if kind == "page" else "--html", output, "--results", results]
    assert call(monkeypatch, *arguments) == 0
    page = output.read_text()
    assert call(monkeypatch, *arguments) == 0 and output.read_text() == page
    output.write_text(foreign)
    refused(monkeypatch, capsys, *arguments)
    assert contents(tmp_path) == {"thesis": foreign.encode()}


def test_bench_figures_replace_pictures_only_when_told_to(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "gaussian.png").write_bytes(b"\x89PNG\r\n\x1a\n, dear")
    (tmp_path / "era5.png").write_text("dear")
    before = contents(tmp_path)
    figures = ["bench", "figures", "-o", tmp_path, "--cache", tmp_path / "none"]
    assert "era5.png already exists" in refused(monkeypatch, capsys, *figures)
    assert "era5.png" in refused(monkeypatch, capsys, *figures, "--overwrite")
    assert contents(tmp_path) == before


def test_the_cache_of_the_benchmark_leaves_files_alone(tmp_path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".gitignore").write_text("dear")
    for folder, text in ((tmp_path / "cache", "dear"), (tmp_path / "new", "*\n")):
        Runner(tmp_path / "results", SCALES["smoke"], folder).run([], [])
        assert (folder / ".gitignore").read_text() == text


@pytest.mark.parametrize("option", ["--results", "--cache", "-o"])
def test_a_folder_of_the_benchmark_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys, option) -> None:
    (tmp_path / "file").write_text("dear")
    others = {"--results": tmp_path / "results", "--cache": tmp_path / "cache"} | {option: tmp_path / "file" / "x"}
    name = ["figures"] if option == "-o" else ["run", "pixel", "--scale", "smoke", "--method", "climatology"]
    line = refused(monkeypatch, capsys, "bench", *name, *(word for pair in others.items() for word in pair))
    assert str(tmp_path / "file") in line and not list(tmp_path.rglob("*.jsonl"))


def test_a_row_that_does_not_fit_on_the_disk_is_one_line(tmp_path) -> None:
    row = {"bench": "main", "case": "one", "method": "eof", "scale": "cpu", "seed": 0, "status": "measured"}
    path = rows.write(tmp_path, row)
    before, limit = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limit[1]))
    try:
        for change in ({"method": "oi"}, {"note": "x" * 100}):  # a line more, and the whole file anew
            with pytest.raises(InputError, match="cannot write") as caught:
                rows.write(tmp_path, row | change)
            assert "\n" not in str(caught.value) and path.read_bytes().startswith(before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [p.name for p in tmp_path.iterdir()] == ["main.jsonl"]


def test_an_earlier_demonstration_is_replaced_and_nothing_else(tmp_path, monkeypatch, capsys) -> None:
    save_dataset(gappy_dataset(), tmp_path / "truth.nc")
    before = contents(tmp_path)
    assert "--overwrite" in refused(monkeypatch, capsys, *COMMANDS["demo"], "-o", tmp_path)
    refused(monkeypatch, capsys, *COMMANDS["demo"], "-o", tmp_path, "--overwrite")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("part", ["truth.nc", "model.ff", "filled.nc", "report.html", "demo.png"])
def test_a_demonstration_finds_what_is_in_its_way_before_the_work(tmp_path, monkeypatch, capsys, part) -> None:
    save_dataset(gappy_dataset().assign_attrs(title="fieldfill demonstration"), tmp_path / "gappy.nc")
    (tmp_path / part).write_text("dear")
    before = contents(tmp_path)
    line = refused(monkeypatch, capsys, *COMMANDS["demo"], "-o", tmp_path, "--overwrite")
    assert part in line and contents(tmp_path) == before


@pytest.mark.parametrize(("name", "output"), [("fit", "m.ff"), ("fill", "o.nc"), ("fill", "o.zarr"), ("report", "r")])
def test_overwrite_replaces_what_was_written_before(files, tmp_path, monkeypatch, name, output) -> None:
    for flags in ([], ["--overwrite"]):
        assert call(monkeypatch, *command(files, name), "-o", tmp_path / output, *flags) == 0
    assert [p.name for p in tmp_path.iterdir()] == [output]


# Replacing


def test_a_reader_sees_one_model_while_it_is_replaced(tmp_path) -> None:
    fillers = [ff.Filler(settings=PIXEL, seed=seed).fit(gappy_dataset(seed=seed)) for seed in (0, 1)]
    means = [filler.model_.normaliser.mean.ravel()[0] for filler in fillers]
    paths = [filler.save(tmp_path / f"{seed}.ff") for seed, filler in enumerate(fillers)]
    target = fillers[0].save(tmp_path / "m.ff")
    code = """
        import sys, itertools
        import fieldfill as ff
        fillers = [ff.load(path) for path in sys.argv[2:]]
        for filler in itertools.cycle(fillers):
            filler.save(sys.argv[1], overwrite=True)
            print(flush=True)
    """
    writer = script(code, target, *paths, stdout=subprocess.PIPE, bufsize=0)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(120):
            model = ff.load(target).model_
            assert model.normaliser.mean.ravel()[0] == means[model.seed]
            os.set_blocking(writer.stdout.fileno(), False)
            writer.stdout.read()
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_a_model_replaced_twice_while_it_is_read_is_not_taken_for_damaged(filler, tmp_path, monkeypatch) -> None:
    other = ff.Filler(settings=PIXEL, seed=1).fit(gappy_dataset())
    target = filler.save(tmp_path / "m.ff")
    inner, moves = Path.read_bytes, [other, filler]

    def replaced_before_and_after(path: Path) -> bytes:
        if not moves:
            return inner(path)
        moves.pop(0).save(target, overwrite=True)
        found = inner(path)
        moves.pop(0).save(target, overwrite=True)
        return found

    monkeypatch.setattr(Path, "read_bytes", replaced_before_and_after)
    assert ff.load(target).model_.seed == filler.model_.seed and not moves


def test_weights_of_another_model_are_refused(filler, tmp_path) -> None:
    path = filler.save(tmp_path / "m.ff")
    other = ff.Filler(settings=PIXEL, seed=1).fit(gappy_dataset()).save(tmp_path / "n.ff")
    shutil.copy(other / "weights.safetensors", path / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors .* model\.json") as caught:
        ff.load(path)
    assert "\n" not in str(caught.value)


def test_models_without_a_digest_are_refused(filler, tmp_path) -> None:
    path = filler.save(tmp_path / "m.ff")
    description = json.loads((path / "model.json").read_text())
    del description["digest"]
    (path / "model.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match="does not belong to"):
        ff.load(path)


def test_a_store_killed_while_it_is_replaced_is_the_old_or_the_new_one(tmp_path) -> None:
    target, kinds = tmp_path / "o.zarr", [gappy_dataset(), gappy_dataset(seed=1)]
    save_dataset(kinds[0].chunk(time=1), target)
    code = """
        import os, sys, time
        from conftest import gappy_dataset
        from fieldfill.data.io import save_dataset
        inner = os.unlink
        def slow(*arguments, **options):
            inner(*arguments, **options)
            print(flush=True)
            time.sleep(0.05)
        ds = gappy_dataset(seed=1).chunk(time=1)
        os.unlink = slow
        save_dataset(ds, sys.argv[1], overwrite=True)
    """
    for files in (2, 9):
        writer = script(code, target, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(files):  # a store is being deleted
            writer.stdout.readline()
        writer.send_signal(signal.SIGTERM)
        assert writer.wait() == -signal.SIGTERM
        writer.stdout.close()
        found = open_dataset(target).load()
        assert any(found.identical(kind) for kind in kinds)
    save_dataset(kinds[0], target, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["o.zarr"], "the next run clears what the killed ones left"


def test_a_kill_between_two_renames_is_recovered_by_the_next_run(tmp_path) -> None:
    target = save_dataset(gappy_dataset(), tmp_path / "o.zarr")
    code = """
        import os, signal, sys
        from conftest import gappy_dataset
        from fieldfill.data import output_paths
        from fieldfill.data.io import save_dataset
        output_paths._exchange = lambda *paths: False  # as on a file system that cannot
        inner = os.rename
        def killed(*paths):
            inner(*paths)
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename = killed
        save_dataset(gappy_dataset(seed=1), sys.argv[1], overwrite=True)
    """
    assert script(code, target).wait() == -signal.SIGKILL
    assert not target.exists()
    with pytest.raises(InputError, match="already exists"):
        save_dataset(gappy_dataset(seed=2), target)
    assert open_dataset(target).load().identical(gappy_dataset())
    assert [p.name for p in tmp_path.iterdir()] == ["o.zarr"]


def test_a_file_system_without_exchange_replaces_by_two_renames(tmp_path, monkeypatch) -> None:
    from fieldfill.data import output_paths

    monkeypatch.setattr(output_paths, "_exchange", lambda *paths: False)
    for seed in (0, 1, 2):
        target = save_dataset(gappy_dataset(seed=seed), tmp_path / "o.zarr", overwrite=True)
    assert open_dataset(target).load().identical(gappy_dataset(seed=2))
    assert [p.name for p in tmp_path.iterdir()] == ["o.zarr"]


def test_a_kill_of_simulate_between_two_renames_keeps_the_old_store(files, tmp_path, monkeypatch) -> None:
    simulate = [*command(files, "simulate"), "-o", tmp_path / "s.zarr"]
    assert call(monkeypatch, *simulate) == 0
    before = contents(tmp_path / "s.zarr")
    code = """
        import os, signal, sys
        from fieldfill.cli.main import main
        inner = os.rename
        def killed(*paths):
            inner(*paths)
            os.kill(os.getpid(), signal.SIGKILL)
        os.rename = killed
        main()
    """
    assert script(code, *simulate, "--seed", "1", "--overwrite").wait() == -signal.SIGKILL
    assert not (tmp_path / "s.zarr").exists()
    assert call(monkeypatch, *simulate, "--seed", "2") == 2
    assert contents(tmp_path / "s.zarr") == before


# Full and read-only disks


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_full_disk_is_an_error_and_not_a_crash(tmp_path, suffix) -> None:
    code = """
        import resource, shutil, sys
        from pathlib import Path
        from conftest import gappy_dataset
        from fieldfill.errors import InputError
        from fieldfill.data.io import open_dataset, save_dataset
        path = Path(sys.argv[1])
        for chunks in (None, {"time": 5}):
            ds = gappy_dataset(names="a,b,c,d")
            ds = ds if chunks is None else ds.chunk(chunks)
            for limit in (0, 10, 100, 500, 1000, 2000, 4000, 8000, 10000, 16000, 25000, 40000):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                try:
                    save_dataset(ds, path)
                except InputError as error:
                    assert "cannot write" in str(error) and "\\n" not in str(error), error
                    print("refused")
                assert not list(path.parent.iterdir()), list(path.parent.iterdir())
                if path.suffix == ".zarr" and limit >= 100:
                    break
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            save_dataset(ds, path)
            assert open_dataset(path).load().identical(ds)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    """
    run = script(code, tmp_path / f"o{suffix}", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said, errors = run.communicate()
    assert run.returncode == 0, errors
    assert said.split() == ["refused"] * (24 if suffix == ".nc" else 6)


def test_what_could_not_be_written_can_be_read_until_the_error_is_raised(tmp_path) -> None:
    """HDF5 reads its metadata again; if they were lost, it could not close the file and would crash at the exit."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(OSError, match="too large"), written(tmp_path / "file") as file:
            expected = bytearray()
            for start, piece in [(0, b"a" * 60), (60, b"b" * 60), (10, b"c" * 20), (115, b"d" * 20), (0, b"e")]:
                file.seek(start)
                file.write(piece)
                expected[start : start + len(piece)] = piece
                file.seek(0)
                assert file.read(1000) == expected
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_disk_that_fills_up_while_a_file_is_written_is_one_line(small_disk, suffix) -> None:
    rng = np.random.default_rng(0)
    noise = xr.Dataset({"a": (("time", "lat", "lon"), rng.normal(size=(100, 64, 64)))})
    save_dataset(noise.isel(time=slice(0, 4)), small_disk / f"old{suffix}")
    before = contents(small_disk)
    lean = noise.chunk(time=4)
    lean["a"].encoding = {"zlib": True}  # which promises to need less than there is
    for _ in range(8):  # several threads write: which of them fails first differs
        with pytest.raises(InputError, match=r"cannot write .*No space left") as caught:
            save_dataset(lean, small_disk / f"old{suffix}", overwrite=True)
        assert "\n" not in str(caught.value)
        assert contents(small_disk) == before


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_cluster_writes_as_one_process_does(tmp_path, suffix) -> None:
    pytest.importorskip("distributed")
    code = """
        import sys
        from conftest import gappy_dataset
        from distributed import Client
        from fieldfill.data.io import open_dataset, save_dataset
        if __name__ == "__main__":
            with Client(n_workers=1, threads_per_worker=1, dashboard_address=None):
                path = save_dataset(gappy_dataset().chunk(time=5).persist(), sys.argv[1])
            assert open_dataset(path).load().identical(gappy_dataset())
    """
    (tmp_path / "code.py").write_text(textwrap.dedent(code))
    command = [sys.executable, str(tmp_path / "code.py"), str(tmp_path / f"o{suffix}")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_an_output_that_cannot_fit_is_refused_before_the_work(small_disk, files, tmp_path, monkeypatch, capsys) -> None:
    members = ["--members", "400", "--sampler", "never reached"]
    line = refused(monkeypatch, capsys, *command(files, "fill"), "-o", small_disk / "o.nc", *members)
    assert "MB" in line and str(small_disk / "o.nc") in line
    long = tmp_path / "long.nc"
    save_dataset(gappy_dataset(frames=6000), long)
    line = refused(monkeypatch, capsys, "mask", long, "--pattern", "never reached", "-o", small_disk / "o.nc")
    assert "MB" in line and list(small_disk.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("place", ["missing", "/proc", "read-only", "file"])
def test_an_unwritable_folder_is_found_before_the_work(
    files, tmp_path, monkeypatch, capsys, request, name, place
) -> None:
    folder = tmp_path / place
    if place == "/proc" and not folder.is_dir():
        pytest.skip("no /proc here")
    if place == "read-only":
        folder = request.getfixturevalue("read_only_disk")
    if place == "file":
        folder.write_text("dear")
    if place == "missing" and name in ("simulate", "demo"):
        pytest.skip("makes its folder")
    suffix = {"fit": ".ff", "report": ".html", "simulate": ".zarr"}.get(name, ".nc")
    # The data do not exist: whoever looks for them first is too late.
    arguments = [word if not word.endswith((".nc", ".ff")) else "none.nc" for word in COMMANDS[name]]
    line = refused(monkeypatch, capsys, *arguments, "-o", folder / f"o{suffix}")
    assert str(folder) in line and "none.nc" not in line


def test_a_full_disk_during_checkpoints_keeps_the_earlier_one(small_disk) -> None:
    checkpoint, ballast = small_disk / "m.part", small_disk / "ballast"
    config = PIXEL.model_copy(update={"training": replace(PIXEL.training, steps=3, validate_every=1)})
    kept = {}

    def fill_disk(progress) -> None:
        if progress.stage == "training" and progress.done == 1:
            kept.update(contents(checkpoint))
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

    with pytest.raises(InputError, match=r"cannot write .*checkpoint.*No space left.*resume") as caught:
        ff.Filler(settings=config).fit(gappy_dataset(), checkpoint, report=fill_disk)
    assert "\n" not in str(caught.value)
    assert kept["checkpoint.pt"] == (checkpoint / "checkpoint.pt").read_bytes()
    assert sorted(contents(checkpoint)) == ["checkpoint.pt", "run.json"]
    ballast.unlink()
    resumed = ff.Filler(settings=config).fit(gappy_dataset(), checkpoint, resume=True)
    assert [entry["step"] for entry in resumed.model_.notes["history"]] == [0, 1, 2, 3]


def test_a_model_that_does_not_fit_on_the_disk_can_be_saved_later(files, tmp_path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    filler = ff.load(files / "m.ff")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(InputError, match="cannot write"):
            filler.save(tmp_path / "m.ff")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.glob("m.ff*"))
    filler.save(tmp_path / "m.ff")


# Runs kept apart


def test_two_fits_to_one_output_are_kept_apart(files, tmp_path, monkeypatch, capsys) -> None:
    fit = ["fit", files / "gappy.nc", "-o", tmp_path / "m.ff", "--window", "4", "--partition", "pixel"]
    endless = ["--steps", "1000000", "--set", "training.validate_every=1", "--set", "training.patience=1000000"]
    command = [sys.executable, "-m", "fieldfill", *map(str, [*fit, *endless])]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "m.ff.part" / "checkpoint.pt"
    try:
        while not checkpoint.exists() and first.poll() is None:
            time.sleep(0.02)
        for flags in ([], ["--resume"], ["--overwrite"]):
            line = refused(monkeypatch, capsys, *fit, *endless, *flags)
            assert f"process {first.pid}" in line and str(tmp_path / "m.ff") in line
        assert first.poll() is None and checkpoint.exists()
    finally:
        first.kill()
        first.wait()
    assert "--resume continues" in refused(monkeypatch, capsys, *fit, *endless)
    assert call(monkeypatch, *fit, "--steps", "1", "--overwrite") == 0
    assert [p.name for p in tmp_path.iterdir()] == ["m.ff"]


@pytest.mark.parametrize("state", ["", "PK\3\4"])
def test_a_damaged_checkpoint_is_one_line(files, tmp_path, monkeypatch, capsys, state) -> None:
    folder = tmp_path / "m.ff.part"
    fit = [*command(files, "fit"), "-o", tmp_path / "m.ff"]
    ff.Filler(window=4, steps=1, partition="pixel").fit(open_dataset(files / "gappy.nc"), folder)
    (folder / "checkpoint.pt").write_text(state)
    line = refused(monkeypatch, capsys, *fit, "--resume")
    assert "checkpoint.pt is damaged" in line and "--overwrite" in line
    (folder / "checkpoint.pt").unlink()
    (folder / "run.json").write_text("")  # after a loss of power
    assert "cannot resume" in refused(monkeypatch, capsys, *fit, "--resume")
    assert sorted(contents(folder)) == ["run.json"]


def test_a_refused_fit_leaves_no_checkpoint_folder(files, tmp_path, monkeypatch, capsys) -> None:
    refused(monkeypatch, capsys, "fit", files / "gappy.nc", "-o", tmp_path / "m.ff", "--vars", "salt")
    assert list(tmp_path.iterdir()) == []


def test_resuming_with_another_domain_or_other_dims_is_refused(tmp_path) -> None:
    ds = gappy_dataset(rows=12, columns=12)
    sea = np.ones((12, 12), bool)
    sea[:, 0] = False
    ff.Filler(settings=PIXEL, domain=sea).fit(ds, checkpoint=tmp_path / "m.part")
    larger = sea.copy()
    larger[0, 0] = True  # never observed: neither mean nor std differ
    with pytest.raises(InputError, match="domain differ"):
        ff.Filler(settings=PIXEL, domain=larger).fit(ds, checkpoint=tmp_path / "m.part", resume=True)
    whole = np.ones((12, 12), bool)
    ff.Filler(settings=PIXEL, domain=whole).fit(ds, checkpoint=tmp_path / "n.part")
    turned = ff.Filler(settings=PIXEL, domain=whole, dims=("time", "lon", "lat"))
    with pytest.raises(InputError, match="dims differ"):
        turned.fit(ds, checkpoint=tmp_path / "n.part", resume=True)


@pytest.mark.parametrize("output", ["o.nc", "o.zarr", "o.ff"])
def test_leftovers_of_dead_processes_are_cleared_by_the_next_run(files, filler, tmp_path, output) -> None:
    code = """
        import os, shutil, signal, sys
        from pathlib import Path
        from fieldfill.data.output_paths import replacing
        written = Path(sys.argv[2])
        with replacing(Path(sys.argv[1])) as partial:
            shutil.copytree(written, partial) if written.is_dir() else shutil.copy(written, partial)
            print(partial.name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    target, written = tmp_path / output, tmp_path / f"half{Path(output).suffix}"
    save = filler.save if output == "o.ff" else lambda path: save_dataset(gappy_dataset(), path)
    save(written)
    if written.is_dir():
        next(written.glob("*.json")).unlink()
    killed = script(code, target, written, stdout=subprocess.PIPE, text=True)
    left = killed.communicate()[0].strip()
    assert killed.returncode == -signal.SIGKILL and f".part{killed.pid}" in left and (tmp_path / left).exists()
    alive = tmp_path / left.replace(str(killed.pid), str(os.getppid()))
    shutil.copytree(written, alive) if written.is_dir() else shutil.copy(written, alive)
    foreign = tmp_path / f"{output}.part{dead_process()}{target.suffix}"
    foreign.write_text("dear")
    save(target)
    assert {p.name for p in tmp_path.iterdir()} == {target.name, written.name, alive.name, foreign.name}


@pytest.mark.parametrize("output", ["o.nc", "o.zarr", "o.ff", "o"])
def test_copies_that_are_named_like_leftovers_stay(files, filler, tmp_path, output) -> None:
    number, suffix = dead_process(), Path(output).suffix
    save = (lambda path: save_dataset(gappy_dataset(), path)) if suffix in (".nc", ".zarr") else filler.save
    for role in ("part", "old"):
        save(tmp_path / f"{output}.{role}{number}{suffix or '.ff'}")
    if not suffix:
        for copy in list(tmp_path.iterdir()):
            copy.rename(copy.with_suffix(""))
    before = contents(tmp_path)
    save(tmp_path / output)
    assert before.items() <= contents(tmp_path).items()


def test_an_input_that_is_named_like_a_leftover_is_not_cleared(files, tmp_path, monkeypatch, capsys) -> None:
    given = tmp_path / f"o.nc.part{dead_process()}-{MACHINE}-0.nc"
    shutil.copy(files / "gappy.nc", given)
    for flags in ([], ["--overwrite"]):
        line = refused(monkeypatch, capsys, "fill", files / "m.ff", given, "-o", tmp_path / "o.nc", *flags)
        assert "rename it" in line and given.exists()


def test_leftovers_of_other_machines_are_left_alone(tmp_path) -> None:
    mine, theirs = (tmp_path / f"o.nc.part{dead_process()}{tag}.nc" for tag in ("", "-00000000-0"))
    for leftover in (mine, theirs):
        leftover.write_bytes(b"")
    save_dataset(gappy_dataset(), tmp_path / "o.nc")
    assert {p.name for p in tmp_path.iterdir()} == {"o.nc", theirs.name}


def test_model_files_follow_the_umask(filler, tmp_path) -> None:
    before = os.umask(0o027)
    try:
        path = filler.save(tmp_path / "m.ff")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert modes == {"model.json": 0o640, "weights.safetensors": 0o640}
