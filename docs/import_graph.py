"""Brings docs/architecture.md up to date with the code: ``python docs/import_graph.py``.

It writes the table of rooms, from their docstrings, and draws which room imports from which.

An arrow goes from a room to one that it imports. Where A imports B and B imports C, an arrow from A to C is left out:
the picture would be full of lines, and the way from A to C shows anyway.
"""

import ast
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as MplPath

# Text stays text, and the same code gives the same file.
plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fieldfill", "font.family": "sans-serif"})

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fieldfill"
PAGE = Path(__file__).resolve().parent / "architecture.md"
PICTURE = Path(__file__).resolve().parent / "images" / "import_graph.svg"
# Sizes in inches: distance of rows, gap between boxes, and the boxes themselves.
DOWN = 0.95
GAP = 0.4
WIDTH = 1.4
HEIGHT = 0.46
# Rounds in which boxes move below and above their neighbours.
SWEEPS = 20
FRAME = "#3b5b7a"
FILL = "#e9f0f6"
INK = "#1d2a36"

# Marks around the table on the page.
BEGIN = "<!-- rooms -->"
END = "<!-- end of rooms -->"

Graph = dict[str, set[str]]
Chains = list[list[str]]


def imports() -> Graph:
    """The rooms from which each room imports, apart from itself."""
    found: Graph = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if room in ("__init__", "__main__"):
            continue
        found[room] |= set()
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                # `from fieldfill import baselines` names a room, `from fieldfill.data.io import ...` lies in one.
                whole = node.module == "fieldfill"
                modules = [f"fieldfill.{alias.name}" for alias in node.names] if whole else [node.module]
            found[room] |= {module.split(".")[1] for module in modules if module.startswith("fieldfill.")} - {room}
    return dict(found)


def rooms_table() -> str:
    """One line for each room, those that import the most first: its name and the first sentence of its docstring."""
    graph = imports()
    height = levels(graph)
    lines = ["| room | content |", "|---|---|"]
    for room in sorted(graph, key=lambda room: (-height[room], room)):
        folder = PACKAGE / room / "__init__.py"
        file = folder if folder.exists() else PACKAGE / f"{room}.py"
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        first = " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
        lines.append(f"| `{room}{'/' if folder.exists() else '.py'}` | {first} |")
    return "\n".join(lines)


def write_table() -> None:
    """Puts the table between its two marks on the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{rooms_table()}\n{END}{after}")


def levels(graph: Graph) -> dict[str, int]:
    """Height of each room: one above the highest room that it imports."""
    known: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in known:
            known[room] = 1 + max((height(below) for below in graph[room]), default=-1)
        return known[room]

    for room in graph:
        height(room)
    return known


def reduced(graph: Graph) -> Graph:
    """The imports that do not follow from others."""

    def below(room: str) -> set[str]:
        return set().union(*({next_one} | below(next_one) for next_one in graph[room]))

    return {room: {b for b in rooms if not any(b in below(other) for other in rooms)} for room, rooms in graph.items()}


def layered(graph: Graph) -> tuple[dict[int, list[str]], Chains]:
    """Rows of rooms from the bottom up, and the way of every arrow, which has a place in each row that it passes."""
    level = levels(graph)
    rows: dict[int, list[str]] = defaultdict(list)
    for room in graph:
        rows[level[room]].append(room)
    ways = []
    for room, used in graph.items():
        for other in sorted(used):
            passed = [f"{room}>{other}@{row}" for row in range(level[room] - 1, level[other], -1)]
            for row, name in zip(range(level[room] - 1, level[other], -1), passed):
                rows[row].append(name)
            ways.append([room, *passed, other])
    return rows, ways


def places(rows: dict[int, list[str]], ways: Chains) -> dict[str, tuple[float, float]]:
    """Centres, such that neighbours along an arrow lie nearly below each other and nothing overlaps."""
    near: Graph = defaultdict(set)
    for way in ways:
        for upper, lower in pairwise(way):
            near[upper].add(lower)
            near[lower].add(upper)
    x = {name: float(i) for row in rows.values() for i, name in enumerate(row)}
    for _ in range(SWEEPS):
        for level in (*sorted(rows), *sorted(rows, reverse=True)):
            # Sorted, so that rounding is the same in every run.
            wanted = {name: fmean(x[other] for other in sorted(near[name])) for name in rows[level]}
            order = sorted(rows[level], key=lambda name: wanted[name])
            put = [wanted[order[0]]]
            for left, name in pairwise(order):
                gap = GAP + (_width(left) + _width(name)) / 2
                put.append(max(wanted[name], put[-1] + gap))
            # What had to move right pushes the whole row back to the left by half.
            shift = sum(wanted[name] - at for name, at in zip(order, put)) / len(order)
            x.update({name: at + shift for name, at in zip(order, put)})
    return {name: (x[name], DOWN * level) for level, row in rows.items() for name in row}


def _width(name: str) -> float:
    return 0.0 if ">" in name else WIDTH


def draw(path: Path) -> None:
    """Writes the picture, SVG or PNG by the ending."""
    rows, ways = layered(reduced(imports()))
    centre = places(rows, ways)
    left, right = (end(x for x, _ in centre.values()) for end in (min, max))
    high = max(y for _, y in centre.values())
    figure, axes = plt.subplots(figsize=(right - left + 2 * WIDTH, high + 2 * HEIGHT))
    for way in ways:
        # Vertical through the rows that it passes, curved between them.
        points, codes = [(centre[way[0]][0], centre[way[0]][1] - HEIGHT / 2)], [MplPath.MOVETO]
        for name in way[1:]:
            (x, y), (u, v) = points[-1], centre[name]
            top, bottom = v + HEIGHT / 2, v - HEIGHT / 2
            points += [(x, (y + top) / 2), (u, (y + top) / 2), (u, top)]
            codes += [MplPath.CURVE4] * 3
            if ">" in name:
                points.append((u, bottom))
                codes.append(MplPath.LINETO)
        arrow = FancyArrowPatch(path=MplPath(points, codes), arrowstyle="-|>", mutation_scale=12, color=FRAME, lw=1.1)
        axes.add_patch(arrow)
    for name, (x, y) in centre.items():
        if _width(name):
            corner, style = (x - WIDTH / 2, y - HEIGHT / 2), "round,pad=0,rounding_size=0.1"
            axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=FILL, edgecolor=FRAME))
            axes.text(x, y, name, ha="center", va="center", fontsize=12, color=INK)
    axes.set(xlim=(left - WIDTH, right + WIDTH), ylim=(-HEIGHT, high + HEIGHT), aspect="equal")
    axes.axis("off")
    dated = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    figure.savefig(path, bbox_inches="tight", facecolor="white", dpi=90, **dated)
    plt.close(figure)


if __name__ == "__main__":
    write_table()
    draw(PICTURE)
