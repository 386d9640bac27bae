"""No device goes to two claims, and no pod loses what it may be bound with: orders of events in which that happened."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaimStatus
from dracaena.controller.reconciler import Decided, Step
from dracaena.controller.state.answers import InProgress
from dracaena.controller.wiring import DOUBT_S
from dracaena.kube.errors import ApiUnavailableError, error_for
from support.allocation import blocks, claim, machine, pod, request
from support.reconciling import PASSED_OVER_WAIT_S, SEEN_S, Bench

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
SETTLE = int(SEEN_S)


def created(made: Pod, second: int) -> Pod:
    meta = msgspec.structs.replace(made.metadata, creation_timestamp=f"2026-01-01T00:00:{second:02}Z")
    return msgspec.structs.replace(made, metadata=meta)


def doubled(bench: Bench) -> set[int]:
    """The GPUs that two claims have."""
    seen: list[int] = []
    for item in bench.api.claims.values():
        seen += bench.held(item.metadata.name) or ()
    return {ordinal for ordinal in seen if seen.count(ordinal) > 1}


# A claim that two pods share is taken back from one of them while a third waits for its devices


def being_taken_back() -> Bench:
    """Pod a has claim s, which b shares, and it is being taken back; c waits for the same GPUs with another claim."""
    bench = Bench(n=FOUR)
    bench.add(claim("s", request(count=4)), claim("c", request(count=4)))
    bench.add(created(pod("a", "s"), 1))
    bench.run()
    bench.add(created(pod("b", "s"), 2), created(pod("c", "c"), 3))
    bench.run()
    bench.advance(6)
    bench.say("a", "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules")
    bench.say("b", "0/1 nodes are available: 1 Insufficient cpu")
    while bench.users("s"):
        bench.pass_time(1)
    assert (bench.held("s"), bench.held("c")) == ((0, 1, 2, 3), None)
    return bench


def plan(bench: Bench, name: str) -> tuple[str, Step]:
    """What one worker does in its turn; others may come before it carries it out."""
    key = f"default/{name}"
    return key, bench.reconciler.plan(key)


def is_in_progress(step: Step) -> bool:
    return isinstance(step, Decided) and isinstance(step.decision, InProgress)


def test_a_claim_that_kube_scheduler_clears_while_it_is_taken_back_is_nobodys_ground_for_three_workers() -> None:
    bench = being_taken_back()
    bench.api.put(msgspec.structs.replace(bench.api.claims["default/s"], status=ResourceClaimStatus()))
    a, b = plan(bench, "a"), plan(bench, "b")
    assert is_in_progress(b[1]), "a may be on its way with the GPUs"
    bench.reconciler.carry_out(*a)
    c = plan(bench, "c")
    bench.reconciler.carry_out(*b)
    bench.reconciler.carry_out(*c)
    assert (bench.held("s"), bench.held("c")) == (None, None)
    bench.pass_time(SETTLE + 1)
    bench.say_again("a")
    bench.pass_time(1)
    assert doubled(bench) == set()
    assert bench.users("s") == ["b"] or bench.users("c") == ["c"]


def test_a_watch_that_is_faster_than_the_answer_to_the_clearing_gives_no_gpu_twice() -> None:
    bench = being_taken_back()
    bench.pass_time(SETTLE + 1)
    early: list[tuple[str, Step]] = []

    def plan_before_the_answer(verb: str, key: str) -> None:
        if verb == "deallocate":
            bench.api.after = lambda verb, key: None
            early.append(plan(bench, "b"))

    bench.api.after = plan_before_the_answer
    bench.say_again("a")
    bench.tender.tend("default/s")
    c = plan(bench, "c")
    assert len(early) == 1
    bench.reconciler.carry_out(*early[0])
    bench.reconciler.carry_out(*c)
    bench.pass_time(5)
    assert doubled(bench) == set()
    bench.try_in_vain("a")
    bench.run()
    assert doubled(bench) == set()
    assert bench.users("s") == ["b"] or bench.users("c") == ["c"]


# A server that takes its time


def test_a_write_is_in_doubt_for_the_whole_time_after_it_was_sent_however_long_those_before_it_took() -> None:
    """Each PATCH takes 4 s; the last one, sent after 12 s, lands half a second after its connection was reset."""
    bench = Bench(n=FOUR)
    under_way: list[tuple[float, object]] = []
    allocate = bench.api.allocate

    def reset(item, document, user):  # type: ignore[no-untyped-def]
        if item.metadata.name == "d2" and not under_way:
            under_way.append((bench.clock.monotonic(), (item, document, user)))
            raise ApiUnavailableError("PATCH d2", None, "", "connection reset")
        return allocate(item, document, user)

    bench.api.allocate = reset  # type: ignore[method-assign]
    bench.api.before = lambda verb, key: bench.clock.advance(4.0) if not under_way else None
    bench.add(claim("d1"), claim("d2", request(count=3)), created(pod("p", "d1", "d2"), 1))
    bench.step()
    ((sent_s, write),) = under_way
    assert sent_s == 12.0
    bench.add(claim("e", request(count=3)), created(pod("q", "e", priority=10), 2))
    bench.pass_time(int(DOUBT_S) - 1)
    assert bench.held("e") is None, "the write may still land"
    allocate(*write)  # type: ignore[misc]
    bench.pass_time(2 * int(DOUBT_S))
    assert doubled(bench) == set()
    assert bench.users("d2") == ["p"]


def test_a_server_that_asks_for_patience_has_done_nothing() -> None:
    """429 is an answer: nothing is in doubt, and the devices do not rest."""
    bench = Bench(n=FOUR)
    once = [error_for("PATCH c", 429, b'{"reason":"TooManyRequests"}')]

    def refuse(verb: str, key: str) -> None:
        if verb == "allocate" and once:
            raise once.pop()

    bench.api.before = refuse
    bench.add(claim("c"), pod("p", "c"))
    bench.run()
    for _ in range(10):
        bench.advance(0.1)
    assert bench.users("c") == ["p"]


# A bind that takes its time


def test_a_pod_that_is_bound_after_all_keeps_what_was_to_be_taken_back_from_it() -> None:
    """kube-scheduler says nothing while volumes are provisioned, but for the node that it named; others pass by."""
    bench = Bench(n=FOUR)
    bench.add(claim("c"), pod("p", "c"))
    bench.run()

    def name_the_node(old: Pod) -> Pod:
        return msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, nominated_node_name="n"))

    bench.change_pod("p", name_the_node)
    for second in range(1, 180):
        bench.advance(1)
        if second in (20, 40):
            bench.add(pod(f"x{second}"))
            bench.bind(f"x{second}", "n")
        assert bench.held("c") == (0,)
    assert bench.clock.monotonic() > PASSED_OVER_WAIT_S
    assert bench.users("c") == [], "it was passed over, and its reservation is gone"
    bench.bind("p", "n")
    bench.run()
    assert (bench.held("c"), bench.users("c")) == ((0,), ["p"])


# Two claims have one device


def test_who_collides_with_a_pod_that_gets_bound_gives_way_at_once() -> None:
    """Found by the interleaver's long search (seed 1023144): it looked again only when its own time was over."""
    bench = Bench(n=FOUR)
    bench.add(claim("c", request(count=4)), pod("p", "c"))
    bench.run()
    stored = bench.api.claims["default/c"]
    assert stored.status.allocation is not None
    later = msgspec.structs.replace(stored.status.allocation, allocation_timestamp="2030-01-01T00:00:00Z")
    status = ResourceClaimStatus(allocation=later, reserved_for=[ConsumerReference("pods", "q", "uid-q")])
    metadata = msgspec.structs.replace(stored.metadata, name="d", uid="uid-d")
    bench.add(pod("q", "d"), msgspec.structs.replace(stored, metadata=metadata, status=status))
    bench.run()
    assert (bench.record("c").ending, bench.record("d").ending) == ("", "collision")
    bench.bind("q", "n")
    bench.run()
    assert bench.record("c").ending == "collision"


