from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import PoolName, gpu_device_name
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable
from dracaena.kubelet_plugin.node.pool import node_pool, preparable_pages
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.machines import divided_machine
from support.plugin import DRIVER, NODE, device_name, gpu_uuid
from support.topologies import topology_from_matrix


def machine(*minors: int | None) -> Machine:
    count = len(minors)
    matrix = [["X" if a == b else "PIX" for b in range(count)] for a in range(count)]
    gpus = tuple(Gpu(uuid=gpu_uuid(n), index=n, minor=minor) for n, minor in enumerate(minors))
    return Machine("m", gpus, topology_from_matrix(matrix))


def pool_of(machine: Machine) -> PublishedPool:
    return node_pool(machine, DRIVER, PoolName(NODE))


def published(machine: Machine) -> tuple[list[str], dict[str, str]]:
    """Return the names of the devices that are published, and why others are not."""
    pages, skipped = preparable_pages(allocatable(machine, driver=DRIVER, tainted=True), pool_of(machine))
    return [device.name for page in pages for device in page], {str(name): text for name, text in skipped.items()}


def test_gpus_are_found_by_the_names_they_are_published_under() -> None:
    gpus = pool_of(machine(4, 7)).gpus
    assert {name: gpu.minor for name, gpu in gpus.items()} == {device_name(0): 4, device_name(1): 7}


def test_a_gpu_without_minor_is_not_published_and_named() -> None:
    names, skipped = published(machine(0, None))
    assert names == [device_name(0)]
    assert list(skipped) == [device_name(1)]
    assert f"the minor number of GPU {gpu_uuid(1)} is not known" in skipped[device_name(1)]


def test_a_divided_gpu_is_published_as_its_parts_only() -> None:
    divided = divided_machine()
    names, skipped = published(divided)
    assert names == [gpu_device_name(divided.gpus[0].uuid), *(mig.device_name for mig in divided.mig_devices)]
    assert skipped == {
        gpu_device_name(divided.gpus[1].uuid): f"GPU {divided.gpus[1].uuid} is divided into MIG devices, so it cannot "
        "be used as a whole"
    }


def test_a_mig_device_that_nobody_could_open_is_not_published() -> None:
    divided = divided_machine()
    first, *others = divided.mig_devices
    names, skipped = published(replace(divided, mig_devices=(replace(first, access_minors=None), *others)))
    assert first.device_name not in names
    assert "which nodes of /dev/nvidia-caps open" in skipped[first.device_name]


def test_without_the_parents_minor_no_part_of_it_is_published() -> None:
    divided = divided_machine()
    one, other = divided.gpus
    names, skipped = published(replace(divided, gpus=(one, replace(other, minor=None))))
    assert names == [gpu_device_name(one.uuid)]
    assert len(skipped) == 4
