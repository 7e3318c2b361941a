"""Partitions: from the observed cells of a sample to the context the network sees and the query it is scored on.

Theorem 1 of the paper: a network learns E[x0_i | context] only where P(query_i | context) > 0. Hence the
principle that every partition here follows for one family of masks: *draw contexts with the structure of the
observation masks*, so that a cell hidden by nature looks, given the context, like a cell hidden by the
partition.
"""

from fieldfill.partition.ablation import AllObserved, HideMore
from fieldfill.partition.blocks import BlockPartition
from fieldfill.partition.protocol import Partition
from fieldfill.partition.side_inputs import WithSideInputs, varying_variables
from fieldfill.partition.structures import FramePartition, PixelPartition, StationPartition, VariablePartition
from fieldfill.partition.swap import MaskSwap

__all__ = [
    "AllObserved",
    "BlockPartition",
    "FramePartition",
    "HideMore",
    "MaskSwap",
    "Partition",
    "PixelPartition",
    "StationPartition",
    "VariablePartition",
    "WithSideInputs",
    "varying_variables",
]
