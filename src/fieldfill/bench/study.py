"""A study: one question, answered by measurements that are kept as rows beside those of the benchmark.

A script in ``benchmarks/`` lists its measurements and calls `Study.run`, which makes those that are missing and writes
each row as it is finished.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fieldfill.bench import rows
from fieldfill.bench.cases import Unavailable
from fieldfill.bench.measuring import clocked, provenance
from fieldfill.errors import InputError

__all__ = ["Measurement", "Study", "options_of"]


@dataclass(frozen=True)
class Measurement:
    """One row to be made.

    Attributes
    ----------
    measure
        seed → columns of the row, ``metrics`` among them.
    """

    case: str
    method: str
    measure: Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """Measurements under one name.

    Attributes
    ----------
    apart
        Whether each measurement has a process of its own, so that its peak of memory is its own; ``measure`` must be a
        function of a module, or a partial of one.
    scale
        The size of everything, see `fieldfill.bench.cases.SCALES`; a folder of rows has one.
    """

    name: str
    measurements: Sequence[Measurement]
    apart: bool = False
    scale: str = "cpu"

    def run(self, options: argparse.Namespace) -> list[rows.Row]:
        """The rows of the chosen cases and methods; those that are there are not measured again."""
        rows.check_scale(options.results, self.scale)
        torch.set_num_threads(options.threads)
        return [self._row(chosen, options) for chosen in self._chosen(options.cases, options.methods)]

    def _chosen(self, cases: Sequence[str], methods: Sequence[str]) -> list[Measurement]:
        chosen = [one for one in self.measurements if one.case in (cases or [one.case])]
        chosen = [one for one in chosen if one.method in (methods or [one.method])]
        if not chosen:
            known = ", ".join(sorted({f"{one.case} {one.method}" for one in self.measurements}))
            raise InputError(f"the study '{self.name}' has no such case and method; choose among {known}")
        return chosen

    def _row(self, chosen: Measurement, options: argparse.Namespace) -> rows.Row:
        row = rows.find(options.results, self.name, chosen.case, chosen.method, options.seed)
        if row is not None and rows.is_measured(row):
            return row
        row = {
            "bench": self.name,
            "case": chosen.case,
            "method": chosen.method,
            "scale": self.scale,
            "seed": options.seed,
            "status": rows.MEASURED,
            **provenance(options.threads),
        }
        try:
            row |= self._measured(chosen, options)
        except Unavailable as error:
            row = rows.unavailable(row, str(error))
        rows.write(options.results, row)
        outcome = f"{row['seconds']:.0f} s" if rows.is_measured(row) else row["reason"]
        print(f"{self.name}: {chosen.case}, {chosen.method}: {outcome}", flush=True)
        return rows.arranged(row)

    def _measured(self, chosen: Measurement, options: argparse.Namespace) -> dict[str, Any]:
        if not self.apart:
            return _clocked(chosen.measure, options.seed, options.threads)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_clocked, chosen.measure, options.seed, options.threads).result()


def _clocked(measure: Callable[[int], dict[str, Any]], seed: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    with clocked() as clock:
        found = measure(seed)
    return {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "peak_mb": clock.peak_mb, **found}


def options_of(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """The command line that all studies share; ``doc`` describes the study."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=(), help="only these; all by default")
    parser.add_argument("--methods", nargs="*", default=(), help="only these; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="folder of the rows")
    parser.set_defaults(**defaults)
    return parser
