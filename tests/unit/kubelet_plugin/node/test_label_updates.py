from __future__ import annotations

from collections.abc import Mapping

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
