"""The road between a controller and the API server, on which requests and answers get lost."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from support.write_proxy import Cut, Write, WriteProxy, answer_refusal

WRITE_FAULTS: Final[tuple[int | str, ...]] = (409, 500, 503, 504, "cut before", "cut after", "late", "late")
WATCH_FAULTS: Final[tuple[int | str, ...]] = (503, "cut watch", "cut watch")
READ_FAULTS: Final[tuple[int | str, ...]] = (500, 503, "cut before")
LONGEST_WATCH_S: Final = 20.0
"""After which a watch that was chosen is cut, at the latest."""

LONGEST_LATE_S: Final = 8.0
"""For which a write is on its way, at the most. Who sent it may be dead when it lands, and another one leads: the
controller promises to live with 10 s."""


class FaultProxy(WriteProxy):
    """Refuses, cuts and loses so many of a hundred requests; `percent` may change at any time."""

    def __init__(self, url: str, authority: Path, rng: random.Random) -> None:
        super().__init__(url, authority)
        self.percent = 0.0
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._drawing = threading.Lock()
        self._here = threading.local()
        self.before = self._hold_back
        self.after = self._lose

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request, or not."""
        fault, wait_s = self._draw(handler)
        self._here.loses, self._here.late = fault == "cut after", fault == "late"
        if isinstance(fault, int):
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            answer_refusal(handler, fault)
        elif fault == "cut before":
            raise Cut
        elif fault == "late":
            time.sleep(wait_s)
            super().serve(handler)
        elif fault == "cut watch":
            timer = threading.Timer(wait_s, _cut, (handler.connection,))
            timer.daemon = True
            timer.start()
            super().serve(handler)
        else:
            super().serve(handler)

    def _draw(self, handler: BaseHTTPRequestHandler) -> tuple[int | str | None, float]:
        with self._drawing:
            if self._rng.uniform(0, 100) >= self.percent:
                return None, 0.0
            is_watch = "watch" in parse_qs(urlsplit(handler.path).query)
            if is_watch:
                fault = self._rng.choice(WATCH_FAULTS)
            elif handler.command == "GET":
                fault = self._rng.choice(READ_FAULTS)
            elif "/leases" in handler.path or "/events" in handler.path:
                fault = self._rng.choice(READ_FAULTS)  # of these the proxy keeps no account: no answer can be lost
            else:
                fault = self._rng.choice(WRITE_FAULTS)
            self.counts[str(fault)] += 1
            return fault, self._rng.uniform(0.1, LONGEST_WATCH_S if is_watch else LONGEST_LATE_S)

    def _hold_back(self, write: Write) -> None:
        """Let every second write that clears an allocation be late: a bind that begins meanwhile has to win."""
        if not clears(write) or getattr(self._here, "late", False):
            return
        with self._drawing:
            is_late = self.percent > 0 and self._rng.random() < 0.5
            wait_s = self._rng.uniform(0.1, LONGEST_LATE_S)
            self.counts["late clearing"] += is_late
        if is_late:
            time.sleep(wait_s)

    def _lose(self, _write: Write) -> None:
        """The server has done it, and nobody hears so."""
        if getattr(self._here, "loses", False):
            raise Cut


def clears(write: Write) -> bool:
    """Return whether a write takes a claim's allocation away."""
    status = (write.body or {}).get("status") or {}
    return write.kind == "resourceclaims/status" and "allocation" in status and status["allocation"] is None


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
