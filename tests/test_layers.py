"""The tree is the architecture: imports go down only, and nobody reaches into another module's private parts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent / "src" / "fieldfill"

# From the top down. A room imports only from rooms below it.
ROOMS = [
    "__main__",
    "cli",
    "bench",
    "report",
    "api",
    "workflow",
    "baselines",
    "method",
    "presets",
    "config",
    "execution",
    "uncertainty",
    "sampling",
    "diffusion",
    "estimators",
    "partition",
    "masks",
    "metrics",
    "simulate",
    "data",
    "stages",
    "seeds",
    "errors",
]
# Rooms on one level that may import each other, with the reason.
NEIGHBOURS: dict[tuple[str, str], str] = {}

RANK = {name: rank for rank, name in enumerate(ROOMS)}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
TESTS = sorted(HERE.glob("test_*.py"))
SCRIPTS = sorted((HERE.parent / "benchmarks").glob("*.py"))
NO_TORCH = (
    "errors",
    "metrics",
    "data/io",
    "data/axes",
    "data/record",
    "data/grid",
    "data/inputs",
    "data/gaps",
    "data/finite",
    "data/companions",
    "data/flags",
    "data/encoding",
    "data/kinds",
    "data/output_paths",
    "data/writer",
)
NO_XARRAY = ("diffusion", "estimators", "masks/mask_model", "masks/fixed", "masks/moving", "partition", "sampling")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a file imports, at any depth of its code."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def rooms_of(path: Path) -> set[str]:
    """Rooms of this package that a file imports from."""
    rooms = set()
    for module, name in imported(path):
        parts = [*module.split("."), name]
        if parts[0] == "fieldfill":
            rooms.add(parts[1])
    return rooms - {""}


def test_every_module_lies_in_a_room() -> None:
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES} <= set(ROOMS)


def test_every_room_says_in_one_sentence_what_lives_there() -> None:
    for init in ROOT.rglob("*/__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text()))
        assert text and text.splitlines()[0].endswith("."), f"{init} needs a docstring that begins with one sentence"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    here = path.relative_to(ROOT).with_suffix("").parts[0]
    for room in rooms_of(path) - {here}:
        if room in RANK and (here, room) not in NEIGHBOURS:
            assert RANK[room] > RANK[here], f"{name_of(path)} lies below {room} and must not import it"


@pytest.mark.parametrize("path", [*FILES, *sorted(HERE.glob("*.py")), *SCRIPTS], ids=lambda path: path.stem)
def test_private_names_stay_private(path: Path) -> None:
    for module, name in imported(path):
        private = [part for part in (*module.split("."), name) if part.startswith("_") and not part.startswith("__")]
        assert not (module.startswith("fieldfill") and private), f"{path.name} imports {module}.{name}"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_tests_do_not_import_each_other(path: Path) -> None:
    assert not {module for module, _ in imported(path)} & ({other.stem for other in TESTS} - {path.stem})


@pytest.mark.parametrize("path", [*TESTS, *SCRIPTS], ids=lambda path: path.stem)
def test_tests_and_benchmarks_do_not_touch_private_attributes(path: Path) -> None:
    private = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert private <= {"_exit", "_repr_html_"}  # names that Python and notebooks prescribe


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_never_meet_torch_and_networks_never_meet_xarray(path: Path) -> None:
    outside = {module.split(".")[0] for module, _ in imported(path)}
    if name_of(path).startswith(NO_TORCH) and name_of(path) != "metrics/physics":
        assert "torch" not in outside
    if name_of(path).startswith(NO_XARRAY):
        assert "xarray" not in outside


@pytest.mark.parametrize("room", ["diffusion", "sampling", "uncertainty"])
def test_rooms_above_the_estimators_depend_on_their_protocol_only(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        ours = {module for module, _ in imported(path) if module.startswith("fieldfill.estimators")}
        assert ours <= {"fieldfill.estimators.base", "fieldfill.estimators.chain"}, path


def test_networks_know_nothing_of_diffusion() -> None:
    for path in (ROOT / "diffusion" / "networks").glob("*.py"):
        ours = {module for module, _ in imported(path) if module.startswith("fieldfill")}
        assert all(module.startswith(("fieldfill.diffusion.networks", "fieldfill.errors")) for module in ours), path


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, fieldfill, fieldfill.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
