"""What layouts of any kind are connected to on a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Gauge

from dracaena.api.names import DeviceName, PoolName
from dracaena.api.objects import Pod
from dracaena.host.adapters.files.lock import GpuLocks
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, set_node_condition
from dracaena.kubelet_plugin.layouts.reports import LayoutReports, LayoutWords
from dracaena.kubelet_plugin.layouts.rounds import LayoutPorts
from dracaena.kubelet_plugin.node.devices import gpu_of
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.store.claims import IsOf, is_of_gpu
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers, is_named_of_gpu
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts


@dataclass(frozen=True, slots=True)
class ChosenLayout:
    """Where the name of a layout comes from, and where its progress is reported."""

    key: str
    """Key of the Node's label, and of the taint on devices during a change."""
    default: str
    """Layout of a Node without such a label."""
    words: LayoutWords
    gauge: Gauge
    troubles: str
    """Key of the node's troubles."""
    has_condition: bool


@dataclass(frozen=True, slots=True)
class LayoutContext:
    """The parts of a node that layouts work with."""

    node: NodeParts
    gpus: GpuParts
    pods: Reflector[Pod]

    @property
    def live(self) -> LiveMachine:
        """What polls the node; with layouts there always is one."""
        assert self.gpus.live is not None
        return self.gpus.live

    def gpu_lock(self) -> Callable[[DeviceName], NodeLock]:
        """Return a function from a GPU to its lock."""
        return GpuLocks(self.node.paths.gpu_locks, self.node.clock).of

    def users(
        self,
        is_of: IsOf = is_of_gpu,
        is_named_of: Callable[[str, DeviceName], bool] = is_named_of_gpu,
    ) -> GpuUsers:
        """Return what finds the claims that have something of a GPU."""
        settings = self.node.settings
        return GpuUsers(
            driver=settings.driver_name,
            pool=PoolName(settings.node_name),
            claims=self.node.claims,
            pods=self.pods,
            find_claim=KubeClaims(self.node.client).find_claim,
            is_of=is_of,
            is_named_of=is_named_of,
        )

    def ports(self, chosen: ChosenLayout) -> LayoutPorts:
        """Return what one kind of layouts is connected to."""
        return LayoutPorts(
            name=partial(self._layout_name, chosen),
            withhold=partial(self.gpus.devices.withhold, chosen.key),
            is_withheld=partial(self._is_withheld, chosen.key),
            read_soon=self.live.read_soon,
            tell=self._reports(chosen).tell,
        )

    def _layout_name(self, chosen: ChosenLayout) -> str | None:
        """Return the layout that the label names, otherwise that of the settings; None before the Node was seen."""
        seen = self.node.cache.get(self.node.settings.node_name)
        return None if seen is None else seen.metadata.labels.get(chosen.key, chosen.default)

    def _is_withheld(self, key: str, gpu: str) -> bool:
        devices = (device for each in self.gpus.slices.values() for device in each.spec.devices)
        return self.gpus.slices.synced and all(
            any(taint.key == key for taint in device.taints) for device in devices if gpu_of(device) == gpu
        )

    def _reports(self, chosen: ChosenLayout) -> LayoutReports:
        node = self.node
        return LayoutReports(
            chosen.words,
            chosen.gauge,
            node.events.on_node,
            partial(node.troubles.update, chosen.troubles),
            partial(set_node_condition, node.client, node.settings.node_name) if chosen.has_condition else None,
            node.clock,
        )
