"""A bind that takes as long as a test says: kube-scheduler hands it to an extender, which waits before it binds.

As slow volumes, Permit plugins and other drivers' binding conditions do: the try has looked at the claims long before,
and what it saw then is what it goes by.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.api import Api
from e2e.control_plane import SCHEDULER, ControlPlane

LONGEST_S = 120.0
"""kube-scheduler gives up a bind that takes longer."""


class SlowBinds:
    """An extender inside a `with` block. `wait_s` says for a pod's name how long its bind takes."""

    def __init__(self, plane: ControlPlane, config: Path, wait_s: Callable[[str], float]) -> None:
        """`config` is where kube-scheduler's configuration is written, for its flag --config."""
        self.done: dict[str, tuple[float, float]] = {}
        """When the bind of each bound pod began and ended, steady seconds, by the pod's name. It began after
        kube-scheduler's last look at the claims."""
        self._begun: set[str] = set()
        self._begins = threading.Condition()
        self._plane = plane
        self._wait_s = wait_s
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.config = config
        self.config.write_text(json.dumps(self._document()), encoding="utf-8")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_begun(self, pod: str, within_s: float) -> bool:
        """Wait until a bind of a pod has begun; tell whether one has."""
        with self._begins:
            return self._begins.wait_for(lambda: pod in self._begun, within_s)

    def bind(self, arguments: dict[str, Any], caller: socket.socket) -> str:
        """Bind a pod after its time; return what went wrong, or nothing. A kube-scheduler that is killed meanwhile
        takes its binds with it."""
        name, namespace = arguments["PodName"], arguments["PodNamespace"]
        began_s = time.monotonic()
        with self._begins:
            self._begun.add(name)
            self._begins.notify_all()
        time.sleep(self._wait_s(name))
        if _has_gone(caller):
            return "kube-scheduler has gone"
        wrong = self._bind(self._plane.api(SCHEDULER), name, namespace, arguments["PodUID"], arguments["Node"])
        if not wrong:
            self.done[name] = began_s, time.monotonic()
        return wrong

    def _bind(self, api: Api, name: str, namespace: str, uid: str, node: str) -> str:
        document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        answer = api.send("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", document)
        return "" if answer.is_good else f"{answer.status} {answer.document}"

    def _document(self) -> dict[str, Any]:
        extender = {
            "urlPrefix": f"http://127.0.0.1:{self._server.server_address[1]}",
            "bindVerb": "bind",
            "httpTimeout": f"{LONGEST_S:.0f}s",
        }
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self._plane.kubeconfig(SCHEDULER)), "qps": 500, "burst": 500},
            "leaderElection": {"leaderElect": False},
            "extenders": [extender],
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def _has_gone(caller: socket.socket) -> bool:
    """Whether the other end of a connection was closed. It sends nothing before it has its answer."""
    try:
        return caller.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _handler(binds: SlowBinds) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"Error": binds.bind(arguments, self.connection)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
            """Say nothing: hundreds come."""

    return Handler
