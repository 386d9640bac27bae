from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import structlog

from dracaena.api.objects import NodeStatus, Pod
from dracaena.api.resource_objects import DeviceAttribute, ResourceSlice
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.effort import never
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation, allocated_claim
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.lifecycle.proof import BEHIND_S
from dracaena.controller.state.answers import Behind, InProgress
from dracaena.controller.state.explanation_cache import EXPLANATION_S
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.bare_cluster import abandon, bare_cluster, decide, newer, show, written
from support.clock import FakeClock
from support.inventories import free_mask
from support.reconciling import EXCLUSION_S

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
SLICE = pool_slice("node-a", FOUR)


class Bench:
    def __init__(self) -> None:
        self.woken: list[str] = []
        self.problems = 0
        self.updating = 0
        self.clock = FakeClock()
        self.cluster = bare_cluster(self.woken.append, clock=self.clock, problems_changed=self.count)

    def count(self, problems: int, updating: int) -> None:
        self.problems, self.updating = problems, updating

    def let_wait(self, *names: str, count: int = 4, **spec: Any) -> None:
        """Let pods with equal claims of so many GPUs be decided for that fit nowhere."""
        for name in names:
            asked, waiting = claim(f"of-{name}", request(count=count)), pod(name, f"of-{name}", **spec)
            self.cluster.intake.pod_changed(None, waiting)
            self.cluster.intake.claim_changed(None, asked)
            assert not isinstance(self.decide(name), Allocation)
        self.take_woken()

    def decide(self, name: str) -> object:
        waiting, asked = self.cluster.pod(f"default/{name}"), self.cluster.claim(f"default/of-{name}")
        assert waiting is not None
        assert asked is not None
        return decide(self.cluster, waiting, asked)

    def take_woken(self) -> list[str]:
        woken, self.woken[:] = list(self.woken), []
        return woken

    def free(self) -> int:
        self.cluster.check()
        return free_mask(self.inventory, "node-a")

    @property
    def inventory(self) -> Inventory:
        return self.cluster._state.inventory


def with_statuses(base: Pod, *statuses: dict[str, str]) -> Pod:
    document = msgspec.to_builtins(base) | {"status": {"phase": "Pending", "resourceClaimStatuses": list(statuses)}}
    return msgspec.convert(document, Pod)


def test_a_change_of_a_claim_wakes_the_pods_that_name_it() -> None:
    bench = Bench()
    first, second = (
        pod("p", "shared"),
        with_statuses(pod("q", templates=["t"]), {"name": "t", "resourceClaimName": "own"}),
    )
    bench.cluster.intake.pod_changed(None, first)
    bench.cluster.intake.pod_changed(None, second)
    bench.cluster.intake.pod_changed(None, pod("r", "shared"))
    assert bench.take_woken() == ["default/p", "default/q", "default/r"]
    bench.cluster.intake.claim_changed(None, claim("shared"))
    assert bench.take_woken() == ["default/p", "default/r"]
    bench.cluster.intake.claim_changed(None, claim("own"))
    assert bench.take_woken() == ["default/q"]
    bench.cluster.intake.pod_changed(first, None)
    assert bench.take_woken() == ["default/p"]
    assert bench.cluster.pod("default/p") is None
    bench.cluster.intake.claim_changed(claim("shared"), None)
    assert bench.take_woken() == ["default/r"]


def test_pods_without_claims_are_not_kept() -> None:
    bench = Bench()
    bench.cluster.intake.pod_changed(None, pod("p"))
    assert bench.take_woken() == []
    assert bench.cluster.pod("default/p") is None


def ready() -> Bench:
    """A cluster of one node with four GPUs."""
    bench = Bench()
    bench.cluster.intake.node_changed(None, node("node-a"))
    bench.cluster.intake.slice_changed(None, SLICE)
    bench.cluster.intake.class_changed(None, device_class())
    return bench