@pytest.mark.parametrize("is_later_bound", [True, False])
def test_of_two_that_collide_the_one_whose_pod_is_not_bound_gives_way_whichever_is_the_later(
    is_later_bound: bool,
) -> None:
    bench = Bench(n=FOUR)
    bench.add(claim("c", request(count=4)), pod("p", "c"))
    bench.run()
    stored = bench.api.claims["default/c"]
    assert stored.status.allocation is not None
    later = msgspec.structs.replace(stored.status.allocation, allocation_timestamp="2030-01-01T00:00:00Z")
    status = ResourceClaimStatus(allocation=later, reserved_for=[ConsumerReference("pods", "q", "uid-q")])
    metadata = msgspec.structs.replace(stored.metadata, name="d", uid="uid-d")
    bench.add(pod("q", "d"), msgspec.structs.replace(stored, metadata=metadata, status=status))
    bench.bind("q" if is_later_bound else "p", "n")
    bench.pass_time(SETTLE + 2)
    yields, keeps = ("p", "d") if is_later_bound else ("q", "c")
    bench.try_in_vain(yields)
    bench.pass_time(60)
    assert doubled(bench) == set()
    assert bench.held(keeps) == (0, 1, 2, 3)
    assert bench.held("c" if keeps == "d" else "d") is None
