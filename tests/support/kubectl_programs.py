"""The kubectls of this machine: those that `make e2e` has built, else the one on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.version import NEWEST, RELEASES
from e2e.binaries import cache_root
from support.seeds import sampled

Run = Callable[..., subprocess.CompletedProcess[str]]

LONGEST_S = 60
"""No command of the tests waits so long, on a busy machine either."""

SHORT_LIVED = {"GOGC": "off", "GOMAXPROCS": "1"}
"""For a process that lives for 50 ms Go's collector and its threads are a fifth of the CPU."""


VERSIONS = sampled(sorted(RELEASES, key=lambda version: version != NEWEST), 1, len(RELEASES))
"""The newest for `make test`, the others for `make test-search`: each command is a process of its own, or two."""


def found_kubectl(version: str) -> Path | None:
    """The kubectl of a version of Kubernetes; the one on PATH stands for every version that is not built."""
    built = sorted(cache_root(os.environ).glob(f"kubernetes-{version}-*/kubectl"))
    on_path = shutil.which("kubectl")
    return built[-1] if built else Path(on_path) if on_path else None


def kubectl_of(version: str) -> Path:
    """The same; skips the test where there is none."""
    program = found_kubectl(version)
    if program is None:
        pytest.skip(f"no kubectl of Kubernetes {version}: neither built by `make e2e` nor on PATH")
    return program


def kubectl_runner(program: Path, server: ApiServer, folder: Path) -> Run:
    """Return run(*arguments, code=0, stdin=""), which checks the exit code."""
    config = folder / "kubeconfig"
    config.write_text(yaml.safe_dump(server.kubeconfig()))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(config)} | SHORT_LIVED

    def run(*arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(program), *arguments],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert done.returncode == code, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done

    return run
