"""The controller's metrics, by subject. docs/metrics.md lists all of them."""

from __future__ import annotations

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from dracaena.api.config.v1alpha1 import Requirement

MOST_GPUS_COUNTED: Final = 16
"""The largest set of GPUs whose size is counted separately: the largest boxes on sale have as many GPUs, and every
label value costs each replica a time series."""


class ControllerMetrics:
    """All metrics of the controller, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.decisions = DecisionMetrics(registry)
        self.sets = SetMetrics(registry)
        self.queue = QueueMetrics(registry)
        self.writes = WriteMetrics(registry)
        self.watches = WatchMetrics(registry)
        self.faults = FaultMetrics(registry)
        self.quotas = QuotaMetrics(registry)
        self.leader = Gauge(
            "dracaena_controller_leader",
            "1 while this process holds the lease, or runs without an election; 0 while it stands by.",
            registry=registry,
        )


class DecisionMetrics:
    """Decisions, and what became of those that were written."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.results = Counter(
            "dracaena_controller_decisions",
            "Decisions about a pod's claims, by result: allocated, unsatisfied, refused, settled, too-long (stopped at "
            "its deadline); and without a look at the nodes: behind (an equal pod waits before it), in-progress (a "
            "claim is being allocated or taken back).",
            ["result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "dracaena_controller_decision_seconds",
            "Seconds of one decision that looked at the nodes, including the wait for the lock, without any write.",
            # From a look at the buckets (below 1 ms) to a first look at 16 free GPUs with no two pairs alike.
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )
        self.allocated_pods = Counter(
            "dracaena_controller_allocations",
            "Pods whose claims were all allocated as decided.",
            registry=registry,
        )
        self.lost = Counter(
            "dracaena_controller_lost_writes",
            "Decisions that could not be written in full, because another program allocated or deleted a claim.",
            registry=registry,
        )
        self.take_backs = Counter(
            "dracaena_controller_take_backs",
            "Allocations taken back, by reason: refused, passed-over, no-preemption, pod-group, unreserved, "
            "collision, half-written, unused; and by end: cleared, kept (the pod was bound, or another one reserved "
            "the claim meanwhile).",
            ["reason", "end"],
            registry=registry,
        )


class SetMetrics:
    """What pods got: the sets of whole GPUs that were chosen by links."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.allocated = Counter(
            "dracaena_controller_allocated_sets",
            "Pods that got a set of whole GPUs that was chosen by links, by size (gpus: 1 to 16, then 17+), by the "
            "strictest requirement of the pod's policies, and by the set's worst link (NVLink, PSB, PIX, PXB, PHB, "
            "NODE, SYS, unknown; none for one GPU).",
            ["gpus", "requirement", "worst_link"],
            registry=registry,
        )

    def count(self, gpus: int, requirement: Requirement, worst_link: str) -> None:
        """Count a set of GPUs that was allocated as decided; `worst_link` is one of box.worst_link()'s words."""
        size = str(gpus) if gpus <= MOST_GPUS_COUNTED else f"{MOST_GPUS_COUNTED + 1}+"
        self.allocated.labels(size, requirement.value, worst_link).inc()


