"""The whole plugin, as a process, on a node that can hold shares in each way: `python -P -m bench.node.sharing_plugin`.

NVML of driver R615 is a fake below the real pynvml, nvidia-smi a shell script. What they were told is in files below
FOLDER, so that somebody else sees what is left: a file in a cgroup for each limit, one a GPU for its interval.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from bench.node.ground import NODE
from dracaena.host.adapters.nvml.library import NvmlLibrary, Permission
from dracaena.kubelet_plugin.adapters.kernel.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.program import Program, run_to_the_end
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.process.clock import SystemClock
from dracaena.process.ending import hold_end_signals
from dracaena.process.logs import configure_logs
from support.fake_memory_limits import NvmlWithLimitFiles
from support.fake_nvidia_smi import NvidiaSmiRoot
from support.gpu_lists import gpu_list
from support.nvml_world import nvml_host

GPU_DRIVER: Final = "615.10"
"""The first that limits memory by cgroup."""


class SharingFolders:
    """What is below FOLDER beside the plugin's own folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = folder / "host"
        self.cgroups = folder / "cgroup"
        self.intervals = folder / "state"
        """Files of nvidia-smi, one a GPU."""


def main(folder: str, kubeconfig: str, machine: str, mps_root: str, http_address: str) -> None:
    """Run until SIGTERM."""
    hold_end_signals()
    configure_logs("info", "text")
    places = SharingFolders(Path(folder))
    recorded = replace(read_machine(machine), driver_version=GPU_DRIVER)
    settings = PluginSettings(
        node_name=NODE,
        kubeconfig=kubeconfig,
        kubelet_root=str(places.folder / "k"),
        cdi_root=str(places.folder / "cdi"),
        driver_root=str(places.host),
        dev_root=str(places.host),
        host_root_mount=str(places.host),
        cgroup_root=str(places.cgroups),
        mps_root=mps_root,
        gpus=gpu_list(shared="all"),
        http_address=http_address,
    )
    with nvml_host(places.folder, recorded):
        NvidiaSmiRoot(places.folder, *(gpu.uuid for gpu in recorded.gpus), root=places.host)
        nvml = NvmlWithLimitFiles(recorded)

        def source(permission: Permission) -> NvmlMachine:
            return NvmlMachine(
                NODE,
                NvmlReader(NvmlLibrary(lambda: nvml, permission=permission)),
                Sysfs(str(places.folder / "sys")),
                MigAccess(str(places.folder / "proc")),
                SystemClock(),
                listens=True,
            )

        sys_root = str(places.folder / "sys")
        run_to_the_end(Program(settings, registry=CollectorRegistry(), source=source, sys_root=sys_root))


if __name__ == "__main__":
    main(*sys.argv[1:])
