"""Finite numbers: statistics that do not overflow, and the one check of what a fill returns.

A power of two is taken out of the values before they are squared or summed, and put back at the end. That is exact, so
values of order 1 have the statistics that they always had, and values of 1e300 or 1e-300 have the same, scaled.
"""

import numpy as np
import numpy.typing as npt

from fieldfill.errors import InputError

__all__ = ["Moments", "check_filled", "floating", "power_of_two", "standardised"]

# Spread over mean below which values differ by rounding only.
CONSTANT = 1e-12
# Sizes that float32 holds, with room for values some orders of magnitude around them.
SINGLE = (1e-30, 1e30)


def power_of_two(values: npt.ArrayLike) -> int:
    """The exponent e with ``max |values| / 2**e`` in [0.5, 1); 0 if all are zero or there is none."""
    return int(np.frexp(np.abs(values).max(initial=0.0))[1])


class Moments:
    """Mean and standard deviation of values that come in parts."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._exponent = -5000  # of two, taken out of mean and squares; below that of any number

    def add(self, values: np.ndarray) -> None:
        """Adds finite values (n,)."""
        if not values.size:
            return
        exponent = max(self._exponent, power_of_two(values))
        less = self._exponent - exponent
        mean, squares = float(np.ldexp(self._mean, less)), float(np.ldexp(self._squares, 2 * less))
        new = np.ldexp(values.astype(np.float64), -exponent)
        # Chan's update joins the moments of two parts without the cancellation of sum and sum of squares.
        shift, total = new.mean() - mean, self._count + new.size
        self._squares = squares + ((new - new.mean()) ** 2).sum() + shift**2 * self._count * new.size / total
        self._mean = mean + shift * new.size / total
        self._count, self._exponent = total, exponent

    @property
    def mean(self) -> float:
        return float(np.ldexp(self._mean, self._exponent))

    @property
    def std(self) -> float:
        return float(np.ldexp(np.sqrt(self._squares / max(1, self._count)), self._exponent))

    @property
    def scale(self) -> float:
        """The standard deviation, or for values that differ by rounding only a number above zero in its place."""
        size = abs(self.mean)
        if self.std > CONSTANT * size:
            return self.std
        return max(min(1.0, size), CONSTANT * size) or 1.0


def standardised(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """``values`` with mean 0 and variance 1 over the ``known`` cells, 0 elsewhere; all 0 if they are constant."""
    unitless = np.ldexp(np.where(known, values, 0.0).astype(np.float64), -power_of_two(values[known]))
    moments = Moments()
    moments.add(unitless[known])
    if moments.std <= CONSTANT * abs(moments.mean):
        return np.zeros_like(unitless)
    return np.where(known, (unitless - moments.mean) / moments.std, 0.0)


def floating(sizes: npt.ArrayLike) -> type[np.floating]:
    """float32, or float64 if a largest value among ``sizes`` is too large or too small for it."""
    sizes = np.asarray(sizes)
    held = (sizes == 0) | ((sizes >= SINGLE[0]) & (sizes <= SINGLE[1]))
    return np.float32 if held.all() else np.float64


def check_filled(variable: str, part: str, values: np.ndarray, missing: np.ndarray, least: float = -np.inf) -> None:
    """Refuses a fill if one of its ``missing`` cells has no finite value, or one below ``least``.

    ``part`` names the array ``values``: v, v_std, v_members and so on of the variable v.
    """
    chosen = values[missing]
    sound = np.isfinite(chosen) & (chosen >= least)
    if not sound.all():
        wrong = "not finite" if np.isinf(least) else f"not finite or below {least:g}"
        wider = "" if values.dtype == np.float64 else " (or convert it to float64)"
        raise InputError(
            f"variable '{variable}': {(~sound).sum()} of {sound.size} filled values of {part} are {wrong}; check that "
            f"data and model have the same units, or divide '{variable}' by a power of ten{wider} and fit again"
        )
