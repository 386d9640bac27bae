"""A claim is taken back: first its reservation, then, when nobody can be bound with it any more, its allocation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceClaimStatus
from dracaena.controller.lifecycle.claim_record import Doubt, PodIdentity
from dracaena.controller.lifecycle.phases import Phase
from dracaena.controller.lifecycle.proof import BEHIND_S
from dracaena.controller.write.claim_tender import AGAIN_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError, InvalidError, KubeError
from support.allocation import claim, device_name, holding, node, pod, request
from support.reconciling import LONGEST_BIND_S, SEEN_S, TWO, Bench
from support.taking_back import WORDS, clear, dropped, ended, free, ready, reserve, writes

SETTLE = int(SEEN_S)
P = PodIdentity("default/p", "uid-p")


# Who proves that nobody is on the way


def test_the_reservation_goes_first_and_the_allocation_when_kube_scheduler_ended_a_try_that_saw_it_go() -> None:
    bench = dropped()
    bench.pass_time(600)
    assert bench.on_node("c") == "a", "that time passes proves nothing"
    bench.say("p", "0/1 nodes are available: something new.")
    bench.run()
    assert bench.on_node("c") is None
    assert [verb for verb in writes(bench) if verb != "probe"] == ["reserve", "deallocate"]
    assert ended(bench, "cleared")


def test_what_is_said_before_kube_scheduler_must_have_seen_the_drop_proves_nothing() -> None:
    bench = dropped()
    bench.pass_time(SETTLE - 1)
    bench.say("p", "0/1 nodes are available: something new.")  # of a try that may have begun before the drop
    bench.pass_time(60)
    assert bench.on_node("c") == "a"
    bench.say("p", "0/1 nodes are available: something newer.")
    bench.run()
    assert ended(bench, "cleared")


def test_what_was_said_before_the_drop_proves_nothing() -> None:
    bench = ready()
    bench.pass_time(0)
    bench.say("p", "0/1 nodes are available: said at the same moment.")
    bench.pass_time(30)
    assert bench.on_node("c") == "a"


def test_a_probe_makes_the_same_words_again_a_proof() -> None:
    """kube-scheduler writes its condition without a lastProbeTime, and only when it differs from what is there."""
    bench = dropped()
    bench.pass_time(SETTLE - 1)
    assert writes(bench) == ["reserve"]
    bench.pass_time(1)
    assert writes(bench) == ["reserve", "probe"]
    (condition,) = bench.api.pods["default/p"].status.conditions
    assert (condition.message, bool(condition.last_probe_time)) == (WORDS, True)
    bench.pass_time(30)
    assert writes(bench) == ["reserve", "probe"], "one is enough"
    bench.say_again("p")
    bench.run()
    assert ended(bench, "cleared")


def test_a_probe_that_was_wiped_too_early_is_followed_by_another() -> None:
    """An earlier take-back left it there: the try that wipes it may have begun before the drop of this one."""
    bench = ready()
    bench.api.probe(bench.api.pods["default/p"], "2026-01-01T00:00:00Z")
    bench.pass_time(1)
    bench.say_again("p")
    bench.pass_time(SETTLE + 1)
    assert bench.on_node("c") == "a"
    assert writes(bench).count("probe") == 2
    bench.say_again("p")
    bench.run()
    assert ended(bench, "cleared")


def test_a_pod_that_kube_scheduler_never_spoke_of_is_not_probed_and_its_first_words_are_the_proof() -> None:
    bench = dropped(said="")
    bench.pass_time(60)
    assert writes(bench) == ["reserve"]
    bench.say("p", WORDS)
    bench.run()
    assert ended(bench, "cleared")


@pytest.mark.parametrize(
    "error", [ConflictError("PATCH", 409, "Conflict", "changed"), InvalidError("PATCH", 422, "Invalid", "no")]
)
def test_a_probe_that_was_refused_is_tried_again_after_a_while(error: KubeError) -> None:
    bench = dropped()
    tries: list[float] = []

    def refuse(verb: str, key: str) -> None:
        tries.append(bench.clock.monotonic())
        if len(tries) < 3:
            raise error

    bench.api.before = refuse
    bench.pass_time(SETTLE + 10)
    assert tries == [2.0, 2.0 + AGAIN_S, 2.0 + 2 * AGAIN_S]
    assert "probe" in writes(bench)


def go(bench: Bench) -> None:
    bench.remove_pod("default/p")


def end(bench: Bench) -> None:
    bench.change_pod("p", lambda old: with_phase(old, "Failed"))


def be_deleted(bench: Bench) -> None:
    """kube-scheduler refuses to bind a pod with a deletionTimestamp, and so does the API server."""
    going = msgspec.structs.replace(bench.api.pods["default/p"].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    bench.change_pod("p", lambda old: msgspec.structs.replace(old, metadata=going))


def be_made_again(bench: Bench) -> None:
    meta = msgspec.structs.replace(pod("p", "c").metadata, uid="another")
    bench.add(msgspec.structs.replace(pod("p", "c"), metadata=meta))


def with_phase(item: Pod, phase: str) -> Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase=phase))


@pytest.mark.parametrize("happens", [go, end, be_deleted, be_made_again])
def test_a_pod_that_cannot_be_bound_any_more_is_a_proof_at_once(happens: Callable[[Bench], None]) -> None:
    bench = dropped()
    happens(bench)
    bench.run()
    assert bench.record("c").share is None
    assert ended(bench, "cleared")


def test_after_the_longest_bind_no_proof_is_needed() -> None:
    bench = dropped(said="")
    bench.advance(SEEN_S + LONGEST_BIND_S - 1)
    assert bench.on_node("c") == "a"
    bench.advance(1)
    assert ended(bench, "cleared")


def test_the_time_counts_from_the_answer_of_the_drop_however_long_it_took() -> None:
    bench = ready(said="")
    bench.api.before = lambda verb, key: bench.clock.advance(9) if verb == "reserve" else None
    bench.run()
    assert bench.record("c").doubts == (Doubt(P, 9.0),)
    bench.advance(SEEN_S + LONGEST_BIND_S - 1)
    assert bench.on_node("c") == "a"
    bench.advance(1)
    assert ended(bench, "cleared")


def test_what_is_said_while_the_drop_is_under_way_proves_nothing() -> None:
    """The server takes its time with the drop: what kube-scheduler says meanwhile comes from a try that may be followed
    by one that still sees the reservation."""
    bench = ready()
    kept: list[tuple[ResourceClaim | None, ResourceClaim | None]] = []

    def slow(verb: str, key: str) -> None:
        if verb == "reserve":
            bench.api.before = lambda verb, key: None
            bench.clock.advance(5)
            bench.say("p", "0/1 nodes are available: something new.")

    def cleared_by_a_sibling(verb: str, key: str) -> None:
        """Before anybody sees the drop; the answer is lost, and a list shows only what came of it."""
        if verb == "reserve":
            bench.api.after = lambda verb, key: None
            clear(bench)
            bench.show(kept[-1:])
            raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.api.before, bench.api.after = slow, cleared_by_a_sibling
    kept = bench.hold_the_watch()
    bench.run()
    assert bench.on_node("c") is None
    assert bench.record("c").phase is Phase.RESTING
    assert free(bench) == 1
    bench.pass_time(SETTLE + 1)
    bench.say_again("p")
    bench.run()
    assert bench.record("c").phase is Phase.FREE
    assert free(bench) == 2


# Who comes out of it with the devices


def test_a_pod_that_was_bound_before_keeps_all() -> None:
    bench = ready()
    bench.bind("p", "a")
    bench.run()
    assert writes(bench) == []
    assert ended(bench, "kept")


def test_a_pod_that_was_bound_meanwhile_keeps_its_devices_and_gets_its_reservation_back() -> None:
    bench = dropped()
    bench.bind("p", "a")
    bench.run()
    assert bench.users("c") == ["p"]
    bench.pass_time(60)
    assert writes(bench) == ["reserve", "reserve"]
    assert ended(bench, "kept")


def test_a_claim_that_somebody_else_reserved_meanwhile_is_left_to_them() -> None:
    bench = dropped()
    bench.add(pod("q", "c"))
    reserve(bench, "q")
    bench.pass_time(60)
    assert bench.users("c") == ["q"]
    assert ended(bench, "kept")


def test_a_pod_that_reserves_again_what_was_taken_back_keeps_it_and_is_given_time_again() -> None:
    """kube-scheduler tried it again, and binds it: whether that leads anywhere shows only then."""
    bench = dropped()
    bench.pass_time(SETTLE + 1)
    reserve(bench, "p")
    bench.run()
    assert ended(bench, "kept")
    bench.pass_time(SETTLE)
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])
    assert bench.record("c").doubts == ()


def test_a_reservation_at_the_last_moment_is_a_conflict_and_the_pod_keeps_what_it_has() -> None:
    bench = dropped()
    bench.pass_time(SETTLE + 1)

    def reserve_now(verb: str, key: str) -> None:
        if verb == "deallocate":
            bench.api.before = lambda verb, key: None
            reserve(bench, "p")

    bench.api.before = reserve_now
    bench.say_again("p")
    bench.run()
    assert (bench.on_node("c"), bench.users("c")) == ("a", ["p"])
    assert ended(bench, "kept")


def test_a_later_pod_of_the_same_name_that_is_bound_is_given_what_it_runs_with() -> None:
    """It may have been bound with this very claim; the first one is gone."""
    bench = dropped()
    be_made_again(bench)
    bench.bind("p", "a")
    bench.run()
    assert [user.uid for user in bench.api.claims["default/c"].status.reserved_for] in ([], ["another"])
    assert bench.record("c").doubts == ()


@pytest.mark.parametrize("what", ["gone", "made again"])
def test_a_claim_that_is_gone_or_another_one_by_now_ends_the_matter(what: str) -> None:
    bench = dropped()
    bench.api.remove("default/c")
    if what == "made again":
        bench.api.put(claim("c", uid="another"))
    bench.run()
    assert writes(bench) == ["reserve"]
    assert free(bench) == 2


def test_a_claim_that_was_made_again_while_the_watch_is_behind_is_left_alone() -> None:
    bench = ready()
    bench.hold_the_watch()
    again = bench.api.claims["default/c"]
    bench.api.put(msgspec.structs.replace(again, metadata=msgspec.structs.replace(again.metadata, uid="made-again")))
    bench.run()
    assert bench.users("c") == ["p"]
    assert writes(bench) == []


# What others do with the claim meanwhile


def test_devices_that_somebody_else_cleared_early_rest_until_it_is_proven_that_nobody_is_on_the_way() -> None:
    """kube-scheduler's PostFilter for a sibling clears a claim that is reserved for nobody."""
    bench = dropped()
    bench.add(pod("q", "c"))
    clear(bench)
    bench.run()
    assert bench.record("c").phase is Phase.RESTING
    assert free(bench) == 1
    bench.pass_time(SETTLE + 1)
    assert (bench.on_node("c"), free(bench)) == (None, 1)
    bench.cluster.intake.node_changed(node("a", unschedulable=True), node("a"))
    bench.run()
    assert bench.on_node("c") is None, "nothing is decided with a claim whose devices rest"
    bench.say_again("p")
    bench.run()
    assert bench.users("c") == ["q"], "who came meanwhile was woken, and p would be in the way of a bind of q"


