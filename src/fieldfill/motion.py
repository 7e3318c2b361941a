r"""How a data set moves and how far what its flow carries can be trusted: the numbers of `fieldfill.nn.transport`.

*The stream function.* If the motion is a turned gradient of the field itself, d_0 = Σ_j b_j φ_j, then

.. math:: \partial_t x = - \sum_j b_j \, \varphi_j \cdot \nabla x

at every context cell: linear least squares for b. Vorticity gives the law of Biot and Savart.

*The weights.* With r the residual of the skip at a query cell and f the parts that the flow offers there, the weights
w solve :math:`\sum f f^T w = \sum f r` for each variable, at the smallest noise.

With or without the stream function, with a small or a large reach: of a few ways to see the motion the one with the
smallest error at query cells is taken. It is used if it pays on held-out cells; else the flow carries nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldfill.denoise import Denoiser, noised
from fieldfill.nn.transport import SMOOTHED, Transport, contrast, turned_gradient
from fieldfill.partition import Partition
from fieldfill.seeds import position_stream
from fieldfill.validate import at_once, validate
from fieldfill.windows import Windows

__all__ = ["learn_motion"]

# How much of the stream function, weight of wider neighbourhoods, stiffness.
WAYS = ((0.0, 0.01, 0.0), (0.0, 1.0, 0.0), (1.0, 0.01, 0.5), (1.0, 0.01, 50.0))
WINDOWS, CELLS = 48, 2**21  # that are looked at, at most
LEAST_GAIN = 0.01  # of the held-out error, without which the flow carries nothing
RIDGE = 1e-4


@dataclass(frozen=True)
class _Batch:
    """Windows (B, C, T, H, W): their values, the skip, what is known at the context, context and query cells."""

    x: Tensor
    guess: Tensor
    seen: Tensor
    context: Tensor
    query: Tensor


@torch.no_grad()
def learn_motion(denoiser: Denoiser, windows: Windows, partition: Partition, seed: int) -> dict[str, float]:
    """Fits the transport of an untrained denoiser; tells the way and the held-out errors without and with it."""
    transport = denoiser.transport
    assert transport is not None
    transport.weights.zero_()
    before = validate(denoiser, windows, seed).error
    batches = list(_batches(denoiser, windows, partition, seed))
    turn = _turn(transport, batches)
    errors: list[tuple[float, Tensor]] = []
    for share, wider, stiff in WAYS:
        _see(transport, share * turn, wider, stiff)
        errors.append(_weights(transport, batches))
    best = min(range(len(WAYS)), key=lambda i: errors[i][0])
    share, wider, stiff = WAYS[best]
    _see(transport, share * turn, wider, stiff)
    transport.weights.copy_(errors[best][1])
    after = validate(denoiser, windows, seed).error
    used = after < (1 - LEAST_GAIN) * before
    if not used:
        transport.weights.zero_()
    found = {"stream": share, "wider": wider, "stiff": stiff}
    return {**found, "skip": before, "validation": after, "used": float(used)}


def _see(transport: Transport, turn: Tensor, wider: float, stiff: float) -> None:
    transport.turn.copy_(turn)
    transport.wider.fill_(wider)
    transport.stiff.fill_(stiff)


def _batches(denoiser: Denoiser, windows: Windows, partition: Partition, seed: int) -> Iterator[_Batch]:
    denoiser.eval()
    _, variables, _, rows, columns = windows.record.shape
    count = max(1, min(WINDOWS, CELLS // (variables * windows.length * rows * columns)))
    step = min(8, at_once(windows))
    for first in range(0, count, step):
        drawn = [_draw(windows, partition, seed, i) for i in range(first, min(first + step, count))]
        x, noise, context, query = (torch.cat(tensors) for tensors in zip(*drawn))
        t = torch.full((len(x),), denoiser.schedule.delta)
        x_t = torch.where(context, noised(denoiser.schedule, t, x, noise), 0)
        guess, seen = denoiser.skip_and_seen(t, x_t, context)
        yield _Batch(x, guess, seen, context, query)


def _draw(windows: Windows, partition: Partition, seed: int, i: int) -> tuple[Tensor, ...]:
    generator = position_stream(seed, "motion", i)
    x, observed = windows.draw(1, generator)
    context, query = partition.split(observed, generator)
    return x, torch.randn(x.shape, generator=generator), context, query


def _turn(transport: Transport, batches: list[_Batch]) -> Tensor:
    """The numbers b (C, len(SMOOTHED)) of the stream function."""
    variables, count = len(transport.turn), transport.turn.numel()
    ff, fr = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    units = torch.eye(count).view(count, variables, len(SMOOTHED))
    for batch in batches:
        x = torch.where(batch.context, batch.seen, batch.guess)
        down, right, change, w = contrast(x, batch.context, transport.periodic)
        middle = 0.5 * (x[:, :, 1:] + x[:, :, :-1])
        flows = [turned_gradient(middle, unit, transport.periodic)[:, None] for unit in units]
        f = torch.stack([(w * (d[:, :, :, 0] * down + d[:, :, :, 1] * right)).flatten() for d in flows]).double()
        ff += f @ f.T
        fr -= f @ (w * change).flatten().double()
    return _solved(ff, fr).view(variables, -1).float()


def _weights(transport: Transport, batches: list[_Batch]) -> tuple[float, Tensor]:
    """Mean squared error of the best weights at query cells, and these weights (C, P)."""
    variables, parts = transport.weights.shape
    ff, fr = torch.zeros(variables, parts, parts).double(), torch.zeros(variables, parts).double()
    rr, cells = 0.0, 0
    for batch in batches:
        offered, _ = transport.parts(batch.guess, batch.seen, batch.context)
        for c in range(variables):
            query = batch.query[:, c]
            f, r = offered[:, :, c][:, query].double(), (batch.x - batch.guess)[:, c][query].double()
            ff[c] += f @ f.T
            fr[c] += f @ r
            rr, cells = rr + float(r @ r), cells + len(r)
    weights = torch.stack([_solved(a, b) for a, b in zip(ff, fr)])
    left = rr - 2 * float((weights * fr).sum()) + float(torch.einsum("cp,cpq,cq->", weights, ff, weights))
    return left / max(1, cells), weights.float()


def _solved(ff: Tensor, fr: Tensor) -> Tensor:
    """Ridge regression; 0 where nothing is offered."""
    size = ff.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.solve(ff + RIDGE * size * torch.eye(len(ff), dtype=ff.dtype), fr)
