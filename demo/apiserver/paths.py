"""From a URL path to what it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from dracaena.demo.apiserver.errors import no_such_path, not_implemented
from dracaena.demo.apiserver.resources import BY_RESOURCE, GROUP_VERSIONS, NAMESPACE, Kind

_WHOLE_GROUPS: Final = frozenset({"coordination.k8s.io", "resource.k8s.io"})
"""Groups of which every resource is served. One of another group is refused by its name, so that nobody thinks that it
is misspelt."""


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A collection (no `name`), an object, or a sub-resource of one."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveryPath:
    """``/api``, ``/apis``, a group or a group's version; empty strings for what is not named."""

    root: str
    group: str = ""
    version: str = ""


class UnknownPathError(Exception):
    """A path that no API group owns: answered as plain text, as kube-apiserver does."""


def parse_path(path: str) -> ResourcePath | DiscoveryPath:
    """What a path under ``/api`` or ``/apis`` names. Raises UnknownPathError, or `ApiError` 404 or 501."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    root, rest = parts[0], parts[1:]
    if root == "api":
        return _in_version("", rest[0], rest[1:]) if rest else DiscoveryPath("api")
    if root != "apis":
        raise UnknownPathError(path)
    if not rest:
        return DiscoveryPath("apis")
    group = rest[0]
    if not any(known == group for known, _ in GROUP_VERSIONS):
        if group in ("autoscaling", "policy") or group.endswith(".k8s.io"):  # Kubernetes' own
            raise not_implemented(f"the API group {group}")
        raise UnknownPathError(path)
    return _in_version(group, rest[1], rest[2:]) if len(rest) > 1 else DiscoveryPath("apis", group)


def _in_version(group: str, version: str, rest: list[str]) -> ResourcePath | DiscoveryPath:
    if (group, version) not in GROUP_VERSIONS:
        raise no_such_path()
    if not rest:
        return DiscoveryPath("apis" if group else "api", group, version)
    if rest[0] == "namespaces" and not group and (len(rest) < 3 or rest[2] in (*NAMESPACE.subresources, "")):
        return _named(NAMESPACE, "", rest[1:])
    if rest[0] == "namespaces" and len(rest) > 2:
        kind = _kind(group, version, rest[2])
        if not kind.namespaced:
            raise no_such_path()
        return _named(kind, rest[1], rest[3:])
    kind = _kind(group, version, rest[0])
    if kind.namespaced and len(rest) > 1:
        raise no_such_path()
    return _named(kind, "", rest[1:])


def _kind(group: str, version: str, plural: str) -> Kind:
    kind = BY_RESOURCE.get((group, version, plural))
    if kind:
        return kind
    if group not in _WHOLE_GROUPS:
        raise not_implemented(f"the resource {plural}")
    raise no_such_path()


def _named(kind: Kind, namespace: str, rest: list[str]) -> ResourcePath:
    if len(rest) > 2:
        if rest[1] in kind.refused:
            raise not_implemented(f"the sub-resource {kind.plural}/{rest[1]}")
        raise no_such_path()
    name, subresource = [*rest, "", ""][:2]
    if subresource and subresource not in kind.subresources:
        if subresource in kind.refused:
            raise not_implemented(f"the sub-resource {kind.plural}/{subresource}")
        raise no_such_path()
    return ResourcePath(kind, namespace, name, subresource)
