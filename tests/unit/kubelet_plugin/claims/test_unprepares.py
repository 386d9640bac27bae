"""Prepare waits for a device whose last claim is being torn down, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.calls import ANSWER_RESERVE_S, MAX_WAIT_S, ClaimCalls
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.claims.unprepares import MAX_WAITING, Unprepares
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.clock import FakeClock
from support.kube import wait_for
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, make_share, reference_to

OLD = make_claim("old", (0,), reserved_for={"ended": "ended-uid"})
NEW = make_claim("new", (0,), reserved_for={"next": "next-uid"})
OTHER = make_claim("other", (1,))
FOREVER_S = 1e9


class SlowClaims(FakeClaims):
    """Reading the claim `slow` takes until the test lets it go."""

    def __init__(self, *claims: ResourceClaim) -> None:
        super().__init__(*claims)
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        if reference.name == "slow":
            self.reached.set()
            assert self.go_on.wait(20)
        return super().read_claim(reference)


@contextmanager
def waiters(clock: FakeClock, count: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait; at the end all time is over, so that a failing test ends too."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        finally:
            clock.advance(10 * FOREVER_S)


def held_node(folder: Path, *pods: Pod) -> PluginNode:
    """A node whose GPU 0 is held by the claim `old`."""
    node = PluginNode(folder, FakeClaims(OLD, NEW, OTHER), FakePods(*pods))
    node.state.prepare(reference_to(OLD))
    return node


def test_prepare_goes_on_once_the_claim_before_is_unprepared(tmp_path: Path) -> None:
    node = held_node(tmp_path)
    with waiters(node.clock) as pool:
        waiting: Future[PreparedClaim] = pool.submit(node.state.prepare, reference_to(NEW), within_s=FOREVER_S)
        wait_for(lambda: node.claims.reads == 2, "the claim is read before the device is found held")
        assert not waiting.done()
        node.state.prepare(reference_to(OTHER))  # the node's lock is free meanwhile
        node.state.unprepare(reference_to(OLD))
        assert [device.minor for device in waiting.result(20).devices] == [0]


def test_what_the_other_instance_unprepares_is_seen_too(tmp_path: Path) -> None:
    node = held_node(tmp_path)
    other = PluginNode(tmp_path, node.claims, node.pods)
    with waiters(node.clock) as pool:
        waiting = pool.submit(node.state.prepare, reference_to(NEW), within_s=FOREVER_S)
        wait_for(lambda: node.claims.reads == 2, "the claim is read before the device is found held")
        other.state.unprepare(reference_to(OLD))

        def done() -> bool:
            node.clock.advance(1.0)
            return waiting.done()

        wait_for(done, "the device is seen to be free")
        assert waiting.result().claim.name == "new"


def test_a_device_in_use_is_refused_at_once(tmp_path: Path) -> None:
    node = held_node(tmp_path, make_pod("ended", claims={"claim": "old"}))
    with waiters(node.clock) as pool:
        refused = pool.submit(node.state.prepare, reference_to(NEW), within_s=FOREVER_S)
        with pytest.raises(DeviceHeldError, match="still held by claim default/old"):
            refused.result(20)


@contextmanager
def crowded(folder: Path, wanted: str) -> Iterator[tuple[PluginNode, Future[PreparedClaim]]]:
    """A claim waits for a share of an 80Gi GPU: `alive` has 30Gi of it and a pod in sight, `old` 40Gi and none."""
    shares = [
        make_share("alive", memory="30Gi", reserved_for={"alive": "alive-uid"}),
        make_share("old", memory="40Gi"),
        make_share("new", memory=wanted),
    ]
    alive, old, new = map(reference_to, shares)
    node = PluginNode(folder, FakeClaims(*shares), FakePods(make_pod("alive", claims={"claim": "alive"})))
    node.state.prepare(alive)
    node.state.prepare(old)
    with waiters(node.clock) as pool:
        yield node, pool.submit(node.state.prepare, new, within_s=FOREVER_S)


def test_the_share_of_an_ended_claim_is_waited_for_beside_one_that_lives(tmp_path: Path) -> None:
    with crowded(tmp_path, "50Gi") as (node, waiting):
        wait_for(lambda: node.claims.reads == 3, "the claim is read before there is found to be no room")
        node.state.unprepare(reference_to(make_share("old")))
        assert waiting.result(20).claim.name == "new"


def test_a_share_that_the_living_leave_no_room_for_is_refused_at_once(tmp_path: Path) -> None:
    with crowded(tmp_path, "51Gi") as (_, waiting), pytest.raises(DeviceHeldError, match="51Gi of the memory"):
        waiting.result(20)


def test_waiting_ends_before_the_callers_time_does(tmp_path: Path) -> None:
    node = held_node(tmp_path)
    calls = ClaimCalls(node.context, node.state)
    for left_s, waits_s in (
        (45.0, MAX_WAIT_S),
        (20.0, 20.0 - ANSWER_RESERVE_S),
        (5.0, 0.0),
        (float("inf"), MAX_WAIT_S),
    ):
        began_s = node.clock.monotonic()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(calls.prepare_claims, [reference_to(NEW)], within_s=left_s)

            def ended(waiting: Future[Any] = waiting) -> bool:
                if not waiting.done():
                    node.clock.advance(2.0)
                return waiting.done()

            wait_for(ended, "prepare gives up")
        assert isinstance(waiting.result()[reference_to(NEW).uid], ClaimFailure)
        assert node.clock.monotonic() - began_s >= waits_s


def test_a_call_that_may_not_wait_fails_at_once() -> None:
    clock = FakeClock()
    unprepares = Unprepares(clock)
    assert not unprepares.wait(0, clock.monotonic())
    unprepares.note()
    assert unprepares.count == 1
    assert unprepares.wait(0, clock.monotonic() + 1.0)  # it was noted since: no waiting
    assert clock.monotonic() == 0.0


def test_waiting_calls_leave_workers_for_the_tear_down() -> None:
    clock = FakeClock()
    unprepares = Unprepares(clock)
    with waiters(clock, MAX_WAITING) as pool:
        waiting = [pool.submit(unprepares.wait, 0, FOREVER_S) for _ in range(MAX_WAITING)]
        wait_for(lambda: unprepares._waiting == MAX_WAITING, "all wait")
        one_more = ThreadPoolExecutor(1).submit(unprepares.wait, 0, FOREVER_S)
        assert one_more.result(20) is False
        unprepares.note()
        assert [future.result(20) for future in waiting] == [True] * MAX_WAITING


def test_a_claim_whose_read_takes_long_holds_no_other_claim_up(tmp_path: Path) -> None:
    slow = make_claim("slow", (2,))
    claims = SlowClaims(slow, OTHER)
    node = PluginNode(tmp_path, claims)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.state.prepare, reference_to(slow))
        assert claims.reached.wait(20)
        assert node.state.prepare(reference_to(OTHER)).claim.name == "other"
        node.state.unprepare(reference_to(OTHER))
        assert not waiting.done()
        claims.go_on.set()
        assert waiting.result(20).claim.name == "slow"
