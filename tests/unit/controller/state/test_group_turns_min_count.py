"""Gangs of which fewer pods exist than they need: they hold nothing, and nobody waits for them.

`support.group_world.with_hopeless` adds such gangs to worlds. What they must not change is when each other group is
bound. With each fault below put in, it does in one of the first WORLDS worlds, or such a gang holds something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dracaena.api.gang_label import GANG_LABEL
from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.workload_objects import PodGroup
from dracaena.controller.allocation.state.gangs import Family, Gang, Sizes
from dracaena.controller.lifecycle.prospects import SETTLE_S
from dracaena.controller.state.group_turns import GIVE_UP_S, GroupTurns
from dracaena.controller.state.pod_groups import PodGroups
from support.allocation import claim, request
from support.group_world import FOUR, PROOF_S, Group, GroupWorld, any_world, member, pod_group, with_hopeless
from support.reconciling import Bench
from support.seeds import in_tiers

WORLDS = 8


def ran(world: GroupWorld, watch: Callable[[GroupWorld], None] = lambda world: None) -> Mapping[int, int]:
    """Let a world run as GroupWorld.run() does; return when each group was bound."""
    until_s = int(2 * (len(world.groups) + 1) * GIVE_UP_S)
    while world.not_bound() and world.now_s < until_s:
        world.step()
        watch(world)
    return world.bound_s


def known_sizes(seed: int) -> GroupWorld:
    """A world without hopeless gangs, with all sizes known."""
    world, larger = any_world(seed), with_hopeless(any_world(seed))
    return GroupWorld(world.machines, larger.groups[: len(world.groups)], seed, world.quotas)


def holds_nothing(world: GroupWorld) -> None:
    for number, keys in world.holders().items():
        assert not world.groups[number].missing or not keys, f"gang {number} lacks pods and holds devices"


def is_unmoved(seed: int) -> bool:
    """Whether hopeless gangs hold nothing, and change nothing for the others."""
    with_them = with_hopeless(any_world(seed))
    try:
        return ran(with_them, holds_nothing) == ran(known_sizes(seed)) and not with_them.not_bound()
    except AssertionError:
        return False


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", in_tiers(range(2), range(2, 40), range(40, 1_500)))
def test_gangs_that_lack_pods_hold_nothing_and_change_nothing_for_others(seeds: range) -> None:
    assert [seed for seed in seeds if not is_unmoved(seed)] == []


Fault = tuple[type, str, Callable[..., Any]]

hard = Sizes.hard


def one_less(gang: Gang | None) -> Gang | None:
    return None if gang is None or gang.size is None else replace(gang, size=gang.size - 1)


FAULTS: Mapping[str, Fault] = {
    "no-size-is-known": (Sizes, "hard", lambda self, family, labelled: None),
    "groups-that-are-not-there-are-served": (Sizes, "not_there", lambda self, family: None),
    "nobody-lacks-pods": (GroupTurns, "obstacle", lambda self, group: None),
    "decided-as-ever": (GroupTurns, "refusal", lambda self, pod, claims: None),
    "one-pod-more-is-counted": (PodGroups, "count", lambda self, group: len(self._of(group).staying) + 1),
    "too-few-are-counted": (PodGroups, "count", lambda self, group: len(self._of(group).staying) - 1),
    "a-placed-pod-is-bound": (PodGroups, "has_bound", lambda self, group: bool(self._of(group).pods)),
    "a-size-is-one-too-small": (Sizes, "hard", lambda self, family, labelled: one_less(hard(self, family, labelled))),
}


@pytest.mark.search
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any(not is_unmoved(seed) for seed in range(WORLDS))


def gang_of(count: int, min_count: int | None) -> Bench:
    """A node of 4 GPUs, and the first pods of a gang that want 1 each."""
    bench = Bench(n=FOUR)
    if min_count is not None:
        bench.cluster.intake.workload_changed(None, pod_group("a", "default", min_count))
    for number in range(count):
        join(bench, number)
    return bench


def join(bench: Bench, number: int) -> None:
    bench.add(claim(f"a-{number}", request()), member(f"a-{number}", "a", 1))
    bench.run()


def placed(bench: Bench) -> list[str]:
    return sorted(name for name in bench.api.claims if bench.on_node(name.partition("/")[2]) is not None)


def pass_time(bench: Bench, seconds: float) -> None:
    for _ in range(int(seconds)):
        bench.cluster.review_groups(bench.clock.monotonic())
        bench.advance(1)
        bench.run()


def test_pods_of_a_gang_get_nothing_before_the_last_of_them_exists_and_all_at_once_then() -> None:
    bench = gang_of(2, 3)
    assert placed(bench) == []
    assert any(message.startswith("2 of 3 pods of its gang exist (minCount of PodGroup a)") for message in bench.told())
    assert bench.metric("waiting_pods", reason="incomplete-gang") == 2
    join(bench, 2)
    assert placed(bench) == ["default/a-0", "default/a-1", "default/a-2"]


def test_a_pod_without_claims_counts_too() -> None:
    bench = gang_of(2, 3)
    leader = member("leader", "a", 1)
    bench.add(msgspec.structs.replace(leader, spec=msgspec.structs.replace(leader.spec, resource_claims=[])))
    bench.run()
    assert placed(bench) == ["default/a-0", "default/a-1"]


def test_a_lower_min_count_wakes_the_gang() -> None:
    bench = gang_of(2, 3)
    intake = bench.cluster.intake
    intake.workload_changed(pod_group("a", "default", 3), pod_group("a", "default", 2))
    bench.run()
    assert placed(bench) == ["default/a-0", "default/a-1"]


@pytest.mark.parametrize("policy", ["basic", "gone"])
def test_a_group_that_is_no_gang_any_more_waits_for_nobody(policy: str) -> None:
    bench = gang_of(2, 3)
    after = pod_group("a", "default", None) if policy == "basic" else None
    bench.cluster.intake.workload_changed(pod_group("a", "default", 3), after)
    bench.run()
    assert placed(bench) == ["default/a-0", "default/a-1"]


def test_a_gang_that_loses_a_pod_keeps_what_it_has_until_a_controller_has_replaced_it() -> None:
    bench = gang_of(3, 3)
    bench.remove_pod("default/a-2")
    pass_time(bench, SETTLE_S - 2)
    assert placed(bench) == ["default/a-0", "default/a-1", "default/a-2"]
    again = member("a-2", "a", 1)
    meta = msgspec.structs.replace(again.metadata, uid="another")
    bench.add(msgspec.structs.replace(again, metadata=meta))
    pass_time(bench, 3 * SETTLE_S)
    assert placed(bench) == ["default/a-0", "default/a-1", "default/a-2"]


def test_a_gang_that_lacks_a_pod_for_longer_gives_back_what_it_has() -> None:
    bench = gang_of(3, 3)
    bench.remove_pod("default/a-2")
    bench.api.remove("default/a-2")
    for _ in range(PROOF_S):
        pass_time(bench, 1)
        for name in ("a-0", "a-1"):
            bench.try_in_vain(name)
        bench.run()
    assert placed(bench) == []
    assert [message for _, reason, message in bench.events.seen if reason == "GPUsTakenBack"]


def test_a_gang_of_which_a_pod_is_bound_was_complete_and_late_pods_are_served() -> None:
    bench = gang_of(3, 3)
    for name in ("a-0", "a-1", "a-2"):
        bench.bind(name, "n")
    for name in ("a-1", "a-2"):
        bench.remove_pod(f"default/{name}")
        bench.api.remove(f"default/{name}")
    join(bench, 7)
    assert "default/a-7" in placed(bench)


def end(bench: Bench, name: str, phase: str) -> None:
    """Let a pod be over, and stay as a Job's pods do."""
    bench.bind(name, "n")
    stored = bench.api.pods[f"default/{name}"]
    bench.add(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, phase=phase)))


