r"""What the flow carries: values that were seen upstream or will be seen downstream of a gap.

A covariance describes how fields move on average; here the motion of each crop is estimated. With x the best
estimate of the complete crop and w the share of context cells around a cell, d, the displacement from one frame to
the next in cells, makes

.. math:: \sum w \, (\partial_t x + d \cdot \nabla x)^2 + \lambda |d - d_0|^2

as small as possible over a neighbourhood in space and time. Where that has no contrast or no context, wider ones
decide, and last the whole crop. How much they count depends on the data: fields that move as a whole want all of
it, eddies next to nothing. Reference: An Iterative Image Registration Technique with an Application to Stereo Vision
(1981).

The first guess of the motion is a stream function, as far as the field itself is one or determines one (vorticity,
height, pressure): the turned gradient of the field, smoothed over s = 1, 2, 4, 8 cells,

.. math:: d_0 = \sum_s b_s \, s^2 \, (-\partial_x, \partial_y) \, (G_s * x) \quad\text{for (rows y, columns x)}

whose few numbers b are found by least squares at the context cells; a sum of Gaussians of such weights can be an
inverse Laplacian.

Then values y seen at context cells are carried along, frame by frame, with a trust c that begins at 1 and fades:

.. math:: a_n(p) = y_n(p), \; c_n(p) = 1 \;\text{at the context}, \qquad
          a_n(p) = a_{n-1}(p - d), \; c_n(p) = \rho \, c_{n-1}(p - d) \;\text{elsewhere}

once forwards and once backwards in time (a', c'). With A the mean of a and a' weighted by their trust and m the
greater one, the parts m^¼ (A - g), m (A - g), c (a - g), c' (a' - g) may be added to a first estimate g. Each has one
weight for each variable.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fieldfill.estimators.base import Answer, Correction, Example, Given, Lesson
from fieldfill.estimators.neighbourhood import around
from fieldfill.estimators.regression import ridge_solution, weights_of_parts

if TYPE_CHECKING:
    from fieldfill.estimators.chain import Chain

__all__ = ["Motion", "MotionSettings", "carry", "contrast", "displacement", "turned_gradient"]

# Parts of the correction, for each variable.
PARTS = 4


@dataclass(frozen=True)
class MotionSettings:
    """How the motion of a crop is found, and how far its values are carried.

    Attributes
    ----------
    trust
        that is left of a carried value after a frame.
    fastest
        motion along each axis at most, in cells per frame.
    near, times
        cells and frames of the smallest neighbourhood, odd numbers.
    coarse
        cells of a block; a wider neighbourhood has ``near`` x ``near`` blocks.
    smoothed
        widths by which the field is smoothed for the stream function, in cells.
    ways
        ways to see the motion that are tried: share of the stream function, weight of wider neighbourhoods, stiffness.
    """

    trust: Annotated[float, Gt(0), Le(1)] = 0.93
    fastest: Annotated[float, Gt(0), Le(64)] = 2.0
    near: Annotated[int, Ge(1), Le(63)] = 5
    times: Annotated[int, Ge(1), Le(63)] = 5
    coarse: Annotated[int, Ge(1), Le(64)] = 4
    smoothed: tuple[Annotated[float, Gt(0), Le(1000)], ...] = (1.0, 2.0, 4.0, 8.0)
    ways: tuple[tuple[float, float, float], ...] = (
        (0.0, 0.01, 0.0),
        (0.0, 1.0, 0.0),
        (1.0, 0.01, 0.5),
        (1.0, 0.01, 50.0),
    )


class Motion(Correction):
    """Correction of a first estimate by what the flow carries.

    Parameters
    ----------
    variables
        number of variables.
    periodic
        whether rows and columns close on themselves.
    settings
        how the motion is found.
    """

    name: ClassVar[str] = "motion"
    features: ClassVar[int] = 2
    weights: Tensor
    turn: Tensor
    wider: Tensor
    stiff: Tensor

    def __init__(self, variables: int, periodic: tuple[bool, bool], settings: MotionSettings | None = None) -> None:
        super().__init__()
        self.periodic, self.settings = periodic, settings or MotionSettings()
        self.register_buffer("weights", torch.zeros(variables, PARTS))
        self.register_buffer("turn", torch.zeros(variables, len(self.settings.smoothed)))
        # Weight of each wider neighbourhood against the one before; λ as a share of the contrast of the crop.
        self.register_buffer("wider", torch.tensor(0.01))
        self.register_buffer("stiff", torch.tensor(0.0))

    def correct(self, given: Given, estimate: Tensor) -> Answer:
        if not self.weights.any():
            nothing = torch.zeros_like(estimate)
            return Answer(estimate, (nothing,), (nothing,))
        parts, trust = self.parts(given, estimate)
        correction = torch.einsum("pbcthw,cp->bcthw", parts, self.weights)
        return Answer(estimate + correction, (correction,), (trust,))

    def learn(self, lesson: Lesson, chain: "Chain") -> dict[str, float]:
        turn = self._fitted_turn(lesson.examples)
        tried: list[tuple[float, Tensor]] = []
        for share, wider, stiff in self.settings.ways:
            self._set_way(share * turn, wider, stiff)
            tried.append(
                weights_of_parts(lesson.examples, lambda example: self.parts(example.given, example.estimate)[0])
            )
        best = min(range(len(tried)), key=lambda i: tried[i][0])
        share, wider, stiff = self.settings.ways[best]
        self._set_way(share * turn, wider, stiff)
        self.weights.copy_(tried[best][1])
        return {"stream": share, "wider": wider, "stiff": stiff}

    def forget(self) -> None:
        self.weights.zero_()

    def _set_way(self, turn: Tensor, wider: float, stiff: float) -> None:
        self.turn.copy_(turn)
        self.wider.fill_(wider)
        self.stiff.fill_(stiff)

    def _fitted_turn(self, examples: Sequence[Example]) -> Tensor:
        """The numbers b (C, S) of the stream function, by least squares at the context cells."""
        (variables, scales), count = self.turn.shape, self.turn.numel()
        ff, fr = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        units = torch.eye(count).view(count, variables, scales)
        for example in examples:
            context = example.given.context
            x = torch.where(context, example.given.seen(example.estimate), example.estimate)
            down, right, change, w = contrast(x, context, self.periodic)
            middle = 0.5 * (x[:, :, 1:] + x[:, :, :-1])
            flows = [turned_gradient(middle, unit, self.settings.smoothed, self.periodic)[:, None] for unit in units]
            f = torch.stack([(w * (d[:, :, :, 0] * down + d[:, :, :, 1] * right)).flatten() for d in flows]).double()
            ff += f @ f.T
            fr -= f @ (w * change).flatten().double()
        return ridge_solution(ff, fr).view(variables, -1).float()

    @torch.no_grad()
    def parts(self, given: Given, guess: Tensor) -> tuple[Tensor, Tensor]:
        """What may be added to ``guess`` (PARTS, B, C, T, H, W), and the greater trust of both directions."""
        context = given.context
        x = torch.where(context, given.seen(guess), guess)
        d = self.motion(x, context)
        a, c = carry(x, context, d, self.periodic, self.settings)
        b, e = (v.flip(2) for v in carry(x.flip(2), context.flip(2), -d.flip(1), self.periodic, self.settings))
        a, b, most = a - guess, b - guess, torch.maximum(c, e)
        mean = (c * a + e * b) / (c + e).clamp(min=1e-6)
        return torch.stack([most**0.25 * mean, most * mean, c * a, e * b]), torch.where(context, 0, most)

    def motion(self, x: Tensor, context: Tensor) -> Tensor:
        """Rows and columns (B, T - 1, 2, H, W) by which x (B, C, T, H, W) moves from each frame to the next."""
        middle = 0.5 * (x[:, :, 1:] + x[:, :, :-1])
        first = turned_gradient(middle, self.turn, self.settings.smoothed, self.periodic)
        return displacement(x, context, self.periodic, float(self.wider), float(self.stiff), first, self.settings)


def turned_gradient(x: Tensor, turn: Tensor, smoothed: Sequence[float], periodic: Sequence[bool]) -> Tensor:
    """d_0 (B, T, 2, H, W) of fields x (B, C, T, H, W), ``smoothed`` over S widths, with the numbers ``turn`` (C, S)."""
    size = x.shape[-2:]
    if not turn.any():
        return x.new_zeros(x.shape[0], x.shape[2], 2, *size)
    for axis, closed in zip((-2, -1), periodic):
        if not closed:
            x = torch.cat([x, x.flip(axis)], dim=axis)  # mirrored, it closes on itself
    rows, columns = x.shape[-2:]
    k_y = 2 * math.pi * torch.fft.fftfreq(rows, device=x.device)[:, None]
    k_x = 2 * math.pi * torch.fft.rfftfreq(columns, device=x.device)
    scales = torch.tensor(smoothed, device=x.device)[:, None, None]
    smooth = scales**2 * torch.exp(-0.5 * scales**2 * (k_y**2 + k_x**2))
    stream = torch.einsum("bcthw,chw->bthw", torch.fft.rfft2(x), torch.einsum("cs,shw->chw", turn, smooth) + 0j)
    turned = torch.stack([-1j * k_x * stream, 1j * k_y * stream], dim=2)
    return torch.fft.irfft2(turned, s=(rows, columns))[..., : size[0], : size[1]]


def contrast(x: Tensor, context: Tensor, periodic: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slopes along rows and columns, change in time and share of context cells, all (B, C, T - 1, H, W)."""
    middle = around(0.5 * (x[:, :, 1:] + x[:, :, :-1]), 1, periodic)
    down = 0.5 * (middle[..., 2:, 1:-1] - middle[..., :-2, 1:-1])
    right = 0.5 * (middle[..., 1:-1, 2:] - middle[..., 1:-1, :-2])
    seen = around((context[:, :, 1:] & context[:, :, :-1]).to(x.dtype), 1, periodic)
    return down, right, x[:, :, 1:] - x[:, :, :-1], F.avg_pool2d(seen.flatten(0, 1), 3, stride=1).view_as(down)


