"""What holds for all tests."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

YOUNG_OBJECTS = 400_000
"""How many there may be before the garbage collector looks at them. With Python's 700 it takes a sixth of the time of
collecting the tests and 7 % of a search through many small clusters, and most of what it looks at is in use. With
50,000 it still took 4 % of the tests of the allocator. So many take some 50 MiB."""

gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def pytest_collection_finish() -> None:
    """The tests themselves stay until the end: let the garbage collector not walk all of them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever a test is about, each reason why a pod waits is judged: none may be untrue of the objects."""
    from support.reasons import recording

    recording.install()
    with recording.judged_reasons(tmp_path_factory.getbasetemp() / "untrue-reasons"):
        yield


EVERYTHING = """
import importlib, importlib.metadata, json, pkgutil, sys
import dracaena
for module in pkgutil.walk_packages(dracaena.__path__, "dracaena."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps([sorted(sys.modules), importlib.metadata.packages_distributions()]))
"""


@pytest.fixture(scope="session")
def loaded_by_everything() -> tuple[list[str], dict[str, list[str]]]:
    """The names of all modules that are there once all of ours are imported, and the distributions of each top-level
    name. They are imported from the root of the repository, where the short names would be found."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", EVERYTHING], cwd=root, capture_output=True, text=True, check=True)
    modules, distributions = json.loads(done.stdout)
    return modules, distributions
