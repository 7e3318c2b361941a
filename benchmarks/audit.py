"""Two checks of the audit on simulated data: the partition that it chooses, and the test of mask-field independence.

Part of the study ``verification.py``.
"""

from collections import Counter
from typing import Any

import torch

from fieldfill.masks import (
    BlockMask,
    CloudMask,
    FrameDropout,
    Intersection,
    MaskModel,
    PixelMask,
    SensorMask,
    SwathMask,
    TrackMask,
    Union,
    VariableDropout,
)
from fieldfill.partition import (
    BlockPartition,
    FramePartition,
    MaskSwap,
    Partition,
    PixelPartition,
    StationPartition,
    VariablePartition,
)
from fieldfill.partition.exposure import AuditSettings, Masks, compare
from fieldfill.partition.independence import test_independence

# Right for every mask model, since they take the structure from the masks themselves.
SWAP = {"swap", "swap_single"}
# Data sets whose partition is chosen, and cells at which each is audited.
DATASETS = 200
CELLS = 20_000
# Windows, variables, frames, rows, columns of a data set.
SHAPE = (60, 2, 4, 24, 24)
# Records without and with dependence.
RECORDS = 500
DEPENDENT = 100
# Windows, frames and cells per side of a record.
WINDOWS = 96
FRAMES = 4
SIZE = 32
# Correlation of the field with the one whose high values are hidden.
CORRELATION = 0.3


def mask_models(generator: torch.Generator) -> list[tuple[str, MaskModel, set[str]]]:
    """Every kind of mask model with random parameters, and the partitions with its structure besides `SWAP`."""
    u, v = torch.rand(2, generator=generator).tolist()
    share = 0.2 + 0.6 * u
    swath = SwathMask(width=5 + 5 * u, spacing=14 + 4 * v, tilt=20 * v, revisit=3)
    track = TrackMask(spacing=8 + 8 * u, tilt=20 + 20 * v)
    return [
        ("pixel static", PixelMask(share), {"pixel", "station"}),
        ("pixel moving", PixelMask(share, static=False), {"pixel"}),
        ("block", BlockMask(3, 3, min(8, 3 + int(6 * u))), {"block"}),
        ("sensor", SensorMask(20 + int(60 * u), 0.05 + 0.25 * v), {"station"}),
        ("track", track, set()),
        ("swath", swath, set()),
        ("cloud", CloudMask(share, scale=2.5 + 3 * v), set()),
        ("frame", FrameDropout(0.4 + 0.4 * u), {"frame"}),
        ("variable", VariableDropout(0.5 + 0.3 * u), {"variable"}),
        ("swath and cloud", Intersection((swath, CloudMask(0.7))), set()),
        ("track or sensor", Union((track, SensorMask(20, 0.1))), set()),
    ]


def candidates(observed: torch.Tensor) -> dict[str, Partition]:
    return {
        "pixel": PixelPartition(),
        "block": BlockPartition(),
        "station": StationPartition(),
        "frame": FramePartition(),
        "variable": VariablePartition(),
        "swap": MaskSwap(observed),
        "swap_single": MaskSwap(observed, keep=None),
    }


def chosen_partitions(seed: int) -> dict[str, Any]:
    """How often the comparison of partitions chooses one with the structure of the masks."""
    generator = torch.Generator().manual_seed(seed)
    domain = torch.ones((SHAPE[1], *SHAPE[3:]), dtype=torch.bool)
    right_count, choices = 0, Counter[str]()
    for number in range(DATASETS):
        kinds = mask_models(generator)
        name, model, right = kinds[number % len(kinds)]
        observed = model.sample(SHAPE, generator)
        best, _ = compare(candidates(observed), Masks.of(observed, domain), generator, AuditSettings(cells=CELLS))
        right_count += best in right | SWAP
        choices[f"{name} -> {best}"] += 1
    metrics = {"right_share": right_count / DATASETS, "choices": dict(sorted(choices.items()))}
    return {"metrics": metrics, "sizes": {"datasets": DATASETS, "shape": SHAPE, "cells": CELLS}}


def independence(seed: int) -> dict[str, Any]:
    """False alarms and power of the independence test on records whose windows depend on one another.

    Fields and clouds drift and renew themselves from window to window, where a naive test raises false alarms.
    """
    false_alarms, _ = alarms(RECORDS, 0.0, seed)
    power, effect = alarms(DEPENDENT, CORRELATION, seed + 1000)
    sizes = {"simulations": RECORDS, "simulations_power": DEPENDENT}
    return {
        "metrics": {"false_alarms": false_alarms, f"power_correlation_{CORRELATION}": power, "mean_effect": effect},
        "sizes": {**sizes, "windows": WINDOWS, "frames": FRAMES, "size": SIZE},
    }


def alarms(count: int, correlation: float, seed: int) -> tuple[float, float]:
    """Share of alarms at the 5 % level and mean effect over ``count`` records."""
    generator = torch.Generator().manual_seed(seed)
    domain = torch.ones((1, SIZE, SIZE), dtype=torch.bool)
    outcomes = []
    for first in range(0, count, 10):
        values, observed = records(min(10, count - first), correlation, generator)
        outcomes += [
            test_independence(x, mask, domain, generator, permutations=399) for x, mask in zip(values, observed)
        ]
    return sum(o.p_value <= 0.05 for o in outcomes) / count, sum(o.effect for o in outcomes) / count


def records(count: int, correlation: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (count, N, 1, T, H, W), 0 where a field correlated with them exceeds a threshold, and masks."""
    shape = (count, 1, WINDOWS * FRAMES, SIZE, SIZE)
    x = CloudMask(scale=4.0, speed=0.5, memory=0.9).field(shape, generator)
    e = CloudMask(scale=4.0, speed=0.8, memory=0.8).field(shape, generator)
    observed = correlation * x + (1 - correlation**2) ** 0.5 * e < 0.25
    shape = (count, WINDOWS, 1, FRAMES, SIZE, SIZE)
    return (x * observed).view(shape), observed.view(shape)
