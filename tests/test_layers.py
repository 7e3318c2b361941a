"""Imports go downward only, and the borders of DESIGN hold: the tree is the architecture."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "fieldfill"

# From the bottom up; modules of one layer may import each other.
LAYERS = [
    ["errors", "environment", "seeds"],
    ["metrics", "pde"],
    ["io", "axes", "record", "grid", "inputs", "windows"],
    ["schedule"],
    ["masks"],
    [
        "partition",
        "exposure",
        "independence",
        "holdout",
        "reweight",
        "surroundings",
        "tails",
        "uncertainty",
        "budget",
    ],
    ["nn"],
    ["denoise", "separations", "dynamics", "covariance", "climatology"],
    ["train", "validate", "refine", "parallel", "sample", "multistep", "guide"],
    ["config"],
    ["calibrate", "model", "gaps", "audit", "physics", "members", "steering", "estimates"],
    ["baselines"],
    ["fill"],
    ["bench", "report"],
    ["demo"],
    ["cli", "terminal", "__main__", "__init__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports_of(path: Path) -> set[str]:
    """Names of all modules that a file imports at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(ROOT.rglob("*.py"))


def test_every_module_has_a_layer() -> None:
    assert {module_of(path) for path in FILES} <= set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward(path: Path) -> None:
    here = module_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "fieldfill" and len(parts) > 1 and parts[1] in RANK and parts[1] != here:
            assert RANK[parts[1]] <= RANK[here], f"{here} may not import {parts[1]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_never_meet_torch_and_networks_never_meet_xarray(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(path)}
    if module_of(path) in {"errors", "environment", "metrics", "io", "axes", "record", "grid"}:
        assert "torch" not in outside
    if module_of(path) in {
        "schedule",
        "masks",
        "partition",
        "exposure",
        "nn",
        "denoise",
        "train",
        "refine",
        "sample",
        "multistep",
    }:
        assert "xarray" not in outside


def test_help_does_not_wait_for_torch() -> None:
    import subprocess
    import sys

    code = "import sys, fieldfill, fieldfill.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
