from __future__ import annotations

import pytest

from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.objects import Taint
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.discovery.allocatable import allocatable, slice_specs


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
