"""Writes that pass a gate: who may not write sends nothing, who may only read is not asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dracaena.api.objects import Pod
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ApiUnavailableError, ConflictError
from support.kube import client_for
from support.scripted_server import Request, ScriptedServer

WRITES: dict[str, Callable[[KubeClient], object]] = {
    "POST": lambda client: client.create(Pod, {"metadata": {"name": "p"}}, namespace="ns"),
    "PUT": lambda client: client.replace(Pod, {"metadata": {"name": "p"}}, namespace="ns"),
    "PATCH": lambda client: client.merge_patch(Pod, "p", {}, namespace="ns", subresource="status"),
    "DELETE": lambda client: client.delete(Pod, "p", namespace="ns"),
}


def answer(request: Request) -> None:
    if request.method == "PATCH":
        request.answer(409, {"reason": "Conflict", "message": "changed"})
    else:
        request.answer(200, {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "1"}, "items": []})


class Closed(AbstractContextManager[None]):
    def __enter__(self) -> None:
        raise ApiUnavailableError("write", None, "", "closed")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it was never entered")


@pytest.mark.parametrize("method", sorted(WRITES))
def test_a_closed_gate_lets_no_write_out(tmp_path: Path, method: str) -> None:
    with ScriptedServer(answer) as server:
        client = client_for(server.url, tmp_path).guarded(Closed)
        with pytest.raises(ApiUnavailableError, match="closed"):
            WRITES[method](client)
        client.get(Pod, "p", namespace="ns")
        client.list(Pod)
        assert [request.method for request in server.requests] == ["GET", "GET"]


@pytest.mark.parametrize("method", sorted(WRITES))
def test_the_gate_is_open_around_the_request_alone_and_hears_how_it_ended(tmp_path: Path, method: str) -> None:
    heard: list[str] = []

    @contextmanager
    def gate() -> Iterator[None]:
        heard.append(f"before {len(server.requests)}")
        try:
            yield
        except ConflictError:
            heard.append("conflict")
            raise
        finally:
            heard.append(f"after {len(server.requests)}")

    with ScriptedServer(answer) as server:
        plain = client_for(server.url, tmp_path)
        try:
            WRITES[method](plain.guarded(gate))
        except ConflictError:
            assert method == "PATCH"
        middle = ["conflict"] if method == "PATCH" else []
        assert heard == ["before 0", *middle, "after 1"]
        WRITES["POST"](plain)
        assert len(heard) == 2 + len(middle), "the client that it was made from has no gate"
