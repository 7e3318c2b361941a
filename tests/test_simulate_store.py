"""The store of simulated fields: layout, sameness under kills and faults, one-line refusals."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from conftest import contents
from fieldfill.errors import InputError
from fieldfill.simulate import Advection, NavierStokes, ShallowWater
from fieldfill.simulate.store import batch_generator, write

SMALL = ShallowWater(size=8, frames=5)


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """The operating system refuses longer files meanwhile, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "simulator",
    [Advection(size=8, frames=4), SMALL, NavierStokes(size=8, frames=3, resolution=16, warmup=0.1)],
    ids=lambda simulator: type(simulator).__name__,
)
def test_a_store_holds_what_was_simulated_with_units_and_parameters(simulator, tmp_path: Path) -> None:
    path = write(simulator, tmp_path / "a.zarr", samples=5, seed=3, batch=2)
    with xr.open_zarr(path) as store:
        store.load()
    assert tuple(store.data_vars) == simulator.variables
    for number, start in enumerate((0, 2, 4)):
        stop = min(start + 2, 5)
        fields, parameters = simulator.simulate(stop - start, batch_generator(3, number))
        for channel, name in enumerate(simulator.variables):
            assert store[name].dims == ("sample", "time", "y", "x") and store[name].dtype == np.float32
            np.testing.assert_array_equal(store[name][start:stop], fields[:, channel].to(torch.float32))
        for name, values in parameters.items():
            assert name in store.coords
            np.testing.assert_array_equal(store[name][start:stop], values)
    for name in (*simulator.variables, *parameters):
        assert store[name].attrs["units"] == simulator.units[name]
    for name, (values, attributes) in simulator.coordinates().items():
        np.testing.assert_array_equal(store[name], values)
        assert store[name].attrs == attributes
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_the_simulator_can_be_made_again_from_the_store(tmp_path: Path) -> None:
    path = write(SMALL, tmp_path / "a.zarr", samples=3)
    with xr.open_zarr(path) as store:
        again = ShallowWater(**json.loads(store.attrs["settings"]))
        fields = torch.from_numpy(store.to_dataarray().transpose("sample", "variable", "time", "y", "x").values)
        parameters = {name: torch.from_numpy(store[name].values) for name in ("gravity", "depth", "coriolis")}
    residual = again.residual(fields.double(), parameters)
    assert residual.square().mean() < 1e-4 * again.tendency(fields.double(), parameters).square().mean()


def test_a_window_of_one_sample_is_one_chunk(tmp_path: Path) -> None:
    path = write(Advection(size=8, frames=20), tmp_path / "a.zarr", samples=6, batch=3, chunk=8)
    with xr.open_zarr(path) as store:
        assert store["u"].encoding["chunks"] == (1, 8, 8, 8)
        assert store["u"].encoding["shards"][0] == 3


def test_memory_holds_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    @dataclass(frozen=True)
    class Counting(Advection):
        def simulate(self, count, generator):
            counts.append(count)
            return super().simulate(count, generator)

    write(Counting(size=8, frames=2), tmp_path / "a.zarr", samples=10, batch=4)
    assert counts == [4, 4, 2]
    counts.clear()
    # without a batch size, as many samples as fit in the budget: 8 bytes x 2 frames x 8 x 8 cells are 1024
    monkeypatch.setattr("fieldfill.simulate.store.BATCH_BYTES", 3000)
    write(Counting(size=8, frames=2), tmp_path / "b.zarr", samples=3)
    monkeypatch.setattr("fieldfill.simulate.store.BATCH_BYTES", 30)
    write(Counting(size=8, frames=2), tmp_path / "c.zarr", samples=2)
    assert counts == [2, 1, 1, 1]


