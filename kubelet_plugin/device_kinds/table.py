"""All kinds of devices, and which device is of which kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dracaena.api.names import DeviceName
from dracaena.api.passthrough import DEVICE_PREFIX
from dracaena.api.vgpu import VGPU_PREFIX
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf, NodeDeviceKind
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.mig_place import MigDeviceKind
from dracaena.kubelet_plugin.device_kinds.share import GpuShare
from dracaena.kubelet_plugin.device_kinds.vfio_gpu import VfioGpu
from dracaena.kubelet_plugin.device_kinds.vgpu import ExistingVgpu
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu

_WHOLE_GPU: Final = WholeGpu()
_GPU_SHARE: Final = GpuShare()
_MIG_DEVICE: Final = MigDeviceKind()
_VFIO_GPU: Final = VfioGpu()
_VGPU: Final = ExistingVgpu()

PUBLISHED: Final[tuple[NodeDeviceKind, ...]] = (_WHOLE_GPU, _MIG_DEVICE, _VFIO_GPU, _VGPU)
"""In the order of their devices in the pool. A share has no device of its own."""


def kind_of(name: DeviceName, share_id: str | None = None) -> NodeDeviceKind:
    """Return the kind of a device of an allocation, by its name (`gpu-<uuid>`, `mig-<parent uuid>-…`,
    `vfio-<PCI address>`, `vgpu-<UUID or PCI address>`) and shareID.
    """
    if name.startswith("mig-"):
        return _MIG_DEVICE
    if name.startswith(DEVICE_PREFIX):
        return _VFIO_GPU
    if name.startswith(VGPU_PREFIX):
        return _VGPU
    return _WHOLE_GPU if share_id is None else _GPU_SHARE


def kinds_on(node: Callable[[], NodeEnforcement]) -> KindOf:
    """Return kind_of() for a node, where each share is judged by what can enforce it there at that moment."""

    def kind(name: DeviceName, share_id: str | None = None) -> NodeDeviceKind:
        found = kind_of(name, share_id)
        return GpuShare(node()) if found is _GPU_SHARE else found

    return kind