def test_a_gang_that_starts_once_more_beside_its_failed_pods_waits_for_all_again() -> None:
    bench = gang_of(2, 2)
    for name in ("a-0", "a-1"):
        end(bench, name, "Failed")
    join(bench, 2)
    assert "default/a-2" not in placed(bench)
    join(bench, 3)
    assert {"default/a-2", "default/a-3"} <= {*placed(bench)}


def test_a_pod_that_is_repeated_after_the_others_are_done_waits_for_nobody() -> None:
    bench = gang_of(2, 2)
    end(bench, "a-0", "Succeeded")
    end(bench, "a-1", "Failed")
    join(bench, 2)
    assert "default/a-2" in placed(bench)


def test_pods_wait_for_a_pod_group_that_nobody_has_created() -> None:
    bench = Bench(n=FOUR)
    intake = bench.cluster.intake
    intake.workloads_listed("PodGroup", is_read=False)
    join(bench, 0)
    assert "PodGroup a has not been read yet" in bench.told()
    intake.workloads_listed("PodGroup", is_read=True)
    pass_time(bench, 20)
    join(bench, 1)
    assert "PodGroup a does not exist" in bench.told()
    assert placed(bench) == []
    intake.workload_changed(None, pod_group("a", "other", 2))
    bench.run()
    assert placed(bench) == []
    intake.workload_changed(None, pod_group("a", "default", 2))
    bench.run()
    assert placed(bench) == ["default/a-0", "default/a-1"]


