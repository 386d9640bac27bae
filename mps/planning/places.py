"""The layout of the supervisor's folder, whose path is the same on the host and in the container."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.mps.planning.state import V2
from dracaena.mps.protocol.v3 import server_name

CLIENT_PIPES_ARE_READ_ONLY = True
"""Whether containers mount their pipe folder read-only. Connecting to a socket and writing into a named pipe need no
more, and root in a container cannot replace the socket through which others reach their server. Not yet tried with the
driver's own clients: tests/device/on_real_mps.py does."""

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux. With a longer one the daemon starts, cannot bind, and ends silently."""


@dataclass(frozen=True, slots=True)
class MpsPlaces:
    """Folders of one supervisor."""

    root: str

    @property
    def pipes(self) -> str:
        """Pipe folder of the node's daemon (protocol 3), and parent of the pipe folders of GPUs."""
        return f"{self.root}/pipe"

    @property
    def logs(self) -> str:
        """Logs of the driver's programs, for people to read."""
        return f"{self.root}/log"

    @property
    def shm(self) -> str:
        """Parent of the file systems that servers and clients of protocol 2 see at /dev/shm."""
        return f"{self.root}/shm"

    @property
    def journal(self) -> str:
        """Compute modes to restore, one file per GPU."""
        return f"{self.root}/journal"

    def pipes_of(self, gpu: str) -> str:
        """Pipe folder of a GPU's daemon (protocol 2), or of its server (protocol 3)."""
        return f"{self.pipes}/{server_name(gpu)}"

    def kept_of(self, gpu: str) -> str:
        """Folder of further links to the sockets in a GPU's pipe folder (protocol 2)."""
        return f"{self.root}/kept/{server_name(gpu)}"

    def logs_of(self, gpu: str) -> str:
        """Log folder of the same."""
        return f"{self.logs}/{server_name(gpu)}"

    def shm_of(self, gpu: str) -> str:
        """What a GPU's server and clients see at /dev/shm (protocol 2)."""
        return f"{self.shm}/{server_name(gpu)}"

    def client_pipes(self, gpu: str, share: str, protocol: int) -> str:
        """Folder that a share's containers see at CLIENT_PIPES."""
        return self.pipes_of(gpu) if protocol == V2 else f"{self.pipes_of(gpu)}/{share}"

    def longest_socket(self) -> str:
        """Return the longest path at which a daemon of ours listens."""
        return f"{self.client_pipes('GPU-' + '0' * 36, 's_' + '0' * 16, 3)}/control"


def too_long(places: MpsPlaces) -> str | None:
    """Return what is wrong with the folder's name, None if sockets fit below it."""
    path = places.longest_socket()
    over = len(path.encode()) - SOCKET_PATH_BYTES
    if over <= 0:
        return None
    return (
        f"the folder {places.root} is {over} bytes too long: the path of a Unix socket holds {SOCKET_PATH_BYTES}, "
        f"and the daemon listens at {path}. Give a shorter --root"
    )
