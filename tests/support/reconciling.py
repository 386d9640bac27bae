"""A reconciler with all its parts over a fake API: what a controller does for pods, without threads and servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.objects import Pod, PodCondition
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.context import ControllerContext
from dracaena.controller.events.collision_reports import CollisionReports
from dracaena.controller.events.waiting_pods import WaitingPods
from dracaena.controller.lifecycle.claim_record import ClaimRecord
from dracaena.controller.lifecycle.phases import NotAllowedError, Phase
from dracaena.controller.lifecycle.pod_record import Growth, PodRecord, leave_all_out, leave_out
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.lifecycle.prospects import Patience
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.queue.charging import Charging
from dracaena.controller.queue.lanes import Turn
from dracaena.controller.queue.retry import retry_later
from dracaena.controller.queue.time_budgets import TimeBudgets
from dracaena.controller.queue.work import CLAIMS_TURN, LeaderQueue, claim_of_work, claim_work
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.reconciler import Reconciler
from dracaena.controller.state.cluster import ClusterState, Wakers
from dracaena.controller.state.collisions import Collision
from dracaena.controller.state.upkeep import UpkeepRules
from dracaena.controller.wiring import DOUBT_S
from dracaena.controller.write.claim_templates import ClaimTemplates
from dracaena.controller.write.claim_tender import ClaimTender
from dracaena.controller.write.claim_writer import ClaimWriter
from dracaena.controller.write.gatekeeper import Gatekeeper
from dracaena.controller.write.nomination import Nomination
from dracaena.kube.errors import KubeError
from support.allocation import DRIVER, blocks, device_class, device_name, machine, node, pool_slice
from support.claim_api import FakeClaims, FakeEvents, FakeTemplates
from support.clock import FakeClock
from support.watched_cluster import WatchedCluster

SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"))
TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))

SEEN_S = 2.0
REFUSED_WAIT_S = 10.0
PASSED_OVER_WAIT_S = 60.0
EXCLUSION_S = 60.0
LONGEST_EXCLUSION_S = 200.0
LONGEST_BIND_S = 1560.0
GATE_WAIT_S = 20.0

RULES = UpkeepRules(
    Bounds(settle_s=SEEN_S, longest_bind_s=LONGEST_BIND_S, late_write_s=DOUBT_S),
    Patience(refused_s=REFUSED_WAIT_S, passed_over_s=PASSED_OVER_WAIT_S),
    Growth(first_s=EXCLUSION_S, longest_s=LONGEST_EXCLUSION_S),
)


def no_fault(record: ClaimRecord, error: NotAllowedError) -> None:
    """What a record meets must be in the table: anything else is a fault of ours."""
    raise error


class Bench:
    """The test is the watch and the workers. `nominate_above_nodes`: -1 is never. `before`: the leader before this one,
    whose server and clock are taken over."""

    rules = RULES
    clock_type: type[FakeClock] = FakeClock

    def __init__(
        self,
        cluster_type: type[WatchedCluster] = WatchedCluster,
        nominate_above_nodes: int = -1,
        before: Bench | None = None,
        /,
        **machines: Machine,
    ) -> None:
        self.api: FakeClaims = FakeClaims() if before is None else before.api
        self.clock: FakeClock = self.clock_type() if before is None else before.clock
        self.template_api = FakeTemplates()
        self.opted_in = {"default"}
        """Namespaces with the label for rewriting."""
        self.events = FakeEvents()
        self.registry = CollectorRegistry()
        metrics = ControllerMetrics(self.registry)
        self.budgets = TimeBudgets(self.clock)
        self.queue = WorkQueue(self.clock, random.Random(1), self.turn_of, self.budgets.behind_others)
        self.waiting = WaitingPods(self.events, self.clock, metrics)
        work = LeaderQueue(self.queue)
        work.open()
        wakers = Wakers(work.add_pod, work.ask_pod_again, work.add_claim, work.add_claim_again, no_fault)
        state = ClusterState(DRIVER, wakers, self.rules, self.clock.monotonic())
        self.cluster = cluster_type(state, self.clock, collided=self.collided)
        nomination = Nomination(self.api, lambda: self.cluster.node_count, metrics, above_nodes=nominate_above_nodes)
        charging = Charging(self.queue, self.budgets, self.clock)
        self.tender = ClaimTender(DRIVER, self.cluster, self.api, self.api, nomination, charging, self.clock, metrics)
        self.gate_queue = WorkQueue(self.clock, random.Random(2))
        self.gatekeeper = Gatekeeper(
            DRIVER,
            self.api,
            self.api.pods.get,
            self.gate_queue,
            events=self.events,
            clock=self.clock,
            metrics=metrics,
            wait_s=GATE_WAIT_S,
        )
        self.templates = ClaimTemplates(
            self.template_api, self.api.pods.values, self.opted_in.__contains__, self.clock, unused_s=600.0
        )
        self.collisions = CollisionReports(DRIVER, self.events, metrics)
        self.reconciler = Reconciler(
            ControllerContext(DRIVER, self.clock, metrics, self.events, self.queue, self.budgets),
            cluster=self.cluster,
            writer=ClaimWriter(
                self.api,
                self.clock,
                metrics,
                shown=self.cluster.shown,
                may_send=self.cluster.send_allocation,
            ),
            nomination=nomination,
            gatekeeper=self.gatekeeper,
            templates=self.templates,
            waiting=self.waiting,
        )
        self._tries = 0
        self.api.on_change = self.claim_changed
        self.api.on_pod_change = self.pod_changed
        self.machines = machines or {"n": SEVEN}
        for name, made in self.machines.items():
            self.cluster.intake.node_changed(None, node(name))
            self.cluster.intake.slice_changed(None, pool_slice(name, made))
        self.cluster.intake.class_changed(None, device_class())

    def next_leader(self) -> Bench:
        """Return another process that begins to lead now, and knows what the server has and nothing else."""
        leader = type(self)(WatchedCluster, -1, self, **self.machines)
        for claim in list(self.api.claims.values()):
            leader.claim_changed(None, claim)
        for pod in list(self.api.pods.values()):
            leader.pod_changed(None, pod)
        leader.cluster.begin()
        for key in leader.cluster.to_be_tended():
            leader.queue.add(claim_work(key))
        return leader

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self.cluster.intake.claim_changed(old, new)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self.cluster.intake.pod_changed(old, new)

    def collided(self, item: ResourceClaim, found: Sequence[Collision]) -> None:
        self.collisions.seen(item, found)

    def turn_of(self, key: str) -> Turn:
        if claim_of_work(key) is not None:
            return CLAIMS_TURN
        known = self.api.pods.get(key)
        return () if known is None else turn(known)

    def add(self, *objects: Pod | ResourceClaim) -> None:
        for item in objects:
            if isinstance(item, Pod):
                old = self.api.pods.get(item.key)
                self.pod_changed(old, self.api.put_pod(item))
            else:
                self.api.put(item)

    def change_pod(self, name: str, change: Callable[[Pod], Pod]) -> None:
        self.add(change(self.api.pods[f"default/{name}"]))

    def say(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        """Let kube-scheduler refuse a pod: a probe in its condition is wiped."""
        condition = PodCondition("PodScheduled", "False", reason, message)

        def refuse(old: Pod) -> Pod:
            return msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, conditions=[condition]))

        self.change_pod(name, refuse)

    def try_in_vain(self, name: str) -> None:
        """Let kube-scheduler end one more try of a pod, and say something new about it."""
        self._tries += 1
        self.say(name, f"0/{self._tries} nodes are available.")

    def say_again(self, name: str) -> None:
        """Let kube-scheduler end one more try of a pod, and say what it said before: that wipes a probe."""
        known = self.cluster._state.records.unbound(f"default/{name}")
        assert known is not None
        assert known.said is not None
        self.say(name, known.said.message, known.said.reason)

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
        while True:
            if self.queue._ready or self._due(self.queue):
                self.step()
            elif self.gate_queue._ready or self._due(self.gate_queue):
                self.remove_gate()
            else:
                return

    def remove_gate(self) -> None:
        """Do what a thread of the gatekeeper does with what it took from its queue."""
        key = self.gate_queue.get()
        assert key is not None
        self.gatekeeper._remove(key)
        self.gate_queue.done(key)
        self.gatekeeper.forget_passed()

    def step(self) -> None:
        key = self.queue.get()
        assert key is not None
        self.work(key)

    def work(self, key: str) -> None:
        """Do what a worker does with what it took from the queue."""
        claim_key = claim_of_work(key)
        try:
            if claim_key is not None:
                self._tend(key, claim_key)
            elif self.reconciler.carry_out(key, self.reconciler.plan(key)):
                self.queue.forget(key)
            else:
                retry_later(self.queue, key)
        except KubeError as error:
            retry_later(self.queue, key, error)
        self.queue.done(key)

    def _tend(self, key: str, claim_key: str) -> None:
        again_s = self.tender.tend(claim_key)
        self.queue.forget(key)
        if again_s is not None:
            self.queue.add_after(key, again_s)

    def _due(self, queue: WorkQueue) -> bool:
        return any(due_s <= self.clock.monotonic() for due_s, _ in queue._due.values())

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run()

    def pass_time(self, seconds: int) -> None:
        """Let seconds pass one by one, as workers live through them."""
        for _ in range(seconds):
            self.advance(1.0)

    def leave_out(self, name: str, node_name: str) -> None:
        """Say that an allocation of a pod led nowhere on a node."""
        self._change_record(name, lambda known: leave_out(known, node_name, *self._times(), RULES.growth))

    def leave_all_out(self, name: str) -> None:
        """Say that allocations of a pod lead nowhere, whatever the node."""
        self._change_record(name, lambda known: leave_all_out(known, *self._times(), RULES.growth))

    def _change_record(self, name: str, change: Callable[[PodRecord], PodRecord]) -> None:
        known = self.cluster._state.records.unbound(f"default/{name}")
        assert known is not None
        self.cluster._state.records.change_pod(change(known))

    def _times(self) -> tuple[float, datetime]:
        return self.clock.monotonic(), self.clock.now()

    def take_back(self, name: str, reason: str = "refused") -> None:
        """Say that the allocation of a claim is to be taken back."""
        self.cluster._state.records.end(f"default/{name}", reason)

    def record(self, name: str) -> ClaimRecord:
        """The record of a claim."""
        known = self.cluster.record(f"default/{name}")
        assert known is not None
        return known

    def phases(self) -> set[Phase]:
        """The phases of all claims."""
        records = (self.cluster.record(key) for key in self.api.claims)
        return {record.phase for record in records if record is not None}

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
