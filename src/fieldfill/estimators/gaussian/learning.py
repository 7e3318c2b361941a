r"""The covariance of a gappy record, estimated from the record itself.

*Start.* Mean products of pairs of observed values (`fieldfill.estimators.gaussian.pairs`). They hold the large scales,
but their noise is the same at all wavenumbers and drowns the small ones.

*Expectation–maximisation.* With a covariance at hand, every crop is completed by a draw from its posterior. The
covariance of the complete crops is the next estimate; the mean square of what is left at the observed cells is the
next nugget. Here the noise of an estimate is a share of the power at each wavenumber. On a grid that is not periodic
the crops are completed on the whole torus of the field.

*Taper and memory.* Both are damped with the distance of a separation from the drift v τ, so that patterns that move
keep their correlation along their way, and with the lag τ. Waves whose frequencies differ from sample to sample need
the latter: the lines in the spectrum of a few samples are not those of the next.

*Patterns.* What is not stationary: the principal components of complete crops, each with the variance that exceeds
what the stationary part gives it. They take their share of the variance from the stationary part.

Held-out cells decide on the common drift, the taper, the memory, the nugget and the patterns.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fieldfill.data.crops import Crops, Place
from fieldfill.estimators.base import Lesson
from fieldfill.estimators.chain import BATCH_CELLS, Chain, HeldOutErrors
from fieldfill.estimators.gaussian.field import LearntField
from fieldfill.estimators.gaussian.pairs import drift_of, factorise, lagged, separations, tapered

__all__ = ["CovarianceSearch", "GaussianSettings", "complete_crops", "learn_covariance"]


@dataclass(frozen=True)
class GaussianSettings:
    """How the covariance of a record is searched for.

    Attributes
    ----------
    tapers
        widths of the taper that are tried, in cells; the first one is the usual one.
    start_nugget
        variance of the observations' errors to begin with, as a share of the variance of the field.
    rounds
        of expectation–maximisation at most; half as many for very large crops.
    completed_cells
        cells of the crops that are completed in a round.
    least_gain, patience
        relative gain of the held-out error below which a round is idle, and idle rounds in a row that end the search.
    least_drift
        slowest common drift that is tried, in cells per frame.
    memory_parts
        parts of a crop that are tried as memory.
    least_memory_gain
        relative gain for which a finite memory is accepted (expectation–maximisation cannot undo it later).
    pattern_rounds, most_patterns
        rounds in which patterns grow as long as held-out cells gain, and their number at most; no rounds, no patterns.
    least_pattern
        variance below which a pattern is left to the stationary part, as a share of the strongest component.
    least_pattern_crops
        crops below which patterns cannot be distinguished from chance.
    """

    tapers: tuple[float, ...] = (9.0, 5.0, 20.0)
    start_nugget: float = 0.01
    rounds: int = 8
    completed_cells: int = 2**20
    least_gain: float = 0.003
    patience: int = 2
    least_drift: float = 0.05
    memory_parts: tuple[float, ...] = (3.0, 6.0)
    least_memory_gain: float = 0.05
    pattern_rounds: int = 4
    most_patterns: int = 16
    least_pattern: float = 0.02
    least_pattern_crops: int = 32


def complete_crops(
    field: LearntField,
    crops: Crops,
    places: list[Place],
    generator: Generator,
    drifts: Tensor | None = None,
) -> tuple[Tensor, float]:
    """Covariance (C, C, T, rows, columns) of crops completed by posterior draws, and the nugget.

    With ``drifts`` (N, 2) it is that of the crops moved back.
    """
    variables, frames, rows, columns = field.shape
    sums, squares, cells = torch.zeros(()), 0.0, 0
    batch = max(1, BATCH_CELLS // crops.cells)
    for first in range(0, len(places), batch):
        part = crops.training(places[first : first + batch])
        x, observed = part.x, part.observed
        drift = None if drifts is None else drifts[first : first + batch]
        drawn, _ = field.complete(x, observed, generator, drift)
        left = (drawn[..., :rows, :columns].view_as(x) - x)[observed]
        squares, cells = squares + left.square().sum().item(), cells + left.numel()
        spectrum = torch.fft.rfft2(drawn) if drift is None else field.at_rest(drawn, drift)
        sums = sums + lagged(spectrum.unflatten(1, (variables, frames)), frames)
    pairs = len(places) * math.prod(field.torus) * torch.arange(frames, 0, -1.0)[:, None, None]
    return torch.fft.irfft2(sums, s=field.torus) / pairs, squares / max(1, cells)


def patterns_of(
    field: LearntField, crops: Crops, places: list[Place], generator: Generator, settings: GaussianSettings
) -> tuple[Tensor, float]:
    """Patterns (N, C, T, H, W) that the stationary part does not explain, and their share of the variance."""
    batch = max(1, BATCH_CELLS // crops.cells)
    parts = [crops.training(places[i : i + batch]) for i in range(0, len(places), batch)]
    drawn = [field.complete_grid(part.x, part.observed, generator) for part in parts]
    x = torch.cat(drawn).flatten(1)
    _, singular, vectors = torch.linalg.svd(x, full_matrices=False)
    most, total = settings.most_patterns, singular.square().sum() / len(x)
    vectors, power = vectors[:most], singular[:most].square() / len(x)
    known = (vectors @ field.patterns.flatten(1).T).square().sum(1)
    stationary = (vectors * field.covary(vectors.view(-1, *field.shape)).flatten(1)).sum(1) - known
    excess = power - stationary
    kept = excess > settings.least_pattern * power[0]
    patterns = (vectors[kept] * excess[kept].sqrt()[:, None]).view(-1, *field.shape)
    return patterns, float(excess[kept].sum() / total.clamp(min=1e-12))


class CovarianceSearch:
    """Tries covariances of a field on the held-out cells of the chain that it belongs to, and keeps the best."""

    def __init__(self, field: LearntField, lesson: Lesson, chain: Chain, judged: int | None = None) -> None:
        self.field, self.lesson, self.chain, self.judged = field, lesson, chain, judged
        self.best: dict[str, float] = {"validation": math.inf}
        self._state: dict[str, Tensor] = {}
        self._errors: HeldOutErrors | None = None

    def attempt(
        self,
        covariance: Tensor,
        taper: float,
        drift: tuple[float, float],
        nugget: float,
        memory: float = math.inf,
        least: float = 0.0,
        sure: bool = True,
    ) -> bool:
        """Whether a stationary covariance is the best so far; it has to gain at least a share ``least`` of the error.

        The gain has to exceed its standard error unless it need not be ``sure``.
        """
        settings = {"taper": taper, "memory": memory, "nugget": nugget}
        settings |= {"drift_rows": drift[0], "drift_columns": drift[1]}
        factor = factorise(tapered(covariance, taper, drift, memory), self.field)
        return self.judge(factor, None, settings, least, sure)

    def judge(
        self,
        factor: Tensor,
        patterns: Tensor | None,
        settings: dict[str, float],
        least: float = 0.0,
        sure: bool = True,
    ) -> bool:
        """Whether this is the best so far."""
        self.field.set_covariance(factor, patterns)
        self.field.nugget.fill_(settings["nugget"])
        errors = self.chain.source_errors(self.lesson, self.judged)
        error, better = errors.summary.mean, not self._state
        if self._errors is not None:
            gain = errors.gain_over(self._errors)
            better = gain.mean > max(least * self.best["validation"], gain.standard_error if sure else 0.0)
        self.lesson.stages.advance(f"held-out error {min(error, self.best['validation']):.4f}")
        if better:
            self._errors = errors
            self.best = {**settings, "patterns": len(self.field.patterns), "validation": error}
            self._state = {name: value.clone() for name, value in self.field.state_dict().items()}
        return better

    @property
    def taper(self) -> float:
        return self.best["taper"]

    @property
    def memory(self) -> float:
        return self.best["memory"]

    @property
    def drift(self) -> tuple[float, float]:
        return self.best["drift_rows"], self.best["drift_columns"]

    def restore(self) -> None:
        self.field.load_state_dict(self._state)


def learn_covariance(field: LearntField, lesson: Lesson, chain: Chain, settings: GaussianSettings) -> dict[str, float]:
    """Fits the field to a record; returns what was chosen on held-out cells."""
    crops, generator, nugget = lesson.crops, lesson.generator, settings.start_nugget
    found, search = separations(crops, field.torus, generator), CovarianceSearch(field, lesson, chain)
    for taper in settings.tapers:
        search.attempt(found.covariance, taper, (0.0, 0.0), nugget)
    for memory in (field.shape[1] / part for part in settings.memory_parts if field.shape[1] > part):
        if lesson.stages.late():
            break
        search.attempt(found.covariance, search.taper, (0.0, 0.0), nugget, memory, settings.least_memory_gain)
    count, idle = max(2, settings.completed_cells // crops.cells), 0
    large = crops.cells > chain.settings.judged_cells
    search.restore()
    for turn in range(settings.rounds // 2 if large else settings.rounds):
        if lesson.stages.late():
            break
        before = search.best["validation"]
        covariance, nugget = complete_crops(field, crops, crops.some(count, generator), generator)
        drift, moved = drift_of(covariance), False
        if turn == 0 and max(map(abs, drift)) > settings.least_drift:
            moved = search.attempt(covariance, search.taper, drift, nugget, search.memory, sure=False)
        # A narrower taper is the simpler choice. The next round of the same one need not prove itself, and it is gone
        # on from there even if the held-out cells do not show its gain.
        narrow = search.taper
        if not moved:
            search.attempt(covariance, narrow, search.drift, nugget, search.memory, sure=False)
        step = {name: value.clone() for name, value in field.state_dict().items()}
        for taper in sorted({2 * narrow, math.inf}):
            search.attempt(covariance, taper, search.drift, nugget, search.memory)
        if search.taper > narrow:
            search.restore()
        else:
            field.load_state_dict(step)
        idle = idle + 1 if search.best["validation"] > (1 - settings.least_gain) * before else 0
        if idle == settings.patience:
            break
    search.restore()
    places = crops.some(count, generator)
    factor = field.factor.clone()
    for _ in range(settings.pattern_rounds if len(places) >= settings.least_pattern_crops else 0):
        if lesson.stages.late():
            break
        patterns, share = patterns_of(field, crops, places, generator, settings)
        if not search.judge(math.sqrt(max(0.0, 1 - share)) * factor, patterns, search.best):
            break
    search.restore()
    return {key: value for key, value in search.best.items() if math.isfinite(value)}
