"""The road between a controller and the API server, on which requests and answers get lost."""

from __future__ import annotations

import io
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from support.write_proxy import Cut, Write, WriteProxy, answer_refusal

WRITE_FAULTS: Final[tuple[int | str, ...]] = (
    409,
    429,
    500,
    503,
    504,
    "cut before",
    "cut after",
    "cut late",
    "cut late",
    "late",
    "late",
)
WATCH_FAULTS: Final[tuple[int | str, ...]] = (503, "cut watch", "cut watch", "slow watch", "slow watch", "slow watch")
READ_FAULTS: Final[tuple[int | str, ...]] = (500, 503, "cut before")
LONGEST_WATCH_S: Final = 20.0
"""After which a watch that was chosen is cut, at the latest."""

LONGEST_LAG_S: Final = 4.0
"""For which each piece of a slow watch is held back, at the most: kinds that are watched side by side drift apart."""

SLOW_WATCHES: Final = 0.4
"""Share of all watches: what they show is older than the answers to writes."""

LONGEST_LATE_S: Final = 8.0
"""For which a write is on its way, at the most. Who sent it may be dead when it lands, and another one leads: the
controller promises to live with 10 s."""

HELD_S: Final = (1.5, 4.0)
"""For which the first write of a take-back is held, at the least and at the most, so that a bind can begin before it
lands: kube-scheduler needs a second from what allows it."""


class FaultProxy(WriteProxy):
    """Refuses, cuts and loses so many of a hundred requests; `percent` may change at any time.

    `taking_back` is called when a write of a take-back came that is held back.
    """

    def __init__(self, url: str, authority: Path, rng: random.Random, taking_back: Callable[[], None]) -> None:
        super().__init__(url, authority)
        self._taking_back = taking_back
        self.percent = 0.0
        self.delays = False
        """Whether some watches are slow and every second write of a take-back is late, however few requests fail."""
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
        self._here.lag_s = min(wait_s, LONGEST_LAG_S) if fault == "slow watch" else 0.0
        if isinstance(fault, int):
            handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
            answer_refusal(handler, fault)
        elif fault == "cut before":
            raise Cut
        elif fault == "late":
            time.sleep(wait_s)
            super().serve(handler)
        elif fault == "cut late":
            handler.rfile = io.BytesIO(handler.rfile.read(int(handler.headers.get("Content-Length") or 0)))
            _cut(handler.connection)
            time.sleep(wait_s)
            super().serve(handler)
        elif fault == "cut watch":
            timer = threading.Timer(wait_s, _cut, (handler.connection,))
            timer.daemon = True
            timer.start()
            super().serve(handler)
        else:
            super().serve(handler)

    def before_watch_goes_on(self) -> None:
        """Hold a piece of a slow watch back, as long as there are faults."""
        if self.delays:
            time.sleep(getattr(self._here, "lag_s", 0.0))

    def _draw(self, handler: BaseHTTPRequestHandler) -> tuple[int | str | None, float]:
        with self._drawing:
            is_watch = "watch" in parse_qs(urlsplit(handler.path).query)
            is_slow = is_watch and self.delays and self._rng.random() < SLOW_WATCHES
            if self._rng.uniform(0, 100) >= self.percent and not is_slow:
                return None, 0.0
            if is_slow:
                fault: int | str = "slow watch"
            elif is_watch:
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
        """Let every second write of a take-back be late: of a bind that begins before the first one it must learn, and
        one that begins before the second has to win."""
        if not (clears(write) or drops(write)) or getattr(self._here, "late", False):
            return
        with self._drawing:
            is_late = self.delays and self._rng.random() < 0.5
            wait_s = self._rng.uniform(*((0.1, LONGEST_LATE_S) if clears(write) else HELD_S))
            self.counts["late clearing" if clears(write) else "late drop"] += is_late
        if is_late:
            self._taking_back()
            time.sleep(wait_s)

    def _lose(self, _write: Write) -> None:
        """The server has done it, and nobody hears so."""
        if getattr(self._here, "loses", False):
            raise Cut


def clears(write: Write) -> bool:
    """Return whether a write takes a claim's allocation away."""
    status = (write.body or {}).get("status") or {}
    return write.kind == "resourceclaims/status" and "allocation" in status and status["allocation"] is None


def drops(write: Write) -> bool:
    """Return whether a write takes a claim's reservation away, and nothing else."""
    status = (write.body or {}).get("status") or {}
    is_about_claim = write.kind == "resourceclaims/status" and "allocation" not in status
    return is_about_claim and "reservedFor" in status and status["reservedFor"] is None


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
