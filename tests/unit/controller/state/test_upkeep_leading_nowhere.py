"""Allocations that lead nowhere, seen from the outside: pods, claims and what kube-scheduler says."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Settled
from dracaena.controller.lifecycle.pod_record import ELSEWHERE
from dracaena.controller.lifecycle.prospects import NOT_SEEN, SETTLE_S, UNRESERVED_S
from dracaena.controller.reconciler import Decided, HeldBack
from dracaena.controller.state.scheduler_progress import TURN_S
from support.allocation import blocks, claim, device_class, device_name, holding, machine, pod, request
from support.reconciling import (
    EXCLUSION_S,
    LONGEST_BIND_S,
    PASSED_OVER_WAIT_S,
    REFUSED_WAIT_S,
    SEEN_S,
    Bench,
)

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
ANTI = f"0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 1 {ELSEWHERE}."


def two_nodes() -> Bench:
    """The pod has its device on one of two equal nodes."""
    bench = Bench(a=TWO, b=TWO)
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])
    return bench


def one_node() -> Bench:
    bench = Bench(a=TWO)
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    assert bench.on_node("c") == "a"
    return bench


def prove(bench: Bench, name: str = "p") -> None:
    """Wait until kube-scheduler has seen that the reservation went; then it tries the pod again, in vain, and has
    nothing new to say."""
    bench.pass_time(int(SEEN_S) + 1)
    bench.say_again(name)
    bench.run()


def clear(bench: Bench, name: str = "c") -> None:
    """What kube-scheduler's PostFilter does."""
    stored = bench.api.claims[f"default/{name}"]
    bench.add(msgspec.structs.replace(stored, status=type(stored.status)()))


def writes(bench: Bench) -> list[str]:
    return [verb for verb, _ in bench.api.writes]


def test_a_refusal_that_stands_makes_the_pod_be_planned_on_another_node() -> None:
    bench = two_nodes()
    bench.advance(SETTLE_S + 1)
    bench.say("p", ANTI)
    bench.advance(REFUSED_WAIT_S - 1)
    assert bench.users("c") == ["p"]
    bench.pass_time(1)
    assert (bench.on_node("c"), bench.users("c")) == ("a", [])
    prove(bench)
    assert (bench.on_node("c"), bench.users("c")) == ("b", ["p"])
    assert writes(bench) == ["mark", "allocate", "reserve", "probe", "deallocate", "allocate"]
    assert bench.metric("take_backs_total", reason="refused", end="cleared") == 1


def test_a_refusal_that_names_no_other_node_holds_the_pod_until_something_else_is_said() -> None:
    """All nodes closed after the allocation: whatever is allocated where, none would do."""
    bench = two_nodes()
    bench.advance(SETTLE_S + 1)
    bench.say("p", "0/2 nodes are available: 2 node(s) were unschedulable.")
    bench.pass_time(int(REFUSED_WAIT_S))
    prove(bench)
    assert bench.on_node("c") is None
    bench.pass_time(30)
    assert bench.on_node("c") is None
    bench.say("p", f"0/2 nodes are available: 1 {NOT_SEEN}, 1 node(s) were unschedulable.")
    bench.run()
    assert bench.on_node("c") == "a"


def test_after_a_fault_of_the_scheduler_another_node_is_tried() -> None:
    bench = two_nodes()
    bench.advance(SETTLE_S + 1)
    bench.say("p", "running Reserve plugin: boom", reason="SchedulerError")
    bench.pass_time(int(REFUSED_WAIT_S) + 20)
    assert bench.users("c") == ["p"]
    overtake(bench)
    while bench.users("c"):
        bench.pass_time(1)
    assert bench.clock.monotonic() >= PASSED_OVER_WAIT_S
    prove(bench)
    assert bench.on_node("c") == "b"


