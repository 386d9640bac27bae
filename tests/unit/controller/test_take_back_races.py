"""A take-back beside a kube-scheduler that binds the same pod, in every order that chance finds."""

from __future__ import annotations

import random

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.objects import ConsumerReference, ResourceClaim
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.nomination import NEVER, Nomination
from dracaena.controller.take_back import TakeBack
from dracaena.kube.errors import ConflictError
from support.allocation import DRIVER, claim, holding, pod
from support.claim_api import FakeClaims
from support.clock import FakeClock

POD = pod("p", "c", "d")
USER = ConsumerReference("pods", "p", "uid-p")
STEP_S = 0.1
LATE_S = 0.5
"""How far kube-scheduler's view of claims may be behind."""
BIND_S = 1.2
"""The longest time from its look at the claims to the bind."""


def reserved(item: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=[USER]))


class Scheduler:
    """Tries the pod now and then: looks at claims as they were a moment ago, reserves what is not reserved, binds."""

    def __init__(self, api: FakeClaims, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self._past: list[dict[str, ResourceClaim]] = []
        self._to_reserve: list[ResourceClaim] = []
        self._bind_in: int | None = None
        self._eager = rng.choice((0.005, 0.02, 0.1))

    def step(self) -> None:
        self._past = [*self._past[-int(LATE_S / STEP_S) :], dict(self._api.claims)]
        if self._api.pods[POD.key].spec.node_name:
            return
        if self._bind_in is None:
            self._try()
        elif self._to_reserve and self._rng.random() < 0.5:
            self._reserve(self._to_reserve.pop())
        elif self._bind_in <= 0 and not self._to_reserve:
            self._bind()
        else:
            self._bind_in -= 1

    def _try(self) -> None:
        view = self._rng.choice(self._past)
        if self._rng.random() < self._eager and all(item.status.allocation is not None for item in view.values()):
            self._to_reserve = [item for item in view.values() if not item.status.reserved_for]
            self._bind_in = self._rng.randrange(int(BIND_S / STEP_S))

    def _reserve(self, seen: ResourceClaim) -> None:
        try:
            self._api.reserve(seen, [USER])
        except ConflictError:
            self._bind_in, self._to_reserve = None, []  # its cycle fails, and it tries again

    def _bind(self) -> None:
        stored = self._api.pods[POD.key]
        self._api.pods[POD.key] = msgspec.structs.replace(
            stored, spec=msgspec.structs.replace(stored.spec, node_name="node-a")
        )


def race(seed: int, *, unbound_wait_s: float) -> str:
    """Let both go at it, and say how it ended."""
    rng = random.Random(seed)
    claims = [reserved(holding(claim(name), "node-a", f"gpu-{name}")) for name in ("c", "d")]
    api = FakeClaims(POD, *claims)
    clock = FakeClock()
    metrics = ControllerMetrics(CollectorRegistry())
    nomination = Nomination(api, lambda: 1, metrics, above_nodes=NEVER)
    scheduler = Scheduler(api, rng)

    def new_leader() -> TakeBack:
        leader = TakeBack(
            DRIVER,
            api,
            api,
            nomination,
            lambda uid: None,
            lambda claim: None,
            clock,
            metrics,
            unbound_wait_s=unbound_wait_s,
        )
        leader.begin(POD, [api.claims[f"default/{name}"] for name in ("c", "d")], "refused")
        return leader

    leader, look_in_s, begin_s = None, 0.0, rng.uniform(0, 3)
    while clock.monotonic() < 60:
        clock.advance(STEP_S)
        scheduler.step()
        if clock.monotonic() < begin_s:
            continue
        if leader is None or rng.random() < 0.01:  # the first one, and one after a kill
            leader, look_in_s = new_leader(), 0.0
        look_in_s -= STEP_S
        if look_in_s <= 0:
            wait_s = leader.advance(POD.key)
            if wait_s is None:
                break
            look_in_s = wait_s
    else:
        raise AssertionError("the take-back comes to no end")
    for _ in range(int((LATE_S + BIND_S) / STEP_S) + 2):
        scheduler.step()
        clock.advance(STEP_S)
    bound = bool(api.pods[POD.key].spec.node_name)
    held = [item.status.allocation is not None for item in api.claims.values()]
    if not bound:
        return "taken back" if not any(held) else "left allocated"
    if not all(held):
        return "bound without devices"
    return "bound" if all(item.status.reserved_for == [USER] for item in api.claims.values()) else "unreserved"


def outcomes(unbound_wait_s: float) -> dict[str, int]:
    ends = [race(seed, unbound_wait_s=unbound_wait_s) for seed in range(400)]
    return {end: ends.count(end) for end in sorted(set(ends))}


def test_no_pod_is_ever_bound_without_its_devices() -> None:
    found = outcomes(2.0)
    assert set(found) == {"bound", "taken back"}
    assert min(found.values()) > 50, "both ends are common here"


def test_without_the_wait_some_are() -> None:
    assert outcomes(0.0)["bound without devices"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_race_ends_the_same_each_time(seed: int) -> None:
    assert race(seed, unbound_wait_s=2.0) == race(seed, unbound_wait_s=2.0)
