r"""The covariance of a gappy record, estimated from the gaps and all.

*Start.* Mean products of pairs of observed values (`fieldfill.separations`). They know the large scales, but their
noise is the same at all wavenumbers and drowns the small ones.

*Expectation–maximisation.* With the covariance at hand, every window is completed by a draw from its posterior. The
covariance of the complete windows is the next estimate; the mean square of what is left at the observed cells is the
next nugget. Here the noise of an estimate is a share of the power at each wavenumber. On a grid that is not periodic
the windows are completed on the whole torus of the skip.

*Taper and memory.* Both are damped with the distance of a separation from the drift v τ, so that patterns that move
keep their correlation along their way, and with the lag τ. Waves whose frequencies differ from sample to sample need
the latter: the lines in the spectrum of a few samples are not those of the next.

*Patterns.* What is not stationary: the principal components of complete windows, each with the variance that exceeds
what the stationary part gives it. They take their share of the variance from the stationary part.

Drift or none, taper, memory, nugget, patterns or none are those with the smallest error on held-out cells.

*Moving windows.* One drift for the whole record is not enough where every window has its own. If the values of some
windows show one clearly (`fieldfill.nn.drift`), a second law is learnt from these windows, each moved back by its own
drift. It starts with the covariance that the common law has at one time, times exp(-τ / memory), and goes on with
expectation–maximisation. It is kept if it lowers the held-out error. So is a third law, for windows that obey linear
equations of their own (`fieldfill.dynamics`).

*Effort.* Large grids of smooth fields, seen almost without noise, need more steps of conjugate gradients than others.
The steps of a fill are doubled as long as held-out cells show it.
"""

import math

import torch
from torch import Generator, Tensor

from fieldfill.dynamics import learn_dynamics
from fieldfill.nn.gaussian import GaussianSkip
from fieldfill.separations import Separations, drift_of, factorise, lagged, separations, tapered
from fieldfill.windows import Windows

__all__ = ["Separations", "drift_of", "factorise", "held_out_error", "learn_covariance", "separations", "tapered"]

TAPERS = (9.0, 5.0, 20.0)
START_NUGGET = 0.01
ROUNDS = 8  # of expectation–maximisation at most
LEAST_GAIN, PATIENCE = 0.003, 2  # of the held-out error, and rounds in a row without it that are the last
LEAST_DRIFT = 0.05  # cells per frame
PATTERN_ROUNDS = 4  # in which patterns grow, as long as they pay
MAX_PATTERNS = 16
LEAST_WINDOWS = 32  # fewer do not tell a pattern from chance
WORTH = 0.02  # of the strongest component: a weaker excess is left to the stationary part
MAX_COMPLETED = 2**20  # cells of the windows completed in a round
MAX_VALIDATED = 2**18  # cells of the windows an error is measured on, unless these are fewer than
LEAST_VALIDATED = 3
SHORTER = (3.0, 6.0)  # parts of a window that are tried as memory
LEAST_FORGOTTEN = 0.05  # lower error for which a law may forget: it stays so, and the rounds would learn what lasts
# For moving windows twice as many: what moves unchanged shows each wave but once in a window.
TWICE = 2
MAX_SEARCHED = 64  # windows whose drift is looked at
LEAST_CLEAR = 0.1  # of them, without which there is no law for moving windows
HOPELESS = 1.2  # times the error of the common law: no further round
JUDGED_WINDOWS = 12  # by which a law for windows with equations of their own is judged
LEAST_BETTER = 0.02  # lower held-out error, for which a second law is worth having
MEMORIES = (4.0, 1.0, 0.25)  # in windows
MOVING_ROUNDS = 4
LEAST_NUGGET = 0.003  # of moving windows: with less the equations take many more steps and the answer is the same
EFFORTS = (2.0, 4.0, 8.0)  # times the steps of a fill
WORTHWHILE = 0.01  # lower held-out error, for which steps are doubled
BATCH_CELLS = 2**17  # cells of the windows that are solved for together