class QueueMetrics:
    """What waits for a worker, or for a change of the cluster."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.length = Gauge(
            "dracaena_controller_queue_length",
            "Pods and claims queued for processing, now or after a delay; not those that only a change can help.",
            registry=registry,
        )
        self.waiting_pods = Gauge(
            "dracaena_controller_waiting_pods",
            "Pods whose claims cannot be allocated now, by reason.",
            ["reason"],
            registry=registry,
        )
        self.oldest_waiting_pod_seconds = Gauge(
            "dracaena_controller_oldest_waiting_pod_seconds",
            "Seconds since the creation of the oldest pod whose claims cannot be allocated now; 0 when none waits.",
            registry=registry,
        )
        self.free_gpus = Gauge(
            "dracaena_controller_free_gpus",
            "Whole GPUs that no claim has and that carry no taint but ours, on nodes that are ready and not cordoned; "
            "without those for virtual machines.",
            registry=registry,
        )
        self.most_free_gpus = Gauge(
            "dracaena_controller_most_free_gpus",
            "The same on the node that has the most of them.",
            registry=registry,
        )
        self.kept_nodes = Gauge(
            "dracaena_controller_earmarks",
            "Nodes that are kept free for a pod that has waited too long: 0 or 1.",
            registry=registry,
        )


class WriteMetrics:
    """Writes to the API server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.results = Counter(
            "dracaena_controller_writes",
            "Writes to the API server, by verb: mark (finalizer), allocate, reserve, deallocate, "
            "nominate, probe (of a pod's condition), ungate, make-template, delete-template; and by result: ok, "
            "exists, conflict (changed meanwhile), invalid (refused by validation), gone, failed.",
            ["verb", "result"],
            registry=registry,
        )
        self.conflicts = Counter(
            "dracaena_controller_write_conflicts",
            "Writes refused because the claim had changed.",
            registry=registry,
        )
        self.nominations = Counter(
            "dracaena_controller_nominations",
            "Writes of a pod's nominatedNodeName, by result: set, cleared, refused.",
            ["result"],
            registry=registry,
        )
        self.ungated = Counter(
            "dracaena_controller_ungated_pods",
            "Pods that passed our scheduling gate, by reason: allocated, not-ours (they ask for nothing that we "
            "allocate), fits-nowhere (so that autoscalers see them).",
            ["reason"],
            registry=registry,
        )
        self.events = Counter(
            "dracaena_controller_events",
            "Kubernetes Events, by fate: written, failed, dropped (too many waited), limited (too many about one "
            "object).",
            ["fate"],
            registry=registry,
        )

    def wrote(self, verb: str, result: str) -> None:
        """Count a write to the API server."""
        self.results.labels(verb, result).inc()

    def event_sent(self, fate: str) -> None:
        """Count a Kubernetes Event."""
        self.events.labels(fate).inc()


class WatchMetrics:
    """What the watches deliver, and how much of it cannot be used."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.silence_seconds = Gauge(
            "dracaena_controller_watch_silence_seconds",
            "Seconds since the API server last sent something of a resource: a list, a change, or a bookmark. "
            "After 80 s of silence everything is listed again, so more than 90 means that the cache may be behind.",
            ["resource"],
            registry=registry,
        )
        self.unreadable_objects = Gauge(
            "dracaena_controller_unreadable_objects",
            "Objects of a resource that cannot be read, or whose last change was not applied; the log names them.",
            ["resource"],
            registry=registry,
        )
        self.unusable_devices = Gauge(
            "dracaena_controller_unusable_devices",
            "Published devices and pools that cannot be used, for example because attributes do not decode.",
            registry=registry,
        )
        self.not_understood_slices = Gauge(
            "dracaena_controller_not_understood_slices",
            "ResourceSlices with fields that this version does not know, by driver: whatever has them is left alone.",
            ["driver"],
            registry=registry,
        )
        self.updating_pools = Gauge(
            "dracaena_controller_updating_pools",
            "Pools with missing slices: normal while a plugin writes them, a fault if it lasts.",
            registry=registry,
        )

    def problems_changed(self, unusable: int, updating: int) -> None:
        """Take in how much of what is published cannot be used, permanently and for the moment."""
        self.unusable_devices.set(unusable)
        self.updating_pools.set(updating)


class QuotaMetrics:
    """What namespaces with a quota may hold, and hold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["namespace", "counted", "name"]
        self.limit = Gauge(
            "dracaena_controller_quota_limit",
            "What a namespace may hold, by what is counted (a key of the quota: gpus, gpusByProduct, shareMemory in "
            "bytes, shareCores in percent of one GPU, migSlices, migDevicesByProfile) and the name of the product or "
            "profile. At most 1,000 limits, the first by namespace.",
            labels,
            registry=registry,
        )
        self.held = Gauge(
            "dracaena_controller_quota_held",
            "What a namespace holds of each of its limits, including what is being allocated or taken back.",
            labels,
            registry=registry,
        )
        self.unread = Gauge(
            "dracaena_controller_unread_quotas",
            "Namespaces whose quota cannot be read: the last valid one stays in force.",
            registry=registry,
        )


class FaultMetrics:
    """What must not happen: our own faults, and devices that two claims hold."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.records = Counter(
            "dracaena_controller_record_faults",
            "Events of a claim's record that cannot happen in its phase, by phase and event: faults of the controller. "
            "The claim keeps its devices.",
            ["phase", "event"],
            registry=registry,
        )
        self.collisions = Counter(
            "dracaena_controller_collisions",
            "Devices seen allocated to two claims, by kind: own (a device of ours), other (of another driver).",
            ["kind"],
            registry=registry,
        )
