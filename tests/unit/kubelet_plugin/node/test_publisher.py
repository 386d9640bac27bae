from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import NodeName, PoolName
from dracaena.api.objects import Node, Taint
from dracaena.api.resource_objects import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    ResourceSlice,
    ResourceSliceSpec,
)
from dracaena.kube.errors import ApiUnavailableError
from dracaena.kubelet_plugin.discovery.publish.pool import Page, PoolIdentity
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.publisher import REFUSED_RETRY_S, Publisher
from support.clock import FakeClock
from support.kube import wait_for
from support.slices import FakeSlices, FakeWriters

POOL = PoolIdentity("gpu.dracaena.dev", PoolName("node-1"), NodeName("node-1"))
TAINT = Taint("gpu.dracaena.dev/controller-allocated", "true", "NoSchedule")
TAINTED: tuple[Page, ...] = ((Device("a", taints=[TAINT]), Device("b", taints=[TAINT])),)
TAINT_FREE: tuple[Page, ...] = ((Device("a"), Device("b")),)


class Case:
    """A publisher over a server in memory."""

    def __init__(
        self, pages: tuple[Page, ...] | None = TAINTED, slices: FakeSlices | None = None, *, registered: bool = True
    ) -> None:
        self.slices = slices or FakeSlices()
        self.clock = FakeClock()
        self.metrics = PluginMetrics(CollectorRegistry())
        self.told: list[str] = []
        self.writers = FakeWriters()
        self.publisher = Publisher(
            pool=POOL,
            cache=self.slices,
            access=self.slices,
            writers=self.writers,
            clock=self.clock,
            metrics=self.metrics,
            on_refused=self._tell,
        )
        if pages is not None:
            self.publisher.set_pages(pages)
        if registered:
            self.publisher.kubelet_registered()

    def _tell(self, node: Node, reason: str) -> None:
        self.told.append(f"{node.metadata.name}: {reason}")

    def devices(self) -> list[str]:
        return [device.name for s in self.slices.list_slices() for device in s.spec.devices]


