"""How the methods of one backbone learn: their errors after fewer and more steps, as the table of docs/benchmarks.md.

    python benchmarks/budgets.py

Reads the committed rows: those of the tables, and the older ones of shorter and longer trainings in results/budgets.
"""

from collections import defaultdict
from pathlib import Path
from statistics import median

from fieldfill.bench.rows import read

RESULTS = Path(__file__).parent / "results"
BENCHES = ("main", "block", "pixel", "optimum")
METHODS = ("missdiff", "ambientdiff", "paper", "paper_wrong_partition")


def main() -> None:
    found: dict[str, dict[tuple[float, Path], dict[str, tuple[int, float]]]] = defaultdict(lambda: defaultdict(dict))
    for folder in (RESULTS, *sorted((RESULTS / "budgets").iterdir())):
        for row in (row for bench in BENCHES for row in read(folder, bench)):
            if row["status"] == "measured" and row["method"] in METHODS and row["seed"] == 0:
                training = row["budget"]["minutes"], folder
                error = row["metrics"]["share_of_variance"]
                found[row["case"]][training][row["method"]] = row["train_steps"], error
    print("| case | minutes | steps | " + " | ".join(f"`{method}`" for method in METHODS) + " |")
    print("|---|---:|---:|" + "---:|" * len(METHODS))
    for case, trainings in found.items():
        lines = [
            (round(median(steps for steps, _ in errors.values()), -1), minutes, errors)
            for (minutes, _), errors in trainings.items()
        ]
        for i, (steps, minutes, errors) in enumerate(sorted(lines, key=lambda line: line[:2])):
            told = [f"{errors[method][1]:.3f}" if method in errors else "–" for method in METHODS]
            print(f"| {case if i == 0 else ''} | {minutes:g} | {steps:.0f} | " + " | ".join(told) + " |")


if __name__ == "__main__":
    main()
