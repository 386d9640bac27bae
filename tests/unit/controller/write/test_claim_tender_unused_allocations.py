"""What is allocated for nobody is freed after a while, and nothing that somebody may use."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.lifecycle.tending import UNUSED_S
from dracaena.controller.write.claim_tender import REFUSED_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError, ForbiddenError, InvalidError, KubeError
from support.allocation import claim, holding, pod, request
from support.reconciling import LONGEST_BIND_S, SEEN_S, TWO, Bench

WAIT_S = int(UNUSED_S)


def allocated(name: str = "c", *users: str) -> ResourceClaim:
    """A claim that we allocated, reserved for `users`."""
    first = Bench(a=TWO)
    first.add(pod("p", name), claim(name))
    first.run()
    return reserved(first.api.claims[f"default/{name}"], *users)


def left_behind(*users: str) -> Bench:
    """A claim that we allocated, whose pod has gone, reserved for `users`."""
    bench = Bench(a=TWO)
    bench.add(allocated("c", *users))
    return bench


def reserved(item: ResourceClaim, *users: str) -> ResourceClaim:
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=references))


def writes(bench: Bench) -> list[str]:
    return [verb for verb, _ in bench.api.writes]


def test_a_claim_that_is_allocated_for_nobody_is_freed_once_it_was_unused_for_long_enough() -> None:
    bench = left_behind()
    bench.pass_time(WAIT_S - 1)
    assert bench.on_node("c") == "a"
    bench.pass_time(1)
    assert bench.on_node("c") is None
    assert bench.metric("take_backs_total", reason="unused", end="cleared") == 1
    bench.pass_time(WAIT_S + 1)
    assert writes(bench) == ["deallocate"]


def test_its_devices_go_to_a_pod_that_waits_for_them() -> None:
    bench = left_behind()
    bench.add(pod("q", "d"), claim("d", request(count=2)))
    bench.run()
    assert bench.held("d") is None
    bench.pass_time(WAIT_S + 2)
    assert bench.held("d") == (0, 1)


def changed(item: Pod, phase: str, *, deleted: bool) -> Pod:
    metadata = msgspec.structs.replace(item.metadata, deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None)
    return msgspec.structs.replace(item, metadata=metadata, status=msgspec.structs.replace(item.status, phase=phase))


@pytest.mark.parametrize(
    ("phase", "deleted", "freed"),
    [
        ("Pending", False, False),
        ("Running", False, False),
        ("Running", True, False),  # its containers may run until it is gone
        ("Succeeded", False, True),
        ("Failed", False, True),
    ],
)
def test_a_pod_that_is_there_to_stay_may_use_it_and_one_that_ends_may_not(
    phase: str, deleted: bool, freed: bool
) -> None:
    bench = left_behind()
    user = pod("q", "c", nodeName="a" if phase != "Pending" else "", schedulingGates=[{"name": "wait"}])
    bench.add(changed(user, phase, deleted=deleted))
    bench.pass_time(3 * WAIT_S)
    assert (bench.on_node("c") is None) is freed


def test_a_bound_pod_gets_its_reservation_back_before_anything_else() -> None:
    bench = left_behind()
    bench.add(pod("q", "c", nodeName="a"))
    bench.run()
    assert bench.users("c") == ["q"]


def test_a_pod_that_comes_in_time_finds_its_devices() -> None:
    bench = left_behind()
    bench.pass_time(WAIT_S - 1)
    bench.add(pod("q", "c"))
    bench.pass_time(10)
    assert bench.on_node("c") == "a"
    assert writes(bench) == []


def test_the_time_begins_again_when_the_last_pod_of_the_claim_went() -> None:
    bench = left_behind()
    bench.add(pod("q", "c"))
    bench.pass_time(2 * WAIT_S - 1)
    bench.remove_pod("default/q")
    bench.pass_time(WAIT_S - 1)
    assert bench.on_node("c") == "a"
    bench.pass_time(2)
    assert bench.on_node("c") is None


def test_a_claim_that_is_reserved_is_left_to_kube_controller_manager() -> None:
    bench = left_behind("gone")
    bench.pass_time(3 * WAIT_S)
    assert writes(bench) == []


def test_what_others_allocated_and_what_is_being_deleted_is_left_alone() -> None:
    bench = left_behind()
    stored = bench.api.claims["default/c"]
    going = msgspec.structs.replace(stored.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    bench.add(msgspec.structs.replace(stored, metadata=going), holding(claim("d"), "a", "gpu-of-somebody"))
    bench.pass_time(3 * WAIT_S)
    assert writes(bench) == []


def test_who_reserves_it_at_the_last_moment_keeps_it() -> None:
    bench = left_behind()

    def reserve_first(verb: str, key: str) -> None:
        bench.api.before = lambda verb, key: None
        bench.api.put(reserved(bench.api.claims[key], "q"))
        raise ConflictError("PATCH", 409, "Conflict", "changed")

    bench.api.before = reserve_first
    bench.pass_time(3 * WAIT_S)
    assert bench.on_node("c") == "a"
    assert bench.users("c") == ["q"]


def test_a_write_that_validation_refuses_is_tried_again_only_after_a_while() -> None:
    bench = left_behind()
    tries: list[float] = []

    def refuse(verb: str, key: str) -> None:
        tries.append(bench.clock.monotonic())
        raise InvalidError("PATCH", 422, "Invalid", "spec: field is immutable")

    bench.api.before = refuse
    bench.pass_time(WAIT_S + 2 * int(REFUSED_S) + 1)
    assert tries == [UNUSED_S, UNUSED_S + REFUSED_S, UNUSED_S + 2 * REFUSED_S]


@pytest.mark.parametrize(
    "error",
    [
        ApiUnavailableError("PATCH", None, "", "no answer"),
        ApiUnavailableError("PATCH", 500, "InternalError", "failed calling webhook"),
        ForbiddenError("PATCH", 403, "Forbidden", "denied by a policy"),
    ],
)
def test_a_claim_that_cannot_be_freed_keeps_no_other_one_allocated_and_is_tried_again(error: KubeError) -> None:
    """An admission webhook may refuse one claim for ever."""
    bench = Bench(a=TWO)
    bench.add(allocated("c"), allocated("d"))
    tries: list[str] = []

    def refuse(verb: str, key: str) -> None:
        if key == "default/c":
            tries.append(verb)
            raise error

    bench.api.before = refuse
    bench.pass_time(WAIT_S + 10)
    assert (bench.on_node("c"), bench.on_node("d")) == ("a", None)
    assert 2 <= len(tries) <= 20, "with a growing wait"
    bench.api.before = lambda verb, key: None
    bench.pass_time(60)
    assert bench.on_node("c") is None


def test_a_new_leader_waits_for_who_was_there_before_it_and_for_nobody_else() -> None:
    """Who had the reservation is not known: any pod that names the claim may be on its way with it."""
    bench = left_behind()
    bench.add(pod("q", "c"))
    bench.cluster.begin()
    bench.take_back("c", "unreserved")
    bench.pass_time(WAIT_S + 1)
    bench.add(pod("r", "c"))  # it came later, and would have to reserve first
    bench.pass_time(60)
    assert bench.on_node("c") == "a"
    bench.try_in_vain("q")
    bench.run()
    assert bench.metric("take_backs_total", reason="unreserved", end="cleared") == 1


def test_without_a_word_of_kube_scheduler_a_new_leader_waits_as_long_as_any_bind_takes() -> None:
    bench = left_behind()
    bench.add(pod("q", "c"))
    bench.cluster.begin()
    bench.take_back("c", "unreserved")
    bench.pass_time(2)
    bench.advance(SEEN_S + LONGEST_BIND_S - 4)
    assert bench.on_node("c") == "a"
    bench.pass_time(3)
    assert bench.metric("take_backs_total", reason="unreserved", end="cleared") == 1
