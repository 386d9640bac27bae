"""A pod that waits only because devices are taken is served in time, however many pods come after it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.objects import Node, NodeStatus, Pod, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.earmarks import Earmark, emptied, node_to_keep
from dracaena.controller.allocation.inventory import Inventory, claim_holder, make_inventory
from dracaena.controller.allocation.pool import held_devices
from dracaena.controller.allocation.result import Allocation, allocated_claim
from dracaena.controller.allocation.turn import turn
from dracaena.controller.cluster import Cluster
from dracaena.process.clock import rfc3339
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
    request,
)

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
START = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 30


def cel(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


def created(made: Pod, second: int) -> Pod:
    meta = msgspec.structs.replace(made.metadata, creation_timestamp=rfc3339(START + timedelta(seconds=second)))
    return msgspec.structs.replace(made, metadata=meta)


# Which node


def nodes(*held: int, **kinds: Any) -> Inventory:
    """Nodes a, b, … of four GPUs, of which so many are held each."""
    names = [chr(ord("a") + place) for place in range(len(held))]
    claims = [
        holding(claim(f"on-{name}-{ordinal}"), name, device_name(FOUR, ordinal))
        for name, count in zip(names, held, strict=True)
        for ordinal in range(count)
    ]
    return make_inventory(
        DRIVER,
        nodes=[node(name, **kinds.get(name, {})) for name in names],
        slices=[pool_slice(name, FOUR) for name in names],
        claims=claims,
        classes=[device_class()],
    )


def kept(inventory: Inventory, asked: ResourceClaim, waiting: Pod | None = None, **barred: str) -> str | None:
    found = node_to_keep(Allocator(), inventory, waiting or pod("p", "c"), [asked], barred=barred)
    inventory.check()
    return found


def test_the_node_with_the_fewest_devices_in_use_is_kept_and_of_equal_ones_the_first() -> None:
    asked = claim("c", request(count=4))
    assert kept(nodes(3, 1, 2), asked) == "b"
    assert kept(nodes(3, 2, 2), asked) == "b"


def test_a_node_that_could_not_serve_the_pod_when_empty_is_not_kept() -> None:
    asked = claim("c", request(count=4))
    assert kept(nodes(3, 1, b={"unschedulable": True}), asked) == "a"
    assert kept(nodes(3, 1), asked, b="set aside") == "a"
    assert kept(nodes(3, 1), asked, pod("p", "c", nodeSelector={"zone": "z"})) is None
    assert kept(nodes(3, 1), claim("c", request(count=5))) is None


def test_a_pod_that_names_a_device_gets_the_node_of_that_device_kept() -> None:
    inventory = nodes(1, 4, 2)
    uuid = f'device.attributes["{DRIVER}"].uuid == "{FOUR.gpus[3].uuid}"'
    asked = claim("c", request(count=1, selectors=cel(uuid)))
    before = {name: inventory.free(name) for name in "abc"}
    assert kept(inventory, asked) == "a"  # all nodes of this test have GPUs of the same names
    assert {name: inventory.free(name) for name in "abc"} == before
    assert kept(nodes(1, 4, 2, a={"unschedulable": True}, c={"unschedulable": True}), asked) == "b"


def test_what_the_pod_holds_itself_stays_held() -> None:
    mine = holding(claim("mine", request(count=2)), "a", device_name(FOUR, 0), device_name(FOUR, 1))
    inventory = nodes(0, 0)
    inventory.hold(claim_holder(mine), held_devices(mine, DRIVER))
    probe = [mine, claim("c", request(count=2))]
    assert node_to_keep(Allocator(), inventory, pod("p", "mine", "c"), probe, barred={}) == "a"
    probe = [mine, claim("c", request(count=3))]
    assert node_to_keep(Allocator(), inventory, pod("p", "mine", "c"), probe, barred={}) is None


def test_an_inventory_is_as_before_after_a_node_was_emptied_in_thought() -> None:
    inventory = nodes(4, 2)
    before = {name: inventory.free(name) for name in "ab"}
    with emptied(inventory, "a", inventory.holders_by_pool()["a"]):
        assert inventory.free("a") == 0b1111
        assert inventory.free("b") == before["b"]
    assert {name: inventory.free(name) for name in "ab"} == before
    inventory.check()


def test_an_earmark_bars_those_who_come_later_only() -> None:
    first, second, high = created(pod("a"), 1), created(pod("b"), 1), created(pod("c", priority=1), 9)
    mark = Earmark(first.key, turn(first), "n")
    assert mark.bars(turn(second))
    assert not mark.bars(turn(first))
    assert not mark.bars(turn(high))


# The bound


@dataclass
class World:
    """A cluster with one second a step; pods end after their lives. Decisions are made in the order of turns."""

    wait_s: int
    node_count: int = 3
    now_s: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    served_s: dict[str, int] = field(default_factory=dict)
    queue: set[str] = field(default_factory=set)
    decisions: int = 0

    def __post_init__(self) -> None:
        self.cluster = Cluster(DRIVER, wake=self.queue.add)
        for number in range(self.node_count):
            name = f"n{number}"
            self.cluster.node_changed(None, node(name))
            self.cluster.slice_changed(None, pool_slice(name, FOUR))
        self.cluster.class_changed(None, device_class())

    def come(self, name: str, count: int, life_s: int, **spec: Any) -> None:
        waiting = created(pod(name, name, **spec), self.now_s)
        asked = claim(name, request(count=count))
        self.pods[waiting.key], self.claims[waiting.key], self.lives[waiting.key] = waiting, asked, life_s
        self.cluster.claim_changed(None, asked)
        self.cluster.pod_changed(None, waiting)

    def work(self) -> None:
        """Decide until nothing is left to decide."""
        while self.queue:
            key = min(self.queue, key=lambda key: turn(self.pods[key]) if key in self.pods else ())
            self.queue.discard(key)
            if key not in self.pods or key in self.served_s:
                continue
            self.decisions += 1
            asked = self.claims[key]
            decision = self.cluster.decide(self.pods[key], [asked], now_s=float(self.now_s))
            if isinstance(decision, Allocation):
                stored = allocated_claim(decision, decision.claims[0], rfc3339(START))
                self.cluster.stored(stored)
                self.cluster.claim_changed(asked, stored)
                self.claims[key] = stored
                self.served_s[key] = self.now_s
                self.ends[key] = self.now_s + self.lives[key]

    def go(self, key: str) -> None:
        self.cluster.claim_changed(self.claims.pop(key), None)
        self.cluster.pod_changed(self.pods.pop(key), None)
        self.ends.pop(key, None)

    def step(self) -> None:
        """One second: pods end, the overdue are looked at, decisions are made."""
        self.now_s += 1
        for key in sorted(key for key, end_s in self.ends.items() if end_s <= self.now_s):
            self.go(key)
        before = rfc3339(START + timedelta(seconds=self.now_s - self.wait_s)) if self.wait_s else ""
        self.cluster.keep_for_starving(before, now_s=float(self.now_s))
        self.work()

    def kept(self) -> tuple[str, str] | None:
        mark = self.cluster.earmark
        return None if mark is None else (mark.pod_key, mark.node)


def small_pods(rng: random.Random, longest_life_s: int) -> Iterator[tuple[str, int, int]]:
    number = 0
    while True:
        number += 1
        yield f"small-{number:05}", rng.choice((1, 1, 1, 2)), rng.randint(1, longest_life_s)


def one_by_one(life_s: int) -> Iterator[tuple[str, int, int]]:
    """Yield pods of one GPU that, on twelve GPUs, never end two in one second: whoever follows lives as long."""
    for number in range(12):
        yield f"first-{number:02}", 1, life_s - number
    for number in itertools.count():
        yield f"small-{number:05}", 1, life_s


def served_after(
    small: Iterator[tuple[str, int, int]], *, wait_s: int, longest_life_s: int, large: int, horizon_s: int
) -> list[int | None]:
    """Let small pods come for ever, so that some wait at any moment, and large ones of four GPUs beside them; return
    how many seconds after it came each of these was served.
    """
    world = World(wait_s)

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            while len(world.pods) - len(world.ends) < large + 4:  # whoever goes finds others waiting
                world.come(*next(small))
            world.step()

    go_on(longest_life_s)  # a cluster in the middle of its work
    began_s = world.now_s
    for number in range(large):
        world.come(f"large-{number}", 4, longest_life_s)
    go_on(horizon_s)
    world.cluster.check()
    found = [world.served_s.get(f"default/large-{number}") for number in range(large)]
    return [None if at is None else at - began_s for at in found]


def bound_s(place: int, wait_s: int, longest_life_s: int) -> int:
    """The bound of docs/design/0010-queue.md for the pod at a place (from 1) among those that starve.

    Older small pods are all served within the wait here. One second until the overdue are looked at, and the longest
    life from then; the next is looked at a second after that.
    """
    return wait_s + place * (longest_life_s + 2)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(5, 40), st.integers(1, 3))
def test_large_pods_are_served_within_the_bound_although_small_ones_come_for_ever(
    seed: int, longest_life_s: int, large: int
) -> None:
    wait_s = 2 * longest_life_s
    horizon_s = bound_s(large, wait_s, longest_life_s) + 1
    small = small_pods(random.Random(seed), longest_life_s)
    found = served_after(small, wait_s=wait_s, longest_life_s=longest_life_s, large=large, horizon_s=horizon_s)
    for place, seconds in enumerate(found, start=1):
        assert seconds is not None
        assert seconds <= bound_s(place, wait_s, longest_life_s)


def test_without_earmarks_the_same_large_pod_starves() -> None:
    life_s, wait_s = 24, 48
    within = bound_s(1, wait_s, life_s)
    (with_marks,) = served_after(one_by_one(life_s), wait_s=wait_s, longest_life_s=life_s, large=1, horizon_s=within)
    assert with_marks is not None
    assert wait_s < with_marks <= within
    without = served_after(one_by_one(life_s), wait_s=0, longest_life_s=life_s, large=1, horizon_s=10 * within)
    assert without == [None]


# The rule, step by step


def full_world(wait_s: int = WAIT_S) -> World:
    """Two nodes, full of pods of one GPU that live for long; on n1 two end soon."""
    world = World(wait_s, node_count=2)
    for number in range(8):
        world.come(f"busy-{number}", 1, 10_000)
    world.work()
    for key, life_s in (("default/busy-4", 50), ("default/busy-5", 60)):
        world.ends[key] = life_s
    return world


def wait(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.step()


def test_a_node_is_kept_after_the_wait_and_not_before() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S)
    assert world.kept() is None
    with structlog.testing.capture_logs() as logs:
        wait(world, 1)
    assert world.kept() == ("default/large", "n0")
    assert [(line["event"], line["node"], line["in_use"]) for line in logs] == [("node is kept for a pod", "n0", 4)]
    world.cluster.keep_for_starving("", now_s=99.0)
    world.queue.clear()
    world.cluster.keep_for_starving(rfc3339(START + timedelta(seconds=1)), now_s=99.0)
    assert "default/large" in world.queue, "it is told"
    off = full_world(wait_s=0)
    off.come("large", 4, 100)
    wait(off, 3 * WAIT_S)
    assert off.kept() is None


def test_both_sides_are_told() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    world.come("late", 1, 100)
    world.work()
    text = world.cluster.explain(world.pods["default/large"], [world.claims["default/large"]], now_s=99.0)
    assert text == "0/2 nodes fit: 2 with fewer than 4 free GPUs (n0, n1); node n0 is being kept free for it"
    text = world.cluster.explain(world.pods["default/late"], [world.claims["default/late"]], now_s=99.0)
    assert text == (
        "0/2 nodes fit: 1 kept for pod default/large, which comes before this one (n0); 1 without a free GPU (n1)"
    )


def test_later_pods_get_nothing_on_the_kept_node_and_go_on_elsewhere_and_earlier_ones_are_not_hindered() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    assert world.kept() == ("default/large", "n0")
    world.go("default/busy-0")
    world.come("late", 1, 100)
    wait(world, 1)
    assert "default/late" not in world.served_s
    world.come("important", 1, 100, priority=1)
    world.work()
    assert held_by(world, "important") == {"n0"}
    wait(world, 50 - world.now_s)  # busy-4 of n1 ends
    assert held_by(world, "late") == {"n1"}


def held_by(world: World, name: str) -> set[str]:
    return {device.pool for device in held_devices(world.claims[f"default/{name}"], DRIVER)}


def test_the_mark_goes_when_the_pod_has_its_set_or_is_gone_and_those_behind_it_are_woken() -> None:
    for end in ("served", "gone"):
        world = full_world()
        world.come("large", 4, 100)
        wait(world, WAIT_S + 1)
        world.come("late", 1, 100)
        world.work()
        for number in range(4 if end == "served" else 1):
            world.go(f"default/busy-{number}")
        if end == "gone":
            world.work()
            world.go("default/large")
            world.cluster.leave("default/large")
        world.work()
        wait(world, 1)
        assert world.kept() is None
        if end == "served":
            assert held_by(world, "large") == {"n0"}
        else:
            assert held_by(world, "late") == {"n0"}


def test_when_the_mark_moves_to_another_node_those_whom_it_barred_are_woken() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, 1)
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": named}}
    world.come("important", 4, 100, priority=1, affinity={"nodeAffinity": required})
    wait(world, WAIT_S)
    assert world.kept() == ("default/large", "n0")
    world.go("default/busy-0")
    world.come("late", 1, 100)
    world.work()
    assert held_by(world, "late") == set()
    wait(world, 1)
    assert world.kept() == ("default/important", "n1")
    assert held_by(world, "late") == {"n0"}


def test_a_later_pod_of_the_same_name_does_not_inherit_the_mark() -> None:
    """A StatefulSet makes its pod again under its old name within moments."""
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    assert world.kept() == ("default/large", "n0")
    world.go("default/large")
    world.come("large", 4, 100)
    world.come("late", 1, 100)
    world.go("default/busy-0")
    world.work()
    assert held_by(world, "late") == set()
    wait(world, 1)
    assert world.kept() is None
    assert held_by(world, "late") == {"n0"}


def test_only_the_first_in_the_queue_has_a_node_kept_and_one_that_comes_before_it_takes_over() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, 1)
    world.come("another", 4, 100)
    wait(world, WAIT_S)
    assert world.kept() == ("default/large", "n0")
    world.come("important", 4, 100, priority=1)
    wait(world, WAIT_S + 1)
    assert world.kept() == ("default/important", "n1")  # where two have ended meanwhile
    world.go("default/important")
    world.cluster.leave("default/important")
    wait(world, 1)
    assert world.kept() == ("default/large", "n1")


def test_a_pod_that_no_node_could_serve_keeps_no_node_from_others() -> None:
    world = full_world()
    world.come("huge", 5, 100)
    world.come("nowhere", 4, 100, nodeSelector={"zone": "z"})
    wait(world, 1)
    world.come("large", 4, 100)
    wait(world, WAIT_S + 3)
    assert world.kept() == ("default/large", "n0")


def test_the_next_node_is_kept_when_the_kept_one_is_cordoned() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    assert world.kept() == ("default/large", "n0")
    world.cluster.node_changed(node("n0"), node("n0", unschedulable=True))
    wait(world, 1)
    assert world.kept() == ("default/large", "n1")


def test_a_new_leader_keeps_a_node_before_anybody_later_gets_something() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    world.come("late", 1, 100)
    world.work()
    after = World(WAIT_S, node_count=2, now_s=world.now_s)
    world.go("default/busy-0")
    for key, made in world.claims.items():
        after.pods[key], after.claims[key], after.lives[key] = world.pods[key], made, 100
        after.cluster.claim_changed(None, made)
        after.cluster.pod_changed(None, world.pods[key])
    after.queue &= {"default/large", "default/late"}
    after.cluster.keep_for_starving(rfc3339(START + timedelta(seconds=after.now_s - WAIT_S)), now_s=0.0)
    after.work()
    assert after.kept() == ("default/large", "n0")
    assert "default/late" not in after.served_s


def test_a_pod_that_was_decided_for_has_its_node_kept_until_the_watch_shows_it() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    for number in range(4):
        world.go(f"default/busy-{number}")
    world.queue.clear()
    asked = world.claims["default/large"]
    decision = world.cluster.decide(world.pods["default/large"], [asked], now_s=0.0)
    assert isinstance(decision, Allocation)
    wait(world, 1)
    assert world.kept() == ("default/large", "n0")
    world.cluster.forget(asked.metadata.uid)  # the write was lost
    world.come("late", 1, 100)
    world.work()
    assert "default/late" not in world.served_s
    assert isinstance(world.cluster.decide(world.pods["default/large"], [asked], now_s=0.0), Allocation)


def test_the_cpu_of_pods_that_hold_devices_counts_as_free_and_that_of_others_does_not() -> None:
    for others_cpu, expected in (("1", ("default/large", "n0")), ("5", None)):
        world = World(WAIT_S, node_count=1)
        world.cluster.node_changed(node("n0"), with_cpu(node("n0"), "8"))
        for number in range(4):
            world.come(f"busy-{number}", 1, 10_000, containers=[container("1")])
        world.work()
        other = pod("other", nodeName="n0", containers=[container(others_cpu)])
        world.cluster.pod_changed(None, other)
        for number in range(4):  # they are bound
            bound = msgspec.structs.replace(
                world.pods[f"default/busy-{number}"],
                spec=msgspec.structs.replace(world.pods[f"default/busy-{number}"].spec, node_name="n0"),
            )
            world.cluster.pod_changed(world.pods[f"default/busy-{number}"], bound)
            world.pods[f"default/busy-{number}"] = bound
        world.come("large", 4, 100, containers=[container("4")])
        wait(world, WAIT_S + 1)
        assert world.kept() == expected
        world.cluster.check()


def container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "resources": {"requests": {"cpu": cpu}}}


def with_cpu(base: Node, cpu: str) -> Node:
    return msgspec.structs.replace(base, status=NodeStatus(allocatable={"cpu": cpu, "pods": "100"}))
