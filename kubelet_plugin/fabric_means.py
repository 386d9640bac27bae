"""What activates Fabric Manager's partitions on this node, and tells readings of them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.adapters.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.fabric_manager import FabricManagerLibrary
from dracaena.kubelet_plugin.adapters.files import DocumentFolder
from dracaena.kubelet_plugin.adapters.gpu_driver_root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.lock import GpuLocks
from dracaena.kubelet_plugin.fabric_partitions import FabricPartitions
from dracaena.kubelet_plugin.from_settings import seen_driver_root, seen_host_root
from dracaena.kubelet_plugin.parts import NodeParts
from dracaena.kubelet_plugin.settings import PluginSettings

LOCK: Final = DeviceName("fabric-manager")
"""Name of the lock that orders changes of partitions, beside those of the GPUs."""


def fabric_partitions(node: NodeParts) -> FabricPartitions:
    """Return what activates partitions, also where the settings say that there are none: those of claims that were
    prepared before have to be deactivated.
    """
    settings, paths = node.settings, node.paths
    return FabricPartitions(
        _library(settings),
        GpuLocks(paths.gpu_locks, node.clock).of(LOCK),
        DocumentFolder(paths.fabric, synced=False),
        read_boot_id(),
    )


def _library(settings: PluginSettings) -> FabricManagerLibrary:
    root, address = seen_driver_root(settings), settings.fabric_manager_address
    if address.startswith("/"):
        address = f"{seen_host_root(settings).rstrip('/')}{address}"
    library = settings.fabric_manager_library
    if library:
        seen = GpuDriverRoot(root)
        library = str(seen.on_disk(seen.resolve(library) or PurePosixPath(library)))
    return FabricManagerLibrary(address, gpu_driver_root=root, library=library)
