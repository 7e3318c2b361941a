r"""The law of windows that obey linear equations of their own (`fieldfill.nn.dynamics`), learnt from a gappy record.

Each window tells its equations; what the record adds is the covariance of a frame, in units of the amplitudes of its
window. It starts with the one that the common law has at one time. Then rounds of expectation–maximisation: windows
are completed by posterior draws, which obey their equations, and the covariance is the mean over all their frames.

The law is kept if enough windows tell their equations clearly and the held-out error is lower with it.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fieldfill.nn.dynamics import LinearDynamics
from fieldfill.nn.gaussian import GaussianSkip
from fieldfill.separations import mean_over_modes
from fieldfill.windows import Windows

__all__ = ["learn_dynamics"]

LEAST_CLEAR = 0.1  # of the windows, without which there is no such law
LEAST_BETTER = 0.02  # lower held-out error, for which it is worth having
LEAST_FRAMES = 4
ROUNDS = 4  # of expectation–maximisation at most
LEAST_GAIN = 0.01  # of the held-out error, without which a round is the last
COMPLETED = 2**22  # cells of the windows completed in a round, unless they are fewer than
LEAST_COMPLETED = 8
NUGGETS = (0.3, 0.1)  # of the squared amplitude
NONE = torch.zeros(())  # noise
BATCH_CELLS = 2**19  # cells of the windows that are handled together


def learn_dynamics(
    skip: GaussianSkip,
    windows: Windows,
    places: list[tuple[int, int]],
    generator: Generator,
    at_once: Tensor,
    held_out_error: Callable[[], float],
) -> dict[str, float]:
    """Gives the skip a law for linear equations if that lowers the held-out error, and says what was found.

    ``at_once`` (K, C, C) is the covariance of a frame to begin with, ``places`` are the windows that are looked at.
    """
    if skip.shape[1] < LEAST_FRAMES:
        return {"dynamics": 0.0}
    before = held_out_error()
    law = skip.add_dynamics()
    _set_unit(law, windows)
    clear = [place for place in places if law.estimate(*windows.training([place]), NONE)[1]]
    if len(clear) < LEAST_CLEAR * len(places):
        skip.dynamics = None
        return {"dynamics": 0.0}
    share = len(clear) / len(places)
    clear = clear[: max(LEAST_COMPLETED, COMPLETED // math.prod(skip.shape))]
    law.set_covariance(_of_unit_variance(at_once, skip.torus))
    best, state = math.inf, law.state_dict()
    for _ in range(ROUNDS):
        last = best
        law.set_covariance(_completed(law, windows, clear, generator))
        for nugget in NUGGETS:
            law.nugget.fill_(nugget)
            error = held_out_error()
            if error < best:
                best, state = error, {name: value.clone() for name, value in law.state_dict().items()}
        law.nugget.copy_(state["nugget"])
        if best > (1 - LEAST_GAIN) * last:
            break
    law.load_state_dict(state)
    if best > (1 - LEAST_BETTER) * before:
        skip.dynamics = None
        return {"dynamics": 0.0}
    return {"dynamics": 1.0, "dynamics_share": share, "dynamics_nugget": law.nugget.item(), "validation": best}


def _set_unit(law: LinearDynamics, windows: Windows) -> None:
    """Undoes the maps of a normaliser: equations that are the same everywhere hold for values of one scale."""
    std = torch.from_numpy(windows.normaliser.std).float()
    std = std.view(len(std), 1, *std.shape[1:]) if std.ndim == 3 else std.view(-1, 1, 1, 1)
    law.unit.copy_((std / std.mean((2, 3), keepdim=True)).expand_as(law.unit))


def _completed(law: LinearDynamics, windows: Windows, places: list[tuple[int, int]], generator: Generator) -> Tensor:
    """Covariance (K, C, C) of the frames of completed windows."""
    batch = max(1, BATCH_CELLS // math.prod(law.shape))
    total = torch.zeros(())
    for first in range(0, len(places), batch):
        x, observed = windows.training(places[first : first + batch])
        own, clear = law.estimate(x, observed, NONE)
        fields = law.complete(x[clear], observed[clear], generator, own)
        modes = torch.fft.rfft2(fields).flatten(3).permute(3, 1, 0, 2).flatten(2)
        total = total + modes @ modes.mH
    return _of_unit_variance(total, law.torus)


def _of_unit_variance(covariance: Tensor, torus: tuple[int, int]) -> Tensor:
    """A covariance (K, C, C) by which every variable has the variance 1."""
    variance = mean_over_modes(covariance.diagonal(dim1=1, dim2=2).real, torus)
    unit = variance.clamp(min=1e-12).rsqrt()
    return covariance * unit[:, None] * unit
