"""Stages of a run: what is being done, how far it is, and by when it has to end.

Whoever does the work calls `Stages.begin` and `Stages.advance`; whoever shows it passes a function that takes a
`Progress`. A run with a time limit gives each stage a share of it, and work in rounds ends as soon as
`Stages.late` is true.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

__all__ = ["Progress", "Report", "Stages"]


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes
    ----------
    stage
        what is being done.
    done, total
        parts of the stage; ``total`` is 0 where their number is not known.
    detail
        more about the last part, such as errors.
    seconds
        since the run began.
    seconds_left
        until the end of the run, as far as this stage can tell; NaN if it cannot.
    notes
        lines to be printed once.
    """

    stage: str
    done: int = 0
    total: int = 0
    detail: str = ""
    seconds: float = 0.0
    seconds_left: float = math.nan
    notes: tuple[str, ...] = ()


Report = Callable[[Progress], None]


@dataclass
class Stages:
    """Keeps the time of a run and reports where it is.

    Attributes
    ----------
    report
        is called at the beginning of each stage and after each of its parts; None reports to nobody.
    limit
        seconds that the whole run may take; infinity without a limit.
    agreed
        what one process measures → what all processes of a run go by, because they must decide alike.
    """

    report: Report | None = None
    limit: float = math.inf
    agreed: Callable[[float], float] = lambda seconds: seconds
    clock: Callable[[], float] = time.monotonic
    current: Progress = field(default_factory=lambda: Progress(""))

    def __post_init__(self) -> None:
        self._begun = self._entered = self._last = self.clock()
        self._end, self._longest = math.inf, 0.0

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self.clock() - self._begun

    @property
    def limited(self) -> bool:
        return math.isfinite(self.limit)

    @property
    def left(self) -> float:
        """Seconds until the limit, the same for all processes."""
        return self.limit - self.agreed(self.seconds) if self.limited else math.inf

    def begin(self, stage: str, total: int = 0, share: float = 1.0) -> None:
        """Enters a stage, which should end when ``share`` of the limit is used."""
        self._entered = self._last = self.clock()
        self._end, self._longest = share * self.limit, 0.0
        self._tell(Progress(stage, 0, total, seconds=self.seconds))

    def advance(self, detail: str = "", done: int | None = None, seconds_left: float | None = None) -> None:
        """One more part of the stage is done, or ``done`` in all; the time left follows from the pace so far."""
        now = self.clock()
        self._longest, self._last = max(self._longest, now - self._last), now
        total, done = self.current.total, self.current.done + 1 if done is None else done
        if seconds_left is None:
            seconds_left = (now - self._entered) * (total - done) / done if total and done else math.nan
        self._tell(Progress(self.current.stage, done, total, detail, self.seconds, seconds_left))

    def counter(self, stage: str) -> Callable[[int, int], None]:
        """Enters a stage whose parts are counted by whoever does the work: a function of (done, total)."""
        self.begin(stage)

        def count(done: int, total: int) -> None:
            self.current = replace(self.current, total=total)
            self.advance(done=done)

        return count

    def note(self, *lines: str) -> None:
        """Lines to be printed once."""
        if self.report is not None:
            self.report(Progress(self.current.stage, notes=lines, seconds=self.seconds))

    def late(self) -> bool:
        """Whether one more part of the stage, as long as the longest so far, would not end in time."""
        return self.limited and self.agreed(self.seconds + self._longest) > self._end

    def _tell(self, progress: Progress) -> None:
        self.current = progress
        if self.report is not None:
            self.report(progress)
