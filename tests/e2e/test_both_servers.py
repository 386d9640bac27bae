"""The integration tests of controller and plugin, as they are, on a real kube-apiserver."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.api_server import BareApiServer
from e2e.run import BINARIES, LOGS
from support.api_ground import REAL_SERVER

INTEGRATION = Path(__file__).parents[1] / "integration"
PROGRAMS = ("test_controller_*.py", "test_kubelet_plugin_program.py", "test_kubelet_plugin_nvml.py")

WITHIN_S = 600
"""For all of them: about as long as on the embedded server; the rest is for a loaded machine."""


@pytest.mark.timeout(WITHIN_S + 120)
def test_controller_and_plugin_pass_the_same_tests_on_a_real_server(tmp_path: Path) -> None:
    files = [str(path) for pattern in PROGRAMS for path in sorted(INTEGRATION.glob(pattern))]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not embedded_only", *files]
    with BareApiServer(tmp_path, Path(os.environ[BINARIES]), Path(os.environ[LOGS])) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(kubeconfig(server)), encoding="utf-8")
        ended = subprocess.run(
            command,
            env={**os.environ, REAL_SERVER: str(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    print(ended.stdout)  # noqa: T201 - pytest shows it beside a failure
    assert ended.returncode == 0


def kubeconfig(server: BareApiServer) -> dict[str, object]:
    """Return how its administrator reaches a server."""
    authority = base64.b64encode(server.authority.read_bytes()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "alone",
        "clusters": [{"name": "alone", "cluster": {"server": server.url, "certificate-authority-data": authority}}],
        "users": [{"name": "admin", "user": {"token": server.token}}],
        "contexts": [{"name": "alone", "context": {"cluster": "alone", "user": "admin"}}],
    }
