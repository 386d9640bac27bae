from __future__ import annotations

import msgspec
import structlog

from dracaena.api.objects import DeviceAttribute, Pod, ResourceSlice
from dracaena.controller.allocation.snapshot import DeviceId
from dracaena.controller.assumed import AssumedAllocation, AssumedAllocations
from dracaena.controller.cluster import Cluster
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
)

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
SLICE = pool_slice("node-a", FOUR)


class Bench:
    def __init__(self) -> None:
        self.woken: list[str] = []
        self.waiting: set[str] = set()
        self.problems = 0
        self.updating = 0
        self.assumed = AssumedAllocations(DRIVER)
        self.cluster = Cluster(
            DRIVER,
            assumed=self.assumed,
            wake=self.woken.append,
            waiting=lambda: self.waiting,
            problems_changed=self.count,
        )

    def count(self, problems: int, updating: int) -> None:
        self.problems, self.updating = problems, updating

    def take_woken(self) -> list[str]:
        woken, self.woken[:] = list(self.woken), []
        return woken

    def free(self) -> int:
        snapshot = self.cluster.snapshot()
        return snapshot.free(snapshot.pools["node-a"])


def with_statuses(base: Pod, *statuses: dict[str, str]) -> Pod:
    document = msgspec.to_builtins(base) | {"status": {"phase": "Pending", "resourceClaimStatuses": list(statuses)}}
    return msgspec.convert(document, Pod)


def test_a_change_of_a_claim_wakes_the_pods_that_name_it() -> None:
    bench = Bench()
    first, second = (
        pod("p", "shared"),
        with_statuses(pod("q", templates=["t"]), {"name": "t", "resourceClaimName": "own"}),
    )
    bench.cluster.pod_changed(None, first)
    bench.cluster.pod_changed(None, second)
    bench.cluster.pod_changed(None, pod("r", "shared"))
    assert bench.take_woken() == ["default/p", "default/q", "default/r"]
    bench.cluster.claim_changed(None, claim("shared"))
    assert bench.take_woken() == ["default/p", "default/r"]
    bench.cluster.claim_changed(None, claim("own"))
    assert bench.take_woken() == ["default/q"]
    bench.cluster.pod_changed(first, None)
    assert bench.take_woken() == ["default/p"]
    assert bench.cluster.pod("default/p") is None
    bench.cluster.claim_changed(claim("shared"), None)
    assert bench.take_woken() == ["default/r"]


def test_pods_without_claims_are_not_kept() -> None:
    bench = Bench()
    bench.cluster.pod_changed(None, pod("p"))
    assert bench.take_woken() == []
    assert bench.cluster.pod("default/p") is None


def test_a_claim_that_lets_go_of_devices_wakes_all_that_wait() -> None:
    bench = Bench()
    bench.waiting = {"default/w", "default/v"}
    held = holding(claim("c"), "node-a", device_name(FOUR, 0))
    bench.cluster.claim_changed(None, claim("c"))
    bench.cluster.claim_changed(claim("c"), held)
    assert bench.take_woken() == []
    before = bench.cluster.changes
    bench.cluster.claim_changed(held, claim("c"))
    assert bench.take_woken() == ["default/v", "default/w"]
    assert bench.cluster.changes > before
    bench.cluster.claim_changed(None, held)
    bench.cluster.claim_changed(held, None)
    assert bench.take_woken() == ["default/v", "default/w"]


def test_nodes_classes_and_pools_that_change_wake_all_that_wait_and_heartbeats_do_not() -> None:
    bench = Bench()
    bench.waiting = {"default/w"}
    plain = node("node-a")
    bench.cluster.node_changed(None, plain)
    assert bench.take_woken() == ["default/w"]
    bench.cluster.node_changed(plain, msgspec.structs.replace(plain))
    assert bench.take_woken() == []
    bench.cluster.node_changed(plain, node("node-a", unschedulable=True))
    assert bench.take_woken() == ["default/w"]
    bench.cluster.class_changed(None, device_class())
    assert bench.take_woken() == ["default/w"]
    bench.cluster.slice_changed(None, SLICE)
    assert bench.take_woken() == ["default/w"]
    bench.cluster.slice_changed(SLICE, SLICE)
    assert bench.take_woken() == []


