r"""A Gaussian field that has the covariance of the data.

With x_0 ~ N(0, C) and observations y = x_0 + e at the context cells, Var e_i = s_i² + nugget,

.. math:: E[x_0 | y] = C P^T (P C P^T + D)^{-1} y, \qquad D = diag(s_i^2 + nugget)

where P picks the context cells. As the denoiser of x_t it reads y = x_t / alpha_t with s² = (sigma_t / alpha_t)².
The covariance is C = S + U^T U. S is stationary in space and free in (variable, frame): in Fourier space one Hermitian
matrix G_k of (C·T)² numbers per wavenumber k, kept as a factor, G_k = L_k L_k^H. The rows of U are a few patterns of
the whole crop, for what is not stationary. Conjugate gradients solve the system; the strongest modes, on which they
would be slow, are solved exactly (`fieldfill.estimators.gaussian.deflation`).

Realisations need no other solver (Matheron's rule): for z ~ N(0, C) and e as above, z - E[z | z + e] has the posterior
covariance, whatever the values were.

*Drift.* S may hold in a frame that moves with the pattern of a crop. Seen from the grid, at rest, the crop has

.. math:: G_k(f, f')\, e^{-i k \cdot v (f - f')}

with its own drift v (`fieldfill.estimators.drift`).
"""

import math
from dataclasses import dataclass

import torch
from scipy.fft import next_fast_len
from torch import Generator, Tensor, nn

from fieldfill.data.pieces import at_once
from fieldfill.estimators.base import Given
from fieldfill.estimators.gaussian.deflation import Deflation, StrongModes, edge_columns
from fieldfill.estimators.gaussian.phases import phases, wavenumbers
from fieldfill.estimators.gaussian.solver import conjugate_gradients

__all__ = ["GaussianLaw", "LearntField", "red_factor"]

# Rank of a factor at most; longer crops or more variables keep the strongest combinations.
MAX_RANK = 64
# Memory of a factor at most, in bytes; a large crop keeps fewer combinations.
MAX_FACTOR_BYTES = 2**28
# Complex modes that are solved exactly: 400 real functions.
MODES = 200
# Conjugate-gradient steps of a thorough solution, at least.
THOROUGH_STEPS = 200


