"""This node's own GPUs: NVML, sysfs and what /proc says about MIG devices, read together."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.adapters.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml_health import NvmlHealth
from dracaena.kubelet_plugin.adapters.nvml_library import NvmlLibrary, OnError, load_library
from dracaena.kubelet_plugin.adapters.sysfs import Sysfs
from dracaena.kubelet_plugin.discovery.build import Reading, read_inventory
from dracaena.kubelet_plugin.discovery.health_facts import GpuEvent, Poll
from dracaena.kubelet_plugin.discovery.inventory import MigFacts, NodeInventory

SOURCE = "read from the NVIDIA driver of this machine"


class NvmlMachine:
    """A machine source that asks the driver each time. For one thread; a call may hang as long as the driver does."""

    def __init__(self, name: str, nvml: NvmlReader, sysfs: Sysfs, mig_access: MigAccess | None = None) -> None:
        self._name = name
        self._nvml = nvml
        self._health = NvmlHealth(nvml.library)
        self._bound: frozenset[str] | None = None
        self._sysfs = sysfs
        self._mig_access = mig_access or MigAccess()

    @classmethod
    def of_this_node(
        cls,
        name: str,
        *,
        driver_root: str = "/",
        sys_root: str = "/sys",
        on_error: OnError = lambda _call, _error: None,
    ) -> NvmlMachine:
        """Return the source for the driver below driver_root. Nothing is loaded or asked before the first reading."""
        library = NvmlLibrary(lambda: load_library(driver_root), on_error)
        return cls(name, NvmlReader(library), Sysfs(sys_root))

    def read_all(self) -> Reading:
        """Return the machine with what else was read. Raises NvmlError (temporary) or TopologyError.

        NVML lists the GPUs that were there when it was opened. So it is opened anew when the kernel has bound others to
        the driver since.
        """
        bound = self._sysfs.bound_to_driver()
        if self._bound is not None and bound != self._bound:
            self._nvml.close()
        self._bound = bound
        inventory = self._nvml.read()
        addresses = [gpu.address for gpu in inventory.gpus if gpu.address is not None]
        devices = (self._sysfs.pci_device(address) for address in addresses)
        inventory = replace(
            inventory,
            mig_devices=self._with_access(inventory),
            pci=tuple(facts for facts in devices if facts is not None),
            nics=self._sysfs.nics(),
        )
        return read_inventory(inventory, name=self._name, source=SOURCE)

    def read(self) -> Machine:
        """Return the machine as it is now. Raises as read_all."""
        return self.read_all().machine

    def _with_access(self, inventory: NodeInventory) -> tuple[MigFacts, ...]:
        minors = {gpu.uuid: gpu.minor for gpu in inventory.gpus}
        return tuple(
            replace(mig, access_minors=self._access_minors(minors[mig.parent_uuid], mig))
            for mig in inventory.mig_devices
        )

    def _access_minors(self, parent_minor: int | None, mig: MigFacts) -> tuple[int, int] | None:
        if parent_minor is None:
            return None
        return self._mig_access.minors(parent_minor, mig.gpu_instance_id, mig.compute_instance_id)

    def events(self) -> tuple[GpuEvent, ...]:
        """Return what happened to GPUs since the last call. Raises NvmlError."""
        return self._health.events()

    def poll(self) -> Poll:
        """Return how the GPUs are. Raises NvmlError."""
        return self._health.poll()

    def doing(self) -> str:
        """Return which call of the driver runs right now, empty between two of ours. From any thread."""
        return self._nvml.doing or self._health.doing

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.close()
