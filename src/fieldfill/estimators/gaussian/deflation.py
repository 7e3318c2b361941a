r"""A preconditioner for Gaussian conditioning: the strongest modes of the covariance are solved exactly.

The system is A = P C P^T + D on the context cells, D the diagonal of noise variances, C stationary in space with the
spectral factor L_k (see `fieldfill.estimators.gaussian.field`). Its large eigenvalues belong to a few smooth functions:
the columns psi of L_k with the largest power, each a Fourier mode k times a profile over (variable, frame). With Psi
made of them,

.. math:: C \approx \Psi \Psi^T + f I, \qquad
          A^{-1} \approx W - W \Psi (I + \Psi^T W \Psi)^{-1} \Psi^T W, \qquad W = P (D + f)^{-1} P^T

f standing for the modes left out. Patterns that the covariance has beside its stationary part are columns of Psi, too.
As the inverse of a positive definite matrix it is positive definite, whatever the
mask and the noise of each cell. The products of two modes are Fourier modes again, so that Psi^T W Psi needs nothing
but the Fourier transform of W.
"""

import copy
import math

import torch
from torch import Tensor

from fieldfill.estimators.gaussian.phases import phases, wavenumbers

__all__ = ["Deflation", "StrongModes"]


class StrongModes:
    """The ``count`` strongest modes psi of a factor L_k (K, CT, R) on ``torus``, seen on a grid (H, W) of its corner.

    A complex mode stands for two real functions, its real and imaginary part times sqrt(2); a mode that is its own
    conjugate stands for one, and the other is kept as zero.
    """

    def __init__(self, factor: Tensor, torus: tuple[int, int], grid: tuple[int, int], count: int) -> None:
        rows, half, rank = torus[0], torus[1] // 2 + 1, factor.shape[2]
        power = factor.abs().square().sum(1)
        self.strongest = power.max().item()
        power = power.view(rows, half, rank).clone()
        for edge in edge_columns(torus):
            power[rows // 2 + 1 :, edge] = 0  # the conjugates of modes that are counted already
        order = power.flatten().sort(descending=True)
        count = min(count, int((order.values > 0).sum()))
        self.left = order.values[count].item() if count < len(order.values) else 0.0
        mode, column = order.indices[:count] // rank, order.indices[:count] % rank
        self.profile = factor[mode, :, column].T[None] / math.sqrt(torus[0] * torus[1])  # (1, CT, N)
        self._k = wavenumbers(torus)[mode]
        k_y, k_x = mode // half, mode % half
        own = (2 * k_y % torus[0] == 0) & (2 * k_x % torus[1] == 0)
        self.scale = torch.where(own, 1.0, math.sqrt(2)), torch.where(own, 0.0, math.sqrt(2))
        found_y, place_y = k_y.unique(return_inverse=True)
        found_x, place_x = k_x.unique(return_inverse=True)
        self.box = len(found_y), len(found_x)
        self.place = place_y * self.box[1] + place_x
        angle_y = 2 * math.pi / torus[0] * torch.arange(grid[0])[:, None] * found_y
        angle_x = 2 * math.pi / torus[1] * torch.arange(grid[1])[:, None] * found_x
        self.wave_y = torch.polar(torch.ones_like(angle_y), angle_y)
        self.wave_x = torch.stack([angle_x.cos(), -angle_x.sin()], -1).flatten(1)
        self.torus = torus
        self._minus, self._plus = (
            ((k_y[:, None] - sign * k_y) % torus[0]) * torus[1] + (k_x[:, None] - sign * k_x) % torus[1]
            for sign in (1, -1)
        )

    def moved(self, drift: Tensor, variables: int) -> "StrongModes":
        """The modes of a covariance that moves with ``drift`` (B, 2): profiles (B, CT, N) that turn with the frames."""
        turn = phases(self._k, drift, self.profile.shape[1] // variables)
        modes = copy.copy(self)
        modes.profile = self.profile * turn.repeat(1, variables, 1)
        return modes

    def gram(self, weight: Tensor) -> Tensor:
        """Psi^T W Psi (B, 2N, 2N) for W = diag(weight), weight (B, C, T, H, W)."""
        spectrum = torch.fft.fft2(weight.flatten(1, 2), s=self.torus).flatten(2)
        shape = (max(len(weight), len(self.profile)), len(self.place), len(self.place))
        # psi_a^H W psi_b and psi_a^T W psi_b, from which those of real and imaginary parts follow.
        hermitian, plain = (torch.zeros(shape, dtype=spectrum.dtype) for _ in range(2))
        for channel, u in zip(spectrum.unbind(1), self.profile.unbind(1)):
            hermitian += channel[:, self._minus] * (u.conj()[:, :, None] * u[:, None])
            plain += channel.conj()[:, self._plus] * (u[:, :, None] * u[:, None])
        re, im = self.scale
        plus, minus = (hermitian + plain) / 2, (hermitian - plain) / 2
        mixed = plus.imag * (re[:, None] * im)
        above = torch.cat([plus.real * (re[:, None] * re), mixed], 2)
        return torch.cat([above, torch.cat([mixed.mT, minus.real * (im[:, None] * im)], 2)], 1)

    def analyse(self, v: Tensor) -> Tensor:
        """Psi^T v (B, 2N) for v (B, C, T, H, W)."""
        along_x = torch.view_as_complex((v.flatten(1, 2) @ self.wave_x).unflatten(-1, (self.box[1], 2)))
        both = (self.wave_y.mH @ along_x).flatten(2)[:, :, self.place]
        c = (both * self.profile.conj()).sum(1)
        return torch.cat([self.scale[0] * c.real, -self.scale[1] * c.imag], 1)

    def synthesise(self, c: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Psi c of ``shape`` (B, C, T, H, W) for c (B, 2N)."""
        re, im = c.chunk(2, dim=1)
        z = torch.complex(self.scale[0] * re, -self.scale[1] * im)
        both = torch.zeros(len(c), self.profile.shape[1], self.box[0] * self.box[1], dtype=z.dtype)
        both.index_add_(2, self.place, z[:, None] * self.profile)
        along_x = self.wave_y @ both.unflatten(2, self.box)
        return (torch.view_as_real(along_x).flatten(-2) @ self.wave_x.T).reshape(shape)


class Deflation:
    """The preconditioner for a mask and noise variances, both (B, C, T, H, W), or (1, C, T, H, W) for all samples.

    ``patterns`` (N, C, T, H, W) are those of the covariance. f is the share ``left`` of the strongest eigenvalue that
    is left out; it is at least the largest eigenvalue over ``precision``, because single precision must hold the small
    difference of W and what is subtracted from it.
    """

    def __init__(
        self,
        modes: StrongModes,
        mask: Tensor,
        noise: Tensor,
        patterns: Tensor,
        left: float = 0.2,
        precision: float = 3e4,
    ) -> None:
        powers = patterns.flatten(1).square().sum(1).tolist()
        fine = max(left * modes.left, max([modes.strongest, *powers]) / precision)
        self.modes, self.patterns, self.weight = modes, patterns, mask / (noise + fine)
        matrix = modes.gram(self.weight)
        if len(patterns):
            weighted = self.weight[:, None] * patterns
            mixed = torch.stack([modes.analyse(one) for one in weighted.unbind(1)], dim=1)
            own = weighted.flatten(2) @ patterns.flatten(1).T
            matrix = torch.cat([torch.cat([matrix, mixed.mT], 2), torch.cat([mixed, own], 2)], 1)
        matrix.diagonal(dim1=1, dim2=2).add_(1)
        self.factor = torch.linalg.cholesky(matrix)

    def __call__(self, residual: Tensor) -> Tensor:
        weighted = self.weight * residual
        c = torch.cat([self.modes.analyse(weighted), weighted.flatten(1) @ self.patterns.flatten(1).T], 1)
        if len(self.factor) == 1:
            c = torch.cholesky_solve(c.T, self.factor[0]).T
        else:
            c = torch.cholesky_solve(c[..., None], self.factor)[..., 0]
        c, shares = c.split([c.shape[1] - len(self.patterns), len(self.patterns)], dim=1)
        strong = self.modes.synthesise(c, residual.shape)
        if len(self.patterns):
            strong = strong + torch.tensordot(shares, self.patterns, dims=1)
        return weighted.addcmul_(self.weight, strong, value=-1)


def edge_columns(torus: tuple[int, int]) -> list[int]:
    """Columns of a half spectrum that hold both k and -k."""
    return [0, torus[1] // 2] if torus[1] % 2 == 0 else [0]
