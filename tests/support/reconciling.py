"""A reconciler with all its parts over a fake API: what a controller does for pods, without threads and servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.objects import Pod, PodCondition, ResourceClaim
from dracaena.controller.allocation.turn import turn
from dracaena.controller.bind_watch import BindWatch
from dracaena.controller.claim_writer import ClaimWriter
from dracaena.controller.cluster import Cluster
from dracaena.controller.collisions import Collision, Collisions
from dracaena.controller.exclusions import Exclusions
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.nomination import Nomination
from dracaena.controller.reconciler import Reconciler
from dracaena.controller.slow_pods import SlowPods
from dracaena.controller.take_back import TakeBack
from dracaena.controller.unbound_pods import UnboundPods
from dracaena.controller.unused_claims import UnusedClaims
from dracaena.controller.waiting import WaitingPods
from dracaena.controller.workqueue import Turn, WorkQueue
from dracaena.kube.errors import KubeError
from support.allocation import DRIVER, blocks, device_class, device_name, machine, node, pool_slice
from support.claim_api import FakeClaims, FakeEvents
from support.clock import FakeClock

SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"))

UNBOUND_WAIT_S = 2.0
REFUSED_WAIT_S = 10.0
PASSED_OVER_WAIT_S = 60.0
EXCLUSION_S = 60.0
LONGEST_EXCLUSION_S = 200.0


class Bench:
    """The test is the watch and the workers. `nominate_above_nodes`: -1 is never."""

    def __init__(
        self, cluster_type: type[Cluster] = Cluster, nominate_above_nodes: int = -1, /, **machines: Machine
    ) -> None:
        self.api = FakeClaims()
        self.clock = FakeClock()
        self.events = FakeEvents()
        self.registry = CollectorRegistry()
        metrics = ControllerMetrics(self.registry)
        self.slow = SlowPods(self.clock)
        self.queue = WorkQueue(self.clock, random.Random(1), self.turn_of, self.slow.behind_others)
        self.waiting = WaitingPods(self.events, self.clock, metrics)
        self.exclusions = Exclusions(self.clock, first_s=EXCLUSION_S, longest_s=LONGEST_EXCLUSION_S)
        self.cluster = cluster_type(
            DRIVER,
            wake=self.queue.add,
            barred=self.exclusions.barred,
            collided=self.collided,
        )
        nomination = Nomination(self.api, lambda: self.cluster.node_count, metrics, above_nodes=nominate_above_nodes)
        self.take_back = TakeBack(
            DRIVER,
            self.api,
            self.api,
            nomination,
            self.cluster.forget,
            self.cluster.stored,
            self.clock,
            metrics,
            unbound_wait_s=UNBOUND_WAIT_S,
        )
        self.collisions = Collisions(
            DRIVER,
            collisions_of=self.cluster.collisions_of,
            take_back=self.take_back,
            events=self.events,
            metrics=metrics,
        )
        self.unbound = UnboundPods(
            DRIVER,
            watch=BindWatch(self.clock),
            exclusions=self.exclusions,
            take_back=self.take_back,
            others_wait=self.cluster.anybody_waits,
            events=self.events,
            clock=self.clock,
            refused_wait_s=REFUSED_WAIT_S,
            passed_over_wait_s=PASSED_OVER_WAIT_S,
        )
        self.unused = UnusedClaims(
            DRIVER, unused=self.cluster.unused, claims=self.api, clock=self.clock, metrics=metrics
        )
        self.reconciler = Reconciler(
            DRIVER,
            cluster=self.cluster,
            claims=self.api,
            writer=ClaimWriter(DRIVER, self.api, self.clock, metrics),
            take_back=self.take_back,
            unbound=self.unbound,
            nomination=nomination,
            collisions=self.collisions,
            waiting=self.waiting,
            queue=self.queue,
            slow=self.slow,
            events=self.events,
            clock=self.clock,
            metrics=metrics,
        )
        self.api.on_change = self.claim_changed
        self.machines = machines or {"n": SEVEN}
        for name, made in self.machines.items():
            self.cluster.node_changed(None, node(name))
            self.cluster.slice_changed(None, pool_slice(name, made))
        self.cluster.class_changed(None, device_class())

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self.unbound.claim_changed(old, new)
        self.cluster.claim_changed(old, new)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.unbound.pod_changed(old, new)
        self.cluster.pod_changed(old, new)

    def collided(self, item: ResourceClaim, found: Sequence[Collision]) -> None:
        self.collisions.seen(item, found)

    def turn_of(self, key: str) -> Turn:
        known = self.api.pods.get(key)
        return () if known is None else turn(known)

    def add(self, *objects: Pod | ResourceClaim) -> None:
        for item in objects:
            if isinstance(item, Pod):
                old, self.api.pods[item.key] = self.api.pods.get(item.key), item
                self.pod_changed(old, item)
            else:
                self.api.put(item)

    def change_pod(self, name: str, change: Callable[[Pod], Pod]) -> None:
        self.add(change(self.api.pods[f"default/{name}"]))

    def say(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        """Let kube-scheduler refuse a pod."""
        condition = PodCondition("PodScheduled", "False", reason, message)

        def refuse(old: Pod) -> Pod:
            return msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, conditions=[condition]))

        self.change_pod(name, refuse)

    def bind(self, name: str, node_name: str) -> None:
        """Let kube-scheduler bind a pod."""

        def to_node(old: Pod) -> Pod:
            return msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, node_name=node_name))

        self.change_pod(name, to_node)

    def remove_pod(self, key: str) -> None:
        self.pod_changed(self.api.pods.pop(key), None)

    def hold_the_watch(self) -> list[tuple[ResourceClaim | None, ResourceClaim | None]]:
        """From now on changes of claims are kept back; the test shows them later."""
        kept: list[tuple[ResourceClaim | None, ResourceClaim | None]] = []
        self.api.on_change = lambda old, new: kept.append((old, new))
        return kept

    def show(self, kept: list[tuple[ResourceClaim | None, ResourceClaim | None]]) -> None:
        self.api.on_change = self.claim_changed
        for old, new in kept:
            self.claim_changed(old, new)

    def run(self) -> None:
        """Do what workers do until nothing is left for now."""
        while len(self.queue) and (self.queue._ready or self._due()):
            self.step()

    def step(self) -> None:
        key = self.queue.get()
        assert key is not None
        try:
            if self.reconciler.carry_out(key, self.reconciler.plan(key)):
                self.queue.forget(key)
            else:
                self.queue.retry(key)
        except KubeError:
            self.queue.retry(key)
        self.queue.done(key)

    def _due(self) -> bool:
        return any(due_s <= self.clock.monotonic() for due_s, _ in self.queue._due.values())

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run()

    def pass_time(self, seconds: int) -> None:
        """Let seconds pass one by one, as workers and the sweeper live through them."""
        for _ in range(seconds):
            self.advance(1.0)
            self.unused.sweep()

    def held(self, name: str) -> tuple[int, ...] | None:
        """Ordinals that a claim holds, whatever the node."""
        allocation = self.api.claims[f"default/{name}"].status.allocation
        if allocation is None:
            return None
        results = allocation.devices.results
        names = {device_name(made, o): o for made in self.machines.values() for o in range(len(made.gpus))}
        return tuple(names[result.device] for result in results)

    def on_node(self, name: str) -> str | None:
        allocation = self.api.claims[f"default/{name}"].status.allocation
        return allocation.devices.results[0].pool if allocation is not None else None

    def users(self, name: str) -> list[str]:
        return [user.name for user in self.api.claims[f"default/{name}"].status.reserved_for]

    def told(self) -> list[str]:
        return [message for _, reason, message in self.events.seen if reason == "WaitingForGPUs"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"dracaena_controller_{name}", labels)
