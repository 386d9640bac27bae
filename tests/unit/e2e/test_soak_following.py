"""The soak's checker is told all states in the order of their versions, and what it missed as missed."""

from __future__ import annotations

import json
from typing import Any

from e2e.api import Answer, Api
from e2e.bulk import Connection
from e2e.soak.events import Event, What
from e2e.soak.following import MARKERS, Following, _Stream


class MarkingApi:
    """Answers the patches of the markers with versions that a test gives."""

    def __init__(self, *versions: int) -> None:
        self._versions = list(versions)

    def send(self, _method: str, _path: str, _body: Any, _content_type: str) -> Answer:
        if not self._versions:
            return Answer(0, "connection refused")
        return Answer(200, json.dumps({"metadata": {"resourceVersion": str(self._versions.pop(0))}}))


def following(*versions: int) -> Following:
    api = MarkingApi(*versions)

    def use() -> Api:
        return api  # type: ignore[return-value]  # only send() is called

    return Following(use, no_connection, lambda: 1.0)


def no_connection() -> Connection:
    raise OSError("no server here")


def state(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "resourceVersion": str(version)}}


def show(followed: Following, kind: str, name: str, version: int) -> None:
    stream = followed._streams[kind]
    event = Event(kind, What.IS, state(name, version), version, 1.0)
    followed.add(stream, [event], version)


def test_states_of_all_kinds_come_in_one_order_up_to_the_oldest_marker() -> None:
    followed = following(20, 21, 22, 23)
    show(followed, "pods", "p", 12)
    show(followed, "resourceclaims", "c", 11)
    show(followed, "resourceclaims", "c", 21)
    for kind, position in zip(MARKERS, (20, 21, 22, 23), strict=True):
        followed.add(followed._streams[kind], [], position)
    taken = followed.take()
    assert taken is not None
    assert [(event.kind, event.version) for event in taken] == [("resourceclaims", 11), ("pods", 12)]


def test_nothing_is_taken_while_the_server_does_not_answer() -> None:
    followed = following()
    show(followed, "pods", "p", 12)
    assert followed.take() is None


def test_the_markers_themselves_are_not_told() -> None:
    followed = following(20, 21, 22, 23)
    for kind in MARKERS:
        show(followed, kind, "soak-marker", 23)
    assert followed.take() == []


def compare(before: dict[str, int], after: dict[str, int], position: int) -> list[tuple[str, str, int]]:
    stream = _Stream("pods", no_connection, following())
    stream._last = {f"default/{name}": event(name, version) for name, version in before.items()}
    fresh = {f"default/{name}": event(name, version) for name, version in after.items()}
    found = stream._compare(fresh, position, 1.0)
    return [(one.key.removeprefix("default/"), one.what.value, one.version) for one in found]


def event(name: str, version: int) -> Event:
    return Event("pods", What.IS, state(name, version), version, 1.0)


def test_after_a_gap_a_changed_object_is_unknown_from_its_last_state_to_its_present_one() -> None:
    assert compare({"p": 5}, {"p": 9}, 12) == [("p", "unknown", 5), ("p", "is", 9)]


def test_after_a_gap_a_missing_object_is_unknown_and_then_gone() -> None:
    assert compare({"p": 5}, {}, 12) == [("p", "unknown", 5), ("p", "gone", 12)]


def test_a_list_that_shows_nothing_new_tells_nothing() -> None:
    assert compare({"p": 5}, {"p": 5}, 12) == []
    assert compare({}, {"p": 5}, 12) == [("p", "is", 5)]
