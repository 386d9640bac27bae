from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.state.collisions import Collision
from support.allocation import blocks, claim, device_name, holding, machine, pod
from support.bare_cluster import bare_cluster, show
from support.reconciling import SEEN_S, Bench

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


def by_scheduler(name: str, *ordinals: int, **result: object) -> ResourceClaim:
    """A claim that kube-scheduler allocated: no decision of ours."""
    held = holding(claim(name), "a", *(device_name(TWO, ordinal) for ordinal in ordinals))
    assert held.status.allocation is not None
    results = [msgspec.structs.replace(one, **result) for one in held.status.allocation.devices.results]
    devices = msgspec.structs.replace(held.status.allocation.devices, results=results)
    allocation = msgspec.structs.replace(held.status.allocation, devices=devices)
    users = [ConsumerReference("pods", f"of-{name}", f"uid-of-{name}")]
    status = msgspec.structs.replace(held.status, allocation=allocation, reserved_for=users)
    return msgspec.structs.replace(held, status=status)


def allocated_by_us() -> Bench:
    bench = Bench(a=TWO)
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    assert bench.held("c") == (0,)
    return bench


def prove(bench: Bench, name: str = "p") -> None:
    """Let the reservation be dropped, and kube-scheduler end a try that has seen it."""
    bench.pass_time(int(SEEN_S) + 2)
    bench.try_in_vain(name)
    bench.run()


def told(bench: Bench) -> list[tuple[str, str]]:
    return [(subject, text) for subject, reason, text in bench.events.seen if reason == "DeviceCollision"]


def test_ours_is_taken_back_while_its_pod_is_unbound_and_it_gets_another_device() -> None:
    bench = allocated_by_us()
    bench.add(by_scheduler("x", 0))
    bench.pass_time(int(SEEN_S) + 2)
    assert (bench.held("c"), bench.users("c")) == ((0,), []), "p may be on its way to its node"
    bench.try_in_vain("p")
    bench.run()
    assert bench.held("c") == (1,)
    assert bench.held("x") == (0,)
    assert bench.metric("collisions_total", kind="own") == 1
    assert bench.metric("take_backs_total", reason="collision", end="cleared") == 1
    (first, first_text), (second, second_text) = told(bench)
    assert (first, second) == ("ResourceClaim default/x", "ResourceClaim default/c")
    assert f"gpu.dracaena.dev/a/{device_name(TWO, 0)} is allocated to claim default/c too" in first_text
    assert "is allocated to claim default/x too" in second_text


def test_a_bound_pod_keeps_its_device_and_the_collision_is_reported_once() -> None:
    bench = allocated_by_us()
    bench.bind("p", "a")
    rival = by_scheduler("x", 0)
    bench.add(rival)
    bench.add(msgspec.structs.replace(rival, status=msgspec.structs.replace(rival.status, devices=[{"driver": "d"}])))
    bench.pass_time(300)
    assert bench.held("c") == (0,)
    assert bench.metric("collisions_total", kind="own") == 1
    assert len(told(bench)) == 2


@pytest.mark.parametrize("first", ["answer", "watch"])
def test_a_claim_that_took_the_device_before_our_write_was_shown_is_found_once_by_what_shows_it(first: str) -> None:
    """What is only decided may not be written at all, and collides with nobody."""
    bench = Bench(a=TWO)
    bench.add(claim("c"))
    kept = bench.hold_the_watch()

    def take_first(verb: str, key: str) -> None:
        if verb == "allocate":
            bench.api.before = lambda verb, key: None
            bench.claim_changed(None, by_scheduler("x", 0))
            assert told(bench) == []
            if first == "watch":
                bench.api.on_change = bench.claim_changed

    bench.api.before = take_first
    bench.add(pod("p", "c"))
    bench.step()
    assert [subject for subject, _ in told(bench)] == ["ResourceClaim default/c", "ResourceClaim default/x"]
    bench.show(kept)
    prove(bench)
    assert bench.held("c") == (1,)
    assert bench.metric("collisions_total", kind="own") == 1


