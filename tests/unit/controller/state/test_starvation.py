"""When a node is kept for a pod that has waited too long, for whom, and when it goes: step by step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import structlog

from dracaena.api.objects import Node, NodeStatus
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.node_state import held_devices
from dracaena.controller.state.starvation import STALLED_S
from dracaena.process.clock import rfc3339
from support.allocation import (
    DRIVER,
    node,
    pod,
)
from support.bare_cluster import abandon, decide
from support.starving_world import START, World

WAIT_S = 30


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


def test_both_sides_are_reported() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 1)
    world.come("late", 1, 100)
    world.work()
    found = world.cluster.explain(world.pods["default/large"], [world.claims["default/large"]], now_s=99.0)
    assert found is not None
    assert (
        found.text
        == "0/2 nodes fit: 2 with 4 or more GPUs, fewer than 4 of them free (n0, n1); node n0 is being kept free for it"
    )
    found = world.cluster.explain(world.pods["default/late"], [world.claims["default/late"]], now_s=99.0)
    assert found is not None
    assert found.text == (
        "0/2 nodes fit: 1 kept for a pod of priority 0 that comes before this one and has waited long (n0); "
        "1 without a free GPU (n1)"
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
    world.cluster.intake.node_changed(node("n0"), node("n0", unschedulable=True))
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
        after.cluster.intake.claim_changed(None, made)
        after.cluster.intake.pod_changed(None, world.pods[key])
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
    decision = decide(world.cluster, world.pods["default/large"], asked)
    assert isinstance(decision, Allocation)
    wait(world, 1)
    assert world.kept() == ("default/large", "n0")
    abandon(world.cluster, asked)  # the write was lost
    world.come("late", 1, 100)
    world.work()
    assert "default/late" not in world.served_s
    assert isinstance(decide(world.cluster, world.pods["default/large"], asked), Allocation)


def test_the_cpu_of_pods_that_hold_devices_counts_as_free_and_that_of_others_does_not() -> None:
    for others_cpu, expected in (("1", ("default/large", "n0")), ("5", None)):
        world = World(WAIT_S, node_count=1)
        world.cluster.intake.node_changed(node("n0"), with_cpu(node("n0"), "8"))
        for number in range(4):
            world.come(f"busy-{number}", 1, 10_000, containers=[container("1")])
        world.work()
        other = pod("other", nodeName="n0", containers=[container(others_cpu)])
        world.cluster.intake.pod_changed(None, other)
        for number in range(4):  # they are bound
            bound = msgspec.structs.replace(
                world.pods[f"default/busy-{number}"],
                spec=msgspec.structs.replace(world.pods[f"default/busy-{number}"].spec, node_name="n0"),
            )
            world.cluster.intake.pod_changed(world.pods[f"default/busy-{number}"], bound)
            world.pods[f"default/busy-{number}"] = bound
        world.come("large", 4, 100, containers=[container("4")])
        wait(world, WAIT_S + 1)
        assert world.kept() == expected
        world.cluster.check()


def container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "resources": {"requests": {"cpu": cpu}}}


def with_cpu(base: Node, cpu: str) -> Node:
    return msgspec.structs.replace(base, status=NodeStatus(allocatable={"cpu": cpu, "pods": "100"}))


def beside_a_pod_that_never_ends() -> World:
    """A tenant's pod never ends on n0, and an older one of its pods wants all of n0; others want all of any node."""
    world = World(WAIT_S, node_count=2)
    for number in range(8):
        world.come(f"busy-{number}", 1, 100_000, "hostile")
    world.work()
    pinned = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": pinned}}
    world.come("pinned", 4, 100, "hostile", affinity=affinity)
    world.step()
    world.come("honest", 4, 100, "honest")
    return world


def test_a_namespace_whose_mark_leads_to_nothing_gives_way_to_others() -> None:
    world = beside_a_pod_that_never_ends()
    wait(world, WAIT_S + 2)
    assert world.kept() == ("hostile/pinned", "n0")
    wait(world, int(STALLED_S) - 5)
    assert world.kept() == ("hostile/pinned", "n0")
    wait(world, 10)
    kept = world.kept()
    assert kept is not None
    assert kept[0] == "honest/honest"
    wait(world, int(STALLED_S) + 5)
    assert world.kept() == ("hostile/pinned", "n0"), "they take turns"


def test_a_mark_stays_where_its_node_gets_emptier_and_where_nobody_else_starves() -> None:
    world = full_world()
    world.come("large", 4, 100)
    wait(world, WAIT_S + 2)
    kept = world.kept()
    assert kept is not None
    wait(world, 2 * int(STALLED_S))
    assert world.kept() == kept or "default/large" in world.served_s
