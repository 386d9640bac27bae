"""The road on which requests of the soak get lost knows the writes of a take-back, and loses what it says."""

from __future__ import annotations

import queue
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from e2e.soak import fault_proxy
from e2e.soak.fault_proxy import FaultProxy, clears, drops
from support.write_proxy import Write

CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
WITHIN_S = 10.0


@pytest.mark.parametrize(
    ("path", "body", "is_clear", "is_drop"),
    [
        (f"{CLAIM}/status", {"status": {"allocation": None, "reservedFor": None}}, True, False),
        (f"{CLAIM}/status", {"status": {"reservedFor": None}}, False, True),
        (f"{CLAIM}/status", {"status": {"reservedFor": [{"name": "pod"}]}}, False, False),
        (f"{CLAIM}/status", {"status": {"allocation": {"devices": {}}}}, False, False),
        (CLAIM, {"metadata": {}}, False, False),
        (CLAIM, None, False, False),
    ],
)
def test_the_writes_of_a_take_back_are_told_from_others(path: str, body: Any, is_clear: bool, is_drop: bool) -> None:
    write = Write("PATCH", path, {}, body)
    assert (clears(write), drops(write)) == (is_clear, is_drop)


def test_a_write_that_was_cut_off_can_land_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_proxy, "WRITE_FAULTS", ("cut late",))
    monkeypatch.setattr(fault_proxy, "LONGEST_LATE_S", 0.2)
    landed: queue.Queue[bytes] = queue.Queue()

    class Target(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            landed.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with FaultProxy(url, tmp_path / "none.crt", random.Random(1), lambda: None) as proxy:
            proxy.percent = 100.0
            with pytest.raises(urllib3.exceptions.ProtocolError):
                urllib3.request("PATCH", f"{proxy.url}{CLAIM}/status", json={"status": {}}, retries=False)
            assert landed.get(timeout=WITHIN_S) == b'{"status":{}}'
        server.shutdown()
