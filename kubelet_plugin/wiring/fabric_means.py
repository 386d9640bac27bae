"""Builds what activates Fabric Manager's partitions on this node, and adds them to readings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

from dracaena.api.names import DeviceName
from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.host.facts.troubles import TroubleKind, trouble
from dracaena.kubelet_plugin.adapters.files.fabric_manager_file import FILE, configured_mode
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import FabricManagerLibrary
from dracaena.kubelet_plugin.changes.fabric_readings import FabricReadings
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import FabricPartitions
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.wiring.from_settings import seen_driver_root, seen_host_root
from dracaena.kubelet_plugin.wiring.parts import NodeParts

LOCK: Final = DeviceName("fabric-manager")
"""Name of the lock that orders changes of partitions, next to the locks of GPUs."""

SHARED_NVSWITCH: Final = 1
"""FABRIC_MODE in which only activated partitions are linked."""
VGPU_NVSWITCH: Final = 2
"""The same for vGPUs, whose partitions are activated with virtual functions."""


def with_fabric(readings: FabricReadings, settings: PluginSettings) -> Callable[[Reading], Reading]:
    """Return a function that adds to a reading what Fabric Manager says of its GPUs. Without the setting
    `fabric-partitions`, it adds a trouble if that seems to be missing.
    """
    if settings.fabric_partitions:
        return readings.read
    host_root = seen_host_root(settings)
    return lambda reading: with_missing_setting(reading, configured_mode(host_root))


def with_missing_setting(reading: Reading, mode: int | None) -> Reading:
    """Return a reading with a trouble if Fabric Manager's file names a mode that the settings, or this plugin, do not
    provide for. Links stay as the driver reports them: the file may have changed since Fabric Manager was started.
    """
    machine = reading.machine
    if mode == SHARED_NVSWITCH and len(machine.gpus) + len(machine.passthrough) >= 2:
        text = (
            f"/{FILE} starts Fabric Manager in its shared NVSwitch mode (FABRIC_MODE={mode}), and setting "
            "`fabric-partitions` is off: nobody activates the partitions without which the GPUs of a claim are not "
            "linked"
        )
    elif mode == VGPU_NVSWITCH and (machine.vgpus or machine.vgpu_parents):
        text = (
            f"/{FILE} starts Fabric Manager in its mode for vGPUs (FABRIC_MODE={mode}), and this plugin activates no "
            "partitions for these: until something else does (fmActivateFabricPartitionWithVFs), cuInit fails with 802 "
            "in each guest that has a vGPU"
        )
    else:
        return reading
    return dataclasses.replace(reading, troubles=(*reading.troubles, trouble(TroubleKind.FABRIC_MANAGER, text)))


def fabric_readings(node: NodeParts) -> FabricReadings:
    """Return what reads partitions, with what activates them, even if the settings say that there are none: partitions
    of claims that were prepared before must be deactivated.
    """
    manager, lock = _library(node.settings), node.gpu_lock(LOCK)
    partitions = FabricPartitions(manager, lock, node.ledger, node.clock)
    return FabricReadings(manager, partitions, node.ledger, node.claims)


def _library(settings: PluginSettings) -> FabricManagerLibrary:
    root, address = seen_driver_root(settings), settings.fabric_manager_address
    if address.startswith("/"):
        address = f"{seen_host_root(settings).rstrip('/')}{address}"
    library = settings.fabric_manager_library
    if library:
        seen = GpuDriverRoot(root)
        library = str(seen.on_disk(seen.resolve(library) or PurePosixPath(library)))
    return FabricManagerLibrary(address, gpu_driver_root=root, library=library)
