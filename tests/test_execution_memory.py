"""Freed memory stays with the process: arrays of the same size, made again and again, cost no page faults."""

import json
import platform
import subprocess
import sys

import pytest

# Faults of twenty arrays of 64 MB after a first one, without and with the thresholds.
FAULTS = """
import json, resource
import numpy as np
from fieldfill.execution.memory import keep_freed_memory

def faults():
    np.ones(2**23)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(json.dumps([faults(), keep_freed_memory(), faults()]))
"""


def test_arrays_of_one_size_are_made_without_new_pages() -> None:
    before, kept, after = json.loads(subprocess.run([sys.executable, "-c", FAULTS], capture_output=True).stdout)
    if platform.libc_ver()[0] != "glibc":
        assert not kept
        pytest.skip("only glibc has thresholds")
    assert kept and after < 50 < before / 4


def test_nothing_happens_without_glibc(monkeypatch) -> None:
    from fieldfill.execution.memory import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert keep_freed_memory.__wrapped__() is False
