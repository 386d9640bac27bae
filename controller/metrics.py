"""What can be measured about the controller."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


class ControllerMetrics:
    """All metrics of the controller, in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.decisions = Counter(
            "dracaena_controller_decisions",
            "Decisions about a pod's claims, by result: allocated, unsatisfied, refused, settled.",
            ["result"],
            registry=registry,
        )
        self.decision_seconds = Histogram(
            "dracaena_controller_decision_seconds",
            "Time of one decision, with the wait for its turn, without any write.",
            # From a look at the buckets (below 1 ms) to a first look at 16 free GPUs of which no two pairs are alike.
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )
        self.waiting_pods = Gauge(
            "dracaena_controller_waiting_pods",
            "Pods whose claims cannot be allocated now, by reason.",
            ["reason"],
            registry=registry,
        )
        self.conflicts = Counter(
            "dracaena_controller_write_conflicts",
            "Writes refused because the claim had changed.",
            registry=registry,
        )
        self.lost_writes = Counter(
            "dracaena_controller_lost_writes",
            "Decisions that could not be written whole, because somebody else allocated or deleted a claim.",
            registry=registry,
        )
        self.take_backs = Counter(
            "dracaena_controller_take_backs",
            "Allocations taken back, by end: cleared, kept (the pod was bound meanwhile), gone.",
            ["end"],
            registry=registry,
        )
        self.unusable_devices = Gauge(
            "dracaena_controller_unusable_devices",
            "Published devices and pools that cannot be used, for example because attributes do not decode.",
            registry=registry,
        )
        self.updating_pools = Gauge(
            "dracaena_controller_updating_pools",
            "Pools whose slices are not all there: ordinary while a plugin writes them, a fault when it lasts.",
            registry=registry,
        )

        self.leader = Gauge(
            "dracaena_controller_leader",
            "1 while this process holds the lease, or runs without an election; 0 while it stands by.",
            registry=registry,
        )

    def problems_changed(self, unusable: int, updating: int) -> None:
        """Take in how much of what is published cannot be used: for good, and for the moment."""
        self.unusable_devices.set(unusable)
        self.updating_pools.set(updating)
