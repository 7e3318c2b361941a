r"""What a data set says about its first estimates: how it moves, and what its places and neighbourhoods add to a skip.

*The stream function.* If the motion is a turned gradient of the field itself, d_0 = Σ_j b_j φ_j, then

.. math:: \partial_t x = - \sum_j b_j \, \varphi_j \cdot \nabla x

at every context cell: linear least squares for b. Vorticity gives the law of Biot and Savart.

*The weights.* With r the residual of an estimate at a query cell and f the parts that are offered there, by the flow
(`fieldfill.nn.transport`) or by the neighbourhood (`fieldfill.nn.local`), the weights w solve
:math:`\sum f f^T w = \sum f r` for each variable, at the smallest noise.

*The scales* (`fieldfill.nn.scales`): mean squares of what the estimate misses, at context and at query cells, for a few
noise levels.

With or without the stream function, with a small or a large reach: of a few ways to see the motion the one with the
smallest error at query cells is taken. Motion first, then the neighbourhood: each is used if it pays on held-out cells.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldfill.denoise import Denoiser, levels, noised
from fieldfill.nn.scales import Scales
from fieldfill.nn.transport import SMOOTHED, Transport, contrast, turned_gradient
from fieldfill.partition import Partition
from fieldfill.seeds import position_stream
from fieldfill.validate import at_once, validate
from fieldfill.windows import Windows

__all__ = ["learn_first_estimate"]

# How much of the stream function, weight of wider neighbourhoods, stiffness.
WAYS = ((0.0, 0.01, 0.0), (0.0, 1.0, 0.0), (1.0, 0.01, 0.5), (1.0, 0.01, 50.0))
WINDOWS, CELLS = 48, 2**21  # that are looked at, at most
SCALED = 8  # windows that tell the scales
LEAST_GAIN = 0.01  # of the held-out error, without which the flow carries nothing
RIDGE = 1e-4


@dataclass
class _Batch:
    """Windows (B, C, T, H, W): their values, the estimate, what is known at the context, context and query cells."""

    x: Tensor
    guess: Tensor
    seen: Tensor
    context: Tensor
    query: Tensor


Offer = Callable[[_Batch], Iterable[Tensor]]


@torch.no_grad()
def learn_first_estimate(
    denoiser: Denoiser, windows: Windows, partition: Partition, seed: int
) -> dict[str, dict[str, float]]:
    """Fits what an untrained denoiser adds to its skip; tells the held-out errors after each stage."""
    transport, local = denoiser.transport, denoiser.local
    error = validate(denoiser, windows, seed).error
    found = {"skip": {"validation": error}}
    batches = _batches(denoiser, windows, partition, seed) if transport is not None or local is not None else []
    if transport is not None:
        notes = _learn_motion(transport, batches)
        error = _keep_if_it_pays(transport.weights, denoiser, windows, seed, error)
        found["motion"] = {**notes, "validation": error}
        for batch in batches:
            batch.guess = batch.guess + transport(batch.guess, batch.seen, batch.context)[0]
    if local is not None:
        static = denoiser.static
        weights = _weights(batches, lambda b: local.parts(b.guess, b.seen, b.context, static))[1]
        local.weights.copy_(weights)
        error = _keep_if_it_pays(local.weights, denoiser, windows, seed, error)
        found["neighbourhood"] = {"validation": error}
    if denoiser.scales is not None:
        _learn_scales(denoiser, denoiser.scales, windows, partition, seed)
    return found


def _learn_scales(denoiser: Denoiser, scales: Scales, windows: Windows, partition: Partition, seed: int) -> None:
    drawn = [_draw(windows, partition, seed, i) for i in range(SCALED)]
    x, noise, context, query = (torch.cat(tensors) for tensors in zip(*drawn))
    for level, log_snr in enumerate(scales.log_snr):
        t = denoiser.schedule.time(log_snr).expand(at_once(windows))
        sums = torch.zeros(4, x.shape[1], dtype=torch.float64)
        for parts in zip(*(tensor.split(len(t)) for tensor in (x, noise, context, query))):
            sums += _misses(denoiser, t[: len(parts[0])], *parts)
        scales.learn(level, sums[0] / sums[1], sums[2] / sums[3])


def _misses(denoiser: Denoiser, t: Tensor, x: Tensor, noise: Tensor, context: Tensor, query: Tensor) -> Tensor:
    """Sum and number of squared misfits at context cells, then of squared residuals at query cells (4, C)."""
    x_t = torch.where(context, noised(denoiser.schedule, t, x, noise), 0)
    guess = denoiser.first(t, x_t, context)[0]
    misses = (x_t - levels(denoiser.schedule, t)[0] * guess).square(), (x - guess).square()
    terms = [(torch.where(cells, miss, 0), cells) for miss, cells in zip(misses, (context, query))]
    return torch.stack([term.double().sum((0, 2, 3, 4)) for pair in terms for term in pair])


def _keep_if_it_pays(weights: Tensor, denoiser: Denoiser, windows: Windows, seed: int, before: float) -> float:
    """The held-out error with the weights, or without them: then they are 0."""
    after = validate(denoiser, windows, seed).error
    if after < (1 - LEAST_GAIN) * before:
        return after
    weights.zero_()
    return before


def _learn_motion(transport: Transport, batches: list[_Batch]) -> dict[str, float]:
    turn = _turn(transport, batches)
    tried: list[tuple[float, Tensor]] = []
    for share, wider, stiff in WAYS:
        _see(transport, share * turn, wider, stiff)
        tried.append(_weights(batches, lambda b: transport.parts(b.guess, b.seen, b.context)[0]))
    best = min(range(len(WAYS)), key=lambda i: tried[i][0])
    share, wider, stiff = WAYS[best]
    _see(transport, share * turn, wider, stiff)
    transport.weights.copy_(tried[best][1])
    return {"stream": share, "wider": wider, "stiff": stiff}


def _see(transport: Transport, turn: Tensor, wider: float, stiff: float) -> None:
    transport.turn.copy_(turn)
    transport.wider.fill_(wider)
    transport.stiff.fill_(stiff)


def _batches(denoiser: Denoiser, windows: Windows, partition: Partition, seed: int) -> list[_Batch]:
    denoiser.eval()
    found = []
    _, variables, _, rows, columns = windows.record.shape
    count = max(1, min(WINDOWS, CELLS // (variables * windows.length * rows * columns)))
    step = min(8, at_once(windows))
    for first in range(0, count, step):
        drawn = [_draw(windows, partition, seed, i) for i in range(first, min(first + step, count))]
        x, noise, context, query = (torch.cat(tensors) for tensors in zip(*drawn))
        t = torch.full((len(x),), denoiser.schedule.delta)
        x_t = torch.where(context, noised(denoiser.schedule, t, x, noise), 0)
        guess, seen = denoiser.skip_and_seen(t, x_t, context)
        found.append(_Batch(x, guess, seen, context, query))
    return found


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


def _weights(batches: list[_Batch], offer: Offer) -> tuple[float, Tensor]:
    """Mean squared error of the best weights of the parts at query cells, and these weights (C, P)."""
    ff, fr, rr, cells = None, None, 0.0, 0
    for batch in batches:
        # One part at a time, and of it the query cells only: together they may be large.
        queries = [batch.query[:, c] for c in range(batch.query.shape[1])]
        parts = [[part[:, c][query].double() for c, query in enumerate(queries)] for part in offer(batch)]
        residual = batch.x - batch.guess
        values = [residual[:, c][query].double() for c, query in enumerate(queries)]
        f = [torch.stack(of) for of in zip(*parts)]
        squares, products = torch.stack([a @ a.T for a in f]), torch.stack([a @ r for a, r in zip(f, values)])
        ff, fr = (squares, products) if ff is None or fr is None else (ff + squares, fr + products)
        rr, cells = rr + sum(float(r @ r) for r in values), cells + sum(map(len, values))
    assert ff is not None and fr is not None
    weights = torch.stack([_solved(a, b) for a, b in zip(ff, fr)])
    left = rr - 2 * float((weights * fr).sum()) + float(torch.einsum("cp,cpq,cq->", weights, ff, weights))
    return left / max(1, cells), weights.float()


def _solved(ff: Tensor, fr: Tensor) -> Tensor:
    """Ridge regression on parts of one size; 0 where nothing is offered."""
    size = ff.diagonal().sqrt().clamp(min=1e-6)
    scaled = ff / size / size[:, None]
    return torch.linalg.solve(scaled + RIDGE * torch.eye(len(ff), dtype=ff.dtype), fr / size) / size
