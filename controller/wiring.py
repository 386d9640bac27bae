"""Builds the parts of one controller and joins them. It starts nothing; program.py does."""

from __future__ import annotations

import random
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from dracaena.api.gpu_templates import has_opted_in
from dracaena.api.objects import Namespace, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.adapters.kube import KubeClaimWrites
from dracaena.controller.adapters.templates import KubeTemplates
from dracaena.controller.cache.claims import kept_claim
from dracaena.controller.context import ControllerContext
from dracaena.controller.events.claim_reports import ClaimReports
from dracaena.controller.events.collision_reports import CollisionReports
from dracaena.controller.events.quota_reports import QuotaReports
from dracaena.controller.events.slice_reports import SliceReports
from dracaena.controller.events.waiting_pods import WaitingPods
from dracaena.controller.leader.election import Election, Leadership, NoElection
from dracaena.controller.lifecycle.pod_record import Growth
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.lifecycle.prospects import Patience
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.page.wiring import latest_snapshot, measure_gpus
from dracaena.controller.ports import PodApi
from dracaena.controller.queue.charging import Charging
from dracaena.controller.queue.lanes import Turn
from dracaena.controller.queue.time_budgets import TimeBudgets
from dracaena.controller.queue.work import LeaderQueue, turn_of
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.reconciler import Reconciler
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.state.cluster import Cluster, ClusterState, Wakers
from dracaena.controller.state.intake import Intake
from dracaena.controller.state.upkeep import UpkeepRules
from dracaena.controller.watches import Watches
from dracaena.controller.workers import Workers
from dracaena.controller.write.claim_templates import ClaimTemplates
from dracaena.controller.write.claim_tender import ClaimTender
from dracaena.controller.write.claim_writer import ClaimWriter
from dracaena.controller.write.gatekeeper import Gatekeeper
from dracaena.controller.write.nomination import Nomination
from dracaena.kube.client import WRITE_TIMEOUT_S, KubeClient
from dracaena.kube.events import EventRecorder
from dracaena.kube.lease import KubeLease
from dracaena.kube.transport import OWN_NAMESPACE
from dracaena.process.clock import Clock

COMPONENT: Final = "dracaena-controller"
"""Name in Events, and the user agent."""

"""Where kubelet tells a pod its namespace."""

LEFT_OUT: Final = Growth(first_s=60.0, longest_s=1_800.0)
"""For how long a node is not tried again for a pod that had devices there but was not bound: what was in the way may
go soon, and may also never go."""

DOUBT_S: Final = WRITE_TIMEOUT_S + 2.0
"""A write without an answer may still land until the server's own time-out is over; its devices rest until then."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a controller gets from the outside."""

    client: KubeClient
    lease_client: KubeClient
    """Used only for the Lease."""
    clock: Clock
    rng: random.Random
    registry: CollectorRegistry
    on_lost: Callable[[str], None]
    """Called with the reason when this process must end."""
    rules: UpkeepRules | None = None
    """In place of upkeep_rules()."""


