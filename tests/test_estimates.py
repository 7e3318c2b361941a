"""Several processes fill like one, and a process that dies is told in one line."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fieldfill as ff
from conftest import gappy_dataset
from fieldfill.config import Config
from fieldfill.errors import InputError
from fieldfill.estimates import Estimator, estimates
from fieldfill.record import open_record
from fieldfill.train import TrainSettings
from fieldfill.windows import Windows


@pytest.fixture(scope="module")
def filler() -> ff.Filler:
    config = Config(window=4, base=8, levels=2, training=TrainSettings(steps=2, batch=2), contexts=2)
    return ff.Filler(config=config, seed=1).fit(gappy_dataset())


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "on disk"])
def test_several_processes_fill_like_one(filler: ff.Filler, tmp_path: Path, stored: bool) -> None:
    ds = gappy_dataset()
    if stored:
        ff.save_dataset(ds, tmp_path / "gappy.nc")
        ds = ff.open_dataset(tmp_path / "gappy.nc")
    told: list[tuple[int, int]] = []
    alone = filler.fill(ds, budget=True)
    shared = filler.fill(ds, budget=True, workers=2, report=lambda done, total: told.append((done, total)))
    for name in alone.data_vars:
        np.testing.assert_allclose(shared[name], alone[name], rtol=1e-5, atol=1e-6, err_msg=str(name))
    assert len(told) > 1 and told[-1][0] == told[-1][1]


class Dying(Estimator):
    def __call__(self, places: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        os._exit(9)


def test_a_worker_that_dies_is_told_in_one_line(filler: ff.Filler) -> None:
    record = open_record(gappy_dataset(), domain=filler.model_.domain.numpy())
    windows = Windows(record, filler.model_.normaliser, 4)
    found: Iterator = estimates(Dying(filler.model_, windows, 0, False), None, workers=2)
    with pytest.raises(InputError, match=r"2 worker processes died.*fewer workers"):
        next(found)


def test_no_workers_are_refused(filler: ff.Filler) -> None:
    with pytest.raises(InputError, match="workers=0"):
        filler.fill(gappy_dataset(), workers=0)
