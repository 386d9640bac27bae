from __future__ import annotations

from dracaena.api.machine import Gpu, Machine
from dracaena.api.objects import Device
from dracaena.api.topology import topology_from_matrix
from dracaena.kubelet_plugin.allocatable import allocatable_gpus, preparable_pages
from support.plugin import device_name, gpu_uuid


def machine(*minors: int | None) -> Machine:
    count = len(minors)
    matrix = [["X" if a == b else "PIX" for b in range(count)] for a in range(count)]
    gpus = tuple(Gpu(uuid=gpu_uuid(n), index=n, minor=minor) for n, minor in enumerate(minors))
    return Machine("m", gpus, topology_from_matrix(matrix))


def test_gpus_are_found_by_the_names_they_are_published_under() -> None:
    gpus = allocatable_gpus(machine(4, 7))
    assert {name: gpu.minor for name, gpu in gpus.items()} == {device_name(0): 4, device_name(1): 7}


def test_a_gpu_without_minor_is_not_published_and_named() -> None:
    pages = [(Device(device_name(0)), Device(device_name(1)))]
    assert preparable_pages(pages, allocatable_gpus(machine(0, None))) == (
        ((Device(device_name(0)),),),
        (device_name(1),),
    )
