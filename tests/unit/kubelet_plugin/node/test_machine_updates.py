from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from dracaena.api.machine import Machine
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.node.events import NodeEvents
from dracaena.kubelet_plugin.node.machine_updates import MachineUpdates
from support.machines import divided_machine

MACHINE = divided_machine()


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def record(self, subject: Any, kind: str, reason: str, text: str) -> None:
        self.seen.append((subject.metadata.name, kind, reason, text))


def updates() -> tuple[MachineUpdates, list[tuple[Any, ...]]]:
    recorder = Recorder()
    return MachineUpdates(NodeEvents(cast("Any", recorder), "a")), recorder.seen


def with_gpu_driver(version: str) -> Machine:
    return dataclasses.replace(MACHINE, driver_version=version)


def test_subscribers_get_a_machine_in_order_and_the_event_comes_after_the_first() -> None:
    ours, seen = updates()
    ours.subscribe(lambda machine: seen.append(("first", machine.driver_version)))
    ours.subscribe(lambda machine: seen.append(("second", machine.driver_version)))
    ours.publish(with_gpu_driver("570.1"))
    assert seen == [("first", "570.1"), ("second", "570.1")]
    seen.clear()
    ours.publish(with_gpu_driver("580.2"))
    text = "driver 570.1 was replaced by 580.2: the devices are published again"
    assert seen == [("first", "580.2"), ("a", "Normal", "DriverReplaced", text), ("second", "580.2")]


def test_a_machine_that_the_first_refuses_goes_no_further() -> None:
    ours, seen = updates()

    def refuse(_machine: Machine) -> None:
        raise TopologyError("two devices of one name")

    ours.subscribe(refuse)
    ours.subscribe(lambda machine: seen.append(("second", machine.driver_version)))
    with pytest.raises(TopologyError):
        ours.publish(MACHINE)
    assert seen == []


def test_a_reading_that_says_the_same_reaches_those_who_asked_for_it() -> None:
    ours, seen = updates()
    ours.subscribe(lambda _machine: seen.append(("machine",)), same=lambda: seen.append(("same",)))
    ours.subscribe(lambda _machine: seen.append(("other machine",)))
    ours.same()
    assert seen == [("same",)]
