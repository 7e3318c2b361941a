"""Presets: settings by name, and changes to settings that are given as text."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import ValidationError

from fieldfill.config import LEAST_CROP, UNLIMITED_STEPS, Settings
from fieldfill.diffusion.train_settings import TrainSettings
from fieldfill.errors import InputError

__all__ = ["PRESETS", "adjusted", "preset"]

# Settings by name; a new preset needs a line here only.
PRESETS: dict[str, Settings] = {
    "fast": Settings(),
    "standard": Settings(
        base=64, levels=4, training=TrainSettings(steps=10_000, batch=8, ema=0.999, validate_every=250)
    ),
    "paper": Settings(
        keep=(0.7, 0.7),
        estimators=(),
        network="space-time-unet",
        base=32,
        spread=False,
        choose_contexts=False,
        training=TrainSettings(steps=20000, time_power=1.0, batch=8, rate=1e-3, decay=0.0, shrink=False),
    ),
}


def preset(
    name: str,
    *,
    window: int | None = None,
    crop: int | None = None,
    partition: str = "auto",
    steps: int | None = None,
    minutes: float | None = None,
    inputs: tuple[str, ...] = (),
    log: tuple[str, ...] = (),
) -> Settings:
    """A preset with the few settings that everybody changes; None leaves those of the preset.

    ``minutes`` are those of the whole fit. They take the place of the preset's number of steps.
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset '{name}'; choose one of {', '.join(PRESETS)}")
    if window is not None and window < 1:
        raise InputError(f"window={window} must be at least 1; give the frames that the model sees together")
    if crop is not None and crop < LEAST_CROP:
        raise InputError(
            f"crop={crop} must be at least {LEAST_CROP}; give the rows and columns that the model sees together"
        )
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} must be at least 1")
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes={minutes} must be above 0")
    base = PRESETS[name]
    # Where minutes are given, they end the training, or validation that has stopped improving.
    training = replace(base.training, steps=steps or (base.training.steps if minutes is None else UNLIMITED_STEPS))
    given = {"window": window, "crop": crop, "partition": partition, "inputs": inputs, "log": log, "minutes": minutes}
    return _validated(base.model_dump() | given | {"training": asdict(training)})


def adjusted(settings: Settings, changes: Sequence[str]) -> Settings:
    """``settings`` with settings changed by ``name=value``, such as ``network=fno`` or ``training.batch=64``."""
    values = settings.model_dump()
    for change in changes:
        name, equals, text = change.partition("=")
        group, dot, key = name.rpartition(".")
        place = values.get(group) if dot else values
        if not equals or not isinstance(place, dict) or isinstance(place.get(key, {}), dict):
            names = _names(values, group if isinstance(values.get(group), dict) else "")
            raise InputError(f"cannot set '{change}'; write name=value with a name out of {', '.join(names)}")
        place[key] = tuple(filter(None, text.split(","))) if isinstance(place[key], tuple) else text
    return _validated(values)


def _names(values: dict[str, Any], group: str) -> list[str]:
    """Names that can be set: those of a group, or all others and the groups."""
    if group:
        return [f"{group}.{name}" for name in values[group]]
    return [f"{name}.…" if isinstance(value, dict) else name for name, value in values.items()]


def _validated(values: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(f"cannot set {name} to '{first['input']}': {first['msg']}") from None
