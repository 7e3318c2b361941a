"""Writes simulated fields to a Zarr store, batch after batch, so that an interrupted run can go on.

The store has the dimensions ``sample, time, y, x``, one float32 array per variable and one coordinate along
``sample`` per random parameter. While it grows it lives in ``<path>.part/data`` beside ``progress.json``; it
gets its final name by one rename when it is complete, so a store under its final name is never half-written.

Batch ``b`` of a run draws from its own generator, seeded by ``(seed, b)``, and is written whole. What a
killed run leaves of a batch is overwritten, hence the finished store does not depend on the interruptions.
"""

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import zarr
from torch import Generator, Tensor
from zarr.errors import ZarrUserWarning

from fieldfill.data.kinds import ZARR, FileKind, FolderKind, Kind, foreign
from fieldfill.data.output_paths import COMPRESSED, LOCK, LOCKED, check_space, locked, target_of
from fieldfill.errors import InputError

__all__ = ["Simulator", "batch_generator", "write"]

# Bytes of the samples that are simulated together.
BATCH_BYTES = 2**26
# Bytes of a chunk of the store.
CHUNK_BYTES = 2**22
RECORD, FRESH = "progress.json", "progress.new"
PROGRESS = FileKind("the record of a run", (b'{"identity"',))
PARTS: dict[str, Kind | None] = {"data": ZARR, "replaced": ZARR, RECORD: PROGRESS, FRESH: PROGRESS, LOCK: LOCKED}
UNFINISHED = FolderKind("an unfinished run", PARTS, RECORD, "identity")


class Simulator(Protocol):
    """What :func:`write` needs of a simulator, a frozen dataclass (see :mod:`fieldfill.simulate`)."""

    @property
    def variables(self) -> tuple[str, ...]: ...
    @property
    def units(self) -> Mapping[str, str]: ...
    def coordinates(self) -> Mapping[str, tuple[np.ndarray, Mapping[str, Any]]]: ...
    def simulate(self, count: int, generator: Generator) -> tuple[Tensor, dict[str, Tensor]]: ...


def batch_generator(seed: int, batch: int) -> Generator:
    """The generator of batch number ``batch`` of a run: a function of both numbers and nothing else."""
    state = np.random.SeedSequence(seed, spawn_key=(batch,)).generate_state(1, np.uint64)
    return Generator().manual_seed(int(state[0]) >> 1)


