from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice
from dracaena.api.names import gpu_device_name
from dracaena.api.objects import Taint
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable, counter_pages, slice_specs
from dracaena.kubelet_plugin.device_kinds.device_kind import GpuRoles
from support.mig_geometries import divisible_machine


def machine_of(count: int) -> Machine:
    gpus = tuple(Gpu(f"GPU-00000000-0000-4000-8000-{n:012x}", n) for n in range(count))
    pairs = (Link(LinkLevel.SYS, 0),) * (count * (count - 1) // 2)
    return Machine("m", gpus, Topology(count, pairs, (None,) * count))


@pytest.mark.parametrize(("gpus", "pages"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (129, [64, 64, 1])])
def test_pages_hold_at_most_64_devices_and_an_empty_pool_has_one(gpus: int, pages: list[int]) -> None:
    specs = slice_specs(machine_of(gpus), driver="gpu.example.com", node_name="n1", tainted=True)
    assert [len(spec.devices) for spec in specs] == pages
    assert {spec.pool.resource_slice_count for spec in specs} == {len(pages)}
    assert {(spec.driver, spec.node_name, spec.pool.name) for spec in specs} == {("gpu.example.com", "n1", "n1")}


def test_devices_keep_the_order_of_ordinals_over_all_pages() -> None:
    pages = allocatable(machine_of(70), driver="gpu.example.com", tainted=True)
    ordinals = [device.attributes["ordinal"].int_value for page in pages for device in page]
    assert ordinals == list(range(70))


def test_the_taint_follows_the_driver_and_the_wish() -> None:
    for tainted, expected in (
        (True, [Taint("gpu.example.com/controller-allocated", "true", "NoSchedule")]),
        (False, []),
    ):
        ((device, _),) = allocatable(machine_of(2), driver="gpu.example.com", tainted=tainted)
        assert device.taints == expected


@given(st.lists(st.sampled_from([None, False, True]), max_size=70))
def test_gpus_in_mig_mode_are_left_out_of_the_specs_and_their_parts_are_not(modes: list[bool | None]) -> None:
    machine = machine_of(len(modes))
    gpus = tuple(replace(gpu, mig_enabled=mode) for gpu, mode in zip(machine.gpus, modes, strict=True))
    migs = tuple(
        MigDevice(gpu.uuid, f"MIG-00000000-0000-4000-8000-{gpu.index:012x}", 1, 0, "1g.10gb", 0, 1)
        for gpu in gpus
        if gpu.mig_enabled
    )
    specs = slice_specs(
        replace(machine, gpus=gpus, mig_devices=migs), driver="gpu.example.com", node_name="n1", tainted=True
    )
    assert [device.name for spec in specs for device in spec.devices] == [
        *(gpu_device_name(gpu.uuid) for gpu in gpus if not gpu.mig_enabled),
        *(mig.device_name for mig in migs),
    ]
    assert {spec.pool.resource_slice_count for spec in specs} == {len(specs)}


@pytest.mark.parametrize(("gpus", "pages"), [(0, []), (1, [1]), (8, [8]), (9, [8, 1]), (16, [8, 8])])
def test_counter_sets_stand_on_pages_of_their_own_at_most_8_each(gpus: int, pages: list[int]) -> None:
    machine = divisible_machine(gpus)
    roles = GpuRoles(divided=frozenset(gpu.uuid for gpu in machine.gpus))
    sets = counter_pages(machine, roles, {})
    assert [len(page) for page in sets] == pages
    assert [each.name for page in sets for each in page] == [gpu_device_name(gpu.uuid) for gpu in machine.gpus]
    devices = [d for page in allocatable(machine, driver="gpu.example.com", tainted=True, roles=roles) for d in page]
    assert len(devices) == gpus * 26
    names = {each.name: set(each.counters) for page in sets for each in page}
    for device in devices:
        (taken,) = device.consumes_counters
        assert set(taken.counters) <= names[taken.counter_set]


def test_gpus_that_are_not_divided_on_demand_have_no_counters() -> None:
    machine = divisible_machine(2)
    roles = GpuRoles(divided=frozenset({machine.gpus[1].uuid}))
    (page,) = allocatable(machine, driver="gpu.example.com", tainted=True, roles=roles)
    assert [bool(device.consumes_counters) for device in page] == [False, *[True] * 26]
    assert [len(each) for each in counter_pages(machine, roles, {})] == [1]
    assert counter_pages(machine, GpuRoles(), {}) == ()


def test_what_8_gpus_cost_on_the_wire_is_bounded() -> None:
    """An admin's watch and each controller read this for each node: it may not grow unnoticed."""
    machine = divisible_machine(8)
    roles = GpuRoles(divided=frozenset(gpu.uuid for gpu in machine.gpus))
    pages = (
        *allocatable(machine, driver="gpu.dracaena.dev", tainted=True, roles=roles),
        *counter_pages(machine, roles, {}),
    )
    sizes = [len(msgspec.json.encode(page)) for page in pages]
    assert [len(page) for page in pages] == [64, 64, 64, 16, 8]
    assert max(sizes) < 64 << 10
    assert sum(sizes) < 200 << 10
