"""The one table of the kinds that this server serves. Discovery, routing, storage and selectors all read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from dracaena.demo.apiserver.errors import Qualified
from dracaena.demo.apiserver.schema import Struct, structs

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
STATUS_VERBS: Final = ("get", "patch", "update")


@dataclass(frozen=True)
class Kind:
    """One served resource. `subresources` maps a name to its verbs; `refused` names those that answer 501."""

    group: str
    version: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    # What DELETE answers when the object is gone at once: the object, or a Status of success.
    returns_deleted: bool = True
    # A DELETE without a propagation policy leaves the object's dependents, with a warning.
    deletion_orphans: bool = False
    # Selectable fields besides metadata.name (and metadata.namespace of namespaced kinds): label → path.
    selectable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Those of them that only one version of Kubernetes has.
    selectable_only: dict[str, str] = field(default_factory=dict)

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_resource(self) -> Qualified:
        """For messages about the resource."""
        return Qualified(self.group, self.plural)

    @property
    def qualified_kind(self) -> Qualified:
        """For messages about the kind."""
        return Qualified(self.group, self.kind)

    @cached_property
    def struct(self) -> Struct:
        """The kind's table of fields."""
        return structs()[self.kind]

    def __hash__(self) -> int:
        return hash((self.group, self.plural))


def _same(*paths: str) -> dict[str, tuple[str, ...]]:
    return {path: tuple(path.split(".")) for path in paths}


POD: Final = Kind(
    "",
    "v1",
    "pods",
    "pod",
    "Pod",
    namespaced=True,
    short_names=("po",),
    categories=("all",),
    subresources={"status": STATUS_VERBS, "binding": ("create",)},
    refused=frozenset({"attach", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "resize"}),
    selectable=_same(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
)
NODE: Final = Kind(
    "",
    "v1",
    "nodes",
    "node",
    "Node",
    namespaced=False,
    short_names=("no",),
    subresources={"status": STATUS_VERBS},
    refused=frozenset({"proxy"}),
    returns_deleted=False,
    selectable=_same("spec.unschedulable"),
)
NAMESPACE: Final = Kind(
    "",
    "v1",
    "namespaces",
    "namespace",
    "Namespace",
    namespaced=False,
    short_names=("ns",),
    verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    subresources={"status": STATUS_VERBS, "finalize": ("update",)},
    selectable={"status.phase": ("status", "phase")},
)
EVENT: Final = Kind(
    "",
    "v1",
    "events",
    "event",
    "Event",
    namespaced=True,
    short_names=("ev",),
    returns_deleted=False,
    selectable=_same(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "type",
    )
    | {"source": ("source", "component")},
)
LEASE: Final = Kind(
    "coordination.k8s.io",
    "v1",
    "leases",
    "lease",
    "Lease",
    namespaced=True,
    returns_deleted=False,
)
DEPLOYMENT: Final = Kind(
    "apps",
    "v1",
    "deployments",
    "deployment",
    "Deployment",
    namespaced=True,
    short_names=("deploy",),
    categories=("all",),
    subresources={"status": STATUS_VERBS, "scale": STATUS_VERBS},
    returns_deleted=False,
)
REPLICA_SET: Final = Kind(
    "apps",
    "v1",
    "replicasets",
    "replicaset",
    "ReplicaSet",
    namespaced=True,
    short_names=("rs",),
    categories=("all",),
    subresources={"status": STATUS_VERBS, "scale": STATUS_VERBS},
    returns_deleted=False,
)
STATEFUL_SET: Final = Kind(
    "apps",
    "v1",
    "statefulsets",
    "statefulset",
    "StatefulSet",
    namespaced=True,
    short_names=("sts",),
    categories=("all",),
    subresources={"status": STATUS_VERBS, "scale": STATUS_VERBS},
    returns_deleted=False,
)
JOB: Final = Kind(
    "batch",
    "v1",
    "jobs",
    "job",
    "Job",
    namespaced=True,
    categories=("all",),
    subresources={"status": STATUS_VERBS},
    returns_deleted=False,
    deletion_orphans=True,
)
DEVICE_CLASS: Final = Kind("resource.k8s.io", "v1", "deviceclasses", "deviceclass", "DeviceClass", namespaced=False)
RESOURCE_CLAIM: Final = Kind(
    "resource.k8s.io",
    "v1",
    "resourceclaims",
    "resourceclaim",
    "ResourceClaim",
    namespaced=True,
    subresources={"status": STATUS_VERBS},
)
RESOURCE_CLAIM_TEMPLATE: Final = Kind(
    "resource.k8s.io",
    "v1",
    "resourceclaimtemplates",
    "resourceclaimtemplate",
    "ResourceClaimTemplate",
    namespaced=True,
)
RESOURCE_SLICE: Final = Kind(
    "resource.k8s.io",
    "v1",
    "resourceslices",
    "resourceslice",
    "ResourceSlice",
    namespaced=False,
    selectable=_same("spec.nodeName", "spec.driver", "spec.pool.name"),
    selectable_only={"spec.pool.name": "1.37"},
)

KINDS: Final = (
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    LEASE,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    JOB,
    DEVICE_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
)
BY_RESOURCE: Final = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
GROUP_VERSIONS: Final = tuple(sorted({(kind.group, kind.version) for kind in KINDS}))
