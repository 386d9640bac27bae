"""What is committed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_lock_files_hold_names_versions_and_hashes_only() -> None:
    for name in ("runtime.txt", "dev.txt", "site.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert "://" not in text
        assert "--index-url" not in text
        requirements = re.findall(r"^[A-Za-z0-9._-]+==\S+", text, re.MULTILINE)
        assert len(requirements) > 20
        for block in re.split(r"\n(?=\S)", text.strip()):
            assert "--hash=sha256:" in block, block


def test_dev_lock_agrees_with_the_runtime_lock() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text()
        return set(re.findall(r"^[A-Za-z0-9._-]+==[^\s;]+", text, re.MULTILINE))

    assert pins("runtime.txt") <= pins("dev.txt")


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(re.findall(r"^  make ([a-z0-9-]+) ", done.stdout, re.MULTILINE)) == targets
