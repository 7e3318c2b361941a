r"""What the flow carries: values that were seen upstream or will be seen downstream of a gap.

A covariance knows how fields move on average; here each window tells its own motion. With g a first estimate of the
complete window, d its displacement from one frame to the next, in cells, is the least-squares solution of

.. math:: \sum w \, (\partial_t g + d \cdot \nabla g)^2 \to \min

over a neighbourhood in space and time, w the share of context cells around a cell. Where a neighbourhood has no
contrast or no context, wider ones decide, and last the whole window. How much they count depends on the data: fields
that move as a whole want all of it, eddies next to nothing.
Reference: An Iterative Image Registration Technique with an Application to Stereo Vision (1981).

Then values y seen at context cells are carried along, frame by frame, with a trust c that begins at 1 and fades:

.. math:: a_n(p) = y_n(p), \; c_n(p) = 1 \;\text{at the context}, \qquad
          a_n(p) = a_{n-1}(p - d), \; c_n(p) = \rho \, c_{n-1}(p - d) \;\text{elsewhere}

once forwards and once backwards in time. What this adds to the first estimate, c (a - g) and c³ (a - g) of both
directions, has one weight each and variable, fitted to query cells by least squares; see `fieldfill.motion`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Transport", "carry", "displacement"]

TRUST = 0.93  # that is left of a carried value after a frame
FARTHEST = 2.0  # cells per frame that a value is carried at most
NEAR, TIMES = 5, 5  # cells and frames of the smallest neighbourhood
COARSE = 4  # cells of a block; wider neighbourhoods are NEAR x NEAR blocks
DAMPING = 0.1  # of the contrast of the whole window
PARTS = 4  # of the correction, for each variable


class Transport(nn.Module):
    """Correction of a first estimate by what the flow carries.

    Arguments
    ---------
    variables
        number of variables.
    periodic
        whether rows and columns close on themselves.
    """

    weights: Tensor
    wider: Tensor

    def __init__(self, variables: int, periodic: tuple[bool, bool]) -> None:
        super().__init__()
        self.periodic = periodic
        self.register_buffer("weights", torch.zeros(variables, PARTS))
        # Weight of each wider neighbourhood against the one before.
        self.register_buffer("wider", torch.tensor(0.01))

    def forward(self, guess: Tensor, seen: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The correction of ``guess`` and the trust in it, from values ``seen`` at the context: all (B, C, T, H, W).

        Without weights both are 0, at no cost.
        """
        if not self.weights.any():
            return torch.zeros_like(guess), torch.zeros_like(guess)
        parts, trust = self.parts(guess, seen, context)
        return torch.einsum("pbcthw,cp->bcthw", parts, self.weights), trust

    @torch.no_grad()
    def parts(self, guess: Tensor, seen: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """What may be added to ``guess`` (PARTS, B, C, T, H, W), and the greater trust of both directions."""
        x = torch.where(context, seen, guess)
        d = displacement(x, context, self.periodic, float(self.wider))
        a, c = carry(x, context, d, self.periodic)
        b, e = (v.flip(2) for v in carry(x.flip(2), context.flip(2), -d.flip(1), self.periodic))
        parts = torch.stack([c * (a - guess), e * (b - guess), c**3 * (a - guess), e**3 * (b - guess)])
        return parts, torch.where(context, 0, torch.maximum(c, e))


def displacement(x: Tensor, context: Tensor, periodic: Sequence[bool], wider: float) -> Tensor:
    """Rows and columns (B, T - 1, 2, H, W) by which x (B, C, T, H, W) moves from each frame to the next."""
    b, _, frames, rows, columns = x.shape
    middle = _around(0.5 * (x[:, :, 1:] + x[:, :, :-1]), 1, periodic)
    down = 0.5 * (middle[..., 2:, 1:-1] - middle[..., :-2, 1:-1])
    right = 0.5 * (middle[..., 1:-1, 2:] - middle[..., 1:-1, :-2])
    change = x[:, :, 1:] - x[:, :, :-1]
    seen = (context[:, :, 1:] & context[:, :, :-1]).to(x.dtype)
    w = F.avg_pool2d(_around(seen, 1, periodic).flatten(0, 1), 3, stride=1).view_as(change)
    products = torch.stack([down * down, down * right, right * right, down * change, right * change])
    sums = (w * products).sum(2)  # over variables: (5, B, T - 1, H, W)
    reach = min(TIMES, frames - 1 - (frames % 2))
    sums = F.avg_pool3d(sums, (reach, 1, 1), stride=1, padding=(reach // 2, 0, 0), count_include_pad=False)
    yy, yx, xx, yt, xt = _neighbourhoods(sums, periodic, wider)
    det = (yy * xx - yx * yx).clamp(min=1e-12)
    d = torch.stack([yx * xt - xx * yt, yx * yt - yy * xt], dim=2) / det[:, :, None]
    return d.clamp(-FARTHEST, FARTHEST)


def _neighbourhoods(sums: Tensor, periodic: Sequence[bool], wider: float) -> Tensor:
    """Means of ``sums`` (5, B, T, H, W) near each cell, plus shares of the means farther away."""
    flat = sums.flatten(0, 2)[:, None]
    size = flat.shape[-2:]
    near = F.avg_pool2d(_around(flat, NEAR // 2, periodic), NEAR, stride=1)
    blocks = F.avg_pool2d(flat, COARSE, ceil_mode=True)
    wide = F.avg_pool2d(_around(blocks, NEAR // 2, periodic), NEAR, stride=1)
    wide = F.interpolate(wide, size=size, mode="bilinear", align_corners=False)
    whole = sums.mean((2, 3, 4), keepdim=True)
    found = (near + wider * wide).view_as(sums) + wider**2 * whole
    # A little of the whole contrast, alike in both directions, so that a field without any stays where it is.
    damping = DAMPING * wider**2 * (whole[0] + whole[2])
    return found + torch.stack([damping, 0 * damping, damping, 0 * damping, 0 * damping])


def carry(x: Tensor, context: Tensor, d: Tensor, periodic: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """Values of x (B, C, T, H, W) at context cells carried on by d (B, T - 1, 2, H, W), and the trust in them.

    Where nothing has come by yet, the value is that of x in the first frame, with trust 0.
    """
    variables, mask = x.shape[1], context.to(x.dtype)
    values, trust = [x[:, :, 0]], [mask[:, :, 0]]
    for n in range(1, x.shape[2]):
        moved = _moved(torch.cat([values[-1], trust[-1]], dim=1), d[:, n - 1], periodic)
        values.append(torch.where(context[:, :, n], x[:, :, n], moved[:, :variables]))
        trust.append(torch.where(context[:, :, n], 1, TRUST * moved[:, variables:].clamp(0, 1)))
    return torch.stack(values, dim=2), torch.stack(trust, dim=2)


def _moved(x: Tensor, d: Tensor, periodic: Sequence[bool]) -> Tensor:
    """x (B, C, H, W) at p - d, by cubic interpolation, which keeps small scales through many frames."""
    margin = int(FARTHEST) + 2
    rows, columns = x.shape[-2:]
    y = torch.arange(rows, device=x.device)[:, None] - d[:, 0] + margin
    z = torch.arange(columns, device=x.device) - d[:, 1] + margin
    last = rows + 2 * margin - 1, columns + 2 * margin - 1
    grid = torch.stack([2 * z / last[1] - 1, 2 * y / last[0] - 1], dim=-1)
    return F.grid_sample(_around(x, margin, periodic), grid, mode="bicubic", align_corners=True)


def _around(x: Tensor, margin: int, periodic: Sequence[bool]) -> Tensor:
    """Continues x (..., H, W) by ``margin`` cells on all sides: around periodic axes, with the edge on others."""
    for axis, around in zip((-2, -1), periodic):
        size = x.shape[axis]
        index = torch.arange(-margin, size + margin, device=x.device)
        x = x.index_select(axis, index % size if around else index.clamp(0, size - 1))
    return x