def test_the_seed_decides_the_content(tmp_path: Path) -> None:
    stores = [write(SMALL, tmp_path / name, 4, seed, batch=2) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    first, same, other = map(contents, stores)
    assert first == same
    assert first["h/c/0/0/0/0"] != other["h/c/0/0/0/0"]
    assert first["h/c/0/0/0/0"] != first["h/c/1/0/0/0"], "batches differ"


def test_a_killed_process_is_continued_bit_for_bit(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from fieldfill.simulate import ShallowWater
        from fieldfill.simulate.store import write

        def progress(done, total):
            print(done, flush=True)
            time.sleep(0.05)

        write(ShallowWater(size=8, frames=5), sys.argv[1], 60, 7, batch=2, progress=progress)
    """)
    target = tmp_path / "killed.zarr"
    reached = []
    for lines in (3, 4):
        process = subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(lines):
            last = process.stdout.readline()
        time.sleep(0.07)  # somewhere in the next batch
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        reached.append(int(last))
        assert not target.exists() and (tmp_path / "killed.zarr.part").exists()
    assert reached[0] == 6 and reached[1] >= 14, "the second run goes on after the first"
    calls: list[int] = []
    write(SMALL, target, 60, 7, batch=2, progress=lambda done, total: calls.append(done))
    assert calls[0] > 14, "the third run goes on after the second"
    assert contents(target) == contents(write(SMALL, tmp_path / "whole.zarr", 60, 7, batch=2))
    assert not (tmp_path / "killed.zarr.part").exists()


class Killed(BaseException):
    """Stands for a kill: nothing that catches Exception cleans up after it."""


def test_a_kill_at_any_file_is_continued_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Advection(size=8, frames=2)
    whole = contents(write(simulator, tmp_path / "whole.zarr", 5, batch=2))
    moves = {"left": 0}

    def killed_at_zero(move):
        def wrapped(*args, **options):
            moves["left"] -= 1
            if moves["left"] < 0:
                raise Killed
            return move(*args, **options)

        return wrapped

    target, attempts = tmp_path / "a.zarr", 0
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed_at_zero(Path.replace))
        for module, name in ((os, "replace"), (os, "rename"), (shutil, "rmtree")):
            patch.setattr(module, name, killed_at_zero(getattr(module, name)))
        while not target.exists() or (tmp_path / "a.zarr.part").exists():
            # each attempt gets one file further than the one before, so that kills fall everywhere
            moves["left"] = attempts
            attempts += 1
            try:
                write(simulator, target, 5, batch=2, overwrite=True)
            except Killed:
                assert not target.exists() or contents(target) == whole
    assert attempts > 10
    assert contents(target) == whole
    # the same once more over the finished store: until the last move the old content stays whole
    other = contents(write(simulator, tmp_path / "other.zarr", 5, seed=1, batch=2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed_at_zero(os.rename))
        for left in (0, 1):
            moves["left"] = left
            with pytest.raises(Killed):
                write(simulator, target, 5, seed=1, batch=2, overwrite=True)
            assert not target.exists() or contents(target) == whole
    write(simulator, target, 5, seed=1, batch=2)
    assert contents(target) == other and not (tmp_path / "a.zarr.part").exists()


def test_a_full_disk_is_reported_in_one_line_and_the_run_goes_on_later(tmp_path: Path) -> None:
    with no_file_longer_than(4000), pytest.raises(InputError, match=r"cannot write .*full.zarr: ") as caught:
        write(SMALL, tmp_path / "full.zarr", 6, batch=3)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "full.zarr").exists()
    assert contents(write(SMALL, tmp_path / "full.zarr", 6, batch=3)) == contents(
        write(SMALL, tmp_path / "roomy.zarr", 6, batch=3)
    )


def test_an_unwritable_path_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write") as caught:
        write(SMALL, tmp_path / "file" / "a.zarr", 1)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way" and os.listdir(tmp_path) == ["file"]


def test_missing_directories_are_made(tmp_path: Path) -> None:
    assert write(SMALL, str(tmp_path / "new" / "a.zarr"), 1).exists()


def test_an_existing_store_is_kept_unless_asked(tmp_path: Path) -> None:
    path = write(SMALL, tmp_path / "a.zarr", 2)
    before = contents(path)
    with pytest.raises(InputError, match="already exists"):
        write(SMALL, path, 2, seed=1)
    assert contents(path) == before
    write(SMALL, path, 2, seed=1, overwrite=True)
    assert contents(path) == contents(write(SMALL, tmp_path / "b.zarr", 2, seed=1))
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr"]


def test_an_unfinished_run_with_other_settings_is_not_mixed_in(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(SMALL, tmp_path / "a.zarr", 4, batch=2, progress=stop)
    for others in ({"seed": 1}, {"samples": 6}, {"batch": 3}, {"simulator": ShallowWater(size=8, frames=6)}):
        asked = {"simulator": SMALL, "samples": 4, "seed": 0, "batch": 2} | others
        with pytest.raises(InputError, match="unfinished run"):
            write(path=tmp_path / "a.zarr", **asked)
    write(SMALL, tmp_path / "a.zarr", 4, seed=1, batch=2, overwrite=True)
    assert contents(tmp_path / "a.zarr") == contents(write(SMALL, tmp_path / "b.zarr", 4, seed=1, batch=2))


def test_a_foreign_directory_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.zarr.part").mkdir()
    (tmp_path / "a.zarr.part" / "thesis.tex").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="move it away"):
            write(SMALL, tmp_path / "a.zarr", 1, overwrite=overwrite)
    assert (tmp_path / "a.zarr.part" / "thesis.tex").read_text() == "dear"


def test_only_stores_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "file").write_text("dear")
    for name in ("thesis", "file"):
        with pytest.raises(InputError, match="not a Zarr store"):
            write(SMALL, tmp_path / name, 1, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "thesis"]


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"seed": -1}, {"batch": 0}, {"chunk": 0}])
def test_senseless_numbers_are_refused(wrong: dict, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least"):
        write(SMALL, tmp_path / "a.zarr", **({"samples": 1} | wrong))
    assert os.listdir(tmp_path) == []
