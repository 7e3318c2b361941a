"""The checkpoint file of a training, written so that a full disk or a kill leaves the one before it."""

import os
from pathlib import Path
from typing import IO, Any, cast

import torch

from fieldfill.data.transforms import Normaliser
from fieldfill.data.writer import written
from fieldfill.errors import InputError

__all__ = ["read_state", "saved_normaliser", "write_state"]


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Writes the state of a training, which has its ``step``; if that fails, the file before it stays."""
    partial = path.with_suffix(".tmp")
    try:
        partial.unlink(missing_ok=True)  # of a run that was killed
        with written(partial) as file:
            torch.save(state, cast(IO[bytes], file))
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(
            f"cannot write the checkpoint {path} of step {state['step']}: {error.strerror or error}; "
            "free some space, then --resume (resume=True) continues from the one before it"
        ) from error


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """The state that `write_state` wrote, its tensors on ``device``."""
    return torch.load(path, weights_only=True, map_location=device)


def saved_normaliser(path: Path) -> Normaliser:
    """The normaliser of the crops with which a checkpoint was written."""
    mean, std = read_state(path, torch.device("cpu"))["normaliser"]
    return Normaliser(mean.numpy(), std.numpy())
