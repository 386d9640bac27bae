"""The history of the storage, against slow and obvious versions of the same."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dracaena.demo.apiserver.errors import ApiError
from dracaena.demo.apiserver.resources import NODE, POD
from dracaena.demo.apiserver.selectors import Selection, parse_labels
from dracaena.demo.apiserver.storage import ObjectStorage
from dracaena.demo.apiserver.watches import event_line

WINDOW = 12
NAMES = st.sampled_from(["a", "b", "c"])
LABELS = st.sampled_from(["red", "blue"])


def _pod(name, label, note):
    metadata = {"name": name, "namespace": "ns", "labels": {"colour": label}, "annotations": {"note": note}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}


def _shown(stored):
    return {key: one.document["metadata"]["resourceVersion"] for key, one in stored}


def _is_expired(storage, version):
    """Whether the history after a version is not whole any more."""
    return version < storage._forgotten


class History(RuleBasedStateMachine):
    """Writes at random; every state of the past is remembered beside the storage, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = ObjectStorage(window=WINDOW, future_wait_s=0.0)
        self.notes = 0
        self.states: dict[int, dict[str, Any]] = {self.storage.version: {}}

    def _remember(self):
        self.states[self.storage.version] = dict(self.storage.snapshot(POD)[1])

    @rule(name=NAMES, label=LABELS)
    def write(self, name, label):
        self.notes += 1
        self.storage.put(POD, f"ns/{name}", _pod(name, label, str(self.notes)))
        self._remember()

    @rule(name=NAMES)
    def delete(self, name):
        if self.storage.get(POD, f"ns/{name}"):
            self.storage.delete(POD, f"ns/{name}")
            self._remember()

    @rule()
    def write_another_kind(self):
        self.storage.put(NODE, "n", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})
        self._remember()

    @rule(data=st.data())
    @precondition(lambda self: len(self.states) > 1)
    def a_past_list_is_as_it_was_or_expired(self, data):
        version = data.draw(st.sampled_from(sorted(self.states)))
        if _is_expired(self.storage, version):
            with pytest.raises(ApiError, match="too old resource version"):
                self.storage.snapshot(POD, version)
            return
        shown, objects = self.storage.snapshot(POD, version)
        assert shown == version
        assert _shown(objects) == _shown(self.states[version].items())

    @rule(data=st.data(), selector=st.sampled_from(["", "colour=red", "colour!=red"]))
    def a_watch_from_the_past_ends_with_the_present(self, data, selector):
        version = data.draw(st.sampled_from(sorted(self.states)))
        if _is_expired(self.storage, version):
            return
        selection = Selection(labels=parse_labels(selector))
        seen = {
            key: stored.encoded for key, stored in self.states[version].items() if selection.matches(stored.document)
        }
        subscription, _, _ = self.storage.subscribe(POD, version)
        for event in subscription.take(0):
            line = event_line(selection, event)
            if line is None:
                continue
            change = json.loads(line)
            if change["type"] == "DELETED":
                del seen[event.key]
            else:
                assert (event.key in seen) is (change["type"] == "MODIFIED")
                seen[event.key] = event.after.encoded
        self.storage.unsubscribe(POD, subscription)
        listed = {key: one.encoded for key, one in self.storage.snapshot(POD)[1] if selection.matches(one.document)}
        assert seen == listed

    @invariant()
    def the_window_holds(self):
        recent = sorted(self.states)[-WINDOW:]
        assert not _is_expired(self.storage, recent[0])


History.TestCase.settings = settings(stateful_step_count=40)
TestHistory = History.TestCase


def test_a_reader_that_falls_behind_is_cut_off():
    storage = ObjectStorage(window=3)
    subscription, _, _ = storage.subscribe(POD, storage.version)
    for note in range(4):
        storage.put(POD, "ns/a", _pod("a", "red", str(note)))
    assert len(subscription.take(0)) == 3
    assert subscription.is_closed()


def test_guarded_updates_from_many_threads_lose_none(connect, pod):
    """Each thread counts in an annotation under the object's version: every conflict is told, no count is lost."""
    pods = "/api/v1/namespaces/default/pods"
    connect().create(pods, pod("counter", {"annotations": {"count": "0"}}))
    threads, turns = 6, 8

    def count(client):
        for _ in range(turns):
            while True:
                stored = client.get(f"{pods}/counter").body
                stored["metadata"]["annotations"]["count"] = str(int(stored["metadata"]["annotations"]["count"]) + 1)
                reply = client.put(f"{pods}/counter", stored)
                assert reply.code in (200, 409)
                if reply.code == 200:
                    break

    workers = [threading.Thread(target=count, args=(connect(),)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert connect().get(f"{pods}/counter").body["metadata"]["annotations"]["count"] == str(threads * turns)


def test_one_of_many_creators_wins(connect, pod):
    pods = "/api/v1/namespaces/default/pods"
    codes = []

    def create(client):
        codes.append(client.create(pods, pod("only")).code)

    workers = [threading.Thread(target=create, args=(connect(),)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(codes) == [201] + [409] * 7
