"""Whether a process sees those of its node, asked over real sockets and from a real PID namespace."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener

ASK = (
    "import sys; from pathlib import Path; "
    "from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener; "
    "print(sees_listener(Path(sys.argv[1])))"
)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as kubelet:
        path = tmp_path / "kubelet.sock"
        kubelet.bind(str(path))
        kubelet.listen()
        yield path


def asked_by(path: Path, *before: str) -> str:
    done = subprocess.run([*before, sys.executable, "-c", ASK, str(path)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


def makes_namespaces() -> bool:
    """Whether this process has CAP_SYS_ADMIN, bit 21 of CapEff (capabilities(7)), which unshare(2) asks for."""
    (effective,) = re.findall(r"^CapEff:\s+(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(int(effective, 16) >> 21 & 1)


def test_a_process_of_the_same_namespace_is_seen(listening: Path) -> None:
    assert sees_listener(listening) is True
    assert asked_by(listening) == "True"


@pytest.mark.skipif(not makes_namespaces(), reason="needs CAP_SYS_ADMIN, which root of most containers lacks")
def test_from_a_namespace_of_its_own_it_is_not(listening: Path) -> None:
    assert asked_by(listening, "unshare", "--pid", "--fork", "--mount-proc") == "False"


def test_where_nobody_listens_nothing_is_known(tmp_path: Path) -> None:
    assert sees_listener(tmp_path / "kubelet.sock") is None
    assert sees_listener(tmp_path / "no" / "kubelet.sock") is None
    (tmp_path / "kubelet.sock").write_text("")
    assert sees_listener(tmp_path / "kubelet.sock") is None
