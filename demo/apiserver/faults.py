"""Injected faults, with which a test sees how a client copes with a bad server. By default there are none."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """What happens to the next `times` requests whose method and path (with query) match.

    The request is answered with `status` (a Kubernetes Status), or its connection is closed. With `after` it is
    carried out before: the client cannot know that it was.
    """

    method: str = ".*"
    path: str = ".*"
    times: int = 1
    status: int | None = None
    message: str = "injected fault"
    close: bool = False
    after: bool = False

    def matches(self, method: str, path: str) -> bool:
        """`method` is matched whole, `path` anywhere."""
        return bool(re.fullmatch(self.method, method) and re.search(self.path, path))


class Faults:
    """The faults still to come, in the order in which they were added. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[InjectedFault, int]] = []

    def add(self, fault: InjectedFault) -> None:
        """Let the next matching requests meet `fault`."""
        with self._lock:
            self._left.append((fault, fault.times))

    def clear(self) -> None:
        """Forget all remaining faults."""
        with self._lock:
            self._left.clear()

    def pending(self) -> int:
        """How many requests will still meet a fault."""
        with self._lock:
            return sum(times for _, times in self._left)

    def take(self, method: str, path: str) -> InjectedFault | None:
        """The fault of this request, counted down."""
        with self._lock:
            for at, (fault, times) in enumerate(self._left):
                if fault.matches(method, path):
                    self._left[at : at + 1] = [(fault, times - 1)] if times > 1 else []
                    return fault
        return None