def test_a_pod_that_gets_bound_in_time_keeps_its_devices() -> None:
    bench = two_nodes()
    bench.advance(SETTLE_S + 1)
    bench.say("p", ANTI)
    bench.advance(REFUSED_WAIT_S - 1)
    bench.bind("p", "a")
    bench.pass_time(200)
    assert bench.users("c") == ["p"]
    assert writes(bench) == ["mark", "allocate"]


def test_a_refusal_of_before_the_allocation_is_none() -> None:
    """A long queue: 2,000 pods were tried once before, and wait for their next turn."""
    bench = Bench(a=TWO, b=TWO)
    bench.add(pod("p", "c"), pod("q"))
    bench.say("p", f"0/2 nodes are available: 2 {NOT_SEEN}.")
    bench.add(claim("c"))
    bench.run()
    bench.advance(0.3)
    bench.say("p", f"0/3 nodes are available: 3 {NOT_SEEN}.")
    for second in range(300):
        bench.pass_time(1)
        if second % 10 == 0:  # others of the queue are tried, who came at the same time
            bench.say("q", f"{second}: no cpu")
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])
    assert writes(bench) == ["mark", "allocate"]


def test_pods_of_a_long_queue_that_are_bound_in_turn_are_left_alone() -> None:
    bench = Bench(a=machine("many", blocks(16, inside="PIX", outside="PIX")))
    names = [f"p{number:02}" for number in range(16)]
    bench.add(*(pod(name, f"c-{name}") for name in names), *(claim(f"c-{name}") for name in names))
    bench.run()
    before = list(bench.api.writes)
    for name in names:  # at three a minute
        bench.pass_time(20)
        bench.bind(name, "a")
    bench.pass_time(100)
    assert bench.api.writes == before


def test_a_room_that_the_scheduler_makes_by_preemption_is_waited_for() -> None:
    bench = two_nodes()
    bench.advance(SETTLE_S + 1)
    bench.say("p", "0/2 nodes are available: 1 Insufficient cpu.")

    def nominate(old: Pod) -> Pod:
        return msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, nominated_node_name="a"))

    bench.change_pod("p", nominate)
    bench.pass_time(120)
    assert bench.users("c") == ["p"]
    bench.say("p", ANTI)
    bench.change_pod(
        "p",
        lambda old: msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, nominated_node_name="")),
    )
    bench.pass_time(int(REFUSED_WAIT_S))
    prove(bench)
    assert bench.on_node("c") == "b"


def test_when_all_nodes_were_tried_the_first_is_tried_again_when_its_time_is_over() -> None:
    bench = two_nodes()
    seen = []
    for number in range(3):
        bench.pass_time(int(SETTLE_S) + 1)
        bench.say("p", f"{number}: {ANTI}")
        bench.pass_time(int(REFUSED_WAIT_S))
        prove(bench)
        if number == 1:
            assert bench.on_node("c") is None
            bench.waiting.report_due()
            assert bench.told()[-1] == (
                "0/2 nodes fit: 2 tried before without success (a, b); "
                "what was tried before is tried again from 2026-01-01T00:01:19Z"
            )
            bench.pass_time(int(EXCLUSION_S))
        seen.append(bench.on_node("c"))
    assert seen == ["b", "a", "b"]


def test_what_the_scheduler_clears_is_not_allocated_there_again_at_once() -> None:
    """Without that it went on sixty times in four seconds (real 1.36.3 control plane)."""
    bench = two_nodes()
    clear(bench)
    bench.run()
    assert bench.on_node("c") == "b"
    clear(bench)
    bench.run()
    assert bench.on_node("c") is None
    bench.pass_time(int(EXCLUSION_S) - 1)
    assert bench.on_node("c") is None
    bench.pass_time(1)
    assert bench.on_node("c") == "a"


def test_what_is_cleared_because_its_pod_went_is_open_to_others_at_once() -> None:
    bench = one_node()
    bench.remove_pod("default/p")
    clear(bench)
    bench.add(pod("q", "c"))
    bench.run()
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["q"])


