"""A pod that fits nowhere because of pods of lower priority: it is allocated where kube-scheduler can evict these."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from dracaena.api.objects import Node, Pod
from dracaena.controller.lifecycle.phases import Phase
from dracaena.controller.lifecycle.pod_record import Growth
from dracaena.controller.lifecycle.prospects import PREEMPTION_S, SETTLE_S
from support.allocation import blocks, claim, machine, pod, request
from support.allocation import node as bare_node
from support.reconciling import EXCLUSION_S, LONGEST_EXCLUSION_S, PASSED_OVER_WAIT_S, SEEN_S, Bench
from support.seeds import sampled

FOUR: Final = machine("four", blocks(4, inside="PIX", outside="PIX"))
SHORT: Final = "0/2 nodes are available: 1 Insufficient cpu, 1 resourceclaim not available on the node."


def cores(count: int) -> list[dict[str, Any]]:
    return [{"name": "main", "resources": {"requests": {"cpu": str(count)}}}]


def cluster(*names: str, cpu: int = 16) -> Bench:
    """Nodes of four GPUs each."""
    bench = Bench(**dict.fromkeys(names, FOUR))
    for name in names:
        status = {"allocatable": {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}}
        known = bare_node(name)
        bench.cluster.intake.node_changed(known, msgspec.convert({"metadata": known.metadata, "status": status}, Node))
    return bench


def filler(name: str, on: str, cpu: int = 12, priority: int = 0) -> Pod:
    return pod(name, nodeName=on, containers=cores(cpu), priority=priority)


def high(name: str = "high", *claims: str, cpu: int = 8, priority: int = 1000, **spec: Any) -> Pod:
    return pod(name, *(claims or ("c",)), containers=cores(cpu), priority=priority, **spec)


def full(**spec: Any) -> Bench:
    """One node whose cpu a pod of lower priority has, and a pod that waits for it, or is allocated there."""
    bench = cluster("a")
    bench.add(filler("low", "a"), claim("c", request(count=2)), high(**spec))
    bench.run()
    return bench


def nominate(bench: Bench, node: str, name: str = "high") -> None:
    """What kube-scheduler writes when it evicts pods, or finds that it cannot."""

    def change(old: Pod) -> Pod:
        return msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, nominated_node_name=node))

    bench.change_pod(name, change)


def clear(bench: Bench, name: str = "c") -> None:
    """What kube-scheduler's PostFilter does where some other node would do but for the claim."""
    stored = bench.api.claims[f"default/{name}"]
    bench.add(msgspec.structs.replace(stored, status=type(stored.status)()))


def trapped() -> Bench:
    """kube-scheduler cleared the claim and evicts pods on its node, in one attempt."""
    bench = full()
    clear(bench)
    bench.run()
    bench.say("high", SHORT)
    nominate(bench, "a")
    bench.run()
    return bench


def allocations(bench: Bench) -> int:
    return sum(verb == "allocate" for verb, _ in bench.api.writes)


def test_a_node_that_is_short_of_what_lower_pods_hold_is_allocated() -> None:
    bench = full()
    assert bench.on_node("c") == "a"
    assert bench.record("c").is_preempting
    event = next(text for _, reason, text in bench.events.seen if reason == "GPUsAllocated")
    assert event.endswith("kube-scheduler has to evict pods of lower priority there first")


@pytest.mark.parametrize("spec", [{"preemptionPolicy": "Never"}, {"priority": 0}, {"cpu": 17}])
def test_a_pod_that_may_not_preempt_or_would_not_fit_even_then_waits(spec: dict[str, Any]) -> None:
    assert full(**spec).on_node("c") is None


def test_a_node_with_room_comes_first() -> None:
    bench = cluster("a", "b")
    bench.add(filler("low", "a"), claim("c", request(count=2)), high())
    bench.run()
    assert bench.on_node("c") == "b"
    assert not bench.record("c").is_preempting


def test_devices_that_lower_pods_hold_are_not_taken() -> None:
    bench = cluster("a")
    bench.add(claim("held", request(count=4)), pod("low", "held", containers=cores(12)))
    bench.run()
    bench.bind("low", "a")
    bench.add(claim("c", request(count=2)), high())
    bench.run()
    assert bench.on_node("c") is None
    assert bench.on_node("held") == "a"


