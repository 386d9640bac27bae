"""What this repository may cost a reader: the numbers that docs/dev/budget.md limits, measured.

`make budget` prints them, and writes lower numbers into that page.
"""

from __future__ import annotations

import ast
import configparser
import dataclasses
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.work_paths import ROOT, functions, paths_of_a_fresh_process

PAGE = ROOT / "docs" / "dev" / "budget.md"

SLACK = 0.02
"""How far below its limit a number may be, as a part of it: a limit is not lowered for each line that goes, and does
not stay where it was when something larger goes. Limits below 50 leave none."""

_ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<most>[\d,]+) \| (?P<why>[^|]*?) ?\|$", re.MULTILINE)
_NAME = re.compile(r"`([^`]+)`")
_PROGRAMS_OF_A_NODE = ("kubelet_plugin", "mps")


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the page."""

    name: str
    most: int
    why: str

    def fault(self, now: int) -> str | None:
        """Return what must be done about a number, None if it is within its limit and not far below it."""
        if now > self.most:
            return f"{self.name}: {now:,}, the limit is {self.most:,}: remove something, or raise it and say why"
        if now < self.least:
            return f"{self.name}: {now:,}, the limit is {self.most:,}: lower it to {now:,}"
        return None

    @property
    def least(self) -> int:
        """Below it the limit is too high."""
        return self.most - int(self.most * SLACK)


def limits(page: str) -> Mapping[str, Limit]:
    """Return the limits by name, in the order of the page. Raises ValueError for a name that occurs twice."""
    found: dict[str, Limit] = {}
    for match in _ROW.finditer(page):
        if match["name"] in found:
            raise ValueError(f"{match['name']} is limited twice")
        found[match["name"]] = Limit(match["name"], int(match["most"].replace(",", "")), match["why"])
    return found


def lowered(page: str, now: Mapping[str, int]) -> str:
    """Return the page with lower limits where they are too high."""

    found = limits(page)

    def row(match: re.Match[str]) -> str:
        limit, number = found[match["name"]], now[match["name"]]
        return match[0].replace(f"| {match['most']} |", f"| {number:,} |") if number < limit.least else match[0]

    return _ROW.sub(row, page)


def measured() -> Mapping[str, int]:
    """Return each number by the name that it has on the page. Takes some seconds: all Python is parsed."""
    product = {name: [parsed(path) for path in python_files(name)] for name in sorted(packages() - {"proto"})}
    modules = [module for found in product.values() for module in found]
    of_a_node = [module for name in _PROGRAMS_OF_A_NODE for module in product[name]]
    prepare, decision, _ = paths_of_a_fresh_process()
    named = limits(PAGE.read_text(encoding="utf-8"))
    classes, plugin = class_names(modules), rooms(ROOT / "kubelet_plugin")
    return {
        **{f"`{name}/`": sum(map(statements, found)) for name, found in product.items()},
        "`tests/`": sum(statements(parsed(path)) for path in python_files("tests")),
        **words_by_part(),
        "files that a decision enters": len(decision),
        "functions that a decision enters": functions(decision),
        "files that a prepare enters": len(prepare),
        "functions that a prepare enters": functions(prepare),
        "journals": len(_NAME.findall(named["journals"].why)),
        "engines": sum(name in classes for name in _NAME.findall(named["engines"].why)),
        "calls that write a file": calls(of_a_node, {"write", "write_if_changed"}),
        "calls that take a lock of the node": calls(of_a_node, {"hold"}),
        "settings": settings(),
        "values of the chart": chart_values(),
        "parameters of the largest constructor": largest_constructor(modules),
        "exceptions to the import rules": import_exceptions((ROOT / ".importlinter").read_text(encoding="utf-8")),
        "arrows between the plugin's rooms": sum(map(len, plugin.values())),
        "arrows that run back up": backward_arrows(plugin),
    }


def packages() -> frozenset[str]:
    """Return the top-level folders of the product."""
    return frozenset(path.parent.name for path in ROOT.glob("*/__init__.py"))


def python_files(folder: str) -> Sequence[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is nothing but a text: the docstring of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def statements(tree: ast.AST) -> int:
    """Return the number of statements in a tree, those in others included, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in outside_expressions(tree))


def outside_expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and what is below it and part of no expression, in a quarter of the time of ast.walk()."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        left += (each for name in _HOLDS_STATEMENTS for each in getattr(node, name, ()) if isinstance(each, ast.AST))


_HOLDS_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")