def complete_windows(
    skip: GaussianSkip,
    windows: Windows,
    places: list[tuple[int, int]],
    generator: Generator,
    drifts: Tensor | None = None,
) -> tuple[Tensor, float]:
    """Covariance (C, C, T, rows, columns) of windows completed by posterior draws, and the nugget.

    With ``drifts`` (N, 2) it is that of the windows moved back.
    """
    variables, frames, rows, columns = skip.shape
    sums, squares, cells = torch.zeros(()), 0.0, 0
    batch = max(1, BATCH_CELLS // math.prod(skip.shape))
    for first in range(0, len(places), batch):
        x, observed = windows.training(places[first : first + batch])
        drift = None if drifts is None else drifts[first : first + batch]
        field, _ = skip.complete(x, observed, generator, drift)
        left = (field[..., :rows, :columns].view_as(x) - x)[observed]
        squares, cells = squares + left.square().sum().item(), cells + left.numel()
        spectrum = torch.fft.rfft2(field) if drift is None else skip.at_rest(field, drift)
        sums = sums + lagged(spectrum.unflatten(1, (variables, frames)), frames)
    pairs = len(places) * math.prod(skip.torus) * torch.arange(frames, 0, -1.0)[:, None, None]
    return torch.fft.irfft2(sums, s=skip.torus) / pairs, squares / max(1, cells)


def patterns_of(
    skip: GaussianSkip, windows: Windows, places: list[tuple[int, int]], generator: Generator
) -> tuple[Tensor, float]:
    """Patterns (N, C, T, H, W) that the stationary part does not explain, and their share of the variance."""
    batch = max(1, BATCH_CELLS // math.prod(skip.shape))
    drawn = [
        skip.complete_grid(*windows.training(places[i : i + batch]), generator) for i in range(0, len(places), batch)
    ]
    x = torch.cat(drawn).flatten(1)
    _, singular, vectors = torch.linalg.svd(x, full_matrices=False)
    vectors, total = vectors[:MAX_PATTERNS], singular.square().sum() / len(x)
    power = singular[:MAX_PATTERNS].square() / len(x)
    known = (vectors @ skip.patterns.flatten(1).T).square().sum(1)
    stationary = (vectors * skip.covary(vectors.view(-1, *skip.shape)).flatten(1)).sum(1) - known
    excess = power - stationary
    kept = excess > WORTH * power[0]
    patterns = (vectors[kept] * excess[kept].sqrt()[:, None]).view(-1, *skip.shape)
    return patterns, float(excess[kept].sum() / total.clamp(min=1e-12))


def _clear_windows(skip: GaussianSkip, windows: Windows, generator: Generator) -> tuple[list[tuple[int, int]], Tensor]:
    """Some windows that show a clear drift, and these drifts (N, 2); none if they are few."""
    places = _some(windows.places, MAX_SEARCHED, generator)
    batch = max(1, BATCH_CELLS // math.prod(skip.shape))
    parts = [skip.drifts(*windows.training(places[i : i + batch])) for i in range(0, len(places), batch)]
    drifts, clear = (torch.cat(part) for part in zip(*parts))
    if clear.float().mean() < LEAST_CLEAR:
        return [], drifts[:0]
    most = max(2, TWICE * MAX_COMPLETED // math.prod(skip.shape))
    kept = clear.nonzero()[:most, 0]
    return [places[i] for i in kept.tolist()], drifts[kept]


def _fading(skip: GaussianSkip, memory: float) -> Tensor:
    """The covariance (C, C, T, rows, columns) of a field that a skip describes at one time and that fades with time."""
    spectrum = _at_once(skip).permute(2, 1, 0).unflatten(2, (skip.torus[0], -1))
    at_once = torch.fft.irfft2(spectrum, s=skip.torus)
    return at_once[:, :, None] * torch.exp(-torch.arange(float(skip.shape[1])) / memory)[:, None, None]


def _at_once(skip: GaussianSkip) -> Tensor:
    """The covariance of one time, (K, C, C), mean over the frames."""
    factor = torch.view_as_complex(skip.factor).unflatten(1, skip.shape[:2])
    return torch.einsum("kafr,kbfr->kab", factor, factor.conj()) / skip.shape[1]


class _Search:
    """Tries covariances of a law on the held-out cells of the skip it belongs to, and remembers the best."""

    def __init__(self, skip: GaussianSkip, windows: Windows, law: GaussianSkip, validated: int) -> None:
        self.skip, self.windows, self.law, self.validated = skip, windows, law, validated
        self.best: dict[str, float] = {"validation": math.inf}
        self._state: dict[str, Tensor] = {}

    def attempt(
        self,
        covariance: Tensor,
        taper: float,
        drift: tuple[float, float],
        nugget: float,
        memory: float = math.inf,
        least: float = 0.0,
    ) -> None:
        """A stationary covariance, which has to gain at least a share ``least`` of the error."""
        settings = {"taper": taper, "memory": memory, "nugget": nugget}
        settings |= {"drift_rows": drift[0], "drift_columns": drift[1]}
        self.judge(factorise(tapered(covariance, taper, drift, memory), self.law), None, settings, least)

    def judge(self, factor: Tensor, patterns: Tensor | None, settings: dict[str, float], least: float = 0.0) -> bool:
        """Whether this is the best so far."""
        self.law.set_covariance(factor, patterns)
        self.law.nugget.fill_(settings["nugget"])
        error = held_out_error(self.skip, self.windows, self.validated)
        better = error < (1 - least) * self.best["validation"] or not self._state
        if better:
            self.best = {**settings, "patterns": len(self.law.patterns), "validation": error}
            self._state = {name: value.clone() for name, value in self.law.state_dict().items()}
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
        self.law.load_state_dict(self._state)


def learn_covariance(
    skip: GaussianSkip, windows: Windows, generator: Generator, moving: bool = True
) -> dict[str, float]:
    """Fits the skip to the record: covariance from the visible cells, drift, taper and nugget by the held-out ones.

    With ``moving``, windows with a clear drift of their own get a second law if that pays.
    """
    skip.eval()
    skip.moving = skip.dynamics = None
    best = _learn_common(skip, windows, generator)
    if moving and skip.shape[1] > 2:
        best |= _learn_moving(skip, windows, generator)
        places, validated = _some(windows.places, MAX_SEARCHED, generator), JUDGED_WINDOWS * math.prod(skip.shape)
        best |= learn_dynamics(
            skip, windows, places, generator, _at_once(skip), lambda: held_out_error(skip, windows, validated)
        )
    best["effort"] = _choose_effort(skip, windows)
    return {key: value for key, value in best.items() if math.isfinite(value)}


def _choose_effort(skip: GaussianSkip, windows: Windows) -> float:
    """Gives the laws of a skip as many steps as pay on held-out cells."""
    laws = [skip] if skip.moving is None else [skip, skip.moving]

    def error(effort: float) -> float:
        for law in laws:
            law.effort.fill_(effort)
        return held_out_error(skip, windows)

    chosen, least = 1.0, error(1.0)
    for effort in EFFORTS:
        found = error(effort)
        if found > (1 - WORTHWHILE) * least:
            break
        chosen, least = effort, found
    for law in laws:
        law.effort.fill_(chosen)
    return chosen


def _learn_moving(skip: GaussianSkip, windows: Windows, generator: Generator) -> dict[str, float]:
    """Gives the skip a law for moving windows if that lowers the held-out error, and says what was found."""
    places, drifts = _clear_windows(skip, windows, generator)
    if not places:
        return {"moving": 0.0}
    validated = TWICE * MAX_VALIDATED
    common = held_out_error(skip, windows, validated)
    law = skip.add_moving()
    search = _Search(skip, windows, law, validated)
    nugget = max(LEAST_NUGGET, skip.nugget.item())
    for memory in MEMORIES:
        search.attempt(_fading(skip, memory * skip.shape[1]), math.inf, (0.0, 0.0), nugget)
    for turn in range(MOVING_ROUNDS):
        search.restore()
        before = search.best["validation"]
        covariance, nugget = complete_windows(law, windows, places, generator, drifts)
        for taper in (math.inf, TAPERS[0]) if turn == 0 else (search.taper,):
            search.attempt(covariance, taper, (0.0, 0.0), max(LEAST_NUGGET, nugget))
        if search.best["validation"] > min((1 - LEAST_GAIN) * before, HOPELESS * common):
            break
    search.restore()
    if search.best["validation"] > (1 - LEAST_BETTER) * common:
        skip.moving = None
        return {"moving": 0.0}
    found = {f"moving_{name}": search.best[name] for name in ("taper", "nugget")}
    found |= {"moving_speed": drifts.norm(dim=1).median().item(), "common_validation": common}
    return {"moving": 1.0, **found, "validation": search.best["validation"]}


def _learn_common(skip: GaussianSkip, windows: Windows, generator: Generator) -> dict[str, float]:
    """The law of all windows: the best settings."""
    found, search = separations(windows, skip.torus, generator), _Search(skip, windows, skip, MAX_VALIDATED)
    for taper in TAPERS:
        search.attempt(found.covariance, taper, (0.0, 0.0), START_NUGGET)
    for memory in (skip.shape[1] / part for part in SHORTER if skip.shape[1] > part):
        search.attempt(found.covariance, search.taper, (0.0, 0.0), START_NUGGET, memory, LEAST_FORGOTTEN)
    count, idle = max(2, MAX_COMPLETED // math.prod(skip.shape)), 0
    for turn in range(ROUNDS if math.prod(skip.shape) <= MAX_VALIDATED else ROUNDS // 2):
        search.restore()
        before = search.best["validation"]
        covariance, nugget = complete_windows(skip, windows, _some(windows.places, count, generator), generator)
        drift = drift_of(covariance)
        if turn == 0 and max(map(abs, drift)) > LEAST_DRIFT:
            search.attempt(covariance, search.taper, drift, nugget, search.memory)
        for taper in sorted({search.taper, 2 * search.taper, math.inf}):
            search.attempt(covariance, taper, search.drift, nugget, search.memory)
        idle = idle + 1 if search.best["validation"] > (1 - LEAST_GAIN) * before else 0
        if idle == PATIENCE:
            break
    search.restore()
    places = _some(windows.places, count, generator)
    factor = skip.factor.clone()
    for _ in range(PATTERN_ROUNDS if len(places) >= LEAST_WINDOWS else 0):
        patterns, share = patterns_of(skip, windows, places, generator)
        if not search.judge(math.sqrt(max(0.0, 1 - share)) * factor, patterns, search.best):
            break
    search.restore()
    return search.best


def _some(places: list[tuple[int, int]], count: int, generator: Generator) -> list[tuple[int, int]]:
    """At most ``count`` of the places of windows, at random."""
    return [places[i] for i in torch.randperm(len(places), generator=generator)[:count].tolist()]


def held_out_error(skip: GaussianSkip, windows: Windows, validated: int = MAX_VALIDATED) -> float:
    """Mean squared error of the skip alone on the held-out cells of some windows, ``validated`` cells together."""
    total, cells = 0.0, 0
    each = math.prod(skip.shape)
    places = windows.held.places[: max(LEAST_VALIDATED, validated // each)]
    batch = max(1, BATCH_CELLS // each)
    for first in range(0, len(places), batch):
        x, context, held = windows.held_out(places[first : first + batch])
        total += (skip.posterior_mean(x, context, torch.zeros(())) - x)[held].square().sum().item()
        cells += int(held.sum())
    return total / max(1, cells)
