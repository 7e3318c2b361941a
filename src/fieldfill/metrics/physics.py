r"""How well a filled field obeys the equation that made the truth: xarray in, xarray out.

Simulated data name their simulator and its settings in their attributes, and carry its parameters as coordinates
along ``sample`` (:mod:`fieldfill.simulate.store`). The equation :math:`q_t = F(q)` is rebuilt from them and put to the
filled field q and to the truth q*. With rms the root of the mean square over samples, frames and cells:

* residual: rms of :math:`q_t - F(q)`, and that of q*, which is the floor left by the time between frames;
* invariant I (mass, energy ...): rms of :math:`I(q) - I(q^*)` (error) and of the change of that since the first frame
  (drift), as shares of the rms of I(q*); mass is a mean around 0 and is compared with the rms of its field;
* propagation: mean squared difference between the filled first frame carried forward by a solver and the *true* frames;
* spectrum: :math:`\log_2` of the energy of q over that of q* in three bands of wavenumber; -1 is half the energy;
* divergence: rms for q and for q*, where the velocity is part of the field.

A simulator is asked only for what it has. Records are read a few samples at a time.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from fieldfill.data.pieces import at_once
from fieldfill.errors import InputError
from fieldfill.metrics import energy_spectrum
from fieldfill.metrics.records import matched
from fieldfill.simulate import NavierStokes
from fieldfill.simulate.store import Simulator

__all__ = ["Equation", "physical_scores"]

BANDS = ("large", "medium", "small")
DIMS = ("sample", "time", "y", "x")
INVARIANT = "invariant:"  # before the names of invariants, which are the simulator's own
CENTRED = ("mass",)  # invariants that are means of the first variable and may well be 0

Parameters = Mapping[str, Tensor]
Described = tuple[tuple[str, ...], Any, dict[str, str]]  # dimensions, value, attributes


@runtime_checkable
class Equation(Protocol):
    """A simulator that can evaluate the residual of its equation."""

    def residual(self, fields: Tensor, parameters: Parameters) -> Tensor: ...
    def invariants(self, fields: Tensor, parameters: Parameters) -> dict[str, Tensor]: ...


@runtime_checkable
class Transport(Protocol):
    """A simulator that carries a first frame forward."""

    def propagation_error(self, first: Tensor, truth: Tensor, parameters: Parameters) -> Tensor: ...


@runtime_checkable
class Flow(Protocol):
    """A simulator whose fields hold a velocity that may diverge."""

    def divergence(self, fields: Tensor) -> Tensor: ...


def physical_scores(filled: xr.Dataset, truth: xr.Dataset, simulator: Simulator) -> xr.Dataset:
    """Scores of a filled record by the equation of the truth.

    Parameters
    ----------
    filled : all variables of the simulator, without gaps, on its whole grid; consecutive frames and any samples.
    truth : as the simulator wrote it; may hold more samples and frames than ``filled``.
    simulator : the one that wrote the truth, see `fieldfill.config.simulator_of`.

    Returns
    -------
    Dataset with, as far as the simulator has them, ``v_residual``, ``v_residual_truth``, ``v_residual_ratio`` and
    ``v_spectrum_error`` (band) for each variable ``v``; ``i_error`` and ``i_drift`` for each invariant ``i``;
    ``propagation_mse`` and ``divergence`` with their counterparts ``..._truth``. Each has a ``long_name``.
    """
    pair = _ComparedFields.of(filled, truth, simulator)
    # What is left of a longer simulation is judged by a simulation of just these frames.
    simulator = replace(simulator, frames=pair.frames)  # type: ignore[type-var]
    means: dict[str, np.ndarray] = {}
    for block in pair.blocks():
        for key, part in _mean_squares(simulator, *block).items():
            means[key] = means.get(key, 0.0) + part.sum(dim=0).numpy() / pair.samples
    attrs = {
        "title": "physical scores of a filled record",
        "simulator": type(simulator).__name__,
        "samples": pair.samples,
        "frames": pair.frames,
    }
    return xr.Dataset(_described(simulator, means), {"band": _band_names(simulator)}, attrs)


@dataclass(frozen=True)
class _ComparedFields:
    """Filled and true variables (sample, time, y, x), in the order of the simulator's channels."""

    filled: list[xr.DataArray]
    truth: list[xr.DataArray]
    parameters: dict[str, Tensor]

    @classmethod
    def of(cls, filled: xr.Dataset, truth: xr.Dataset, simulator: Simulator) -> "_ComparedFields":
        lost = [name for name in simulator.variables if name not in filled]
        if lost:
            raise InputError(
                f"the filled record has no variable {', '.join(lost)}; "
                f"the equation needs {', '.join(simulator.variables)}"
            )
        values = [filled[name] for name in simulator.variables]
        for value in values:
            _check_grid(value, simulator)
        true = [matched(truth, value) for value in values]
        names = [name for name in simulator.units if name not in simulator.variables]
        missing = [name for name in names if name not in true[0].coords]
        if missing:
            raise InputError(
                f"the truth lacks the coordinates {', '.join(missing)}, the parameters of its equation; "
                "keep them in the file"
            )
        parameters = {name: torch.from_numpy(np.atleast_1d(true[0][name].values).astype(float)) for name in names}
        return cls([_ordered(value) for value in values], [_ordered(value) for value in true], parameters)

    @property
    def samples(self) -> int:
        return self.filled[0].sizes["sample"]

    @property
    def frames(self) -> int:
        return self.filled[0].sizes["time"]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
        """Filled and true fields (B, C, T, H, W) and parameters (B,), some samples at a time."""
        each = sum(value.size for value in self.filled) // self.samples
        step = at_once(each)
        for start in range(0, self.samples, step):
            some = slice(start, start + step)
            parameters = {name: values[some] for name, values in self.parameters.items()}
            yield _read(self.filled, some, "filled"), _read(self.truth, some, "true"), parameters


