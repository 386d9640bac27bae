"""`make` as far as it decides something itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
