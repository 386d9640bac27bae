"""Every write of the controller is guarded: it carries the version of the object that it was decided on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.resource_objects import ConsumerReference
from dracaena.controller.adapters.kube import KubeClaimWrites
from dracaena.kube.errors import ConflictError
from support.allocation import claim, pod
from support.kube import client_for
from support.scripted_server import Request, ScriptedServer

CLAIM = claim("c")
POD = pod("p", "c")
USER = ConsumerReference("pods", "p", "uid-p")
STATUS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c/status"
VERSION = "7"


def at_version(item: Any) -> Any:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=VERSION))


WRITES: list[tuple[Callable[[KubeClaimWrites], object], str, dict[str, Any]]] = [
    (
        lambda claims: claims.mark(at_version(CLAIM)),
        STATUS.removesuffix("/status"),
        {"metadata": {"resourceVersion": VERSION, "finalizers": [DELETE_PROTECTION_FINALIZER]}},
    ),
    (
        lambda claims: claims.allocate(at_version(CLAIM), {"devices": {}}, USER),
        STATUS,
        {
            "metadata": {"resourceVersion": VERSION},
            "status": {
                "allocation": {"devices": {}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
            },
        },
    ),
    (
        lambda claims: claims.reserve(at_version(CLAIM), ()),
        STATUS,
        {"metadata": {"resourceVersion": VERSION}, "status": {"reservedFor": None}},
    ),
    (
        lambda claims: claims.deallocate(at_version(CLAIM)),
        STATUS,
        {
            "metadata": {"resourceVersion": VERSION},
            "status": {"allocation": None, "reservedFor": None, "devices": None},
        },
    ),
    (
        lambda claims: claims.nominate(at_version(POD), "n"),
        "/api/v1/namespaces/default/pods/p/status",
        {"metadata": {"resourceVersion": VERSION}, "status": {"nominatedNodeName": "n"}},
    ),
    (
        lambda claims: claims.nominate(at_version(POD), ""),
        "/api/v1/namespaces/default/pods/p/status",
        {"metadata": {"resourceVersion": VERSION}, "status": {"nominatedNodeName": None}},
    ),
]


@pytest.mark.parametrize(("write", "path", "body"), WRITES)
def test_each_write_names_the_version_that_it_was_decided_on(
    tmp_path: Path, write: Callable[[KubeClaimWrites], object], path: str, body: dict[str, Any]
) -> None:
    counted: list[tuple[str, str]] = []

    def answer(request: Request) -> None:
        request.answer(409, {"reason": "Conflict", "message": "changed"})

    with ScriptedServer(answer) as server:
        claims = KubeClaimWrites(client_for(server.url, tmp_path), lambda verb, result: counted.append((verb, result)))
        with pytest.raises(ConflictError):
            write(claims)
        (request,) = server.requests
    sent = json.loads(request.body)
    if "status" in sent and "reservedFor" in sent["status"] and sent["status"]["reservedFor"]:
        sent["status"]["reservedFor"] = [
            {key: value for key, value in user.items() if value} for user in sent["status"]["reservedFor"]
        ]
    assert (request.method, request.path, sent) == ("PATCH", path, body)
    assert [result for _, result in counted] == ["conflict"]