def test_a_claim_that_another_pod_uses_too_stays() -> None:
    bench = allocated_by_us()
    stored = bench.api.claims["default/c"]
    users = [*stored.status.reserved_for, ConsumerReference("pods", "q", "uid-q")]
    bench.add(msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, reserved_for=users)))
    bench.add(by_scheduler("x", 0))
    bench.pass_time(100)
    assert bench.held("c") == (0,)
    assert [verb for verb, _ in bench.api.writes] == ["mark", "allocate"]


@pytest.mark.parametrize("result", [{"admin_access": True}, {"share_id": "00000000-0000-4000-8000-000000000001"}])
def test_admins_and_shares_collide_with_no_claim(result: dict[str, object]) -> None:
    bench = Bench(a=TWO)
    bench.add(by_scheduler("x", 0, **result), by_scheduler("y", 0, **result))
    assert told(bench) == []
    assert bench.metric("collisions_total", kind="own") is None


def test_a_pod_whose_own_claims_change_collides_with_no_claim() -> None:
    bench = allocated_by_us()
    stored = bench.api.claims["default/c"]
    again = msgspec.structs.replace(stored.metadata, uid="made-again")
    bench.add(msgspec.structs.replace(stored, metadata=again))
    bench.pass_time(10)
    assert told(bench) == []


def test_of_two_allocations_of_ours_the_later_one_gives_way() -> None:
    """It must never come to that; if it does, one of them has to go."""
    bench = allocated_by_us()
    first = bench.api.claims["default/c"]
    assert first.status.allocation is not None
    later = msgspec.structs.replace(first.status.allocation, allocation_timestamp="2027-01-01T00:00:00Z")
    metadata = msgspec.structs.replace(first.metadata, name="d", uid="uid-d")
    users = [ConsumerReference("pods", "q", "uid-q")]
    status = msgspec.structs.replace(first.status, allocation=later, reserved_for=users)
    bench.add(pod("q", "d"), msgspec.structs.replace(first, metadata=metadata, status=status))
    prove(bench, "q")
    assert (bench.held("c"), bench.held("d")) == ((0,), (1,))


def test_a_device_of_a_driver_that_is_allowed_collides_too_and_of_others_nothing_is_known() -> None:
    seen: list[tuple[str, list[tuple[str, str, str]]]] = []

    def note(item: ResourceClaim, found: Sequence[Collision]) -> None:
        seen.append((item.metadata.name, [(one.kind, one.name, one.rival.metadata.name) for one in found]))

    cluster = bare_cluster(collided=note, allowed_drivers=["nic.example.com"])
    for name in ("x", "y"):
        for driver in ("nic.example.com", "other.example.com"):
            held = holding(claim(f"{name}-{driver[:3]}"), "fabric", "port-1", driver=driver)
            cluster.intake.claim_changed(None, held)
    assert seen == [("y-nic", [("other", "nic.example.com/fabric/port-1", "x-nic")])]
    assert [item.metadata.name for item, _ in cluster.all_collisions()] == ["y-nic"]
    show(cluster, claim("x-nic"))
    assert cluster.all_collisions() == ()


def test_a_claim_that_was_allocated_again_between_two_looks_of_the_watch_is_compared_again() -> None:
    """After a broken watch several changes come as one."""
    bench = allocated_by_us()
    first = by_scheduler("x", 1)
    bench.add(first)
    assert told(bench) == []
    again = by_scheduler("x", 0)
    assert again.status.allocation is not None
    later = msgspec.structs.replace(again.status.allocation, allocation_timestamp="2027-01-01T00:00:00Z")
    bench.add(msgspec.structs.replace(again, status=msgspec.structs.replace(again.status, allocation=later)))
    assert len(told(bench)) == 2