@dataclass(frozen=True, slots=True)
class Shared(ControllerContext):
    """What most parts need, and what only their wiring needs."""

    client: KubeClient
    """Its writes go through the leadership."""
    events: EventRecorder
    work: LeaderQueue


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one controller that the program starts, stops and asks."""

    client: KubeClient
    leadership: Leadership
    queue: WorkQueue
    work: LeaderQueue
    events: EventRecorder
    waiting: WaitingPods
    reports: ClaimReports
    slice_reports: SliceReports
    quota_reports: QuotaReports
    cluster: Cluster
    intake: Intake
    watches: Watches
    reconciler: Reconciler
    workers: Workers
    gatekeeper: Gatekeeper
    templates: ClaimTemplates
    latest: LatestSnapshot
    """For the metrics and the page."""


def build(settings: ControllerSettings, given: Dependencies) -> Parts:
    """Build all parts of a controller. Nothing runs, and no server is asked, before they are started.

    The parts form rings: caches wake pods in the queue and at the gate, which look the pods up in the caches; and each
    write asks the leadership, which asks whether the caches are fresh. All of them look `watches` up late, when every
    part exists.
    """
    watches: Watches

    def cached_pod(key: str) -> Pod | None:
        return watches.pods.get(key)

    def cached_pods() -> Sequence[Pod]:
        return watches.pods.values()

    def opted_in(namespace: str) -> bool:
        known = watches.namespaces.get(namespace)
        return known is not None and has_opted_in(known, settings.driver_name)

    def cached_turn(key: str) -> Turn:
        return turn_of(key, cached_pod(key))

    def unfit_to_take() -> str | None:
        return watches.trouble_for_candidate()

    def unfit_to_lead() -> str | None:
        return watches.trouble()

    leadership = build_leadership(settings, given, unfit_to_take=unfit_to_take, unfit_to_lead=unfit_to_lead)
    shared = _shared(settings, given, leadership, cached_turn)
    waiting = WaitingPods(shared.events, shared.clock, shared.metrics)
    reports = _reports(shared)
    cluster, intake = _cluster(settings, shared, reports, given.rules or upkeep_rules(settings))
    slice_reports = SliceReports(shared.events, shared.metrics, lambda: shared.work.is_open)
    count_write = shared.metrics.writes.wrote
    template_writes = KubeTemplates(shared.client, count_write)
    templates = ClaimTemplates(
        template_writes, cached_pods, opted_in, shared.clock, unused_s=settings.unused_template_s
    )
    writes = KubeClaimWrites(shared.client, count_write)
    gatekeeper = _gatekeeper(settings, given, shared, writes, cached_pod)
    watches = _watches(settings, shared, cluster, intake, gatekeeper, reports, slice_reports)
    reconciler, workers = _workers(settings, shared, writes, gatekeeper, templates, waiting, cluster)
    _measure(shared, leadership, waiting, cluster, watches)
    latest = latest_snapshot(settings, watches, waiting, shared.clock, leads=leadership.leads)
    measure_gpus(latest, shared.metrics, shared.clock)
    quota_reports = QuotaReports(
        shared.events, shared.metrics, cluster.quotas, watches.namespaces.get, lambda: shared.work.is_open
    )
    return Parts(
        shared.client,
        leadership,
        shared.queue,
        shared.work,
        shared.events,
        waiting,
        reports,
        slice_reports,
        quota_reports,
        cluster,
        intake,
        watches,
        reconciler,
        workers,
        gatekeeper,
        templates,
        latest,
    )


def build_leadership(
    settings: ControllerSettings,
    given: Dependencies,
    *,
    unfit_to_take: Callable[[], str | None],
    unfit_to_lead: Callable[[], str | None],
) -> Leadership:
    """Build what tells whether this process may write; without an election it always may."""
    if not settings.leader_elect:
        return NoElection()
    namespace = settings.lease_namespace or (OWN_NAMESPACE.read_text() if OWN_NAMESPACE.exists() else "default")
    name = f"controller.{settings.driver_name}"
    # It identifies one process, never a host or pod: a restarted process must not take its predecessor's lease for its
    # own, because the predecessor's writes may still be under way.
    identity = f"{settings.lease_identity or socket.gethostname()}_{uuid.uuid4()}"
    return Election(
        KubeLease(given.lease_client, namespace.strip(), name),
        given.clock,
        given.rng,
        identity=identity,
        duration_s=settings.lease_duration_s,
        on_lost=given.on_lost,
        unfit_to_take=unfit_to_take,
        unfit_to_lead=unfit_to_lead,
    )


def _shared(
    settings: ControllerSettings, given: Dependencies, leadership: Leadership, cached_turn: Callable[[str], Turn]
) -> Shared:
    client = given.client.guarded(leadership.writing)
    metrics = ControllerMetrics(given.registry)
    budgets = TimeBudgets(given.clock)
    queue = WorkQueue(given.clock, given.rng, cached_turn, budgets.behind_others)
    return Shared(
        driver=settings.driver_name,
        client=client,
        clock=given.clock,
        metrics=metrics,
        events=EventRecorder(client, COMPONENT, given.clock, count=metrics.writes.event_sent),
        queue=queue,
        work=LeaderQueue(queue),
        budgets=budgets,
    )


def _reports(shared: Shared) -> ClaimReports:
    collisions = CollisionReports(shared.driver, shared.events, shared.metrics)
    return ClaimReports(shared.events, shared.metrics, collisions, lambda: shared.work.is_open)


def _cluster(
    settings: ControllerSettings, shared: Shared, reports: ClaimReports, rules: UpkeepRules
) -> tuple[Cluster, Intake]:
    """Return the two ways into one state."""
    work, clock, collided = shared.work, shared.clock, reports.collided
    state = ClusterState(
        shared.driver,
        Wakers(work.add_pod, work.ask_pod_again, work.add_claim, work.add_claim_again, reports.fault),
        rules,
        shared.clock.monotonic(),
        allowed_drivers=_allowed_drivers(settings),
        first_fit=settings.selection == "first-fit",
        levels=settings.topology_levels,
    )
    cluster = Cluster(state, clock, keep=kept_claim(shared.driver), collided=collided)
    problems_changed = shared.metrics.watches.problems_changed
    intake = Intake(state, clock, problems_changed=problems_changed, collided=collided)
    return cluster, intake


def _gatekeeper(
    settings: ControllerSettings,
    given: Dependencies,
    shared: Shared,
    pods: PodApi,
    cached_pod: Callable[[str], Pod | None],
) -> Gatekeeper:
    return Gatekeeper(
        shared.driver,
        pods,
        cached_pod,
        WorkQueue(shared.clock, given.rng),
        events=shared.events,
        clock=shared.clock,
        metrics=shared.metrics,
        wait_s=settings.gate_wait_s,
    )


def _watches(
    settings: ControllerSettings,
    shared: Shared,
    cluster: Cluster,
    intake: Intake,
    gatekeeper: Gatekeeper,
    reports: ClaimReports,
    slice_reports: SliceReports,
) -> Watches:
    def pod_changed(old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            watches.workloads.see(new)
        intake.pod_changed(old, new)
        if new is not None and shared.work.is_open:
            gatekeeper.see(new)

    def namespace_changed(old: Namespace | None, new: Namespace | None) -> None:
        intake.namespace_changed(old, new)
        was_in = old is not None and has_opted_in(old, shared.driver)
        if new is not None and has_opted_in(new, shared.driver) and not was_in:
            # Some of its pods may wait for templates.
            for key in cluster.pods_with_claims():
                if key.startswith(f"{new.metadata.name}/"):
                    shared.work.add_pod(key)

    def claim_changed(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        intake.claim_changed(old, new)
        reports.changed(new)

    def slice_changed(old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        intake.slice_changed(old, new)
        slice_reports.changed(old, new)

    drivers = (shared.driver, *_allowed_drivers(settings))
    watches = Watches(
        shared.client, shared.clock, intake, drivers, pod_changed, namespace_changed, claim_changed, slice_changed
    )
    return watches


def _workers(
    settings: ControllerSettings,
    shared: Shared,
    claims: KubeClaimWrites,
    gatekeeper: Gatekeeper,
    templates: ClaimTemplates,
    waiting: WaitingPods,
    cluster: Cluster,
) -> tuple[Reconciler, Workers]:
    driver, clock, metrics = shared.driver, shared.clock, shared.metrics
    nomination = Nomination(claims, lambda: cluster.node_count, metrics, above_nodes=settings.nominate_above_nodes)
    reconciler = Reconciler(
        shared,
        cluster=cluster,
        writer=ClaimWriter(claims, clock, metrics, shown=cluster.shown, may_send=cluster.send_allocation),
        nomination=nomination,
        gatekeeper=gatekeeper,
        templates=templates,
        waiting=waiting,
    )
    charging = Charging(shared.queue, shared.budgets, clock)
    tender = ClaimTender(driver, cluster, claims, claims, nomination, charging, clock, metrics)
    return reconciler, Workers(shared.queue, reconciler, tender, clock)


def _measure(shared: Shared, leadership: Leadership, waiting: WaitingPods, cluster: Cluster, watches: Watches) -> None:
    """Connect the gauges to what they show."""
    metrics = shared.metrics
    metrics.leader.set_function(leadership.leads)
    metrics.queue.length.set_function(lambda: len(shared.queue))
    metrics.queue.oldest_waiting_pod_seconds.set_function(waiting.oldest_age_s)
    metrics.queue.kept_nodes.set_function(lambda: cluster.earmark is not None)
    for resource in watches.resources:
        silence_s = partial(watches.longest_silence_s, resource)
        metrics.watches.silence_seconds.labels(resource).set_function(silence_s)
        metrics.watches.unreadable_objects.labels(resource).set_function(partial(watches.count_troubles, resource))


def _allowed_drivers(settings: ControllerSettings) -> tuple[str, ...]:
    return tuple(name.strip() for name in settings.allowed_drivers.split(",") if name.strip())


def upkeep_rules(settings: ControllerSettings) -> UpkeepRules:
    """Return when allocations are taken back, and for how long nodes are left out."""
    return UpkeepRules(Bounds(longest_bind_s=settings.longest_bind_s, late_write_s=DOUBT_S), Patience(), LEFT_OUT)
