from __future__ import annotations

from typing import Any, cast

import pytest

from dracaena.api.objects import Node, ObjectMeta
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError, error_for
from dracaena.kubelet_plugin.node.label_writing import TRIES, NodeLabelsError, write_node_labels

DRIVER = "gpu.dracaena.dev"
COUNT = "nvidia.com/gpu.count"


class Server:
    """Answers as scripted, and notes what was written."""

    def __init__(self, *refusals: KubeError | None, unread: KubeError | None = None) -> None:
        self.refusals = list(refusals)
        self.unread = unread
        self.patches: list[dict[str, Any]] = []
        self.reads = 0

    def get(self, kind: type[Node], name: str) -> Node:
        if self.unread is not None:
            raise self.unread
        self.reads += 1
        return Node(metadata=ObjectMeta(name=name, resource_version=str(self.reads), labels={"rack": "a"}))

    def merge_patch(self, kind: type[Node], name: str, patch: dict[str, Any]) -> None:
        self.patches.append(patch)
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal


def refused(status: int, reason: str, message: str = "said the server") -> KubeError:
    return error_for("PATCH node", status, f'{{"reason": "{reason}", "message": "{message}"}}'.encode())


def write(server: Server, wanted: dict[str, str]) -> tuple[str, ...]:
    return write_node_labels(cast(KubeClient, server), "n1", wanted, DRIVER)


def test_a_patch_holds_for_the_version_that_was_read() -> None:
    server = Server()
    assert write(server, {COUNT: "8"}) == (COUNT,)
    (patch,) = server.patches
    assert patch["metadata"]["resourceVersion"] == "1"
    assert patch["metadata"]["labels"] == {COUNT: "8"}


def test_a_node_that_is_as_wanted_is_not_written() -> None:
    server = Server()
    assert write(server, {}) == ()
    assert write(server, {"rack": "a"}) == ()
    assert server.patches == []


def test_a_node_that_changed_in_between_is_read_again() -> None:
    server = Server(refused(409, "Conflict"), refused(409, "Conflict"))
    assert write(server, {COUNT: "8"}) == (COUNT,)
    assert [patch["metadata"]["resourceVersion"] for patch in server.patches] == ["1", "2", "3"]


def test_a_node_that_never_rests_is_left_after_some_tries() -> None:
    server = Server(*[refused(409, "Conflict")] * (TRIES + 1))
    with pytest.raises(NodeLabelsError, match="changed by somebody else 5 times"):
        write(server, {COUNT: "8"})
    assert len(server.patches) == TRIES


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (refused(404, "NotFound"), "there is no Node n1: expected a name as `kubectl get nodes` prints it"),
        (refused(403, "Forbidden"), "an admin must grant get and patch on nodes"),
        (refused(422, "Invalid", "policy denied request"), "a policy of the cluster refuses .* policy denied request"),
        (refused(503, "ServiceUnavailable"), "cannot reach Node n1 or change it: .* 503"),
    ],
)
def test_a_refusal_says_who_must_act(answer: KubeError, told: str) -> None:
    for server in (Server(answer), Server(unread=answer)):
        with pytest.raises(NodeLabelsError, match=told):
            write(server, {COUNT: "8"})
        assert len(server.patches) <= 1
