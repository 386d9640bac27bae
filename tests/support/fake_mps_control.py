"""The fake nvidia-cuda-mps-control as a program: its command line. The daemon is in fake_mps_daemon.py.

Run by the launcher that fake_mps.py writes, with nothing of the standard library that is written in Python: a
supervisor starts it many times a second, and to import json and socket takes twice as long as all else. As the real
one: `-d` puts a daemon into the background and returns.

A command goes to the daemon as a Python literal on a line, (arguments, text). The answer is the exit code on a line and
then, until the socket ends, what is to be printed.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

sys.path.insert(0, __file__.rpartition("/")[0])

DEFAULT_PIPES = "/tmp/nvidia-mps"


def settings() -> dict[str, str]:
    """What the test wants now, a name and its value a line; read anew at each command."""
    with open(os.environ["FAKE_MPS"], encoding="utf-8") as file:
        return {name: value for name, _, value in (line.rstrip("\n").partition(" ") for line in file)}


def main(arguments: list[str]) -> int:
    wanted = settings()
    if wanted["mode"] == "hang":
        time.sleep(3600)
    if wanted["mode"] == "rubbish":
        sys.stdout.write("\x00\x7f{{ 17 segfaults\n")
        return 0
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES)
    protocol = 3 if arguments[-2:] == ["-p", "3"] or "-p" in arguments else 2
    if protocol == 3 and int(wanted["newest"]) < 3:
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
    peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    answer = b""
    try:
        peer.connect(f"{pipes}/control")
        peer.sendall(f"{(arguments, text)!r}\n".encode())
        while part := peer.recv(65536):
            answer += part
        code, _, said = answer.decode().partition("\n")
        result = int(code)
    except (OSError, ValueError):
        from mps_model import NO_DAEMON

        result, said = 1, f"{NO_DAEMON}\n"
    finally:
        peer.close()
    sys.stdout.write(said)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