def test_a_pod_with_several_claims_or_a_shared_one_waits_for_room() -> None:
    bench = cluster("a")
    bench.add(filler("low", "a"), claim("c"), claim("d"), high("two", "c", "d"))
    bench.add(claim("shared"), high("one", "shared"), high("other", "shared", priority=0))
    bench.run()
    assert {bench.on_node(name) for name in ("c", "d", "shared")} == {None}


def test_no_hint_is_written_that_would_look_like_a_nomination() -> None:
    bench = cluster("a")
    bench.reconciler._nomination._above_nodes = 0
    bench.add(filler("low", "a"), claim("c"), high())
    bench.run()
    assert bench.on_node("c") == "a"
    assert not bench.api.pods["default/high"].status.nominated_node_name


def test_devices_freed_on_a_node_that_is_short_are_offered_to_who_may_preempt_there() -> None:
    bench = cluster("a")
    bench.add(filler("low", "a"), claim("held", request(count=4)), pod("holder", "held", containers=cores(1)))
    bench.run()
    bench.bind("holder", "a")
    bench.add(claim("c", request(count=4)), high())
    bench.run()
    assert bench.on_node("c") is None
    clear(bench, "held")
    bench.remove_pod("default/holder")
    bench.api.remove("default/held")
    bench.run()
    assert bench.on_node("c") == "a"


def test_the_allocation_stays_while_kube_scheduler_names_its_node() -> None:
    bench = full()
    bench.say("high", SHORT)
    nominate(bench, "a")
    bench.pass_time(int(PREEMPTION_S) - 1)
    assert bench.users("c") == ["high"]
    assert allocations(bench) == 1


def test_what_nobody_is_evicted_for_is_taken_back_and_preemption_waits() -> None:
    bench = full()
    bench.say("high", "0/1 nodes are available: 1 Insufficient cpu.")
    bench.pass_time(int(PASSED_OVER_WAIT_S) + int(SEEN_S) + 2)
    bench.say_again("high")
    bench.run()
    assert bench.on_node("c") is None
    assert bench.metric("take_backs_total", reason="no-preemption", end="cleared") == 1
    bench.pass_time(int(EXCLUSION_S) - 5)
    assert allocations(bench) == 1
    bench.pass_time(10)
    assert allocations(bench) == 2, "and then it is tried again"


def test_a_proof_that_takes_longer_than_the_wait_does_not_shorten_it() -> None:
    """Else the pod would get the same devices again at once, over and over."""
    bench = full()
    bench.pass_time(int(PASSED_OVER_WAIT_S) + 2 * int(EXCLUSION_S))
    assert bench.on_node("c") == "a", "kube-scheduler may still bind it"
    bench.say("high", SHORT)
    bench.pass_time(int(EXCLUSION_S) - 5)
    assert bench.on_node("c") is None
    assert allocations(bench) == 1
    bench.pass_time(10)
    assert allocations(bench) == 2


def test_victims_that_never_leave_do_not_keep_devices_for_ever() -> None:
    bench = full()
    bench.say("high", SHORT)
    nominate(bench, "a")
    bench.pass_time(int(PREEMPTION_S) + int(SEEN_S) + 20)
    bench.say_again("high")
    bench.run()
    assert bench.on_node("c") is None


def test_room_that_comes_while_preemption_waits_is_used_at_once() -> None:
    bench = full()
    clear(bench)
    bench.pass_time(int(SETTLE_S) + 1)
    assert bench.phases() == {Phase.FREE}
    bench.remove_pod("default/low")
    bench.run()
    assert bench.on_node("c") == "a"
    assert not bench.record("c").is_preempting


def test_devices_of_a_claim_that_is_cleared_while_others_are_evicted_stay_its_own() -> None:
    bench = trapped()
    assert bench.phases() == {Phase.KEPT}
    bench.add(claim("x", request(count=4)), pod("later", "x", containers=cores(1), priority=10))
    bench.run()
    assert bench.on_node("x") is None
    bench.remove_pod("default/low")
    bench.run()
    assert bench.on_node("c") == "a"
    assert bench.users("c") == ["high"]
    assert bench.api.pods["default/high"].status.nominated_node_name == "a"


