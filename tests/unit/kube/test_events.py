from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.kube.events import (
    OBJECT_BURST,
    OBJECT_REFILL_S,
    WRITE_BURST,
    WRITES_PER_S,
    EventRecorder,
    Fate,
    TokenBucket,
)
from support.clock import FakeClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1"))
NODE = Node(metadata=ObjectMeta(name="n", uid="u2"))


class EventStore:
    """Keeps Events by name, as the API does. Nobody may read them."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, object]] = {}

    def __call__(self, request: Request) -> None:
        assert request.method in ("POST", "PATCH")
        name = request.path.rpartition("/")[2]
        body = json.loads(request.body) if request.body else {}
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.events:
                request.answer(409, {"reason": "AlreadyExists", "message": "there already"})
                return
            self.events[name] = body
        elif name not in self.events:
            request.answer(404, {"reason": "NotFound", "message": "no such event"})
            return
        else:
            self.events[name] |= body
        request.answer(200, self.events[name])


def recorder(
    server: ScriptedServer, folder: Path, clock: FakeClock, queue_length: int = 100, fates: list[Fate] | None = None
) -> EventRecorder:
    client = client_for(server.url, folder)
    counted: list[Fate] = [] if fates is None else fates
    made = EventRecorder(client, "dracaena-controller", clock, queue_length=queue_length, count=counted.append)
    made.start()
    return made


def test_event_says_who_what_and_when(tmp_path: Path) -> None:
    store = EventStore()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, FakeClock())
        events.record(POD, "Normal", "Allocated", "4 GPUs on node n")
        events.stop()
        assert server.requests[0].path == "/api/v1/namespaces/ns/events"
    (event,) = store.events.values()
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "ns", "uid": "u1"}
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "Allocated", "4 GPUs on node n")
    assert (event["count"], event["firstTimestamp"]) == (1, "2026-01-01T00:00:00Z")
    assert event["source"] == {"component": "dracaena-controller"}


def test_same_event_again_is_counted_also_by_another_process(tmp_path: Path) -> None:
    store, clock = EventStore(), FakeClock()
    with ScriptedServer(store) as server:
        for _ in range(3):
            events = recorder(server, tmp_path, clock)
            events.record(POD, "Warning", "Waiting", "0/4 nodes fit")
            events.stop()
            clock.advance(60)
    (event,) = store.events.values()
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        3,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:02:00Z",
    )


def test_another_message_is_another_event(tmp_path: Path) -> None:
    store = EventStore()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, FakeClock())
        events.record(POD, "Warning", "Waiting", "0/4 nodes fit")
        events.record(POD, "Warning", "Waiting", "0/5 nodes fit")
        events.stop()
    assert len(store.events) == 2


def test_event_of_a_cluster_scoped_object_lives_in_default(tmp_path: Path) -> None:
    store = EventStore()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, FakeClock())
        events.record(NODE, "Warning", "GateOff", "no taints")
        events.stop()
        assert server.requests[0].path == "/api/v1/namespaces/default/events"
    (event,) = store.events.values()
    assert "namespace" not in event["involvedObject"]  # type: ignore[operator]  # a JSON object


def test_refused_event_does_not_stop_the_next(tmp_path: Path) -> None:
    store = EventStore()

    def answer(request: Request) -> None:
        if len(server.requests) == 1:
            request.answer(403, {"reason": "Forbidden", "message": "no"})
        else:
            store(request)

    with ScriptedServer(answer) as server:
        events = recorder(server, tmp_path, FakeClock())
        events.record(POD, "Normal", "First", "x")
        events.record(POD, "Normal", "Second", "x")
        events.stop()
    assert [event["reason"] for event in store.events.values()] == ["Second"]


def test_slow_server_never_blocks_the_caller(tmp_path: Path) -> None:
    release = threading.Event()

    def answer(request: Request) -> None:
        release.wait(10)
        request.answer(200, {"metadata": {"name": "x"}})

    with ScriptedServer(answer) as server:
        events = recorder(server, tmp_path, FakeClock(), queue_length=5)
        for number in range(50):
            events.record(POD, "Normal", "Allocated", str(number))
        wait_for(lambda: len(server.requests) == 1, "the one request that hangs")
        release.set()
        events.stop()
    assert 5 <= len(server.requests) <= 7  # the one that hung, and no more than the queue holds


def test_what_cannot_be_encoded_is_told_with_a_question_mark(tmp_path: Path) -> None:
    store = EventStore()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, FakeClock())
        events.record(POD, "Warning", "Odd", "key \ud800 is odd")
        events.record(POD, "Warning", "Odd", "x" * 2_000 + "\ud800", latest=True)
        events.stop()
    short, long = (str(event["message"]) for event in store.events.values())
    assert short == "key ? is odd"
    assert len(long) == 1024


def test_the_newest_message_takes_the_place_of_the_one_before_in_one_event(tmp_path: Path) -> None:
    store, clock = EventStore(), FakeClock()
    with ScriptedServer(store) as server:
        for texts in (("1 node full", "2 nodes full"), ("3 nodes full",)):  # two processes, one after the other
            events = recorder(server, tmp_path, clock)
            for text in texts:
                events.record(POD, "Warning", "Waiting", text, latest=True)
            events.stop()
            clock.advance(60)
        methods = [request.method for request in server.requests]
    (event,) = store.events.values()
    assert (event["message"], event["count"]) == ("3 nodes full", 3)
    assert methods == ["POST", "PATCH", "POST", "PATCH", "PATCH"]


def test_an_event_that_ran_out_starts_afresh(tmp_path: Path) -> None:
    store, clock = EventStore(), FakeClock()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, clock)
        events.record(POD, "Warning", "Waiting", "full")
        wait_for(lambda: store.events, "the first event")
        wait_for(lambda: events._seen, "its answer")
        store.events.clear()
        events.record(POD, "Warning", "Waiting", "full")
        events.stop()
    (event,) = store.events.values()
    assert event["count"] == 1


def test_events_about_one_object_are_limited_and_those_about_others_are_not(tmp_path: Path) -> None:
    store, clock, fates = EventStore(), FakeClock(), list[Fate]()
    other = Pod(metadata=ObjectMeta(name="q", namespace="ns", uid="u9"))
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, clock, fates=fates)
        for number in range(OBJECT_BURST + 10):
            events.record(POD, "Warning", "Circle", str(number))
        events.record(other, "Normal", "Allocated", "1 GPU")
        clock.advance(OBJECT_REFILL_S)
        for number in range(3):
            events.record(POD, "Warning", "Later", str(number))
        events.stop()
    assert Counter(str(event["reason"]) for event in store.events.values()) == {
        "Circle": OBJECT_BURST,
        "Allocated": 1,
        "Later": 1,
    }
    assert Counter(fates) == {"limited": 12, "written": OBJECT_BURST + 2}


def test_a_thousand_pods_at_once_are_told_at_a_rate_that_the_server_bears(tmp_path: Path) -> None:
    store, clock = EventStore(), FakeClock()
    with ScriptedServer(store) as server:
        events = recorder(server, tmp_path, clock, queue_length=2_000)
        for number in range(1_000):
            events.record(
                Pod(metadata=ObjectMeta(name=f"p{number}", namespace="ns", uid=f"u{number}")), "Normal", "Allocated", ""
            )
        wait_for(lambda: len(store.events) == WRITE_BURST, "the burst")
        for _ in range(2):
            at_least = len(store.events) + int(WRITES_PER_S) - 2
            clock.advance(1)
            wait_for(lambda least=at_least: len(store.events) >= least, "a second's worth")  # type: ignore[misc]
        assert len(store.events) <= WRITE_BURST + 2 * WRITES_PER_S
        events.stop()
    assert len(store.events) <= WRITE_BURST + 2 * WRITES_PER_S + 1


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(2.0, 3, now_s=10.0)
    assert [bucket.take(10.0) for _ in range(3)] == [0, 0, 0]
    assert bucket.take(10.0) == 0.5
    assert bucket.take(10.25) == 0.25
    assert bucket.take(10.5) == 0
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, 0.5]
