"""What can be learnt from a data set, told from its masks: `check`, and the choice of a partition for `Filler`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from fieldfill.config import Config, build_partition, candidate_partitions, preset
from fieldfill.exposure import Audit, audit, compare
from fieldfill.independence import IndependenceResult, test_independence
from fieldfill.partition import Partition
from fieldfill.record import Record, open_record
from fieldfill.seeds import stream
from fieldfill.windows import Normaliser, Windows

__all__ = ["Check", "audited", "check", "mask_bank", "summary"]

BANK = 256  # observation masks kept to draw contexts from
AUDITED = 500  # windows that the exposure audit looks at
TESTED = 256  # windows that the test of independence looks at


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
        coords = {name: ds[name] for name in (axes.y, axes.x) if name in ds.coords}
        out = xr.Dataset(coords=coords, attrs={"partition": self.partition, "verdict": self.audit.verdict})
        for c, name in enumerate(self.record.variables):
            text = {
                "long_name": f"probability that a cell of {name} outside the context is queried",
                "units": "1",
            }
            out[f"{name}_exposure"] = ((axes.y, axes.x), self.audit.per_cell[c].numpy(), text)
            out[f"{name}_unsupported"] = ((axes.y, axes.x), self.audit.unsupported[c].numpy())
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
            lines.append("Too few windows to test whether the gaps depend on the field.")
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
            "max_over_min": ratio if math.isfinite(ratio) else None,  # JSON knows no infinity
            "error": found.error,
        },
        "unlearnable_share": found.unlearnable_share,
        "never_observed": int(found.never_observed.sum()),
        "kept": found.kept,
        "unsplit": found.unsplit,
        "method": found.method,
    }


def check(
    ds: xr.Dataset | xr.DataArray,
    window: int = 8,
    variables: Sequence[str] | None = None,
    dims: tuple[str, str, str] | None = None,
    domain: str | xr.DataArray | np.ndarray | None = None,
    partition: str = "auto",
    seed: int = 0,
) -> Check:
    """Audits, from the masks alone, which cells of ``ds`` can be learnt and with which partition."""
    record = open_record(ds, variables, dims, domain)
    windows = Windows(record, Normaliser(record.mean, record.std), window)
    bank = mask_bank(windows, seed)
    config = preset("fast", window, partition, None, None)
    name, _, audits = audited(windows, bank, config, seed)
    return Check(record, name, audits, _tested(windows, seed))


def _tested(windows: Windows, seed: int) -> IndependenceResult | None:
    """Whether the gaps depend on the field; None for a record that is too short to tell."""
    generator = stream(seed, "independence")
    places = sorted(windows.spread_out(TESTED, generator))
    if len(places) < 10:
        return None
    values, observed = windows.training(places)
    return test_independence(values, observed, torch.from_numpy(windows.record.domain), generator)


def audited(
    windows: Windows, bank: Tensor, config: Config, seed: int
) -> tuple[str, dict[str, Partition], dict[str, Audit]]:
    """The name of the partition to use, all that were considered, and their audits."""
    generator = stream(seed, "audit")
    masks = windows.masks(AUDITED, generator, least=AUDITED // 2)
    domain = torch.from_numpy(windows.record.domain)
    if config.partition != "auto":
        partition = build_partition(config.partition, bank, config.keep)
        found = audit(partition, masks, domain, generator, name=config.partition)
        return config.partition, {config.partition: partition}, {config.partition: found}
    partitions = candidate_partitions(bank, config.keep)
    name, audits = compare(partitions, masks, domain, generator)
    return name, partitions, audits


def mask_bank(windows: Windows, seed: int) -> Tensor:
    """Observation masks (N, C, T, H, W) of the record's own windows, for partitions that draw from them."""
    return windows.masks(BANK, stream(seed, "bank"), least=BANK // 8)
