"""Unit tests mirror the source: from a path of one a reader knows the path of the other.

* `tests/unit/<package>/test_<module>.py` tests `<package>/<module>.py`, or the folder `<package>/<module>/`.
* `tests/unit/<package>/test_<module>_<aspect>.py` tests one aspect of the same.
* What only a whole package promises is listed in WHOLE_PACKAGE, with the reason why no one module stands for it.
* Our own tools for tests are tested the same way: `tests/unit/bench/test_worth.py` tests `tests/bench/worth.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"

TOOLS = ("bench", "conformance", "e2e", "page", "support", "transcripts")
"""Packages that lie in tests/."""

NOT_PYTHON = {"chart": "deploy", "docs": "docs"}
"""Folders of tests about files that are no modules, and where those files are."""

WHOLE_PACKAGE = {
    "cel": {
        "against_cel_cpp": "the language beside another implementation of it",
        "evaluation": "an expression from its text to its value or error, through all stages",
        "fuzz": "any text and any value end in an answer or in an error of ours",
        "hostile_selectors": "what an expression may cost, over all functions and operators",
        "vectors": "values, errors and costs as Kubernetes has recorded them",
    },
    "cel/library": {
        "functions": "what holds for the functions of every file",
        "vectors": "each function and overload as Kubernetes has recorded it",
    },
    "cli": {"hostile_slices": "what a node may cost whoever looks at it, by each command and by the page"},
    "cel/values/regex": {"vectors": "patterns and texts with the answers of Go's regexp"},
    "controller": {
        "doubled_devices": "orders of events in which a device once went to two claims, through all services",
        "found_interleavings": "schedules of all services that once broke a rule",
        "hostile_pods": "what a tenant may cost others: queue, budgets and decisions together",
        "hostile_changes": "what changes that a tenant makes over and over may cost others",
        "hostile_changes_drawn": "the same in sequences drawn by chance",
        "interleaving_stories": "schedules of all services, told step by step",
        "interleavings": "schedules of all services, drawn by chance",
        "leaks": "what is left in the tables of all services after many pods",
        "names_of_others": "whatever is told to users, by whichever service",
        "other_namespaces": "cases of the same: reasons, collisions and capacities",
        "too_many_requests": "an answer of the server to any write, and when it is sent again",
    },
    "demo": {"stand_ins": "the controller manager and the scheduler together, over HTTP"},
    "demo/apiserver": {
        "any_body": "whatever a client sends is answered by the API",
        "transcripts": "the server answers as a recorded kube-apiserver did",
    },
    "kubelet_plugin": {
        "bad_disk": "a full disk or a wrong folder fails one claim, in whichever file it is met",
        "beside_nvidia_ctk": "the search for driver files and the spec together, beside recorded specs of NVIDIA's",
        "first_looks": "every type that any module decodes",
        "whole_node": "a whole node with claims of every kind, damaged files, and all that goes wrong at once",
        "power_cut": "each kind of file, torn",
    },
    "validation": {
        "server_verdicts": "kinds of all files, with the verdicts of kube-apiserver",
        "strict_reader": "kinds of all files, beside the controller's reader",
        "transcripts": "kinds of all files, beside recorded creations",
    },
}
"""Package -> name of a test, less `test_` -> why no one module stands for it."""


def package_of(test: Path) -> Path:
    """Return the folder whose modules the tests beside this one test."""
    package = test.relative_to(UNIT).parent
    return (ROOT / "tests" if package.parts[0] in TOOLS else ROOT) / package


def subject(package: Path, name: str) -> Path | None:
    """Return the module or folder that a test of this name tests: the longest name that is there."""
    words = name.split("_")
    for count in range(len(words), 0, -1):
        path = package / "_".join(words[:count])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if any(each.is_file() for each in path.glob("*")):  # a folder with nothing but __pycache__ was removed
            return path
    return None


def unit_tests() -> list[Path]:
    return sorted(UNIT.rglob("test_*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(UNIT).as_posix()


def is_mirrored(test: Path) -> bool:
    return subject(package_of(test), test.stem.removeprefix("test_")) is not None


def listed() -> list[Path]:
    return [UNIT / package / f"test_{name}.py" for package, names in WHOLE_PACKAGE.items() for name in names]


def test_each_folder_of_unit_tests_has_its_package() -> None:
    for folder in sorted({test.parent for test in unit_tests()}):
        name = folder.relative_to(UNIT).as_posix()
        source = ROOT / NOT_PYTHON[name] if name in NOT_PYTHON else package_of(folder / "test_x.py")
        assert source.is_dir(), f"tests/unit/{name} tests no package: {source.relative_to(ROOT)} is not there"


def test_each_unit_test_is_named_after_what_it_tests() -> None:
    known = set(listed())
    stray = [
        name_of(test)
        for test in unit_tests()
        if test.parent.name not in NOT_PYTHON and test not in known and not is_mirrored(test)
    ]
    assert not stray, f"no module has these names; rename them to test_<module>[_<aspect>].py: {stray}"


def test_what_is_listed_is_there_and_needs_to_be() -> None:
    for test in listed():
        assert test.is_file(), f"{name_of(test)} is listed here and is not there"
        assert not is_mirrored(test), f"{name_of(test)} is listed here and has a module of its name: take it off"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("library", "library.py"),
        ("mig", "mig.py"),
        ("mig_planted", "mig.py"),
        ("mig_readers", "mig_readers.py"),
        ("mig_readers_planted", "mig_readers.py"),
        ("no_such", None),
        ("libr", None),
    ],
)
def test_the_longest_name_counts(tmp_path: Path, name: str, found: str | None) -> None:
    for module in ("library", "mig", "mig_readers"):
        (tmp_path / f"{module}.py").touch()
    path = subject(tmp_path, name)
    assert (path.name if path else None) == found
