"""Networks. They know tensors and the noise level, and nothing of xarray, masks or partitions.

A *network* maps features (B, F, T, H, W) and the log signal-to-noise ratio (B,) to (B, C, T, H, W); a *skip* maps
(x, context, alpha_t, sigma_t) to a first estimate of the complete field. `fieldfill.denoise` joins the two.
"""

from fieldfill.nn.factorised import SpaceTimeUNet
from fieldfill.nn.fno import FNO
from fieldfill.nn.gaussian import GaussianSkip
from fieldfill.nn.local import LocalRegression
from fieldfill.nn.refiner import Refiner
from fieldfill.nn.scales import Scales
from fieldfill.nn.skip import PullPush, zero_skip
from fieldfill.nn.transport import Transport
from fieldfill.nn.unet import FoldedUNet

__all__ = [
    "FNO",
    "FoldedUNet",
    "GaussianSkip",
    "LocalRegression",
    "PullPush",
    "Refiner",
    "Scales",
    "SpaceTimeUNet",
    "Transport",
    "zero_skip",
]
