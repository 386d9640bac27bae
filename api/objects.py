"""Kubernetes objects as they are on the wire, reduced to the fields that we read.

Decoding drops every other field, so these types must never be written back as a whole: writers send patches. Field
names are those of the API in snake case. Those of resource.k8s.io: resource_objects.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self, TypeVar

import msgspec

from dracaena.api.json_text import put_back, set_apart
from dracaena.api.opaque import AsSent, copied

K = TypeVar("K", bound="KubeObject")


class Wire(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """Base of all wire types: frozen, camelCase on the wire, defaults left out when encoded."""


class OwnerReference(Wire, frozen=True):
    """metadata.ownerReferences[]."""

    uid: str
    kind: str = ""
    name: str = ""
    api_version: str = ""
    controller: bool = False


class ObjectMeta(Wire, frozen=True):
    """metadata. `resource_version` is opaque: compared for equality only. The controller packs long `finalizers`."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []


class KubeObject(Wire, frozen=True):
    """An object that the API serves on its own. `resource` is the path below the API root, `api_version` its group."""

    API_VERSION: ClassVar[str]
    RESOURCE: ClassVar[str]
    KIND: ClassVar[str]
    NAMESPACED: ClassVar[bool] = True
    APART: ClassVar[tuple[str, ...]] = ("managedFields",)
    """Members whose content authors nest and spell as they like; everything else is bounded by the API."""

    metadata: ObjectMeta

    @classmethod
    def from_json(cls, text: bytes | msgspec.Raw) -> Self:
        """Decode one object as the server sent it, and keep no reference to `text`. Cost: O(bytes).

        What the decoder cannot skip, because it is nested too deeply or contains half a surrogate pair, is set apart if
        the API leaves it to its author. Raises msgspec.DecodeError, UnicodeDecodeError, RecursionError and whatever
        else an object of another shape causes: callers that read many objects catch Exception around each.
        """
        try:
            return cls._from_json(text, copied)
        except Exception:
            left, taken = set_apart(bytes(text), cls.APART)
            if not taken:
                raise
        return cls._from_json(left, lambda raw: msgspec.Raw(put_back(bytes(raw), cls.APART, taken)))

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> Self:
        """Decode; `as_sent` returns what was in the place of a raw value, in bytes of its own."""
        return msgspec.json.decode(text, type=cls)

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for a cluster-scoped object."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.metadata.namespace else self.metadata.name


# core/v1


class Toleration(Wire, frozen=True):
    """Tolerations of pods and, in the same shape, of device requests."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Taint(Wire, frozen=True):
    """node.spec.taints[] and, in the same shape, devices[].taints[]."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class PodResourceClaim(Wire, frozen=True):
    """pod.spec.resourceClaims[]: exactly one of the two names is set."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ContainerClaim(Wire, frozen=True):
    """containers[].resources.claims[]; an empty request means all requests of the claim."""

    name: str
    request: str = ""


Quantities = dict[str, str | int | float]
"""Name of a resource → Quantity. The API writes strings; people also write numbers."""


class ContainerResources(Wire, frozen=True):
    """containers[].resources."""

    claims: list[ContainerClaim] = []
    requests: Quantities = {}


class ContainerPort(Wire, frozen=True):
    """containers[].ports[]; without a host port it takes nothing of the node."""

    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class VolumeMount(Wire, frozen=True):
    """containers[].volumeMounts[]."""

    mount_path: str = ""


class Container(Wire, frozen=True):
    """spec.containers[] and spec.initContainers[]. The controller keeps no volume mounts."""

    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str = ""
    """`Always` makes an init container a sidecar."""
    ports: list[ContainerPort] = []
    volume_mounts: list[VolumeMount] = []


class ResourceRequests(Wire, frozen=True):
    """spec.resources of a pod, and what its status says of resources in use."""

    requests: Quantities = {}


class VolumeClaimName(Wire, frozen=True):
    """volumes[].persistentVolumeClaim."""

    claim_name: str = ""


class EphemeralVolume(Wire, frozen=True):
    """volumes[].ephemeral: a volume claim is made for the pod, named after pod and volume."""


class PodVolume(Wire, frozen=True):
    """spec.volumes[]; volumes of other kinds are available on every node."""

    name: str = ""
    persistent_volume_claim: VolumeClaimName | None = None
    ephemeral: EphemeralVolume | None = None


class SchedulingGate(Wire, frozen=True):
    """pod.spec.schedulingGates[]."""

    name: str


class SchedulingGroup(Wire, frozen=True):
    """pod.spec.schedulingGroup (core/v1/types.go, PodSchedulingGroup)."""

    pod_group_name: str = ""


class PodSpec(Wire, frozen=True):
    """pod.spec. `affinity` and `topology_spread_constraints` stay raw documents: dracaena.controller.allocation reads
    what it models. The controller packs long ones, and long `tolerations` (api.packed).
    """

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: list[Toleration] = []
    scheduling_gates: list[SchedulingGate] = []
    resource_claims: list[PodResourceClaim] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    resources: ResourceRequests | None = None
    overhead: Quantities = {}
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    preemption_policy: str = ""
    topology_spread_constraints: list[dict[str, Any]] = []
    scheduling_group: SchedulingGroup | None = None
    volumes: list[PodVolume] = []
    runtime_class_name: str = ""


class PodCondition(Wire, frozen=True):
    """pod.status.conditions[]."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None
    observed_generation: int | None = None


