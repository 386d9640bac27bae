"""A cluster in which pods may starve: one second a step, decisions in the order of turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.process.clock import rfc3339
from support.allocation import (
    blocks,
    claim,
    device_class,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.bare_cluster import bare_cluster, decide, write

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
START = datetime(2026, 1, 1, tzinfo=UTC)


def created(made: Pod, second: int) -> Pod:
    meta = msgspec.structs.replace(made.metadata, creation_timestamp=rfc3339(START + timedelta(seconds=second)))
    return msgspec.structs.replace(made, metadata=meta)


@dataclass
class World:
    """A cluster with one second a step; pods end after their lives. Decisions are made in the order of turns."""

    wait_s: int
    node_count: int = 3
    now_s: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    served_s: dict[str, int] = field(default_factory=dict)
    queue: set[str] = field(default_factory=set)
    decisions: int = 0

    def __post_init__(self) -> None:
        self.cluster = bare_cluster(self.queue.add)
        for number in range(self.node_count):
            name = f"n{number}"
            self.cluster.intake.node_changed(None, node(name))
            self.cluster.intake.slice_changed(None, pool_slice(name, FOUR))
        self.cluster.intake.class_changed(None, device_class())

    def come(self, name: str, count: int, life_s: int, namespace: str = "default", **spec: Any) -> None:
        waiting, asked = created(pod(name, name, **spec), self.now_s), claim(name, request(count=count))
        replace = msgspec.structs.replace
        waiting = replace(waiting, metadata=replace(waiting.metadata, namespace=namespace))
        asked = replace(asked, metadata=replace(asked.metadata, namespace=namespace))
        self.pods[waiting.key], self.claims[waiting.key], self.lives[waiting.key] = waiting, asked, life_s
        self.cluster.intake.claim_changed(None, asked)
        self.cluster.intake.pod_changed(None, waiting)

    def work(self) -> None:
        """Decide until nothing is left to decide."""
        while self.queue:
            key = min(self.queue, key=lambda key: turn(self.pods[key]) if key in self.pods else ())
            self.queue.discard(key)
            if key not in self.pods or key in self.served_s:
                continue
            self.decisions += 1
            asked = self.claims[key]
            decision = decide(self.cluster, self.pods[key], asked, now_s=float(self.now_s))
            if isinstance(decision, Allocation):
                (self.claims[key],) = write(self.cluster, decision, self.pods[key])
                self.served_s[key] = self.now_s
                self.ends[key] = self.now_s + self.lives[key]

    def go(self, key: str) -> None:
        self.cluster.intake.claim_changed(self.claims.pop(key), None)
        self.cluster.intake.pod_changed(self.pods.pop(key), None)
        self.ends.pop(key, None)

    def step(self) -> None:
        """One second: pods end, the overdue are looked at, decisions are made."""
        self.now_s += 1
        for key in sorted(key for key, end_s in self.ends.items() if end_s <= self.now_s):
            self.go(key)
        before = rfc3339(START + timedelta(seconds=self.now_s - self.wait_s)) if self.wait_s else ""
        self.cluster.keep_for_starving(before, now_s=float(self.now_s))
        self.work()

    def kept(self) -> tuple[str, str] | None:
        mark = self.cluster.earmark
        return None if mark is None else (mark.pod_key, mark.node)
