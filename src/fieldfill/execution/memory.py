"""Memory that the process keeps for itself: freed blocks are used again instead of going back to the system.

glibc gives every large block back as soon as it is freed. Steps of a fit make blocks of the same sizes over and over
again, and each time the system has to map and clear their pages: more time than the computation itself on large grids.
"""

import ctypes
import platform
from enum import IntEnum
from functools import cache

__all__ = ["keep_freed_memory"]

# Bytes from which a block is mapped on its own, and given back when it is freed.
LARGEST_BLOCK = 2**30
# Free bytes at the end of the heap from which the heap shrinks.
MOST_FREE = 2**29


class Parameter(IntEnum):
    """Numbers of parameters in glibc's malloc.h."""

    TRIM_THRESHOLD = -1
    MMAP_THRESHOLD = -3


@cache
def keep_freed_memory() -> bool:
    """Sets the thresholds of glibc's malloc in this process; returns whether they were set.

    Other C libraries have no such thresholds; nothing happens there. Only the first call does anything.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(Parameter.TRIM_THRESHOLD, MOST_FREE)) and bool(mallopt(Parameter.MMAP_THRESHOLD, LARGEST_BLOCK))
