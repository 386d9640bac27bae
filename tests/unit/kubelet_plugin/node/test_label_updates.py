from __future__ import annotations

from collections.abc import Mapping

import pytest

from dracaena.kubelet_plugin.node.label_updates import LabelUpdates


def test_subscribers_get_the_labels_when_the_node_is_first_seen_and_when_they_change() -> None:
    ours = LabelUpdates()
    seen: list[tuple[str, Mapping[str, str]]] = []
    ours.subscribe(lambda labels: seen.append(("first", labels)))
    ours.subscribe(lambda labels: seen.append(("second", labels)))
    ours.publish({})
    assert seen == [("first", {}), ("second", {})], "a Node without labels has been seen too"
    seen.clear()
    for labels in ({}, {"a": "1"}, {"a": "1"}, {"a": "2"}):
        ours.publish(labels)
    assert seen == [(who, {"a": value}) for value in ("1", "2") for who in ("first", "second")]


def test_labels_that_a_subscriber_failed_on_are_passed_on_again() -> None:
    """The reflector that publishes them tries such a change again."""
    ours = LabelUpdates()
    seen: list[Mapping[str, str]] = []

    def fail_once(_labels: Mapping[str, str]) -> None:
        if not tries:
            tries.append(1)
            raise ValueError("once")

    tries: list[int] = []
    ours.subscribe(fail_once)
    ours.subscribe(seen.append)
    with pytest.raises(ValueError, match="once"):
        ours.publish({"a": "1"})
    ours.publish({"a": "1"})
    assert seen == [{"a": "1"}]
