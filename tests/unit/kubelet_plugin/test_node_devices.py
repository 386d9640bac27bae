"""What a reading of the machine changes: the pool of prepare first, then what is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import PoolName, gpu_device_name, taint_key
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import Device
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.discovery.pool import Page
from dracaena.kubelet_plugin.discovery.troubles import Trouble
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node_devices import DevicesUnknownError, NodeDevices
from support.machines import divided_machine
from support.plugin import DRIVER, NODE

MACHINE = divided_machine()


class Node:
    """A node whose publications are kept, each with the devices that could be prepared at that moment."""

    def __init__(self, *, watched: bool = False, sharing: str = "") -> None:
        self.metrics = PluginMetrics(CollectorRegistry())
        self.published: list[tuple[list[str], set[str]]] = []
        self.troubles: list[Sequence[Trouble]] = []
        self.taints: dict[str, list[str]] = {}
        self.devices_published: list[Device] = []
        self.devices = NodeDevices(
            driver=DRIVER,
            name=PoolName(NODE),
            tainted=True,
            publish=self._publish,
            waiting_for=lambda: "waiting for the NVIDIA driver",
            metrics=self.metrics,
            watched=watched,
            sharing=sharing,
            on_troubles=self.troubles.append,
        )

    def _publish(self, pages: Sequence[Page]) -> None:
        pool = self.devices.pool()
        self.published.append(([d.name for page in pages for d in page], {*pool.gpus, *pool.mig_devices}))
        self.devices_published = [d for page in pages for d in page]
        self.taints = {d.name: [taint.key for taint in d.taints] for page in pages for d in page}


def test_before_the_first_reading_there_is_no_pool_and_the_reason_is_said() -> None:
    with pytest.raises(DevicesUnknownError, match="not known yet: waiting for the NVIDIA driver"):
        Node().devices.pool()


def test_what_is_published_can_be_prepared_at_that_moment() -> None:
    node = Node()
    node.devices.take(MACHINE)
    ((names, preparable),) = node.published
    assert names == [gpu_device_name(MACHINE.gpus[0].uuid), *(mig.device_name for mig in MACHINE.mig_devices)]
    assert set(names) <= preparable
    assert node.metrics.devices.skipped._value.get() == 1


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


def test_what_is_watched_is_published_once_its_health_was_looked_at() -> None:
    node = Node(watched=True)
    node.devices.take(MACHINE)
    assert node.devices.pool().gpus
    assert node.published == []
    node.devices.take_taints({})
    assert len(node.published) == 1


def test_taints_of_health_stand_behind_ours_and_follow_the_device_through_readings() -> None:
    node, name = Node(watched=True), MACHINE.mig_devices[0].device_name
    node.devices.take_taints({name: [Taint(f"{DRIVER}/xid", "79", "NoSchedule")]})
    node.devices.take(MACHINE)
    node.devices.take(replace(MACHINE, driver_version="590.10"))
    assert node.taints.pop(name) == [taint_key(DRIVER), f"{DRIVER}/xid"]
    assert set(map(tuple, node.taints.values())) == {(taint_key(DRIVER),)}


def test_a_device_that_cannot_be_prepared_is_a_trouble_and_a_gpu_that_is_divided_is_none() -> None:
    node = Node()
    node.devices.take(MACHINE)
    assert node.troubles == [()]
    nameless = replace(MACHINE.gpus[0], minor=None)
    node.devices.take(replace(MACHINE, gpus=(nameless, *MACHINE.gpus[1:])))
    ((told,),) = node.troubles[1:]
    assert (told.reason, told.subject) == ("DeviceSkipped", gpu_device_name(nameless.uuid))
    assert "minor number" in told.text


def test_a_gpu_that_takes_the_index_of_a_lost_one_is_not_shared_in_its_place() -> None:
    gpus = [replace(gpu, mig_enabled=False, memory_bytes=80 << 30) for gpu in MACHINE.gpus]
    whole = replace(MACHINE, gpus=tuple(gpus), mig_devices=())
    node = Node(sharing="0")

    def shared() -> list[str]:
        return [device.name for device in node.devices_published if device.allow_multiple_allocations]

    node.devices.take(whole)
    assert shared() == [gpu_device_name(gpus[0].uuid)]
    swapped = (replace(gpus[1], index=0), replace(gpus[0], index=1))
    node.devices.take(replace(whole, gpus=swapped))
    assert shared() == [gpu_device_name(gpus[0].uuid)]
    ((told,),) = node.troubles[1:]
    assert (told.reason, told.subject) == ("SharingUnclear", "0")
    assert f"is GPU {gpus[1].uuid} now" in told.text