def test_nothing_is_allocated_there_again_before_it_has_room() -> None:
    bench = trapped()
    for number in range(60):
        bench.say("high", f"{number}: {SHORT}")
        bench.pass_time(5)
    assert allocations(bench) == 1
    assert bench.phases() == {Phase.KEPT}


def test_a_node_where_kube_scheduler_evicts_nobody_is_not_kept() -> None:
    bench = full()
    clear(bench)
    bench.say("high", SHORT)
    bench.pass_time(int(SETTLE_S) - 1)
    assert bench.phases() == {Phase.KEPT}
    bench.pass_time(2)
    assert bench.phases() == {Phase.FREE}
    bench.pass_time(int(EXCLUSION_S) - 10)
    assert allocations(bench) == 1
    bench.pass_time(20)
    assert allocations(bench) == 2


def test_devices_are_kept_no_longer_when_the_nomination_goes_or_takes_too_long() -> None:
    bench = trapped()
    nominate(bench, "")
    bench.pass_time(int(SETTLE_S) + 1)
    assert bench.phases() == {Phase.FREE}
    slow = trapped()
    slow.pass_time(int(PREEMPTION_S) + 1)
    assert slow.phases() == {Phase.FREE}


def test_devices_are_kept_no_longer_when_the_pod_goes() -> None:
    bench = trapped()
    bench.remove_pod("default/high")
    bench.run()
    assert bench.phases() == {Phase.FREE}


def test_a_pod_for_which_others_are_evicted_learns_so() -> None:
    bench = trapped()
    bench.pass_time(10)
    bench.waiting.report_due()
    assert bench.told()[-1].endswith(
        "GPUs on node a are kept for it while kube-scheduler evicts pods of lower priority there"
    )


def test_a_pod_of_higher_priority_takes_no_room_of_its_equals() -> None:
    bench = cluster("a")
    bench.add(filler("equal", "a", priority=1000), claim("c"), high())
    bench.run()
    assert bench.on_node("c") is None


def test_two_pods_do_not_wait_for_one_room() -> None:
    bench = cluster("a", "b")
    bench.add(filler("low-a", "a"), filler("low-b", "b"))
    for name in ("first", "second", "third"):
        bench.add(claim(name, request(count=2)), high(name, name, cpu=10))
    bench.run()
    assert sorted(bench.on_node(name) or "" for name in ("first", "second", "third")) == ["", "a", "b"]


def test_kube_scheduler_is_made_to_try_a_pod_that_it_keeps_for_want_of_cpu() -> None:
    bench = full()
    bench.reconciler._nomination._above_nodes = 500
    bench.pass_time(3)
    assert [verb for verb, _ in bench.api.writes].count("nominate") == 2
    assert not bench.api.pods["default/high"].status.nominated_node_name
    nominate(bench, "a")
    bench.pass_time(100)
    assert [verb for verb, _ in bench.api.writes].count("nominate") == 2


def test_it_is_made_to_every_fifteen_seconds_until_the_patience_is_over() -> None:
    bench = full()
    bench.reconciler._nomination._above_nodes = 500
    bench.pass_time(int(PASSED_OVER_WAIT_S) + int(SEEN_S) + 2)
    assert [verb for verb, _ in bench.api.writes].count("nominate") == 2 * 4
    assert bench.record("c").ending == "no-preemption"


@pytest.mark.parametrize("seed", sampled(range(300), 15, 100))
def test_a_pod_is_allocated_where_it_fits_else_where_it_would_without_pods_of_lower_priority(seed: int) -> None:
    """Beside the slow and obvious answer, over clusters drawn at random."""
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    bench = cluster(*names)
    used: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    free = dict.fromkeys(names, 4)
    for number in range(rng.randint(1, 9)):
        name, cpu, priority = rng.choice(names), rng.randint(1, 9), rng.choice((0, 5, 10, 20))
        used[name].append((cpu, priority))
        if rng.random() < 0.4 and free[name] >= 2:
            free[name] -= 2
            bench.add(claim(f"held-{number}", request(count=2)))
            bench.add(pod(f"p{number}", f"held-{number}", nodeName=name, containers=cores(cpu), priority=priority))
        else:
            bench.add(filler(f"p{number}", name, cpu, priority))
    bench.run()
    count, cpu, priority = rng.choice((1, 2, 4)), rng.randint(1, 16), rng.choice((0, 5, 10, 20))
    bench.add(claim("c", request(count=count)), high(cpu=cpu, priority=priority))
    bench.run()
    with_devices = [name for name in names if free[name] >= count]
    room = [name for name in with_devices if 16 - sum(taken for taken, _ in used[name]) >= cpu]
    evicting = [name for name in with_devices if 16 - sum(taken for taken, one in used[name] if one >= priority) >= cpu]
    found = bench.on_node("c")
    if room or evicting:
        assert found in (room or evicting)
        assert bench.record("c").is_preempting is (not room)
    else:
        assert found is None


