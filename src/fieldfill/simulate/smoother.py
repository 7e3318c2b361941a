r"""What can be known of a stationary linear-Gaussian field from any set of its observations.

The field x_t lives on a torus of (H, W) cells; in wavenumber space every mode follows its own equation

.. math::
    \hat x_{t+1}(k) = p_k \hat x_t(k) + \sqrt{(1 - a_k^2) S_k}\, \hat w_t(k), \qquad
    p_k = a_k e^{-i \phi_k}, \qquad y = x_{obs} + e

``S_k`` is the spectral density, ``a_k`` the memory (0 … 1), ``phi_k`` the phase by which advection turns the
mode, ``w`` white noise of variance 1 per cell and ``e`` observation noise of variance ``R``. On the grid this
is x_{t+1} = F x_t + q_t with circulant F and Cov(q) = Q = C_0 - F C_0 Fᵀ, C_0 the covariance of one frame.

Two exact and independent answers to the same question, E[x | y] and Var[x | y]:

- :class:`Conditioning` solves with the covariance of all observations at once (a window);
- :func:`smooth` goes forth and back through the frames (a whole record).
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from fieldfill.errors import InputError

__all__ = ["MAX_OBSERVATIONS", "MAX_STATE", "Conditioning", "LinearModes", "smooth"]

# Observations of a window at most: their covariance and its factor take 2.3 GB.
MAX_OBSERVATIONS = 12_000
# Cells of the torus in the smoother at most: one covariance of the state takes 134 MB.
MAX_STATE = 4096
# Columns of a cross-covariance that are held at a time.
CHUNK = 2048


@dataclass(frozen=True, eq=False)
class LinearModes:
    """The linear model by wavenumber.

    Parameters
    ----------
    torus : cells (H, W) of the periodic grid.
    density : S_k on the half spectrum of a real transform, (H, W // 2 + 1); its mean over the full spectrum
        is the variance of the field.
    memory, phase : a_k and phi_k, same shape; the phase at -k is minus the phase at k.
    """

    torus: tuple[int, int]
    density: Tensor
    memory: Tensor
    phase: Tensor

    @cached_property
    def propagator(self) -> Tensor:
        """p_k, complex."""
        return torch.polar(self.memory, -self.phase)

    def restore(self, x_hat: Tensor) -> Tensor:
        """Half spectrum to fields (..., H, W)."""
        return torch.fft.irfft2(x_hat, s=self.torus)

    def advance(self, x: Tensor, adjoint: bool = False) -> Tensor:
        """F x, or Fᵀ x, for fields (..., H, W)."""
        propagator = self.propagator.conj() if adjoint else self.propagator
        return self.restore(propagator * torch.fft.rfft2(x))

    @cached_property
    def innovation(self) -> Tensor:
        """Density of the noise that keeps the variance of every mode: (1 - a_k²) S_k."""
        return self.density * (1 - self.memory**2)

    def covariance(self, lags: int) -> Tensor:
        """Cov(x[t + lag, i + di, j + dj], x[t, i, j]) for lag = 0 … lags - 1: (lags, H, W) by (di, dj)."""
        powers = [torch.ones_like(self.propagator)]
        for _ in range(lags - 1):
            powers.append(powers[-1] * self.propagator)
        return self.restore(self.density * torch.stack(powers))

    def correlate(self, x: Tensor) -> Tensor:
        """The space–time covariance of the field times x, both (..., T, H, W), in O(T H W log(H W))."""
        x_hat = torch.fft.rfft2(x)
        out = x_hat.clone()
        past, future = torch.zeros_like(x_hat[..., 0, :, :]), torch.zeros_like(x_hat[..., 0, :, :])
        frames = x_hat.shape[-3]
        for t in range(1, frames):
            past = self.propagator * (past + x_hat[..., t - 1, :, :])
            out[..., t, :, :] += past
            future = self.propagator.conj() * (future + x_hat[..., frames - t, :, :])
            out[..., frames - 1 - t, :, :] += future
        return self.restore(self.density * out)

    def sample(self, count: int, frames: int, size: tuple[int, int], generator: Generator) -> Tensor:
        """Draws stationary sequences, exact from the first frame on, on a corner (H, W) of the torus."""
        height, width = size
        out = torch.empty(count, frames, height, width, dtype=torch.float64)
        x_hat, amplitude = torch.zeros((), dtype=torch.complex128), torch.sqrt(self.density)
        for t in range(frames):
            white = torch.randn(count, *self.torus, dtype=torch.float64, generator=generator)
            x_hat = self.propagator * x_hat + amplitude * torch.fft.rfft2(white)
            out[:, t] = self.restore(x_hat)[:, :height, :width]
            amplitude = torch.sqrt(self.innovation)
        return out


class Conditioning:
    """E[x | y], Var[x | y] and draws of x given y, for one pattern of observations and any values on it.

    The covariance of all observations is assembled by separation and factorised once (float64 Cholesky).

    Parameters
    ----------
    modes : the linear model.
    observed : bool (T, H, W); the grid may be a corner of the torus.
    noise_variance : R > 0.
    """

    def __init__(self, modes: LinearModes, observed: Tensor, noise_variance: float) -> None:
        count = int(observed.sum())
        if count > MAX_OBSERVATIONS:
            raise InputError(
                f"{count} observations in one window are more than {MAX_OBSERVATIONS}: "
                "take fewer frames, or the smoother"
            )
        self.modes, self.observed, self.noise_variance = modes, observed, noise_variance
        self.table, self.address = _separations(modes, observed.shape)
        self.origin = (self.table.numel() - 1) // 2  # the place of separation 0
        sigma = self._between(observed, observed)
        sigma.diagonal().add_(noise_variance)
        self.factor = torch.linalg.cholesky(sigma)

    def _between(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Covariance of the cells of two masks, (rows, columns)."""
        # A separation's place in the table is the difference of two addresses: one subtraction per pair.
        row, column = self.address[rows], self.address[columns]
        out = torch.empty(len(row), len(column), dtype=torch.float64)
        for start in range(0, len(row), CHUNK):
            index = (row[start : start + CHUNK, None] + self.origin) - column[None, :]
            torch.index_select(self.table, 0, index.flatten(), out=out[start : start + CHUNK].view(-1))
        return out

    def _spread(self, weights: Tensor) -> Tensor:
        """Covariance of every cell with the observations, times weights (..., n): (..., T, H, W)."""
        frames, height, width = self.observed.shape
        cells = torch.zeros(*weights.shape[:-1], frames, *self.modes.torus, dtype=torch.float64)
        cells[..., :height, :width][..., self.observed] = weights
        return self.modes.correlate(cells)[..., :height, :width]

    def _update(self, misfit: Tensor) -> Tensor:
        """What observations that miss their expectation by ``misfit`` (..., n) change, (..., T, H, W)."""
        columns = misfit.reshape(math.prod(misfit.shape[:-1]), misfit.shape[-1]).T
        return self._spread(torch.cholesky_solve(columns, self.factor).T.reshape(misfit.shape))

    def mean(self, values: Tensor) -> Tensor:
        """E[x | y] at every cell, for values (..., T, H, W) of which only the observed cells are read."""
        return self._update(values[..., self.observed].to(torch.float64))

    def variance(self, where: Tensor | None = None) -> Tensor:
        """Var[x | y] of the noise-free field, (T, H, W); NaN outside ``where``, bool (T, H, W)."""
        wanted = torch.ones_like(self.observed) if where is None else where
        out = torch.full(wanted.shape, torch.nan, dtype=torch.float64)
        # At the observed cells C - C (C + R)⁻¹ C = R - R (C + R)⁻¹ R: the inverse's diagonal is cheaper.
        if (wanted & self.observed).any():
            precision = torch.cholesky_inverse(self.factor).diagonal()
            out[self.observed] = self.noise_variance - self.noise_variance**2 * precision
            out[~wanted] = torch.nan
        for chunk in _split(wanted & ~self.observed):
            cross = self._between(self.observed, chunk)
            explained = torch.linalg.solve_triangular(self.factor, cross, upper=False).square_().sum(0)
            out[chunk] = self.table[self.origin] - explained
        return out.clamp_(min=0)

    def draws(self, values: Tensor, count: int, generator: Generator) -> Tensor:
        """Realisations of x given y, (B, T, H, W): prior draws corrected by their own misfit to y."""
        frames, height, width = self.observed.shape
        x = self.modes.sample(count, frames, (height, width), generator)
        noise = torch.randn(count, len(self.factor), dtype=torch.float64, generator=generator)
        y = x[:, self.observed] + math.sqrt(self.noise_variance) * noise
        return x + self._update(values[self.observed].to(torch.float64) - y)


def _separations(modes: LinearModes, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Flat table of covariances by separation, and addresses (T, H, W) whose differences point into it."""
    frames, height, width = shape
    dy = torch.arange(1 - height, height) % modes.torus[0]
    dx = torch.arange(1 - width, width) % modes.torus[1]
    ahead = modes.covariance(frames)[:, dy][:, :, dx]
    # Cov at (-lag, -d) equals Cov at (lag, d).
    table = torch.cat([ahead.flip(0, 1, 2)[:-1], ahead])
    t, i, j = (torch.arange(n) for n in shape)
    address = (t[:, None, None] * (2 * height - 1) + i[:, None]) * (2 * width - 1) + j
    return table.flatten(), address.to(torch.int32)


def _split(mask: Tensor) -> Iterator[Tensor]:
    """Cuts a mask into masks of at most CHUNK cells."""
    for cells in mask.flatten().nonzero()[:, 0].split(CHUNK):
        part = torch.zeros(mask.numel(), dtype=torch.bool)
        part[cells] = True
        yield part.view(mask.shape)


@dataclass
class _Frame:
    """One frame of the filter: its prediction x, P from earlier frames, and what its own observations add.

    ``gain`` is K = P Hᵀ (H P Hᵀ + R)⁻¹, where H picks the ``seen`` cells of the state; ``factor`` the
    Cholesky factor of H P Hᵀ + R; ``misfit`` y - H x.
    """

    x: Tensor
    P: Tensor
    seen: Tensor
    misfit: Tensor
    factor: Tensor
    gain: Tensor


class _Filter:
    """Kalman filter whose state is the whole torus, n = H W cells in one row."""

    def __init__(self, modes: LinearModes, values: Tensor, observed: Tensor, noise_variance: float) -> None:
        self.modes, self.values, self.observed, self.noise_variance = modes, values, observed, noise_variance
        cells = torch.arange(math.prod(modes.torus)).view(modes.torus)
        self.cells = cells[: values.shape[1], : values.shape[2]]
        self.Q = _circulant(modes.restore(modes.innovation.to(torch.complex128)))

    def prior(self) -> tuple[Tensor, Tensor]:
        """Mean (n,) and covariance (n, n) of the state before any observation."""
        P = _circulant(self.modes.covariance(1)[0])
        return torch.zeros(len(P), dtype=torch.float64), P

    def advance(self, x: Tensor, adjoint: bool = False) -> Tensor:
        """F x (or Fᵀ x) for states (..., n)."""
        return self.modes.advance(x.view(*x.shape[:-1], *self.modes.torus), adjoint).reshape(x.shape)

    def both_sides(self, P: Tensor, adjoint: bool = False) -> Tensor:
        """F P Fᵀ (or Fᵀ P F) for a symmetric P (n, n)."""
        P = self.advance(self.advance(P, adjoint).T.contiguous(), adjoint)
        return (P + P.T) / 2

    def meet(self, t: int, x: Tensor, P: Tensor) -> _Frame:
        """Confronts the prediction of frame t with its observations."""
        seen = self.cells[self.observed[t]]
        innovation = P[seen][:, seen]
        innovation.diagonal().add_(self.noise_variance)
        factor = torch.linalg.cholesky(innovation)
        misfit = self.values[t][self.observed[t]].to(torch.float64) - x[seen]
        return _Frame(x, P, seen, misfit, factor, torch.cholesky_solve(P[seen], factor).T)

    def predict(self, frame: _Frame) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the next frame given all observations up to this one."""
        x = frame.x + frame.gain @ frame.misfit
        P = frame.P - frame.gain @ frame.P[frame.seen]
        return self.advance(x), self.both_sides(P) + self.Q

    def run(self, start: int, stop: int, x: Tensor, P: Tensor) -> Iterator[_Frame]:
        """Frames start … stop - 1 from the prediction of the first."""
        for t in range(start, stop):
            frame = self.meet(t, x, P)
            yield frame
            if t + 1 < stop:
                x, P = self.predict(frame)


@dataclass
class _Future:
    """What the frames from t on add to the prediction x, P of frame t, made x - P lam and P - P Lam P."""

    lam: Tensor
    Lam: Tensor | None

    def absorb(self, frame: _Frame) -> None:
        """Adds the observations of one frame."""
        gain, seen = frame.gain, frame.seen
        self.lam[seen] -= gain.T @ self.lam + torch.cholesky_solve(frame.misfit[:, None], frame.factor)[:, 0]
        if self.Lam is not None:
            carried = self.Lam @ gain
            self.Lam[:, seen] -= carried
            self.Lam[seen] -= carried.T
            self.Lam[seen[:, None], seen] += gain.T @ carried + torch.cholesky_inverse(frame.factor)

    def estimate(self, frame: _Frame, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at some cells of the frame."""
        P = frame.P[cells.flatten()]
        mean = frame.x[cells] - (P @ self.lam).view(cells.shape)
        if self.Lam is None:
            return mean, torch.full_like(mean, torch.nan)
        variance = frame.P.diagonal()[cells] - ((P @ self.Lam) * P).sum(1).view(cells.shape)
        return mean, variance.clamp_(min=0)

    def step_back(self, kalman: _Filter) -> None:
        """Carries the information to the frame before."""
        self.lam = kalman.advance(self.lam, adjoint=True)
        if self.Lam is not None:
            self.Lam = kalman.both_sides(self.Lam, adjoint=True)


def smooth(
    modes: LinearModes, values: Tensor, observed: Tensor, noise_variance: float, variance: bool = True
) -> tuple[Tensor, Tensor]:
    """E[x | y] and Var[x | y] given the observations of all frames: a filter forward, a smoother backward.

    The backward pass never inverts the covariance of the state, which pure advection and modes without energy
    make singular. Predictions are kept at about sqrt(T) frames and filtered again in between, so that memory
    grows with sqrt(T) only.

    Parameters
    ----------
    values, observed : (T, H, W); the grid is the torus or a corner of it.
    noise_variance : R > 0.
    variance : False returns NaN variances and saves their cost.

    Returns
    -------
    mean, variance : float64 (T, H, W).

    Reference: Factorization Methods for Discrete Sequential Estimation (1977): modified Bryson–Frazier form.
    """
    n = math.prod(modes.torus)
    if n > MAX_STATE:
        raise InputError(
            f"a torus of {modes.torus} cells is more than the {MAX_STATE} that the smoother takes: "
            "take a smaller or a periodic field, or the posterior of a window"
        )
    kalman = _Filter(modes, values, observed, noise_variance)
    frames, stride = len(values), math.isqrt(len(values))
    segments = [(start, min(start + stride, frames)) for start in range(0, frames, stride)]
    kept = [kalman.prior()]
    for segment in segments[:-1]:
        last = deque(kalman.run(*segment, *kept[-1]), maxlen=1).pop()
        kept.append(kalman.predict(last))
    lam = torch.zeros(n, dtype=torch.float64)
    future = _Future(lam, torch.zeros(n, n, dtype=torch.float64) if variance else None)
    mean = torch.empty(values.shape, dtype=torch.float64)
    spread = torch.empty_like(mean)
    for segment in reversed(segments):
        for t, frame in reversed(list(zip(range(*segment), kalman.run(*segment, *kept.pop())))):
            future.absorb(frame)
            mean[t], spread[t] = future.estimate(frame, kalman.cells)
            future.step_back(kalman)
    return mean, spread


def _circulant(table: Tensor) -> Tensor:
    """Covariance (n, n) of all cells of a torus from the covariance (H, W) by separation."""
    height, width = table.shape
    i, j = torch.arange(height), torch.arange(width)
    rows, columns = (i[:, None] - i) % height, (j[:, None] - j) % width
    return table[rows[:, None, :, None], columns[None, :, None, :]].reshape(height * width, height * width)
