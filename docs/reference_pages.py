"""Writes the reference pages, which conf.py calls before every build: the public modules and the command line.

They go to docs/reference/, which version control ignores, so that they never differ from the code.
"""

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import fieldfill

REFERENCE = Path(__file__).resolve().parent / "reference"
# Columns of a help text.
WIDTH = "100"


def public_modules() -> list[str]:
    """Every module of the package but the ways in (``__main__``) and the command line, which has a page of its own."""
    found = [module.name for module in pkgutil.walk_packages(fieldfill.__path__, "fieldfill.")]
    return [name for name in found if "__main__" not in name and not name.startswith("fieldfill.cli")]


def rooms() -> dict[str, list[str]]:
    """Public modules by room."""
    grouped: dict[str, list[str]] = {}
    for name in public_modules():
        grouped.setdefault(name.split(".")[1], []).append(name)
    return grouped


def module_page(room: str, modules: list[str]) -> str:
    """A page in reStructuredText with the members of all modules of a room."""
    title = f"fieldfill.{room}"
    parts = [title, "=" * len(title), ""]
    for name in modules:
        if name != title:
            parts += [name, "-" * len(name), ""]
        # Members are documented where they are defined; a package only lists them.
        own = _documented(name)
        parts += [f".. automodule:: {name}"]
        parts += [f"   :members: {', '.join(own)}", "   :member-order: bysource"] if own else []
        parts += [""]
    return "\n".join(parts)


def _documented(module: str) -> list[str]:
    """Public classes and functions that a module defines."""
    home = import_module(module)
    members = {name: getattr(home, name) for name in getattr(home, "__all__", [])}
    kinds = (inspect.isclass, inspect.isfunction)
    return [name for name, value in members.items() if any(k(value) for k in kinds) and value.__module__ == module]


def commands() -> list[tuple[str, ...]]:
    """Every command of the command line, groups before their members."""
    from fieldfill.cli.bench_commands import app as bench
    from fieldfill.cli.main import app

    def names(application: object) -> list[str]:
        return [c.name or c.callback.__name__.replace("_", "-") for c in application.registered_commands]

    return [*((name,) for name in names(app)), ("bench",), *(("bench", name) for name in names(bench))]


def command_page() -> str:
    """A page in Markdown with the help text of every command."""
    parts = ["# Command line", "", "Written from `fieldfill COMMAND --help`.", ""]
    for command in commands():
        run = [sys.executable, "-m", "fieldfill", *command, "--help"]
        environment = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        text = subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout
        usage = text.replace("python -m fieldfill", "fieldfill").strip()
        parts += [f"## fieldfill {' '.join(command)}", "", "```text", usage, "```", ""]
    return "\n".join(parts)


def write(folder: Path = REFERENCE) -> None:
    """Writes all pages; a page that has not changed keeps its time, so that it is not built again."""
    folder.mkdir(exist_ok=True)
    pages = {f"{room}.rst": module_page(room, modules) for room, modules in rooms().items()}
    pages["command-line.md"] = command_page()
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
