r"""How far what the flow carries can be trusted in a data set: the weights of `fieldfill.nn.transport`.

With r the residual of the skip at a query cell and f the four parts that the flow offers there, the weights w solve

.. math:: \sum f f^T w = \sum f r

for each variable, at the smallest noise. The reach of the motion, how much wider neighbourhoods count, is the one of
a few with the smallest error there. Both are used if they pay on held-out cells; else the flow carries nothing.
"""

import torch
from torch import Tensor

from fieldfill.denoise import Denoiser, noised
from fieldfill.partition import Partition
from fieldfill.seeds import position_stream
from fieldfill.validate import at_once, validate
from fieldfill.windows import Windows

__all__ = ["learn_motion"]

WIDER = (0.01, 0.1, 1.0)
WINDOWS, CELLS = 48, 2**22  # that are looked at, at most
LEAST_GAIN = 0.01  # of the held-out error, without which the flow carries nothing
RIDGE = 1e-6


@torch.no_grad()
def learn_motion(denoiser: Denoiser, windows: Windows, partition: Partition, seed: int) -> dict[str, float]:
    """Fits the transport of an untrained denoiser; returns the reach and the held-out errors without and with it."""
    transport = denoiser.transport
    assert transport is not None
    before = validate(denoiser, windows, seed).error
    tried = _normal_equations(denoiser, windows, partition, seed)
    found = {wider: _solved(*sums) for wider, sums in tried.items()}
    wider = min(found, key=lambda name: found[name][1])
    transport.wider.fill_(wider)
    transport.weights.copy_(found[wider][0])
    after = validate(denoiser, windows, seed).error
    if not after < (1 - LEAST_GAIN) * before:
        transport.weights.zero_()
    return {"wider": wider, "skip": before, "validation": after, "used": float(transport.weights.any())}


def _normal_equations(
    denoiser: Denoiser, windows: Windows, partition: Partition, seed: int
) -> dict[float, tuple[Tensor, Tensor, Tensor]]:
    """Sums of f f^T (C, P, P), f r (C, P) and r² (C,) over query cells, for each reach."""
    transport = denoiser.transport
    assert transport is not None
    denoiser.eval()
    _, variables, _, rows, columns = windows.record.shape
    parts = transport.weights.shape[1]
    sums = {
        wider: tuple(torch.zeros(variables, *n, dtype=torch.float64) for n in ((parts, parts), (parts,), ()))
        for wider in WIDER
    }
    count = max(1, min(WINDOWS, CELLS // (variables * windows.length * rows * columns)))
    step = at_once(windows)
    for first in range(0, count, step):
        drawn = [_draw(windows, partition, seed, i) for i in range(first, min(first + step, count))]
        x, noise, context, query = (torch.cat(tensors) for tensors in zip(*drawn))
        t = torch.full((len(x),), denoiser.schedule.delta)
        x_t = torch.where(context, noised(denoiser.schedule, t, x, noise), 0)
        guess, seen = denoiser.skip_and_seen(t, x_t, context)
        for wider, (ff, fr, rr) in sums.items():
            transport.wider.fill_(wider)
            offered, _ = transport.parts(guess, seen, context)
            for c in range(variables):
                f, r = offered[:, :, c][:, query[:, c]].double(), (x - guess)[:, c][query[:, c]].double()
                ff[c] += f @ f.T
                fr[c] += f @ r
                rr[c] += r @ r
    return sums


def _draw(windows: Windows, partition: Partition, seed: int, i: int) -> tuple[Tensor, ...]:
    generator = position_stream(seed, "motion", i)
    x, observed = windows.draw(1, generator)
    context, query = partition.split(observed, generator)
    return x, torch.randn(x.shape, generator=generator), context, query


def _solved(ff: Tensor, fr: Tensor, rr: Tensor) -> tuple[Tensor, float]:
    """Weights (C, P) and the squared error that they leave."""
    size = ff.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)
    weights = torch.linalg.solve(ff + RIDGE * size[:, None, None] * torch.eye(ff.shape[1]), fr)
    return weights.float(), float((rr - (fr * weights).sum(1)).sum())
