"""A TCP proxy on 127.0.0.1 whose connections a test can cut, or let hang: packets are taken and nothing comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Forwards to the host and port of a URL inside a `with` block."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._target = (parts.hostname or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flowing = threading.Event()
        self._flowing.set()
        self._ended = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def hang(self) -> None:
        """Forward nothing any more, in both directions; connections stay open and new ones are taken."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward again, with what was held back."""
        self._flowing.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._flowing.set()
        with self._lock:
            open_now = [*self._sockets, self._listener]
        for each in open_now:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                continue
            with self._lock:
                self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flowing.wait()
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
