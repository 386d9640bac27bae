"""The one table of the kinds that this server serves, with all that is specific to each.

Discovery, routing, storage, selectors, defaults, checks and the columns that kubectl prints are read from here; the
fields of each kind are in ``shapes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from dracaena.demo.apiserver import defaults, strategies
from dracaena.demo.apiserver.errors import Qualified
from dracaena.demo.apiserver.schema import Struct, structs
from dracaena.demo.apiserver.strategies import Strategy
from dracaena.demo.apiserver.tables import kinds as tables
from dracaena.demo.apiserver.tables.kinds import TableKind

VERBS: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
STATUS_VERBS: Final = ("get", "patch", "update")


Fill = Callable[[dict[str, Any], datetime, str], None]
"""Fills in the defaults: of a document, at a time, in a version of Kubernetes."""


@dataclass(frozen=True)
class Kind:
    """One served resource. `subresources` maps a name to its verbs; `refused` names those that answer 501."""

    api_version: str
    """``v1`` or ``group/version``."""
    kind: str
    plural: str
    rules: Strategy
    table: TableKind
    fill: Fill = lambda _document, _now, _version: None
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
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
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version in its group."""
        return self.api_version.rpartition("/")[2]

    @property
    def singular(self) -> str:
        """What kubectl calls one."""
        return self.kind.lower()

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
        return hash((self.api_version, self.plural))


def _same(*paths: str) -> dict[str, tuple[str, ...]]:
    return {path: tuple(path.split(".")) for path in paths}


POD: Final = Kind(
    "v1",
    "Pod",
    "pods",
    strategies.POD,
    tables.POD,
    defaults.pod_defaults,
    short_names=("po",),
    categories=("all",),
    subresources={"status": STATUS_VERBS, "binding": ("create",)},
    refused=frozenset({"attach", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "resize"}),
    selectable=_same(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.nominatedNodeName",
    ),
)
NODE: Final = Kind(
    "v1",
    "Node",
    "nodes",
    strategies.NODE,
    tables.NODE,
    defaults.node_defaults,
    namespaced=False,
    short_names=("no",),
    subresources={"status": STATUS_VERBS},
    refused=frozenset({"proxy"}),
    returns_deleted=False,
    selectable=_same("spec.unschedulable"),
)
NAMESPACE: Final = Kind(
    "v1",
    "Namespace",
    "namespaces",
    strategies.NAMESPACE,
    tables.NAMESPACE,
    defaults.namespace_defaults,
    namespaced=False,
    short_names=("ns",),
    subresources={"status": STATUS_VERBS, "finalize": ("update",)},
    selectable={"status.phase": ("status", "phase")},
)
EVENT: Final = Kind(
    "v1",
    "Event",
    "events",
    strategies.EVENT,
    tables.EVENT,
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
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases", strategies.LEASE, tables.LEASE, returns_deleted=False)


def _in_apps(kind: str, short_name: str, rules: Strategy, table: TableKind, fill: Fill) -> Kind:
    return Kind(
        "apps/v1",
        kind,
        f"{kind.lower()}s",
        rules,
        table,
        fill,
        short_names=(short_name,),
        categories=("all",),
        subresources={"status": STATUS_VERBS, "scale": STATUS_VERBS},
        returns_deleted=False,
    )


DEPLOYMENT: Final = _in_apps(
    "Deployment", "deploy", strategies.DEPLOYMENT, tables.DEPLOYMENT, defaults.deployment_defaults
)
REPLICA_SET: Final = _in_apps(
    "ReplicaSet", "rs", strategies.REPLICA_SET, tables.REPLICA_SET, defaults.workload_defaults
)
STATEFUL_SET: Final = _in_apps(
    "StatefulSet", "sts", strategies.STATEFUL_SET, tables.STATEFUL_SET, defaults.stateful_set_defaults
)
JOB: Final = Kind(
    "batch/v1",
    "Job",
    "jobs",
    strategies.JOB,
    tables.JOB,
    defaults.job_defaults,
    categories=("all",),
    subresources={"status": STATUS_VERBS},
    returns_deleted=False,
    deletion_orphans=True,
)
DEVICE_CLASS: Final = Kind(
    "resource.k8s.io/v1", "DeviceClass", "deviceclasses", strategies.DEVICE_CLASS, tables.PLAIN, namespaced=False
)
RESOURCE_CLAIM: Final = Kind(
    "resource.k8s.io/v1",
    "ResourceClaim",
    "resourceclaims",
    strategies.RESOURCE_CLAIM,
    tables.RESOURCE_CLAIM,
    defaults.claim_defaults,
    subresources={"status": STATUS_VERBS},
)
RESOURCE_CLAIM_TEMPLATE: Final = Kind(
    "resource.k8s.io/v1",
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
    strategies.RESOURCE_CLAIM_TEMPLATE,
    tables.PLAIN,
    defaults.template_defaults,
)
RESOURCE_SLICE: Final = Kind(
    "resource.k8s.io/v1",
    "ResourceSlice",
    "resourceslices",
    strategies.RESOURCE_SLICE,
    tables.RESOURCE_SLICE,
    defaults.slice_defaults,
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
