"""The Events that the plugin writes on its node, and on claims and pods whose devices are in trouble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.events import EventRecorder, EventType
from dracaena.kubelet_plugin.discovery.health.device_health import DeviceHealth, Status
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference

_HEALTH_EVENTS: Mapping[Status, tuple[EventType, str]] = {
    Status.HEALTHY: ("Normal", "GpuHealthy"),
    Status.UNHEALTHY: ("Warning", "GpuUnhealthy"),
    Status.UNKNOWN: ("Warning", "GpuHealthUnknown"),
}

_LOOK = "on the node: `nvidia-smi -q`, `dmesg | grep -i -e nvrm -e xid`"


class NodeEvents:
    """Puts Events into the recorder's queue. From any thread; never blocks."""

    def __init__(self, recorder: EventRecorder, node_name: str) -> None:
        self._recorder = recorder
        # The UID is the node's name, as in kubelet's own Events: `kubectl describe node` looks for both.
        self._node = Node(metadata=ObjectMeta(name=node_name, uid=node_name))

    def on_node(self, kind: EventType, reason: str, text: str) -> None:
        """Write an Event on the node."""
        self._recorder.record(self._node, kind, reason, text)

    def warn_node(self, reason: str, text: str) -> None:
        """Write a warning on the node."""
        self.on_node("Warning", reason, text)

    def warn_users(self, claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        """Write a warning on a claim and on the pods that use it."""
        meta = ObjectMeta(name=claim.name, namespace=claim.namespace, uid=claim.uid)
        for subject in (ResourceClaim(metadata=meta), *pods):
            self._recorder.record(subject, "Warning", reason, text)

    def devices_not_published(self, node: Node, reason: str) -> None:
        """Write on the node, by its own UID, why its ResourceSlices were refused."""
        self._recorder.record(node, "Warning", "DevicesNotPublished", reason)

    def gpu_driver_replaced(self, before: str, now: str | None) -> None:
        """Write on the node that another version of NVIDIA's driver is loaded."""
        text = f"driver {before} was replaced by {now}: the devices are published again"
        self.on_node("Normal", "DriverReplaced", text)

    def health_changed(self, health: DeviceHealth) -> None:
        """Write on the node what a device's health is now, and where to look if it is not good."""
        kind, reason = _HEALTH_EVENTS[health.status]
        text = f"device {health.device} is {health.status.value}"
        text = f"{text}: {health.message}" if health.message else text
        self.on_node(kind, reason, text if health.status is Status.HEALTHY else f"{text}; {_LOOK}")
