"""The shape of the source: how long a constructor or a file may be, and that a class name means one thing.

The lists below name what does not hold yet. They may only shrink: an entry that is no longer needed fails the test.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(link.name for link in (ROOT / "src" / "dracaena").iterdir() if link.is_symlink())
LEFT_OUT = ("proto/",)
"""Generated files."""

CONSTRUCTOR_LINES = 39
"""From `def` to the last statement, signature and docstring included: what fits on a screen with its class."""

FILE_LINES = 560

LONG_CONSTRUCTORS: frozenset[tuple[str, str]] = frozenset()

LONG_FILES: frozenset[str] = frozenset()


def sources(root: Path) -> dict[str, str]:
    """Return the text of each source file by its path from `root`, without those that are left out."""
    paths = (path for name in PACKAGES for path in sorted((root / name).rglob("*.py")))
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in paths}
    return {path: text for path, text in texts.items() if not path.startswith(LEFT_OUT)}


@cache
def classes(text: str) -> Sequence[ast.ClassDef]:
    """Several rules look at each of them: every file is parsed once. No class is inside an expression."""
    found: list[ast.ClassDef] = []
    left: list[ast.AST] = [ast.parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef):
            found.append(node)
        parts = (getattr(node, name, ()) for name in ("body", "orelse", "finalbody", "handlers", "cases"))
        left.extend(each for part in parts for each in part if isinstance(each, HOLDS_STATEMENTS))
    return found


HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


def long_constructors(texts: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (path, each.name)
        for path, text in texts.items()
        for each in classes(text)
        for part in each.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__"
        if (part.end_lineno or part.lineno) - part.lineno + 1 > CONSTRUCTOR_LINES
    )


def long_files(texts: Mapping[str, str]) -> frozenset[str]:
    return frozenset(path for path, text in texts.items() if len(text.splitlines()) > FILE_LINES)


def shared_names(texts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the files that define each class name that occurs more than once, a file as often as it defines it.

    A name with a leading underscore belongs to its module, so only a second one in the same file is shared.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in texts.items():
        for each in classes(text):
            found[f"{path}:{each.name}" if each.name.startswith("_") else each.name].append(path)
    return {name: tuple(sorted(paths)) for name, paths in sorted(found.items()) if len(paths) > 1}


def test_constructors_fit_on_a_screen() -> None:
    assert long_constructors(sources(ROOT)) == LONG_CONSTRUCTORS


def test_files_stay_short_enough_to_read_in_one_go() -> None:
    assert long_files(sources(ROOT)) == LONG_FILES


def test_a_class_name_is_used_once() -> None:
    assert shared_names(sources(ROOT)) == {}


def test_the_source_is_found() -> None:
    found = sources(ROOT)
    assert {path.partition("/")[0] for path in found} == set(PACKAGES) - {"proto"}
    assert len(found) > 200


def test_planted_faults_are_found() -> None:
    body = "\n".join(f"        self.x{number} = {number}" for number in range(CONSTRUCTOR_LINES))
    fits = "\n".join(f"        self.x{number} = {number}" for number in range(CONSTRUCTOR_LINES - 1))
    texts = {
        "a.py": f"class Long:\n    def __init__(self):\n{body}\n\nclass _Own:\n    pass\n",
        "b.py": f"class Fits:\n    def __init__(self):\n{fits}\n\nclass Outer:\n    class Long:\n        pass\n",
        "c.py": "class _Own:\n    pass\n" + "\n" * (FILE_LINES - 1),
        "d.py": "\n" * FILE_LINES,
        "e.py": "try:\n    pass\nexcept OSError:\n    if x:\n        pass\n    else:\n        class Hidden:\n"
        "            pass\n\ndef f():\n    class Hidden:\n        pass\n",
    }
    assert long_constructors(texts) == {("a.py", "Long")}
    assert shared_names(texts) == {"Long": ("a.py", "b.py"), "Hidden": ("e.py", "e.py")}
    assert long_files(texts) == {"c.py"}