class PodResourceClaimStatus(Wire, frozen=True):
    """pod.status.resourceClaimStatuses[]: the generated claim; no name means that none is needed."""

    name: str
    resource_claim_name: str | None = None


class ContainerRequestMapping(Wire, frozen=True):
    """pod.status.extendedResourceClaimStatus.requestMappings[]."""

    container_name: str
    request_name: str


class ExtendedResourceClaimStatus(Wire, frozen=True):
    """pod.status.extendedResourceClaimStatus: the claim that kube-scheduler made for extended resources (KEP-5004)."""

    resource_claim_name: str = ""
    request_mappings: list[ContainerRequestMapping] = []


class ContainerStateDetail(Wire, frozen=True):
    """state.running, state.terminated: only whether it is there is read."""


class ContainerState(Wire, frozen=True):
    """containerStatuses[].state: one of its fields is set; none means that the container waits."""

    running: ContainerStateDetail | None = None
    terminated: ContainerStateDetail | None = None


class ContainerStatus(Wire, frozen=True):
    """status.containerStatuses[] and status.initContainerStatuses[]: what runs, and what a resize has come to."""

    name: str = ""
    state: ContainerState = ContainerState()
    allocated_resources: Quantities = {}
    resources: ResourceRequests | None = None


ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that run no more and take nothing."""


class PodStatus(Wire, frozen=True):
    """pod.status."""

    phase: str = ""
    conditions: list[PodCondition] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None
    nominated_node_name: str = ""
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    allocated_resources: Quantities = {}
    resources: ResourceRequests | None = None


class Pod(KubeObject, frozen=True):
    """A pod."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "pods"
    KIND: ClassVar[str] = "Pod"

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Namespace(KubeObject, frozen=True):
    """A namespace: its labels are all that is read."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "namespaces"
    KIND: ClassVar[str] = "Namespace"
    NAMESPACED: ClassVar[bool] = False


class NodeSpec(Wire, frozen=True):
    """node.spec."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(Wire, frozen=True):
    """node.status."""

    allocatable: Quantities = {}
    declared_features: list[str] = []
    """Gates of its kubelet that the scheduler must know of."""


class Node(KubeObject, frozen=True):
    """A node. The API serves every node with a status; without one its resources are unknown."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "nodes"
    KIND: ClassVar[str] = "Node"
    NAMESPACED: ClassVar[bool] = False

    spec: NodeSpec = NodeSpec()
    status: NodeStatus | None = None

    @property
    def declared_features(self) -> list[str]:
        """Gates that the node's kubelet declares; none without a status."""
        return [] if self.status is None else self.status.declared_features


class VolumeClaimSpec(Wire, frozen=True):
    """spec of a PersistentVolumeClaim. `selector` stays a raw document."""

    access_modes: list[str] = []
    selector: dict[str, Any] | None = None
    resources: ResourceRequests = ResourceRequests()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaim(KubeObject, frozen=True):
    """A claim for storage."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "persistentvolumeclaims"
    KIND: ClassVar[str] = "PersistentVolumeClaim"

    spec: VolumeClaimSpec = VolumeClaimSpec()


class VolumeClaimReference(Wire, frozen=True):
    """claimRef of a PersistentVolume: the claim that it is kept for."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class VolumeSpec(Wire, frozen=True):
    """spec of a PersistentVolume. `node_affinity` stays a raw document."""

    capacity: Quantities = {}
    access_modes: list[str] = []
    claim_ref: VolumeClaimReference | None = None
    node_affinity: dict[str, Any] | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class VolumeStatus(Wire, frozen=True):
    """status of a PersistentVolume."""

    phase: str = ""


class PersistentVolume(KubeObject, frozen=True):
    """A piece of storage."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "persistentvolumes"
    KIND: ClassVar[str] = "PersistentVolume"
    NAMESPACED: ClassVar[bool] = False

    spec: VolumeSpec = VolumeSpec()
    status: VolumeStatus = VolumeStatus()


class StorageClass(KubeObject, frozen=True):
    """A way to make volumes. `allowed_topologies` stay raw documents."""

    API_VERSION: ClassVar[str] = "storage.k8s.io/v1"
    RESOURCE: ClassVar[str] = "storageclasses"
    KIND: ClassVar[str] = "StorageClass"
    NAMESPACED: ClassVar[bool] = False

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[dict[str, Any]] = []