def test_what_rests_of_others_keeps_nothing_from_anybody() -> None:
    """A pod waits for a NIC too: kube-scheduler clears that claim, and allocates it anew, as it likes."""
    bench = Bench(a=TWO)
    nic = holding(claim("nic"), "fabric", "port-1", driver="nic.example.com")
    bench.add(pod("p", "nic"), nic)
    bench.say("p", WORDS)
    bench.api.put(msgspec.structs.replace(bench.api.claims["default/nic"], status=ResourceClaimStatus()))
    assert bench.record("nic").phase is Phase.RESTING
    bench.run()
    assert bench.record("nic").phase is not Phase.RESTING
    assert "probe" not in writes(bench)


def test_what_rests_is_one_claims_whoever_allocates_it_next() -> None:
    """kube-scheduler may allocate the claim itself while its former devices rest: then it has both."""
    bench = dropped()
    clear(bench)
    bench.run()
    other = bench.api.claims["default/c"]
    bench.api.put(other)
    assert bench.record("c").phase is Phase.RESTING
    assert free(bench) == 1


def test_a_new_leader_knows_that_somebody_may_be_on_the_way_with_what_is_reserved_for_nobody() -> None:
    bench = dropped()
    again = Bench(a=TWO)
    again.add(bench.api.claims["default/c"], bench.api.pods["default/p"])
    again.cluster.begin()
    assert again.record("c").doubts == (Doubt(None, 0.0),)
    again.take_back("c")
    again.pass_time(SETTLE)
    assert again.on_node("c") == "a"
    again.say("p", "0/1 nodes are available: something new.")
    again.run()
    assert again.on_node("c") == "a", "that may be of a try from before"
    again.pass_time(1)
    again.say("p", "0/1 nodes are available: something newer.")
    again.run()
    assert again.on_node("c") == "a", "the watch may not have shown all pods that were there"
    again.pass_time(int(BEHIND_S))
    assert again.metric("take_backs_total", reason="refused", end="cleared") == 1


