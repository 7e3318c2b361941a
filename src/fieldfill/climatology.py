r"""Mean and spread of every cell of a gappy record, smoothed as far as held-out cells ask for.

A field with a coast, mountains or a gradient in latitude is not stationary; its anomalies are more so. With n the
number of visible values of a cell and G_s a Gaussian smoother of s cells,

.. math:: m_s = \frac{G_s \sum x}{G_s\, n}, \qquad v_s = \frac{G_s \sum (x - m)^2}{G_s\, n}

A short record asks for much smoothing, a long one for none. s is chosen where the held-out cells are nearest to m_s
of the other parts of the record, and most likely under v_s; if no map is better by a margin than one number for all
cells, one number it is.
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Generator, Tensor

from fieldfill.windows import Normaliser, Windows

__all__ = ["learn_normaliser"]

SMOOTHING = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)  # cells
MARGIN = 0.01  # gain on held-out cells, as a share of their variance, below which a map is not worth its noise
LEAST_STD = 0.1  # of the variable's own, so that an almost constant cell does not blow up its errors
TRACE = 0.01  # of an observation
FOLDS = 8
MAX_FRAMES = 8000  # frames that are looked at


def learn_normaliser(windows: Windows, generator: Generator) -> Normaliser:
    """The normaliser of ``windows``, which has one number a variable, with maps (C, H, W) where they pay."""
    own, periodic = windows.normaliser, windows.record.periodic
    folds = _Folds(windows, generator)
    zero = torch.zeros(len(own.mean), 1, 1)
    mean = folds.best(
        lambda total, count, cells: zero if cells is None else _smooth(total, count, cells, periodic),
        folds.sums(lambda x: x),
        lambda x, m: (x - m).square(),
    )
    squares = folds.sums(lambda x: (x - mean[:, None]).square())

    def variance_of(total: Tensor, count: Tensor, cells: float | None) -> Tensor:
        overall = total.sum((1, 2), keepdim=True) / count.sum((1, 2), keepdim=True).clamp(min=1)
        overall = torch.where(overall > 0, overall, 1)  # a constant variable keeps the scale it has
        found = overall if cells is None else _smooth(total, count, cells, periodic)
        return torch.maximum(found, LEAST_STD**2 * overall)

    variance = folds.best(variance_of, squares, lambda x, v: torch.log(v) + (x - mean[:, None]).square() / v)
    scale, shift = own.std[:, None, None], own.mean[:, None, None]
    return Normaliser(shift + scale * mean.double().numpy(), scale * variance.sqrt().double().numpy())


class _Folds:
    """Parts of a record in time (or of its samples), so that a map can be judged by what it was not made of.

    A mean that knows the weeks around a validation window would be praised for what any interpolation in time knows.
    """

    def __init__(self, windows: Windows, generator: Generator) -> None:
        self.windows = windows
        parts = sorted(windows.stretches(MAX_FRAMES, generator))
        count = min(FOLDS, len(parts))
        self.parts = [parts[i * len(parts) // count : (i + 1) * len(parts) // count] for i in range(count)]

    def sums(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over the visible values of ``of(x)`` and their number in each fold, (folds, 2, C, H, W)."""
        _, variables, _, rows, columns = self.windows.record.shape
        sums = torch.zeros(len(self.parts), 2, variables, rows, columns)
        for fold, parts in enumerate(self.parts):
            for sample, start, stop in parts:
                x, visible = self.windows.visible(sample, start, stop - start)
                sums[fold] += torch.stack([torch.where(visible, of(x), 0).sum(1), visible.sum(1)])
        return sums

    def best(
        self,
        make: Callable[[Tensor, Tensor, float | None], Tensor],
        sums: Tensor,
        price: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """``make(total, count, smoothing)`` (C, H, W) of the smoothing with the lowest price on held-out cells.

        None, one number for all cells, wins unless another gains MARGIN. A single fold allows no judgement.
        """
        whole = sums.sum(0)
        options = [None, *SMOOTHING] if len(self.parts) > 1 else [None]
        others = [[make(whole[0] - part[0], whole[1] - part[1], smoothing) for smoothing in options] for part in sums]
        prices, cells = np.zeros(len(options)), 0
        for place in self.windows.held.places:
            x, _, held = self.windows.held_out([place])
            cells += int(held.sum())
            maps = others[self._fold_of(place)]
            prices += [torch.where(held[0], price(x[0], m[:, None]), 0).sum().item() for m in maps]
        prices /= max(1, cells)
        choice = int(prices.argmin())
        return make(whole[0], whole[1], options[choice] if prices[choice] < prices[0] - MARGIN else None)

    def _fold_of(self, place: tuple[int, int]) -> int:
        """The fold that a validation window lies in, or that comes last before it."""
        begins = [parts[0][:2] for parts in self.parts]
        return max(0, sum(begin <= place for begin in begins) - 1)


def _smooth(total: Tensor, count: Tensor, cells: float, periodic: tuple[bool, bool]) -> Tensor:
    """Weighted mean over the neighbourhood of every cell, (C, H, W); far from any value, the overall mean."""
    sums = torch.stack([total, count]).numpy()
    for axis, closed in zip((-2, -1), periodic):
        if cells:
            sums = gaussian_filter1d(sums, cells, axis=axis, mode="wrap" if closed else "constant")
    overall = total.sum((1, 2), keepdim=True) / count.sum((1, 2), keepdim=True).clamp(min=1)
    values, weights = torch.from_numpy(sums)
    # A trace of the overall mean: a cell without any neighbour has nothing else to go by.
    return (values + TRACE * overall) / (weights + TRACE)