def test_pods_do_not_wait_for_a_pod_group_of_a_server_that_shows_none() -> None:
    bench = Bench(n=FOUR)
    bench.cluster.intake.workloads_listed("PodGroup", is_read=False)
    join(bench, 0)
    assert placed(bench) == []
    bench.cluster.intake.workloads_listed("PodGroup", is_read=None)
    bench.run()
    assert placed(bench) == ["default/a-0"]


def test_a_gang_that_makes_its_group_anew_over_and_over_gets_no_more_time_for_that() -> None:
    """A PodGroup of the same name and another UID, with the same pods, is no reason to come first for longer."""
    world = GroupWorld(
        {"n0": FOUR, "n1": FOUR}, [Group((2,) * 5, 1, 60, fits=False, min_count=5), Group((1, 1), 10, 60, min_count=2)]
    )
    old, uids = pod_group("g0", "default", 5), iter(range(10_000))
    while 1 not in world.bound_s and world.now_s < 3 * GIVE_UP_S:
        world.step()
        if world.now_s > 1 and world.now_s % 10 == 0:
            new = pod_group("g0", "default", 5, uid=f"u{next(uids)}")
            world.bench.cluster.intake.workload_changed(old, new)
            old = new
    assert world.bound_s[1] < GIVE_UP_S + PROOF_S


def test_a_size_that_changes_all_the_time_wakes_only_its_own_gang() -> None:
    bench = gang_of(2, 3)
    bench.add(claim("b-0", request(count=5)), member("b-0", "b", 1))
    bench.run()
    sizes: list[PodGroup] = [pod_group("a", "default", 3)]
    for number in range(50):
        sizes.append(pod_group("a", "default", 3 + number % 2))
        bench.cluster.intake.workload_changed(sizes[-2], sizes[-1])
        assert not bench.queue._ready, "it lacks pods before and after"


def labelled(name: str, size: str, owner: str = "job") -> Pod:
    pod = member(name, "", 1)
    meta = msgspec.structs.replace(
        pod.metadata,
        labels={GANG_LABEL: size},
        owner_references=[OwnerReference(f"uid-of-{owner}", "Job", owner, "batch/v1", controller=True)],
    )
    return msgspec.structs.replace(pod, metadata=meta)


def test_the_label_makes_the_pods_of_one_controller_a_gang() -> None:
    bench = Bench(n=FOUR)
    for number, owner in enumerate(["job", "job", "other", "job"]):
        assert placed(bench) == []
        bench.add(claim(f"p{number}", request()), labelled(f"p{number}", "3", owner))
        bench.run()
    assert placed(bench) == ["default/p0", "default/p1", "default/p3"]
    assert any("label gpu.dracaena.dev/gang" in message for message in bench.told())


def test_of_labels_that_differ_the_largest_counts_and_nobody_sleeps_on() -> None:
    bench = Bench(n=FOUR)
    for number, size in enumerate(["3", "2", "1"]):
        assert placed(bench) == []
        bench.add(claim(f"p{number}", request()), labelled(f"p{number}", size))
        bench.run()
    assert placed(bench) == ["default/p0", "default/p1", "default/p2"]


def test_a_label_that_is_no_size_makes_no_gang() -> None:
    bench = Bench(n=FOUR)
    bench.add(claim("p0", request()), labelled("p0", "all"))
    bench.run()
    assert placed(bench) == ["default/p0"]


def test_two_gangs_with_labels_that_each_hold_half_do_not_wait_for_each_other() -> None:
    bench = Bench(n=FOUR)
    for number, owner in enumerate(["a", "b", "a", "b"]):
        bench.add(claim(f"p{number}", request(count=2)), labelled(f"p{number}", "2", owner))
    for _ in range(PROOF_S):
        pass_time(bench, 1)
        for name in ("p0", "p1", "p2", "p3"):
            if bench.on_node(name) is not None:
                bench.try_in_vain(name)
        bench.run()
    assert placed(bench) in (["default/p0", "default/p2"], ["default/p1", "default/p3"])


def test_a_group_that_is_known_to_be_basic_is_in_no_contest() -> None:
    bench = Bench(n=FOUR)
    for name in ("a", "b"):
        bench.cluster.intake.workload_changed(None, pod_group(name, "default", None))
    for name in ("a-0", "b-0", "a-1", "b-1"):
        bench.add(claim(name, request(count=2)), member(name, name[0], 1))
        bench.run()
    pass_time(bench, SETTLE_S * 4)
    assert bench.cluster._state.groups.first is None
    assert placed(bench) == ["default/a-0", "default/b-0"]


def test_a_gang_as_large_as_they_come_costs_a_few_steps_for_each_pod() -> None:
    """10,000 pods of one gang, one by one: nobody looks at all of them for each."""
    groups, family = PodGroups(lambda pod: True), Family("default", "PodGroup", "a")
    for number in range(10_000):
        pod = member(f"p{number}", "a", 1)
        groups.change(pod.key, pod)
    assert groups.count(family) == 10_000
