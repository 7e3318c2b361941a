"""Figures of the paper from models that the benchmark has trained: reconstructions, and MissDiff's blank block."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from fieldfill.api import load as load_model
from fieldfill.bench.benches import Job
from fieldfill.bench.cases import CASES, Data, Unavailable, load
from fieldfill.bench.methods import LEARNT, classical, ensemble_of, learnt
from fieldfill.bench.runner import Runner, use_ensemble
from fieldfill.data.kinds import PICTURE
from fieldfill.data.output_paths import check_folder, check_output, replacing
from fieldfill.errors import MissingPackage

__all__ = ["FIGURES", "Figure", "draw_figures"]


@dataclass(frozen=True)
class Figure:
    """One picture: a test sample of a case, its gaps and how some methods fill them, over a few frames."""

    name: str
    case: str
    methods: tuple[str, ...]
    title: str


# Every figure: its name, its case, the methods beside the truth, and its title.
FIGURES = [
    Figure("shallow-water", "shallow-water-pixel30", ("navier_stokes", "paper", "fieldfill"), "shallow water, 30 %"),
    Figure("advection", "advection-pixel30", ("navier_stokes", "paper", "fieldfill"), "advection, 30 %"),
    Figure("navier-stokes", "navier-stokes-pixel60", ("navier_stokes", "paper", "fieldfill"), "vorticity, 60 %"),
    Figure("blank-block", "navier-stokes-block8of9", ("missdiff", "paper", "fieldfill"), "vorticity, 8 of 9 blocks"),
    Figure("blank-block-advection", "advection-block8of9", ("missdiff", "paper", "fieldfill"), "advection, 8 of 9"),
    Figure("era5", "era5-pixel20", ("navier_stokes", "paper", "fieldfill"), "ERA5 2 m temperature, 20 %"),
    Figure("gaussian", "gaussian-cloud40", ("oi", "fieldfill", "optimum"), "Gaussian field under clouds, 40 %"),
]


def draw_figures(
    runner: Runner, output: Path, seed: int = 0, sample: int = 0, overwrite: bool = False
) -> tuple[list[Path], list[str]]:
    """Draws what the cached models allow; returns the files and why others are missing."""
    check_folder(output)
    for figure in FIGURES:
        check_output(_path(output, figure), PICTURE, overwrite)
    drawn, missing = [], []
    for figure in FIGURES:
        try:
            drawn.append(_draw(figure, runner, output, seed, sample, overwrite))
        except Unavailable as error:
            missing.append(f"{figure.name}: {error}")
    return drawn, missing


def _path(output: Path, figure: Figure) -> Path:
    return output / f"{figure.name}.png"


def _draw(figure: Figure, runner: Runner, output: Path, seed: int, sample: int, overwrite: bool) -> Path:
    models = {name: _model_path(figure, name, runner, seed) for name in figure.methods if name in LEARNT}
    data = load(CASES[figure.case], runner.scale, seed, runner.cache, runner.log)
    one = {"sample": slice(sample, sample + 1)}
    test, truth = data.test.isel(one), data.truth.isel(one)
    name = str(next(iter(truth.data_vars)))
    strips = {"truth": truth[name].values[0], "observed": test[name].values[0]}
    for method in figure.methods:
        strips[method] = _filled(figure, method, models, runner, data, test)[name].values[0]
    with replacing(_path(output, figure), PICTURE if overwrite else None) as partial:
        _picture(figure.title, strips, partial)
    return _path(output, figure)


def _model_path(figure: Figure, method: str, runner: Runner, seed: int) -> Path:
    frames = 1  # does not enter the path
    config = learnt(method, CASES[figure.case], runner.scale, frames, runner.minutes, {})
    path = runner.model_path(Job("", figure.case, method, method), config, seed)
    if not path.exists():
        raise Unavailable(f"no trained model of {method} on {figure.case}; run its row first")
    return path


def _filled(
    figure: Figure, method: str, models: dict[str, Path], runner: Runner, data: Data, test: xr.Dataset
) -> xr.Dataset:
    if method not in models:
        chosen = classical(method, CASES[figure.case], runner.scale, data.domain)
        train = data.train.isel(sample=slice(chosen.fit_samples))
        return chosen.method.fit(train).fill(test)
    filler = load_model(models[method])
    use_ensemble(filler, ensemble_of(method, filler.model_.config))
    return filler.fill(test)


def _picture(title: str, strips: dict[str, np.ndarray], path: Path, frames: int = 5) -> None:
    """One row of frames for each strip (T, H, W), all in the colours of the truth."""
    try:
        from cmcrameri import cm
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingPackage("matplotlib", "report", "drawing figures") from error
    truth = strips["truth"]
    shown = np.unique(np.linspace(0, len(truth) - 1, frames).round().astype(int))
    low, high = np.quantile(truth, (0.005, 0.995))
    canvas = Canvas(figsize=(1.5 * len(shown) + 1, 1.5 * len(strips) + 0.5), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(len(strips), len(shown), squeeze=False)
    for line, (label, strip) in zip(axes, strips.items()):
        for axis, frame in zip(line, shown):
            axis.imshow(strip[frame], cmap=cm.batlow, vmin=low, vmax=high, interpolation="nearest")
            axis.set(xticks=[], yticks=[], facecolor="0.85")
        line[0].set_ylabel(label, fontsize=9)
    for axis, frame in zip(axes[0], shown):
        axis.set_title(f"frame {frame}", fontsize=8)
    canvas.suptitle(title, fontsize=10)
    canvas.savefig(path, dpi=90)