def displacement(
    x: Tensor,
    context: Tensor,
    periodic: Sequence[bool],
    wider: float,
    stiff: float,
    first: Tensor,
    settings: MotionSettings,
) -> Tensor:
    """Motion (B, T - 1, 2, H, W) of x (B, C, T, H, W) near the ``first`` guess of it; see `Motion`."""
    down, right, change, w = contrast(x, context, periodic)
    change = change + first[:, None, :, 0] * down + first[:, None, :, 1] * right
    products = torch.stack([down * down, down * right, right * right, down * change, right * change])
    sums = (w * products).sum(2)  # over variables: (5, B, T - 1, H, W)
    reach = min(settings.times, sums.shape[2] - (1 - sums.shape[2] % 2))
    sums = F.avg_pool3d(sums, (reach, 1, 1), stride=1, padding=(reach // 2, 0, 0), count_include_pad=False)
    yy, yx, xx, yt, xt = _neighbourhoods(sums, periodic, wider, settings)
    # A little stiffness always, so that a field without contrast stays where it is.
    whole = (sums[0] + sums[2]).mean((1, 2, 3), keepdim=True)
    yy, xx = (direct + (stiff + 0.1 * wider**2) * whole for direct in (yy, xx))
    more = torch.stack([yx * xt - xx * yt, yx * yt - yy * xt], dim=2)
    return (first + more / (yy * xx - yx * yx).clamp(min=1e-12)[:, :, None]).clamp(-settings.fastest, settings.fastest)


def _neighbourhoods(sums: Tensor, periodic: Sequence[bool], wider: float, settings: MotionSettings) -> Tensor:
    """Means of ``sums`` (5, B, T, H, W) near each cell, plus shares of the means farther away."""
    flat, size = sums.flatten(0, 2)[:, None], settings.near
    near = F.avg_pool2d(around(flat, size // 2, periodic), size, stride=1)
    blocks = F.avg_pool2d(flat, settings.coarse, ceil_mode=True)
    wide = F.avg_pool2d(around(blocks, size // 2, periodic), size, stride=1)
    wide = F.interpolate(wide, size=flat.shape[-2:], mode="bilinear", align_corners=False)
    return (near + wider * wide).view_as(sums) + wider**2 * sums.mean((2, 3, 4), keepdim=True)


def carry(
    x: Tensor, context: Tensor, d: Tensor, periodic: Sequence[bool], settings: MotionSettings
) -> tuple[Tensor, Tensor]:
    """Values of x (B, C, T, H, W) at context cells carried on by d (B, T - 1, 2, H, W), and the trust in them.

    Where nothing has come by yet, the value is that of x in the first frame, with trust 0.
    """
    variables, mask = x.shape[1], context.to(x.dtype)
    values, trust = [x[:, :, 0]], [mask[:, :, 0]]
    for n in range(1, x.shape[2]):
        moved = _moved(torch.cat([values[-1], trust[-1]], dim=1), d[:, n - 1], periodic, settings.fastest)
        values.append(torch.where(context[:, :, n], x[:, :, n], moved[:, :variables]))
        trust.append(torch.where(context[:, :, n], 1, settings.trust * moved[:, variables:].clamp(0, 1)))
    return torch.stack(values, dim=2), torch.stack(trust, dim=2)


def _moved(x: Tensor, d: Tensor, periodic: Sequence[bool], fastest: float) -> Tensor:
    """x (B, C, H, W) at p - d, d no larger than ``fastest``; cubic, which keeps small scales through many frames."""
    margin = int(fastest) + 2
    rows, columns = x.shape[-2:]
    y = torch.arange(rows, device=x.device)[:, None] - d[:, 0] + margin
    z = torch.arange(columns, device=x.device) - d[:, 1] + margin
    last = rows + 2 * margin - 1, columns + 2 * margin - 1
    grid = torch.stack([2 * z / last[1] - 1, 2 * y / last[0] - 1], dim=-1)
    return F.grid_sample(around(x, margin, periodic), grid, mode="bicubic", align_corners=True)
