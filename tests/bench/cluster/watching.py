"""When each claim was seen to be made and allocated, and each pod to be bound: two watches of the bench's own."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from e2e.bulk import Connection, lines

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class _Meta(msgspec.Struct):
    name: str
    version: str = msgspec.field(name="resourceVersion")


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Allocation(msgspec.Struct):
    pass


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None


class _Object(msgspec.Struct):
    """The fields of a pod or claim that are looked at; all else is passed over."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Object


@dataclass(slots=True)
class Seen:
    """Steady times in seconds at which the watches showed something, by name."""

    pods: dict[str, float] = field(default_factory=dict)
    """When a pod was there."""
    bound: dict[str, float] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    allocated: dict[str, float] = field(default_factory=dict)

    def binds_s(self) -> list[float]:
        """Return the seconds from creation to bind of the pods."""
        return [bound_s - self.pods[name] for name, bound_s in self.bound.items()]

    def latencies_s(self) -> list[float]:
        """Return the seconds from creation to allocation of the claims."""
        return [allocated_s - self.created[name] for name, allocated_s in self.allocated.items()]

    def allocations_s(self, since_s: float) -> list[float]:
        """Return the seconds from a time to the allocation of each claim that was allocated after it."""
        return [allocated_s - since_s for allocated_s in self.allocated.values() if allocated_s >= since_s]


class Watching:
    """Follows pods and claims from now on until close()."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self.seen = Seen()
        self.enough = threading.Event()
        """Set when `want` pods were seen bound."""
        self.broken: str | None = None
        self._want = 0
        self._ended = False
        self._connections: list[Connection] = []
        self._follow(connect, PODS, self._pod)
        self._follow(connect, CLAIMS, self._claim)

    def expect(self, pods: int) -> None:
        """Say how many pods are enough."""
        self._want = pods

    def cut(self) -> None:
        """End both watches."""
        self._ended = True
        for connection in self._connections:
            connection.cut()

    def _follow(self, connect: Callable[[], Connection], path: str, take: Callable[[_Event, float], None]) -> None:
        watch = connect()
        self._connections.append(watch)
        response = watch.open_watch(_from(path, "0"))
        threading.Thread(target=self._read, args=(watch, path, response, take), daemon=True).start()

    def _read(
        self,
        watch: Connection,
        path: str,
        response: http.client.HTTPResponse,
        take: Callable[[_Event, float], None],
    ) -> None:
        """Read until close(). The server ends a watch whose reader is slow for a moment: it is resumed where it was."""
        decoder = msgspec.json.Decoder(_Event)
        version = "0"
        try:
            while True:
                for line in lines(response):
                    event = decoder.decode(line)
                    take(event, time.monotonic())
                    version = event.object.metadata.version
                watch.close()
                response = watch.open_watch(_from(path, version))
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            if not self._ended:
                self.broken = f"the watch of {path}: {type(error).__name__}: {error}"
                self.enough.set()

    def _pod(self, event: _Event, now_s: float) -> None:
        if event.type == "DELETED":
            return
        self.seen.pods.setdefault(event.object.metadata.name, now_s)
        if event.object.spec.node_name:
            self.seen.bound.setdefault(event.object.metadata.name, now_s)
            if len(self.seen.bound) >= self._want > 0:
                self.enough.set()

    def _claim(self, event: _Event, now_s: float) -> None:
        name = event.object.metadata.name
        if event.type == "DELETED":
            return
        self.seen.created.setdefault(name, now_s)
        if event.object.status.allocation is not None:
            self.seen.allocated.setdefault(name, now_s)


def _from(path: str, version: str) -> str:
    return f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=3600"