def test_a_claim_that_lets_go_of_devices_wakes_whom_its_node_may_serve_now() -> None:
    bench = ready()
    held = holding(claim("c"), "node-a", device_name(FOUR, 0))
    show(bench.cluster, claim("c"))
    show(bench.cluster, held)
    bench.let_wait("w")
    bench.let_wait("v", tolerations=[{"key": "x", "operator": "Exists"}])
    bench.let_wait("elsewhere", count=3, nodeSelector={"a": "b"})
    bench.let_wait("large", count=5)
    bench.clock.advance(BEHIND_S)
    show(bench.cluster, claim("c"))
    assert bench.take_woken() == ["default/v", "default/w"]
    show(bench.cluster, held)
    assert bench.take_woken() == []
    bench.cluster.intake.claim_changed(held, None)
    assert bench.take_woken() == ["default/v", "default/w"]


def test_a_pod_with_several_claims_is_asked_about_all_nodes_when_devices_come_or_go_anywhere() -> None:
    """Which of its claims are ours depends on what devices there are."""
    bench = ready()
    waiting, asked = pod("p", "x", "y"), [show(bench.cluster, claim(name, request(count=4))) for name in "xy"]
    bench.cluster.intake.pod_changed(None, waiting)
    assert not isinstance(decide(bench.cluster, waiting, *asked), Allocation)
    bench.take_woken()
    bench.cluster.intake.node_changed(None, node("node-b"))
    assert bench.take_woken() == ["default/p"]


def test_nodes_classes_and_pools_that_may_help_wake_who_waits_and_heartbeats_do_not() -> None:
    bench = Bench()
    bench.cluster.intake.class_changed(None, device_class())
    bench.let_wait("w")
    plain, closed = node("node-a"), node("node-a", unschedulable=True)
    bench.cluster.intake.slice_changed(None, SLICE)
    assert bench.take_woken() == [], "there is no node yet"
    bench.cluster.intake.node_changed(None, closed)
    assert bench.take_woken() == [], "nor one that takes pods"
    bench.cluster.intake.node_changed(closed, plain)
    assert bench.take_woken() == ["default/w"]
    bench.cluster.intake.node_changed(plain, msgspec.structs.replace(plain))
    assert bench.take_woken() == []
    roomy = NodeStatus(allocatable={"cpu": "8", "memory": "8Gi", "pods": "100"})
    beating = msgspec.structs.replace(plain, status=roomy)
    bench.cluster.intake.node_changed(plain, beating)
    bench.take_woken()
    roomy = msgspec.structs.replace(roomy, declared_features=["DRAOptionalNodeOperations"])
    bench.cluster.intake.node_changed(beating, msgspec.structs.replace(plain, status=roomy))
    assert bench.take_woken() == ["default/w"], "its kubelet can do more"
    bench.cluster.intake.node_changed(plain, closed)
    assert bench.take_woken() == [], "that helps nobody"
    bench.cluster.intake.class_changed(None, device_class())
    assert bench.take_woken() == ["default/w"]
    bench.cluster.intake.slice_changed(SLICE, SLICE)
    assert bench.take_woken() == []


def test_the_books_show_what_the_watches_reported() -> None:
    bench = Bench()
    for name in ("node-b", "node-a"):
        bench.cluster.intake.node_changed(None, node(name))
    bench.cluster.intake.slice_changed(None, SLICE)
    bench.cluster.intake.class_changed(None, device_class())
    bench.cluster.intake.claim_changed(None, holding(claim("c"), "node-a", device_name(FOUR, 2)))
    assert list(bench.inventory.nodes.names) == ["node-a", "node-b"]
    assert set(bench.inventory.classes) == {DRIVER}
    assert bench.free() == 0b1011
    bench.cluster.intake.class_changed(device_class(), None)
    bench.cluster.intake.node_changed(node("node-b"), None)
    bench.cluster.intake.slice_changed(SLICE, None)
    bench.cluster.check()
    assert list(bench.inventory.nodes.names) == ["node-a"]
    assert set(bench.inventory.classes) == set()
    assert bench.inventory.pool("node-a") is None


def test_a_device_is_taken_from_the_decision_until_the_claim_lets_it_go() -> None:
    bench = ready()
    asked = show(bench.cluster, claim("c", request(count=3)))
    decision = decide(bench.cluster, pod("p", "c"), asked)
    assert isinstance(decision, Allocation)
    assert bench.free() == 0b1000
    assert decide(bench.cluster, pod("q", "c"), asked) == InProgress("default/c")
    (held,) = written(decision, pod("p", "c"))
    bench.cluster.intake.claim_changed(asked, held)
    assert bench.free() == 0b1000
    freed = newer(asked)
    bench.cluster.intake.claim_changed(held, freed)
    assert bench.free() == 0b1111
    assert decide(bench.cluster, pod("p", "c"), held) == InProgress("default/c")  # not the newest claim