def overtake(bench: Bench) -> None:
    """Twice while the pod waits somebody without claims comes and is bound at once."""
    for name in ("first", "second"):
        bench.add(pod(name))
        bench.bind(name, "a")
        bench.pass_time(int(TURN_S))


def test_a_pod_that_is_passed_over_without_a_word_gives_its_devices_back_until_there_is_one() -> None:
    """A volume that does not bind: the same words before and after, and no node would do."""
    bench = Bench(a=TWO, b=TWO)
    bench.add(pod("p", "c"))
    bench.say("p", "pod has unbound immediate PersistentVolumeClaims.")
    bench.add(claim("c"))
    bench.run()
    overtake(bench)
    bench.pass_time(int(PASSED_OVER_WAIT_S - 2 * TURN_S) - 1)
    assert bench.users("c") == ["p"]
    bench.pass_time(1)
    prove(bench)
    assert bench.on_node("c") is None
    assert bench.metric("take_backs_total", reason="passed-over", end="cleared") == 1
    bench.pass_time(10)
    assert bench.on_node("c") is None
    assert "its GPUs were given back" in bench.told()[-1]
    assert "unbound immediate PersistentVolumeClaims" in bench.told()[-1]
    bench.say("p", f"0/2 nodes are available: 2 {NOT_SEEN}.")  # the volume is bound by now
    bench.run()
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])


def test_a_pod_that_is_held_is_tried_again_when_the_time_is_over() -> None:
    bench = one_node()
    bench.say("p", "pod has unbound immediate PersistentVolumeClaims.")
    overtake(bench)
    bench.pass_time(int(PASSED_OVER_WAIT_S - 2 * TURN_S))
    prove(bench)
    assert bench.on_node("c") is None
    bench.pass_time(int(EXCLUSION_S))
    assert bench.on_node("c") == "a"


def test_a_pod_that_nobody_overtook_keeps_its_devices_as_long_as_nobody_wants_them() -> None:
    bench = one_node()
    bench.pass_time(600)
    assert bench.users("c") == ["p"]
    assert writes(bench) == ["mark", "allocate"]


def test_devices_that_others_wait_for_are_taken_back_one_by_one_when_nothing_is_bound_at_all() -> None:
    """Nothing proves that nobody is on the way: kube-scheduler is silent. So they rest as long as any bind takes."""
    bench = one_node()
    bench.add(pod("q", "d"), claim("d"), pod("r", "e"), claim("e", request(count=2)))
    bench.run()
    assert (bench.on_node("c"), bench.on_node("d"), bench.on_node("e")) == ("a", "a", None)
    bench.pass_time(int(PASSED_OVER_WAIT_S) + 16)
    (name,) = [name for name in ("c", "d") if not bench.users(name)]
    assert (bench.on_node("c"), bench.on_node("d")) == ("a", "a")
    bench.pass_time(int(PASSED_OVER_WAIT_S) // 2)
    assert [other for other in ("c", "d") if not bench.users(other)] == [name]
    bench.advance(LONGEST_BIND_S)
    bench.run()
    assert bench.metric("take_backs_total", reason="passed-over", end="cleared") == 1


def test_where_the_device_of_another_driver_is_missing_the_next_node_is_tried() -> None:
    bench = Bench(a=TWO, b=TWO)
    nic = claim("nic", {"name": "n", "exactly": {"deviceClassName": "nic.example.com", "count": 1}})
    bench.cluster.intake.class_changed(
        None, device_class("nic.example.com", selectors=[{"cel": {"expression": "false"}}])
    )
    bench.add(pod("p", "c", "nic"), claim("c"), nic)
    bench.run()
    assert bench.on_node("c") == "a"
    bench.pass_time(1)
    bench.say("p", f"0/2 nodes are available: 1 {NOT_SEEN}, 1 {ELSEWHERE}.")
    bench.pass_time(int(REFUSED_WAIT_S) + 1)
    prove(bench)
    assert bench.on_node("c") == "b"
    assert bench.on_node("nic") is None


def test_a_reservation_that_an_earlier_leader_dropped_is_followed_by_the_second_write() -> None:
    bench = two_nodes()
    stored = bench.api.claims["default/c"]
    again = Bench(a=TWO, b=TWO)
    dropped = msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=[]))
    again.add(pod("p", "c"), dropped)
    again.cluster.begin()
    again.run()
    again.pass_time(int(UNRESERVED_S) + 1)
    assert again.on_node("c") == "a", "p may have been on its way before this leader began"
    again.try_in_vain("p")
    again.run()
    assert (again.on_node("c"), again.users("c")) == ("b", ["p"])
    assert again.metric("take_backs_total", reason="unreserved", end="cleared") == 1


