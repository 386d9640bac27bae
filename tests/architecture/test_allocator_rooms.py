"""The allocator is read room by room: how many files a room has, and how deep its imports go."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOCATOR = ROOT / "controller" / "allocation"
PACKAGE = "dracaena.controller.allocation"

MOST_FILES = 14
"""Of a room, without its `__init__.py`: what a reader keeps in mind."""

LONGEST_CHAIN = 9
"""Modules of which each imports the next: some eight layers are what a reader keeps in mind. It only ever falls."""

LONGEST_CHAIN_OF_RULES = 5
"""The same from a module of `legal/` on, which the longest chain of all need not go through."""


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((PACKAGE, *parts)).removesuffix(".__init__")


def imports(root: Path) -> Mapping[str, frozenset[str]]:
    """Return for each module below a folder the others there that it imports."""
    paths = {module_name(path, root): path for path in root.rglob("*.py")}
    found = {}
    for name, path in paths.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        found[name] = frozenset(named & paths.keys() - {name, PACKAGE})
    return found


def longest_chain(graph: Mapping[str, frozenset[str]], first: str = "") -> tuple[str, ...]:
    """Return the longest chain of modules of which each imports the next; the graph has no cycle. `first`: how the name
    of its first module begins.
    """

    @cache
    def below(name: str) -> tuple[str, ...]:
        return (name, *max(map(below, sorted(graph[name])), key=len, default=()))

    return max((below(name) for name in sorted(graph) if name.startswith(first)), key=len)


def test_no_room_has_more_files_than_a_reader_keeps_in_mind() -> None:
    rooms = Counter(path.parent.name for path in ALLOCATOR.rglob("*.py") if path.name != "__init__.py")
    assert {room: count for room, count in rooms.items() if count > MOST_FILES} == {}


def test_imports_go_no_deeper_than_before() -> None:
    chain = longest_chain(imports(ALLOCATOR))
    assert len(chain) <= LONGEST_CHAIN, " -> ".join(chain)


def test_the_rules_go_no_deeper_than_before() -> None:
    chain = longest_chain(imports(ALLOCATOR), f"{PACKAGE}.legal.")
    assert len(chain) <= LONGEST_CHAIN_OF_RULES, " -> ".join(chain)


def test_a_longer_chain_is_found(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").touch()
    for name, imported in (("a", "room.b"), ("room/b", ""), ("room/c", "d"), ("d", "")):
        text = f"from {PACKAGE}.{imported} import one" if imported else "x = 1"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "e.py").write_text(f"from {PACKAGE}.room import c\n")
    names = [name.removeprefix(f"{PACKAGE}.") for name in longest_chain(imports(tmp_path))]
    assert names == ["e", "room.c", "d"]
    names = [name.removeprefix(f"{PACKAGE}.") for name in longest_chain(imports(tmp_path), f"{PACKAGE}.room.")]
    assert names == ["room.c", "d"]
