"""The fake nvidia-cuda-mps-control as a program: its command line. The daemon is in fake_mps_daemon.py.

Run by the launcher that fake_mps.py writes, with as little of the standard library as there can be: a supervisor starts
it many times a second, and each import costs more than the call. As the real one: `-d` puts a daemon into the
background and returns.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

sys.path.insert(0, __file__.rpartition("/")[0])

DEFAULT_PIPES = "/tmp/nvidia-mps"


def settings() -> dict[str, Any]:
    """What the test wants now; read anew at each command."""
    with open(os.environ["FAKE_MPS"], encoding="utf-8") as file:
        read: dict[str, Any] = json.load(file)
    return read


def main(arguments: list[str]) -> int:
    wanted = settings()
    if wanted["mode"] == "hang":
        time.sleep(3600)
    if wanted["mode"] == "rubbish":
        sys.stdout.write("\x00\x7f{{ 17 segfaults\n")
        return 0
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES)
    protocol = 3 if arguments[-2:] == ["-p", "3"] or "-p" in arguments else 2
    if protocol == 3 and wanted["newest"] < 3:
        from mps_model import USAGE_2  # type: ignore[import-not-found]

        sys.stdout.write(USAGE_2)
        return 1
    if "-h" in arguments:
        from mps_model import USAGE_2, USAGE_3

        sys.stdout.write(USAGE_3 if protocol == 3 else USAGE_2)
        return 0
    if "-d" in arguments:
        from fake_mps_daemon import start  # type: ignore[import-not-found]

        started: int = start(pipes, protocol, wanted, any("multiuser" in each for each in arguments))
        return started
    return ask(pipes, arguments, "" if arguments else sys.stdin.read())


def ask(pipes: str, arguments: list[str], text: str) -> int:
    """Hand one call to the daemon."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(f"{pipes}/control")
            peer.sendall(json.dumps({"arguments": arguments, "text": text}).encode() + b"\n")
            answer = json.loads(peer.makefile().readline())
    except (OSError, ValueError):
        from mps_model import NO_DAEMON

        sys.stdout.write(f"{NO_DAEMON}\n")
        return 1
    sys.stdout.write(answer["text"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
