"""Flags: the values of v_flag, what they mean, and which cell has which.

A new value is a line in `FLAGS` and a line in `flag_cells`; if it marks filled cells, it also belongs to `FILLED`.
This module never imports torch.
"""

from typing import Any

import numpy as np

__all__ = ["FILLED", "FLAGS", "flag_attributes", "flag_cells", "is_our_flag"]

# Values of v_flag by their CF meanings.
FLAGS = {"observed": 0, "filled": 1, "filled_without_support": 2, "outside_domain": 3}
# Values of the cells that were missing and have been filled.
FILLED = (FLAGS["filled"], FLAGS["filled_without_support"])


def flag_cells(observed: np.ndarray, missing: np.ndarray, unsupported: np.ndarray) -> np.ndarray:
    """The flag of each cell, int8; cells neither ``observed`` nor ``missing`` lie outside the domain.

    ``unsupported`` marks cells that the data could not teach; only its missing ones are used.
    """
    flags = np.full(observed.shape, FLAGS["outside_domain"], np.int8)
    flags[missing] = FLAGS["filled"]
    flags[missing & unsupported] = FLAGS["filled_without_support"]
    flags[observed] = FLAGS["observed"]
    return flags


def flag_attributes() -> dict[str, Any]:
    """The CF attributes that list values and meanings."""
    return {"flag_values": np.array(list(FLAGS.values()), dtype=np.int8), "flag_meanings": " ".join(FLAGS)}


def is_our_flag(attrs: dict) -> bool:
    """Whether the attributes of a flag variable have the values and the meanings of `FLAGS`."""
    values = np.ravel(attrs.get("flag_values", []))
    same = len(values) == len(FLAGS) and all(value == flag for value, flag in zip(values, FLAGS.values()))
    return same and str(attrs.get("flag_meanings", "")).split() == list(FLAGS)
