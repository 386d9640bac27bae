"""The whole stays within docs/dev/budget.md: totals are limited, not files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.budget import (
    PAGE,
    Limit,
    backward_arrows,
    calls,
    import_exceptions,
    imported,
    largest_constructor,
    limits,
    lowered,
    measured,
    rooms,
    statements,
)


def test_every_number_is_within_its_limit_and_every_limit_near_its_number() -> None:
    found, now = limits(PAGE.read_text(encoding="utf-8")), measured()
    assert found.keys() == now.keys(), "what is measured and what is limited differ"
    assert [fault for name, limit in found.items() if (fault := limit.fault(now[name]))] == []


@pytest.mark.parametrize(
    ("most", "now", "fault"),
    [
        (1000, 1000, None),
        (1000, 980, None),
        (1000, 979, "lower it to 979"),
        (1000, 1001, "remove something, or raise it and say why"),
        (11, 11, None),
        (11, 10, "lower it to 10"),
        (0, 0, None),
        (0, 1, "remove something, or raise it and say why"),
    ],
)
def test_a_number_may_be_a_little_below_its_limit_and_never_beyond(most: int, now: int, fault: str | None) -> None:
    found = Limit("settings", most, "").fault(now)
    assert found == (None if fault is None else f"settings: {now:,}, the limit is {most:,}: {fault}")


def test_limits_are_read_from_the_tables_of_a_page_and_lowered_there_alone() -> None:
    page = "Text | 7 |\n\n| what | at most | why |\n|---|---:|---|\n| `a/` | 1,200 | of `x`, `y` |\n| b c | 3 | |\n"
    assert limits(page) == {"`a/`": Limit("`a/`", 1200, "of `x`, `y`"), "b c": Limit("b c", 3, "")}
    assert lowered(page, {"`a/`": 1190, "b c": 4}) == page
    assert lowered(page, {"`a/`": 1100, "b c": 2}) == page.replace("1,200", "1,100").replace("| 3 |", "| 2 |")
    with pytest.raises(ValueError, match="b c is limited twice"):
        limits(f"{page}| b c | 4 | |\n")


def test_statements_count_once_each_without_docstrings() -> None:
    text = '''"""Page."""
import os
class A:
    """Text."""
    x: int = 1
    """What x is."""
    def f(self):
        """Text."""
        return [
            self.x,
            os.sep,
        ]
if A: "no docstring, and no statement either"; y = 1
'''
    assert statements(ast.parse(text)) == len(("import", "class", "x", "def", "return", "if", "y"))


def test_calls_are_counted_by_the_name_of_their_method() -> None:
    text = "self._files.write(n, d)\nos.write(1, b)\nwith lock.hold(): write(n)\nfolder.of(x).write_if_changed(n, d)\n"
    assert calls([ast.parse(text)], {"write", "write_if_changed"}) == 2
    assert calls([ast.parse(text)], {"hold"}) == 1


def test_the_parameters_of_a_constructor_count_without_self() -> None:
    text = "class A:\n    def __init__(self, a, b=1, *, c): ...\n    def f(self, a, b, c, d): ...\n"
    assert largest_constructor([ast.parse(text)]) == 3


def test_each_line_of_an_exception_to_the_import_rules_counts() -> None:
    contracts = "[one]\nname = x\nignore_imports =\n    a -> b\n    c -> d\nother = y\n[two]\nname = z\n"
    assert import_exceptions(contracts) == 2


def test_imports_of_both_forms_are_arrows_between_rooms(tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    for name, text in {
        "__init__.py": "",
        "program.py": "from dracaena.plugin.claims import calls\nimport dracaena.plugin.ports\nimport os\n",
        "ports.py": "from dracaena.api.names import X\n",
        "claims/calls.py": "def f():\n    from dracaena.plugin.claims.other import y\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert rooms(folder) == {"program": {"claims", "ports"}, "ports": frozenset(), "claims": frozenset()}
    assert list(imported(ast.parse("from a import b, c"))) == ["a.b", "a.c"]


@pytest.mark.parametrize(
    ("arrows", "backward"),
    [
        ("ab bc ac", 0),
        ("ab ba", 1),
        ("ab bc ca", 1),
        ("ab ba bc cb ca ac", 3),
        ("ab bc ca de ed", 2),
        ("ab bc cd da ac", 1),
    ],
)
def test_the_best_order_leaves_the_fewest_arrows_that_run_back_up(arrows: str, backward: int) -> None:
    nodes = sorted(set(arrows) - {" "})
    graph = {node: frozenset(arrow[1] for arrow in arrows.split() if arrow[0] == node) for node in nodes}
    assert backward_arrows(graph) == backward
