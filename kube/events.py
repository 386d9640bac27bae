"""Kubernetes Events: what a user reads under `kubectl describe`. Best effort, never in the way of a decision."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import msgspec
import structlog

from dracaena.api import limits
from dracaena.api.objects import KubeObject, Wire
from dracaena.api.reasons import cut_bytes
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from dracaena.process.clock import Clock, rfc3339

WRITES_PER_S: Final = 20.0
WRITE_BURST: Final = 100
"""Highest rate of Events, after an initial burst: 1,000 pods that are allocated together make 2,000 Events in 95 s.
Each costs kube-apiserver about 3 ms of CPU, so they take 6 % of a core away from binding pods."""

OBJECT_REFILL_S: Final = 60.0
OBJECT_BURST: Final = 25
"""Each object gets one Event per minute, after an initial burst: however often something goes wrong with one pod, its
Events do not crowd out those of others."""

QUEUE_LENGTH: Final = 2_000
"""Most Events that wait to be written, about 3 MB; more are dropped, so that a slow server costs no more memory."""

REMEMBERED: Final = 4_096
"""How many recent Events and objects are remembered, at about 200 bytes each."""

COMPLAINT_GAP_S: Final = 10.0
"""Shortest time between two log lines about dropped Events."""

EventType = Literal["Normal", "Warning"]

Fate = Literal["written", "failed", "dropped", "limited"]
"""What became of an Event: dropped because too many waited, limited because its object had too many."""

log = structlog.get_logger()


class Subject(Wire, frozen=True):
    """involvedObject of an Event."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSource(Wire, frozen=True):
    """source of an Event."""

    component: str = ""


class Event(KubeObject, frozen=True):
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


class TokenBucket:
    """Lets `burst` through at once and `per_s` each second from then on. No lock of its own."""

    def __init__(self, per_s: float, burst: int, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at_s = now_s

    def take(self, now_s: float) -> float:
        """Take a token and return 0, or take none and return the seconds until there is one."""
        self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, self._burst)
        self._at_s = now_s
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._per_s


@dataclass(frozen=True, slots=True)
class _QueuedEvent:
    namespace: str
    document: dict[str, Any]


msgspec.json.Decoder(Event)  # inspected by the thread that imports: see kube.client


class EventRecorder:
    """Writes Events from a thread of its own. Repeating an event raises the count of the first one.

    The name of an Event is made from its subject, reason and message, so that counting also works across restarts. It
    needs the rights to create and to patch Events, but not to read them. `count` is called with the fate of each.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        clock: Clock,
        *,
        queue_length: int = QUEUE_LENGTH,
        count: Callable[[Fate], None] = lambda fate: None,
    ) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._count = count
        self._queue: queue.Queue[_QueuedEvent | None] = queue.Queue(queue_length)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._of_object: OrderedDict[str, TokenBucket] = OrderedDict()  # under the lock, with the two below
        self._dropped = 0
        self._complained_s: float | None = None
        self._seen: OrderedDict[str, int] = OrderedDict()
        """Name → count of Events that were written lately; only the writing thread touches it."""
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write the waiting Events that the rate allows at once, for at most timeout_s, and end."""
        self._stopping.set()
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def record(
        self,
        subject: KubeObject,
        type: EventType,  # noqa: A002
        reason: str,
        message: str,
        *,
        latest: bool = False,
    ) -> None:
        """Queue one event about an object. Never blocks, never raises; Events beyond the limits are dropped. What UTF-8
        cannot encode in a message becomes a question mark.

        With `latest` only the newest message of this reason matters: the object has one such Event, and its message is
        replaced.
        """
        if not self._is_within_limit(subject):
            self._count("limited")
            return
        entry = self._entry(subject, type, reason, cut_bytes(message, limits.EVENT_NOTE_BYTES), latest=latest)
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._count("dropped")
            self._complain(subject, reason)

    def _is_within_limit(self, subject: KubeObject) -> bool:
        who, now_s = subject.metadata.uid or subject.key, self._clock.monotonic()
        with self._lock:
            bucket = self._of_object.pop(who, None) or TokenBucket(1 / OBJECT_REFILL_S, OBJECT_BURST, now_s)
            self._of_object[who] = bucket
            if len(self._of_object) > REMEMBERED:
                self._of_object.popitem(last=False)
            return bucket.take(now_s) == 0.0

    def _complain(self, subject: KubeObject, reason: str) -> None:
        with self._lock:
            self._dropped += 1
            now_s = self._clock.monotonic()
            if self._complained_s is not None and now_s - self._complained_s < COMPLAINT_GAP_S:
                return
            dropped, self._dropped, self._complained_s = self._dropped, 0, now_s
        log.warning("events dropped, too many wait", dropped=dropped, last_subject=subject.key, last_reason=reason)

    def _entry(
        self, subject: KubeObject, event_type: EventType, reason: str, message: str, *, latest: bool
    ) -> _QueuedEvent:
        meta = subject.metadata
        told = () if latest else (message,)
        identity = "\0".join((meta.uid, subject.KIND, subject.key, self._component, event_type, reason, *told))
        digest = hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16]
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
        return _QueuedEvent(namespace, document)

    def _run(self) -> None:
        bucket = TokenBucket(WRITES_PER_S, WRITE_BURST, self._clock.monotonic())
        while (entry := self._queue.get()) is not None:
            if not self._let_through(bucket):
                self._count("dropped")
                continue
            try:
                self._write(entry)
            except KubeError as error:
                self._count("failed")
                log.info("event not written", reason=entry.document["reason"], error=str(error))
            except Exception:
                # The thread's outermost loop: one event that cannot be written must not stop the others.
                self._count("failed")
                log.exception("event not written", reason=entry.document["reason"])
            else:
                self._count("written")

    def _let_through(self, bucket: TokenBucket) -> bool:
        """Wait until an Event may be written; return False if the end comes first."""
        while wait_s := bucket.take(self._clock.monotonic()):
            if self._clock.sleep_until_set(self._stopping, wait_s):
                return False
        return True

    def _write(self, entry: _QueuedEvent) -> None:
        name = entry.document["metadata"]["name"]
        count = self._seen.pop(name, None)
        try:
            count = self._create(entry) if count is None else self._raise(entry, count + 1)
        except AlreadyExistsError:
            # A process before this one wrote it, and how often is in the answer to the first patch.
            count = self._raise(entry, self._raise(entry, None) + 1)
        except NotFoundError:
            if count is None:
                raise
            count = self._create(entry)  # it has expired: this one starts afresh
        self._seen[name] = count
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)

    def _create(self, entry: _QueuedEvent) -> int:
        self._client.create(Event, entry.document, namespace=entry.namespace)
        return 1

    def _raise(self, entry: _QueuedEvent, count: int | None) -> int:
        """Write that an Event happened again, with the count if it is known; return the count that is stored."""
        again = {key: entry.document[key] for key in ("message", "lastTimestamp")}
        if count is not None:
            again["count"] = count
        name = entry.document["metadata"]["name"]
        return self._client.merge_patch(Event, name, again, namespace=entry.namespace).count