def test_an_old_hint_of_ours_is_not_taken_for_a_nomination() -> None:
    """We wrote our hint, and the allocation did not last: kube-scheduler cleared it, and a pod took the room."""
    bench = cluster("a")
    bench.reconciler._nomination._above_nodes = 0
    bench.add(claim("c"), high())
    bench.run()
    clear(bench)
    bench.add(filler("low", "a"))
    assert bench.api.pods["default/high"].status.nominated_node_name == "a"
    bench.run()
    assert bench.on_node("c") is None
    bench.advance(EXCLUSION_S + 1)
    assert bench.on_node("c") == "a"
    assert bench.record("c").is_preempting
    assert not bench.api.pods["default/high"].status.nominated_node_name


def lost_the_room(*, seen: str) -> Bench:
    """Another pod took the room that was made. The controller saw it `before` it allocated again, or `after` that, when
    kube-scheduler had cleared the claim on the node that was short once more."""
    bench = trapped()
    if seen == "after":
        bench.remove_pod("default/low")
        bench.run()
        assert bench.on_node("c") == "a"
        bench.add(filler("slip", "a"))
        clear(bench)
    else:
        bench.add(filler("slip", "a"))
        bench.remove_pod("default/low")
    nominate(bench, "")
    bench.pass_time(int(SETTLE_S) + 1)
    assert bench.phases() == {Phase.FREE}
    return bench


@pytest.mark.parametrize("seen", ["before", "after"])
def test_who_took_the_room_that_was_made_for_a_pod_is_evicted_too_but_not_at_once(seen: str) -> None:
    bench = lost_the_room(seen=seen)
    before = allocations(bench)
    bench.pass_time(int(EXCLUSION_S) - 10)
    assert allocations(bench) == before
    bench.pass_time(20)
    assert bench.record("c").is_preempting
    clear(bench)
    nominate(bench, "a")
    bench.remove_pod("default/slip")
    bench.run()
    assert bench.on_node("c") == "a"
    assert not bench.record("c").is_preempting


