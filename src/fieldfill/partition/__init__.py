"""Partitions: from the observed cells M of a sample to the context the network sees and the query it is
scored on.

Theorem 1 of the paper: a network learns E[x0_i | context] only where P(query_i | context) > 0. Hence the
principle that every partition here follows for one family of masks: *draw contexts with the structure of the
observation masks*, so that a cell hidden by nature looks, given the context, like a cell hidden by the
partition.
"""

from fieldfill.partition.ablation import AllObserved, HideMore
from fieldfill.partition.base import Partition
from fieldfill.partition.blocks import BlockPartition
from fieldfill.partition.matching import matching
from fieldfill.partition.side import WithSideInputs, varying_variables
from fieldfill.partition.swap import MaskSwap
from fieldfill.partition.units import FramePartition, PixelPartition, StationPartition, VariablePartition

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
    "matching",
    "varying_variables",
]
