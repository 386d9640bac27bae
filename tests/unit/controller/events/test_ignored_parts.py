from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from dracaena.api.objects import ObjectMeta
from dracaena.controller.events import ignored_parts
from dracaena.controller.events.ignored_parts import IgnoredParts
from support.allocation import pod
from support.claim_api import FakeEvents


class Looked:
    """What is found of pods, and how often it was asked for."""

    def __init__(self) -> None:
        self.events = FakeEvents()
        self.parts = IgnoredParts(self.events)
        self.asked: list[str] = []

    def look(self, name: str, *texts: str) -> None:
        def found() -> Sequence[str]:
            self.asked.append(name)
            return texts

        self.parts.look(pod(name), found)


def test_all_that_is_said_without_effect_is_one_event_on_the_pod_and_only_once() -> None:
    looked = Looked()
    for _ in range(3):
        looked.look("p", "a", "b")
        looked.look("q")
    assert looked.events.seen == [("Pod default/p", "ClaimPartsIgnored", "a; b")]
    assert looked.asked == ["p", "q"]


def test_the_pod_that_was_looked_at_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored_parts, "MAX_PODS", 2)
    looked = Looked()
    for name in ("p", "q", "p", "r", "p", "q"):
        looked.look(name)
    assert looked.asked == ["p", "q", "r", "q"]


def test_a_pod_that_is_gone_is_forgotten_and_one_of_its_name_is_another() -> None:
    looked = Looked()
    looked.look("p", "a")
    looked.parts.look(msgspec.structs.replace(pod("p"), metadata=ObjectMeta("p", "default", "other")), lambda: ["b"])
    assert [text for _, _, text in looked.events.seen] == ["a", "b"]
    looked.parts.forget("default/p")
    assert not looked.parts._seen
