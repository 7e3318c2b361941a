r"""The Gaussian skip: the denoiser of a Gaussian field that has the covariance of the data.

With x_0 ~ N(0, C), observations y = x_t / alpha_t at the context cells and noise variance
s² = (sigma_t / alpha_t)² + nugget,

.. math:: E[x_0 | y] = C P^T (P C P^T + s^2 I)^{-1} y

where P picks the context cells. C is stationary in space and free in (variable, frame): in Fourier space it is one
Hermitian matrix G_k of (C·T)² numbers per wavenumber k, kept as a factor, G_k = L_k L_k^H. A few steps of conjugate
gradients solve the system; a coarse problem of block means, solved exactly, takes care of the large scales on which
they would be slow. The estimate is good long before the residual is small.
"""

import math

import torch
from torch import Tensor, nn

from fieldfill.nn.skip import pull, push

__all__ = ["GaussianSkip"]

MAX_RANK = 64  # of a factor; windows of more (variables · frames) keep the strongest combinations
MAX_BLOCKS = 400  # unknowns of the coarse problem
FINE = 0.5  # typical eigenvalue of what the block means leave; the number of steps hardly depends on it

SMOOTH = sorted(2**a * 3**b * 5**c for a in range(14) for b in range(6) for c in range(4))


class GaussianSkip(nn.Module):
    """Conditional mean of a Gaussian field, as a skip or alone.

    Arguments
    ---------
    variables, frames, grid
        C, T, (H, W) of a window.
    periodic
        whether each axis of the grid closes on itself.
    reach
        cells beyond which the covariance is taken as zero.
    steps
        conjugate-gradient steps of a fill; training takes half as many, where sampling noise hides the difference.
    """

    factor: Tensor
    coarse: Tensor
    nugget: Tensor

    def __init__(
        self,
        variables: int,
        frames: int,
        grid: tuple[int, int],
        periodic: tuple[bool, bool],
        reach: int = 24,
        steps: int = 60,
    ) -> None:
        super().__init__()
        self.shape, self.steps, self.reach = (variables, frames, *grid), steps, reach
        self.torus = (_torus(grid[0], reach, periodic[0]), _torus(grid[1], reach, periodic[1]))
        self.block = _block(self.shape)
        channels = variables * frames
        modes = self.torus[0] * (self.torus[1] // 2 + 1)
        # Real and imaginary parts of L_k, since not every file format holds complex numbers: (K, CT, R, 2).
        self.register_buffer("factor", torch.zeros(modes, channels, min(channels, MAX_RANK), 2))
        blocks = pull(torch.zeros(1, *self.shape), self.block).numel()
        self.register_buffer("coarse", torch.eye(blocks))
        self.register_buffer("nugget", torch.tensor(0.01))
        self._operators: tuple[Tensor, ...] = ()

    def set_covariance(self, factor: Tensor) -> None:
        """Takes L_k (K, CT, R, 2) and prepares the coarse problem: covariances of block means (N, N)."""
        self.factor.copy_(factor)
        self._operators = ()
        blocks = len(self.coarse)
        size = pull(torch.ones(1, *self.shape), self.block)
        one_hot = torch.eye(blocks).reshape(blocks, *size.shape[1:])
        for first in range(0, blocks, 64):
            part = one_hot[first : first + 64]
            means = pull(self.covary(push(part / size, self.block, self.shape)), self.block) / size
            self.coarse[first : first + 64] = means.flatten(1)

    @torch.no_grad()
    def forward(self, x: Tensor, context: Tensor, alpha_t: Tensor, sigma_t: Tensor) -> Tensor:
        mask = context.to(x.dtype)
        noise = ((sigma_t / alpha_t) ** 2 + self.nugget).expand(len(x), 1, 1, 1, 1)
        return self.covary(self._solve(mask * x / alpha_t, mask, noise))

    def covary(self, v: Tensor) -> Tensor:
        """C v for v (B, C, T, H, W)."""
        if not self._operators:
            self._operators = self._prepare()
        h, w = v.shape[-2:]
        spectrum = torch.fft.rfft2(v.flatten(1, 2), s=self.torus)
        modes = spectrum.flatten(2).permute(2, 0, 1).contiguous()
        for operator in self._operators:
            modes = modes @ operator
        spectrum = modes.permute(1, 2, 0).reshape(spectrum.shape)
        return torch.fft.irfft2(spectrum, s=self.torus)[..., :h, :w].reshape(v.shape)

    def _prepare(self) -> tuple[Tensor, ...]:
        """Matrices that act on row vectors from the right: (L L^H v)^T = v^T conj(L) L^T, contiguous for speed."""
        factor = torch.view_as_complex(self.factor)
        left, right = factor.conj().resolve_conj(), factor.transpose(1, 2)
        if factor.shape[1] == factor.shape[2]:
            return ((left @ right).contiguous(),)
        return left.contiguous(), right.contiguous()

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._operators = ()

    def _solve(self, y: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        """(P C P^T + s²)⁻¹ y by preconditioned conjugate gradients, each sample with its own step lengths."""
        precondition = self._two_levels(mask, noise)
        v, residual = torch.zeros_like(y), y
        z = precondition(residual)
        direction, size = z, _dot(residual, z)
        for _ in range(self.steps // 2 if self.training else self.steps):
            image = mask * self.covary(direction) + noise * direction
            step = size / _dot(direction, image).clamp(min=1e-30)
            v = v + step * direction
            residual = residual - step * image
            z = precondition(residual)
            before, size = size, _dot(residual, z)
            direction = z + size / before.clamp(min=1e-30) * direction
        return v

    def _two_levels(self, mask: Tensor, noise: Tensor) -> "_TwoLevels":
        return _TwoLevels(mask, noise, self.coarse, self.block)


class _TwoLevels:
    """Preconditioner: exact on block means of the context cells, a constant on what they leave.

    With n_i context cells in block i, E = n_i n_j Cov(block i, block j) + s² n_i approximates the system between
    block sums; it is scaled by 1 / sqrt(n_i n_j) to be well conditioned.
    """

    def __init__(self, mask: Tensor, noise: Tensor, coarse: Tensor, block: tuple[int, int, int]) -> None:
        self.mask, self.block, self.fine = mask, block, 1 / (noise + FINE)
        self.count = pull(mask, block)
        self.root = self.count.sqrt()
        flat = self.root.flatten(1)
        matrix = flat[:, :, None] * coarse * flat[:, None, :]
        matrix.diagonal(dim1=1, dim2=2).add_(noise.flatten(1))
        self.factor = torch.linalg.cholesky(matrix)

    def __call__(self, residual: Tensor) -> Tensor:
        total = pull(residual, self.block)
        safe = self.root.clamp(min=1)
        scaled = (total / safe).flatten(1)[:, :, None]
        z = torch.cholesky_solve(scaled, self.factor).reshape(total.shape) / safe
        mean = total / self.count.clamp(min=1)
        # One push for both: z_c + fine · (r - mean).
        level = push(z - self.fine * mean, self.block, residual.shape[1:])
        return self.mask * (level + self.fine * residual)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, 1, 1, 1, 1)


def _torus(size: int, reach: int, periodic: bool) -> int:
    """Cells of an axis on which a covariance of ``reach`` cells does not wrap onto itself; a fast FFT length."""
    if periodic:
        return size
    wanted = size + min(size - 1, reach)
    return next(n for n in SMOOTH if n >= wanted)


def _block(shape: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Frames, rows and columns of a block, such that there are at most MAX_BLOCKS."""
    variables, frames, rows, columns = shape
    time = min(2, frames)
    while variables * math.ceil(frames / time) * 4 > MAX_BLOCKS and time < frames:
        time *= 2
    side = 1
    while variables * math.ceil(frames / time) * math.ceil(rows / side) * math.ceil(columns / side) > MAX_BLOCKS:
        side += 1
    return time, side, side
