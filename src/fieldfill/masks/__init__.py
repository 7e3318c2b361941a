"""Masks: models of how the gaps of a data set come about.

A mask M is a boolean tensor (B, C, T, H, W), True where the field is observed; a model draws M ~ p_mask
independently of the field. One alphabet: B samples, C variables, T frames, H rows, W columns.
"""

from fieldfill.masks.fixed import BlockMask, FrameDropout, PixelMask, SensorMask, VariableDropout, block_labels
from fieldfill.masks.mask_model import EmpiricalMask, Intersection, MaskModel, Union
from fieldfill.masks.moving import CloudMask, SwathMask, TrackMask

__all__ = [
    "BlockMask",
    "CloudMask",
    "EmpiricalMask",
    "FrameDropout",
    "Intersection",
    "MaskModel",
    "PixelMask",
    "SensorMask",
    "SwathMask",
    "TrackMask",
    "Union",
    "VariableDropout",
    "block_labels",
]
