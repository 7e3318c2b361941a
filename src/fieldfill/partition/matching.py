"""The structure-preserving partition of each mask model."""

from torch import Tensor

from fieldfill.masks import BlockMask, FrameDropout, MaskModel, PixelMask, SensorMask, VariableDropout
from fieldfill.partition.blocks import BlockPartition
from fieldfill.partition.protocol import Partition
from fieldfill.partition.structures import FramePartition, PixelPartition, StationPartition, VariablePartition
from fieldfill.partition.swap import MaskSwap

__all__ = ["matching"]


def matching(model: MaskModel, bank: Tensor) -> Partition:
    """The partition with the structure of ``model``; ``bank`` (N, C, T, H, W) holds masks of the data set.

    Shapes that are not units of a grid (tracks, swaths, clouds, combinations, the user's own masks) are
    matched by swapping masks.
    """
    match model:
        case PixelMask():
            return PixelPartition(static=model.static)
        case BlockMask():
            return BlockPartition(model.rows, model.cols)
        case SensorMask():
            return StationPartition(dropout=max(model.dropout, 0.02))
        case FrameDropout():
            return FramePartition()
        case VariableDropout():
            return VariablePartition()
        case _:
            return MaskSwap(bank)
