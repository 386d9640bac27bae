"""Doubts that come late, or would go early: a second drop, a pod that ended meanwhile, a bound pod with two claims."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaimStatus
from dracaena.controller.lifecycle.claim_record import Doubt, PodIdentity
from dracaena.controller.lifecycle.phases import Phase
from dracaena.kube.errors import ApiUnavailableError, ConflictError, TooManyRequestsError
from support.allocation import claim, node, pod
from support.inventories import free_mask
from support.reconciling import EXCLUSION_S, TWO, Bench

P = PodIdentity("default/p", "uid-p")


def ready() -> Bench:
    """Pod p has claim c, and kube-scheduler has said something about it."""
    bench = Bench(a=TWO)
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    bench.say("p", "0/1 nodes are available: 1 Insufficient cpu.")
    bench.run()
    bench.api.writes.clear()
    return bench


def clear(bench: Bench, *names: str) -> None:
    for name in names:
        stored = bench.api.claims[f"default/{name}"]
        bench.api.put(msgspec.structs.replace(stored, status=ResourceClaimStatus()))


def reserve(bench: Bench, name: str, *users: str) -> None:
    stored = bench.api.claims[f"default/{name}"]
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    status = msgspec.structs.replace(stored.status, reserved_for=references)
    bench.api.put(msgspec.structs.replace(stored, status=status))


def free(bench: Bench) -> int:
    return free_mask(bench.cluster._state.inventory, "a").bit_count()


@pytest.mark.parametrize("refusal", ["409", "429"])
def test_a_second_drop_that_is_refused_leaves_the_doubt_of_a_first_one_that_landed_without_an_answer(
    refusal: str,
) -> None:
    bench = ready()
    bench.add(pod("q", "c"))
    bench.cluster.intake.node_changed(node("a"), node("a", unschedulable=True))
    bench.run()
    kept = bench.hold_the_watch()

    def lose_the_answer(verb: str, key: str) -> None:
        if verb == "reserve":
            bench.api.after = lambda verb, key: None
            raise ApiUnavailableError("PATCH", None, "", "no answer")

    def refuse(verb: str, key: str) -> None:
        if verb == "reserve" and refusal == "429":
            raise TooManyRequestsError("PATCH", 429, "TooManyRequests", "later", retry_after_s=60.0)

    bench.api.after = lose_the_answer
    bench.take_back("c")
    bench.run()
    bench.api.before = refuse
    if refusal == "429":
        bench.advance(1)
        clear(bench, "c")
        bench.show(kept[-1:])  # a list shows only what came of it
    else:
        clear(bench, "c")
        bench.advance(1)  # the second drop meets another version; the answer to the read shows what came of it
    assert (bench.record("c").phase, [doubt.pod for doubt in bench.record("c").doubts]) == (Phase.RESTING, [P])
    assert free(bench) == 1, "p may be on its way with the other one"


def test_a_pod_that_is_bound_and_ends_while_its_reservation_is_dropped_leaves_no_doubt_for_ever() -> None:
    bench = ready()

    def bind_and_fail(verb: str, key: str) -> None:
        if verb == "reserve":
            bench.api.before = lambda verb, key: None
            bench.bind("p", "a")
            bench.change_pod("p", failed)

    bench.api.before = bind_and_fail
    bench.take_back("c")
    bench.pass_time(60)
    assert (bench.record("c").phase, bench.record("c").doubts, free(bench)) == (Phase.FREE, (), 2)


def failed(item: Pod) -> Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase="Failed"))


def test_a_pod_that_is_bound_while_its_reservation_is_dropped_gets_its_claim_again_when_that_was_cleared_too() -> None:
    bench = ready()
    bench.add(pod("q", "c"))
    bench.run()

    def bind(verb: str, key: str) -> None:
        if verb == "reserve":
            bench.api.before = clear_for_q
            bench.bind("p", "a")

    def clear_for_q(verb: str, key: str) -> None:
        """Before the reservation is given back."""
        if verb == "reserve":
            bench.api.before = lambda verb, key: None
            clear(bench, "c")

    bench.api.before = bind
    bench.take_back("c")
    bench.pass_time(5)
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])


def test_what_rests_for_a_bound_pod_goes_to_nobody_while_another_claim_of_it_rests_for_somebody_else() -> None:
    bench = Bench(a=TWO)
    bench.add(claim("c"), claim("c2"), pod("p", "c", "c2"))
    bench.run()
    bench.add(pod("q", "c2"), pod("r", "c", "c2"))
    for name in ("c", "c2"):
        bench.take_back(name, "passed-over")
    bench.run()
    reserve(bench, "c2", "q")
    bench.run()
    bench.take_back("c2", "passed-over")
    bench.pass_time(60)
    clear(bench, "c", "c2")  # kube-scheduler, for r
    bench.run()
    assert {bench.record("c").phase, bench.record("c2").phase} == {Phase.RESTING}
    bench.add(claim("cz"), pod("z", "cz"))
    bench.bind("p", "a")
    bench.run()
    assert bench.held("cz") is None
    assert any(doubt.pod is not None and doubt.pod.key == "default/q" for doubt in bench.record("c2").doubts)
    bench.remove_pod("default/q")
    bench.run()
    assert (bench.users("c"), bench.users("c2"), bench.held("cz")) == (["p"], ["p"], None)


def test_a_conflict_that_a_read_does_not_explain_is_tried_again_after_growing_waits() -> None:
    """A webhook may answer so for ever."""
    bench = ready()
    tries: list[float] = []

    def refuse(verb: str, key: str) -> None:
        if verb == "reserve":
            tries.append(bench.clock.monotonic())
            raise ConflictError("PATCH", 409, "Conflict", "denied by a webhook")

    bench.api.before = refuse
    bench.take_back("c")
    bench.pass_time(120)
    assert 4 <= len(tries) <= 20, tries
    assert bench.record("c").doubts == (Doubt(P, tries[-1]),)


def test_nothing_is_taken_back_that_changed_since_it_was_found_to_be_half_written() -> None:
    """The record of a claim that is free would wait for ever for an end that nobody writes."""
    bench = ready()
    found = bench.cluster.claim("default/c")
    assert found is not None
    clear(bench, "c")
    assert bench.cluster.start_over([found], at_once=True) == ()
    bench.pass_time(int(EXCLUSION_S) + 1)
    assert (bench.on_node("c"), bench.record("c").ending) == ("a", "")


def test_a_gate_that_only_a_late_watch_still_shows_proves_nothing() -> None:
    """kube-scheduler tries the pod as soon as its gate is gone, and our watch may show that later."""
    first = Bench(a=TWO)
    first.add(pod("q", "c"), claim("c"))
    first.run()
    bench = Bench(a=TWO)
    bench.add(pod("p", "c", schedulingGates=[{"name": "wait"}]), first.api.claims["default/c"])
    reserve(bench, "c")
    bench.api.put_pod(pod("p", "c"))  # the gate is gone, and p may be on its way by now
    bench.cluster.begin()
    bench.take_back("c", "unreserved")
    bench.pass_time(120)
    assert bench.on_node("c") == "a"


def test_a_gate_that_the_server_shows_when_it_is_asked_is_a_proof() -> None:
    first = Bench(a=TWO)
    first.add(pod("q", "c"), claim("c"))
    first.run()
    bench = Bench(a=TWO)
    bench.add(pod("p", "c", schedulingGates=[{"name": "wait"}]), first.api.claims["default/c"])
    reserve(bench, "c")
    bench.cluster.begin()
    bench.take_back("c", "unreserved")
    bench.pass_time(30)
    assert bench.on_node("c") is None