def test_what_was_said_before_a_new_leader_began_proves_nothing_to_it() -> None:
    """A stand-by sees drops and words for a long time; what the last leader wrote last it may see late."""
    bench = dropped()
    again = Bench(a=TWO)
    again.add(bench.api.claims["default/c"], bench.api.pods["default/p"])
    again.clock.advance(60)
    again.say("p", "0/1 nodes are available: something new.")
    again.cluster.begin()
    assert again.record("c").doubts == (Doubt(None, 60.0),)


def test_a_claim_is_taken_back_once_however_often_it_is_asked_for() -> None:
    bench = ready()
    for _ in range(3):
        bench.take_back("c")
        bench.run()
    bench.pass_time(SETTLE + 1)
    bench.say_again("p")
    bench.run()
    assert ended(bench, "cleared")


def shared_with_one_on_its_way() -> tuple[Bench, str, str]:
    """Two pods share a claim: it was dropped from the first, which may be on its way, and reserved for the second."""
    bench = Bench(a=TWO)
    bench.add(claim("c", request(count=2)), pod("p", "c"), pod("q", "c"))
    bench.run()
    (first,) = bench.users("c")
    second = "q" if first == "p" else "p"
    bench.take_back("c")
    bench.run()
    assert bench.users("c") == []
    reserve(bench, second)
    bench.run()
    return bench, first, second


