"""The way of a decision from the plan to the first write. docs/dev/budget.md limits how long it may be."""

from __future__ import annotations

import re
import sys

from support.work_paths import ROOT, paths_of_a_fresh_process, told


def told_files() -> set[str]:
    """Return the files that docs/dev/architecture.md names on the path of a decision."""
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text()
    table = page.partition("## The path of a decision")[2].partition("\n| step |")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_/]+\.py)`", table)
    return {name if (ROOT / name).is_file() else f"controller/{name}" for name in names}


def test_a_decision_enters_the_files_that_the_page_names() -> None:
    _, path, _ = paths_of_a_fresh_process()
    sys.stdout.write(told(path))  # pytest -s shows it
    assert path.keys() >= {"controller/reconciler.py", "controller/allocation/walk/walk.py"}
    assert path.keys() == told_files(), "docs/dev/architecture.md shows another path"


def test_a_decision_next_to_pods_that_wait_also_enters_their_lines() -> None:
    *_, beside_waiting = paths_of_a_fresh_process()
    assert beside_waiting.keys() == told_files() | {"controller/queue/waiting_lines.py"}