def test_an_older_state_than_the_last_changes_nothing_wherever_it_comes_from() -> None:
    bench = ready()
    asked = show(bench.cluster, claim("c", request(count=3)))
    decision = decide(bench.cluster, pod("p", "c"), asked)
    assert isinstance(decision, Allocation)
    (held,) = written(decision, pod("p", "c"))
    bench.cluster.shown(held)  # the answer, before the watch
    bench.cluster.intake.claim_changed(None, asked)
    assert bench.cluster.claim("default/c") is held
    assert bench.free() == 0b1000


def test_a_decision_that_was_not_written_takes_nothing() -> None:
    bench = ready()
    asked = show(bench.cluster, claim("c"))
    assert isinstance(decide(bench.cluster, pod("p", "c"), asked), Allocation)
    bench.let_wait("w")
    abandon(bench.cluster, asked)
    assert bench.free() == 0b1111
    assert bench.take_woken() == ["default/w"]


def test_why_a_pod_fits_nowhere_is_reported_until_it_fits() -> None:
    bench = Bench()
    bench.cluster.intake.node_changed(None, node("node-a"))
    bench.cluster.intake.class_changed(None, device_class())
    asked = claim("c")
    bench.cluster.intake.claim_changed(None, asked)
    assert decide(bench.cluster, pod("p"), asked) == NoFit()
    text = f"0/1 nodes fit: 1 without usable GPUs of {DRIVER} (node-a)"
    explained = bench.cluster.explain(pod("p"), [asked], now_s=0.0)
    assert explained is not None
    assert explained.text == text
    bench.cluster.intake.slice_changed(None, SLICE)
    assert bench.cluster.explain(pod("p"), [asked], now_s=EXPLANATION_S / 2) is not None
    assert bench.cluster.explain(pod("p"), [asked], now_s=EXPLANATION_S) is None


class OneNodeATurn:
    """Implements Pace: others work after each node."""

    def __init__(self, others: Callable[[], object]) -> None:
        self._others = others

    def begin_turn(self) -> Callable[[int], bool]:
        return never

    def turn_is_up(self) -> bool:
        return True

    def rest(self) -> None:
        self._others()


def test_decisions_are_made_while_it_is_worked_out_why_a_pod_fits_nowhere() -> None:
    cluster = bare_cluster()
    cluster.intake.class_changed(None, device_class())
    for name in ("node-a", "node-b", "node-c"):
        cluster.intake.node_changed(None, node(name))
    cluster.intake.slice_changed(None, SLICE)
    wants, large = claim("c", request(count=1)), claim("of-large", request(count=20))
    for item in (wants, large):
        cluster.intake.claim_changed(None, item)
    decided: list[object] = []

    others = ThreadPoolExecutor(1)  # a lock that this thread holds would keep it waiting

    def decide_for_another() -> None:
        decided.append(others.submit(decide, cluster, pod("p", "c"), wants).result(timeout=30))

    waiting = pod("large", "of-large")
    found = cluster.explain(waiting, [large], now_s=0.0, pace=OneNodeATurn(decide_for_another))
    assert decided[:2] == [ANY, InProgress("default/c")]
    assert found is not None
    assert found.text == (
        f"0/3 nodes fit: no node that offers GPUs has 20 GPUs, the largest has 4; "
        f"2 without usable GPUs of {DRIVER} (node-b, node-c); "
        "1 with fewer than 20 GPUs (node-a)"
    )
    no_turns = OneNodeATurn(lambda: pytest.fail("an answer that is known takes no turns"))
    assert cluster.explain(waiting, [large], now_s=0.1, pace=no_turns) == found


