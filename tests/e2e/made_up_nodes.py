"""Nodes that nobody runs: Node objects, and the slices that our plugin would publish for recorded machines on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable

DRIVER: Final = DEFAULT_DRIVER_NAME
NODES: Final = "/api/v1/nodes"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"

KINDS: Final = ("hgx-h100", "dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb")
"""Recorded machines of 8 GPUs: behind switches, an NVLink mesh, bridges across sockets, a PCIe tree."""

GPUS: Final = 8


@cache
def _recorded(kind: str) -> Machine:
    return read_machine(kind)


@dataclass(frozen=True, slots=True)
class MadeUpNode:
    """One node. Its number decides name, machine and UUIDs."""

    number: int

    @property
    def name(self) -> str:
        """Name of the node and of its pool."""
        return f"gpu-node-{self.number:05}"

    @property
    def kind(self) -> str:
        """Which recorded machine it plays."""
        return KINDS[self.number % len(KINDS)]

    def machine(self) -> Machine:
        """Return the recorded machine, each GPU with a UUID and addresses of its own, as a live one has them."""
        recorded = _recorded(self.kind)
        gpus = tuple(
            replace(
                gpu,
                uuid=gpu_uuid(self.number, ordinal),
                brand=gpu.brand or "Nvidia",
                pci_bus_id=f"0000:{0x18 + ordinal:02x}:00.0",
                pcie_root=f"pci0000:{ordinal:02x}",
                pcie_generation=gpu.pcie_generation or 4,
                pcie_width=16,
                nvlink_generation=gpu.nvlink_generation or 4,
            )
            for ordinal, gpu in enumerate(recorded.gpus)
        )
        return Machine(recorded.name, gpus, recorded.topology, "580.65.06", "13.0")

    def document(self) -> dict[str, Any]:
        """Return the Node, ready, with room for 110 pods."""
        resources = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
        labels = {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": f"{self.kind}.large",
            "topology.kubernetes.io/zone": f"somewhere-1{'abc'[self.number % 3]}",
        }
        ready = {"type": "Ready", "status": "True", "reason": "MadeUp", "message": "nobody runs this node"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
        }

    def slice_documents(
        self, *, tainted: bool = True, generation: int = 1, without: Collection[int] = (), pages: int = 1
    ) -> tuple[dict[str, Any], ...]:
        """Return the slices of one generation of the node's pool.

        `without`: ordinals of GPUs that are not there any more. `pages`: how many slices they are spread over.
        """
        devices = [
            msgspec.to_builtins(device)
            for page in allocatable(self.machine(), driver=DRIVER, tainted=tainted)
            for ordinal, device in enumerate(page)
            if ordinal not in without
        ]
        pool = {"name": self.name, "generation": generation, "resourceSliceCount": pages}
        return tuple(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": self.slice_name(page)},
                "spec": {"driver": DRIVER, "pool": pool, "nodeName": self.name, "devices": devices[page::pages]},
            }
            for page in range(pages)
        )

    def slice_name(self, page: int = 0) -> str:
        """Return the name of a slice."""
        return f"{self.name}-{page}"


def gpu_uuid(number: int, ordinal: int) -> str:
    """Return the UUID of a GPU of a made-up node."""
    return f"GPU-{number:08x}-0000-4000-8000-{ordinal:012x}"
