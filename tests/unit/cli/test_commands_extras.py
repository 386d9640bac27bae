"""What is installed without extras: every command that ends by itself works, the others say what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = {
    "bcrypt": "bcrypt",
    "grpcio": "grpc",
    "prometheus-client": "prometheus_client",
    "protobuf": "google.protobuf",
}
"""Package of the extra `programs` → what it installs."""

WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {tuple(MODULES.values())!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from dracaena.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_extra_is_what_the_commands_do_without() -> None:
    named = {re.split(r"[<>=\[]", one)[0] for one in PROJECT["optional-dependencies"]["programs"]}
    assert named == MODULES.keys()
    assert not named & {re.split(r"[<>=\[]", one)[0] for one in PROJECT["dependencies"]}
    assert "dracaena[programs]" in PROJECT["optional-dependencies"]["demo"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("--help", 0, "kubelet-plugin"),
        ("validate deploy/deviceclasses", 0, "0 errors"),
        ("simulate -f deploy/deviceclasses", 0, "nothing to decide"),
        ("doctor --kubeconfig no-such-file", 2, "no such file"),
        ("controller", 2, "prometheus_client is not installed: it comes with the extra `programs` of this package"),
        ("demo", 2, "it comes with the extra `demo` of this package"),
    ],
)
def test_a_command_works_or_names_the_extra_that_it_needs(arguments: str, code: int, words: str) -> None:
    done = without_extras(*arguments.split())
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
