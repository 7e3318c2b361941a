"""fieldfill: fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself.

>>> import fieldfill as ff
>>> data = ff.demo.make_data(frames=24, size=(16, 16))
>>> filler = ff.Filler(window=4, steps=2, seed=0).fit(data.gappy)
>>> filled = filler.fill(data.gappy)
>>> sorted(filled.data_vars)
['sst', 'sst_flag', 'sst_std']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldfill import baselines, demo, masks, metrics, partition, pde
    from fieldfill.audit import check
    from fieldfill.config import Config
    from fieldfill.environment import versions
    from fieldfill.errors import InputError
    from fieldfill.fill import Filler, load
    from fieldfill.gaps import hide
    from fieldfill.io import open_dataset, save_dataset
    from fieldfill.metrics import score

__all__ = [
    "Config",
    "Filler",
    "InputError",
    "baselines",
    "check",
    "demo",
    "hide",
    "load",
    "masks",
    "metrics",
    "open_dataset",
    "partition",
    "pde",
    "save_dataset",
    "score",
    "versions",
]

_HOMES = {
    "Config": "config",
    "Filler": "fill",
    "InputError": "errors",
    "check": "audit",
    "hide": "gaps",
    "load": "fill",
    "open_dataset": "io",
    "save_dataset": "io",
    "score": "metrics",
    "versions": "environment",
}


def __getattr__(name: str) -> Any:
    # Names are loaded on first use: `fieldfill --help` and reading files need not wait for torch.
    if name not in __all__:
        raise AttributeError(f"module 'fieldfill' has no attribute '{name}'")
    if name in _HOMES:
        value = getattr(import_module(f"fieldfill.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    return import_module(f"fieldfill.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
