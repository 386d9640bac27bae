"""The kinds that there are, and which device is of which."""

from __future__ import annotations

from typing import Final

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.device_kinds.device_kind import NodeDeviceKind
from dracaena.kubelet_plugin.device_kinds.mig_device import ExistingMigDevice
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu

_WHOLE_GPU: Final = WholeGpu()
_MIG_DEVICE: Final = ExistingMigDevice()

PUBLISHED: Final[tuple[NodeDeviceKind, ...]] = (_WHOLE_GPU, _MIG_DEVICE)
"""In the order of their devices in the pool."""


def kind_of(name: DeviceName, _share_id: str | None = None) -> NodeDeviceKind:
    """Return the kind of a device of an allocation. Its name tells: `gpu-<uuid>`, `mig-<parent uuid>-…`."""
    return _MIG_DEVICE if name.startswith("mig-") else _WHOLE_GPU
