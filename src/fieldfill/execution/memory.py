"""Memory that the process keeps for itself: freed blocks are used again instead of going back to the system.

glibc gives every large block back as soon as it is freed. Steps of a fit make blocks of the same sizes over and over
again, and each time the system has to map and clear their pages: more time than the computation itself on large grids.
"""

import ctypes
import platform
from functools import cache

__all__ = ["keep_freed_memory"]

# Numbers of these parameters in glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
# Bytes from which a block is mapped on its own, and given back when it is freed.
LARGEST_KEPT = 2**30
# Free bytes at the end of the heap from which the heap shrinks.
MOST_KEPT = 2**29


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
    return bool(mallopt(M_TRIM_THRESHOLD, MOST_KEPT)) and bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT))
