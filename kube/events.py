"""Kubernetes Events: what a user reads under `kubectl describe`. Best effort, never in the way of a decision."""

from __future__ import annotations

import hashlib
import queue
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import structlog

from dracaena.api.objects import KubeObject, Wire
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from dracaena.process.clock import Clock, rfc3339

QUEUE_LENGTH = 1_000
"""Events that may wait to be written; more are dropped with a log line, so that a slow server costs no memory."""

MESSAGE_BYTES = 1_024
"""Longest message that the API takes (core/v1 Event validation)."""

EventType = Literal["Normal", "Warning"]

log = structlog.get_logger()


class Event(KubeObject, frozen=True):
    """A core/v1 Event, as far as we read our own ones back."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "events"
    KIND: ClassVar[str] = "Event"

    count: int = 1


class Subject(Wire, frozen=True):
    """involvedObject of an Event."""

    uid: str = ""


class EventSource(Wire, frozen=True):
    """source of an Event."""

    component: str = ""


class EventText(KubeObject, frozen=True):
    """A core/v1 Event as a user reads it."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "events"
    KIND: ClassVar[str] = "Event"

    involved_object: Subject = Subject()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    count: int = 1
    last_timestamp: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    namespace: str
    document: dict[str, Any]


class EventRecorder:
    """Writes Events from a thread of its own. The same event again raises the count of the first one.

    The name of an Event is made from its subject, reason and message, so that counting also works across restarts
    and without any memory here.
    """

    def __init__(self, client: KubeClient, component: str, clock: Clock, *, queue_length: int = QUEUE_LENGTH) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._queue: queue.Queue[_Entry | None] = queue.Queue(queue_length)
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for at most timeout_s, and end."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def record(self, subject: KubeObject, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Queue one event about an object. Never blocks, never raises; a full queue drops it with a log line."""
        entry = self._entry(subject, type, reason, cut_bytes(message, MESSAGE_BYTES))
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            log.warning("event dropped, too many wait", subject=subject.key, reason=reason)

    def _entry(self, subject: KubeObject, event_type: EventType, reason: str, message: str) -> _Entry:
        meta = subject.metadata
        identity = "\0".join((meta.uid, subject.KIND, subject.key, self._component, event_type, reason, message))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        now = rfc3339(self._clock.now())
        namespace = meta.namespace or "default"  # Events of cluster-scoped objects live there by convention
        document = {
            "metadata": {"name": f"{meta.name[:200]}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": subject.API_VERSION,
                "kind": subject.KIND,
                "name": meta.name,
                "uid": meta.uid,
                **({"namespace": meta.namespace} if meta.namespace else {}),
            },
            "type": event_type,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
        }
        return _Entry(namespace, document)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                self._write(entry)
            except KubeError as error:
                log.info("event not written", reason=entry.document["reason"], error=str(error))
            except Exception:
                # The thread's outermost loop: one event that cannot be written must not end all others.
                log.exception("event not written", reason=entry.document["reason"])

    def _write(self, entry: _Entry) -> None:
        name = entry.document["metadata"]["name"]
        try:
            self._client.create(Event, entry.document, namespace=entry.namespace)
        except AlreadyExistsError:
            try:
                seen = self._client.get(Event, name, namespace=entry.namespace)
            except NotFoundError:
                return  # it ran out just now: the next one starts afresh
            again = {"count": seen.count + 1, "lastTimestamp": entry.document["lastTimestamp"]}
            self._client.merge_patch(Event, name, again, namespace=entry.namespace)


def cut_bytes(text: str, limit_bytes: int) -> str:
    """Cut a text to a number of UTF-8 bytes on a character boundary, with three dots where something is gone."""
    raw = text.encode()
    if len(raw) <= limit_bytes:
        return text
    return raw[: limit_bytes - 3].decode(errors="ignore") + "..."
