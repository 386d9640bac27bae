"""Reads what `dracaena doctor` looks at, with the rights of its user. Writes nothing; no Secret and no ConfigMap."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.cli.installation.control_plane import ADMISSION, DRA, NEEDED, RIGHTS
from dracaena.cli.installation.levels import levels_of
from dracaena.cli.installation.programs import CONTROLLER
from dracaena.cli.installation.snapshot import COMPONENT, Document, Listing, Right, Snapshot, labels
from dracaena.cli.leader import why_no_leader

if TYPE_CHECKING:
    from dracaena.kube.client import KubeClient

_PAGE: Final = 500
"""Objects in one answer: kubectl's own chunk size."""

_CHART: Final = {"labelSelector": "app.kubernetes.io/name=dracaena"}
_OTHER_DRIVER: Final = "gpu.nvidia.com"
"""NVIDIA's own DRA driver."""

READS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "nodes": ("/api/v1", {}),
    "namespaces": ("/api/v1", {}),
    "pods": ("/api/v1", _CHART),
    "events": ("/api/v1", {"fieldSelector": "source=dracaena-kubelet-plugin"}),
    "deployments": ("/apis/apps/v1", _CHART),
    "daemonsets": ("/apis/apps/v1", _CHART),
    "leases": ("/apis/coordination.k8s.io/v1", {"fieldSelector": "metadata.name=controller.{driver}"}),
    "deviceclasses": (f"/apis/{DRA}", {}),
    "devicetaintrules": (f"/apis/{DRA}", {}),
    "resourceslices": (f"/apis/{DRA}", {"fieldSelector": f"spec.driver={_OTHER_DRIVER}"}),
    "validatingadmissionpolicies": (f"/apis/{ADMISSION}", {}),
    "validatingadmissionpolicybindings": (f"/apis/{ADMISSION}", {}),
    "mutatingadmissionpolicies": (f"/apis/{ADMISSION}", {}),
    "mutatingadmissionpolicybindings": (f"/apis/{ADMISSION}", {}),
    "topologies": ("/apis/kueue.x-k8s.io/v1beta2", {}),
    "clusterroles": ("/apis/rbac.authorization.k8s.io/v1", _CHART),
    "clusterrolebindings": ("/apis/rbac.authorization.k8s.io/v1", _CHART),
}
"""Resource → where its API is, and which of its objects are read. Of the slices those of the driver are read by
themselves."""

OLDER: Final = {"devicetaintrules": "/apis/resource.k8s.io/v1beta2", "topologies": "/apis/kueue.x-k8s.io/v1beta1"}
"""Where else the API of a resource may be."""


def read_installation(client: KubeClient, driver: str, now: datetime) -> Snapshot:
    """Read everything once. What the user may not read, or the server does not have, is said in the snapshot.

    Raises KubeError if there is no server.
    """
    from dracaena import __version__
    from dracaena.api.resource_objects import ResourceSlice
    from dracaena.kube.errors import KubeError
    from dracaena.kube.server_version import server_version, too_old

    client.get_raw("/version")
    version = server_version(client)
    kinds = {kind: _listing(client, f"{root}/{kind}", query, driver) for kind, (root, query) in READS.items()}
    for kind, older in OLDER.items():
        if not kinds[kind].is_served:
            kinds[kind] = _listing(client, f"{older}/{kind}", {}, driver)
    try:
        slices = client.list(ResourceSlice, field_selector=f"spec.driver={driver}")
        pages, unread = slices.items, tuple(one.key for one in slices.unread)
    except KubeError as error:
        pages, unread = (), ()
        kinds["resourceslices"] = Listing(why_unread=_why(error))
    return Snapshot(
        driver,
        __version__,
        now,
        server_version="" if version is None else ".".join(map(str, version.version)),
        too_old=too_old(version),
        resources={group: _resources(client, group) for group in NEEDED},
        kinds=kinds,
        slices=pages,
        unread_slices=unread,
        no_leader="" if kinds["leases"].why_unread else why_no_leader(client, driver, now) or "",
        rights={right: _may(client, right) for right in sorted({one for needed in RIGHTS.values() for one in needed})},
    )


def read_levels(client: KubeClient, driver: str) -> TopologyLevels:
    """Return the levels that the controller has; the default if they cannot be read: `dracaena doctor` says why."""

    def listed(kind: str, root: str, query: Mapping[str, str] = MappingProxyType({})) -> tuple[Document, ...]:
        return _listing(client, f"{root}/{kind}", query, driver).objects

    def topologies() -> tuple[Document, ...]:
        return listed("topologies", READS["topologies"][0]) or listed("topologies", OLDER["topologies"])

    found = listed("deployments", *READS["deployments"])
    controllers = [one for one in found if labels(one).get(COMPONENT) == CONTROLLER]
    try:
        return levels_of(controllers, driver, topologies)
    except BadInputError:
        return DEFAULT_LEVELS


def _listing(client: KubeClient, path: str, query: Mapping[str, str], driver: str) -> Listing:
    from dracaena.kube.errors import KubeError, NotFoundError

    asked = {key: value.format(driver=driver) for key, value in query.items()} | {"limit": str(_PAGE)}
    found: list[Document] = []
    try:
        while True:
            answer = _object(client.get_raw(path, asked))
            found += _objects(answer.get("items"))
            metadata = answer.get("metadata")
            rest = metadata.get("continue") if isinstance(metadata, Mapping) else None
            if not rest or not isinstance(rest, str):
                return Listing(tuple(found))
            asked["continue"] = rest
    except NotFoundError:
        return Listing(is_served=False)
    except KubeError as error:
        return Listing(why_unread=_why(error))


def _resources(client: KubeClient, group: str) -> frozenset[str] | None:
    from dracaena.kube.errors import KubeError, NotFoundError

    try:
        listed = _objects(_object(client.get_raw(f"/apis/{group}")).get("resources"))
    except NotFoundError:
        return frozenset()
    except KubeError:
        return None
    return frozenset(str(one.get("name")) for one in listed)


def _may(client: KubeClient, right: Right) -> bool | None:
    from dracaena.api.review_objects import SelfSubjectAccessReview
    from dracaena.kube.errors import KubeError

    asked = {"verb": right.verb, "group": right.group, "resource": right.resource}
    try:
        review = client.create(SelfSubjectAccessReview, {"spec": {"resourceAttributes": asked}})
    except KubeError:
        return None
    return review.status.allowed


def _object(answer: bytes) -> Mapping[str, Any]:
    """Return a JSON object of the server; an empty one for anything else."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Document]:
    """Return the objects in a list; none if it is no list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _why(error: Exception) -> str:
    from dracaena.kube.errors import ForbiddenError

    is_refused = isinstance(error, ForbiddenError)
    return "an admin has to grant `list`" if is_refused else " ".join(str(error).split())
