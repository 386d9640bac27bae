"""GPUs that are published for containers and for virtual machines at once: what is counted, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import decode_pool
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from support.gpu_lists import entry, gpu_list
from support.mig_geometries import divisible_machine
from support.passthrough import on_demand, passthrough_gpu
from support.published import Node

MADE = on_demand(divisible_machine(2))
WHOLE = [gpu_device_name(gpu.uuid) for gpu in MADE.gpus]
VFIO = [gpu.device_name for gpu in MADE.passthrough]


def published(machine: Machine, **settings: Any) -> Node:
    node = Node(**settings)
    node.devices.take(machine)
    return node


def taken(device: Device) -> dict[str, dict[str, str]]:
    return {each.counter_set: {n: c.value for n, c in each.counters.items()} for each in device.consumes_counters}


def test_both_devices_of_a_gpu_take_its_one_counter() -> None:
    node = published(MADE)
    assert [device.name for device in node.devices_published] == [*WHOLE, *VFIO]
    assert node.counters == {name: {"whole": "1"} for name in WHOLE}
    for device, name in zip(node.devices_published, [*WHOLE, *WHOLE], strict=True):
        assert taken(device) == {name: {"whole": "1"}}
    decoded = decode_pool(node.devices_published)
    assert decoded.problems == ()
    assert [gpu.ordinal for gpu in decoded.gpus] == [0, 1, 2, 3]


def test_one_that_is_divided_or_shared_too_is_taken_whole_by_the_virtual_machine() -> None:
    node = published(MADE, gpus=read_gpus([entry("mig", "0"), entry("shared", "0,1,2,3")]))
    by_name = {device.name: device for device in node.devices_published}
    assert taken(by_name[VFIO[0]]) == taken(by_name[WHOLE[0]]) == {WHOLE[0]: node.counters[WHOLE[0]]}
    assert len(node.counters[WHOLE[0]]) > 1
    assert taken(by_name[VFIO[1]]) == {WHOLE[1]: {"whole": "1"}}
    assert by_name[WHOLE[1]].allow_multiple_allocations
    assert not by_name[VFIO[1]].allow_multiple_allocations


def test_while_vfio_has_a_gpu_it_is_published_for_virtual_machines_alone() -> None:
    bound = passthrough_gpu(0, on_demand=True)
    links = replace(MADE.topology, gpu_count=3, pairs=MADE.topology.pairs[3:], numa_nodes=MADE.topology.numa_nodes[1:])
    node = published(Machine("n", MADE.gpus[1:], links, passthrough=(bound, MADE.passthrough[1])))
    assert [device.name for device in node.devices_published] == [WHOLE[1], *VFIO]
    assert taken(node.devices_published[1]) == {}


def test_a_gpu_that_an_admin_divided_goes_to_no_virtual_machine_and_the_node_says_so() -> None:
    divided = replace(MADE, gpus=(replace(MADE.gpus[0], mig_enabled=True), MADE.gpus[1]))
    node = published(divided)
    assert [device.name for device in node.devices_published] == [WHOLE[1], VFIO[1]]
    (told,) = (each for each in node.troubles[-1] if each.reason == "PassthroughRefused")
    assert told.subject == "0000:20:00.0"
    assert f"GPU {MADE.gpus[0].uuid} is in MIG mode" in told.text
    assert "`nvidia-smi -i 0000:20:00.0 -mig 0`" in told.text, "what to do"
    node.devices.take(MADE)
    assert node.troubles[-1] == ()


def test_a_gpu_that_is_in_mig_mode_for_claims_goes_to_virtual_machines_too() -> None:
    divided = replace(MADE, gpus=(replace(MADE.gpus[0], mig_enabled=True), MADE.gpus[1]))
    node = published(divided, gpus=gpu_list(mig="0"))
    assert VFIO[0] in [device.name for device in node.devices_published]
    assert node.troubles[-1] == ()


def test_a_gpu_that_no_driver_has_goes_to_no_virtual_machine() -> None:
    other = passthrough_gpu(9, driver="", is_bound=False, on_demand=True)
    node = published(replace(MADE, passthrough=(MADE.passthrough[0], other)))
    assert [device.name for device in node.devices_published] == [*WHOLE, VFIO[0]]
    assert set(node.devices.pool().passthrough) == {VFIO[0], other.device_name}, "a claim for it can go on"


def test_a_gpu_that_is_broken_goes_to_nobody_and_nobody_who_has_it_is_ended_for_that() -> None:
    node = published(MADE)
    taints = [Taint("lost", "x", "NoSchedule"), Taint("evict", "x", "NoExecute")]
    node.devices.take_taints({DeviceName(WHOLE[0]): taints})
    assert node.taints[VFIO[0]][1:] == ["lost"]
    assert node.taints[WHOLE[0]][1:] == ["lost", "evict"]
    assert len(node.taints[VFIO[1]]) == 1


def test_one_that_both_drivers_have_is_a_contradiction() -> None:
    bound = replace(MADE.passthrough[0], is_bound=True)
    with pytest.raises(TopologyError, match="both show the GPU"):
        replace(MADE, passthrough=(bound, MADE.passthrough[1])).check()
