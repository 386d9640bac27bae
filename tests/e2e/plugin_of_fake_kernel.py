"""`python -m e2e.plugin_of_fake_kernel kubelet-plugin …`: the plugin, where kernel and NVIDIA driver are the test's.

/sys is support.fake_pci's. On a plain file system nobody answers what is written there, so writes go to a stand-in for
the kernel: it moves the links that this plugin and the test read. NVML has the GPUs that driver nvidia has when it is
opened.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final
from unittest.mock import patch

from dracaena.cli.main import main
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import PciDriverFiles
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import gpu_address
from support.fake_pci import FakePciBus
from support.machines import first_gpus

MACHINE: Final = read_machine("7-gpu-box")
LAST: Final = len(MACHINE.gpus) - 1
ADDRESS: Final = str(gpu_address(MACHINE, LAST))
"""Of the last GPU, which goes to virtual machines: NVML numbers the others as before."""


class AnsweredWrites(PciDriverFiles):
    """What is read is in files, as it is elsewhere."""

    def write(self, gpu: str, path: str, text: str) -> None:
        """See PciDrivers."""
        del gpu  # nothing here waits, so no lock tells of it
        FakePciBus(Path("/sys")).write(path, text)


def nvml() -> FakeNvml:
    """Return the driver's library as it is opened now."""
    has_all = FakePciBus(Path("/sys")).driver_of(ADDRESS) == "nvidia"
    return FakeNvml(MACHINE if has_all else first_gpus(MACHINE, LAST))


if __name__ == "__main__":
    with (
        patch("dracaena.kubelet_plugin.wiring.gpu_means.PciDriverFiles", AnsweredWrites),
        patch("dracaena.kubelet_plugin.adapters.nvml.machine.load_library", lambda _root: nvml()),
    ):
        sys.exit(main())
