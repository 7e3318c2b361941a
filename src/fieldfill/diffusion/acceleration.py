"""Faster networks: lower precision and compilation, for the time of a training run."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["compiled", "lower_precision"]


@contextmanager
def lower_precision(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the network computes in bfloat16 where that is safe; its weights and its output stay float32."""
    inner: Callable[..., Tensor] = network.forward

    def forward(features: Tensor, log_snr: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return inner(features, log_snr).float()

    network.forward = forward
    try:
        yield
    finally:
        del network.forward


@contextmanager
def compiled(network: nn.Module, trial: Callable[[], Tensor]) -> Iterator[None]:
    """Inside, the network runs as compiled code if ``trial()``, a forward pass, shows that it can."""
    network.compile()
    try:
        try:
            trial().sum().backward()
        except Exception as error:  # whatever the compiler lacks, the run goes on without it
            network._compiled_call_impl = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(f"torch.compile does not work here, training goes on without it: {reason}", stacklevel=2)
        network.zero_grad(set_to_none=True)
        yield
    finally:
        network._compiled_call_impl = None
