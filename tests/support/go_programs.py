"""Small Go programs of this repository, built with published modules whose checksums are committed. Needs Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BUILD_S: Final = 540
"""The first build also fetches the modules and compiles what they need."""


class GoError(Exception):
    """A program could not be built or run; the text says why."""


def build(folder: Path, program: Path, *, modules: str = "go.mod") -> None:
    """Build the program of a folder, with the modules that a file there names. Raises GoError."""
    go = shutil.which(os.environ.get("GO", "go"))
    if go is None:
        raise GoError("no Go here: install it, or name it in GO")
    run([go, "build", "-mod=readonly", "-o", str(program), f"-modfile={modules}", "."], folder)


def run(command: Sequence[str], folder: Path, told: str = "") -> str:
    """Run a program with this on its standard input, and return what it printed. Raises GoError."""
    done = subprocess.run(command, cwd=folder, input=told, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise GoError(f"{' '.join(command[:2])} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout
