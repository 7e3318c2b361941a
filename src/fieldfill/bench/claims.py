"""Statements of the paper, and ours, checked against the rows: holds, does not hold, or not measured.

Errors are those on missing cells as a share of the variance. A statement about columns holds if it holds in all (or in
the stated share) of the columns that were measured; the numbers are given in any case.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fieldfill.bench import published
from fieldfill.bench.benches import LIGHT
from fieldfill.bench.measuring import RIM
from fieldfill.bench.methods import CLASSICAL, LEARNT, METHODS
from fieldfill.bench.result_tables import WITH_CLASSICAL, growth
from fieldfill.bench.summary import AS_PRINTED, COLUMNS, COVERAGE, CRPS, ERROR, Summary

__all__ = ["CLAIMS", "REFERENCES", "Finding", "Statement", "check_claims", "ratio_table"]

# Verdicts.
HOLDS = "holds"
FAILS = "does not hold"
UNKNOWN = "not measured"
# Methods of the paper's tables that its own is compared with.
MATCHED = ("temporal", "telea", "navier_stokes", "missdiff", "ambientdiff", "paper_wrong_partition")
# Methods that fieldfill is compared with in every column, and in which quantity. The paper has three classical ones.
REFERENCES = {
    "classical": (CLASSICAL, ERROR),
    "published_classical": (published.CLASSICAL, ERROR),
    "missdiff": (("missdiff",), ERROR),
    "printed_classical": (published.CLASSICAL, AS_PRINTED),
    "printed_missdiff": (("missdiff",), AS_PRINTED),
}


# Column, whether the statement holds there, the numbers.
Comparison = tuple[str, bool, str]


@dataclass(frozen=True)
class Finding:
    """The verdict on a statement and the comparisons it rests on."""

    verdict: str
    comparisons: tuple[Comparison, ...] = ()

    @property
    def count(self) -> str:
        """In how many columns it holds."""
        return f"{sum(holds for _, holds, _ in self.comparisons)} of {len(self.comparisons)}"

    @property
    def detail(self) -> str:
        """The count and the numbers of every column."""
        if not self.comparisons:
            return ""
        entries = (f"{column}: {text}{'' if holds else ' ✗'}" for column, holds, text in self.comparisons)
        return f"{self.count}. {'; '.join(entries)}"


@dataclass(frozen=True)
class Statement:
    """A statement, who makes it and how it is checked."""

    source: str
    text: str
    check: Callable[[Summary], Finding]


def _over(comparisons: Iterable[Comparison], share: float = 1.0) -> Finding:
    """Whether a statement holds in at least ``share`` of the columns."""
    found = tuple(comparisons)
    if not found:
        return Finding(UNKNOWN)
    good = sum(holds for _, holds, _ in found)
    return Finding(HOLDS if good >= share * len(found) - 1e-9 else FAILS, found)


def _columns(found: Summary, benches: Iterable[str] = COLUMNS) -> list[tuple[str, str]]:
    return [(bench, case) for bench in benches for case in found.cases(bench)]


def _against(
    found: Summary,
    columns: Iterable[tuple[str, str]],
    ours: str,
    others: Iterable[str],
    slack: float = 1.0,
    key: str = ERROR,
) -> list[Comparison]:
    """Whether ``ours`` is no worse than the best of the others (times slack) in each column."""
    out = []
    for bench, case in columns:
        error = found.error(bench, case, ours, key)
        rest = found.errors(bench, case, (name for name in others if name != ours), key)
        if error is not None and rest:
            best = min(rest, key=lambda name: rest[name])
            out.append((case, error <= slack * rest[best], f"{error:.4g} against {rest[best]:.4g} ({best})"))
    return out


def _worse(found: Summary, columns: Iterable[tuple[str, str]], worse: str, better: str) -> list[Comparison]:
    out = []
    for bench, case in columns:
        w, b = found.error(bench, case, worse), found.error(bench, case, better)
        if w is not None and b is not None:
            out.append((case, w > b, f"{w:.4f} against {b:.4f}"))
    return out


def _paper_best(found: Summary) -> Finding:
    return _over(_against(found, _columns(found, ("main", "block", "pixel")), "paper", MATCHED))


def _wrong_partition(found: Summary) -> Finding:
    """For whole blocks, and more than a rim inside, because the wrong partition learns to interpolate the rim."""
    out = []
    for case, holds, text in _worse(found, _columns(found, ("block",)), "paper_wrong_partition", "paper"):
        wrong, right = (found.mean("block", case, name, "mse_inside") for name in ("paper_wrong_partition", "paper"))
        if wrong is not None and right is not None:
            text += f", {wrong.value / right.value:.3f} × more than {RIM:g} cells inside"
        out.append((case, holds, text))
    return _over(out)


def _empty_blocks(share: float) -> Callable[[Summary], Finding]:
    """Measured inside the rim of a block, because any convolution interpolates the rim a little from outside."""

    def check(found: Summary) -> Finding:
        columns = [column for column in _columns(found, ("block",)) if column[1].startswith("navier-stokes")]
        out = []
        for bench, case in columns:
            blank, mean = (found.mean(bench, case, name, "mse_inside") for name in ("missdiff", "climatology"))
            whole = found.ratio(bench, case, "missdiff", ("climatology",))
            if blank is not None and mean is not None:
                inside = blank.value / mean.value
                numbers = f"{inside:.3f} × climatology more than {RIM:g} cells inside, {whole:.3f} × in the whole block"
                out.append((case, inside >= share, numbers))
        return _over(out)

    return check


def _ratios(found: Summary) -> Finding:
    out = []
    for case in found.cases("ratios"):
        inner = found.errors("ratios", case, ("ratio-50-50", "ratio-70-70", "ratio-90-90"))
        whole = found.error("ratios", case, "ratio-100-100")
        if inner and whole is not None:
            text = ", ".join(f"{name.split('-')[1]} % {value:.4f}" for name, value in inner.items())
            out.append((case, max(inner.values()) < whole, f"{text}, 100 % {whole:.4f}"))
    return _over(out)


def inverse_law(counts: list[int], errors: list[float]) -> tuple[float, float, float]:
    """a, b of error = a + b / K by least squares, and the share of the variation it explains."""
    design = np.stack([np.ones(len(counts)), 1 / np.array(counts, float)], axis=1)
    values = np.array(errors)
    (a, b), *_ = np.linalg.lstsq(design, values, rcond=None)
    left = ((values - design @ (a, b)) ** 2).sum()
    total = ((values - values.mean()) ** 2).sum()
    return float(a), float(b), float(1 - left / total) if total > 0 else 0.0


def _ensemble(found: Summary) -> Finding:
    out = []
    for case in found.cases("ensemble"):
        errors = found.errors("ensemble", case, found.methods("ensemble"))
        counts = sorted((int(name.removeprefix("paper-K")), value) for name, value in errors.items())
        if len(counts) > 2:
            a, b, explained = inverse_law([k for k, _ in counts], [value for _, value in counts])
            text = f"{a:.4f} + {b:.4f} / K explains {explained:.1%}"
            out.append((case, b > 0 and explained > 0.9, text))
    return _over(out)


def _context(method: str) -> Callable[[Summary], Finding]:
    return lambda found: _over(
        _worse(found, _columns(found, ("context",)), f"{method}-M", f"{method}-contexts"),
    )


def _density(factor: float) -> Callable[[Summary], Finding]:
    def check(found: Summary) -> Finding:
        out = []
        for case in found.cases("density"):
            for method in found.methods("density"):
                share = method.removeprefix("paper-on")
                matched = found.error("density", f"{case.rstrip('0123456789')}{share}", method)
                error = found.error("density", case, method)
                if error is not None and matched is not None and not case.endswith(share):
                    text = f"{error:.4f}, {error / matched:.2f} × matched"
                    out.append((f"{case} on {share} %", error <= factor * matched, text))
        return _over(out)

    return check


def _backbone(factor: float) -> Callable[[Summary], Finding]:
    def check(found: Summary) -> Finding:
        out = []
        for case in found.cases("backbone"):
            unet, fno = found.error("backbone", case, "paper"), found.error("backbone", case, "paper-fno")
            if unet is not None and fno is not None:
                alike = max(unet, fno) <= factor * min(unet, fno)
                out.append((case, alike, f"U-Net {unet:.4f}, FNO {fno:.4f}"))
        return _over(out)

    return check


def _ours_best(benches: Iterable[str], share: float, key: str = ERROR) -> Callable[[Summary], Finding]:
    others = [name for name in METHODS if name != "optimum"]
    return lambda found: _over(_against(found, _columns(found, benches), "fieldfill", others, key=key), share)


def _coverage(nominal: float, tolerance: float) -> Callable[[Summary], Finding]:
    def check(found: Summary) -> Finding:
        shares = {
            case: found.error(bench, case, "fieldfill", COVERAGE) for bench, case in _columns(found, WITH_CLASSICAL)
        }
        return _over(
            (
                (case, abs(share - nominal) <= tolerance, f"{share:.1%}")
                for case, share in shares.items()
                if share is not None
            ),
            share=0.8,
        )

    return check


def _one_pace(factor: float) -> Callable[[Summary], Finding]:
    """Minutes are worth more on a faster machine, which shows in the steps of networks of one shape."""

    def check(found: Summary) -> Finding:
        rivals = [name for name in LEARNT if name != "fieldfill"]
        out = []
        for bench, case in _columns(found):
            steps = found.errors(bench, case, rivals, "train_steps")
            if len(steps) > 1:
                least, most = (choose(steps, key=lambda name: steps[name]) for choose in (min, max))
                text = f"{steps[least]:.0f} ({least}) to {steps[most]:.0f} ({most})"
                out.append((case, steps[most] <= factor * steps[least], text))
        return _over(out)

    return check


def _never_behind(found: Summary) -> Finding:
    out = []
    for bench, case in _columns(found):
        ours, theirs = found.mean(bench, case, "fieldfill"), found.mean(bench, case, "paper")
        if ours is not None and theirs is not None:
            text = f"{ours} against {theirs}"
            out.append((case, ours.value <= theirs.value + (theirs.spread or 0.0), text))
    return _over(out)


def _no_larger(reference: str) -> Callable[[Summary], Finding]:
    """fieldfill's ratio to a reference against the same ratio of the paper's own method."""

    def check(found: Summary) -> Finding:
        rows = [entry for entry in ratio_table(found) if entry[reference] is not None]
        return _over(
            (
                (
                    str(entry["case"]),
                    entry[reference] <= entry[f"paper_{reference}"],
                    f"{entry[reference]:.3g} against {entry[f'paper_{reference}']:.3g}",
                )
                for entry in rows
            ),
            share=0.8,
        )

    return check


def ratio_table(found: Summary) -> list[dict]:
    """Per column: fieldfill over the best of some methods, beside the same ratio of the paper's own method."""
    out = []
    for bench, case in _columns(found, ("main", "block", "pixel")):
        column = published.MAIN[case]
        entry: dict = {"bench": bench, "case": case}
        for reference, (methods, key) in REFERENCES.items():
            entry[reference] = found.ratio(bench, case, "fieldfill", methods, key)
            entry[f"paper_{reference}"] = column["paper"] / min(column[name] for name in methods if name in column)
        out.append(entry)
    return out


