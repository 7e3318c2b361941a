r"""Weights of parts that may be added to an estimate.

With r the residual of an estimate at a query cell and f the parts that are offered there, the weights w solve
:math:`\sum f f^T w = \sum f r` for each variable.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from fieldfill.estimators.base import Example

__all__ = ["ridge_solution", "weights_of_parts"]


def weights_of_parts(examples: Sequence[Example], offer: Callable[[Example], Iterable[Tensor]]) -> tuple[float, Tensor]:
    """Mean squared error of the best weights of the parts at query cells, and these weights (C, P)."""
    ff, fr, rr, cells = None, None, 0.0, 0
    for example in examples:
        # One part at a time, and of it the query cells only: together they may be large.
        queries = [example.query[:, c] for c in range(example.query.shape[1])]
        parts = [[part[:, c][query].double() for c, query in enumerate(queries)] for part in offer(example)]
        residual = example.x - example.estimate
        values = [residual[:, c][query].double() for c, query in enumerate(queries)]
        f = [torch.stack(of) for of in zip(*parts)]
        squares, products = torch.stack([a @ a.T for a in f]), torch.stack([a @ r for a, r in zip(f, values)])
        ff, fr = (squares, products) if ff is None or fr is None else (ff + squares, fr + products)
        rr, cells = rr + sum(float(r @ r) for r in values), cells + sum(map(len, values))
    assert ff is not None and fr is not None
    weights = torch.stack([ridge_solution(a, b) for a, b in zip(ff, fr)])
    left = rr - 2 * float((weights * fr).sum()) + float(torch.einsum("cp,cpq,cq->", weights, ff, weights))
    return left / max(1, cells), weights.float()


def ridge_solution(ff: Tensor, fr: Tensor, ridge: float = 1e-4) -> Tensor:
    """Ridge regression on parts scaled to one size; 0 for a part that is 0 everywhere.

    ``ridge`` is a share of the mean square of each part.
    """
    size = ff.diagonal().sqrt().clamp(min=1e-6)
    scaled = ff / size / size[:, None]
    return torch.linalg.solve(scaled + ridge * torch.eye(len(ff), dtype=ff.dtype), fr / size) / size
