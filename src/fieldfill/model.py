"""A fitted model: everything that filling needs and training found, and its directory on disk.

The directory holds ``weights.safetensors`` (every array) and ``model.json`` (everything else): reading it cannot run
code. It appears under its name only when it is complete.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from fieldfill.budget import Budget
from fieldfill.config import Config, build_denoiser, build_partition
from fieldfill.denoise import Denoiser
from fieldfill.errors import InputError
from fieldfill.grid import Grid
from fieldfill.io import check_free, replacing
from fieldfill.metrics import distance_to_observation
from fieldfill.partition import Partition
from fieldfill.sample import Ensemble, Estimate, row_generators, single_step
from fieldfill.surroundings import surroundings
from fieldfill.uncertainty import Calibration
from fieldfill.windows import Normaliser

__all__ = ["Model"]

FORMAT = 4
WEIGHTS, DESCRIPTION = "weights.safetensors", "model.json"
SPREAD = "spread."  # begins the names of the calibration's arrays

Generators = Generator | Sequence[Generator]


@dataclass(frozen=True)
class Model:
    """A fitted model.

    Attributes
    ----------
    bank
        (N, C, T, H, W) bool, observation masks that the partition may draw from.
    domain, unsupported
        (C, H, W) bool: where the field exists; where the data could not teach it.
    exposure
        (C, H, W) conditional query probability of each cell; NaN outside the domain.
    ensemble, spread
        how a fill is made and how uncertain it is, both chosen on held-out cells.
    notes
        what training found, for people and reports: history, choices, audit, windows skipped.
    """

    config: Config
    seed: int
    variables: tuple[str, ...]
    dims: tuple[str, str, str] | None
    grid: Grid
    normaliser: Normaliser
    denoiser: Denoiser
    partition_name: str
    partition: Partition
    bank: Tensor
    domain: Tensor
    unsupported: Tensor
    exposure: Tensor
    ensemble: Ensemble
    spread: Calibration
    notes: dict[str, Any]

    @overload
    def estimate(
        self, x: Tensor, observed: Tensor, generator: Generators, budget: Literal[False] = False
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def estimate(
        self, x: Tensor, observed: Tensor, generator: Generators, budget: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray, Budget]: ...

    @overload
    def estimate(
        self, x: Tensor, observed: Tensor, generator: Generators, budget: bool
    ) -> tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, Budget]: ...

    def estimate(
        self, x: Tensor, observed: Tensor, generator: Generators, budget: bool = False
    ) -> tuple[np.ndarray, np.ndarray] | tuple[np.ndarray, np.ndarray, Budget]:
        """Mean and standard deviation (B, C, T, H, W), unitless, of windows x with ``observed`` cells.

        With ``budget`` also the parts of the squared standard deviation, for the price of one more context.
        """
        generators = row_generators(generator, len(x))
        found = single_step(self.denoiser, x, observed, self.partition, self.ensemble, generators)
        distance = distance_to_observation(observed.numpy(), periodic=self.grid.periodic)
        raw = None if found.variance is None else found.variance.sqrt().numpy()
        around = surroundings(found.mean, observed, self.domain)
        std = np.where(observed.numpy(), np.float32(0), self.spread(raw, distance, around))
        if not budget:
            return found.mean.numpy(), std
        return found.mean.numpy(), std, self._budget(x, observed, found, std, generators)

    def _budget(
        self, x: Tensor, observed: Tensor, found: Estimate, std: np.ndarray, generators: Sequence[Generator]
    ) -> Budget:
        """The parts of Theorem 2; see `fieldfill.budget`."""
        whole = single_step(self.denoiser, x, observed, self.partition, Ensemble(0), generators)
        chance = found.between / found.contexts.view(-1, 1, 1, 1, 1)
        if found.variance is None or whole.variance is None:
            gap = (found.mean - whole.mean).square() - chance
        else:
            gap = found.variance - whole.variance - found.between
        if self.ensemble.count == 0:
            gap = torch.zeros_like(gap)  # the same context twice, but not the same noise
        return Budget.split(std**2, chance.numpy(), gap.numpy())

    def save(self, path: Path, overwrite: bool = False) -> Path:
        path = check_free(path, overwrite)
        tensors = {f"denoiser.{name}": tensor.contiguous() for name, tensor in self.denoiser.state_dict().items()}
        tensors |= {
            "domain": self.domain,
            "unsupported": self.unsupported,
            "exposure": self.exposure,
            "bank": torch.from_numpy(np.packbits(self.bank.numpy().ravel())),
            "normaliser.mean": torch.from_numpy(self.normaliser.mean),
            "normaliser.std": torch.from_numpy(self.normaliser.std),
        }
        tensors |= {f"{SPREAD}{name}": torch.from_numpy(array) for name, array in self.spread.arrays().items()}
        description = {
            "format": FORMAT,
            "fieldfill": version("fieldfill"),
            "config": self.config.model_dump(mode="json"),
            "seed": self.seed,
            "variables": self.variables,
            "dims": self.dims,
            "grid": asdict(self.grid),
            "partition": self.partition_name,
            "bank": list(self.bank.shape),
            "ensemble": asdict(self.ensemble),
            "notes": self.notes,
        }
        with replacing(path) as partial:
            partial.mkdir()
            save_file(tensors, partial / WEIGHTS)
            (partial / DESCRIPTION).write_text(json.dumps(description, indent=1))
        return path

    @classmethod
    def load(cls, path: Path) -> "Model":
        if not path.exists():
            raise InputError(f"no such model: {path}; make one with 'fieldfill fit DATA -o {path.name}'")
        if not ((path / DESCRIPTION).is_file() and (path / WEIGHTS).is_file()):
            raise InputError(f"{path} is not a fieldfill model (a directory with {DESCRIPTION} and {WEIGHTS})")
        try:
            saved = json.loads((path / DESCRIPTION).read_text())
            tensors = load_file(path / WEIGHTS)
        except (json.JSONDecodeError, SafetensorError, OSError) as error:
            raise InputError(f"the model {path} is damaged ({str(error).splitlines()[0]}); fit it again") from error
        if saved.get("format") != FORMAT:
            raise InputError(f"the model {path} has format {saved.get('format')}, this version reads {FORMAT}")
        config = Config.model_validate(saved["config"])
        grid = Grid(saved["grid"]["coordinates"], tuple(saved["grid"]["periodic"]))
        denoiser = build_denoiser(config, tensors["domain"], grid.periodic, 0, tensors["denoiser.static"])
        prefix = "denoiser."
        denoiser.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        spread = {k.removeprefix(SPREAD): v.numpy() for k, v in tensors.items() if k.startswith(SPREAD)}
        bits = np.unpackbits(tensors["bank"].numpy(), count=math.prod(saved["bank"]))
        bank = torch.from_numpy(bits.astype(bool).reshape(saved["bank"]))
        return cls(
            config=config,
            seed=saved["seed"],
            variables=tuple(saved["variables"]),
            dims=tuple(saved["dims"]) if saved["dims"] else None,
            grid=grid,
            normaliser=Normaliser(tensors["normaliser.mean"].numpy(), tensors["normaliser.std"].numpy()),
            denoiser=denoiser.eval(),
            partition_name=saved["partition"],
            partition=build_partition(saved["partition"], bank, config.keep),
            bank=bank,
            domain=tensors["domain"],
            unsupported=tensors["unsupported"],
            exposure=tensors["exposure"],
            ensemble=Ensemble(**saved["ensemble"]),
            spread=Calibration.of(spread, saved["notes"]["calibration"]),
            notes=saved["notes"],
        )
