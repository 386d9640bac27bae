"""helm as an admin calls it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "dracaena"

WAIT = "--timeout=4m"
"""For `--wait`: both parts are ready after 20 s on a free machine."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one call printed, and its exit code."""

    code: int
    text: str


class Helm:
    """One administrator's helm, with files of its own below `home`."""

    def __init__(self, binary: Path, kubeconfig: Path, home: Path) -> None:
        self._binary = binary
        self._home = home
        self.environment = {
            "KUBECONFIG": str(kubeconfig),
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
        }

    def run(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> Said:
        """Call helm, with `values` in a file; nothing is checked."""
        self._home.mkdir(parents=True, exist_ok=True)
        more: list[str] = []
        if values is not None:
            file = self._home / "values.json"
            file.write_text(json.dumps(values), encoding="utf-8")
            more = ["--values", str(file)]
        command = [str(self._binary), *map(str, arguments), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        return Said(done.returncode, done.stdout + done.stderr)

    def do(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Call helm, which must succeed."""
        said = self.run(*arguments, values=values)
        assert said.code == 0, f"helm {' '.join(map(str, arguments))}: {said.text}"
        return said.text
