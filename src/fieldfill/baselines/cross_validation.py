"""Observed cells set aside to measure the error where there is no truth.

Single random points lie beside their observed neighbours and promise an error that no real gap keeps.
Points with the shape of the gaps – the mask of one frame laid over another, clear one – are as hard to fill
as the gaps are.
"""

import numpy as np

__all__ = ["cloud_points", "random_points"]


def random_points(observed: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Hides a share of the observed cells, each independently: bool like ``observed``."""
    cells = np.flatnonzero(observed)
    held = np.zeros(observed.size, bool)
    held[generator.choice(cells, size=max(1, round(share * cells.size)), replace=False)] = True
    return held.reshape(observed.shape)


def cloud_points(
    observed: np.ndarray, share: float, generator: np.random.Generator, run: int = 1, stretches: int = 20
) -> np.ndarray:
    """Lays the masks of other frames over the clearest frames until a share of the observed cells is hidden.

    The clearest frame of each stretch of the record comes first: clear frames come in rows, and a frame whose
    neighbours in time are clear as well is easier than the others. Where the masks of all samples are
    constant in time, those of whole samples are exchanged instead: a gap that lasts is hidden as a gap that
    lasts. If no two masks differ, the points are random.

    Parameters
    ----------
    observed
        bool (S, C, T, H, W).
    run
        Frames around the clear one that are covered together by as many consecutive masks. A method that
        looks at neighbouring frames is judged fairly only if these are cloudy too.
    stretches
        Parts of the record that give their clearest frames; so many frames are covered at least, if there are many.
    """
    samples, variables, frames, rows, columns = observed.shape
    lasting = samples > 1 and (observed == observed[:, :, :1]).all()
    if lasting:
        units, length, run = observed, 1, 1
    else:
        units, length, run = (
            np.moveaxis(observed, 2, 1).reshape(-1, variables, rows, columns),
            frames,
            min(run, frames),
        )
    clear = units.sum(axis=tuple(range(1, units.ndim)))
    held, wanted = np.zeros_like(units), share * observed.sum()
    least = min(stretches, len(units) // 8)
    for count, unit in enumerate(_spread_out(clear, stretches), start=1):
        target, donor = (_around(i, run, length) for i in (unit, int(generator.integers(len(units)))))
        hidden = units[target] & ~units[donor]
        if hidden.any() and hidden.sum() < units[target].sum():
            held[target] |= hidden
        if count * run >= least and held.sum() >= wanted:
            break
    if not held.any():
        return random_points(observed, share, generator)
    return held if lasting else np.moveaxis(held.reshape(samples, frames, variables, rows, columns), 1, 2)


def _around(unit: int, run: int, length: int) -> slice:
    """``run`` units around one of them, inside its own sequence of ``length``."""
    first = unit - unit % length
    start = min(max(unit - run // 2, first), first + length - run)
    return slice(start, start + run)


def _spread_out(clear: np.ndarray, stretches: int) -> np.ndarray:
    """Order of the units: the clearest of every stretch, then the second of every stretch, and so on."""
    place = np.concatenate(
        [np.argsort(np.argsort(-stretch, kind="stable")) for stretch in np.array_split(clear, stretches)]
    )
    return np.lexsort((-clear, place))