def drop_taints(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    bare = [msgspec.structs.replace(device, taints=[]) for device in spec.devices]
    return msgspec.structs.replace(spec, devices=bare)


def complete(spec: ResourceSliceSpec) -> bool:
    """Whether a reader may allocate from a pool of one page."""
    return spec.pool.resource_slice_count == 1


def test_the_first_publication_ends_with_one_complete_pool_of_generation_1() -> None:
    case = Case()
    assert case.publisher.ready() is not None
    assert case.publisher.sync()
    assert case.publisher.ready() is None
    (stored,) = case.slices.list_slices()
    assert (stored.spec.pool.generation, stored.spec.pool.resource_slice_count) == (1, 1)
    assert case.metrics.publishing.devices._value.get() == 2


def test_devices_are_incomplete_until_the_server_has_shown_that_it_keeps_their_taint() -> None:
    case = Case()
    case.publisher.sync()
    assert [complete(spec) for spec in case.slices.seen] == [False, True]


def test_an_equal_pool_costs_no_write_and_no_list() -> None:
    case = Case()
    case.publisher.sync()
    lists = case.slices.lists
    assert not case.publisher.sync()
    assert case.slices.lists == lists


def test_a_restart_over_an_equal_pool_writes_nothing() -> None:
    first = Case()
    first.publisher.sync()
    second = Case(slices=first.slices)
    first.slices.writes.clear()
    assert not second.publisher.sync()
    assert second.slices.writes == []
    assert second.publisher.ready() is None


def test_while_a_newer_instance_publishes_nothing_is_touched_and_afterwards_all_is_put_right() -> None:
    case = Case()
    case.publisher.sync()
    case.slices.writes.clear()
    case.writers.newer_publishes = True
    case.publisher.set_pages(TAINT_FREE)
    assert not case.publisher.sync()
    assert case.slices.writes == []
    case.writers.newer_publishes = False
    assert case.publisher.sync()
    assert not any(device.taints for one in case.slices.list_slices() for device in one.spec.devices)


def test_an_instance_whose_devices_a_newer_one_publishes_is_ready() -> None:
    case = Case()
    case.writers.newer_publishes = True
    assert not case.publisher.sync()
    assert case.publisher.ready() is None
    assert case.slices.writes == []


def test_what_may_still_land_is_outdated_also_by_an_equal_pool() -> None:
    first = Case()
    first.publisher.sync()
    second = Case(slices=first.slices)
    second.writers.may_land = 7
    assert second.publisher.sync()
    (stored,) = first.slices.list_slices()
    assert stored.spec.pool.generation == 8
    assert (second.writers.turns[-1].sent, second.writers.turns[-1].settled) == ([8], True)
    assert not second.publisher.sync()


def test_a_write_that_fails_leaves_the_turn_unsettled() -> None:
    case = Case()
    case.slices.failures = 1
    with pytest.raises(ApiUnavailableError):
        case.publisher.sync()
    assert (case.writers.turns[-1].sent, case.writers.turns[-1].settled) == ([1], False)


def test_before_the_devices_are_known_nothing_is_touched() -> None:
    first = Case()
    first.publisher.sync()
    first.slices.writes.clear()
    second = Case(None, slices=first.slices)
    assert not second.publisher.sync()
    assert second.slices.writes == []
    assert second.devices() == ["a", "b"]
    assert second.publisher.ready() is not None


def test_before_kubelet_has_registered_the_plugin_nothing_is_touched() -> None:
    first = Case()
    first.publisher.sync()
    first.slices.writes.clear()
    second = Case(((Device("c", taints=[TAINT]),),), slices=first.slices, registered=False)
    assert not second.publisher.sync()
    assert second.slices.writes == []
    assert second.devices() == ["a", "b"]
    assert second.publisher.ready() == "kubelet has not registered this plugin yet"
    second.publisher.kubelet_registered()
    assert second.publisher.ready() == "the ResourceSlices of this node are not published yet"
    assert second.publisher.sync()
    assert second.devices() == ["c"]


def test_the_thread_publishes_once_kubelet_registers() -> None:
    case = Case(registered=False)
    case.publisher.start()
    try:
        case.publisher.kubelet_registered()
        wait_for(lambda: case.publisher.ready() is None, "published")
    finally:
        case.publisher.stop()
    assert case.devices() == ["a", "b"]


def test_other_devices_replace_the_published_ones() -> None:
    case = Case()
    case.publisher.sync()
    case.publisher.set_pages(((TAINTED[0][1],),))
    assert case.publisher.sync()
    assert case.devices() == ["b"]
    assert case.metrics.publishing.devices._value.get() == 1


def test_the_thread_publishes_devices_that_become_known() -> None:
    case = Case(None)
    case.publisher.start()
    try:
        case.publisher.set_pages(TAINTED)
        wait_for(lambda: case.publisher.ready() is None, "published")
    finally:
        case.publisher.stop()
    assert case.devices() == ["a", "b"]


def test_deleted_slices_are_made_again_without_another_proof() -> None:
    case = Case()
    case.publisher.sync()
    case.slices.stored.clear()
    case.slices.writes.clear()
    assert case.publisher.sync()
    assert case.slices.writes == ["create"]
    assert case.devices() == ["a", "b"]


def test_a_late_watch_does_not_double_a_slice() -> None:
    case = Case(slices=FakeSlices(live=False))
    case.publisher.sync()
    assert not case.publisher.sync()  # the watch still shows nothing
    assert len(case.slices.stored) == 1


class LateList(FakeSlices):
    """The server as an instance meets it whose first write comes after all writes of the other instance."""

    def __init__(self, server: FakeSlices, before_writing: Callable[[], object]) -> None:
        super().__init__()
        self.stored = server.stored
        self._server = server
        self._before_writing = before_writing

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        other, self._before_writing = self._before_writing, lambda: None
        other()
        return self._server.create_slice(document)

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        return self._server.update_slice(published, spec)


@pytest.mark.parametrize("last", ["old", "new"])
@pytest.mark.parametrize("pages", [TAINTED, TAINT_FREE])
def test_two_instances_that_both_found_no_slice_agree_on_one(pages: tuple[Page, ...], last: str) -> None:
    """Two instances of an upgrade: both list, then both create. Whoever looks next, the same slice stays."""
    new = Case(pages)
    old = Case(pages, LateList(new.slices, new.publisher.sync))
    old.publisher.sync()
    instances = {"old": old, "new": new}
    for _ in range(2):
        instances[last].publisher.sync()
    assert new.slices.writes.count("create") == 2
    (stored,) = new.slices.list_slices()
    assert complete(stored.spec)
    assert list(stored.spec.devices) == list(pages[0])
    assert not any(case.publisher.sync() for case in instances.values())


def test_a_server_without_taints_gets_an_empty_pool_and_nobody_may_have_allocated() -> None:
    case = Case()
    case.slices.change = drop_taints
    case.publisher.sync()
    assert case.devices() == []
    assert not any(complete(spec) and spec.devices for spec in case.slices.seen)
    assert case.publisher.ready() is None
    assert "node-1: the API server dropped the taint of 2 devices (first: a)" in case.told[0]
    assert "DRADeviceTaints" in case.told[0]
    assert case.metrics.publishing.taint_refused._value.get() == 1
    assert not case.publisher.sync()  # and stays so without another write


def test_the_pool_is_filled_when_the_server_keeps_taints_later() -> None:
    case = Case()
    case.slices.change = drop_taints
    case.publisher.sync()
    case.slices.change = lambda spec: spec
    case.clock.advance(REFUSED_RETRY_S)
    assert case.publisher.sync()
    assert case.devices() == ["a", "b"]
    assert not any(complete(spec) and any(not d.taints for d in spec.devices) for spec in case.slices.seen)


def test_a_server_that_loses_taints_later_gets_an_empty_pool() -> None:
    case = Case()
    case.publisher.sync()
    case.slices.stored.clear()
    case.slices.change = drop_taints
    case.publisher.sync()
    assert case.devices() == []


def test_without_taint_the_devices_are_published_at_once() -> None:
    case = Case(pages=((Device("a"),),))
    case.publisher.sync()
    assert case.slices.writes == ["create"]
    assert complete(case.slices.seen[0])


def test_what_the_server_drops_otherwise_is_taken_as_it_is() -> None:
    pages = ((Device("a", taints=[TAINT], attributes={"x": DeviceAttribute(int_value=1)}),),)

    def drop_attributes(spec: ResourceSliceSpec) -> ResourceSliceSpec:
        return msgspec.structs.replace(
            spec, devices=[msgspec.structs.replace(device, attributes={}) for device in spec.devices]
        )

    case = Case(pages)
    case.slices.change = drop_attributes
    case.publisher.sync()
    assert not case.publisher.sync()
    assert case.devices() == ["a"]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_failed_write_is_completed_by_the_next_sync(failures: int) -> None:
    case = Case(pages=(*TAINTED, (Device("c", taints=[TAINT]),)))
    case.slices.failures = failures
    for _ in range(failures):
        with pytest.raises(ApiUnavailableError):
            case.publisher.sync()
    case.publisher.sync()
    assert case.devices() == ["a", "b", "c"]
    assert len({s.spec.pool.generation for s in case.slices.list_slices()}) == 1


def test_the_thread_publishes_again_what_somebody_deleted() -> None:
    case = Case()
    case.slices.failures = 1
    case.publisher.start()
    try:

        def published() -> bool:
            case.clock.advance(60.0)
            return case.publisher.ready() is None and case.devices() == ["a", "b"]  # else it may write once more

        wait_for(published, "published although the first try failed")
        case.slices.stored.clear()
        case.publisher.slice_changed(None, None)
        wait_for(published, "published again")
        assert case.metrics.publishing.errors._value.get() == 1
    finally:
        case.publisher.stop()


def test_stopping_leaves_the_slices() -> None:
    case = Case()
    case.publisher.sync()
    case.publisher.start()
    case.publisher.stop()
    assert case.devices() == ["a", "b"]


def test_the_pause_grows_while_something_else_keeps_changing_our_slices() -> None:
    case = Case()
    pauses = [case.publisher._next_debounce_s(wrote=True) for _ in range(8)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    case.clock.advance(120.0)
    assert case.publisher._next_debounce_s(wrote=True) == 1.0


def test_without_the_gate_a_device_that_is_to_be_tainted_is_withheld_and_the_others_stay() -> None:
    sick = Taint("gpu.dracaena.dev/xid", "79", "NoSchedule")
    case = Case(TAINT_FREE)
    case.slices.change = drop_taints
    case.publisher.sync()
    assert case.devices() == ["a", "b"]
    case.publisher.set_pages(((Device("a", taints=[sick]), Device("b")),))
    case.publisher.sync()
    assert case.devices() == ["b"]
    assert "dropped the taint of 1 devices (first: a)" in case.told[0]
    case.publisher.set_pages(TAINT_FREE)
    case.publisher.sync()
    assert case.devices() == ["a", "b"]


def test_a_taint_that_comes_and_goes_leaves_the_times_of_the_others() -> None:
    case = Case()
    stamps = count()

    def stamp(spec: ResourceSliceSpec) -> ResourceSliceSpec:
        """Set the times that are missing, as the server does, each write another."""
        now = f"2026-01-01T00:00:{next(stamps):02}Z"
        devices = [
            msgspec.structs.replace(
                device, taints=[msgspec.structs.replace(t, time_added=t.time_added or now) for t in device.taints]
            )
            for device in spec.devices
        ]
        return msgspec.structs.replace(spec, devices=devices)

    case.slices.change = stamp
    case.publisher.sync()
    (before,) = case.slices.list_slices()
    assert before.spec.devices[0].taints[0].time_added is not None
    sick = Taint("gpu.dracaena.dev/xid", "79", "NoSchedule")
    for more in ([sick], []):
        pages = ((Device("a", taints=[TAINT, *more]), Device("b", taints=[TAINT])),)
        case.publisher.set_pages(pages)
        assert case.publisher.sync()
        (stored,) = case.slices.list_slices()
        assert len(stored.spec.devices[0].taints) == 1 + len(more)
        assert [d.taints[0].time_added for d in stored.spec.devices] == [
            d.taints[0].time_added for d in before.spec.devices
        ]
        assert stored.spec.pool.generation == before.spec.pool.generation


COUNTED: tuple[Page, ...] = (
    (Device("a", consumes_counters=[CounterConsumption("x", {"memory-slice-0": Counter("1")})]), Device("b")),
    (CounterSet("x", {"memory-slice-0": Counter("1")}),),
)


def drop_counters(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    bare = [msgspec.structs.replace(device, consumes_counters=[]) for device in spec.devices]
    return msgspec.structs.replace(spec, devices=bare, shared_counters=[])


def test_devices_with_counters_are_incomplete_until_the_server_has_shown_that_it_keeps_them() -> None:
    case = Case(COUNTED)
    case.publisher.sync()
    assert [spec.pool.resource_slice_count for spec in case.slices.seen] == [3, 3, 2, 2]
    assert [len(s.spec.shared_counters) for s in case.slices.list_slices()] == [0, 1]
    second = Case(COUNTED, case.slices)
    assert not second.publisher.sync()


def test_where_the_server_drops_counters_nothing_that_needs_them_is_ever_complete() -> None:
    case = Case(COUNTED)
    case.slices.change = drop_counters
    case.publisher.sync()
    assert case.devices() == ["b"]
    assert "feature gate DRAPartitionableDevices is off" in case.told[0]
    whole = [spec for spec in case.slices.seen if spec.pool.resource_slice_count <= 2]
    assert {device.name for spec in whole for device in spec.devices} == {"b"}


def complete_devices(case: Case, pages: int) -> set[str]:
    """The devices that a pool of so many pages ever showed as complete."""
    whole = [spec for spec in case.slices.seen if spec.pool.resource_slice_count <= pages]
    return {device.name for spec in whole for device in spec.devices}


def with_taint(pages: tuple[Page, ...], *names: str) -> tuple[Page, ...]:
    return tuple(
        tuple(
            msgspec.structs.replace(each, taints=[TAINT]) if isinstance(each, Device) and each.name in names else each
            for each in page
        )
        for page in pages
    )


def test_where_the_server_drops_counters_tainted_devices_without_any_are_published() -> None:
    case = Case(with_taint(COUNTED, "a", "b"))
    case.slices.change = drop_counters
    case.publisher.sync()
    assert case.devices() == ["b"]
    assert complete_devices(case, pages=2) == {"b"}
    assert all(device.taints for spec in case.slices.seen for device in spec.devices)
    assert "until then this node publishes nothing that needs them" in case.told[0]
    assert not case.publisher.sync()


def test_where_the_server_drops_taints_devices_with_counters_and_without_taint_are_published() -> None:
    case = Case(with_taint(COUNTED, "b"))
    case.slices.change = drop_taints
    case.publisher.sync()
    assert case.devices() == ["a"]
    assert [len(s.spec.shared_counters) for s in case.slices.list_slices()] == [0, 1]
    assert complete_devices(case, pages=2) == {"a"}
    assert not case.publisher.sync()


def test_a_server_that_drops_both_gets_what_needs_neither_and_both_are_told() -> None:
    pages = ((*COUNTED[0], Device("c")), COUNTED[1])
    case = Case(with_taint(pages, "a", "b"))
    case.slices.change = lambda spec: drop_counters(drop_taints(spec))
    case.publisher.sync()
    assert case.devices() == ["c"]
    assert complete_devices(case, pages=2) == {"c"}
    assert [gate in told for gate, told in zip(("DRADeviceTaints", "DRAPartitionable"), case.told, strict=True)] == [
        True,
        True,
    ]
    assert not case.publisher.sync()
    case.slices.change = lambda spec: spec
    case.clock.advance(REFUSED_RETRY_S)
    assert case.publisher.sync()
    assert case.devices() == ["a", "b", "c"]
