"""What a reading of the machine changes: the pool of prepare first, then what is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import PoolName, gpu_device_name
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.discovery.pool import Page
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node_devices import DevicesUnknownError, NodeDevices
from support.machines import divided_machine
from support.plugin import DRIVER, NODE

MACHINE = divided_machine()


class Node:
    """A node whose publications are kept, each with the devices that could be prepared at that moment."""

    def __init__(self) -> None:
        self.metrics = PluginMetrics(CollectorRegistry())
        self.published: list[tuple[list[str], set[str]]] = []
        self.devices = NodeDevices(
            driver=DRIVER,
            name=PoolName(NODE),
            tainted=True,
            publish=self._publish,
            waiting_for=lambda: "waiting for the NVIDIA driver",
            metrics=self.metrics,
        )

    def _publish(self, pages: Sequence[Page]) -> None:
        pool = self.devices.pool()
        self.published.append(([d.name for page in pages for d in page], {*pool.gpus, *pool.mig_devices}))


def test_before_the_first_reading_there_is_no_pool_and_the_reason_is_said() -> None:
    with pytest.raises(DevicesUnknownError, match="not known yet: waiting for the NVIDIA driver"):
        Node().devices.pool()


def test_what_is_published_can_be_prepared_at_that_moment() -> None:
    node = Node()
    node.devices.take(MACHINE)
    ((names, preparable),) = node.published
    assert names == [gpu_device_name(MACHINE.gpus[0].uuid), *(mig.device_name for mig in MACHINE.mig_devices)]
    assert set(names) <= preparable
    assert node.metrics.skipped_devices._value.get() == 1


def test_another_reading_replaces_the_pool() -> None:
    node = Node()
    node.devices.take(MACHINE)
    node.devices.take(replace(MACHINE, mig_devices=()))
    assert not node.devices.pool().mig_devices
    assert len(node.published[-1][0]) == 1


def test_a_reading_that_cannot_be_published_leaves_the_last_one() -> None:
    node = Node()
    node.devices.take(MACHINE)
    nameless = replace(MACHINE.gpus[0], uuid="GPU-?")
    with pytest.raises(TopologyError, match="makes no device name"):
        node.devices.take(replace(MACHINE, gpus=(nameless, MACHINE.gpus[1])))
    assert len(node.published) == 1
    assert len(node.devices.pool().mig_devices) == 3
