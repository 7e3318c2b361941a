r"""What a record shows of each cell at other times than those of a crop.

A crop sees a few frames, a record may have hundreds. With a the anomalies of the visible values from the offset of
their frame, summed over the n frames outside the crop in which a cell is visible, and k values as prior weight,

.. math:: m = \frac{\sum a}{n + k}, \qquad s = \frac{n}{n + k}

are the mean of a cell, drawn to 0 where it was hardly seen, and how much it can be relied on. No value of the crop is
in these sums, so a network that has to find one does not see it here.

The offset of a frame is the mean of what its visible cells exceed their own means by, in turns with these means: the
plain mean of a frame would be too high where only warm cells were seen. One value moves the offsets by next to nothing,
so those of all frames are fitted once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fieldfill.data.crops import Crops

__all__ = ["OtherTimes"]


@dataclass(frozen=True)
class OtherTimes:
    """Sums over the frames of a record.

    Attributes
    ----------
    total, count
        (S, C, H, W) sum of the anomalies of each cell, and number of its visible values.
    offsets
        (S, C, T) of the frames of a crop's own record; None if the sums are those of another record.
    weight
        prior weight k of a mean, in values.
    """

    total: Tensor
    count: Tensor
    offsets: Tensor | None
    weight: float

    @classmethod
    def of(cls, crops: "Crops", weight: float, rounds: int) -> "OtherTimes":
        """The sums of a record, after ``rounds`` in which frames and cells take turns."""
        samples, variables, frames, rows, columns = crops.record.shape
        total, count = (torch.zeros(samples, variables, rows, columns) for _ in range(2))
        offsets = torch.zeros(samples, variables, frames)
        slabs = crops.all_slabs(frames)
        for _ in range(rounds):
            mean = total / (count + weight)
            total, count = torch.zeros_like(total), torch.zeros_like(count)
            for sample, start, stop in slabs:
                x, observed = crops.frames(sample, start, stop)
                above = torch.where(observed, x - mean[sample, :, None], 0).sum((2, 3))
                offset = above / (observed.sum((2, 3)) + 1)
                offsets[sample, :, start:stop] = offset
                total[sample] += torch.where(observed, x - offset[..., None, None], 0).sum(1)
                count[sample] += observed.sum(1)
        return cls(total, count, offsets, weight)

    def known(self) -> Tensor:
        """Sum and number (2, C, H, W) for other records at the same place; 0 if there are several samples.

        They may be other levels or years, of which none is the other record's own.
        """
        sums = torch.stack([self.total[0], self.count[0]])
        return sums if len(self.total) == 1 else torch.zeros_like(sums)

    def sums(self, sample: int) -> tuple[Tensor, Tensor]:
        """Sum and number (C, H, W) for a sample of a record; another record has one for all."""
        return self.total[sample % len(self.total)], self.count[sample % len(self.count)]

    def maps(self, sample: int, start: int, x: Tensor, observed: Tensor, total: Tensor, count: Tensor) -> Tensor:
        """Mean m and share s (2C, h, w) of a crop x (C, T, h, w) from frame ``start`` on, seen at ``observed``.

        ``total`` and ``count`` are the sums of its sample at its cells.
        """
        if self.offsets is not None:
            offset = self.offsets[sample, :, start : start + x.shape[1], None, None]
            total = total - torch.where(observed, x - offset, 0).sum(1)
            count = count - observed.sum(1)
        return torch.cat([total, count]) / (count + self.weight).repeat(2, 1, 1)
