"""Tells users once which parts of their claims and containers have no effect."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.reasons import IGNORED_EVENT
from dracaena.controller.ports import EventSink

MAX_PODS: Final = 10_000
"""Pods remembered as looked at, about 1 MB: those that wait. The one looked at longest ago is dropped first; at worst
the same Event is sent again."""


class IgnoredParts:
    """Looks at each pod once while we lead. Safe to use from many threads as long as no two work on the same pod."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, str] = OrderedDict()  # key of the pod → its UID

    def look(self, pod: Pod, ignored: Callable[[], Sequence[str]]) -> None:
        """Report what `ignored` returns, in one Event, unless the pod was looked at before."""
        key, uid = pod.key, pod.metadata.uid
        with self._lock:
            is_known = self._seen.get(key) == uid
            self._seen[key] = uid
            self._seen.move_to_end(key)
            if is_known:
                return
            if len(self._seen) > MAX_PODS:
                self._seen.popitem(last=False)
        texts = ignored()
        if texts:
            self._events.record(pod, "Warning", IGNORED_EVENT, "; ".join(texts))

    def forget(self, key: str) -> None:
        """Note that no more decisions are made about a pod."""
        with self._lock:
            self._seen.pop(key, None)
