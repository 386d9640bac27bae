"""What containers were given → claim and devices: the evidence that is left if a checkpoint cannot be read."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dracaena.api.names import CDI_SHARE_MARK, ClaimUid, DeviceName, GpuUuid, PoolName, cdi_device_name, cdi_kind
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.kubelet_plugin.prepare.prepared_claim import NO_MINOR, PreparedDevice

_GPU_NODE = re.compile("/dev/nvidia([0-9]+)")
_DEVICE = re.compile("([A-Za-z0-9-]+?)-(?:gpu|mig|vfio|vgpu)-.+")
"""A claim's UID, which has no `g` in it, and one of our device names (api.names.cdi_device_name)."""
_VFIO_NODE = re.compile("/dev/vfio/([0-9]{1,9})")
_ACCESS_NODE = re.compile("/dev/nvidia-caps/nvidia-cap([0-9]+)")


class _Node(msgspec.Struct, frozen=True):
    path: str = ""


class _Edits(msgspec.Struct, frozen=True, rename="camel"):
    device_nodes: list[_Node] = []


class _CdiDevice(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_edits: _Edits = _Edits()


class _CdiSpec(msgspec.Struct, frozen=True):
    devices: list[_CdiDevice] = []


_SPEC: Final = msgspec.json.Decoder(_CdiSpec)  # inspected by the thread that imports: see kube.client


def claim_of_device(driver: str, qualified_name: str) -> ClaimUid | None:
    """Return the claim whose spec has a device of this qualified name, None if it is no device of our claims."""
    kind, _, name = qualified_name.partition("=")
    match = _DEVICE.fullmatch(name) if kind == cdi_kind(driver) else None
    return None if match is None else ClaimUid(match[1])


def devices_in_spec(spec: bytes, uid: ClaimUid) -> tuple[PreparedDevice, ...]:
    """Return a spec's devices with only the numbers of their nodes; none if it is no spec of that claim."""
    try:
        found = _SPEC.decode(spec).devices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    prefix = cdi_device_name(uid, DeviceName(""))
    return tuple(_device(device, prefix) for device in found if device.name.startswith(prefix))


def _device(device: _CdiDevice, prefix: str) -> PreparedDevice:
    paths = [node.path for node in device.container_edits.device_nodes]
    minors = [int(match[1]) for match in map(_GPU_NODE.fullmatch, paths) if match is not None]
    groups = [int(match[1]) for match in map(_VFIO_NODE.fullmatch, paths) if match is not None]
    name, share_mark, share_id = device.name.removeprefix(prefix).partition(CDI_SHARE_MARK)
    return PreparedDevice(
        request="",
        pool=PoolName(""),
        device=DeviceName(name),
        share_id=share_id if share_mark else None,
        uuid=GpuUuid(""),
        minor=minors[0] if minors else NO_MINOR,
        access_minors=tuple(int(match[1]) for match in map(_ACCESS_NODE.fullmatch, paths) if match is not None),
        pci_bus_id=pci_bus_id_in(name),
        iommu_group=groups[0] if groups else None,
    )
