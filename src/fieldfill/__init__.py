"""fieldfill: fill the gaps of gridded physical data with a diffusion model learnt from the gappy data itself.

>>> import fieldfill as ff
>>> from fieldfill.bench import demo
>>> data = demo.make_data(frames=24, size=(16, 16))
>>> filler = ff.Filler(window=4, steps=2, seed=0).fit(data.gappy)
>>> filled = filler.fill(data.gappy)
>>> sorted(filled.data_vars)
['sst', 'sst_flag', 'sst_std']
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldfill import baselines, masks, metrics, partition, simulate
    from fieldfill.api import Filler, check, hide, load, physical_scores
    from fieldfill.config import Settings
    from fieldfill.data.io import open_dataset, save_dataset
    from fieldfill.errors import InputError, InputWarning
    from fieldfill.execution.environment import versions
    from fieldfill.metrics import score

__all__ = [
    "Filler",
    "InputError",
    "InputWarning",
    "Settings",
    "baselines",
    "check",
    "hide",
    "load",
    "masks",
    "metrics",
    "open_dataset",
    "partition",
    "physical_scores",
    "save_dataset",
    "score",
    "simulate",
    "versions",
]

# Where the public names live; a new one needs a line here and one in `__all__`.
_HOMES = {
    "Settings": "config",
    "Filler": "api",
    "InputError": "errors",
    "InputWarning": "errors",
    "check": "api",
    "hide": "api",
    "load": "api",
    "physical_scores": "api",
    "open_dataset": "data.io",
    "save_dataset": "data.io",
    "score": "metrics",
    "versions": "execution.environment",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fieldfill")
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
