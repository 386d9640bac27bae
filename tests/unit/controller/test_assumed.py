from __future__ import annotations

from dracaena.api.objects import ResourceClaim
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.pool import DeviceId
from dracaena.controller.assumed import AssumedAllocation, AssumedAllocations
from support.allocation import DRIVER, allocated, claim

DEVICE = DeviceId("node-a", "gpu-1")


def entry(uid: str = "uid-c", since_s: float = 0.0) -> AssumedAllocation:
    return AssumedAllocation(uid, "default/c", "default/pod", frozenset({DEVICE}), since_s)


def stored(device: str = "gpu-1", timestamp: str = "2026-01-01T00:00:00Z", **meta: str) -> ResourceClaim:
    result = {"request": "gpus", "driver": DRIVER, "pool": "node-a", "device": device}
    return allocated(claim("c"), {"devices": {"results": [result]}, "allocationTimestamp": timestamp}, **meta)


def assumed(*entries: AssumedAllocation) -> AssumedAllocations:
    known = AssumedAllocations(Inventory(DRIVER))
    known.add(entries or [entry()])
    return known


def held(known: AssumedAllocations) -> frozenset[DeviceId]:
    """What the inventory keeps from others."""
    known._inventory.check()
    taken = known._inventory.holdings._holders
    return frozenset(DeviceId(pool, name) for pool, names in taken.items() for name in names)


def test_devices_are_kept_until_the_watch_shows_the_allocation_that_was_stored() -> None:
    known = assumed()
    known.observe(None, claim("c"))
    assert held(known) == {DEVICE}
    known.stored(stored())
    known.observe(claim("c"), stored())
    assert held(known) == frozenset()


def test_a_watch_that_is_ahead_of_the_answer_is_asked_again_after_it() -> None:
    known = assumed()
    known.observe(claim("c"), stored())
    assert held(known) == {DEVICE}
    known.stored(stored())
    known.observe(None, stored())
    assert held(known) == frozenset()


def test_what_the_watch_showed_before_the_answer_and_shows_no_more_is_forgotten_with_the_answer() -> None:
    """The pod was deleted between the writes of its claims, and kube-controller-manager was faster than our answer."""
    known = assumed()
    known.observe(claim("c"), stored())
    known.observe(stored(), claim("c"))
    assert held(known) == {DEVICE}
    known.stored(stored())
    assert held(known) == frozenset()


def test_an_older_allocation_shown_before_the_answer_is_not_taken_for_it() -> None:
    known = assumed()
    known.observe(claim("c"), stored(timestamp="2025-12-31T23:59:00Z"))
    known.stored(stored())
    assert held(known) == {DEVICE}


def test_an_older_allocation_shown_late_does_not_free_the_new_one() -> None:
    known = assumed()
    known.stored(stored())
    known.observe(None, stored(timestamp="2025-12-31T23:59:00Z"))
    known.observe(None, stored(device="gpu-2"))
    assert held(known) == {DEVICE}


def test_a_claim_that_is_gone_or_made_again_holds_nothing() -> None:
    known = assumed()
    known.observe(claim("c"), None)
    assert held(known) == frozenset()
    known.add([entry()])
    known.observe(claim("c"), claim("c", uid="another"))
    assert held(known) == frozenset()


def test_entries_are_found_by_claim_pod_and_age() -> None:
    known = assumed(entry(since_s=5.0))
    assert known.of_claim("uid-c") == entry(since_s=5.0)
    assert known.of_pod("default/pod") == (entry(since_s=5.0),)
    assert known.of_pod("default/other") == ()
    assert known.older_than(5.0) == frozenset()
    assert known.older_than(5.1) == {"default/pod"}
    known.drop("uid-c")
    known.stored(stored())
    assert known.of_claim("uid-c") is None
