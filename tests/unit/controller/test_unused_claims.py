from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from dracaena.api.objects import ConsumerReference, Pod, ResourceClaim
from dracaena.controller.unused_claims import UNUSED_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError, ForbiddenError, InvalidError, KubeError
from support.allocation import blocks, claim, holding, machine, pod
from support.reconciling import Bench

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
WAIT_S = int(UNUSED_S)


def left_behind(*users: str) -> Bench:
    """A claim that we allocated, whose pod has gone, reserved for `users`."""
    first = Bench(a=TWO)
    first.add(pod("p", "c"), claim("c"))
    first.run()
    bench = Bench(a=TWO)
    bench.add(reserved(first.api.claims["default/c"], *users))
    return bench


def reserved(item: ResourceClaim, *users: str) -> ResourceClaim:
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=references))


def test_a_claim_that_is_allocated_for_nobody_is_freed_once_it_was_unused_for_long_enough() -> None:
    bench = left_behind()
    bench.unused.sweep()
    bench.pass_time(WAIT_S - 1)
    assert bench.on_node("c") == "a"
    bench.pass_time(1)
    assert bench.on_node("c") is None
    assert bench.metric("take_backs_total", reason="unused", end="cleared") == 1
    bench.pass_time(WAIT_S + 1)
    assert [verb for verb, _ in bench.api.writes] == ["deallocate"]


def test_its_devices_go_to_a_pod_that_waits_for_them() -> None:
    bench = left_behind()
    bench.add(pod("q", "d"), claim("d", {"name": "g", "exactly": {"deviceClassName": "gpu.dracaena.dev", "count": 2}}))
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
        ("Running", True, True),
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


def test_a_pod_that_comes_in_time_gets_its_devices() -> None:
    bench = left_behind()
    bench.pass_time(WAIT_S - 1)
    bench.add(pod("q", "c"))
    bench.pass_time(10)
    assert bench.on_node("c") == "a"


def test_a_claim_that_is_reserved_is_left_to_kube_controller_manager() -> None:
    bench = left_behind("gone")
    bench.pass_time(3 * WAIT_S)
    assert bench.api.writes == []


def test_what_others_allocated_and_what_is_being_deleted_is_left_alone() -> None:
    bench = left_behind()
    stored = bench.api.claims["default/c"]
    going = msgspec.structs.replace(stored.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    bench.add(msgspec.structs.replace(stored, metadata=going), holding(claim("d"), "a", "gpu-of-somebody"))
    bench.pass_time(3 * WAIT_S)
    assert bench.api.writes == []


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


def test_a_write_that_validation_refuses_is_tried_again_only_after_the_whole_time() -> None:
    bench = left_behind()
    tries: list[str] = []

    def refuse(verb: str, key: str) -> None:
        tries.append(verb)
        raise InvalidError("PATCH", 422, "Invalid", "spec: field is immutable")

    bench.api.before = refuse
    bench.pass_time(3 * WAIT_S + 2)
    assert tries == ["deallocate"] * 3


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    bench = left_behind()

    def fail(verb: str, key: str) -> None:
        raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.pass_time(WAIT_S)
    bench.api.before = fail
    bench.clock.advance(1)
    with pytest.raises(ApiUnavailableError):
        bench.unused.sweep()
    bench.api.before = lambda verb, key: None
    bench.pass_time(1)
    assert bench.on_node("c") is None


@pytest.mark.parametrize(
    "error",
    [
        ApiUnavailableError("PATCH", 500, "InternalError", "failed calling webhook"),
        ForbiddenError("PATCH", 403, "Forbidden", "denied by a policy"),
    ],
)
def test_a_claim_that_cannot_be_freed_keeps_no_other_one_allocated(error: KubeError) -> None:
    """An admission webhook may refuse one claim for ever."""
    first = Bench(a=TWO)
    for name in ("c", "d"):
        first.add(pod(f"p-{name}", name), claim(name, uid=f"uid-{name}"))
    first.run()
    bench = Bench(a=TWO)
    bench.add(*(reserved(first.api.claims[f"default/{name}"]) for name in ("c", "d")))

    def refuse(verb: str, key: str) -> None:
        if key == "default/c":
            raise error

    bench.api.before = refuse
    for _ in range(WAIT_S + 2):
        bench.advance(1.0)
        with suppress(KubeError):
            bench.unused.sweep()
    assert (bench.on_node("c"), bench.on_node("d")) == ("a", None)
