"""A fitted model: everything that filling needs and training found, and its directory on disk.

The directory holds ``weights.safetensors`` (every array) and ``model.json`` (everything else): reading it cannot run
code. It appears under its name only when it is complete.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Generator, Tensor

from fieldfill.config import Settings, build_denoiser, build_partition
from fieldfill.data.axes import Dims
from fieldfill.data.crops import Batch, Crops, Place
from fieldfill.data.grid import Grid, Placement
from fieldfill.data.kinds import FolderKind
from fieldfill.data.other_times import OtherTimes
from fieldfill.data.output_paths import check_output, replacing
from fieldfill.data.record import Record
from fieldfill.data.transforms import SEASON, Normaliser
from fieldfill.diffusion.denoiser import Denoiser
from fieldfill.errors import InputError
from fieldfill.metrics import distance_to_observation
from fieldfill.partition import Partition
from fieldfill.sampling.contexts import Ensemble, Estimate, row_generators, single_step
from fieldfill.seeds import place_stream
from fieldfill.uncertainty.budget import Budget
from fieldfill.uncertainty.calibration import Calibration
from fieldfill.uncertainty.local_scale import surroundings
from fieldfill.workflow.description import Description, check_arrays, refusing_damage

__all__ = ["KIND", "CropEstimates", "Model"]

# Format of the directory; models of another one are refused.
FORMAT = 5
WEIGHTS, DESCRIPTION = "weights.safetensors", "model.json"
KIND = FolderKind("a fieldfill model", {WEIGHTS: None, DESCRIPTION: None}, DESCRIPTION, "fieldfill")
SPREAD = "spread."  # begins the names of the calibration's arrays

Generators = Generator | Sequence[Generator]


@dataclass(frozen=True)
class Model:
    """A fitted model.

    Attributes
    ----------
    bank
        (N, C, T, H, W) bool, observation masks that the partition may draw from.
    shape
        frames, rows and columns of a crop.
    dims, sel, each
        how the axes are found, see `fieldfill.data.record.open_record`.
    domain, unsupported
        (C, H, W) bool: where the field exists; where the data could not teach it.
    domain_given
        whether the domain was given, rather than found in the data.
    maps
        (K, H, W) static features of every cell for the network.
    others
        (2, C, H, W) what the record showed of each cell, see `fieldfill.data.other_times`; None if nothing uses it.
    exposure
        (C, H, W) conditional query probability of each cell; NaN outside the domain.
    ensemble, spread
        how a fill is made and how uncertain it is, both chosen on held-out cells.
    notes
        what training found, for people and reports: history, choices, audit, crops skipped.
    """

    config: Settings
    seed: int
    variables: tuple[str, ...]
    dims: Dims | None
    sel: dict[str, float | str]
    each: tuple[str, ...]
    grid: Grid
    shape: tuple[int, int, int]
    normaliser: Normaliser
    denoiser: Denoiser
    partition_name: str
    partition: Partition
    bank: Tensor
    domain: Tensor
    domain_given: bool
    maps: Tensor
    others: Tensor | None
    unsupported: Tensor
    exposure: Tensor
    ensemble: Ensemble
    spread: Calibration
    notes: dict[str, Any]

    @overload
    def estimate(
        self, batch: Batch, generator: Generators, budget: Literal[False] = False
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def estimate(
        self, batch: Batch, generator: Generators, budget: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray, Budget]: ...

    @overload
    def estimate(
        self, batch: Batch, generator: Generators, budget: bool
    ) -> tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, Budget]: ...

    def estimate(
        self, batch: Batch, generator: Generators, budget: bool = False
    ) -> tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, Budget]:
        """Mean and standard deviation (B, C, T, H, W), unitless, of crops.

        With ``budget`` also the parts of the squared standard deviation, for the price of one more context.
        """
        generators, observed = row_generators(generator, len(batch)), batch.observed.numpy()
        found = self._step(batch, self.ensemble, generators)
        distance = distance_to_observation(observed, periodic=self.periodic(batch))
        raw = None if found.variance is None else found.variance.sqrt().numpy()
        around = surroundings(found.mean, batch.observed, batch.domain)
        std = np.where(observed, np.float32(0), self.spread(raw, distance, around))
        if not budget:
            return found.mean.numpy(), std
        return found.mean.numpy(), std, self._budget(batch, found, std, generators)

    def _step(self, batch: Batch, ensemble: Ensemble, generators: Sequence[Generator]) -> Estimate:
        return single_step(self.denoiser, batch.x, batch.observed, batch.maps, self.partition, ensemble, generators)

    def crops(self, record: Record) -> Crops:
        """The crops of a record on the grid of the model.

        Other times are those of the record itself, or of the one that was learnt from if that shows twice as much.
        """
        crops = Crops(record, self.normaliser, self.shape, maps=self.maps)
        if self.others is not None:
            settings = self.config.standing
            crops.others = OtherTimes(self.others[:1], self.others[1:], offsets=None, weight=settings.weight)
            if record.shape[2] > crops.length:
                own = OtherTimes.of(crops, settings.weight, settings.rounds)
                crops.others = own if 2 * own.count.sum() >= crops.others.count.sum() else crops.others
        return crops

    def periodic(self, batch: Batch) -> tuple[bool, bool]:
        """Whether rows and columns of crops close on themselves: they do if a crop is as large as a periodic grid."""
        sizes = (len(values) for values in self.grid.coordinates.values())
        rows, columns = (
            closed and size == length for closed, size, length in zip(self.grid.periodic, sizes, batch.x.shape[-2:])
        )
        return rows, columns

    def _budget(self, batch: Batch, found: Estimate, std: np.ndarray, generators: Sequence[Generator]) -> Budget:
        """The parts of Theorem 2; see `fieldfill.uncertainty.budget`."""
        whole = self._step(batch, Ensemble(0), generators)
        chance = found.between / found.contexts.view(-1, 1, 1, 1, 1)
        if found.variance is None or whole.variance is None:
            gap = (found.mean - whole.mean).square() - chance
        else:
            gap = found.variance - whole.variance - found.between
        if self.ensemble.count == 0:
            gap = torch.zeros_like(gap)  # the same context twice, but not the same noise
        return Budget.split(std**2, chance.numpy(), gap.numpy())

    def placed(self, placement: Placement, domain: np.ndarray) -> "Model":
        """The model on the cells of a record with a ``domain`` (C, H, W): everything that belongs to a place is moved.

        Beyond the fitted grid a cell has what the nearest fitted cell has, and no support.
        """
        if placement.same:
            return self
        statistics = [
            placement.cut(part) if part.shape[1:] == self.domain.shape[1:] else part
            for part in (self.normaliser.mean, self.normaliser.std)
        ]
        inside = torch.from_numpy(domain)
        maps, unsupported, exposure = (
            torch.from_numpy(placement.cut(part.numpy())) for part in (self.maps, self.unsupported, self.exposure)
        )
        if not self.domain.all():
            maps[: len(inside)] = inside.float()  # as `fieldfill.config.static_features` begins
        beyond = torch.from_numpy(placement.beyond)
        return replace(
            self,
            grid=placement.grid,
            normaliser=Normaliser(*statistics),
            domain=inside,
            maps=maps,
            others=None if self.others is None else torch.from_numpy(placement.cut(self.others.numpy())) * ~beyond,
            unsupported=unsupported | beyond,
            exposure=exposure.masked_fill(beyond, 0),
        )

    @property
    def own_variables(self) -> tuple[str, ...]:
        """The variables of the data, without the season that was added to them."""
        return tuple(name for name in self.variables if name not in SEASON)

    def summary(self) -> dict[str, Any]:
        """Partition, stages with their held-out errors (shares of the variance), and how well intervals hold."""
        notes, calibration = self.notes, self.notes["calibration"]
        stages = [
            {"name": name, "held_out": found["validation"], "standard_error": found.get("standard_error")}
            for name, found in notes["first_estimate"].items()
            if "validation" in found
        ]
        best = min(notes["history"], key=lambda entry: entry["validation"])
        stages.append({"name": "network", "held_out": best["validation"], "standard_error": best.get("standard_error")})
        covered = dict(zip(calibration.get("levels", ()), calibration.get("calibrated", ())))
        return {
            "variables": list(self.own_variables),
            "crop": list(self.shape),
            "partition": self.partition_name,
            "stages": stages,
            "fill": str(self.ensemble),
            "steps": notes["history"][-1]["step"],
            "seconds": notes["history"][-1]["seconds"],
            "stopped_early": notes.get("stopped_early", False),
            "validation_crops": notes["validation_crops"],
            "coverage90": covered.get(0.9),
            "coverage50": covered.get(0.5),
        }

    def save(self, path: Path, overwrite: bool = False) -> Path:
        path = check_output(path, KIND, overwrite)
        tensors = {f"denoiser.{name}": tensor.contiguous() for name, tensor in self.denoiser.state_dict().items()}
        tensors |= {
            "domain": self.domain,
            "maps": self.maps,
            "unsupported": self.unsupported,
            "exposure": self.exposure,
            "bank": torch.from_numpy(np.packbits(self.bank.numpy().ravel())),
            "normaliser.mean": torch.from_numpy(self.normaliser.mean),
            "normaliser.std": torch.from_numpy(self.normaliser.std),
        }
        if self.others is not None:
            tensors["others"] = self.others
        tensors |= {f"{SPREAD}{name}": torch.from_numpy(array) for name, array in self.spread.arrays().items()}
        weights = write_tensors(tensors)
        description = {
            "format": FORMAT,
            "fieldfill": version("fieldfill"),
            "digest": _digest(weights),
            "config": self.config.model_dump(mode="json"),
            "seed": self.seed,
            "variables": self.variables,
            "dims": self.dims,
            "sel": self.sel,
            "each": self.each,
            "grid": asdict(self.grid),
            "crop": self.shape,
            "partition": self.partition_name,
            "bank": list(self.bank.shape),
            "domain_given": self.domain_given,
            "ensemble": asdict(self.ensemble),
            "notes": self.notes,
        }
        with replacing(path, KIND if overwrite else None) as partial:
            partial.mkdir()
            (partial / WEIGHTS).write_bytes(weights)
            (partial / DESCRIPTION).write_text(json.dumps(description, indent=1))
        return path

    @classmethod
    def load(cls, path: Path) -> "Model":
        if not path.exists():
            raise InputError(f"no such model: {path}; make one with 'fieldfill fit DATA -o {path.name}'")
        if not ((path / DESCRIPTION).is_file() and (path / WEIGHTS).is_file()):
            raise InputError(
                f"{path} is not a fieldfill model, which is a directory with {DESCRIPTION} and {WEIGHTS}; "
                "give one that fit wrote"
            )
        with refusing_damage(path):
            text, weights = _read(path)
            saved, tensors = dict(json.loads(text)), read_tensors(weights)
        if saved.get("format") != FORMAT:
            raise InputError(
                f"the model {path} has format {saved.get('format')}, and this version reads format {FORMAT}; "
                "fit it again"
            )
        with refusing_damage(path):
            description = Description.model_validate_json(text, strict=True)
            check_arrays(description, tensors)
            return cls._of(description, tensors, saved["notes"])

    @classmethod
    def _of(cls, description: Description, tensors: Mapping[str, Tensor], notes: dict[str, Any]) -> "Model":
        config, grid = description.config, description.grid
        denoiser = build_denoiser(
            config,
            description.crop,
            len(description.variables),
            description.crop_periodic,
            seed=0,
            maps=len(tensors["maps"]),
            others="others" in tensors,
        )
        prefix = "denoiser."
        denoiser.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        spread = {k.removeprefix(SPREAD): v.numpy() for k, v in tensors.items() if k.startswith(SPREAD)}
        bits = np.unpackbits(tensors["bank"].numpy(), count=math.prod(description.bank))
        bank = torch.from_numpy(bits.astype(bool).reshape(description.bank))
        return cls(
            config=config,
            seed=description.seed,
            variables=description.variables,
            dims=description.dims,
            sel=description.sel,
            each=description.each,
            grid=grid,
            shape=description.crop,
            normaliser=Normaliser(tensors["normaliser.mean"].numpy(), tensors["normaliser.std"].numpy()),
            denoiser=denoiser.eval(),
            partition_name=description.partition,
            partition=build_partition(description.partition, bank, config.keep),
            bank=bank,
            domain=tensors["domain"],
            domain_given=description.domain_given,
            maps=tensors["maps"],
            others=tensors.get("others"),
            unsupported=tensors["unsupported"],
            exposure=tensors["exposure"],
            ensemble=description.ensemble,
            spread=Calibration.of(spread, notes["calibration"]),
            notes=notes,
        )


@dataclass(frozen=True)
class CropEstimates:
    """Mean, standard deviation and parts of the variance of some crops of a record, by a model.

    What is random about a crop follows from the seed and its place alone.
    """

    model: Model
    crops: Crops
    seed: int
    budget: bool

    def __call__(self, places: list[Place]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        batch = self.crops.training(places)
        generators = [place_stream(self.seed, *place) for place in places]
        mean, spread, *parts = self.model.estimate(batch, generators, self.budget)
        split = [part for found in parts for part in vars(found).values()]
        return mean, spread, np.stack(split, axis=1) if split else np.empty((len(batch), 0, *mean.shape[1:]))


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()


def _read(path: Path) -> tuple[str, bytes]:
    """Description and weights of one model: if another takes its place meanwhile, both are read again."""
    while True:
        before = _directory(path)
        try:
            text, weights = (path / DESCRIPTION).read_text(encoding="utf-8"), (path / WEIGHTS).read_bytes()
        except FileNotFoundError:
            if _directory(path) == before:
                raise
            continue
        if dict(json.loads(text)).get("digest") == _digest(weights):
            return text, weights
        if _directory(path) == before:
            raise ValueError(f"{WEIGHTS} does not belong to {DESCRIPTION}")


def _directory(path: Path) -> tuple[int, int]:
    """Identity of a directory, other for one that takes its name: each save makes a new one."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns
