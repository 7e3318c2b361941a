r"""Crops that obey linear equations of their own: waves, flows in balance, diffusion.

*The equations.* If they are the same at every place, a frame follows from the one before by

.. math:: x_{f+1}(r) = \sum_d A(d)\, x_f(r + d), \qquad \text{in Fourier space} \quad x_{f+1,k} = A_k\, x_{f,k}

with a matrix A(d) over the variables for each of the 3 x 3 neighbours d. Depth, rotation or viscosity may differ from
crop to crop, so A is estimated for each crop: least squares over all cells that are observed, with their neighbours
and the frame after. Noise of a known variance s² makes the sums of squares of N equations too large by N s², which
would damp the waves more with every frame; it is taken off. What is then left undetermined stays as it is from frame to
frame. A is clear if it leaves less than a tenth of the change from frame to frame, noise apart, and if its own error is
small: residuals of the variance l and u unknowns leave an error of l u / N a frame, T² times as much at the end. What
is taken off is known the less well the fewer the equations are, so noisy crops need more of them, 2 u T.

*The law.* The first frame is a Gaussian field with the covariance P_k in units of the crop's own amplitudes, the
others follow. With L_k the root of P_k, z white and e the error of the observations,

.. math:: y = M (Q z + e), \qquad Q_k = A_k^f L_k, \qquad (Q^T D^{-1} Q + 1)\, E[z | y] = Q^T D^{-1} y

D is diagonal and infinite where nothing is observed. There are as many unknowns as one frame has; conjugate gradients
find them, preconditioned as if the observed cells were everywhere alike. What grows with the frames is kept from
growing, since an error in A would grow with it.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor, nn

from fieldfill.estimators.base import Given
from fieldfill.estimators.gaussian.solver import conjugate_gradients

__all__ = ["Equations", "WaveLaw", "WavesSettings", "WindowEquations"]

# The 3 x 3 neighbours d of a cell, as (row, column).
NEIGHBOURS = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1)]
# Smallest variance of the noise, as a share of the squared amplitude; less is rounding.
LEAST_NOISE = 1e-9


@dataclass(frozen=True)
class WavesSettings:
    """When crops count as waves, and how the covariance of a frame is learnt.

    Attributes
    ----------
    searched, least_clear
        crops whose equations are estimated, and the share of them that must reveal them clearly.
    judged
        crops on which the law is judged.
    rounds, least_gain
        rounds of expectation–maximisation at most, and the relative gain without which a round is the last.
    completed, completed_cells
        crops that are completed in a round at least, and cells of all of them if these are more crops.
    nuggets
        error variances of the observations that are tried, as shares of the squared amplitude.
    least_better
        relative gain of the held-out error for which the law is kept.
    loudest
        largest variance of the noise at which equations are estimated.
    clarity
        share of the change from frame to frame that clear equations may leave, noise apart.
    surety
        squared error of the last frame that may come from that of A, as a share of the squared amplitude.
    enough, noisy_enough
        equations that each unknown needs; with noise, that it needs for each frame.
    most_equations
        of a crop that are used.
    steps
        conjugate-gradient steps at most; training takes half as many.
    tolerance
        of their squared residual: rarely seen modes are in its last digits.
    """

    searched: int = 64
    least_clear: float = 0.1
    judged: int = 12
    rounds: int = 4
    least_gain: float = 0.01
    completed: int = 8
    completed_cells: int = 2**22
    nuggets: tuple[float, ...] = (0.3, 0.1)
    least_better: float = 0.02
    loudest: Annotated[float, Ge(0), Le(1)] = 1e-2
    clarity: Annotated[float, Gt(0), Le(1)] = 0.1
    surety: Annotated[float, Gt(0), Le(1)] = 1.5e-2
    enough: Annotated[int, Ge(1)] = 10
    noisy_enough: Annotated[int, Ge(1)] = 2
    most_equations: Annotated[int, Ge(1)] = 2**16
    steps: Annotated[int, Ge(2)] = 100
    tolerance: Annotated[float, Ge(0), Le(1)] = 1e-12


@dataclass(frozen=True)
class WindowEquations:
    """Equations and amplitudes of some crops.

    Attributes
    ----------
    steps
        (B, K, CT, C) complex: A_k^f, from the first frame to all.
    amplitude
        (B, C, 1, 1, 1) root mean square of the values seen.
    """

    steps: Tensor
    amplitude: Tensor


class Equations(nn.Module):
    """The law of crops that obey linear equations.

    Parameters
    ----------
    shape
        (C, T, H, W) of a crop.
    torus
        rows and columns of the torus that the grid lies in.
    settings
        when equations are clear, and how many steps a solution takes.
    """

    root: Tensor
    nugget: Tensor
    unit: Tensor

    def __init__(
        self, shape: tuple[int, int, int, int], torus: tuple[int, int], settings: WavesSettings | None = None
    ) -> None:
        super().__init__()
        self.shape, self.torus, self.settings = shape, torus, settings or WavesSettings()
        modes = torus[0] * (torus[1] // 2 + 1)
        # L_k, real and imaginary parts; error of an observation in squares of the amplitude; scale of every cell.
        self.register_buffer("root", torch.zeros(modes, shape[0], shape[0], 2))
        self.register_buffer("nugget", torch.tensor(0.1))
        self.register_buffer("unit", torch.ones(shape[0], 1, *shape[2:]))

    def set_covariance(self, covariance: Tensor) -> None:
        """Takes P_k (K, C, C)."""
        values, vectors = torch.linalg.eigh((covariance + covariance.mH) / 2)
        # The Hermitian root: that of -k is the conjugate of that of k, so that real fields stay real.
        root = (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mH
        self.root.copy_(torch.view_as_real(root))

    @torch.no_grad()
    def estimate(self, y: Tensor, context: Tensor, noise: Tensor) -> tuple[WindowEquations, Tensor]:
        """The equations of crops y (B, C, T, H, W) seen at ``context``, of those that reveal them clearly (B,).

        ``noise`` is the variance of the noise of each, (B,) or one for all.
        """
        mask = context.to(y.dtype).expand_as(y)
        x = mask * y * self.unit
        square, count = (v.sum((2, 3, 4), keepdim=True) for v in (x.square(), mask))
        amplitude = (square / count.clamp(min=1)).sqrt().clamp(min=1e-12)
        noise = noise.expand(len(y))[:, None] * self.unit.square().mean((1, 2, 3)) / amplitude.flatten(1).square()
        rows = zip(x / amplitude, mask.bool(), noise.clamp(min=LEAST_NOISE))
        found = [_stencil(*row, self.torus, self.settings) for row in rows]
        clear = torch.tensor([stencil is not None for stencil in found], dtype=torch.bool)
        stencils = [stencil for stencil in found if stencil is not None]
        steps = self.root.new_zeros(0, len(self.root), self.shape[0] * self.shape[1], self.shape[0]).to(torch.cfloat)
        if stencils:
            steps = _powers(torch.stack(stencils), self.shape[1], self.torus)
        return WindowEquations(steps, amplitude[clear]), clear

    def error_of(self, own: WindowEquations) -> Tensor:
        """Error variance of the observations of each crop, (B, C, 1, H, W)."""
        return self.nugget * (own.amplitude / self.unit).square()

    @torch.no_grad()
    def condition(self, y: Tensor, context: Tensor, noise: Tensor, own: WindowEquations) -> Tensor:
        """E[x_0 | y = x_0 + e at the context cells], (B, C, T, H, W); the variance of e is ``noise`` and the nugget."""
        filters = self._filters(own)
        unit = own.amplitude / self.unit
        weight = context.to(y.dtype) / (self.nugget + noise / unit.square())
        weight = weight.expand_as(y)
        return unit * self._crop(self._fields(self._solve(y / unit, weight, filters), filters))

    @torch.no_grad()
    def draw(self, count: int, generator: Generator, own: WindowEquations) -> Tensor:
        """Unconditional realisations (count, C, T, H, W)."""
        white = torch.randn((count, self.shape[0], *self.torus), generator=generator)
        return own.amplitude / self.unit * self._crop(self._fields(white, self._filters(own)))

    @torch.no_grad()
    def complete(self, x: Tensor, observed: Tensor, generator: Generator, own: WindowEquations) -> Tensor:
        """One posterior draw (B, C, T, rows, columns) on the torus for each crop, in units of its amplitudes."""
        filters = self._filters(own)
        white = torch.randn((len(x), self.shape[0], *self.torus), generator=generator)
        error = self.nugget.sqrt() * torch.randn(x.shape, generator=generator)
        lacking = x * self.unit / own.amplitude - self._crop(self._fields(white, filters)) - error
        return self._fields(white + self._solve(lacking, observed / self.nugget, filters), filters)

    def _filters(self, own: WindowEquations) -> Tensor:
        """Q_k (B, K, CT, C)."""
        return own.steps @ torch.view_as_complex(self.root)

    def _fields(self, white: Tensor, filters: Tensor) -> Tensor:
        """Q z on the torus, (B, C, T, rows, columns), of white fields (B, C, rows, columns)."""
        modes = torch.fft.rfft2(white).flatten(2).transpose(1, 2)[..., None]
        spectra = (filters @ modes)[..., 0].transpose(1, 2).unflatten(2, (self.torus[0], -1))
        return torch.fft.irfft2(spectra, s=self.torus).unflatten(1, self.shape[:2])

    def _gather(self, v: Tensor, filters: Tensor) -> Tensor:
        """Q^T v (B, C, rows, columns) of crops (B, C, T, H, W)."""
        modes = torch.fft.rfft2(v.flatten(1, 2), s=self.torus).flatten(2).transpose(1, 2)[..., None]
        return self._to_torus((filters.mH @ modes)[..., 0])

    def _to_torus(self, modes: Tensor) -> Tensor:
        return torch.fft.irfft2(modes.transpose(1, 2).unflatten(2, (self.torus[0], -1)), s=self.torus)

    def _crop(self, field: Tensor) -> Tensor:
        return field[..., : self.shape[2], : self.shape[3]]

    def _solve(self, y: Tensor, weight: Tensor, filters: Tensor) -> Tensor:
        """E[z | y], (B, C, rows, columns), for weights 1 / D of crops (B, C, T, H, W)."""
        share = weight.flatten(1).sum(1) / (self.shape[0] * self.shape[1] * self.torus[0] * self.torus[1])
        inner = filters.mH @ filters * share.view(-1, 1, 1, 1)
        inverse = torch.linalg.inv(inner + torch.eye(self.shape[0]))

        def operator(z: Tensor) -> Tensor:
            return z + self._gather(weight * self._crop(self._fields(z, filters)), filters)

        def precondition(z: Tensor) -> Tensor:
            modes = torch.fft.rfft2(z).flatten(2).transpose(1, 2)[..., None]
            return self._to_torus((inverse @ modes)[..., 0])

        steps = self.settings.steps // 2 if self.training else self.settings.steps
        return conjugate_gradients(
            operator, precondition, self._gather(weight * y, filters), steps, self.settings.tolerance
        )


@dataclass(frozen=True)
class WaveLaw:
    """The law of some crops whose equations are known."""

    equations: Equations
    own: WindowEquations

    @property
    def error(self) -> Tensor:
        return self.equations.error_of(self.own)

    def mean(self, given: Given, thorough: bool = False) -> Tensor:
        return self.equations.condition(given.y, given.context, given.noise, self.own)  # thorough in any case

    def draw(self, count: int, generator: Generator) -> Tensor:
        return self.equations.draw(count, generator, self.own)


def _stencil(
    x: Tensor,
    mask: Tensor,
    noise: Tensor,
    torus: tuple[int, int],
    settings: WavesSettings,
    unsure: float = 0.1,
) -> Tensor | None:
    """A(d) (9, C, C) of a crop x (C, T, H, W), from neighbour and variable to variable; None if it is not clear.

    ``noise`` (C,) are the variances of the noise of x. Power below the share ``unsure`` of that of the noise determines
    nothing.
    """
    variables, frames, rows, columns = x.shape
    seen = torch.zeros(frames, *torus, dtype=torch.bool)
    seen[:, :rows, :columns] = mask.all(0)
    whole = seen[1:].clone()
    for row, column in NEIGHBOURS:
        whole &= torch.roll(seen[:-1], (-row, -column), (1, 2))
    frame, i, j = whole.nonzero(as_tuple=True)
    unknowns, noisy = len(NEIGHBOURS) * variables, bool((noise > LEAST_NOISE).any())
    if len(frame) < unknowns * max(settings.enough, settings.noisy_enough * frames * noisy):
        return None
    some = torch.linspace(0, len(frame) - 1, min(settings.most_equations, len(frame))).long()
    frame, i, j = frame[some], i[some], j[some]
    # On an axis that closes on itself torus and grid are the same; elsewhere no neighbour lies outside of the grid.
    before = torch.cat([x[:, frame, (i + d) % torus[0], (j + e) % torus[1]] for d, e in NEIGHBOURS]).double()
    change = (x[:, frame + 1, i, j] - x[:, frame, i, j]).double()
    noise = noise.double()
    # In units in which the noise adds 1 to each eigenvalue of the sums of squares.
    scale = (len(frame) * noise.repeat(len(NEIGHBOURS))).sqrt()[:, None]
    values, vectors = torch.linalg.eigh(before @ before.T / (scale * scale.T))
    values = (values - 1).clamp(min=0)
    products = before @ change.T / scale
    # The noise of x before is part of both: the change begins at the cell in the middle.
    own = slice(len(NEIGHBOURS) // 2 * variables, (len(NEIGHBOURS) // 2 + 1) * variables)
    products[own] += torch.diag(len(frame) * noise) / scale[own]
    found = vectors @ ((values / (values**2 + unsure**2))[:, None] * (vectors.T @ products)) / scale
    left = (change - found.T @ before).square().mean(1)
    loss = frames**2 * left.mean() * unknowns / len(frame)
    found[own] += torch.eye(variables, dtype=found.dtype)
    left = left - noise - noise.repeat(len(NEIGHBOURS)) @ found.square()
    moved = change.square().mean(1) - 2 * noise
    if loss > settings.surety or moved.sum() < noise.sum() or not left.sum() < settings.clarity * moved.sum():
        return None
    return found.unflatten(0, (len(NEIGHBOURS), variables))


def _powers(stencils: Tensor, frames: int, torus: tuple[int, int], large: float = 1e3) -> Tensor:
    """A_k^f (B, K, CT, C) for stencils (B, 9, C, C); entries of a step beyond ``large`` come from rounding."""
    variables = stencils.shape[-1]
    kernel = stencils.new_zeros(len(stencils), variables, variables, *torus)
    for (row, column), weights in zip(NEIGHBOURS, stencils.unbind(1)):
        kernel[..., -row % torus[0], -column % torus[1]] += weights.mT
    step = torch.fft.rfft2(kernel).flatten(3).permute(0, 3, 1, 2)
    values, vectors = torch.linalg.eig(step)
    size = values.abs()
    inverse = torch.linalg.inv_ex(vectors).inverse
    bounded = (vectors * (values / size.clamp(min=1))[..., None, :]) @ inverse
    # Where the eigenvectors are no basis, all of the matrix is damped.
    damped = step / size.amax(-1)[..., None, None].clamp(min=1)
    whole = bounded.isfinite().all((-1, -2), keepdim=True) & (bounded.abs().amax((-1, -2), keepdim=True) < large)
    step = torch.where(whole, bounded, damped)
    powers = [torch.eye(variables, dtype=step.dtype).expand_as(step)]
    for _ in range(frames - 1):
        powers.append(step @ powers[-1])
    return torch.stack(powers, 3).flatten(2, 3).to(torch.cfloat)
