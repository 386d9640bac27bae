"""A small cluster whose pods wait, with an obvious answer to who could be served.

The controller's own cluster and queue; the world is the watch, the worker and the API server. What a node has and what
is taken there is kept beside it in plain numbers, so that the oracle reads nothing of the product.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.queue.lanes import Turn
from dracaena.controller.queue.workqueue import WorkQueue
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    pod,
    pool_slice,
    request,
)
from support.bare_cluster import bare_cluster, decide, write
from support.clock import FakeClock
from support.queues import take_ready

GPU, MIG = "gpu", "mig"
DIVIDED: Final = 2
"""MIG devices of a GPU that is divided."""

Ask = Mapping[str, int]
"""How many devices of each kind."""


@dataclass(frozen=True)
class Wants:
    """What a pod needs. Pods with equal wants are of one shape."""

    either: tuple[Ask, ...]
    """One of these, all on one node."""
    zone: str = ""
    tolerates: bool = False
    cpu: int = 0
    several_claims: bool = False


@dataclass
class Host:
    """A node as the oracle sees it."""

    has: dict[str, int]
    zone: str = "a"
    tainted: bool = False
    cordoned: bool = False
    cpu: int = 8


@dataclass
class WaitingWorld:
    """Nodes, pods that wait, and pods that were served. Deterministic."""

    hosts: dict[str, Host] = field(default_factory=dict)
    wants: dict[str, Wants] = field(default_factory=dict)
    """Of all pods that are there, by key."""
    served: dict[str, str] = field(default_factory=dict)
    """Pod → its node."""
    claims: dict[str, tuple[ResourceClaim, ...]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    busy_cpu: dict[str, int] = field(default_factory=dict)
    """Node → cores that a pod without claims takes there."""
    decisions: list[str] = field(default_factory=list)
    shown: dict[str, tuple[Node, ResourceSlice]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(FakeClock(), random.Random(1), self.turn_of)
        self.cluster = bare_cluster(self.queue.add, ask_again=self.queue.add_again)
        for kind in (GPU, MIG):
            self.cluster.intake.class_changed(None, class_of(kind))

    def turn_of(self, key: str) -> Turn:
        return turn(self.pods[key]) if key in self.pods else ()

    # The world changes

    def put_host(self, name: str, host: Host) -> None:
        """Let a node come or change, with its slice."""
        self.hosts[name] = host
        made_node, made_slice = node_of(name, host), slice_of(name, host)
        before = self.shown.get(name)
        self.shown[name] = made_node, made_slice
        self.cluster.intake.node_changed(None if before is None else before[0], made_node)
        if before is None or before[1] != made_slice:
            self.cluster.intake.slice_changed(None if before is None else before[1], made_slice)

    def come(self, name: str, wants: Wants, second: int, priority: int = 0) -> str:
        """Let a pod come that was created at a second."""
        names = [f"{name}-{number}" for number in range(len(wants.either[0]) if wants.several_claims else 1)]
        spec: dict[str, Any] = {"priority": priority}
        if wants.zone:
            spec["nodeSelector"] = {"zone": wants.zone}
        if wants.tolerates:
            spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
        if wants.cpu:
            spec["containers"] = [{"name": "main", "resources": {"requests": {"cpu": str(wants.cpu)}}}]
        made = pod(name, *names, **spec)
        stamp = f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=stamp))
        asked = tuple(claim(one, *requests) for one, requests in zip(names, requests_of(wants), strict=True))
        self.pods[made.key], self.wants[made.key], self.claims[made.key] = made, wants, asked
        for one in asked:
            self.cluster.intake.claim_changed(None, one)
        self.cluster.intake.pod_changed(None, made)
        return made.key

    def go(self, key: str) -> None:
        """Let a pod end, with its claims."""
        for one in self.claims.pop(key):
            self.cluster.intake.claim_changed(one, None)
        self.cluster.intake.pod_changed(self.pods.pop(key), None)
        del self.wants[key]
        self.served.pop(key, None)

    def take_cpu(self, name: str, cores: int) -> None:
        """Let a pod without claims take so much cpu on a node, 0: let it end."""
        before, after = self.busy_cpu.pop(name, 0), cores
        if cores:
            self.busy_cpu[name] = cores
        old, new = (hog(name, cpu) if cpu else None for cpu in (before, after))
        if old is not None or new is not None:
            self.cluster.intake.pod_changed(old, new)

    def flap(self, name: str) -> None:
        """Let a claim of nobody take the last device of a node and let it go at once: that may help whoever it fits."""
        held = holding(claim("flapping"), name, self.shown[name][1].spec.devices[-1].name)
        self.cluster.intake.claim_changed(None, held)
        self.cluster.intake.claim_changed(held, None)

    # Who decides

    def step(self) -> bool:
        """Do what one worker does with the next key; return whether there was one."""
        key = take_ready(self.queue)
        if key is None:
            return False
        if key in self.pods and key not in self.served:
            self.decisions.append(key)
            decision = decide(self.cluster, self.pods[key], *self.claims[key])
            if isinstance(decision, Allocation):
                self.claims[key] = write(self.cluster, decision, self.pods[key])
                self.served[key] = decision.node
        self.queue.done(key)
        return True

    def settle(self, at_most: int) -> None:
        """Decide until nothing is left to decide."""
        for _ in range(at_most):
            if not self.step():
                return
        raise AssertionError(f"not at rest after {at_most} decisions: {self.decisions[-10:]}")

    # The oracle

    def could_be_served(self) -> list[str]:
        """Return the pods that wait and that some node has room for now, first come first."""
        waiting = (key for key in self.wants if key not in self.served)
        found = [key for key in waiting if any(self.fits(self.wants[key], name) for name in self.hosts)]
        return sorted(found, key=self.turn_of)

    def fits(self, wants: Wants, name: str) -> bool:
        host = self.hosts[name]
        if host.cordoned or (host.tainted and not wants.tolerates) or (wants.zone and wants.zone != host.zone):
            return False
        used = self.used(name)
        if wants.cpu and used["cpu"] + wants.cpu > host.cpu:
            return False
        return any(all(used[kind] + count <= host.has[kind] for kind, count in ask.items()) for ask in wants.either)

    def used(self, name: str) -> dict[str, int]:
        found = {GPU: 0, MIG: 0, "cpu": self.busy_cpu.get(name, 0)}
        for key, where in self.served.items():
            if where == name:
                found["cpu"] += self.wants[key].cpu
                for kind in self.kinds_held(key):
                    found[kind] += 1
        return found

    def kinds_held(self, key: str) -> Iterator[str]:
        for one in self.claims[key]:
            assert one.status.allocation is not None
            for result in one.status.allocation.devices.results:
                yield MIG if result.device.startswith("mig-") else GPU


def class_of(kind: str) -> Any:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    return device_class(kind, selectors=[{"cel": {"expression": expression}}])


def requests_of(wants: Wants) -> list[list[dict[str, Any]]]:
    """Return the requests of each claim."""
    if wants.several_claims:
        return [[request(kind, count, kind)] for kind, count in wants.either[0].items()]
    if len(wants.either) == 1:
        return [[request(kind, count, kind) for kind, count in wants.either[0].items()]]
    options = [
        {"name": f"{kind}-{place}", "deviceClassName": kind, "count": count}
        for place, ask in enumerate(wants.either)
        for kind, count in ask.items()
    ]
    return [[{"name": "either", "firstAvailable": options}]]


def node_of(name: str, host: Host) -> Node:
    taints = [{"key": "team", "value": "b", "effect": "NoSchedule"}] if host.tainted else []
    document = {
        "metadata": {"name": name, "uid": f"node-{name}", "labels": {"zone": host.zone}},
        "spec": {"taints": taints, "unschedulable": host.cordoned},
        "status": {"allocatable": {"cpu": str(host.cpu), "pods": "110"}},
    }
    return msgspec.json.decode(json.dumps(document), type=Node)


def slice_of(name: str, host: Host) -> ResourceSlice:
    """Return what a node publishes: whole GPUs, and the parts of one that is divided."""
    divided = bool(host.has[MIG])
    made = machine(name, blocks(host.has[GPU] + divided, inside="PIX", outside="PIX"))
    if divided:
        uuid = made.gpus[-1].uuid
        tag = uuid[4:12]
        parts = tuple(
            MigDevice(uuid, f"MIG-{tag}-0000-0000-0000-{part:012x}", part, 0, "1g.10gb", part, 1)
            for part in range(DIVIDED)
        )
        made = dataclasses.replace(made, mig_devices=parts)
    published = pool_slice(name, made)
    whole = {device_name(made, host.has[GPU])} if divided else set()
    devices = [device for device in published.spec.devices if device.name not in whole]
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def hog(name: str, cores: int) -> Pod:
    spec: dict[str, Any] = {
        "nodeName": name,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": str(cores)}}}],
    }
    made = pod(f"hog-{name}", **spec)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, phase="Running"))