def _ordered(value: xr.DataArray) -> xr.DataArray:
    return (value if "sample" in value.dims else value.expand_dims("sample")).transpose(*DIMS)


def _check_grid(value: xr.DataArray, simulator: Simulator) -> None:
    """Refuses a field that is not on the simulator's grid, or whose frames are not consecutive."""
    if set(value.dims) not in (set(DIMS), set(DIMS[1:])) or value.size == 0:
        raise InputError(
            f"'{value.name}' has the dimensions {dict(value.sizes)}; the equation needs {', '.join(DIMS)}, none empty"
        )
    for name, (expected, _) in simulator.coordinates().items():
        found = value[name].values
        step = abs(expected[-1] - expected[0]) / max(1, len(expected) - 1)
        if name == "time":
            start = int(np.abs(expected - found[0]).argmin())
            expected = expected[start : start + len(found)]
        if len(found) != len(expected) or not np.allclose(found, expected, rtol=0, atol=1e-3 * step):
            raise InputError(
                f"the '{name}' of '{value.name}' ({len(found)} values from {found[0]} to {found[-1]}) is not that of "
                f"the simulator; its equation holds on the whole grid of the simulation, frame after frame"
            )


def _read(variables: list[xr.DataArray], some: slice, kind: str) -> Tensor:
    values = np.stack([variable[some].values.astype(np.float64) for variable in variables], axis=1)
    gaps = int((~np.isfinite(values)).sum())
    if gaps:
        raise InputError(f"{gaps} cells of the {kind} field are NaN; the equation needs every cell, fill them first")
    return torch.from_numpy(values)


def _mean_squares(simulator: Simulator, x: Tensor, truth: Tensor, parameters: Parameters) -> dict[str, Tensor]:
    """Means over frames and cells of all that the scores are made of, sample by sample: (B, ...)."""
    closed = _is_periodic(simulator)
    found = {"spectrum": _band_energy(x, closed), "spectrum_truth": _band_energy(truth, closed)}
    cells, frames = (2, 3, 4), x.shape[2]
    for suffix, fields in (("", x), ("_truth", truth)):
        if isinstance(simulator, Equation) and frames >= 3:
            found["residual" + suffix] = simulator.residual(fields, parameters).square().mean(dim=cells)
        if isinstance(simulator, Transport):
            found["propagation" + suffix] = simulator.propagation_error(fields[:, :, 0], truth, parameters)
        if isinstance(simulator, Flow):
            found["divergence" + suffix] = simulator.divergence(fields).square().mean(dim=(1, 2, 3))
    if isinstance(simulator, Equation):
        expected = simulator.invariants(truth, parameters)
        for name, series in simulator.invariants(x, parameters).items():
            error = series - expected[name]
            scale = truth[:, 0].flatten(1) if name in CENTRED else expected[name]
            found[INVARIANT + name] = torch.stack(
                [part.square().mean(dim=1) for part in (error, error - error[:, :1], scale)], dim=1
            )
    return found


def _is_periodic(simulator: Simulator) -> bool:
    coordinates = simulator.coordinates()
    return all(coordinates[name][1].get("periodic", 0) for name in ("y", "x"))


