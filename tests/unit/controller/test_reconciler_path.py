"""How many files a reader has to open to follow a decision, from the plan to the first write."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dracaena.controller
from support.allocation import claim, pod, request
from support.reconciling import Bench

ROOT = Path(dracaena.controller.__file__).resolve().parents[1]

PACKAGES = {link.name for link in (ROOT / "src" / "dracaena").iterdir() if link.is_symlink()}

MOST_FILES = 27
"""Files that a warm decision may enter while no pod waits. A reader keeps them all in mind, so it only ever falls."""


@contextmanager
def entered(path: dict[str, set[str]]) -> Iterator[None]:
    """Note the functions of ours that are called, by file, in the order in which the files are first entered."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and not code.co_filename.startswith("<"):
            file = Path(code.co_filename).resolve()
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in PACKAGES:
                path.setdefault(file.relative_to(ROOT).as_posix(), set()).add(code.co_qualname)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def decide(bench: Bench, number: int) -> dict[str, set[str]]:
    """Decide for a new pod, and return what was entered until the first write."""
    bench.add(claim(f"c{number}", request(count=2)), pod(f"p{number}", f"c{number}"))
    path: dict[str, set[str]] = {}
    bench.api.before = lambda verb, key: sys.setprofile(None)
    with entered(path):
        step = bench.reconciler.plan(f"default/p{number}")
        assert bench.reconciler.carry_out(f"default/p{number}", step)
    return path


def told_files() -> set[str]:
    """Return the files that docs/architecture.md names on the path of a decision."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## The path of a decision")[2].partition("\n| step |")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_/]+\.py)`", table)
    return {name if (ROOT / name).is_file() else f"controller/{name}" for name in names}


def test_a_decision_enters_no_more_files_than_before() -> None:
    bench = Bench()
    for number in range(2):
        decide(bench, number)
    path = decide(bench, 2)
    told = "\n".join(f"{len(names):4} {file}" for file, names in path.items())
    sys.stdout.write(f"{len(path)} files, {sum(map(len, path.values()))} functions:\n{told}\n")  # pytest -s shows it
    assert path.keys() >= {"controller/reconciler.py", "controller/allocation/walk/walk.py"}
    assert len(path) <= MOST_FILES
    assert path.keys() == told_files(), "docs/architecture.md shows another path"


def test_a_decision_beside_pods_that_wait_also_enters_their_lines() -> None:
    bench = Bench()
    bench.add(claim("many", request(count=99)), pod("waits", "many"))
    assert bench.reconciler.carry_out("default/waits", bench.reconciler.plan("default/waits"))
    for number in range(2):
        decide(bench, number)
    assert decide(bench, 2).keys() == told_files() | {"controller/queue/waiting_lines.py"}
