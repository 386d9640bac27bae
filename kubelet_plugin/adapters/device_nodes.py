"""Which of the NVIDIA driver's control nodes this host has."""

from __future__ import annotations

from pathlib import Path

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.prepare.cdi import DeviceNode, device_node

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Every container with a GPU needs those that exist; which do depends on the kernel modules that are loaded."""


class DeviceNodesMissingError(TemporaryError):
    """The node through which all ask the driver is not there: a container would get a GPU that it cannot use."""


def read_control_nodes(dev_root: str, *, required: bool = False) -> tuple[DeviceNode, ...]:
    """Return the control nodes that exist below dev_root, as CDI names them. A node may come and go at any time.

    Raises DeviceNodesMissingError where they are `required` and the first of them, without which no GPU works, is not
    there: the GPUs of a recorded machine need none.
    """
    root = Path(dev_root)
    found = tuple(path for path in CONTROL_NODES if (root / path.lstrip("/")).exists())
    if required and CONTROL_NODES[0] not in found:
        raise DeviceNodesMissingError(
            f"no {CONTROL_NODES[0]} below {dev_root}: containers would get GPUs that they cannot use. "
            "Make it (nvidia-modprobe), mount the host's /dev into the plugin, or set --dev-root"
        )
    return tuple(device_node(path, dev_root) for path in found)
