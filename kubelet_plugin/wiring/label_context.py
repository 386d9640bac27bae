"""What whatever follows a label of the Node is connected to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from prometheus_client import Gauge

from dracaena.api.names import DeviceName, PoolName
from dracaena.api.objects import Pod
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, set_node_condition
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.labels.follower import LabelFollower, LabelPorts, LabelRow
from dracaena.kubelet_plugin.labels.reports import LabelReports, LabelWords
from dracaena.kubelet_plugin.node.devices import EVERY_GPU, gpu_of
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.store.claims import IsOf, is_of_gpu
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers, is_named_of_gpu
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts

T = TypeVar("T")
G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class FollowedLabel:
    """A label, and where its progress is reported."""

    key: str
    """Its key, and that of the taint on devices during a change."""
    default: str | None
    """See LabelPorts."""
    words: LabelWords
    gauge: Gauge
    has_condition: bool = False


@dataclass(frozen=True, slots=True)
class LabelContext:
    """The parts of a node that rows work with."""

    node: NodeParts
    gpus: GpuParts
    pods: Reflector[Pod]
    engine: ChangeEngine

    @property
    def live(self) -> LiveMachine:
        """What polls the node; there always is one where a label is followed."""
        assert self.gpus.live is not None
        return self.gpus.live

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

    def follower(self, label: FollowedLabel, row: LabelRow[T, G]) -> LabelFollower[T, G]:
        """Return what follows a label; not started, but told of readings, labels and slices from now on."""
        node, gpus = self.node, self.gpus
        condition = partial(set_node_condition, node.client, node.settings.node_name) if label.has_condition else None
        on_troubles = partial(node.troubles.update, row.name)
        reports = LabelReports(label.words, label.gauge, node.events.on_node, on_troubles, condition, node.clock)
        ports = LabelPorts(
            key=label.key,
            default=label.default,
            labels=self._labels,
            withhold=partial(gpus.devices.withhold, label.key),
            is_withheld=partial(self._is_withheld, label.key),
            read_soon=self.live.read_soon,
            tell=reports.tell,
        )
        follower = LabelFollower(row, ports, node.clock)
        gpus.updates.subscribe(follower.take, same=follower.read_again)
        node.label_updates.subscribe(follower.look_soon)
        gpus.publisher.subscribe(follower.look_soon)
        return follower

    def _labels(self) -> Mapping[str, str] | None:
        seen = self.node.cache.get(self.node.settings.node_name)
        return None if seen is None else seen.metadata.labels

    def _is_withheld(self, key: str, gpu: str) -> bool:
        devices = (device for each in self.gpus.slices.values() for device in each.spec.devices)
        return self.gpus.slices.synced and all(
            any(taint.key == key for taint in device.taints) for device in devices if gpu in (EVERY_GPU, gpu_of(device))
        )
