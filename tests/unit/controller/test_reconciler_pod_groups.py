"""Claims that were made for a PodGroup (KEP-5729, Kubernetes 1.37), from the first pod of the group to its end."""

from __future__ import annotations

from typing import Any

import msgspec

from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.reconciler import MISSING_CLAIM_S
from support.allocation import blocks, claim, machine, pod, request
from support.reconciling import SEEN_S, Bench

GROUP = OwnerReference("uid-g", "PodGroup", "g", "scheduling.k8s.io/v1beta1", controller=True)
FOR_GROUP = ConsumerReference("podgroups", "g", "uid-g", "scheduling.k8s.io")


def member(name: str, *names: str) -> Pod:
    """A pod of the group that uses the group's claim, and more by name."""
    document: dict[str, Any] = msgspec.to_builtins(pod(name, *names, templates=["t"]))
    document["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    document["status"] = {"phase": "Pending", "resourceClaimStatuses": [{"name": "t", "resourceClaimName": "g-t-x"}]}
    return msgspec.convert(document, Pod)


def group_claim(count: int = 2) -> ResourceClaim:
    made = claim("g-t-x", request(count=count))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[GROUP]))


def reserved_for(bench: Bench) -> list[ConsumerReference]:
    return bench.api.claims["default/g-t-x"].status.reserved_for


def prove(bench: Bench, name: str) -> None:
    """Let kube-scheduler try the pod once more, so that no bind of it can be under way."""
    bench.say(name, "0/2 nodes are available: the group does not fit.")
    bench.pass_time(int(SEEN_S) + 1)
    bench.say_again(name)
    bench.run()


def test_the_first_pod_of_a_group_gets_its_claim_allocated_once_for_all() -> None:
    bench = Bench()
    bench.add(group_claim(), member("a"), member("b"))
    bench.run()
    assert bench.held("g-t-x") is not None
    assert reserved_for(bench) == [FOR_GROUP]
    assert [verb for verb, _ in bench.api.writes].count("allocate") == 1


def test_a_pod_that_comes_to_an_allocated_group_finds_its_claim_as_it_is() -> None:
    bench = Bench()
    bench.add(group_claim(), member("a"))
    bench.run()
    bench.bind("a", "n")
    held, writes = bench.held("g-t-x"), len(bench.api.writes)
    bench.add(member("b"))
    bench.run()
    bench.pass_time(600)
    assert bench.held("g-t-x") == held
    assert reserved_for(bench) == [FOR_GROUP]
    assert all(verb not in ("deallocate", "reserve") for verb, _ in bench.api.writes[writes:])


def test_the_claim_of_a_group_is_kept_while_the_group_lives_also_without_pods() -> None:
    bench = Bench()
    bench.add(group_claim(), member("a"))
    bench.run()
    held = bench.held("g-t-x")
    bench.remove_pod("default/a")
    bench.pass_time(1_200)
    assert bench.held("g-t-x") == held
    assert reserved_for(bench) == [FOR_GROUP]


def test_a_new_leader_lets_the_reservation_of_a_group_count_for_all_its_pods() -> None:
    bench = Bench()
    bench.add(group_claim(), member("a"), member("b"))
    bench.run()
    successor = bench.next_leader()
    writes = len(successor.api.writes)
    successor.pass_time(600)
    assert successor.record("g-t-x").doubts == ()
    assert [verb for verb, _ in successor.api.writes[writes:]] == []


def test_what_kube_scheduler_clears_of_a_group_is_not_allocated_there_again_at_once_for_any_of_its_pods() -> None:
    """Its PodGroupPostFilter clears claims of a group that it could not place."""
    two = machine("two", blocks(2, inside="PIX", outside="PIX"))
    bench = Bench(a=two, b=two)
    bench.add(group_claim(), member("first"), member("second"))
    bench.run()
    assert bench.on_node("g-t-x") == "a"
    stored = bench.api.claims["default/g-t-x"]
    bench.add(msgspec.structs.replace(stored, status=type(stored.status)()))
    bench.run()
    assert bench.on_node("g-t-x") is None, "a bind of either pod may be under way, and would need no reservation"
    prove(bench, "first")
    assert bench.on_node("g-t-x") is None
    prove(bench, "second")
    assert bench.on_node("g-t-x") == "b"
    assert reserved_for(bench) == [FOR_GROUP]


def test_a_reservation_that_went_is_given_back_to_the_group_of_a_bound_pod() -> None:
    bench = Bench()
    bench.add(group_claim(), member("a"))
    bench.run()
    bench.bind("a", "n")
    stored = bench.api.claims["default/g-t-x"]
    bench.add(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=[])))
    bench.run()
    bench.pass_time(5)
    assert reserved_for(bench) == [FOR_GROUP]


def test_a_claim_of_another_group_is_not_taken_and_the_pod_is_reported() -> None:
    bench = Bench()
    made = group_claim()
    owner = msgspec.structs.replace(GROUP, name="other")
    bench.add(
        msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner])),
        member("a"),
    )
    bench.run()
    bench.advance(MISSING_CLAIM_S)
    bench.waiting.report_due()
    assert bench.held("g-t-x") is None
    assert bench.told() == ["claim default/g-t-x was generated for another owner (PodGroup other)"]
