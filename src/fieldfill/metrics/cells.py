r"""Scores of arrays, cell by cell and over masks.

With y the truth and F the distribution that a standard deviation or members describe

.. math:: \mathrm{CRPS}(F, y) = E|X - y| - \tfrac12 E|X - X'|, \qquad X, X' \sim F \text{ independent}

Members are on the first axis, (M, ...). Cells whose truth is NaN are not scored.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fieldfill.errors import InputError

__all__ = [
    "ENSEMBLE_SCORES",
    "LEVELS",
    "SCORES",
    "Array",
    "between",
    "covered_gaussian",
    "covered_members",
    "crps_gaussian",
    "crps_members",
    "distance_to_observation",
    "energy_spectrum",
    "rank_flatness",
    "rank_histogram",
    "score_arrays",
    "score_means",
    "score_sums",
]

Array = NDArray[Any]

# Scores of a fill, of a fill with members, in the order of tables. Another one is a name here; `score_sums` or
# `score_means` computes it.
SCORES = ("mse", "rmse", "mae", "bias", "mse_all", "crps", "coverage50", "coverage90", "spread_skill", "n")
ENSEMBLE_SCORES = ("crps_ensemble", "spread_skill_ensemble", "rank_flatness")
# Probabilities of the central intervals whose coverage is scored.
LEVELS = {"coverage50": 0.5, "coverage90": 0.9}


def crps_gaussian(mean: Array, std: Array, truth: Array) -> Array:
    """CRPS of a normal distribution, cell by cell; the absolute error where ``std`` is 0."""
    error = np.asarray(truth, float) - mean
    z = np.divide(error, std, out=np.zeros_like(error), where=np.asarray(std) > 0)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    smooth = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return np.where(np.asarray(std) > 0, smooth, np.abs(error) + 0 * np.asarray(std))  # NaN stays NaN


def crps_members(members: Array, truth: Array) -> Array:
    """Fair CRPS of members (M, ...), cell by cell: what infinitely many of the same law would score."""
    count = len(members)
    if count < 2:
        raise InputError(f"the fair CRPS needs at least 2 members, not {count}; draw more")
    ordered = np.sort(np.asarray(members, float), axis=0)
    # The sum of |x_i - x_j| over all pairs is a weighted sum of the ordered members.
    weights = 2 * np.arange(count) - (count - 1)
    distances = np.tensordot(weights, ordered, axes=1)
    return np.abs(ordered - truth).mean(axis=0) - distances / (count * (count - 1))


def covered_gaussian(mean: Array, std: Array, truth: Array, level: float) -> Array:
    """Whether the truth lies in the central interval of a normal distribution, cell by cell (bool)."""
    return np.abs(np.asarray(truth, float) - mean) <= ndtri((1 + level) / 2) * np.asarray(std)


def covered_members(members: Array, truth: Array, level: float) -> Array:
    """Whether the truth lies in the central interval of the members (M, ...), cell by cell (bool).

    Its ends are the ordered members at places p (M + 1), so that members drawn from the truth's own law cover
    ``level`` on average. Levels above (M - 1) / (M + 1) end at the extreme members and cover just that.
    """
    return between(np.quantile(members, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull"), truth)


def between(ends: Array, truth: Array) -> Array:
    """Whether the truth lies between the two ``ends`` (2, ...) or on one of them (bool)."""
    low, high = ends
    return (low <= truth) & (truth <= high)


def rank_histogram(members: Array, truth: Array, where: Array | None = None) -> Array:
    """Counts (M + 1,) of cells by the number of members (M, ...) below the truth; flat if these are honest.

    A cell with ties is shared evenly among the ranks it could take.
    """
    scored = np.isfinite(truth) if where is None else np.isfinite(truth) & where
    members, truth = np.asarray(members)[:, scored], np.asarray(truth)[scored]
    below, ties = (members < truth).sum(axis=0), (members == truth).sum(axis=0)
    steps = np.zeros(len(members) + 2)
    np.add.at(steps, below, 1 / (ties + 1))
    np.add.at(steps, below + ties + 1, -1 / (ties + 1))
    return np.cumsum(steps)[:-1]


def rank_flatness(histogram: Array) -> Array:
    """How flat rank histograms (..., M + 1) are: 1 if flat, 1 / (M + 1) if all cells share one rank.

    It is the area that a histogram has in common with the flat one; NaN for one without cells.
    """
    total = histogram.sum(-1, keepdims=True)
    shares = np.divide(histogram, total, out=np.full(histogram.shape, np.nan), where=total > 0)
    return np.minimum(shares, 1 / histogram.shape[-1]).sum(-1)


def distance_to_observation(
    observed: Array,
    frame_cells: float = 2.0,
    in_frame: bool = False,
    periodic: tuple[bool, bool] = (False, False),
) -> Array:
    """Distance in cells from every cell to the nearest observed one, for masks (..., T, H, W).

    Euclidean in space and time, one frame counting as ``frame_cells`` cells; ``in_frame`` looks only at the
    cell's own frame. ``periodic`` closes rows and columns. Infinite where nothing is observed.
    """
    observed = np.asarray(observed, bool)
    sampling, last = ((1.0, 1.0), 2) if in_frame else ((frame_cells, 1.0, 1.0), 3)
    grids = observed.reshape(-1, *observed.shape[-last:])
    out = np.full(grids.shape, np.inf)
    for distance, grid in zip(out, grids):
        if grid.any():
            # In a mask that does not change the nearest observation is never nearer in another frame.
            static = last == 3 and (grid == grid[:1]).all()
            distance[...] = (
                _distance(grid[0], sampling[1:], periodic) if static else _distance(grid, sampling, periodic)
            )
    return out.reshape(observed.shape)


def _distance(grid: Array, sampling: tuple[float, ...], periodic: tuple[bool, bool]) -> Array:
    """Distance to the nearest True cell of one grid (..., H, W), one axis after another.

    Squares of distances add up over the axes, so that the least one is the least along the first axis, then the least
    of that plus what a step along the second costs, and so on.
    """
    square = _along_columns(grid, periodic[1]) ** 2 * np.float32(sampling[-1] ** 2)
    for axis, closed in ((-2, periodic[0]), *((axis, False) for axis in range(grid.ndim - 2))):
        square = _least_across(square, axis, sampling[axis], closed)
    return np.sqrt(square, dtype=float)


def _along_columns(grid: Array, closed: bool) -> Array:
    """Columns to the nearest True cell in the same row, infinite if there is none; float32."""
    width = grid.shape[-1]
    here = np.arange(width, dtype=np.float32)
    before = np.maximum.accumulate(np.where(grid, here, -np.float32(np.inf)), axis=-1)
    after = np.minimum.accumulate(np.where(grid, here, np.float32(np.inf))[..., ::-1], axis=-1)[..., ::-1]
    if closed:
        before, after = np.maximum(before, before[..., -1:] - width), np.minimum(after, after[..., :1] + width)
    return np.minimum(here - before, after - here)


def _least_across(square: Array, axis: int, step: float, closed: bool) -> Array:
    """The least over k of what ``square`` is k cells away along an axis plus (k step)²."""
    source = np.moveaxis(square, axis, 0)
    least = source.copy()
    for k in range(1, len(source) // 2 + 1 if closed else len(source)):
        cost = np.float32((k * step) ** 2)
        if cost >= least.max():
            break
        moved = source + cost
        np.minimum(least[k:], moved[:-k], out=least[k:])
        np.minimum(least[:-k], moved[k:], out=least[:-k])
        if closed:
            np.minimum(least[:k], moved[-k:], out=least[:k])
            np.minimum(least[-k:], moved[:k], out=least[-k:])
    return np.moveaxis(least, 0, axis)


def energy_spectrum(field: Array, taper: bool = False) -> tuple[Array, Array]:
    """Wavenumbers (K,) and mean square by wavenumber (..., K) of fields (..., H, W).

    Wavenumber n, in cycles per longer side, gathers all modes with ``round(|k|) = n``; the energies add up to
    the mean square of the field. ``taper`` first multiplies by a Hann window of unit mean square, for fields
    that are not periodic.
    """
    field = np.asarray(field, float)
    height, width = field.shape[-2:]
    if taper:
        window = np.hanning(height + 2)[1:-1, None] * np.hanning(width + 2)[1:-1]
        field = field * (window / np.sqrt((window**2).mean()))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    shell = np.rint(frequency * max(height, width)).astype(int).ravel()
    power = np.abs(np.fft.fft2(field, norm="forward")).reshape(*field.shape[:-2], -1) ** 2
    energy = np.zeros((shell.max() + 1, *field.shape[:-2]))
    np.add.at(energy, shell, np.moveaxis(power, -1, 0))
    return np.arange(len(energy)), np.moveaxis(energy, 0, -1)


def score_arrays(
    value: Array,
    truth: Array,
    missing: Array,
    domain: Array | None = None,
    std: Array | None = None,
    members: Array | None = None,
) -> dict[str, float]:
    """The scores of :func:`score` for arrays of one shape and bool masks; ``members`` (M, ...), two or more.

    Everything is scored on ``missing``, but mse_all on ``domain`` (all cells unless given).
    """
    inside = np.ones(np.shape(truth), bool) if domain is None else domain
    if members is not None and len(members) < 2:
        members = None
    sums = score_sums(value, truth, missing, inside, std, members, {}, np.zeros(np.shape(truth), int), 1)
    means = score_means(sums)
    return {key: means[key][0].item() for key in (*SCORES, *ENSEMBLE_SCORES) if key in means}


def score_sums(
    value: Array,
    truth: Array,
    missing: Array,
    domain: Array,
    std: Array | None,
    members: Array | None,
    bounds: Mapping[str, Array],
    bins: Array,
    count: int,
) -> dict[str, Array]:
    """Sums (count,) over the cells of each bin 0 … count - 1 of what every cell contributes.

    With members also their rank histograms, (count, M + 1). ``bounds`` are the ends (2, ...) of the intervals behind
    some of the ``LEVELS``, where they are given by more than ``std``.
    """
    scored = np.isfinite(truth) & (bins >= 0) & (bins < count)
    missing, inside = missing & scored, domain & scored
    x, y = value[missing].astype(float), truth[missing].astype(float)
    if np.isnan(x).any():
        raise InputError(f"{np.isnan(x).sum()} missing cells are NaN in the filled field: fill them first")
    std = None if std is None else std[missing].astype(float)
    members = None if members is None else members[:, missing].astype(float)
    cells = _cell_scores(x, y, std, members)
    for key, ends in bounds.items():
        cells[key] = between(ends[:, missing], y)
    out = {key: np.bincount(bins[missing], amount, count) for key, amount in cells.items()}
    if members is not None:
        out["ranks"] = np.stack([rank_histogram(members, y, bins[missing] == i) for i in range(count)])
    squares = (value[inside].astype(float) - truth[inside]) ** 2
    return out | {
        "n": np.bincount(bins[missing], minlength=count),
        "mse_all": np.bincount(bins[inside], squares, count),
        "n_all": np.bincount(bins[inside], minlength=count),
    }


def _cell_scores(x: Array, y: Array, std: Array | None, members: Array | None) -> dict[str, Array]:
    """What each of n missing cells contributes, (n,) by name; NaN for what cannot be known."""
    error = x - y
    out = dict.fromkeys(("crps", "coverage50", "coverage90", "spread"), np.full(error.shape, np.nan))
    out |= {"bias": error, "mae": np.abs(error), "mse": error**2, "skill": error**2}
    if members is not None:
        # The mean of M members errs like the truth around the mean of the law, plus 1/M of that.
        out["spread"] = (1 + 1 / len(members)) * members.var(axis=0, ddof=1)
        out["skill"] = (members.mean(axis=0) - y) ** 2
        out["crps"] = crps_members(members, y)
        out |= {f"{key}_ensemble": out[key] for key in ("spread", "skill", "crps")}
        out |= {key: covered_members(members, y, level) for key, level in LEVELS.items()}
    if std is not None:
        out |= {"spread": std**2, "skill": error**2}
        out |= {key: covered_gaussian(x, std, y, level) + 0 * std for key, level in LEVELS.items()}
        if members is None:
            out["crps"] = crps_gaussian(x, std, y)
    return out


def score_means(sums: Mapping[str, Array]) -> dict[str, Array]:
    """Scores from their sums; NaN for a bin without cells."""

    def ratio(above: Array, below: Array) -> Array:
        return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)

    plain = {key: total for key, total in sums.items() if key != "ranks"}
    out = {key: ratio(total, sums["n_all" if key == "mse_all" else "n"]) for key, total in plain.items()}
    for kind in ("", "_ensemble"):
        if f"spread{kind}" in out:
            out[f"spread_skill{kind}"] = np.sqrt(ratio(out[f"spread{kind}"], out[f"skill{kind}"]))
    if "ranks" in sums:
        out["rank_flatness"] = rank_flatness(sums["ranks"])
    return out | {"rmse": np.sqrt(out["mse"]), "n": sums["n"]}
