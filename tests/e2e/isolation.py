"""A world of its own for one run: the first process of fresh namespaces prepares them, runs the tests and ends all.

Processes, mounts, addresses and ports of the cluster exist only in here, so nothing meets what the machine runs, and
the kernel ends every process when this one ends, however that comes (pid_namespaces(7)). `unshare --kill-child` ends
this one when the runner is gone, even by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.prerequisites import NAMESPACES

ROOT = Path("/run/e2e")
"""All files of the run, in memory: short enough for socket paths, gone with the namespace."""

NODE_ADDRESS = "10.97.0.1"
"""Address of the node: kubelet refuses a loopback address (127.0.0.0/8), so the loopback interface gets one more."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def command(arguments: Sequence[str], *, module: str = "pytest") -> list[str]:
    """Return the command that runs a module, pytest by default, with these arguments in a world of its own."""
    namespaces = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"]
    return [*namespaces, sys.executable, "-P", "-m", "e2e.isolation", module, *arguments]


def set_boot_id(value: str) -> None:
    """Make all programs in here see another boot, as after a restart of the machine."""
    (ROOT / "boot_id").write_text(f"{value}\n", encoding="ascii")


def _prepare() -> None:
    """Hide the parts of the machine that programs write to, and bring the network up."""
    for folder in ("/run", "/var/log"):
        _call("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder)
    _call("mount", "--make-rshared", "/")  # what kubelet and containerd expect of /
    ROOT.mkdir()
    set_boot_id("00000000-0000-4000-8000-000000000001")
    _call("mount", "--bind", str(ROOT / "boot_id"), str(BOOT_ID))
    _call("ip", "link", "set", "lo", "up")
    _call("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", "lo")


def _call(*arguments: str) -> None:
    subprocess.run(arguments, check=True)


def _run(module: str, arguments: Sequence[str]) -> int:
    """Run the module and take in every process that loses its parent, as a first process must."""
    # Ctrl-C reaches the module by itself; this process waits until it has ended the cluster in order.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    tests = subprocess.Popen([sys.executable, "-P", "-m", module, *arguments])
    signal.signal(signal.SIGTERM, lambda _number, _frame: tests.send_signal(signal.SIGINT))
    while True:
        pid, status = os.wait()
        if pid == tests.pid:
            tests.returncode = os.waitstatus_to_exitcode(status)
            return tests.returncode if tests.returncode >= 0 else 1


if __name__ == "__main__":
    _prepare()
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
