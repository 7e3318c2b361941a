"""Threads: what was asked for, or the fastest in a short test; the number before is restored."""

import time

import pytest
import torch

from fieldfill.execution import threads


@pytest.fixture
def four_cores(monkeypatch) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_what_was_asked_for_is_not_tested(four_cores, monkeypatch) -> None:
    def never() -> None:
        raise AssertionError("no test is needed")

    assert threads.fastest_threads(never, 3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.fastest_threads(never) == torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "available_cores", lambda: 1)
    assert threads.fastest_threads(never) == torch.get_num_threads()


@pytest.mark.parametrize(
    ("seconds", "best"), [({1: 0.2, 2: 0.1, 4: 0.05}, 4), ({1: 0.1, 2: 0.1}, 1), ({1: 0.2, 2: 0.1, 4: 0.15}, 2)]
)
def test_the_fastest_number_wins_and_more_must_gain(four_cores, seconds, best) -> None:
    before = torch.get_num_threads()
    assert threads.fastest_threads(lambda: time.sleep(seconds[torch.get_num_threads()])) == best
    assert torch.get_num_threads() == before


def test_the_number_is_restored_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), threads.using_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == before
