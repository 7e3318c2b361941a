"""The protocol of every network, and of what builds one.

A network is a `torch.nn.Module` on plain tensors: B samples, F input features, V outputs, T frames, H rows, W columns.
It depends neither on the diffusion that trains it nor on the data that its features come from. To add one, write its
module beside this one and add a line to `fieldfill.config.NETWORKS`.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Network", "NetworkBuilder"]


@runtime_checkable
class Network(Protocol):
    """Features and noise level → an estimate of the field, and of the logarithm of its variance.

    Attributes
    ----------
    frames_alike
        whether the network treats all frames alike and takes crops of any length. Then a step of training may look at a
        few frames of a crop instead of all.
    """

    frames_alike: bool

    def __call__(self, features: Tensor, log_snr: Tensor) -> Tensor:
        """The outputs (B, V, T, H, W) for features (B, F, T, H, W) at a log signal-to-noise ratio (B,).

        The first C outputs are the estimates of x_0 (or of the noise or velocity) for C variables. If V = 2 C, the
        others are the logarithms of their variances. All outputs of an untrained network are 0, which leaves the first
        estimate as it is.
        """
        ...


class NetworkBuilder(Protocol):
    """Makes an untrained network; a class whose constructor takes these arguments is one."""

    def __call__(
        self, features: int, variables: int, frames: int, base: int, levels: int, periodic: tuple[bool, bool]
    ) -> Network:
        """A network with so many input features and outputs (``variables``), for crops of so many frames.

        ``base`` is its width in channels, ``levels`` its depth, ``periodic`` whether rows and columns close on
        themselves.
        """
        ...
