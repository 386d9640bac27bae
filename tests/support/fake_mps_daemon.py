"""The daemon of the fake nvidia-cuda-mps-control: mps_model.py behind a socket.

With the standard library alone, so that it starts in milliseconds. As the real one: a daemon that cannot bind its
socket ends without a word; its servers are processes of their own that inherit its environment and outlive it.
"""

from __future__ import annotations

import ast
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from fake_mps_control import settings  # type: ignore[import-not-found]
from mps_model import MpsModel  # type: ignore[import-not-found]

SERVER = "nvidia-cuda-mps-server"


def start(pipes: str, protocol: int, wanted: dict[str, str], multi_user: bool) -> int:
    if wanted["mode"] == "refuses":
        sys.stdout.write("An instance of this daemon is already running\n")
        return 1
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    log = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"
    if wanted["mode"] == "dies":
        log.write_text("Start MPS\nFailed to initialise: out of luck\n")
        os._exit(1)
    log.write_text("Start MPS\n")
    try:
        Daemon(pipes, protocol, multi_user).serve()
    except OSError as error:
        log.write_text(f"Failed to bind: {error}\n")
    os._exit(0)


def _gpus() -> tuple[str, ...]:
    return tuple(settings()["gpus"].split(","))


class Daemon:
    def __init__(self, pipes: str, protocol: int, multi_user: bool) -> None:
        self.pipes = pipes
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.model = MpsModel(
            protocol,
            visible=tuple(visible.split(",")) if visible else _gpus(),
            present=lambda: set(_gpus()),
            spawn=self.spawn,
            reap=self.reap,
            multi_user=multi_user,
            most_clients=int(settings()["clients"]),
        )
        self.selector = selectors.DefaultSelector()
        self.listening: dict[str, socket.socket] = {}
        self.clients: dict[socket.socket, int] = {}

    def spawn(self, uid: int) -> int:
        other = {"user": uid} if uid != os.getuid() and os.getuid() == 0 else {}
        started = subprocess.Popen([SERVER, "86400"], executable="/bin/sleep", start_new_session=True, **other)  # type: ignore[call-overload]
        self.servers[started.pid] = started
        return int(started.pid)

    def reap(self, pid: int) -> None:
        started = self.servers.pop(pid)
        started.kill()
        started.wait()

    def serve(self) -> None:
        Path(self.pipes).mkdir(parents=True, exist_ok=True)
        self.listen("")
        (Path(self.pipes) / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while not self.model.ended:
            for key, _ in self.selector.select(timeout=0.05):
                self.handle(key.fileobj, key.data)  # type: ignore[arg-type]
            self.look_after_servers()
            self.follow_sockets()
        for where in list(self.listening):
            self.unlisten(where)
        with contextlib.suppress(OSError):
            (Path(self.pipes) / "nvidia-cuda-mps-control.pid").unlink()

    def look_after_servers(self) -> None:
        for pid, started in list(self.servers.items()):
            if started.poll() is not None:
                del self.servers[pid]
                self.model.server_died(pid)

    def follow_sockets(self) -> None:
        """Protocol 3: a socket for each server and each of its namespaces."""
        if self.model.protocol == 3:
            wanted = {f"{s.name}/{name}" for s in self.model.servers.values() for name in s.namespaces}
            wanted |= {s.name for s in self.model.servers.values()}
            for where in sorted(set(self.listening) - wanted - {""}):
                self.unlisten(where)
            for where in sorted(wanted - set(self.listening)):
                self.listen(where)

    def tell_of_stillborn(self, arguments: list[str]) -> None:
        """A server that ends as soon as it starts leaves a line in the daemon's log, and nothing else."""
        if arguments[:2] == ["server", "create"] and arguments[2] not in self.model.servers:
            with (Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log").open("a") as log:
                log.write(f"Server {arguments[2]} exited with status 1\n")

    def listen(self, where: str) -> None:
        path = Path(self.pipes) / where / "control"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen(64)
        self.listening[where] = listener
        self.selector.register(listener, selectors.EVENT_READ, ("accept", where))

    def unlisten(self, where: str) -> None:
        listener = self.listening.pop(where)
        self.selector.unregister(listener)
        listener.close()
        path = Path(self.pipes) / where / "control"
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if where:
                path.parent.rmdir()

    def handle(self, fileobj: socket.socket, data: tuple[str, str]) -> None:
        what, where = data
        if what == "accept":
            peer, _ = fileobj.accept()
            self.selector.register(peer, selectors.EVENT_READ, ("read", where))
            return
        line = b""
        with contextlib.suppress(OSError):
            line = fileobj.recv(65536)
        if not line:
            self.model.disconnect(self.clients.pop(fileobj, -1))
            self.selector.unregister(fileobj)
            fileobj.close()
            return
        message = ast.literal_eval(line.decode())
        if isinstance(message, tuple):
            arguments, text = message
            code, said = self.model.command(arguments, text)
            self.tell_of_stillborn(arguments)
            self.follow_sockets()
            fileobj.sendall(f"{code}\n{said}".encode())
            fileobj.shutdown(socket.SHUT_WR)
        elif "client" in message:
            self.connect(fileobj, where, message)
        else:
            self.model.fault(self.clients[fileobj])

    def connect(self, peer: socket.socket, where: str, message: dict[str, Any]) -> None:
        server, _, namespace = where.partition("/")
        code = self.model.connect(message["client"], message["uid"], server=server, namespace=namespace or "default")
        if code == 0:
            self.clients[peer] = message["client"]
        peer.sendall(f"{code}\n".encode())