def test_the_snapshot_shows_what_the_watches_told() -> None:
    bench = Bench()
    for name in ("node-b", "node-a"):
        bench.cluster.node_changed(None, node(name))
    bench.cluster.slice_changed(None, SLICE)
    bench.cluster.class_changed(None, device_class())
    bench.cluster.claim_changed(None, holding(claim("c"), "node-a", device_name(FOUR, 2)))
    snapshot = bench.cluster.snapshot()
    assert [item.metadata.name for item in snapshot.nodes] == ["node-a", "node-b"]
    assert set(snapshot.pools) == {"node-a"}
    assert set(snapshot.classes) == {DRIVER}
    assert bench.free() == 0b1011
    bench.cluster.class_changed(device_class(), None)
    bench.cluster.node_changed(node("node-b"), None)
    bench.cluster.slice_changed(SLICE, None)
    snapshot = bench.cluster.snapshot()
    assert ([n.metadata.name for n in snapshot.nodes], dict(snapshot.pools), dict(snapshot.classes)) == (
        ["node-a"], {}, {},
    )  # fmt: skip


def test_a_device_is_taken_from_the_decision_until_the_claim_lets_it_go() -> None:
    bench = Bench()
    bench.cluster.slice_changed(None, SLICE)
    device = DeviceId("node-a", device_name(FOUR, 1))
    bench.assumed.add([AssumedAllocation("uid-c", "default/c", "default/p", frozenset({device}), 0.0)])
    assert bench.free() == 0b1101
    held = holding(claim("c"), "node-a", device.device)
    bench.assumed.stored(held)
    bench.cluster.claim_changed(None, held)
    assert bench.assumed.devices() == frozenset()
    assert bench.free() == 0b1101
    bench.cluster.claim_changed(held, claim("c"))
    assert bench.free() == 0b1111


def broken(ordinal: int) -> ResourceSlice:
    devices = list(SLICE.spec.devices)
    attributes = {**devices[ordinal].attributes, "ordinal": DeviceAttribute(string="?")}
    devices[ordinal] = msgspec.structs.replace(devices[ordinal], attributes=attributes)
    return msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, devices=devices))


def test_a_device_that_does_not_decode_is_logged_once_and_counted_until_it_is_mended() -> None:
    bench = Bench()
    with structlog.testing.capture_logs() as logs:
        bench.cluster.slice_changed(None, broken(3))
        bench.cluster.slice_changed(broken(3), broken(3))
    named = [line for line in logs if line.get("device") == device_name(FOUR, 3)]
    assert [line["log_level"] for line in named] == ["warning"]
    assert bench.problems == 1
    assert bench.free() == 0b0111
    bench.cluster.slice_changed(broken(3), SLICE)
    assert bench.problems == 0
    assert bench.free() == 0b1111


def test_a_pool_that_is_just_being_written_is_no_warning_and_counted_apart() -> None:
    bench = Bench()
    pool = msgspec.structs.replace(SLICE.spec.pool, resource_slice_count=2)
    first_half = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, pool=pool))
    with structlog.testing.capture_logs() as logs:
        bench.cluster.slice_changed(None, first_half)
    assert [(line["log_level"], line["problem"]) for line in logs] == [
        ("info", "generation 1 has 1 of 2 slices: being updated")
    ]
    assert (bench.problems, bench.updating) == (0, 1)
    bench.cluster.slice_changed(first_half, SLICE)
    assert (bench.problems, bench.updating) == (0, 0)


def test_a_second_pool_of_a_node_is_logged() -> None:
    bench = Bench()
    pool = msgspec.structs.replace(SLICE.spec.pool, name="second")
    second = msgspec.structs.replace(
        SLICE,
        metadata=msgspec.structs.replace(SLICE.metadata, name="second"),
        spec=msgspec.structs.replace(SLICE.spec, pool=pool),
    )
    bench.cluster.slice_changed(None, SLICE)
    with structlog.testing.capture_logs() as logs:
        bench.cluster.slice_changed(None, second)
    assert [line["pool"] for line in logs] == ["second"]
    assert dict(bench.cluster.snapshot().pools) == {}


def test_slices_of_other_drivers_do_not_matter() -> None:
    bench = Bench()
    bench.waiting = {"default/w"}
    foreign = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, driver="other.example.com"))
    bench.cluster.slice_changed(None, foreign)
    assert bench.take_woken() == []
