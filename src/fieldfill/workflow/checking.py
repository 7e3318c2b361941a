"""What can be learnt from a data set, judged by its masks: `check`, and the choice of a partition."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from fieldfill.config import Settings, build_partition, candidate_partitions
from fieldfill.data.crops import Crops, Place
from fieldfill.data.pieces import MASK_BYTES
from fieldfill.data.record import Record
from fieldfill.errors import InputError
from fieldfill.partition import Partition
from fieldfill.partition.exposure import LEAST_CROPS, Audit, Masks, audit, compare
from fieldfill.partition.independence import IndependenceResult, test_independence
from fieldfill.seeds import stream

__all__ = ["Check", "audited", "check_crops", "check_number", "mask_bank", "summary"]


class Check:
    """What `check` found: an audit of every partition considered, and which one to use.

    Prints as a table; ``to_dataset()`` gives the exposure map of the recommended partition.
    """

    def __init__(
        self,
        record: Record,
        partition: str,
        candidates: dict[str, Audit],
        independence: IndependenceResult | None,
    ) -> None:
        self.record, self.partition, self.candidates, self.independence = record, partition, candidates, independence

    @property
    def audit(self) -> Audit:
        return self.candidates[self.partition]

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain numbers and words, for JSON."""
        candidates = {name: summary(found) for name, found in self.candidates.items()}
        dependence = None
        if self.independence is not None:
            name = self.record.variables[self.independence.variable]
            dependence = {"p_value": self.independence.p_value, "effect": self.independence.effect, "variable": name}
        return {
            **summary(self.audit),
            "partition": self.partition,
            "candidates": candidates,
            "independence": dependence,
        }

    def to_dataset(self) -> xr.Dataset:
        """Exposure and unsupported cells of each variable on the grid of the data."""
        axes, ds = self.record.axes, self.record.ds
        space = [name for name in (axes.y, axes.x) if name is not None]
        sizes = [ds.sizes[name] for name in space]
        coords = {name: ds[name] for name in space if name in ds.coords}
        out = xr.Dataset(coords=coords, attrs={"partition": self.partition, "verdict": self.audit.verdict})
        for c, name in enumerate(self.record.variables):
            text = {
                "long_name": f"probability that a cell of {name} outside the context is queried",
                "units": "1",
            }
            out[f"{name}_exposure"] = (space, self.audit.per_cell[c].numpy().reshape(sizes), text)
            out[f"{name}_unsupported"] = (space, self.audit.unsupported[c].numpy().reshape(sizes))
        return out

    def __str__(self) -> str:
        lines = [f"{'partition':<12} {'verdict':<12} {'min':>8} {'median':>8} {'max/min':>8} {'unlearnable':>12}"]
        for name, found in self.candidates.items():
            mark = "  <- recommended" if name == self.partition else ""
            lines.append(
                f"{name:<12} {found.verdict:<12} {found.minimum:8.3f} {found.median:8.3f} "
                f"{_ratio(found.max_over_min):>8} {found.unlearnable_share:12.1%}{mark}"
            )
        lines.append(self.audit.words)
        if self.independence is None:
            lines.append("Too few crops to test whether the gaps depend on the field.")
        else:
            lines.append(self.independence.words(self.record.variables[self.independence.variable]))
        return "\n".join(lines)

    __repr__ = __str__


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else "> 1000"


def summary(found: Audit) -> dict[str, Any]:
    ratio = found.max_over_min
    return {
        "verdict": found.verdict,
        "words": found.words,
        "exposure": {
            "min": found.minimum,
            "median": found.median,
            "max_over_min": ratio if math.isfinite(ratio) else None,  # JSON has no infinity
            "error": found.error,
        },
        "unlearnable_share": found.unlearnable_share,
        "never_observed": int(found.never_observed.sum()),
        "kept": found.kept,
        "unsplit": found.unsplit,
        "method": found.method,
    }


def check_crops(crops: Crops, settings: Settings, seed: int) -> Check:
    """Audits the masks of crops: which cells can be learnt, and with which partition."""
    name, _, audits = audited(crops, mask_bank(crops, settings, seed), settings, seed)
    return Check(crops.record, name, audits, _tested(crops, settings.audit.tested, seed))


def _tested(crops: Crops, most: int, seed: int) -> IndependenceResult | None:
    """Whether the gaps depend on the field; None for a record that is too short."""
    generator = stream(seed, "independence")
    places = sorted(crops.spread_out(most, generator))
    if len(places) < 10:
        return None
    batch = crops.training(places)
    return test_independence(batch.x, batch.observed, batch.domain.any(0), generator)


def check_number(crops: Crops) -> None:
    """Refuses a record with too few different crops to learn from."""
    if len(crops) < LEAST_CROPS:
        shape = " × ".join(map(str, crops.shape))
        raise InputError(
            f"the record has {len(crops)} different crops of {shape} (frames, rows, columns), and {LEAST_CROPS} are "
            "needed; choose a shorter window or a smaller crop"
        )


def audited(crops: Crops, bank: Tensor, settings: Settings, seed: int) -> tuple[str, Partition, dict[str, Audit]]:
    """The partition to use and its name, and the audits of all that were considered."""
    check_number(crops)
    generator = stream(seed, "audit")
    most = max(2, min(settings.audit.crops, MASK_BYTES // crops.cells))
    places = crops.spread_out(most, generator, least=settings.audit.crops // 2)
    masks = audit_masks(crops, places)
    if settings.partition != "auto":
        partition = build_partition(settings.partition, bank, settings.keep)
        found = audit(partition, masks, generator, settings.partition, settings.audit)
        return settings.partition, partition, {settings.partition: found}
    partitions = candidate_partitions(bank, settings.keep)
    name, audits = compare(partitions, masks, generator, settings.audit)
    return name, partitions[name], audits


def audit_masks(crops: Crops, places: Sequence[Place]) -> Masks:
    """Observation masks of crops and where they lie on the grid."""
    batch = crops.training(places)
    _, rows, columns = crops.domain.shape
    number = torch.arange(rows * columns).view(1, rows, columns)
    cells = torch.cat([crops.cut(number, place) for place in places])
    # Nothing is missing for good in a single frame: other places of it show what a cell could have been.
    samples, _, frames, _, _ = crops.record.shape
    never = crops.domain & (torch.from_numpy(crops.record.counts) == 0) & (samples * frames > 1)
    return Masks(batch.observed, batch.domain, cells, crops.domain, never)


def mask_bank(crops: Crops, settings: Settings, seed: int) -> Tensor:
    """Observation masks (N, C, T, H, W) of the record's own crops, for partitions that draw from them."""
    return crops.masks(settings.audit.bank, stream(seed, "bank"), least=settings.audit.bank // 8)
