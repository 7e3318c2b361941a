r"""The Gaussian skip: the denoiser of a Gaussian field that has the covariance of the data.

With x_0 ~ N(0, C) and observations y = x_0 + e at the context cells, Var e_i = s_i² + nugget,

.. math:: E[x_0 | y] = C P^T (P C P^T + D)^{-1} y, \qquad D = diag(s_i^2 + nugget)

where P picks the context cells. As the denoiser of x_t it reads y = x_t / alpha_t with s² = (sigma_t / alpha_t)².
The covariance is C = S + U^T U. S is stationary in space and free in (variable, frame): in Fourier space one Hermitian
matrix G_k of (C·T)² numbers per wavenumber k, kept as a factor, G_k = L_k L_k^H. The rows of U are a few patterns of
the whole window, for what is not stationary. Conjugate gradients solve the system; the strongest modes, on which they
would be slow, are solved exactly (`fieldfill.nn.deflation`).

Realisations need no other solver (Matheron's rule): for z ~ N(0, C) and e as above, z - E[z | z + e] has the posterior
covariance, whatever the values were.
"""

import math

import torch
from torch import Generator, Tensor, nn

from fieldfill.nn.deflation import Deflation, StrongModes, edge_columns

__all__ = ["GaussianSkip"]

MAX_RANK = 64  # of a factor; windows of more (variables · frames) keep the strongest combinations
MAX_FACTOR_BYTES = 2**28  # of a factor; a large window keeps fewer combinations
MODES = 200  # complex modes that are solved exactly, 400 real functions
BATCH_CELLS = 2**21  # cells of the realisations that are solved for together

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
        cells beyond which the stationary covariance is taken as zero.
    steps
        conjugate-gradient steps of a fill at most; training takes half as many, where sampling noise hides the
        difference.
    tolerance
        a sample whose squared residual fell by this factor takes no further steps.
    """

    factor: Tensor
    nugget: Tensor
    patterns: Tensor

    def __init__(
        self,
        variables: int,
        frames: int,
        grid: tuple[int, int],
        periodic: tuple[bool, bool],
        reach: int = 24,
        steps: int = 40,
        tolerance: float = 1e-7,
    ) -> None:
        super().__init__()
        self.shape, self.steps, self.tolerance = (variables, frames, *grid), steps, tolerance
        self.torus = (_torus(grid[0], reach, periodic[0]), _torus(grid[1], reach, periodic[1]))
        channels = variables * frames
        modes = self.torus[0] * (self.torus[1] // 2 + 1)
        rank = max(1, min(channels, MAX_RANK, MAX_FACTOR_BYTES // (8 * modes * channels)))
        # Real and imaginary parts of L_k, since not every file format holds complex numbers: (K, CT, R, 2).
        self.register_buffer("factor", torch.zeros(modes, channels, rank, 2))
        self.register_buffer("nugget", torch.tensor(0.01))
        self.register_buffer("patterns", torch.zeros(0, *self.shape))
        self._operator: Tensor | None = None
        self._modes: StrongModes | None = None

    def set_covariance(self, factor: Tensor, patterns: Tensor | None = None) -> None:
        """Takes L_k (K, CT, R, 2) and U (N, C, T, H, W)."""
        self.factor.copy_(factor)
        _pair_conjugates(torch.view_as_complex(self.factor), self.torus)
        self.patterns = self.factor.new_zeros(0, *self.shape) if patterns is None else patterns
        self._operator = self._modes = None

    def forward(self, x: Tensor, context: Tensor, alpha_t: Tensor, sigma_t: Tensor) -> Tensor:
        return self.posterior_mean(x / alpha_t, context, (sigma_t / alpha_t) ** 2)

    @torch.no_grad()
    def posterior_mean(self, y: Tensor, context: Tensor, noise: Tensor) -> Tensor:
        """E[x_0 | y = x_0 + e at the context cells], (B, C, T, H, W).

        ``noise`` is the variance of e without the nugget. It and ``context`` have y's shape or are broadcastable to it;
        one context for all samples (1, C, T, H, W) saves most of the preparation.
        """
        mask, noise = torch.broadcast_tensors(context.to(y.dtype), noise + self.nugget)
        return self.covary(self._solve(mask * y, mask, noise))

    @torch.no_grad()
    def draw(self, count: int, generator: Generator) -> Tensor:
        """Unconditional realisations (count, C, T, H, W) of the field."""
        smooth, weights = self._draw(count, generator)
        return self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)

    def _draw(self, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """The stationary part on the whole torus (count, CT, rows, columns) and weights of the patterns (count, N)."""
        factor = torch.view_as_complex(self.factor)
        # White noise on the torus, filtered by L_k: its spectrum is L_k L_k^H = G_k.
        white = torch.randn((count, factor.shape[2], *self.torus), generator=generator)
        modes = torch.fft.rfft2(white).flatten(2).permute(2, 0, 1) @ factor.transpose(1, 2)
        return self._to_torus(modes), torch.randn((count, len(self.patterns)), generator=generator)

    @torch.no_grad()
    def complete(self, x: Tensor, observed: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """One posterior draw per window x (B, C, T, H, W): as `_draw`, given the observed values."""
        smooth, weights = self._draw(len(x), generator)
        drawn = self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)
        noise = self.nugget.sqrt() * torch.randn(x.shape, generator=generator)
        mask = observed.to(x.dtype)
        v = self._solve(mask * (x - drawn - noise), mask, self.nugget.expand_as(x))
        return smooth + self._to_torus(self._spectrum(v)), weights + v.flatten(1) @ self.patterns.flatten(1).T

    def complete_grid(self, x: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        """One posterior draw (B, C, T, H, W) of the field for each window x."""
        smooth, weights = self.complete(x, observed, generator)
        return self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)

    @torch.no_grad()
    def realise(self, observed: Tensor, count: int, generator: Generator) -> Tensor:
        """Draws (count, C, T, H, W) of x_0 - E[x_0 | y] given where, not what, was observed: a mask (C, T, H, W).

        They have zero mean and the posterior covariance; at the observed cells, whose values are known, they are 0.
        The error of a solution that stops early is part of them.
        """
        batch = max(1, min(count, BATCH_CELLS // math.prod(self.shape)))
        parts = []
        for first in range(0, count, batch):
            z = self.draw(min(batch, count - first), generator)
            noise = self.nugget.sqrt() * torch.randn(z.shape, generator=generator)
            parts.append((z - self.posterior_mean(z + noise, observed[None], torch.zeros(()))) * ~observed)
        return torch.cat(parts)

    def variance(self, observed: Tensor, probes: int, generator: Generator) -> Tensor:
        """Posterior variance (B, C, T, H, W) for masks of that shape: mean square of ``probes`` realisations each.

        Its relative standard error is sqrt(2 / probes).
        """
        return torch.stack([self.realise(mask, probes, generator).square().mean(0) for mask in observed])

    def covary(self, v: Tensor) -> Tensor:
        """C v for v (B, C, T, H, W)."""
        smooth = self._crop(self._to_torus(self._spectrum(v)))
        if len(self.patterns) == 0:
            return smooth
        flat = self.patterns.flatten(1)
        return smooth + (v.flatten(1) @ flat.T @ flat).view_as(v)

    def _spectrum(self, v: Tensor) -> Tensor:
        """Spectrum of S v, (K, B, CT)."""
        return self._multiply(torch.fft.rfft2(v.flatten(1, 2), s=self.torus).flatten(2).permute(2, 0, 1).contiguous())

    def _multiply(self, modes: Tensor) -> Tensor:
        """G_k times row vectors (K, B, CT): (L L^H v)^T = v^T conj(L) L^T."""
        factor = torch.view_as_complex(self.factor)
        if factor.shape[1] > factor.shape[2]:
            return torch.conj_physical(torch.conj_physical(modes) @ factor) @ factor.transpose(1, 2)
        if self._operator is None:
            self._operator = (torch.conj_physical(factor) @ factor.transpose(1, 2)).contiguous()
        return modes @ self._operator

    def _to_torus(self, modes: Tensor) -> Tensor:
        """Spectra (K, B, CT) to fields (B, CT, rows, columns) on the torus."""
        spectrum = modes.permute(1, 2, 0).unflatten(2, (self.torus[0], -1))
        return torch.fft.irfft2(spectrum, s=self.torus)

    def _crop(self, field: Tensor) -> Tensor:
        """The window (B, C, T, H, W) of fields on the torus."""
        return field[..., : self.shape[2], : self.shape[3]].reshape(-1, *self.shape)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        found = state_dict.get(f"{prefix}patterns")
        if found is not None:
            self.patterns = torch.zeros_like(found)  # their number is learnt, not chosen
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._operator = self._modes = None

    def _solve(self, y: Tensor, mask: Tensor, noise: Tensor) -> Tensor:
        """(P C P^T + D)⁻¹ y by preconditioned conjugate gradients, each sample with its own step lengths."""
        if self._modes is None:
            count = min(MODES, math.prod(self.shape) // 16)
            self._modes = StrongModes(torch.view_as_complex(self.factor), self.torus, self.shape[2:], count)
        precondition = Deflation(self._modes, mask, noise)
        v, residual = torch.zeros_like(y), y
        z = precondition(residual)
        direction, size = z, _dot(residual, z)
        enough = self.tolerance * size
        for _ in range(self.steps // 2 if self.training else self.steps):
            active = size > enough
            if not active.any():
                break
            image = mask * self.covary(direction) + noise * direction
            step = active * size / _dot(direction, image).clamp(min=1e-30)
            v = v + step * direction
            residual = residual - step * image
            z = precondition(residual)
            before, size = size, _dot(residual, z)
            direction = z + size / before.clamp(min=1e-30) * direction
        return v


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1).view(-1, 1, 1, 1, 1)


def _pair_conjugates(factor: Tensor, torus: tuple[int, int]) -> None:
    """Makes L_{-k} = conj(L_k) where the half spectrum of ``factor`` (K, CT, R) holds both k and -k, in place.

    The eigenvectors of G_k and of G_{-k} are conjugate up to a phase. White noise filtered by L is a real field with
    the right covariance only without it.
    """
    rows, half = torus[0], torus[1] // 2 + 1
    planes = factor.view(rows, half, *factor.shape[1:])
    for column in edge_columns(torus):
        upper = torch.arange(1, (rows + 1) // 2)
        planes[-upper, column] = planes[upper, column].conj()
        for row in {0, rows // 2} if rows % 2 == 0 else {0}:
            # k = -k: G_k is real, and so is its symmetric root.
            values, vectors = torch.linalg.eigh((planes[row, column] @ planes[row, column].mH).real)
            rank = factor.shape[2]
            planes[row, column] = (vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()).to(factor.dtype)


def _torus(size: int, reach: int, periodic: bool) -> int:
    """Cells of an axis on which a covariance of ``reach`` cells does not wrap onto itself; a fast FFT length."""
    if periodic:
        return size
    wanted = size + min(size - 1, reach)
    return next(n for n in SMOOTH if n >= wanted)
