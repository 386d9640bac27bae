"""Machines whose drivers report anything: values that no ResourceSlice can hold, among those that it can."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable
from support.machines import topologies

WILD_TEXT = st.none() | st.text(max_size=90) | st.sampled_from(["", " ", "\0", "é" * 40, "x" * 65, "a/b", "\ud7ff"])
WILD_VERSION = st.none() | st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,12}){0,4}", fullmatch=True) | WILD_TEXT
WILD_NUMBER = st.none() | st.integers(-(2**70), 2**70)


@st.composite
def wild_machines(draw: st.DrawFn, largest: int = 6) -> Machine:
    """Only the UUIDs are as NVML gives them: they name the devices."""
    topology = draw(topologies(largest))
    wild_numa = tuple(draw(st.none() | st.integers(0, 5000)) for _ in range(topology.gpu_count))
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{uuid.UUID(int=place + 1)}",
            index=place,
            minor=place,
            product_name=draw(WILD_TEXT),
            brand=draw(WILD_TEXT),
            architecture=draw(WILD_TEXT),
            cuda_compute_capability=draw(WILD_VERSION),
            memory_bytes=draw(WILD_NUMBER),
            pcie_root=draw(WILD_TEXT),
            pcie_generation=draw(WILD_NUMBER),
            pcie_width=draw(WILD_NUMBER),
            nvlink_count=draw(WILD_NUMBER),
            nvlink_generation=draw(WILD_NUMBER),
            fabric_clique=draw(WILD_TEXT),
            cc_capable=draw(st.none() | st.booleans()),
            cc_mode=draw(WILD_TEXT),
        )
        for place in range(topology.gpu_count)
    )
    return Machine(
        "wild",
        gpus,
        dataclasses.replace(topology, numa_nodes=wild_numa),
        driver_version=draw(WILD_VERSION),
        cuda_driver_version=draw(WILD_VERSION),
    )


def slice_bodies(machine: Machine, *, driver: str, node_name: str) -> Iterator[dict[str, Any]]:
    """Yield the ResourceSlices that a node with this machine would publish, with names of their own."""
    pages = allocatable(machine, driver=driver, tainted=True)
    for number, page in enumerate(pages):
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"wild-{number}"},
            "spec": {
                "driver": driver,
                "nodeName": node_name,
                "pool": {"name": node_name, "generation": 1, "resourceSliceCount": len(pages)},
                "devices": msgspec.to_builtins(page),
            },
        }


def without_times(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out when taints were added: the server sets it."""
    return [
        {**device, "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]}
        for device in devices
    ]
