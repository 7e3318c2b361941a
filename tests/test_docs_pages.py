"""What the pages name exists: modules, files, commands and rooms."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import_graph = import_module("import_graph")
reference_pages = import_module("reference_pages")

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [*sorted((ROOT / "docs" / "data").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or a chain of attributes of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@each_page
def test_modules_and_classes_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"\bfieldfill(?:\.[A-Za-z_]\w*)+", text))
    for module, names in re.findall(r"^from (fieldfill[\w.]*) import ([\w, ]+)", text, re.M):
        named |= {f"{module}.{name.strip()}" for name in names.split(",")}
    missing = sorted(name for name in named if not resolves(name))
    assert not missing


@each_page
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_a_page_says_to_touch_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / page).read_text())
    assert named
    places = (ROOT, ROOT / "src" / "fieldfill")
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_the_table_of_rooms_is_that_of_the_code() -> None:
    assert import_graph.rooms_table() in import_graph.PAGE.read_text(), "run 'python docs/import_graph.py'"


def test_every_room_has_a_page_of_reference() -> None:
    listed = set(re.findall(r"^reference/([\w-]+)$", (ROOT / "docs" / "api.md").read_text(), re.M))
    assert listed == set(reference_pages.rooms())


def test_the_readme_names_two_commands_to_set_everything_up() -> None:
    assert set(re.findall(r"make (\w+)", (ROOT / "README.md").read_text())) == {"demo", "test"}
