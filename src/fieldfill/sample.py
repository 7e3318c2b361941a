r"""From a trained denoiser to filled fields.

*Single step* (the default): noise the observations as little as the schedule allows, ask the denoiser for the
complete field under K contexts drawn from the observations, and average:

.. math:: E[x_0 | x_{obs}, M] \approx \frac1K \sum_k x_\theta(\delta, M_k \odot x_\delta, M_k)

Theorem 2 of the paper: the squared error is that of the information a context leaves out, plus a variance over
contexts that falls like 1/K.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.denoise import Denoiser, noised
from fieldfill.partition import Partition

__all__ = ["Ensemble", "single_step"]


@dataclass(frozen=True)
class Ensemble:
    """How contexts are drawn at inference.

    Attributes
    ----------
    count
        K, the number of contexts; 0 takes the observation mask itself as the only context.
    keep
        share of the observed cells in each context; None draws as in training.
    """

    count: int = 10
    keep: float | None = None

    def __str__(self) -> str:
        if self.count == 0:
            return "all observations at once"
        share = "drawn as in training" if self.keep is None else f"of {self.keep:.0%} of the observations"
        return f"the mean over {self.count} contexts {share}"

    def draw(self, partition: Partition, observed: Tensor, generator: Generator) -> Tensor:
        """Contexts (K, B, C, T, H, W) inside ``observed`` (B, C, T, H, W)."""
        if self.count == 0:
            return observed[None]
        return partition.contexts(observed, self.count, generator, keep=self.keep)


@torch.no_grad()
def single_step(
    denoiser: Denoiser,
    x: Tensor,
    observed: Tensor,
    partition: Partition,
    ensemble: Ensemble,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Mean over contexts and variance between them, both (B, C, T, H, W); observed cells are pasted back.

    The variance says how much the mean depends on the choice of contexts. It is not the posterior variance.
    """
    contexts = ensemble.draw(partition, observed, generator)
    noise = torch.randn(x.shape, generator=generator)
    t = torch.full((x.shape[0],), denoiser.schedule.delta)
    x_delta = noised(denoiser.schedule, t, x, noise)
    total, squares = torch.zeros_like(x), torch.zeros_like(x)
    for context in contexts:
        estimate = denoiser(t, x_delta, context)
        total += estimate
        squares += estimate**2
    count = len(contexts)
    mean = total / count
    between = (squares / count - mean**2).clamp(min=0) * count / max(1, count - 1)
    return torch.where(observed, x, mean), torch.where(observed, 0, between)
