"""Whether this process sees the processes of its node, as a pod does with `hostPID: true`.

Its own /proc does not show that: each PID namespace looks complete from inside. But the kernel translates the process
ID of the listener on a Unix socket into the reader's namespace, and returns 0 for a process that is not in it (unix(7),
SO_PEERCRED; pid_vnr). kubelet is a process of the host, and listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user, group."""

CONNECT_S: Final = 1.0
"""kubelet's queue of connections is never full for this long."""


def sees_listener(path: Path) -> bool | None:
    """Return whether we can see the process that listens on a socket; None if nobody listens."""
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        asked = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        asked.settimeout(CONNECT_S)
        try:
            asked.connect(f"/proc/self/fd/{folder}/{path.name}")  # however long the path is
            credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
        return int(_CREDENTIALS.unpack(credentials)[0]) != 0
