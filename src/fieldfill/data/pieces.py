"""Pieces: how much of a large array is worked on at once, so that temporary arrays fit into memory."""

__all__ = ["CELLS_AT_ONCE", "MASK_BYTES", "at_once"]

# Cells of an array that are worked on together: 8 MB in single precision, of which a step may hold a dozen.
CELLS_AT_ONCE = 2**21
# Bytes of the observation masks of all crops that are compared, at most.
MASK_BYTES = 2**27


def at_once(cells: int) -> int:
    """Number of items, of so many cells each, that are worked on together: one at least."""
    return max(1, CELLS_AT_ONCE // max(1, cells))
