"""The controller's metrics, by subject. docs/metrics.md lists all of them."""

from __future__ import annotations

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.process.metrics import MetricTable, counter, gauge, histogram

MOST_GPUS_COUNTED: Final = 16
"""The largest set of GPUs whose size is counted separately: the largest boxes on sale have as many GPUs, and every
label value costs each replica a time series."""


class ControllerMetrics(MetricTable):
    """All metrics of the controller, in one registry."""

    leader = gauge(
        "dracaena_controller_leader",
        "1 while this process holds the lease, or runs without an election; 0 while it stands by.",
    )

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__(registry)
        self.decisions = DecisionMetrics(registry)
        self.sets = SetMetrics(registry)
        self.queue = QueueMetrics(registry)
        self.writes = WriteMetrics(registry)
        self.watches = WatchMetrics(registry)
        self.faults = FaultMetrics(registry)
        self.quotas = QuotaMetrics(registry)


class DecisionMetrics(MetricTable):
    """Decisions, and what became of those that were written."""

    results = counter(
        "dracaena_controller_decisions",
        "Decisions about a pod's claims, by result: allocated, unsatisfied, refused, settled, too-long (stopped at "
        "its deadline); and without a look at the nodes: behind (an equal pod waits before it), in-progress (a "
        "claim is being allocated or taken back).",
        "result",
    )
    # From a look at the buckets (below 1 ms) to a first look at 16 free GPUs with no two pairs alike.
    seconds = histogram(
        "dracaena_controller_decision_seconds",
        "Seconds of one decision that looked at the nodes, including the wait for the lock, without any write.",
        buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
    )
    allocated_pods = counter(
        "dracaena_controller_allocations",
        "Pods whose claims were all allocated as decided.",
    )
    lost = counter(
        "dracaena_controller_lost_writes",
        "Decisions that could not be written in full, because another program allocated or deleted a claim.",
    )
    take_backs = counter(
        "dracaena_controller_take_backs",
        "Allocations taken back, by reason: refused, passed-over, no-preemption, pod-group, unreserved, "
        "collision, half-written, unused; and by end: cleared, kept (the pod was bound, or another one reserved "
        "the claim meanwhile).",
        "reason",
        "end",
    )


class SetMetrics(MetricTable):
    """What pods got: the sets of whole GPUs that were chosen by links."""

    allocated = counter(
        "dracaena_controller_allocated_sets",
        "Pods that got a set of whole GPUs that was chosen by links, by size (gpus: 1 to 16, then 17+), by the "
        "strictest requirement of the pod's policies, and by the set's worst link (NVLink, PSB, PIX, PXB, PHB, "
        "NODE, SYS, unknown; none for one GPU).",
        "gpus",
        "requirement",
        "worst_link",
    )

    def count(self, gpus: int, requirement: Requirement, worst_link: str) -> None:
        """Count a set of GPUs that was allocated as decided; `worst_link` is one of box.worst_link()'s words."""
        size = str(gpus) if gpus <= MOST_GPUS_COUNTED else f"{MOST_GPUS_COUNTED + 1}+"
        self.allocated.labels(size, requirement.value, worst_link).inc()


class QueueMetrics(MetricTable):
    """What waits for a worker, or for a change of the cluster."""

    length = gauge(
        "dracaena_controller_queue_length",
        "Pods and claims queued for processing, now or after a delay; not those that only a change can help.",
    )
    waiting_pods = gauge(
        "dracaena_controller_waiting_pods",
        "Pods whose claims cannot be allocated now, by reason.",
        "reason",
    )
    oldest_waiting_pod_seconds = gauge(
        "dracaena_controller_oldest_waiting_pod_seconds",
        "Seconds since the creation of the oldest pod whose claims cannot be allocated now; 0 when none waits.",
    )
    gpus = gauge(
        "dracaena_controller_gpus",
        "GPUs that were bought, by state: free (a pod without tolerations could get it), vm (the same for a virtual "
        "machine alone), partial (divided or shared, with room), used, failed (a fault keeps pods off), closed (no "
        "pod gets it for another reason), unpublished.",
        "state",
    )
    most_free_gpus = gauge(
        "dracaena_controller_most_free_gpus",
        "Free GPUs of the node that has most of them.",
    )
    kept_nodes = gauge(
        "dracaena_controller_earmarks",
        "Nodes that are kept free for a pod that has waited too long: 0 or 1.",
    )