def write(
    simulator: Simulator,
    path: str | os.PathLike[str],
    samples: int,
    seed: int = 0,
    *,
    batch: int | None = None,
    chunk: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Simulates ``samples`` samples into the Zarr store ``path`` and returns its path.

    Memory holds one batch of ``batch`` samples at a time (default: as many as fit in 64 MB in double
    precision, at least one). A chunk on disk holds ``chunk`` frames of one sample (default: all of them, up
    to 4 MB), so that a window of a sample is read alone. An unfinished run of the same settings is continued.
    ``progress`` is called with the numbers of samples done and asked for. The content is a function of the
    simulator, ``samples``, ``seed`` and ``batch``.
    """
    path = target_of(Path(path))
    if samples < 1 or seed < 0 or (batch is not None and batch < 1) or (chunk is not None and chunk < 1):
        raise InputError(
            f"samples={samples}, seed={seed}, batch={batch}, chunk={chunk}: "
            "samples, batch and chunk must be at least 1 and seed at least 0"
        )
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} already exists; choose another name or pass --overwrite (overwrite=True)")
    if os.path.lexists(path) and (problem := foreign(path, ZARR)):
        raise InputError(problem)
    run = _Run(simulator, path, samples, seed, batch, chunk)
    try:
        if os.path.lexists(run.part):
            run.check()
        with locked(run.part):
            run.prepare(overwrite)
            run.finish(progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write {path}: {reason}; choose another place or free some space, then run again to go on"
        ) from error
    return path


class _Run:
    """One run of a simulator into one store: where it stands on disk, and how it goes on."""

    def __init__(
        self, simulator: Simulator, path: Path, samples: int, seed: int, batch: int | None, chunk: int | None
    ) -> None:
        self.simulator, self.path, self.samples, self.seed = simulator, path, samples, seed
        self.coordinates = simulator.coordinates()
        self.grid = tuple(len(self.coordinates[name][0]) for name in ("time", "y", "x"))
        frames, *plane = self.grid
        sample_bytes = 8 * len(simulator.variables) * math.prod(self.grid)
        self.batch = min(samples, batch or max(1, BATCH_BYTES // sample_bytes))
        self.chunk = min(frames, chunk or max(1, CHUNK_BYTES // (4 * math.prod(plane))))
        self.part = path.with_name(path.name + ".part")
        self.data = self.part / "data"
        self.record = self.part / RECORD
        self.fresh = self.part / FRESH
        self.replaced = self.part / "replaced"

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "Conventions": "CF-1.11",
            "title": f"fields simulated by {type(self.simulator).__name__}",
            "source": f"fieldfill {version('fieldfill')}",
            "simulator": type(self.simulator).__name__,
            "settings": json.dumps(asdict(self.simulator), default=str),  # type: ignore[call-overload]
            "seed": self.seed,
            "batch": self.batch,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides the content: an unfinished run with another identity cannot be continued."""
        return self.attributes | {"samples": self.samples, "chunk": self.chunk}

    def prepare(self, overwrite: bool) -> None:
        """Finds the unfinished run that this one continues, or makes the place for a new one."""
        self.check()
        if self.record.exists():
            same = json.loads(self.record.read_text())["identity"] == self.identity
            if same and self.data.exists():
                for torn in self.data.rglob("*.partial"):  # files that zarr had not yet given their name
                    torn.unlink(missing_ok=True)
                return
            if self.replaced.exists() and not self.path.exists():  # a kill fell between the last two moves
                os.rename(self.replaced, self.path)
            if not same and not overwrite:
                raise InputError(
                    f"{self.part} holds an unfinished run with other settings: "
                    "run again with those, or remove it, or overwrite it (overwrite=True, --overwrite)"
                )
            self._discard()
        check_space(self.path, COMPRESSED * 4 * self.samples * len(self.simulator.variables) * math.prod(self.grid))
        self._remember(0)

    def check(self) -> None:
        """Refuses a part that holds anything but an unfinished run."""
        started = self.data.exists() or self.replaced.exists()
        if problem := foreign(self.part, UNFINISHED, unfinished=not started):
            raise InputError(problem)

    def finish(self, progress: Callable[[int, int], None] | None) -> None:
        """Writes the batches that are not yet written, then gives the store its name."""
        done = json.loads(self.record.read_text())["batches"]
        for number in range(done, math.ceil(self.samples / self.batch)):
            start = number * self.batch
            stop = min(start + self.batch, self.samples)
            fields, parameters = self.simulator.simulate(stop - start, batch_generator(self.seed, number))
            if number == 0:
                self._create(tuple(parameters))
            self._write_batch(slice(start, stop), fields, parameters)
            self._remember(number + 1)
            if progress is not None:
                progress(stop, self.samples)
        with warnings.catch_warnings():
            # every reader of Zarr 3 in Python takes the metadata from one place, though the format is silent
            warnings.simplefilter("ignore", ZarrUserWarning)
            zarr.consolidate_metadata(self.data)
        if self.path.exists():
            os.rename(self.path, self.replaced)
        os.rename(self.data, self.path)
        self._discard()

    def _create(self, parameters: tuple[str, ...]) -> None:
        """An empty store with its metadata and coordinates; replaces what a run killed in batch 0 left."""
        group = zarr.create_group(self.data, overwrite=True, zarr_format=3, attributes=self.attributes)
        number = (np.arange(self.samples), {"long_name": "number of the sample"})
        axes = {"sample": number, **self.coordinates}
        for name, (values, attributes) in axes.items():
            group.create_array(name, data=values, dimension_names=[name], attributes=dict(attributes))
        for name in parameters:
            group.create_array(
                name,
                shape=(self.samples,),
                chunks=(self.batch,),
                dtype="float64",
                fill_value=np.nan,
                dimension_names=["sample"],
                attributes=self._describe(name),
            )
        frames, *plane = self.grid
        beside = {"coordinates": " ".join(parameters)} if parameters else {}
        for name in self.simulator.variables:
            group.create_array(
                name,
                shape=(self.samples, *self.grid),
                chunks=(1, self.chunk, *plane),
                shards=(self.batch, self.chunk * math.ceil(frames / self.chunk), *plane),
                dtype="float32",
                fill_value=np.nan,
                dimension_names=["sample", "time", "y", "x"],
                attributes=self._describe(name) | beside,
            )

    def _describe(self, name: str) -> dict[str, Any]:
        long_names: Mapping[str, str] = getattr(self.simulator, "long_names", {})
        return {"units": self.simulator.units.get(name, "1"), "long_name": long_names.get(name, name)}

    def _write_batch(self, some: slice, fields: Tensor, parameters: Mapping[str, Tensor]) -> None:
        group = zarr.open_group(self.data, mode="r+")
        for channel, name in enumerate(self.simulator.variables):
            _array(group, name)[some] = fields[:, channel].to("cpu", torch.float32).numpy()
        for name, values in parameters.items():
            _array(group, name)[some] = values.cpu().numpy()

    def _remember(self, batches: int) -> None:
        """Replaces the record in one move: a kill leaves the old one or the new one."""
        self.fresh.write_text(json.dumps({"identity": self.identity, "batches": batches}))
        os.replace(self.fresh, self.record)

    def _discard(self) -> None:
        """Removes all but the lock, the record last: what a kill leaves is still recognised as our own."""
        for folder in (self.data, self.replaced):
            if folder.exists():
                shutil.rmtree(folder)
        for file in (self.fresh, self.record):
            file.unlink(missing_ok=True)


def _array(group: zarr.Group, name: str) -> zarr.Array:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return array
