"""The documents by which clients learn what this server serves."""

from __future__ import annotations

from typing import Any

from dracaena.demo.apiserver.resources import GROUP_VERSIONS, KINDS, VERBS, Kind
from dracaena.demo.apiserver.version import RELEASES

Document = dict[str, Any]


def version(served: str) -> Document:
    """``/version``: the Kubernetes release whose behaviour this server has."""
    major, _, minor = served.partition(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{RELEASES[served]}+dracaena-embedded",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "python",
    }


def core_versions(address: str) -> Document:
    """``/api``."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def _group(name: str) -> Document:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version} for group, version in GROUP_VERSIONS if group == name
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def groups() -> Document:
    """``/apis``."""
    names = sorted({group for group, _ in GROUP_VERSIONS if group})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}


def group(name: str) -> Document:
    """``/apis/GROUP``."""
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(name)


def resources(name: str, version: str) -> Document:
    """``/api/v1`` and ``/apis/GROUP/VERSION``."""
    served = sorted(
        (kind for kind in KINDS if (kind.group, kind.version) == (name, version)), key=lambda kind: kind.plural
    )
    entries = [entry for kind in served for entry in _entries(kind)]
    head: Document = {"kind": "APIResourceList"} | ({"apiVersion": "v1"} if name else {})
    return head | {"groupVersion": f"{name}/{version}" if name else version, "resources": entries}


def _entries(kind: Kind) -> list[Document]:
    main: Document = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(VERBS),
    }
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    if kind.categories:
        main["categories"] = list(kind.categories)
    parts = [
        {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": "Binding" if name == "binding" else kind.kind,
            "verbs": list(verbs),
        }
        for name, verbs in sorted(kind.subresources.items())
    ]
    return [main, *parts]
