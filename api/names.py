"""Names on the wire: the driver's name and what follows from it, device names, identity types."""

from __future__ import annotations

import re
from typing import NewType

from dracaena.api.limits import DRIVER_NAME_BYTES

ClaimUid = NewType("ClaimUid", str)
PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
PoolName = NewType("PoolName", str)
DeviceName = NewType("DeviceName", str)
GpuUuid = NewType("GpuUuid", str)

DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""What the API takes as the name of a device, and of other things without dots."""

DEFAULT_DRIVER_NAME = "gpu.dracaena.dev"
"""The driver name is a setting; taint key, CDI vendor and annotation prefix follow it (see the functions below)."""

CONFIG_GROUP = "gpu.dracaena.dev"
"""API group of our opaque configs. Fixed: it does not follow the driver name."""

DELETE_PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"
"""kube-controller-manager frees only claims that carry this finalizer (resource.k8s.io, claim controller)."""

POD_CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On generated claims: the name in pod.spec.resourceClaims."""

EXTENDED_RESOURCE_ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""On claims that kube-scheduler makes, allocates and deletes for a pod's extended resources (KEP-5004)."""


def taint_key(driver: str) -> str:
    """Key of the NoSchedule taint that keeps kube-scheduler from allocating our devices by itself."""
    return f"{driver}/controller-allocated"


TAINT_VALUE = "true"
TAINT_EFFECT = "NoSchedule"


def cdi_kind(driver: str) -> str:
    """CDI kind (`vendor/class`) of the specs that the plugin writes, one spec per claim."""
    return f"{driver}/claim"


CDI_SHARE_MARK = "_"
"""Precedes the shareID in names of CDI devices. Neither UIDs nor device names contain it."""


def cdi_device_name(claim_uid: ClaimUid, device: DeviceName, share_id: str | None = None) -> str:
    """Name of one device, or of a share of one, in the CDI spec of one claim. Contains the claim's UID, so no name is
    ever used twice.
    """
    return f"{claim_uid}-{device}" + ("" if share_id is None else f"{CDI_SHARE_MARK}{share_id}")


def devices_annotation(driver: str) -> str:
    """Pod annotation: JSON, container → claims with their requests and UUIDs."""
    return f"{driver}/devices"


def uuids_annotation(driver: str) -> str:
    """Pod annotation: comma-joined UUIDs of all GPUs of the pod."""
    return f"{driver}/uuids"


def decision_driver(driver: str) -> str:
    """Driver that an allocation's entry about our decision names (api.decision): no driver has this name, so no plugin
    tries to read it."""
    return f"decision.{driver}"[:DRIVER_NAME_BYTES].rstrip("-.")


def allocation_gate(driver: str) -> str:
    """Scheduling gate at which pods wait for their GPUs, if the admission policy `gate` adds it."""
    return f"{driver}/allocation"


def quota_annotation(driver: str) -> str:
    """Annotation of a Namespace: how much of our devices it may hold (api.gpu_quota)."""
    return f"{driver}/quota"


def topology_levels_annotation(driver: str) -> str:
    """Annotation of the controller's Deployment: its setting `topology-levels`, if it has one, as JSON."""
    return f"{driver}/topology-levels"


def rewrite_label(driver: str) -> str:
    """Namespace label: with `true`, pods that ask for extended resources get claims from templates that the controller
    makes. On a pod `false` opts out."""
    return f"{driver}/rewrite"


def settings_label(driver: str) -> str:
    """Node label: which section of its settings file the plugin of that node takes."""
    return f"{driver}/settings"


def mig_layout_key(driver: str) -> str:
    """Node label: which MIG layout the plugin of that node applies. Also the key of the taint on devices meanwhile."""
    return f"{driver}/mig-layout"


def vgpu_layout_key(driver: str) -> str:
    """Node label: which vGPU layout the plugin of that node applies. Also the key of the taint on vGPUs meanwhile."""
    return f"{driver}/vgpu-layout"


def release_label(driver: str) -> str:
    """Node label: while it is there, and neither empty nor `false`, the plugin of that node releases the driver."""
    return f"{driver}/release-driver"


def gpu_device_name(uuid: str) -> DeviceName:
    """Device name of a whole GPU: `gpu-<uuid>` in lower case, without the `GPU-` that NVML puts before it.

    The result is a DNS label (at most 63 characters). Never from minor or index: those change.
    """
    return DeviceName("gpu-" + uuid.lower().removeprefix("gpu-"))