def _near_optimum(method: str, factor: float) -> Callable[[Summary], Finding]:
    return lambda found: _over(_against(found, _columns(found, ("optimum",)), method, ("optimum",), factor))


def _cheaper(found: Summary) -> Finding:
    out = []
    for case, factor in (("8x32x32", 10.0), ("50x32x32", 40.0)):
        ours, theirs = (
            found.mean("speed", case, name, "train_seconds_per_sample") for name in ("refiner", "space-time-unet")
        )
        if ours is not None and theirs is not None:
            ratio = theirs.value / ours.value
            out.append((case, ratio >= factor, f"{ratio:.1f} × cheaper, {factor:.0f} asked"))
    return _over(out)


def _equal_time(found: Summary) -> Finding:
    columns = [column for column in _columns(found, ("speed",)) if not column[1][0].isdigit()]
    return _over(_against(found, columns, "fieldfill", ("paper-space-time-unet",), 0.5))


def _growth(found: Summary) -> Finding:
    out = []
    for method in found.methods("speed"):
        if method.startswith(LIGHT):
            for key, name in (("train_seconds_per_sample", "step"), ("fill_seconds_per_sample", "fill")):
                value = growth(found, method, key)
                if value is not None:
                    out.append((f"{method}, {name}", value <= 1.1, f"{value:.2f}"))
    return _over(out)