class WriteMetrics(MetricTable):
    """Writes to the API server."""

    results = counter(
        "dracaena_controller_writes",
        "Writes to the API server, by verb: mark (finalizer), allocate, reserve, deallocate, "
        "nominate, probe (of a pod's condition), ungate, make-template, delete-template; and by result: ok, "
        "exists, conflict (changed meanwhile), invalid (refused by validation), gone, failed.",
        "verb",
        "result",
    )
    conflicts = counter(
        "dracaena_controller_write_conflicts",
        "Writes refused because the claim had changed.",
    )
    nominations = counter(
        "dracaena_controller_nominations",
        "Writes of a pod's nominatedNodeName, by result: set, cleared, refused.",
        "result",
    )
    ungated = counter(
        "dracaena_controller_ungated_pods",
        "Pods that passed our scheduling gate, by reason: allocated, not-ours (they ask for nothing that we "
        "allocate), fits-nowhere (so that autoscalers see them).",
        "reason",
    )
    events = counter(
        "dracaena_controller_events",
        "Kubernetes Events, by fate: written, failed, dropped (too many waited), limited (too many about one object).",
        "fate",
    )

    def wrote(self, verb: str, result: str) -> None:
        """Count a write to the API server."""
        self.results.labels(verb, result).inc()

    def event_sent(self, fate: str) -> None:
        """Count a Kubernetes Event."""
        self.events.labels(fate).inc()


class WatchMetrics(MetricTable):
    """What the watches deliver, and how much of it cannot be used."""

    silence_seconds = gauge(
        "dracaena_controller_watch_silence_seconds",
        "Seconds since the API server last sent something of a resource: a list, a change, or a bookmark. "
        "After 80 s of silence everything is listed again, so more than 90 means that the cache may be behind.",
        "resource",
    )
    unreadable_objects = gauge(
        "dracaena_controller_unreadable_objects",
        "Objects of a resource that cannot be read, or whose last change was not applied; the log names them.",
        "resource",
    )
    unusable_devices = gauge(
        "dracaena_controller_unusable_devices",
        "Published devices and pools that cannot be used, for example because attributes do not decode.",
    )
    not_understood_slices = gauge(
        "dracaena_controller_not_understood_slices",
        "ResourceSlices with fields that this version does not know, by driver: whatever has them is left alone.",
        "driver",
    )
    updating_pools = gauge(
        "dracaena_controller_updating_pools",
        "Pools with missing slices: normal while a plugin writes them, a fault if it lasts.",
    )

    def problems_changed(self, unusable: int, updating: int) -> None:
        """Take in how much of what is published cannot be used, permanently and for the moment."""
        self.unusable_devices.set(unusable)
        self.updating_pools.set(updating)


class QuotaMetrics(MetricTable):
    """What namespaces with a quota may hold, and hold."""

    limit = gauge(
        "dracaena_controller_quota_limit",
        "What a namespace may hold, by what is counted (a key of the quota: gpus, gpusByProduct, shareMemory in "
        "bytes, shareCores in percent of one GPU, migSlices, migDevicesByProfile) and the name of the product or "
        "profile. At most 1,000 limits, the first by namespace.",
        "namespace",
        "counted",
        "name",
    )
    held = gauge(
        "dracaena_controller_quota_held",
        "What a namespace holds of each of its limits, including what is being allocated or taken back.",
        "namespace",
        "counted",
        "name",
    )
    unread = gauge(
        "dracaena_controller_unread_quotas",
        "Namespaces whose quota cannot be read: the last valid one stays in force.",
    )


class FaultMetrics(MetricTable):
    """What must not happen: our own faults, and devices that two claims hold."""

    records = counter(
        "dracaena_controller_record_faults",
        "Events of a claim's record that cannot happen in its phase, by phase and event: faults of the controller. "
        "The claim keeps its devices.",
        "phase",
        "event",
    )
    collisions = counter(
        "dracaena_controller_collisions",
        "Devices seen allocated to two claims, by kind: own (a device of ours), other (of another driver).",
        "kind",
    )


TABLES: Final = (
    ControllerMetrics,
    DecisionMetrics,
    SetMetrics,
    QueueMetrics,
    WriteMetrics,
    WatchMetrics,
    FaultMetrics,
    QuotaMetrics,
)
