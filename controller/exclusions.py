"""Nodes that a pod is not given again for a while, because an allocation there led nowhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from dracaena.api.objects import Pod
from dracaena.process.clock import Clock, rfc3339

TRIED: Final = "tried before without success"
"""The reason, in words that follow a count of nodes."""

NOWHERE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class End:
    """When something is over."""

    in_s: float
    at: str
    """Time of day for people, RFC 3339: it stays the same however often it is asked for."""


@dataclass(slots=True)
class _Waits:
    """Growing waits for one thing. `again_s` is a steady time, `again_at` the same for people."""

    tries: int = 0
    again_s: float = 0.0
    again_at: str = ""


@dataclass(slots=True)
class _OfPod:
    uid: str
    nodes: dict[str, _Waits] = field(default_factory=dict)
    all_nodes: _Waits = field(default_factory=_Waits)
    said: object = None
    """What kube-scheduler had said when all nodes were excluded."""


class Exclusions:
    """By pod: nodes with the time until which they are not tried, each time twice as long. Safe from many threads.

    A pod's entry goes with the pod, and when it is bound (`drop`). One lock of its own; it calls nobody.
    """

    def __init__(self, clock: Clock, *, first_s: float, longest_s: float) -> None:
        """`first_s`: how long a node is first left out for a pod; `longest_s`: how long at most."""
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._pods: dict[str, _OfPod] = {}

    def exclude(self, key: str, uid: str, node: str) -> float:
        """Leave a node out for a pod; return for how many seconds. The same node again within that time counts once."""
        with self._lock:
            return self._grow(self._of(key, uid).nodes.setdefault(node, _Waits()))

    def hold(self, pod: Pod, said: object) -> float:
        """Leave all nodes out for a pod, as long as kube-scheduler says the same; return for how many seconds."""
        with self._lock:
            entry = self._of(pod.key, pod.metadata.uid)
            entry.said = said
            return self._grow(entry.all_nodes)

    def held(self, pod: Pod, said: object) -> End | None:
        """Return how long all nodes are left out; None when they are not, or something new is said."""
        with self._lock:
            entry = self._pods.get(pod.key)
            if entry is None or entry.uid != pod.metadata.uid or entry.said != said:
                return None
            left_s = entry.all_nodes.again_s - self._clock.monotonic()
            return End(left_s, entry.all_nodes.again_at) if left_s > 0 else None

    def barred(self, pod: Pod) -> Mapping[str, str]:
        """Return the nodes that are left out now, with the reason."""
        with self._lock:
            entry = self._pods.get(pod.key)
            if entry is None or entry.uid != pod.metadata.uid:
                return NOWHERE
            now_s = self._clock.monotonic()
            return {node: TRIED for node, waits in entry.nodes.items() if waits.again_s > now_s}

    def next_end(self, pod: Pod) -> End | None:
        """Return when the first of them may be tried again, None when none is left out."""
        with self._lock:
            entry = self._pods.get(pod.key)
            if entry is None or entry.uid != pod.metadata.uid:
                return None
            now_s = self._clock.monotonic()
            left_out = [waits for waits in entry.nodes.values() if waits.again_s > now_s]
            first = min(left_out, key=lambda waits: waits.again_s, default=None)
            return None if first is None else End(first.again_s - now_s, first.again_at)

    def drop(self, key: str, uid: str | None = None) -> None:
        """Forget a pod: it is gone or bound. With a UID: unless another pod of its name is there by now."""
        with self._lock:
            entry = self._pods.get(key)
            if entry is not None and uid in (None, entry.uid):
                del self._pods[key]

    def _of(self, key: str, uid: str) -> _OfPod:
        entry = self._pods.get(key)
        if entry is None or entry.uid != uid:
            entry = self._pods[key] = _OfPod(uid)
        return entry

    def _grow(self, waits: _Waits) -> float:
        now_s = self._clock.monotonic()
        if waits.again_s <= now_s:
            wait_s = min(self._first_s * 2.0 ** min(waits.tries, 20), self._longest_s)
            waits.tries, waits.again_s = waits.tries + 1, now_s + wait_s
            waits.again_at = rfc3339(self._clock.now() + timedelta(seconds=wait_s))
        return waits.again_s - now_s
