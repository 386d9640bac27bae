"""Builds the trivial driver on the Go library, where Go is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "reference"
MODULE = "k8s.io/dynamic-resource-allocation"


class BuildError(Exception):
    """Go is not there or did not build it; str() says what it said."""


def build(target: Path) -> Path:
    """Build it into a folder and return the program: 20 s when Go has nothing cached."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise BuildError("Go is not installed")
    program = target / "reference"
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "."],
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"go build failed: {done.stderr.strip()}")
    return program


def library_version() -> str:
    """Return the version of the library, as go.mod has it."""
    lines = (SOURCE / "go.mod").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.strip().startswith(MODULE))
