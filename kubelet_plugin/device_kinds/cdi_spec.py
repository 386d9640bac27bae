"""A prepared claim → its CDI spec: the file that tells the container runtime what a container with its GPUs gets."""

from __future__ import annotations

from dracaena.api.names import ClaimUid, DeviceName, cdi_device_name, cdi_kind
from dracaena.kubelet_plugin.device_kinds.device_kind import NO_EDITS, ContainerEdits, KindOf
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import IOMMU_NODE, VFIO_NODE, ClaimNodes
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.hooks import SymbolicLink, device_hooks
from dracaena.kubelet_plugin.prepare.cdi.spec import Device, DeviceNode, Edits, Spec, encode_spec
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice

BY_PATH = "/dev/dri/by-path"


def spec_file_name(driver: str, uid: ClaimUid) -> str:
    """Return the file name of a claim's spec, in the form CDI gives to specs that do not outlive a boot."""
    return f"{cdi_kind(driver)}_{uid}.json".replace("/", "-", 1)


def qualified_name(driver: str, uid: ClaimUid, device: DeviceName, share_id: str | None = None) -> str:
    """Return the id by which the container runtime finds a device or a share of one: `vendor/class=name`."""
    return f"{cdi_kind(driver)}={cdi_device_name(uid, device, share_id)}"


def claim_spec(
    prepared: PreparedClaim,
    driver: str,
    nodes: ClaimNodes,
    gpu_driver_edits: GpuDriverEdits | None = None,
    kind_of: KindOf = kind_of,
) -> bytes:
    """Return the CDI spec of a claim as JSON. `nodes` has an entry for each of its devices.

    `gpu_driver_edits` bring the driver's libraries and programs. NVIDIA_VISIBLE_DEVICES=void stops the older NVIDIA
    runtime from injecting GPUs of its own choice. A pod in a virtual machine gets only the nodes of its GPUs, which its
    runtime turns into devices of that machine: variables would reach the containers inside, where PCI addresses differ
    and `void` would keep the guest's own NVIDIA runtime from its GPUs. Raises ValueError if the result breaks a rule of
    CDI, which is a bug of ours.
    """
    edits = gpu_driver_edits if gpu_driver_edits is not None else GpuDriverEdits()
    # A device may answer two requests; each share of one has edits of its own.
    devices = {(device.device, device.share_id): device for device in prepared.devices}
    spec = Spec(
        cdi_kind(driver),
        tuple(
            [
                Device(cdi_device_name(prepared.claim.uid, *key), _edits(device, prepared, nodes, edits, kind_of))
                for key, device in devices.items()
            ]
        ),
        Edits(
            () if prepared.in_guest else ("NVIDIA_VISIBLE_DEVICES=void", *edits.environment),
            nodes.control,
            edits.mounts,
            edits.hooks,
        ),
    )
    return encode_spec(spec, f"claim {prepared.claim}")


def _edits(
    device: PreparedDevice, prepared: PreparedClaim, nodes: ClaimNodes, edits: GpuDriverEdits, kind_of: KindOf
) -> Edits:
    """Return the edits of one device. Without the hook tool, links to a node are replaced by further nodes. In a
    virtual machine the nodes exclude what opens VFIO itself, which its runtime has.
    """
    drm = nodes.drm.get(device.device, ())
    linked = [(f"{BY_PATH}/{each.by_path}", each.node) for each in drm if each.by_path is not None]
    made = [DeviceNode(path, node.host_path or node.path) for path, node in linked] if edits.tool is None else []
    links = [SymbolicLink(path, f"../{node.path.rpartition('/')[2]}") for path, node in linked]
    limited = device.uuid if device.is_whole_gpu and not device.is_passthrough else None
    left_out = (VFIO_NODE.path, IOMMU_NODE.path) if prepared.in_guest else ()
    own = NO_EDITS if prepared.in_guest else _joined(device, prepared, kind_of)
    return Edits(
        own.environment,
        (
            *(node for node in nodes.devices[device.device] if node.path not in left_out),
            *(each.node for each in drm),
            *made,
        ),
        own.mounts,
        () if edits.tool is None else device_hooks(edits.tool, links, limited, edits.gpu_driver_root),
    )


def _joined(device: PreparedDevice, prepared: PreparedClaim, kind_of: KindOf) -> ContainerEdits:
    """Return what the kind of a device adds, its lists merged with those of its request: a container with one device of
    a request has all of them.
    """
    own = _of_kind(device, prepared, kind_of)
    if not own.lists:
        return own
    values: dict[str, list[str]] = {name: [] for name, _ in own.lists}
    for other in prepared.devices:
        if other.request_name == device.request_name:
            for name, value in _of_kind(other, prepared, kind_of).lists:
                if name in values:
                    values[name].append(value)
    lists = (f"{name}={','.join(dict.fromkeys(found))}" for name, found in values.items())
    return ContainerEdits((*own.environment, *lists), own.mounts)


def _of_kind(device: PreparedDevice, prepared: PreparedClaim, kind_of: KindOf) -> ContainerEdits:
    share = (device.device, device.share_id)
    own = [effect for effect in prepared.wants if (effect.device, effect.share_id) == share]
    return kind_of(*share).edits(device, own)