class LearntField(nn.Module):
    """Conditional mean and realisations of a Gaussian field.

    Parameters
    ----------
    variables, frames, grid
        C, T, (H, W) of a crop.
    periodic
        whether each axis of the grid closes on itself.
    reach
        cells beyond which the stationary covariance is taken as zero.
    steps
        conjugate-gradient steps of a fill at most, times the ``effort`` that a record was found to be worth; training
        takes half as many, where sampling noise hides the difference.
    tolerance
        a sample whose squared residual fell by this factor takes no further steps.
    """

    factor: Tensor
    nugget: Tensor
    effort: Tensor
    patterns: Tensor
    _k: Tensor

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
        self.periodic, self.reach = periodic, reach
        self.torus = (_torus(grid[0], reach, periodic[0]), _torus(grid[1], reach, periodic[1]))
        channels = variables * frames
        modes = self.torus[0] * (self.torus[1] // 2 + 1)
        rank = max(1, min(channels, MAX_RANK, MAX_FACTOR_BYTES // (8 * modes * channels)))
        # Real and imaginary parts of L_k, since not every file format holds complex numbers: (K, CT, R, 2).
        self.register_buffer("factor", torch.zeros(modes, channels, rank, 2))
        self.register_buffer("nugget", torch.tensor(0.01))
        self.register_buffer("effort", torch.tensor(1.0))
        self.register_buffer("patterns", torch.zeros(0, *self.shape))
        self._operator: Tensor | None = None
        self._modes: StrongModes | None = None
        self.register_buffer("_k", wavenumbers(self.torus), persistent=False)

    def empty(self) -> "LearntField":
        """A field of the same shape and solver without a covariance."""
        variables, frames, *grid = self.shape
        field = LearntField(
            variables, frames, (grid[0], grid[1]), self.periodic, self.reach, self.steps, self.tolerance
        )
        return field.train(self.training)

    def frame_covariance(self) -> Tensor:
        """Spectrum (K, C, C) of the covariance within a frame, mean over the frames."""
        factor = torch.view_as_complex(self.factor).unflatten(1, self.shape[:2])
        return torch.einsum("kafr,kbfr->kab", factor, factor.conj()) / self.shape[1]

    def set_covariance(self, factor: Tensor, patterns: Tensor | None = None) -> None:
        """Takes L_k (K, CT, R, 2) and U (N, C, T, H, W)."""
        self.factor.copy_(factor)
        _pair_conjugates(torch.view_as_complex(self.factor), self.torus)
        self.patterns = self.factor.new_zeros(0, *self.shape) if patterns is None else patterns
        self._operator = self._modes = None

    @torch.no_grad()
    def condition(
        self, y: Tensor, context: Tensor, noise: Tensor, drift: Tensor | None = None, thorough: bool = False
    ) -> Tensor:
        """E[x_0 | y = x_0 + e at the context cells], (B, C, T, H, W), of fields that move with ``drift`` (B or 1, 2).

        ``noise`` is the variance of e without the nugget. It and ``context`` have y's shape or are broadcastable to it.
        One context for all samples (1, C, T, H, W), with one drift, saves most of the preparation. ``thorough`` takes
        as many steps as it needs.
        """
        mask, noise = torch.broadcast_tensors(context.to(y.dtype), noise + self.nugget)
        turn = self._turn(drift)
        return self.covary(self._solve(mask * y, mask, noise, drift, turn, thorough), turn)

    def at_rest(self, field: Tensor, drift: Tensor) -> Tensor:
        """Half spectra (B, CT, rows, half) of fields (B, CT, rows, columns) on the torus, moved back by their drift."""
        modes = _turned(torch.fft.rfft2(field).flatten(2), phases(self._k, -drift, self.shape[1]))
        return modes.unflatten(2, (self.torus[0], -1))

    def _turn(self, drift: Tensor | None) -> Tensor | None:
        return None if drift is None else phases(self._k, drift, self.shape[1])

    @torch.no_grad()
    def draw(self, count: int, generator: Generator, drift: Tensor | None = None) -> Tensor:
        """Unconditional realisations (count, C, T, H, W) of the field, moving with ``drift`` (count or 1, 2)."""
        smooth, weights = self._draw(count, generator, self._turn(drift))
        return self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)

    def _draw(self, count: int, generator: Generator, turn: Tensor | None) -> tuple[Tensor, Tensor]:
        """The stationary part on the whole torus (count, CT, rows, columns) and weights of the patterns (count, N)."""
        factor = torch.view_as_complex(self.factor)
        # White noise on the torus, filtered by L_k: its spectrum is L_k L_k^H = G_k.
        white = torch.randn((count, factor.shape[2], *self.torus), generator=generator)
        modes = torch.fft.rfft2(white).flatten(2).permute(2, 0, 1) @ factor.transpose(1, 2)
        return self._to_torus(modes, turn), torch.randn((count, len(self.patterns)), generator=generator)

    @torch.no_grad()
    def complete(
        self, x: Tensor, observed: Tensor, generator: Generator, drift: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One posterior draw per crop x (B, C, T, H, W): as `_draw`, given the observed values."""
        turn = self._turn(drift)
        smooth, weights = self._draw(len(x), generator, turn)
        drawn = self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)
        noise = self.nugget.sqrt() * torch.randn(x.shape, generator=generator)
        mask = observed.to(x.dtype)
        v = self._solve(mask * (x - drawn - noise), mask, self.nugget.expand_as(x), drift, turn)
        return smooth + self._to_torus(self._spectrum(v, turn), turn), weights + v.flatten(1) @ self.patterns.flatten(
            1
        ).T

    def complete_grid(self, x: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        """One posterior draw (B, C, T, H, W) of the field for each crop x."""
        smooth, weights = self.complete(x, observed, generator)
        return self._crop(smooth) + torch.tensordot(weights, self.patterns, dims=1)

    @torch.no_grad()
    def realise(self, observed: Tensor, count: int, generator: Generator, drift: Tensor | None = None) -> Tensor:
        """Draws (count, C, T, H, W) of x_0 - E[x_0 | y] given where, not what, was observed: a mask (C, T, H, W).

        They have zero mean and the posterior covariance; at the observed cells, whose values are known, they are 0.
        The error of a solution that stops early is part of them. ``drift`` (1, 2) is that of the crop.
        """
        batch = min(count, at_once(math.prod(self.shape)))
        parts = []
        for first in range(0, count, batch):
            z = self.draw(min(batch, count - first), generator, drift)
            noise = self.nugget.sqrt() * torch.randn(z.shape, generator=generator)
            parts.append((z - self.condition(z + noise, observed[None], torch.zeros(()), drift)) * ~observed)
        return torch.cat(parts)

    def variance(self, observed: Tensor, probes: int, generator: Generator) -> Tensor:
        """Posterior variance (B, C, T, H, W) for masks of that shape: mean square of ``probes`` realisations at rest.

        Its relative standard error is sqrt(2 / probes).
        """
        return torch.stack([self.realise(mask, probes, generator).square().mean(0) for mask in observed])

    def covary(self, v: Tensor, turn: Tensor | None = None) -> Tensor:
        """C v for v (B, C, T, H, W); ``turn`` are the phases (B or 1, T, K) of a drift."""
        smooth = self._to_grid(self._spectrum(v, turn), turn).view_as(v)
        if len(self.patterns) == 0:
            return smooth
        flat = self.patterns.flatten(1)
        return smooth + (v.flatten(1) @ flat.T @ flat).view_as(v)

    def _spectrum(self, v: Tensor, turn: Tensor | None) -> Tensor:
        """Spectrum of S v at rest, (K, B, CT)."""
        modes = torch.fft.rfft2(v.flatten(1, 2), s=self.torus).flatten(2)
        if turn is not None:
            modes = _turned(modes, turn.conj())
        return self._multiply(modes.permute(2, 0, 1).contiguous())

    def _multiply(self, modes: Tensor) -> Tensor:
        """G_k times row vectors (K, B, CT): (L L^H v)^T = v^T conj(L) L^T."""
        factor = torch.view_as_complex(self.factor)
        if factor.shape[1] > factor.shape[2]:
            return torch.conj_physical(torch.conj_physical(modes) @ factor) @ factor.transpose(1, 2)
        if self._operator is None:
            self._operator = (torch.conj_physical(factor) @ factor.transpose(1, 2)).contiguous()
        return modes @ self._operator

    def _moving(self, modes: Tensor, turn: Tensor | None) -> Tensor:
        """Spectra at rest (K, B, CT) as half spectra (B, CT, rows, half) that move."""
        spectrum = modes.permute(1, 2, 0)
        if turn is not None:
            spectrum = _turned(spectrum, turn)
        return spectrum.unflatten(2, (self.torus[0], -1))

    def _to_torus(self, modes: Tensor, turn: Tensor | None) -> Tensor:
        """Spectra at rest (K, B, CT) to fields (B, CT, rows, columns) on the torus."""
        return torch.fft.irfft2(self._moving(modes, turn), s=self.torus)

    def _to_grid(self, modes: Tensor, turn: Tensor | None) -> Tensor:
        """The same on the grid of a crop alone: rows beyond it need no transform along the columns."""
        rows = torch.fft.ifft(self._moving(modes, turn), dim=-2)[..., : self.shape[2], :]
        return torch.fft.irfft(rows, n=self.torus[1])[..., : self.shape[3]].contiguous()

    def _crop(self, field: Tensor) -> Tensor:
        """The crop (B, C, T, H, W) of fields on the torus."""
        return field[..., : self.shape[2], : self.shape[3]].reshape(-1, *self.shape)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        found = state_dict.get(f"{prefix}patterns")
        if found is not None:
            self.patterns = torch.zeros_like(found)  # their number is learnt, not chosen
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._operator = self._modes = None

    def _solve(
        self,
        y: Tensor,
        mask: Tensor,
        noise: Tensor,
        drift: Tensor | None,
        turn: Tensor | None,
        thorough: bool = False,
    ) -> Tensor:
        """(P C P^T + D)⁻¹ y by preconditioned conjugate gradients, each sample with its own step lengths."""
        if self._modes is None:
            count = min(MODES, math.prod(self.shape) // 16)
            self._modes = StrongModes(torch.view_as_complex(self.factor), self.torus, self.shape[2:], count)
        modes = self._modes if drift is None else self._modes.moved(drift, self.shape[0])

        def operator(v: Tensor) -> Tensor:
            return mask * self.covary(v, turn) + noise * v

        steps = self.steps // 2 if self.training else round(self.steps * self.effort.item())
        tolerance = self.tolerance
        if thorough:
            steps, tolerance = max(steps, THOROUGH_STEPS), tolerance / 100
        return conjugate_gradients(operator, Deflation(modes, mask, noise, self.patterns), y, steps, tolerance)


def red_factor(field: LearntField) -> Tensor:
    """The spectral factor of independent frames with energy (4 + k²)^(-3/2): as hard to solve as real data."""
    rows, columns = field.torus
    y, x = torch.fft.fftfreq(rows) * rows, torch.arange(columns // 2 + 1)
    power = (4 + y[:, None] ** 2 + x**2) ** -1.5
    factor = torch.zeros_like(field.factor)
    own = torch.arange(factor.shape[2])
    factor[:, own, own, 0] = (power / power.mean()).sqrt().flatten()[:, None]
    return factor


def _turned(modes: Tensor, turn: Tensor) -> Tensor:
    """Spectra (B, CT, K) times phases (B or 1, T, K)."""
    return (modes.unflatten(1, (-1, turn.shape[1])) * turn[:, None]).flatten(1, 2)


@dataclass(frozen=True)
class GaussianLaw:
    """The law of some crops: a Gaussian field, which moves with the ``drift`` (B or 1, 2) of each if there is one."""

    field: LearntField
    drift: Tensor | None = None

    @property
    def error(self) -> Tensor:
        return self.field.nugget

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        return self.field.condition(given.y, given.context, given.noise, self.drift, thorough)

    def draw(self, count: int, generator: Generator) -> Tensor:
        return self.field.draw(count, generator, self.drift)


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
    return next_fast_len(size + min(size - 1, reach), real=True)
