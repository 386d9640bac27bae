"""Files, modules and attributes that pages, docstrings and comments name exist, also after something has moved.

A path may lack its first folders, as `claims/calls.py` does in a text about the plugin: some path has to end in it. An
attribute is looked for where its class is ours. The changelog is left out, because it says what there was at the time.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = frozenset(link.name for link in (ROOT / "src" / "dracaena").iterdir() if link.is_symlink())
NOT_OURS = {
    "cli/per_gpu.py": "of NVIDIA's gpu-admin-tools",
    "cli/per_gpu_nvswitch.py": "of the same",
    "dracaena.enabled": "a value of a chart around ours",
    "langdef.md": "of cel-spec",
    "nvidia_gpu_tools.py": "of NVIDIA's gpu-admin-tools",
}

_PATH = re.compile(r"(?<![\w./<>{}*…-])(?:\.\./)*((?:[\w-]+/)*[\w-]+\.(?:py|md)|(?:[\w-]+/)+)(?![\w/*<{…-]|\.\w)")
_MODULE = re.compile(r"(?<![\w./-])dracaena(?:\.\w+)+")
_ATTRIBUTE = re.compile(r"(?<![\w./-])([A-Z]\w*[a-z]\w*)\.([a-z]\w*)(?![\w/-])")
_MARKED = re.compile(r"`([^`\n]+)`")
_COMMENT = re.compile(r"(?:^|  )# ?(.*)$", re.MULTILINE)
_OUTSIDE = frozenset({"Enum", "Exception", "Generic", "NamedTuple", "Protocol", "StrEnum"})
"""Bases whose attributes nobody names."""


@cache
def tracked() -> frozenset[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(path for path in done.stdout.splitlines() if (ROOT / path).exists())


@cache
def endings() -> frozenset[str]:
    """Return every path, and what is left of it without its first folders. Folders end in a slash."""
    found = set()
    for path in tracked():
        parts = path.split("/")
        for first in range(len(parts)):
            found.add("/".join(parts[first:]))
            found.update("/".join(parts[first:last]) + "/" for last in range(first + 1, len(parts)))
    return frozenset(found)


@cache
def modules() -> Mapping[str, ast.Module]:
    """Return the source of each package by path."""
    paths = (path for path in sorted(tracked()) if path.endswith(".py") and path.split("/")[0] in PACKAGES - {"proto"})
    return {path: ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in paths}


def defined(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Return the names that the statements of a module or class define."""
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in each.names)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(each, ast.If | ast.Try):
            yield from defined(each.body)


def _is_stored(part: ast.Attribute) -> bool:
    return isinstance(part.ctx, ast.Store)


@cache
def attributes() -> Mapping[str, frozenset[str]]:
    """Return the attributes of each class of ours, without classes that inherit from what is not ours."""
    own: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for each in (node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        stored = (part.attr for part in ast.walk(each) if isinstance(part, ast.Attribute) and _is_stored(part))
        own[each.name] |= {*defined(each.body), *stored}
        bases[each.name] |= {ast.unparse(base).partition("[")[0] for base in each.bases} - _OUTSIDE

    def with_inherited(name: str) -> set[str] | None:
        inherited = [with_inherited(base) if base in own else None for base in bases[name]]
        return None if None in inherited else own[name].union(*(found or () for found in inherited))

    return {name: frozenset(found) for name in list(own) if (found := with_inherited(name)) is not None}


def is_defined(dotted: str) -> bool:
    """Tell whether `dracaena.x.y` is a package or module, or is defined in one."""
    parts = dotted.split(".")[1:]
    for length in range(len(parts), 0, -1):
        path, rest = "/".join(parts[:length]), parts[length:]
        if not rest and ((ROOT / path).is_dir() or f"{path}.py" in tracked()):
            return True
        tree = modules().get(f"{path}.py") or modules().get(f"{path}/__init__.py")
        if tree is not None:
            return not rest or rest[0] in defined(tree.body)
    return False


def missing(text: str) -> list[str]:
    """Return the paths, modules and attributes that a text names and that do not exist."""
    ours = ("docs/", "deploy/", "tests/", *(f"{name}/" for name in PACKAGES))
    paths = (path for path in _PATH.findall(text) if not path.endswith("/") or path.startswith(ours))
    found = [path for path in paths if path not in endings()]
    found += [name for name in _MODULE.findall(text) if not is_defined(name)]
    for name, attribute in _ATTRIBUTE.findall(text):
        if attribute not in attributes().get(name, {attribute}):
            found.append(f"{name}.{attribute}")
    return [name for name in found if name not in NOT_OURS]


def in_page(page: str) -> list[str]:
    return [name for marked in _MARKED.findall((ROOT / page).read_text(encoding="utf-8")) for name in missing(marked)]


def in_module(path: str) -> list[str]:
    """Return what its comments and docstrings name in vain."""
    comments = _COMMENT.findall((ROOT / path).read_text(encoding="utf-8"))
    docstrings = (
        each.value.value
        for node in ast.walk(modules()[path])
        for each in ast.iter_child_nodes(node)
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    )
    return [name for said in (*comments, *docstrings) for name in missing(said)]


def test_pages_name_places_that_exist() -> None:
    pages = (path for path in sorted(tracked()) if path.endswith(".md") and path != "CHANGELOG.md")
    assert {page: found for page in pages if (found := in_page(page))} == {}


def test_comments_and_docstrings_name_places_that_exist() -> None:
    assert {path: found for path in modules() if (found := in_module(path))} == {}


@pytest.mark.parametrize(
    "name",
    [
        "controller/state/decision.py",
        "claims/calls.md",
        "controller/allocation/search/",
        "dracaena.api.units",
        "dracaena.api.quantity.Amount",
        "PoolDefect.passed",
        "ClaimRecord.stale",
    ],
)
def test_a_planted_name_of_nothing_is_found(name: str) -> None:
    assert missing(f"as {name} says") == [name]


@pytest.mark.parametrize(
    "name",
    [
        "controller/state/decisions.py",
        "state/decisions.py",
        "../controller/state/decisions.py",
        "controller/allocation/walk/",
        "dracaena.api",
        "dracaena.api.quantity",
        "dracaena.process.clock.Clock",
        "PoolDefect.passing",
        "ClaimRecord.stale_binds",
        "src/graph/paths.cc",
    ],
)
def test_names_that_exist_or_are_not_ours_pass(name: str) -> None:
    assert missing(f"as {name} says") == []


def test_names_are_looked_for_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, source = tmp_path / "page.md", tmp_path / "source.py"
    page.write_text("Unmarked gone.py, and `see gone/away.py`.\n")
    source.write_text('"""As gone/docstring.py says."""\nx = "gone/text.py"  # as gone/comment.py says\n')
    monkeypatch.setitem(globals(), "modules", lambda: {str(source): ast.parse(source.read_text())})
    assert in_page(str(page)) == ["gone/away.py"]
    assert sorted(in_module(str(source))) == ["gone/comment.py", "gone/docstring.py"]
