"""The running server: a listening socket, a thread per connection, a storage of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Protocol, Self

from dracaena.demo.apiserver.admission import PodPolicy, unchanged
from dracaena.demo.apiserver.faults import Faults
from dracaena.demo.apiserver.http import Handler
from dracaena.demo.apiserver.meta import NameSource
from dracaena.demo.apiserver.resources import NAMESPACE
from dracaena.demo.apiserver.router import AnswerStream, ApiAnswer, ApiRequest, Router
from dracaena.demo.apiserver.storage import ObjectStorage
from dracaena.demo.apiserver.times import utc_now
from dracaena.demo.apiserver.version import NEWEST, RELEASES
from dracaena.demo.apiserver.writes import Options, Target, Writes

_HOST: Final = "127.0.0.1"
_FIRST_NAMESPACES: Final = ("default", "kube-system")
_BACKLOG: Final = 128  # connections that wait to be accepted; a bench opens many at once


class Answers(Protocol):
    """What is behind the socket."""

    def answer(self, request: ApiRequest) -> ApiAnswer | AnswerStream:
        """Answer one request, from many threads at a time. Raises `ApiError` for refusals, UnknownPathError."""
        ...


class Listener(ThreadingHTTPServer):
    """The socket and its threads. Remembers its connections so that stopping can end them."""

    daemon_threads = False
    request_queue_size = _BACKLOG
    allow_reuse_address = True

    def __init__(self, port: int, faults: Faults) -> None:
        super().__init__((_HOST, port), Handler)
        self.faults = faults
        self.stopping = threading.Event()
        self.router: Answers
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{_HOST}:{self.server_port}"

    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig document for kubectl and clients. It has no credentials, because nobody is asked for any."""
        name = "dracaena-demo"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        }

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its thread."""
        with self._connections_lock:
            self._connections.add(request)
        try:
            if self.stopping.is_set():
                self.shutdown_request(request)
            else:
                super().process_request_thread(request, client_address)
        finally:
            with self._connections_lock:
                self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a defect of this server, but not a client that goes away."""
        if not self.stopping.is_set():
            super().handle_error(request, client_address)

    def serve(self) -> None:
        """Accept connections until `end`."""
        while not self.stopping.is_set():
            self.handle_request()

    def end(self) -> None:
        """Make the accepting thread and every connection's thread end."""
        self.stopping.set()
        # handle_request waits for a connection without a time limit: this is the last one.
        with contextlib.suppress(OSError), socket.create_connection((_HOST, self.server_port)):
            pass
        with self._connections_lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class ApiServer:
    """An embedded Kubernetes API server on 127.0.0.1. The package docstring says what it is and what it is not.

    `port` 0 takes a free port. `clock` gives all times that the server writes and by which it sends bookmarks and ends
    watches. `event_window` is the number of past events kept: older versions are answered as expired (410). `version`
    is that of Kubernetes: one of RELEASES. `policy` changes each new pod, as a mutating admission policy would.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        clock: Callable[[], datetime] = utc_now,
        event_window: int = 10_000,
        faults: Faults | None = None,
        version: str = NEWEST,
        policy: PodPolicy = unchanged,
    ) -> None:
        if version not in RELEASES:
            raise ValueError(f"Kubernetes {version!r} is not supported, expected one of {', '.join(RELEASES)}")
        self.faults = faults if faults is not None else Faults()
        self._port = port
        self._clock = clock
        self._version = version
        self._storage = ObjectStorage(window=event_window)
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._writes = Writes(self._storage, clock, NameSource(), version, policy)
        for name in _FIRST_NAMESPACES:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            self._writes.create(Target(NAMESPACE, ""), body, Options())

    def start(self) -> None:
        """Listen and serve; returns once connections are accepted. OSError if the port is taken."""
        listener = Listener(self._port, self.faults)
        address = listener.url.removeprefix("http://")
        listener.router = Router(self._storage, self._writes, self._clock, address, self._version)
        self._listener = listener
        self._thread = threading.Thread(target=listener.serve, name="apiserver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all watches, connections and threads and close the port. May be called twice."""
        listener, thread = self._listener, self._thread
        if listener is None or thread is None:
            return
        self._listener = self._thread = None
        self._storage.close()
        listener.end()
        thread.join()
        listener.server_close()

    def forget_history(self) -> None:
        """From now on answer every version before the present one as expired (410), as after a compaction of etcd."""
        self._storage.forget_history()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``. RuntimeError before `start` and after `stop`."""
        return self._running().url

    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig document for kubectl and clients. RuntimeError as for `url`."""
        return self._running().kubeconfig()

    def _running(self) -> Listener:
        if self._listener is None:
            raise RuntimeError("the API server is not running: call start() first")
        return self._listener

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
