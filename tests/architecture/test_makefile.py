"""`make` as far as it decides something itself."""

from __future__ import annotations

import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[2]


def planned(*arguments: str) -> str:
    """Return what make would do."""
    command = ("make", "--dry-run", "--no-print-directory", "-C", str(ROOT), *arguments)
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=alone).stdout


@pytest.mark.parametrize(
    ("setting", "keeps"),
    [
        ("KEEP=", False),
        ("KEEP=0", False),
        ("KEEP=no", False),
        ("KEEP=false", False),
        ("KEEP=1", True),
        ("KEEP=y", True),
    ],
)
def test_keep_is_off_when_it_says_so(setting: str, keeps: bool) -> None:
    printed = planned("demo", setting)
    assert printed.splitlines()[-1].split()[1:] == ["demo", *(["--keep"] if keeps else [])]


def test_the_images_python_runs_the_unit_tests_of_every_package_and_no_others(tmp_path: Path) -> None:
    """Whatever Python that is: only what make would do is looked at."""
    python = tmp_path / "python9.99"
    python.write_text("#!/bin/sh\n", encoding="ascii")
    python.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    lines = planned("unit-image-python", "IMAGE_PYTHON=9.99", f"PATH={path}").splitlines()
    (line,) = [line for line in lines if " -m pytest " in line]
    packages = {path.name for path in (ROOT / "src" / "dracaena").iterdir() if (path / "__init__.py").exists()}
    assert {word for word in line.split() if word.startswith("tests/")} == {f"tests/unit/{name}" for name in packages}


def selected_by(words: list[str]) -> Expression:
    """Return what pytest selects by marks."""
    return Expression.compile(words[words.index("-m") + 1])


def pytest_words(target: str) -> list[str]:
    """Return what a target says to pytest."""
    (line,) = [line for line in planned(target).splitlines() if " -m pytest " in line]
    words = shlex.split(line)
    return words[words.index("pytest") + 1 :]


@pytest.mark.parametrize("marks", [set[str](), {"search"}, {"long"}])
def test_each_test_is_in_one_tier_and_properties_are_searched_further_in_the_larger_ones(marks: set[str]) -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {"-m", "--hypothesis-profile"}.isdisjoint(pytest_words("unit") + pytest_words("integration"))
    tiers = {
        "test": selected_by(options["addopts"]),
        "search": selected_by(pytest_words("test-search")),
        "long": selected_by(pytest_words("test-long")),
    }
    own = next(iter(marks), "test")

    def tiers_of(*given: str) -> set[str]:
        def is_given(mark: str, /, **_: str | int | bool | None) -> bool:
            return mark in given

        return {name for name, tier in tiers.items() if tier.evaluate(is_given)}

    assert tiers_of(*marks) == {own}
    assert tiers_of(*marks, "hypothesis") == (set(tiers) if own == "test" else {own})


def test_the_thirds_of_make_test_are_all_unit_tests() -> None:
    two = [
        word for name in ("unit-controller", "unit-plugin") for word in pytest_words(name) if word.startswith("tests/")
    ]
    rest = pytest_words("unit-rest")
    assert [word.removeprefix("--ignore=") for word in rest if word.startswith("--ignore=")] == two
    assert [word for word in rest if word.startswith("tests/")] == pytest_words("unit")[-2:]
    assert all(any((ROOT / each).rglob("test_*.py")) for each in two)


@pytest.mark.parametrize("target", ["test-search", "test-long"])
def test_the_larger_tiers_look_through_all_that_make_test_runs(target: str) -> None:
    folders = {word for word in pytest_words(target) if word.startswith("tests/")}
    assert folders == {"tests/unit", "tests/integration"}
    of_test = {word for name in ("unit", "integration") for word in pytest_words(name) if word.startswith("tests/")}
    assert of_test - folders == {"tests/architecture"}