def words_by_part() -> Mapping[str, int]:
    """Return the words of the pages for users, of the decisions and of the pages for developers."""
    docs = ROOT / "docs"
    design, developers = set(docs.glob("design/*.md")), {ROOT / "CONTRIBUTING.md", *docs.glob("dev/*.md")}
    users = {ROOT / "README.md", *docs.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")} - developers - design
    developers -= {PAGE}
    pages = {"pages for users": users, "decisions": design, "pages for developers": developers}
    return {name: sum(len(page.read_text(encoding="utf-8").split()) for page in found) for name, found in pages.items()}


def class_names(trees: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(
        node.name for tree in trees for node in outside_expressions(tree) if isinstance(node, ast.ClassDef)
    )


def calls(trees: Iterable[ast.AST], names: set[str]) -> int:
    """Return how many calls of methods of these names there are: `self._files.write(name, data)`, not os.write()."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id in {"os", "super"})
        for tree in trees
        for node in ast.walk(tree)
    )


def settings() -> int:
    """Return how many settings the programs have, one that several have once."""
    from dracaena.controller.settings import ControllerSettings
    from dracaena.exporter.settings import ExporterSettings
    from dracaena.kubelet_plugin.settings import PluginSettings
    from dracaena.mps.settings import MpsSettings

    programs = (ControllerSettings, ExporterSettings, PluginSettings, MpsSettings)
    return len({field.name for program in programs for field in dataclasses.fields(program)})


def chart_values() -> int:
    """Return how many values of the chart are documented."""
    chart = ROOT / "deploy" / "helm"
    spec = importlib.util.spec_from_file_location("chart_generator_of_budget", chart / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return sum(1 for _ in module.documented((chart / "dracaena" / "values.yaml").read_text(encoding="utf-8")))


def largest_constructor(trees: Iterable[ast.AST]) -> int:
    """Return the most parameters that an `__init__` has, without self."""
    return max(
        (
            len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        ),
        default=0,
    )


def import_exceptions(contracts: str) -> int:
    """Return how many imports the contracts of .importlinter let pass by name."""
    read = configparser.ConfigParser()
    read.read_string(contracts)
    return sum(len(read[section].get("ignore_imports", "").split("\n")[1:]) for section in read.sections())


def rooms(folder: Path) -> Mapping[str, frozenset[str]]:
    """Return the rooms of a package, its folders and modules, with those that each imports."""
    package = f"dracaena.{folder.name}."
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        named = (name for name in imported(parsed(path)) if name.startswith(package))
        found[room] |= {name.removeprefix(package).partition(".")[0] for name in named} - {room}
    return {room: frozenset(others & found.keys()) for room, others in found.items()}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def backward_arrows(graph: Mapping[str, frozenset[str]]) -> int:
    """Return how many arrows point up if the nodes of a graph are put one above the other in the best order.

    Costs 2**n steps in the number of nodes that reach one another.
    """
    return sum(_backward(circle, graph) for circle in _circles(graph))


def _circles(graph: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the largest groups of nodes of which each reaches each other one."""
    left = set(graph)
    while left:
        first = min(left)
        group = {
            node for node in left if node == first or (node in _reach(first, graph) and first in _reach(node, graph))
        }
        left -= group
        yield tuple(sorted(group))


def _reach(node: str, graph: Mapping[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    left = [node]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left.extend(new)
    return found


def _backward(circle: tuple[str, ...], graph: Mapping[str, frozenset[str]]) -> int:
    """Return the fewest arrows against any order. `fewest[below]`: if these nodes are the lowest ones."""
    others = range(len(circle))
    to = [sum(1 << other for other in others if circle[other] in graph[node]) for node in circle]
    fewest = [0] * (1 << len(circle))
    for below in range(1, len(fewest)):
        fewest[below] = min(
            fewest[below ^ (1 << top)]
            + sum(to[other] >> top & 1 for other in others if (below ^ (1 << top)) >> other & 1)
            for top in others
            if below >> top & 1
        )
    return fewest[-1]


def main() -> int:
    """Print each number beside its limit, lower limits that are too high, and return 1 if a number is beyond one."""
    page = PAGE.read_text(encoding="utf-8")
    now, found = measured(), limits(page)
    for name, limit in found.items():
        sys.stdout.write(f"{name:42}{now[name]:9,}{limit.most:9,}{'  too many' if now[name] > limit.most else ''}\n")
    PAGE.write_text(lowered(page, now), encoding="utf-8")
    return int(any(now[name] > limit.most for name, limit in found.items()))


if __name__ == "__main__":
    sys.exit(main())
