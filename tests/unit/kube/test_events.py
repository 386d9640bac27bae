from __future__ import annotations

import json
import threading
from pathlib import Path

from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.kube.events import EventRecorder, cut_bytes
from support.clock import FakeClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer

POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1"))
NODE = Node(metadata=ObjectMeta(name="n", uid="u2"))


class EventStore:
    """Keeps Events by name, as the API does."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, object]] = {}

    def __call__(self, request: Request) -> None:
        name = request.path.rpartition("/")[2]
        body = json.loads(request.body) if request.body else {}
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.events:
                request.answer(409, {"reason": "AlreadyExists", "message": "there already"})
                return
            self.events[name] = body
        elif request.method == "PATCH":
            self.events[name] |= body
        request.answer(200, self.events[name])


def recorder(server: ScriptedServer, folder: Path, clock: FakeClock, queue_length: int = 100) -> EventRecorder:
    client = client_for(server.url, folder)
    made = EventRecorder(client, "dracaena-controller", clock, queue_length=queue_length)
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


def test_long_message_is_cut_on_a_character() -> None:
    text = cut_bytes("ü" * 600, 1024)
    assert len(text.encode()) <= 1024
    assert text.endswith("ü...")
    assert cut_bytes("ü" * 512, 1024) == "ü" * 512