def test_no_reason_is_given_for_claims_that_have_changed_since_the_decision() -> None:
    """A claim that was taken back meanwhile would be said to hold what is free."""
    cluster = bare_cluster()
    cluster.intake.class_changed(None, device_class())
    for name in ("node-a", "node-b"):
        cluster.intake.node_changed(None, node(name))
    large = claim("of-large", request(count=20))
    cluster.intake.claim_changed(None, large)
    changed = claim("of-large", request(count=19), resource_version="2")

    def change() -> None:
        cluster.intake.claim_changed(cluster.claim(large.key), changed)

    waiting = pod("large", "of-large")
    assert cluster.explain(waiting, [large], now_s=0.0, pace=OneNodeATurn(change)) is None
    assert cluster.explain(waiting, [large], now_s=0.0) is None
    found = cluster.explain(waiting, [changed], now_s=0.0)
    assert found is not None
    assert "0/2 nodes fit" in found.text


def broken(ordinal: int) -> ResourceSlice:
    devices = list(SLICE.spec.devices)
    attributes = {**devices[ordinal].attributes, "ordinal": DeviceAttribute(string="?")}
    devices[ordinal] = msgspec.structs.replace(devices[ordinal], attributes=attributes)
    return msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, devices=devices))


def test_a_device_that_does_not_decode_is_logged_once_and_counted_until_it_is_mended() -> None:
    bench = Bench()
    with structlog.testing.capture_logs() as logs:
        bench.cluster.intake.slice_changed(None, broken(3))
        bench.cluster.intake.slice_changed(broken(3), broken(3))
    named = [line for line in logs if line.get("device") == device_name(FOUR, 3)]
    assert [line["log_level"] for line in named] == ["warning"]
    assert bench.problems == 1
    assert bench.free() == 0b0111
    bench.cluster.intake.slice_changed(broken(3), SLICE)
    assert bench.problems == 0
    assert bench.free() == 0b1111


def test_a_pool_that_is_just_being_written_is_no_warning_and_counted_apart() -> None:
    bench = Bench()
    pool = msgspec.structs.replace(SLICE.spec.pool, resource_slice_count=2)
    first_half = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, pool=pool))
    with structlog.testing.capture_logs() as logs:
        bench.cluster.intake.slice_changed(None, first_half)
    assert [(line["log_level"], line["problem"]) for line in logs] == [
        ("info", "generation 1 has 1 of 2 slices: being updated")
    ]
    assert (bench.problems, bench.updating) == (0, 1)
    bench.cluster.intake.slice_changed(first_half, SLICE)
    assert (bench.problems, bench.updating) == (0, 0)


def test_a_second_pool_of_a_node_is_logged() -> None:
    bench = Bench()
    pool = msgspec.structs.replace(SLICE.spec.pool, name="second")
    second = msgspec.structs.replace(
        SLICE,
        metadata=msgspec.structs.replace(SLICE.metadata, name="second"),
        spec=msgspec.structs.replace(SLICE.spec, pool=pool),
    )
    bench.cluster.intake.slice_changed(None, SLICE)
    with structlog.testing.capture_logs() as logs:
        bench.cluster.intake.slice_changed(None, second)
    assert [line["pool"] for line in logs] == ["second"]
    assert bench.inventory.pool("node-a") is None


def test_it_is_decided_by_the_rules_of_the_version_that_serves_and_for_who_waits_too() -> None:
    bench = ready()
    bench.let_wait("waits", count=5)
    for version, named, woken in (((1, 36), ["gpus"], False), ((1, 37), [], True), ((1, 38), [], False)):
        bench.cluster.serve(Features.of(version))
        assert bench.take_woken() == (["default/waits"] if woken else [])
        name = f"of-{version}"
        asked = show(bench.cluster, claim(name, request("gpus", count=1), configs=[own_config(policy("PIX"), "gpus")]))
        decision = decide(bench.cluster, pod(f"p-{version}", name), asked)
        assert isinstance(decision, Allocation), decision
        allocation = allocated_claim(decision, decision.claims[0], "2026-01-01T00:00:00Z").status.allocation
        assert allocation is not None
        config, _ = allocation.devices.config
        assert config.requests == named


def test_slices_of_other_drivers_do_not_matter() -> None:
    bench = Bench()
    bench.let_wait("w")
    foreign = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, driver="other.example.com"))
    bench.cluster.intake.slice_changed(None, foreign)
    assert bench.take_woken() == []


