"""What every mask model is, how models combine, and masks taken from a data set as they are."""

import abc
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["EmpiricalMask", "Intersection", "MaskModel", "Shape", "Union", "check_share", "draw_share"]

Shape = tuple[int, int, int, int, int]


class MaskModel(abc.ABC):
    """A law p_mask of observation masks, independent of the field."""

    @abc.abstractmethod
    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        """Draws masks of ``shape`` (B, C, T, H, W), bool, True = observed."""


def check_share(share: float | tuple[float, float], name: str) -> None:
    """Raises unless ``share`` is a number in (0, 1] or a range (lo, hi) of such numbers."""
    lo, hi = share if isinstance(share, tuple) else (share, share)
    if not 0 < lo <= hi <= 1:
        raise InputError(f"{name} is {share}: give a share in (0, 1] or a range (lo, hi) with lo <= hi")


def draw_share(share: float | tuple[float, float], count: int, generator: Generator) -> Tensor:
    """One share per sample, shape (count,): the number itself, or uniform on the range (lo, hi)."""
    if isinstance(share, tuple):
        lo, hi = share
        return lo + (hi - lo) * torch.rand(count, generator=generator)
    return torch.full((count,), float(share))


@dataclass(frozen=True)
class Union(MaskModel):
    """Observed where any of the models observes: several instruments."""

    models: tuple[MaskModel, ...]

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        mask = torch.zeros(shape, dtype=torch.bool)
        for model in self.models:
            mask |= model.sample(shape, generator)
        return mask


@dataclass(frozen=True)
class Intersection(MaskModel):
    """Observed where all the models observe: a swath seen through clouds."""

    models: tuple[MaskModel, ...]

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        mask = torch.ones(shape, dtype=torch.bool)
        for model in self.models:
            mask &= model.sample(shape, generator)
        return mask


@dataclass(frozen=True, eq=False)
class EmpiricalMask(MaskModel):
    """Masks of a data set, drawn as they are.

    Parameters
    ----------
    bank : Tensor
        Masks (N, C, T, H, W), bool.
    shift : bool
        Roll every drawn mask by a random number of rows and columns. This wraps at the edges and ignores a
        coast: only for grids without land.
    """

    bank: Tensor
    shift: bool = False

    def __post_init__(self) -> None:
        if self.bank.ndim != 5 or self.bank.dtype != torch.bool or len(self.bank) == 0:
            shape = tuple(self.bank.shape)
            raise InputError(f"mask bank is {self.bank.dtype} {shape}: give bool masks (N, C, T, H, W), N >= 1")

    def sample(self, shape: Shape, generator: Generator) -> Tensor:
        if tuple(shape[1:]) != tuple(self.bank.shape[1:]):
            held = tuple(self.bank.shape[1:])
            raise InputError(f"masks of {tuple(shape[1:])} asked, the bank holds {held}: use windows of one size")
        mask = self.bank[torch.randint(len(self.bank), (shape[0],), generator=generator)]
        if not self.shift:
            return mask
        for dim in (3, 4):
            size = shape[dim]
            start = torch.randint(size, (shape[0], 1), generator=generator)
            index = (torch.arange(size) + start) % size
            view = [shape[0], 1, 1, 1, 1]
            view[dim] = size
            mask = mask.gather(dim, index.view(view).expand(shape))
        return mask