# Every statement that the rows are checked against: its source, its text, and a function of the rows.
CLAIMS = [
    Statement("paper", "its method is the best of its table in every column", _paper_best),
    Statement("paper", "the wrong partition is worse than the right one in every block column", _wrong_partition),
    Statement(
        "paper",
        "MissDiff leaves the inside of missing blocks of Navier–Stokes no better than climatology",
        _empty_blocks(0.95),
    ),
    Statement("paper", "contexts of 50 to 90 % are better than all observed cells as context and query", _ratios),
    Statement("paper", "the error falls with the number of contexts as a + b / K", _ensemble),
    Statement("paper", "all observations as the context are worse than the mean over contexts", _context("paper")),
    Statement("ours", "the same with contexts of mixed sizes in training", _context("fieldfill")),
    Statement("paper", "a model used at another density errs at most twice as much as the matched one", _density(2.0)),
    Statement(
        "paper", "U-Net and FNO are comparable (within a factor of 2) on shallow water and advection", _backbone(2.0)
    ),
    Statement("ours", "networks of one backbone made as many steps in their minutes, within 20 %", _one_pace(1.2)),
    Statement("ours", "fieldfill is best in every block column", _ours_best(("block",), 1.0)),
    Statement("ours", "fieldfill is best in at least 80 % of all columns", _ours_best(COLUMNS, 0.8)),
    Statement("ours", "fieldfill is never behind the paper's method by more than the seed spread", _never_behind),
    Statement(
        "ours", "fieldfill / best classical is no larger than the paper's ratio in 80 %", _no_larger("classical")
    ),
    Statement(
        "ours",
        "fieldfill / best of the paper's classical methods is no larger than its ratio in 80 %",
        _no_larger("published_classical"),
    ),
    Statement("ours", "fieldfill / MissDiff is no larger than the paper's ratio in 80 %", _no_larger("missdiff")),
    Statement(
        "ours",
        "the same in the quantities that the paper prints, against the best of its classical methods",
        _no_larger("printed_classical"),
    ),
    Statement(
        "ours",
        "the same in the quantities that the paper prints, against MissDiff",
        _no_larger("printed_missdiff"),
    ),
    Statement(
        "ours",
        "the continuous ranked probability score of fieldfill is the least in every column",
        _ours_best(WITH_CLASSICAL, 1.0, CRPS),
    ),
    Statement(
        "ours",
        "the 90 % intervals of fieldfill hold 87 to 93 % of the truth in 80 % of the columns",
        _coverage(0.9, 0.03),
    ),
    Statement("ours", "fieldfill is within 1.5 × the optimum on Gaussian clouds", _near_optimum("fieldfill", 1.5)),
    Statement("ours", "the Gaussian mean alone is within 1.35 × the optimum", _near_optimum("gaussian_mean", 1.35)),
    Statement(
        "ours", "a training step is 10 × (8 frames) and 40 × (50) cheaper than the paper-shaped network's", _cheaper
    ),
    Statement("ours", "at equal time at most half the error of the paper-shaped network", _equal_time),
    Statement("ours", "time per step and per fill grows with cells by a slope of at most 1.1", _growth),
]


def check_claims(found: Summary) -> list[tuple[Statement, Finding]]:
    """Every statement and its verdict."""
    return [(claim, claim.check(found)) for claim in CLAIMS]
