"""Whatever pods and claims come and go, nothing is left of them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from dracaena.api.resource_objects import ResourceClaimStatus
from dracaena.controller.wiring import DOUBT_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError, InvalidError
from support.allocation import DRIVER, blocks, claim, machine, pod, request
from support.reconciling import LONGEST_BIND_S, LONGEST_EXCLUSION_S, PASSED_OVER_WAIT_S, Bench
from support.watched_cluster import WatchedCluster

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))

BOUNDED = {
    "_explanations": "ExplanationCache: MAX_EXPLANATIONS",
    "_specs": "RequestReader: MOST_SPECS and MOST_CHARACTERS",
    "_requests": "RequestReader: MOST_REQUESTS",
    "_texts": "MissingClasses: MOST_NAMES",
    "_quick": "SchedulerProgress: one for each scheduler and priority",
    "_at_work_s": "SchedulerProgress: one for each scheduler",
    "_counts": "WaitingPods: one for each reason",
    "ever": "NodeBuckets: SPARE_EMPTY, and three for each bucket with nodes",
    "_by_turn": "Lanes: SLACK, and two for each key that is there",
    "_accounts": "TimeBudgets: one for each namespace",
}
"""Tables that do not grow with the number of pods that ever were; test_… of their own hold the limits."""


def is_walked_through(module: str) -> bool:
    """Whether objects of a module hold tables that are looked at: all of the controller's but the allocator."""
    ours = module.startswith("dracaena.controller") or module == WatchedCluster.__module__
    return ours and "allocator" not in module


def tables(owner: Any, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the size of each table in what the controller's own objects hold."""
    if id(owner) in seen:
        return
    seen.add(id(owner))
    names = getattr(owner, "__dict__", None) or {
        name: None for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())
    }
    for name in sorted(names):
        value = getattr(owner, name, None)
        if name in BOUNDED:
            continue
        if isinstance(value, dict | set | list | deque):
            yield f"{path}.{name}", len(value)
        elif is_walked_through(type(value).__module__):
            yield from tables(value, f"{path}.{name}", seen)


def sizes(bench: Bench) -> dict[str, int]:
    seen: set[int] = set()
    found = dict(tables(bench.reconciler, "reconciler", seen))
    for name in ("_inventory", "_lines", "_records", "accounting", "_starvation"):
        assert any(f".{name}." in path for path in found), f"{name} is walked through"
    return found


class Traffic:
    """Pods of all kinds that come, and end in all ways."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(a=FOUR, b=FOUR)
        self.bench.api.before = self.disturb
        self.alive: list[str] = []
        self.calm = False
        self.number = 0

    def disturb(self, verb: str, key: str) -> None:
        if self.calm or self.rng.random() > 0.25:
            return
        raise self.rng.choice(
            [
                ConflictError("PATCH", 409, "Conflict", "changed"),
                ApiUnavailableError("PATCH", None, "", "no answer"),
                InvalidError("PATCH", 422, "Invalid", "no"),
            ]
        )

    def come(self) -> None:
        self.number += 1
        name = f"p{self.number % 40}"  # names come again
        if name in self.alive:
            return
        self.alive.append(name)
        asked = [claim(f"{name}-{part}", self.request(), uid=f"{self.number}-{part}") for part in "xy"]
        made = pod(name, *(item.metadata.name for item in asked))
        meta = msgspec.structs.replace(made.metadata, uid=f"uid-{self.number}")
        self.bench.add(*asked, msgspec.structs.replace(made, metadata=meta))

    def request(self) -> dict[str, Any]:
        """One in ten asks by a class that is not there, and is refused."""
        return request(
            count=self.rng.choice((1, 1, 2, 3, 5)), device_class="nobodys" if self.rng.random() < 0.1 else DRIVER
        )

    def go(self, name: str) -> None:
        """The pod goes, kube-controller-manager frees its claims, and somebody deletes them; or only the reservations
        go, and the claims stay."""
        self.alive.remove(name)
        self.bench.remove_pod(f"default/{name}")
        for part in "xy":
            key = f"default/{name}-{part}"
            held = self.bench.api.claims[key]
            if held.status.allocation is not None and self.rng.random() < 0.3:
                status = msgspec.structs.replace(held.status, reserved_for=[])
                self.bench.api.put(msgspec.structs.replace(held, status=status))
                continue
            if held.status.allocation is not None:
                self.bench.api.put(msgspec.structs.replace(held, status=ResourceClaimStatus()))
            self.bench.api.remove(key)

    def try_all(self) -> None:
        """kube-scheduler tries each pod now and then, and says what it said before: that wipes a probe."""
        for name in self.alive:
            known = self.bench.cluster._state.records.unbound(f"default/{name}")
            if known is not None and known.said is not None and self.rng.random() < 0.1:
                self.bench.say(name, known.said.message)

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            self.come()
        if self.alive and rng.random() < 0.4:
            name = rng.choice(self.alive)
            happens = rng.randrange(4)
            node_name = self.bench.on_node(f"{name}-x")
            if happens == 0 and node_name and self.bench.on_node(f"{name}-y"):
                self.bench.bind(name, node_name)
            elif happens == 1:
                self.bench.say(name, f"0/2 nodes are available: {rng.randrange(9)}.")
            elif happens == 2 and node_name:
                held = self.bench.api.claims[f"default/{name}-x"]
                self.bench.api.put(msgspec.structs.replace(held, status=ResourceClaimStatus()))
            else:
                self.go(name)
        self.try_all()
        self.bench.cluster.keep_for_starving("", now_s=self.bench.clock.monotonic())
        self.bench.pass_time(rng.choice((0, 0, 1, 5)))
        self.bench.run()


def test_after_many_pods_all_tables_are_as_at_the_start() -> None:
    traffic = Traffic(1)
    before = sizes(traffic.bench)
    for _ in range(800):
        traffic.step()
    bench = traffic.bench
    for reason in ("half-written", "refused", "unused"):
        assert bench.metric("take_backs_total", reason=reason, end="cleared"), reason
    for name in list(traffic.alive):
        traffic.go(name)
    traffic.calm = True
    for _ in range(int(max(LONGEST_EXCLUSION_S, PASSED_OVER_WAIT_S, DOUBT_S) / 5) + 10):
        bench.advance(5)
    assert {item.status.allocation for item in bench.api.claims.values()} == {None}
    for key in list(bench.api.claims):
        bench.api.remove(key)
    bench.advance(LONGEST_BIND_S)  # no look at a claim is planned later than that
    bench.cluster.check()
    after = sizes(bench)
    assert {path: (size, after.get(path)) for path, size in before.items() if after.get(path) != size} == {}