def allocated_by_somebody_else() -> ResourceClaim:
    return holding(claim("c"), "a", "gpu-of-somebody")


@pytest.mark.parametrize("users", [[], ["p"], ["p", "q"]])
def test_what_others_allocated_or_use_is_never_taken_back(users: list[str]) -> None:
    bench = Bench(a=TWO, b=TWO)
    held = allocated_by_somebody_else()
    references = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    status = msgspec.convert({**msgspec.to_builtins(held.status), "reservedFor": references}, type(held.status))
    bench.add(pod("p", "c"), msgspec.structs.replace(held, status=status))
    bench.run()
    bench.pass_time(int(SETTLE_S) + 1)
    bench.say("p", ANTI)
    overtake(bench)
    bench.pass_time(200)
    assert bench.api.writes == []


def test_a_claim_that_another_pod_runs_with_stays_and_the_pod_with_it() -> None:
    bench = two_nodes()
    stored = bench.api.claims["default/c"]
    users = [*stored.status.reserved_for, msgspec.structs.replace(stored.status.reserved_for[0], name="q", uid="uid-q")]
    bench.add(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=users)))
    bench.pass_time(int(SETTLE_S) + 1)
    bench.say("p", ANTI)
    bench.pass_time(200)
    assert writes(bench) == ["mark", "allocate"]


def test_users_learn_what_was_taken_back_and_why() -> None:
    bench = two_nodes()
    bench.pass_time(int(SETTLE_S) + 1)
    bench.say("p", ANTI)
    bench.pass_time(int(REFUSED_WAIT_S))
    text = (
        f"GPUs on node a are taken back, because kube-scheduler does not bind the pod there: {ANTI} "
        "Another node is tried"
    )
    assert [event for event in bench.events.seen if event[1] == "GPUsTakenBack"] == [
        ("Pod default/p", "GPUsTakenBack", text)
    ]


def test_a_pod_that_is_held_and_has_all_its_devices_by_now_is_attended_to() -> None:
    bench = Bench(a=TWO)
    waiting = pod("p", "c")
    bench.add(waiting, claim("c"))
    bench.leave_all_out("p")
    assert isinstance(bench.reconciler.plan(waiting.key), HeldBack)
    bench.add(holding(claim("c"), "a", device_name(TWO, 0)))
    step = bench.reconciler.plan(waiting.key)
    assert isinstance(step, Decided)
    assert isinstance(step.decision, Settled)


def test_the_time_for_which_a_pod_gets_no_node_begins_when_its_devices_are_given_back() -> None:
    """A proof may take longer than that time: then the pod would get the same devices again at once."""
    bench = Bench(a=TWO)
    bench.add(pod("p", "c"), claim("c", request(count=2)))
    bench.run()
    bench.pass_time(int(SETTLE_S) + 1)
    bench.say("p", ANTI)
    bench.pass_time(int(REFUSED_WAIT_S) + int(EXCLUSION_S) + 10)
    assert (bench.on_node("c"), bench.users("c")) == ("a", []), "kube-scheduler has not tried it again yet"
    bench.add(pod("q", "d"), claim("d", request(count=2)))
    bench.say_again("p")
    bench.run()
    assert (bench.on_node("c"), bench.on_node("d")) == (None, "a")
