"""The limits of the API stand in one place, `api/limits.py`.

Two things are looked for: a number that is written again where only limits of the API are checked, and the name of a
limit in Kubernetes, which nobody writes who does not mean that limit.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dracaena.api import limits

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "api" / "limits.py"

CHECKERS = ("validation", "demo/apiserver")
"""Packages that say what the API takes."""

SMALLEST = 16
"""Below it numbers mean too many things; there a limit is recognised where it is given a name of its own."""

OTHER_MEANINGS = {
    ("demo/apiserver/http.py", 16): "the base of hexadecimal numbers",
    ("demo/apiserver/http.py", 64): "bytes of the line with the size of a chunk",
    ("demo/apiserver/meta.py", 128): "bits of a UUID",
    ("demo/apiserver/protobuf.py", 64): "bits of a number on the wire",
    ("demo/apiserver/server.py", 128): "connections that wait",
    ("demo/apiserver/server.py", 10_000): "events that a watch can go back",
    ("validation/selectors.py", 10_000): "what an honest selector costs",
    ("validation/findings.py", 256): "bits of a number that is shown",
}
"""File and number → what it counts there, which is not what the limit counts."""

VALUES = {value for name, value in vars(limits).items() if name.isupper()}

FOLDED: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: lambda number, bits: number << min(bits, 64),
    ast.Pow: lambda number, power: int(number ** max(0, min(power, 64))),
}


def number_of(node: ast.AST) -> int | None:
    """Return the whole number that an expression of numbers alone is: 10240 for `10 << 10` and `10 * 1024`."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in FOLDED:
        left, right = number_of(node.left), number_of(node.right)
        if left is not None and right is not None:
            return FOLDED[type(node.op)](left, right)
    return None


def numbers(node: ast.AST) -> Iterator[int]:
    """Yield the numbers in a tree, each expression of numbers as one."""
    number = number_of(node)
    if number is not None:
        yield number
        return
    for child in ast.iter_child_nodes(node):
        yield from numbers(child)


def named_numbers(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers that a module gives a name."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            number = number_of(statement.value)
            if number is not None:
                yield number


def doubled(source: str) -> set[int]:
    """Return the limits that a module writes as numbers."""
    tree = ast.parse(source)
    return {number for number in numbers(tree) if number >= SMALLEST and number in VALUES} | {
        number for number in named_numbers(tree) if number in VALUES
    }


def kubernetes_names(source: str) -> set[str]:
    """Return the names of Kubernetes' constants in the docstrings: what stands in parentheses at their ends."""
    endings = re.findall(r"\(([A-Za-z0-9,\s]+)\)[^()]*?\"\"\"$", source, re.MULTILINE)
    return {name for ending in endings for name in re.split(r",\s+", ending)}


def modules(folders: tuple[str, ...]) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def all_packages() -> tuple[str, ...]:
    return tuple(path.parent.name for path in sorted(ROOT.glob("*/__init__.py")))


def test_what_checks_objects_writes_no_limit_as_a_number() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), number)
        for path in modules(CHECKERS)
        for number in doubled(path.read_text(encoding="utf-8"))
    }
    assert found - OTHER_MEANINGS.keys() == set(), "take it from api/limits.py, or say in OTHER_MEANINGS what it is"
    assert OTHER_MEANINGS.keys() - found == set(), "not there any more: take it off"


def test_no_other_module_speaks_of_a_limit_by_its_name_in_kubernetes() -> None:
    names = re.compile(rf"\b({'|'.join(sorted(kubernetes_names(HOME.read_text(encoding='utf-8'))))})\b")
    found = {
        path.relative_to(ROOT).as_posix(): sorted(set(matches))
        for path in modules(all_packages())
        if path != HOME and (matches := names.findall(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("MOST = 10 << 10", {10_240}),
        ("MOST: int = 4", {4}),
        ("def wrong(text):\n    return len(text) > 63", {63}),
        ("def wrong(text):\n    return too_long(text, 32 * 1024)", {32_768}),
        ("kib = size >> 10\nfirst = names[:8]\nmost = limits.SLICE_DEVICES\nflag = True", set()),
    ],
)
def test_a_doubled_limit_is_found(source: str, found: set[int]) -> None:
    assert doubled(source) == found