def test_room_that_comes_by_itself_is_used_while_preemption_waits() -> None:
    bench = lost_the_room(seen="before")
    bench.pass_time(int(EXCLUSION_S) // 2)
    bench.remove_pod("default/slip")
    bench.run()
    assert bench.on_node("c") == "a"
    assert not bench.record("c").is_preempting


def lose_the_room(bench: Bench, number: int) -> float:
    """Let the next pod of low priority take the room on node a; return in how many seconds others are to be evicted
    again."""
    assert bench.record("c").is_preempting
    clear(bench)
    nominate(bench, "a")
    bench.add(filler(f"slip-{number}", "a"))
    bench.remove_pod(f"default/{f'slip-{number - 1}' if number else 'low'}")
    nominate(bench, "")
    bench.pass_time(int(SETTLE_S) + 1)
    assert bench.on_node("c") is None
    began_s = bench.clock.monotonic()
    while bench.on_node("c") is None and bench.clock.monotonic() < began_s + 2 * LONGEST_EXCLUSION_S:
        bench.pass_time(5)
    return bench.clock.monotonic() - began_s


def test_evictions_that_lead_nowhere_follow_each_other_ever_more_slowly() -> None:
    """Pods of low priority take the room each time: each wait is twice as long, up to the longest."""
    bench = full()
    waits = [lose_the_room(bench, number) for number in range(8)]
    expected = [min(EXCLUSION_S * 2**number, LONGEST_EXCLUSION_S) for number in range(8)]
    assert waits == pytest.approx(expected, abs=10.0)


def beside_another() -> Bench:
    """Node a as in full(), and node b, where only what more important pods hold is missing."""
    bench = cluster("a", "b")
    bench.add(filler("low", "a"), filler("wall", "b", priority=2000), claim("c", request(count=2)), high(cpu=10))
    bench.run()
    assert bench.on_node("c") == "a"
    return bench


@pytest.mark.parametrize("longest_s", [EXCLUSION_S, LONGEST_EXCLUSION_S])
def test_a_node_where_it_is_never_bound_does_not_keep_a_pod_from_preempting_on_another(
    longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "rules", replace(Bench.rules, growth=Growth(EXCLUSION_S, longest_s)))
    bench = beside_another()
    for number in range(4):
        lose_the_room(bench, number)
    clear(bench)
    nominate(bench, "")
    bench.pass_time(int(SETTLE_S) + 1)
    bench.remove_pod("default/wall")
    tried = set()
    for _ in range(4 * int(LONGEST_EXCLUSION_S) // 5):
        bench.pass_time(5)
        node = bench.on_node("c")
        tried.add(node)
        if node == "b":
            clear(bench)
    assert tried == {None, "a", "b"}


def room_on_another_node_for_who_may_preempt(bench: Bench, for_s: int) -> None:
    """Let others be evicted on node a for so long that nothing else keeps anybody from preempting, on node b."""
    clear(bench)
    nominate(bench, "a")
    bench.add(filler("low-b", "b"))
    bench.remove_pod("default/wall")
    bench.pass_time(for_s)
    assert bench.phases() == {Phase.KEPT}


@pytest.mark.parametrize("end", ["cleared", "refused"])
def test_who_lost_the_room_that_it_had_got_does_not_preempt_elsewhere_at_once(end: str) -> None:
    bench = beside_another()
    room_on_another_node_for_who_may_preempt(bench, for_s=2 * int(EXCLUSION_S))
    bench.remove_pod("default/low")
    bench.run()
    assert bench.on_node("c") == "a"
    bench.add(filler("equal", "a", priority=1000))
    nominate(bench, "")
    if end == "cleared":
        clear(bench)
    else:
        bench.pass_time(int(SETTLE_S) + 1)
        bench.say("high", f"again: {SHORT}")
        bench.pass_time(15)
        bench.say_again("high")
        bench.run()
        assert bench.metric("take_backs_total", reason="refused", end="cleared") == 1
    bench.pass_time(int(EXCLUSION_S) - 10)
    assert bench.on_node("c") is None
    bench.pass_time(20)
    assert bench.on_node("c") == "b"


def test_a_pod_does_not_stand_behind_an_equal_one_for_which_room_is_being_made() -> None:
    bench = beside_another()
    room_on_another_node_for_who_may_preempt(bench, for_s=2 * int(EXCLUSION_S))
    bench.say("high", SHORT)  # so that it is decided again
    bench.run()
    bench.add(claim("d", request(count=2)), high("twin", "d", cpu=10))
    bench.run()
    assert bench.on_node("d") == "b"


def test_a_victim_that_never_ends_keeps_devices_ever_more_rarely() -> None:
    bench = trapped()
    bench.pass_time(int(PREEMPTION_S) + int(EXCLUSION_S) - 10)
    assert allocations(bench) == 1
    assert bench.phases() == {Phase.FREE}
    bench.pass_time(20)
    assert allocations(bench) == 2
    clear(bench)
    nominate(bench, "a")
    bench.pass_time(int(PREEMPTION_S) + 2 * int(EXCLUSION_S) - 10)
    assert allocations(bench) == 2


def test_a_pod_does_not_stand_behind_an_equal_one_for_which_nobody_is_evicted_because_it_shares_its_claim() -> None:
    bench = cluster("a")
    bench.add(filler("low", "a"), claim("shared"), high("first", "shared"), high("other", "shared"))
    bench.run()
    bench.add(claim("own"), high("second", "own"))
    bench.run()
    assert bench.on_node("shared") is None
    assert bench.on_node("own") == "a"


def test_a_pod_does_not_stand_behind_an_equal_one_that_waits_to_preempt_again() -> None:
    bench = full()
    bench.say("high", "0/1 nodes are available: 1 Insufficient cpu.")
    bench.pass_time(int(PASSED_OVER_WAIT_S) + int(SEEN_S) + 2)
    bench.say_again("high")
    bench.run()
    assert bench.on_node("c") is None
    bench.add(claim("d", request(count=2)), high("lower", "d", priority=500))
    bench.run()
    assert bench.on_node("d") == "a"