def _band_edges(cells: int) -> list[int]:
    """The last wavenumber of each band: equal parts of 1 ... Nyquist on a logarithmic axis."""
    return [math.floor((cells // 2) ** (part / 3) + 1e-9) for part in (1, 2, 3)]


def _band_energy(fields: Tensor, periodic: bool) -> Tensor:
    """Mean square of fields (B, C, T, H, W) by band, (B, C, 3), averaged over the frames; NaN in an empty band."""
    _, energy = energy_spectrum(fields.numpy(), taper=not periodic)
    mean = energy.mean(axis=2)
    edges = _band_edges(max(fields.shape[-2:]))
    parts = [mean[..., low + 1 : high + 1] for low, high in zip([0, *edges], edges)]
    sums = [part.sum(axis=-1) if part.shape[-1] else np.full(part.shape[:-1], np.nan) for part in parts]
    return torch.from_numpy(np.stack(sums, axis=-1))


def _score(value: Any, units: str, long_name: str, dims: tuple[str, ...] = ()) -> Described:
    return dims, value, {"units": units, "long_name": long_name}


def _described(simulator: Simulator, means: Mapping[str, np.ndarray]) -> dict[str, Described]:
    """The scores as variables of a data set: dimensions, value, attributes."""
    time_units = simulator.coordinates()["time"][1]["units"]
    out: dict[str, Described] = {}
    for c, v in enumerate(simulator.variables):
        if "residual" in means:
            ours, floor = math.sqrt(means["residual"][c]), math.sqrt(means["residual_truth"][c])
            out |= _residual_scores(simulator, v, ours, floor, _product(simulator.units[v], f"{time_units}-1"))
        with np.errstate(divide="ignore", invalid="ignore"):
            octaves = np.log2(means["spectrum"][c] / means["spectrum_truth"][c])
        text = f"log2 of the energy of the filled {v} over the true one by wavenumber; -1 is half the energy"
        out[f"{v}_spectrum_error"] = _score(octaves, "1", text, ("band",))
    for key in means:
        if key.startswith(INVARIANT):
            out |= _invariant_scores(key.removeprefix(INVARIANT), np.sqrt(means[key]), simulator.variables[0])
    if "propagation" in means:
        squared = _product(*[simulator.units[simulator.variables[0]]] * 2)
        text = "mean squared error of the {} first frame, carried forward by a solver, against the true frames"
        out["propagation_mse"] = _score(means["propagation"].item(), squared, text.format("filled"))
        out["propagation_mse_truth"] = _score(means["propagation_truth"].item(), squared, text.format("true"))
    if "divergence" in means:
        text, rate = "rms divergence of the {} velocity", _product(f"{time_units}-1")
        out["divergence"] = _score(math.sqrt(means["divergence"]), rate, text.format("filled"))
        out["divergence_truth"] = _score(math.sqrt(means["divergence_truth"]), rate, text.format("true"))
    return out


def _residual_scores(simulator: Simulator, v: str, ours: float, floor: float, rate: str) -> dict[str, Described]:
    lost = isinstance(simulator, NavierStokes) and simulator.inner > simulator.size
    poor = "; a poor score: subgrid modes, which the frames do not hold, dominate it" if lost else ""
    ratio = ours / floor if floor else math.nan
    return {
        f"{v}_residual": _score(ours, rate, f"rms residual of the equation of {v} in the filled field{poor}"),
        f"{v}_residual_truth": _score(floor, rate, f"the same in the truth: the floor of the residual{poor}"),
        f"{v}_residual_ratio": _score(ratio, "1", f"filled over true residual of the equation of {v}{poor}"),
    }


def _invariant_scores(name: str, rms: np.ndarray, first: str) -> dict[str, Described]:
    error, drift, scale = rms
    share = f"share of the rms of {first}" if name in CENTRED else "share of its true rms"
    return {
        f"{name}_error": _score(error / scale, "1", f"rms error of the {name} of a frame, {share}"),
        f"{name}_drift": _score(drift / scale, "1", f"rms change of that error since the first frame, {share}"),
    }


def _product(*units: str) -> str:
    """Product of CF units such as ``m s-1``, powers gathered; ``1`` when nothing is left."""
    powers: Counter[str] = Counter()
    for symbol, power in re.findall(r"([A-Za-z]+)(-?\d+)?", " ".join(units)):
        powers[symbol] += int(power or 1)
    kept = [symbol + (str(power) if power != 1 else "") for symbol, power in powers.items() if power]
    return " ".join(kept) or "1"


def _band_names(simulator: Simulator) -> Described:
    cells = max(len(simulator.coordinates()[name][0]) for name in ("y", "x"))
    edges = _band_edges(cells)
    spans = ", ".join(f"{band} {low + 1}-{high}" for band, low, high in zip(BANDS, [0, *edges], edges))
    return ("band",), list(BANDS), {"long_name": f"band of wavenumbers in cycles per side: {spans}"}
