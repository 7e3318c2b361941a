"""The frames of a crop that a network sees in a step of training: all of them, or a few where it treats all alike."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fieldfill.diffusion.networks.network import Network

__all__ = ["frames_at_once", "frames_cut", "visible_frames"]


def frames_at_once(network: Network, frames: int, length: int) -> int:
    """How many frames of crops of a ``length`` a network sees in a step that should look at ``frames`` of them."""
    return min(length, max(3, frames)) if network.frames_alike else length


def visible_frames(query: Tensor, frames: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The query (1, C, T, H, W) in the ``frames`` that a step looks at, and the first of these (1,).

    They are drawn such that at least one frame with query cells is among them.
    """
    total, asked = query.shape[2], query.any(dim=0).any(dim=0).flatten(1).any(dim=1).nonzero().flatten()
    if frames == total or not len(asked):
        return query, torch.zeros(1, dtype=torch.long)
    middle = asked[torch.randint(len(asked), (1,), generator=generator)].cpu()
    start = middle - torch.randint(1, frames - 1, (1,), generator=generator)
    start = start.clamp(0, total - frames)
    # A frame whose neighbour is cut off is seen, and not asked for.
    first = int(start) + int(start > 0)
    last = int(start) + frames - int(start + frames < total)
    frame = torch.arange(total, device=query.device)
    return query & ((frame >= first) & (frame < last))[:, None, None], start


def frames_cut(starts: Tensor, frames: int, length: int) -> Callable[[Tensor], Tensor]:
    """Takes ``frames`` frames out of each of some crops (B, C, T, H, W), from the first ones ``starts`` (B,) on."""
    if frames == length:
        return lambda x: x
    return lambda x: torch.stack([row[:, start : start + frames] for row, start in zip(x, starts.tolist())])
