"""Two namespaces that want the same GPUs, shares and MIG devices, and a slow count of what they hold.

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
from dracaena.api.resource_objects import DeviceResult, ResourceClaim
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.walk.pod_demand import turn
from support.allocation import claim, node, pod
from support.bare_cluster import abandon, bare_cluster, decide, write, written
from support.mig_nodes import mig_classes
from support.quota_nodes import GPUS_EACH, MACHINES, PRODUCTS, Held, Wish, count, given_twice, limits_of, slices

NAMESPACES = ("research", "teaching")
NO_LIMIT = 1 << 60
EVENTS = (*("come",) * 3, *("decide",) * 6, "land", "land", "go", "go", "lose", "quota", "leader")
PROFILES = ("1g.10gb", "3g.40gb")
WISHES = (
    *(Wish(1), Wish(1), Wish(2), Wish(GPUS_EACH)),
    *(Wish(gib=20, cores=30), Wish(gib=40, cores=50), Wish(gib=10)),
    *(Wish(profile=PROFILES[0]), Wish(2, profile=PROFILES[0]), Wish(profile=PROFILES[1])),
)


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
    wishes: dict[str, Wish] = field(default_factory=dict)
    """What each pod asks for."""
    in_flight: dict[str, Allocation] = field(default_factory=dict)
    """Decisions that are being written, by pod."""
    quotas: dict[str, str | None] = field(default_factory=dict)
    """As the Namespace has it."""
    limits: dict[str, Held | None] = field(default_factory=dict)
    """In force; a namespace that is not here has none, and None: nothing more is given."""
    queue: set[str] = field(default_factory=set)
    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """How often something was the reason."""

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
        for name, pages in slices().items():
            reads += [partial(intake.slice_changed, None, page) for page in pages]
            reads.append(partial(intake.node_changed, None, node(name)))
        reads += [partial(intake.claim_changed, None, one) for one in self.stored.values()]
        reads += [partial(intake.pod_changed, None, one) for one in self.pods.values()]
        reads += [partial(self._show_quota, name) for name in NAMESPACES]
        reads += [partial(intake.class_changed, None, one) for one in mig_classes()]
        self.rng.shuffle(reads)
        for read in reads:
            read()
        self.queue.update(self.pods)

    # What happens

    def come(self, name: str, wish: Wish) -> None:
        self.now += 1
        asked = moved(claim(f"p{self.now}", wish.request()), name)
        made = moved(pod(f"p{self.now}", f"p{self.now}"), name)
        stamp = f"2026-01-01T{self.now // 3600:02}:{self.now // 60 % 60:02}:{self.now % 60:02}Z"
        made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=stamp))
        self.stored[asked.key], self.pods[made.key], self.wishes[made.key] = asked, made, wish
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
            self.limits[name] = limits_of(json.loads(text))
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
            self.check(key)
        else:
            self.refused[_reason(str(getattr(decision, "text", "")))] += 1

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

    def held(self, name: str) -> Held:
        """What a namespace holds, with what is being written."""
        return count(one for key in self.stored if key.startswith(f"{name}/") for one in self._devices(key))

    def _devices(self, key: str) -> Iterator[DeviceResult]:
        allocation = self.stored[key].status.allocation
        if key in self.in_flight:
            yield from (result for entry in self.in_flight[key].claims for result in entry.results)
        elif allocation is not None:
            yield from allocation.devices.results

    def check(self, key: str) -> None:
        """No limit on what a pod was just given is exceeded, and nothing is given twice."""
        name, given = key.partition("/")[0], count(self._devices(key))
        assert not given_twice(one for each in self.stored for one in self._devices(each))
        if name not in self.limits:
            return
        limits, held = self.limits[name], self.held(name)
        assert limits is not None, f"{name} got {given} although its quota cannot be read"
        exceeded = [one for one, amount in given.items() if amount and one in limits and held[one] > limits[one]]
        assert not exceeded, f"{name} holds {held}, may have {limits}"

    def could_be_served(self) -> list[str]:
        """Pods that wait although some node has room for them and their quota has, too."""
        busy = [one for key in self.stored for one in self._devices(key)]
        return [key for key in self.pods if not list(self._devices(key)) and self._fits(key, busy)]

    def _fits(self, key: str, busy: list[DeviceResult]) -> bool:
        name, wish = key.partition("/")[0], self.wishes[key]
        limits, held = self.limits.get(name, Counter()), self.held(name)
        if limits is None:
            return False
        for node_name, made in MACHINES.items():
            wanted = wish.amounts(str(made.gpus[0].product_name))
            within = all(held[one] + amount <= limits.get(one, NO_LIMIT) for one, amount in wanted.items() if amount)
            if within and wish.has_room(node_name, [one for one in busy if one.pool == node_name]):
                return True
        return False

    def step(self) -> None:
        """One random thing happens."""
        idle = [key for key in self.pods if key not in self.in_flight]
        match self.rng.choice(EVENTS):
            case "come" if len(self.pods) < 12:
                self.come(self.rng.choice(NAMESPACES), self.rng.choice(WISHES))
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
    if rng.random() < 0.4:
        limits["shareMemory"] = f"{rng.randint(0, 6) * 10}Gi"
    if rng.random() < 0.4:
        limits["shareCores"] = rng.randint(0, 10) * 10
    if rng.random() < 0.4:
        limits["migSlices"] = rng.randint(0, 8)
    if rng.random() < 0.4:
        limits["migDevicesByProfile"] = {profile: rng.randint(0, 3) for profile in PROFILES if rng.random() < 0.6}
    return json.dumps(limits)


def _reason(text: str) -> str:
    """Return which limit a refusal speaks of, "" where none."""
    said = {
        "GPUs of product": "gpusByProduct",
        "of memory in shares": "shareMemory",
        "of the cores": "shareCores",
        "MIG slices": "migSlices",
        "MIG devices of": "migDevicesByProfile",
        "cannot be read": "unread",
        "GPUs, holds": "gpus",
    }
    return next((key for words, key in said.items() if words in text), "")
