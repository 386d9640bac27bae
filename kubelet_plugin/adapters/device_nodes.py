"""Which of the NVIDIA driver's control nodes this host has."""

from __future__ import annotations

from pathlib import Path

from dracaena.kubelet_plugin.prepare.cdi import DeviceNode, device_node

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Every container with a GPU needs those that exist; which do depends on the kernel modules that are loaded."""


def read_control_nodes(dev_root: str) -> tuple[DeviceNode, ...]:
    """Return the control nodes that exist below dev_root, as CDI names them. A node may come and go at any time."""
    root = Path(dev_root)
    return tuple(device_node(path, dev_root) for path in CONTROL_NODES if (root / path.lstrip("/")).exists())
