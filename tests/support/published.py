"""What NodeDevices publishes of a machine, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from dracaena.api.names import DeviceName
from dracaena.api.resource_objects import CounterSet, Device
from dracaena.kubelet_plugin.discovery.gpu_list import ALL_WHOLE, GpuList
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.discovery.publish.pool import Page, devices_of
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.devices import NodeDevices, PublishingRules
from support.plugin import HeardTroubles, node_claims, node_context


class Node:
    """A node whose publications are kept, each with the devices that could be prepared at that moment."""

    def __init__(
        self,
        *,
        watched: bool = False,
        laid_out: Collection[str] = (),
        gpus: GpuList = ALL_WHOLE,
        guest_modes: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.labels: dict[str, str] = {}
        self.own: set[DeviceName] = set()
        self.own_asked = 0
        self.made: dict[DeviceName, MadeDevice] = {}
        self.counters: dict[str, dict[str, str]] = {}
        self.metrics = PluginMetrics(CollectorRegistry())
        heard = HeardTroubles(self.metrics)
        self.troubles = heard.updates
        self.published: list[tuple[list[str], set[str]]] = []
        self.taints: dict[str, list[str]] = {}
        self.devices_published: list[Device] = []
        self.devices = NodeDevices(
            node_context(node_claims(Path("/nonexistent")), metrics=self.metrics, troubles=heard),
            PublishingRules(tainted=True, watched=watched, laid_out=frozenset(laid_out), gpu_list=gpus),
            publish=self._publish,
            waiting_for=lambda: "waiting for the NVIDIA driver",
            own_places=self._own_places,
            made_devices=lambda: dict(self.made),
            labels=lambda: self.labels,
            guest_modes=guest_modes,
        )

    def _own_places(self) -> set[DeviceName]:
        self.own_asked += 1
        return self.own

    def _publish(self, pages: Sequence[Page]) -> None:
        pool = self.devices.pool()
        devices = [d for page in pages for d in devices_of(page)]
        sets = [each for page in pages for each in page if isinstance(each, CounterSet)]
        self.published.append(([d.name for d in devices], {*pool.gpus, *pool.mig_devices, *pool.mig_places}))
        self.devices_published = devices
        self.taints = {d.name: [taint.key for taint in d.taints] for d in devices}
        self.counters = {each.name: {name: c.value for name, c in each.counters.items()} for each in sets}
