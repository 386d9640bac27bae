"""Two namespaces that want the same GPUs, and a slow count of what they hold.

The controller's own cluster; the world is the watch, the worker, the API server and, at a change of the leader, the
next controller. The oracle counts the results of claims, from the beginning each time.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from dracaena.api.objects import Namespace, ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.walk.pod_demand import turn
from support.allocation import blocks, claim, device_class, device_name, machine, node, pod, pool_slice, request
from support.bare_cluster import abandon, bare_cluster, decide, write, written

NAMESPACES = ("research", "teaching")
PRODUCTS = ("NVIDIA A100", "NVIDIA H100")
GPUS_EACH = 3
EVENTS = (*("come",) * 3, *("decide",) * 6, "land", "land", "go", "go", "lose", "quota", "leader")
MACHINES = {
    f"n{number}": machine(
        f"machine{number}",
        blocks(GPUS_EACH, inside="NV12", outside="NV12"),
        product_name=PRODUCTS[number % 2],
        memory_bytes=80 << 30,
    )
    for number in range(4)
}
PRODUCT_OF = {
    device_name(made, place): made.gpus[place].product_name for made in MACHINES.values() for place in range(GPUS_EACH)
}


def namespace(name: str, quota: str | None) -> Namespace:
    annotations = {} if quota is None else {"gpu.dracaena.dev/quota": quota}
    return Namespace(ObjectMeta(name, annotations=annotations))


def moved(item: Any, name: str) -> Any:
    """A pod or claim in another namespace."""
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, namespace=name))


@dataclass
class QuotaWorld:
    """Deterministic for a seed."""

    rng: random.Random
    now: int = 0
    stored: dict[str, ResourceClaim] = field(default_factory=dict)
    """Claims as the API has them, by key."""
    pods: dict[str, Pod] = field(default_factory=dict)
    in_flight: dict[str, Allocation] = field(default_factory=dict)
    """Decisions that are being written, by pod."""
    quotas: dict[str, str | None] = field(default_factory=dict)
    """As the Namespace has it."""
    limits: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """In force; a namespace that is not here has none, and None: nothing more is given."""
    queue: set[str] = field(default_factory=set)
    served: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        for name in NAMESPACES:
            self.quotas[name] = random_quota(self.rng)
        self.begin_leader()

    def begin_leader(self) -> None:
        """A new controller reads what the API has, in any order."""
        self.queue.clear()
        self.cluster = bare_cluster(self.queue.add)
        intake = self.cluster.intake
        self.limits.clear()
        reads: list[Callable[[], None]] = []
        for name, made in MACHINES.items():
            reads.append(partial(intake.slice_changed, None, pool_slice(name, made)))
            reads.append(partial(intake.node_changed, None, node(name)))
        reads += [partial(intake.claim_changed, None, one) for one in self.stored.values()]
        reads += [partial(intake.pod_changed, None, one) for one in self.pods.values()]
        reads += [partial(self._show_quota, name) for name in NAMESPACES]
        reads.append(partial(intake.class_changed, None, device_class()))
        self.rng.shuffle(reads)
        for read in reads:
            read()
        self.queue.update(self.pods)

    # What happens

    def come(self, name: str, count: int) -> None:
        self.now += 1
        asked = moved(claim(f"p{self.now}", request(count=count)), name)
        made = moved(pod(f"p{self.now}", f"p{self.now}"), name)
        stamp = f"2026-01-01T{self.now // 3600:02}:{self.now // 60 % 60:02}:{self.now % 60:02}Z"
        made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=stamp))
        self.stored[asked.key], self.pods[made.key] = asked, made
        self.cluster.intake.claim_changed(None, asked)
        self.cluster.intake.pod_changed(None, made)

    def go(self, key: str) -> None:
        """A pod that is not being written for ends, with its claim."""
        self.cluster.intake.claim_changed(self.stored.pop(key), None)
        self.cluster.intake.pod_changed(self.pods.pop(key), None)

    def set_quota(self, name: str, text: str | None) -> None:
        self.quotas[name] = text
        self._show_quota(name)

    def _show_quota(self, name: str) -> None:
        text = self.quotas[name]
        self.cluster.intake.namespace_changed(None, namespace(name, text))
        if text is None:
            self.limits.pop(name, None)
        elif text != "broken":
            self.limits[name] = json.loads(text)
        else:
            self.limits.setdefault(name, None)

    def decide_first(self) -> None:
        """Decide for the first pod of the queue; what it gets is not written yet."""
        key = min(self.queue, key=lambda key: turn(self.pods[key]) if key in self.pods else ())
        self.queue.discard(key)
        if key not in self.pods or key in self.in_flight or self.stored[key].status.allocation is not None:
            return
        known = self.cluster.claim(key)
        assert known is not None
        decision = decide(self.cluster, self.pods[key], known)
        if isinstance(decision, Allocation):
            self.in_flight[key] = decision
            self.served += 1
            self.check(key.partition("/")[0], [result.device for entry in decision.claims for result in entry.results])
        else:
            self.refused += 1

    def land(self, key: str) -> None:
        (self.stored[key],) = write(self.cluster, self.in_flight.pop(key), self.pods[key])

    def lose(self, key: str) -> None:
        """The server refuses the write, and the worker tries again."""
        del self.in_flight[key]
        abandon(self.cluster, self.stored[key])
        self.queue.add(key)

    def change_leader(self) -> None:
        """The leader ends. What it had sent lands or does not, before the next one reads."""
        for key, decision in sorted(self.in_flight.items()):
            if self.rng.random() < 0.5:
                (self.stored[key],) = written(decision, self.pods[key])
        self.in_flight.clear()
        self.begin_leader()

    def settle(self) -> None:
        """Decide and write until nothing is left to do."""
        for _ in range(500):
            if self.in_flight:
                self.land(min(self.in_flight))
            elif self.queue:
                self.decide_first()
            else:
                return
        raise AssertionError("not at rest after 500 steps")

    # The slow count

    def held(self, name: str) -> Counter[str]:
        """What a namespace holds, by product and in all (""), with what is being written."""
        found: Counter[str] = Counter()
        for key in self.stored:
            if key.startswith(f"{name}/"):
                for device in self._devices(key):
                    found.update(("", PRODUCT_OF[device] or ""))
        return found

    def _devices(self, key: str) -> Iterator[str]:
        allocation = self.stored[key].status.allocation
        if key in self.in_flight:
            yield from (result.device for entry in self.in_flight[key].claims for result in entry.results)
        elif allocation is not None:
            yield from (result.device for result in allocation.devices.results)

    def check(self, name: str, devices: list[str]) -> None:
        """No limit on what was just given is exceeded."""
        if name not in self.limits:
            return
        limits, held = self.limits[name], self.held(name)
        assert limits is not None, f"{name} got {devices} although its quota cannot be read"
        assert held[""] <= limits.get("gpus", 99), f"{name} holds {held}, may have {limits}"
        for product in {PRODUCT_OF[device] for device in devices}:
            most = limits.get("gpusByProduct", {}).get(product, 99)
            assert held[product or ""] <= most, f"{name} holds {held}, may have {limits}"

    def could_be_served(self) -> list[str]:
        """Pods that wait although some node has room for them and their quota has, too."""
        busy = Counter(device for key in self.stored for device in self._devices(key))
        assert not busy or max(busy.values()) == 1
        return [key for key in self.pods if not list(self._devices(key)) and self._fits(key, busy)]

    def _fits(self, key: str, busy: Counter[str]) -> bool:
        name = key.partition("/")[0]
        count = self.stored[key].spec["devices"]["requests"][0]["exactly"]["count"]
        limits, held = self.limits.get(name, {}), self.held(name)
        if limits is None or held[""] + count > limits.get("gpus", 99):
            return False
        for made in MACHINES.values():
            product = made.gpus[0].product_name or ""
            free = sum(not busy[device_name(made, place)] for place in range(GPUS_EACH))
            if free >= count and held[product] + count <= limits.get("gpusByProduct", {}).get(product, 99):
                return True
        return False

    def step(self) -> None:
        """One random thing happens."""
        idle = [key for key in self.pods if key not in self.in_flight]
        match self.rng.choice(EVENTS):
            case "come" if len(self.pods) < 12:
                self.come(self.rng.choice(NAMESPACES), self.rng.choice((1, 1, 2, GPUS_EACH)))
            case "decide" if self.queue:
                self.decide_first()
            case "land" if self.in_flight:
                self.land(self.rng.choice(sorted(self.in_flight)))
            case "lose" if self.in_flight and self.rng.random() < 0.3:
                self.lose(self.rng.choice(sorted(self.in_flight)))
            case "go" if idle:
                self.go(self.rng.choice(sorted(idle)))
            case "quota":
                self.set_quota(self.rng.choice(NAMESPACES), random_quota(self.rng))
            case "leader" if self.rng.random() < 0.1:
                self.change_leader()


def random_quota(rng: random.Random) -> str | None:
    if rng.random() < 0.2:
        return rng.choice((None, "broken"))
    limits: dict[str, Any] = {}
    if rng.random() < 0.6:
        limits["gpus"] = rng.randint(0, 6)
    if rng.random() < 0.6:
        limits["gpusByProduct"] = {product: rng.randint(0, 4) for product in PRODUCTS if rng.random() < 0.6}
    return json.dumps(limits)