def test_pods_that_ask_alike_stand_in_line_and_only_the_first_is_woken_and_asked() -> None:
    bench = ready()
    held = holding(claim("c"), "node-a", *(device_name(FOUR, ordinal) for ordinal in range(4)))
    bench.cluster.intake.claim_changed(None, held)
    bench.let_wait("a", "b", "c", count=1)
    assert isinstance(bench.decide("b"), Behind)
    assert isinstance(bench.decide("a"), NoFit)
    bench.cluster.intake.claim_changed(held, None)
    assert bench.take_woken() == ["default/a"]
    assert isinstance(bench.decide("c"), Behind)  # whoever comes out of turn stays behind
    assert isinstance(bench.decide("a"), Allocation)
    assert bench.take_woken() == ["default/b"]
    assert isinstance(bench.decide("b"), Allocation)
    assert bench.take_woken() == ["default/c"]


def test_a_pod_that_leaves_its_line_lets_the_next_try() -> None:
    bench = ready()
    held = holding(claim("c"), "node-a", *(device_name(FOUR, ordinal) for ordinal in range(4)))
    bench.cluster.intake.claim_changed(None, held)
    bench.let_wait("a", "b", count=1)
    bench.cluster.leave("default/b")
    assert bench.take_woken() == []
    assert isinstance(bench.decide("b"), Behind)
    bench.cluster.leave("default/a")
    assert bench.take_woken() == ["default/b"]


def test_a_pod_that_wakes_while_its_claim_is_written_lets_the_next_try() -> None:
    bench = ready()
    bench.let_wait("a", "b", count=8)
    changed = claim("of-a", request(count=8), resource_version="2", deletion_timestamp="2026-01-01T00:00:00Z")
    first = bench.cluster.pod("default/a")
    assert first is not None
    assert decide(bench.cluster, first, changed) == InProgress("default/of-a")
    assert bench.take_woken() == ["default/b"]


def test_pods_of_higher_priority_and_older_pods_come_first_whatever_their_shape() -> None:
    bench = ready()
    bench.let_wait("late", "later", count=8)
    bench.let_wait("important", count=7, priority=1)
    bench.cluster.intake.node_changed(None, node("node-b"))
    bench.cluster.intake.slice_changed(
        None, pool_slice("node-b", machine("eight", blocks(8, inside="PIX", outside="PIX")))
    )
    assert bench.take_woken() == ["default/important", "default/late"]


def test_all_in_a_line_are_asked_when_the_first_is_refused_for_another_reason() -> None:
    bench = ready()
    bench.let_wait("a", "b", "c", count=8)
    bench.cluster.intake.class_changed(device_class(), None)
    assert bench.take_woken() == ["default/a", "default/b", "default/c"]
    assert isinstance(bench.decide("a"), Refused)
    assert bench.take_woken() == ["default/b", "default/c"]
    assert isinstance(bench.decide("b"), Refused)
    assert bench.take_woken() == []


def test_a_pod_whose_nodes_are_left_out_is_like_no_other() -> None:
    """kube-scheduler cleared what it had on the one node: it gets nothing there for a while, and others do."""
    woken: list[str] = []
    clock = FakeClock()
    cluster = bare_cluster(woken.append, clock=clock)
    cluster.intake.node_changed(None, node("node-a"))
    cluster.intake.slice_changed(None, SLICE)
    cluster.intake.class_changed(None, device_class())
    a, b = pod("a", "of-a"), pod("b", "of-b")
    cluster.intake.pod_changed(None, a)
    cluster.intake.pod_changed(None, b)
    of_a, of_b = show(cluster, claim("of-a")), show(cluster, claim("of-b"))
    decision = decide(cluster, a, of_a)
    assert isinstance(decision, Allocation)
    (held,) = written(decision, a)
    cluster.intake.claim_changed(of_a, held)
    of_a = show(cluster, of_a)
    assert isinstance(decide(cluster, a, of_a), NoFit)
    explained = cluster.explain(a, [of_a], now_s=0.0)
    assert explained is not None
    assert explained.text == "0/1 nodes fit: 1 tried before without success (node-a)"
    assert isinstance(decide(cluster, b, of_b), Allocation)
    clock.advance(EXCLUSION_S)
    assert isinstance(decide(cluster, a, of_a, now_s=EXCLUSION_S), Allocation)