@pytest.mark.parametrize("changes_leader", [False, True], ids=["the same leader", "a new leader"])
def test_who_may_be_on_its_way_with_a_claim_that_others_reserved_since_is_not_forgotten(changes_leader: bool) -> None:
    bench, first, second = shared_with_one_on_its_way()
    if changes_leader:
        bench = bench.next_leader()
    bench.add(claim("d", request(count=2)), pod("r", "d", priority=9))
    bench.pass_time(20)
    bench.take_back("c")
    for _ in range(6):
        bench.pass_time(5)
        bench.try_in_vain(second)
    assert (bench.held("c"), bench.held("d")) == ((0, 1), None), f"nothing was said of {first}"
    bench.try_in_vain(first)
    bench.run()
    assert bench.held("d") == (0, 1)


def test_a_pod_that_shares_a_claim_with_one_on_another_node_learns_why_no_node_fits() -> None:
    bench = Bench(a=TWO, b=TWO)
    bench.add(claim("c"), pod("p", "c", nodeName="a"), pod("q", "c"))
    bench.add(*(holding(claim(f"blocker-{o}"), "a", device_name(TWO, o)) for o in range(2)))
    bench.pass_time(20)
    assert bench.on_node("c") is None
    assert any("where a pod that shares one of its claims is not" in text for text in bench.told()), bench.told()


# A pod that the watch does not show


def of_an_unseen_pod() -> Bench:
    """The claim was reserved for a pod of which the watch has shown nothing yet."""
    first = Bench(a=TWO)
    first.add(pod("p", "c"), claim("c"))
    first.run()
    bench = Bench(a=TWO)
    stored = first.api.claims["default/c"]
    bench.add(stored)
    bench.api.pods["default/p"] = pod("p", "c")
    bench.api.put(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=[])))
    bench.take_back("c")
    return bench


def test_a_pod_that_the_watch_does_not_show_yet_is_looked_for_and_waited_for() -> None:
    bench = of_an_unseen_pod()
    assert bench.record("c").doubts == (Doubt(P, 0.0),)
    bench.pass_time(30)
    assert bench.on_node("c") == "a"
    bench.add(bench.api.pods["default/p"])
    bench.pass_time(SETTLE + 1)
    bench.try_in_vain("p")
    bench.run()
    assert bench.metric("take_backs_total", reason="refused", end="cleared") == 1


@pytest.mark.parametrize("what", ["gone", "made again", "being deleted", "bound"])
def test_a_pod_that_the_server_has_not_any_more_is_no_doubt_and_one_on_a_node_is_left_to_the_watch(what: str) -> None:
    bench = of_an_unseen_pod()
    there = bench.api.pods.pop("default/p")
    meta = there.metadata
    if what == "made again":
        there = msgspec.structs.replace(there, metadata=msgspec.structs.replace(meta, uid="another"))
    elif what == "bound":
        there = msgspec.structs.replace(there, spec=msgspec.structs.replace(there.spec, node_name="a"))
    elif what == "being deleted":
        going = msgspec.structs.replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
        there = msgspec.structs.replace(there, metadata=going)
    if what != "gone":
        bench.api.pods["default/p"] = there
    bench.pass_time(1)
    assert bool(bench.record("c").doubts) is (what == "bound")
