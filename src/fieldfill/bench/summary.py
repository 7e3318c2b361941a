"""Measured rows, averaged over seeds and looked up by bench, case and method."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fieldfill.bench import published
from fieldfill.bench.benches import BENCHES
from fieldfill.bench.cases import SCALES
from fieldfill.bench.methods import CLASSICAL
from fieldfill.bench.rows import Row, is_measured

__all__ = ["AS_PRINTED", "COLUMNS", "COVERAGE", "CRPS", "ERROR", "SeedMean", "Summary"]

# Benches in which every method fills every case.
COLUMNS = ("main", "block", "pixel", "optimum")
ERROR = "share_of_variance"
# The quantity that the paper prints in a column.
AS_PRINTED = "as_printed"
# Mean over variables.
COVERAGE = "coverage90"
# Mean over variables, each over the standard deviation of the truth.
CRPS = "crps"


@dataclass(frozen=True)
class SeedMean:
    """Mean and standard deviation over seeds; None with one seed."""

    value: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: list[float]) -> "SeedMean":
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), spread, len(values))

    def __str__(self) -> str:
        spec = ".1e" if 0 < abs(self.value) < 0.001 else ".4f" if abs(self.value) < 10 else ".2f"
        spread = "" if self.spread is None else f" ± {self.spread:{spec}}"
        return f"{self.value:{spec}}{spread}"


class Summary:
    """Measured rows, looked up by bench, case and method. The error is the share of the variance.

    Seeds differ in their gaps, so a column has only the seeds that all of its methods have; `further` are the rows of
    other seeds.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        measured = [row for row in rows if row["bench"] in BENCHES and is_measured(row)]
        shared = _shared_seeds(measured)
        self.rows = [row for row in measured if row["seed"] in shared[row["bench"], row["case"]]]
        self.further = [row for row in measured if row["seed"] not in shared[row["bench"], row["case"]]]
        self._found: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            self._found[row["bench"], row["case"], row["method"]].append(row)

    def cases(self, *benches: str) -> list[str]:
        """The measured cases of some benches, in the order of their jobs."""
        return [case for bench in benches for case in self._in_order(bench, "case")]

    def methods(self, bench: str) -> list[str]:
        """The measured methods of a bench, in the order of its jobs."""
        return self._in_order(bench, "method")

    def _in_order(self, bench: str, key: str) -> list[str]:
        own = [row for row in self.rows if row["bench"] == bench]
        if not own:
            return []
        jobs = BENCHES[bench].jobs(SCALES[own[0]["scale"]])
        there = {row[key] for row in own}
        return [name for name in dict.fromkeys(getattr(job, key) for job in jobs) if name in there]

    def mean(self, bench: str, case: str, method: str, key: str = ERROR) -> SeedMean | None:
        """Mean over seeds of a metric, or of a number of the row itself such as ``fill_seconds``."""
        found = self._found.get((bench, case, method), [])
        values = [
            published.as_printed(case, row["metrics"]) if key == AS_PRINTED else _number(row, key) for row in found
        ]
        numbers = [value for value in values if value is not None]
        return SeedMean.of(numbers) if numbers else None

    def error(self, bench: str, case: str, method: str, key: str = ERROR) -> float | None:
        found = self.mean(bench, case, method, key)
        return None if found is None else found.value

    def errors(self, bench: str, case: str, methods: Iterable[str], key: str = ERROR) -> dict[str, float]:
        """Errors, or another metric, of those methods that were measured."""
        found = {method: self.error(bench, case, method, key) for method in methods}
        return {method: value for method, value in found.items() if value is not None}

    def ratio(
        self, bench: str, case: str, method: str, among: Iterable[str] = CLASSICAL, key: str = ERROR
    ) -> float | None:
        """Error over the least error among some methods, by default the classical ones."""
        error = self.error(bench, case, method, key)
        best = min(self.errors(bench, case, among, key).values(), default=None)
        return None if error is None or not best else error / best

    def paper_ratio(self, bench: str, case: str, method: str) -> float | None:
        """What the paper prints for a row over its best classical row."""
        values = [row["paper"]["value"] for row in self._found.get((bench, case, method), [])]
        best = published.best_classical(case)
        return None if best is None or not values or values[0] is None else values[0] / best


def _number(row: Row, key: str) -> float | None:
    if key not in (COVERAGE, CRPS):
        return row["metrics"].get(key, row.get(key))
    entries = row["metrics"].get("variables", {}).values()
    if not entries or any(entry[COVERAGE] is None for entry in entries):  # no spread is stated
        return None
    return statistics.fmean(
        entry[key] if key == COVERAGE else entry[key] / entry["variance_missing"] ** 0.5 for entry in entries
    )


def _shared_seeds(rows: list[Row]) -> dict[tuple[str, str], set[int]]:
    """The seeds that all methods of a bench and case have; the lowest one if they have none in common."""
    seeds: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        seeds[row["bench"], row["case"]][row["method"]].add(row["seed"])
    return {
        column: set.intersection(*methods.values()) or {min(set.union(*methods.values()))}
        for column, methods in seeds.items()
    }
