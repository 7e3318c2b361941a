"""Several processes fill like one, and a process that dies leaves one line."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fieldfill as ff
from conftest import QUICK, gappy_dataset
from fieldfill.data.crops import Crops, Place
from fieldfill.data.record import open_record
from fieldfill.data.transforms import Normaliser
from fieldfill.errors import InputError
from fieldfill.execution import processes
from fieldfill.execution.processes import filled_frames
from fieldfill.workflow.model import CropEstimates


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    return ff.Filler(settings=QUICK.model_copy(update={"solver_steps": 24}), seed=1).fit(gappy_dataset())


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "on disk"])
def test_several_processes_fill_like_one(filler: ff.Filler, tmp_path: Path, stored: bool) -> None:
    ds = gappy_dataset()
    if stored:
        ff.save_dataset(ds, tmp_path / "gappy.nc")
        ds = ff.open_dataset(tmp_path / "gappy.nc")
    reports: list[tuple[int, int]] = []
    alone = filler.fill(ds, budget=True)
    shared = filler.fill(ds, budget=True, workers=2, report=lambda at: reports.append((at.done, at.total)))
    for name in alone.data_vars:
        np.testing.assert_allclose(shared[name], alone[name], rtol=1e-5, atol=1e-6, err_msg=str(name))
    assert len(reports) > 1 and reports[-1][0] == reports[-1][1]


class Dying(CropEstimates):
    def __call__(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        os._exit(9)


def test_a_worker_that_dies_is_told_in_one_line(filler: ff.Filler) -> None:
    record = open_record(gappy_dataset(), domain=filler.model_.domain.numpy())
    crops = Crops(record, filler.model_.normaliser, (4, 9, 12))
    found: Iterator = filled_frames(Dying(filler.model_, crops, 0, False), crops, None, workers=2)
    with pytest.raises(InputError, match=r"2 worker processes died.*fewer workers"):
        next(found)


@pytest.mark.parametrize("wraps", [False, True], ids=["open", "periodic"])
@pytest.mark.parametrize("shape", [(4, 5, 5), (1, 9, 12), (7, 9, 4), (20, 1, 12)], ids=str)
def test_the_crops_of_a_field_are_joined_to_all_its_frames_in_order(shape, wraps, monkeypatch) -> None:
    """Batches that end within a sample, or reach into the next one, change nothing."""
    monkeypatch.setattr(processes, "BATCH", 7)
    ds = xr.concat([gappy_dataset(seed=seed, names="a,b") for seed in range(3)], "sample")
    ds.lon.attrs["periodic"] = int(wraps)
    record = open_record(ds)
    crops = Crops(record, Normaliser(record.mean, record.std), shape)
    field, parts = np.random.default_rng(0).random((2, *record.shape)), np.array([0.2, 0.5, 0.3])

    def cut(places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, columns = crops.axes[1:]
        boxes = [(f + np.arange(shape[0]), rows.cells(r), columns.cells(c)) for _, f, r, c in places]
        mean, spread = (
            np.stack([part[place[0]][(slice(None), *np.ix_(*box))] for place, box in zip(places, boxes)])
            for part in field
        )
        return mean, spread, mean[:, None] * parts[:, None, None, None, None]

    reports: list[tuple[int, int]] = []
    next_frame = dict.fromkeys(range(3), 0)
    for sample, frames, mean, spread, shares in filled_frames(cut, crops, lambda *n: reports.append(n)):
        assert frames.start == next_frame[sample] < frames.stop
        assert all(next_frame[before] == 20 for before in range(sample))
        next_frame[sample] = frames.stop
        for found, true in zip((mean, spread), field):
            np.testing.assert_allclose(found, true[sample, :, frames], atol=1e-12)
        np.testing.assert_allclose(shares, np.broadcast_to(parts.reshape(3, 1, 1, 1, 1), shares.shape), atol=1e-12)
    assert set(next_frame.values()) == {20} and reports[-1][0] == reports[-1][1] == 3 * len(places_of(crops))


def places_of(crops: Crops) -> list[tuple[int, int, int]]:
    frames, rows, columns = crops.tiling.starts
    return [(f, r, c) for f in frames for r in rows for c in columns]


def test_no_workers_are_refused(filler: ff.Filler) -> None:
    with pytest.raises(InputError, match="workers=0"):
        filler.fill(gappy_dataset(), workers=0)
