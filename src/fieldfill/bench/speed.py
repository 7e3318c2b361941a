"""Cost of the networks: seconds of a training step and of a fill, on random numbers of any size."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator

from fieldfill.bench.cases import Unavailable
from fieldfill.config import Settings, build_denoiser
from fieldfill.diffusion.frames import frames_at_once
from fieldfill.diffusion.loss import matching_losses
from fieldfill.errors import InputError

__all__ = ["measure", "slope"]


def measure(config: Settings, cells: int, batch: int, repeats: int = 3, longest: float = 20.0) -> dict[str, Any]:
    """Samples per second of training and of filling, the median over repetitions after one to warm up.

    No further repetition is made after ``longest`` seconds.
    """
    assert config.window is not None
    generator = Generator().manual_seed(0)
    try:
        denoiser = build_denoiser(config, (config.window, cells, cells), 1, (True, True), seed=0)
    except InputError as error:
        raise Unavailable(str(error)) from error
    for source in denoiser.chain.sources:
        source.rehearse()
    x = torch.randn(batch, 1, config.window, cells, cells, generator=generator)
    observed = torch.rand(x.shape, generator=generator) < 0.6
    context = observed & (torch.rand(x.shape, generator=generator) < 0.7)
    t, maps = torch.rand(batch, generator=generator), torch.zeros(batch, 0, cells, cells)
    optimiser = torch.optim.AdamW(denoiser.parameters())
    frames = frames_at_once(denoiser.network, config.training.frames, config.window)

    def train() -> None:
        noise = torch.randn(x.shape, generator=generator)
        losses, counted = matching_losses(
            denoiser, t, x, noise, context, observed, maps, lambda part: part[:, :, :frames]
        )
        optimiser.zero_grad()
        losses[counted].mean().backward()
        optimiser.step()

    @torch.no_grad()
    def fill() -> None:
        denoiser(t, x, context, maps)

    step, forward = (_seconds(work, repeats, longest) for work in (train, fill))
    return {
        "train_seconds_per_sample": step / batch,
        "fill_seconds_per_sample": forward / batch,
        "samples_per_second": batch / step,
        "parameters": sum(p.numel() for p in denoiser.parameters()),
    }


def _seconds(work: Callable[[], None], repeats: int, longest: float) -> float:
    times: list[float] = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
        if sum(times) > longest:
            break
    return statistics.median(times[1:] or times)


def slope(cells: list[int], seconds: list[float]) -> float:
    """Exponent p of seconds ∝ cells^p, by least squares in logarithms."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (cells, seconds))
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())
