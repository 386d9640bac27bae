"""`make` as far as it decides something itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    command = ("make", "--dry-run", "--no-print-directory", "-C", str(ROOT), "demo", setting)
    alone = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=alone).stdout
    assert printed.splitlines()[-1].split()[1:] == ["demo", *(["--keep"] if keeps else [])]
