"""The controller over HTTP: nodes whose cpu is taken, and devices that an admin taints."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import Pod
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Stream, Transport
from support.allocation import DRIVER, blocks, device_name, machine
from support.api_ground import ApiGround
from support.controller import (
    NAMESPACE,
    DyingTransport,
    allocated_all,
    ask,
    check_invariants,
    claims_by_name,
    devices_of,
    publish,
    running_controller,
    transport,
)
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"


@pytest.fixture
def connection(server: ApiGround, tmp_path: Path) -> DyingTransport:
    return transport(server, tmp_path)


@pytest.fixture
def client(connection: DyingTransport) -> KubeClient:
    return KubeClient(connection)


def containers(cpu: str) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "example/app:1.0", "resources": {"requests": {"cpu": cpu}}}]


def run_hog(client: KubeClient, name: str, node: str, cpu: str) -> None:
    spec = {"containers": containers(cpu), "nodeName": node}
    client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)


def test_a_node_whose_cpu_is_taken_gets_no_pod_and_gets_it_when_the_hog_goes(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": TWO, "b": TWO})
    run_hog(client, "hog-a", "a", "60")
    with running_controller(connection):
        ask(client, "p", {"c": 1}, containers=containers("8"))
        (pool, _) = wait_for(lambda: devices_of(claims_by_name(client)["c"]), "the claim to be allocated")[0]
        assert pool == "b"
        run_hog(client, "hog-b", "b", "50")
        ask(client, "q", {"d": 1}, containers=containers("8"))
        later = ask(client, "r", {"e": 1}, containers=containers("2"))
        wait_for(lambda: devices_of(claims_by_name(client)["e"]), "the small pod to get its GPU")
        assert devices_of(claims_by_name(client)["d"]) == ()
        assert later.metadata.name == "r"
        client.delete(Pod, "hog-a", namespace=NAMESPACE, grace_period_s=0)
        (pool, _) = wait_for(lambda: devices_of(claims_by_name(client)["d"]), "the freed cpu to be used")[0]
        assert pool == "a"
        check_invariants(client)


class WithTaintRules(Transport):
    """Sends what is about DeviceTaintRules to a server that serves them."""

    rules: Transport

    def request(self, method: str, path: str, **options: Any) -> bytes:
        chosen = self.rules.request if "devicetaintrules" in path else super().request
        return chosen(method, path, **options)

    def read(self, path: str, *, query: Mapping[str, str], most_bytes: int | None) -> bytes | None:
        chosen = self.rules.read if "devicetaintrules" in path else super().read
        return chosen(path, query=query, most_bytes=most_bytes)

    def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        chosen = self.rules.stream if "devicetaintrules" in path else super().stream
        return chosen(path, query=query, read_timeout_s=read_timeout_s)


def rule(device: str, version: int) -> dict[str, Any]:
    selector = {"driver": DRIVER, "pool": "a", "device": device}
    taint = {"key": "example.com/sick", "effect": "NoExecute"}
    meta = {"name": "sick", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"deviceSelector": selector, "taint": taint}}


@pytest.fixture
def healed() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_device_that_a_rule_taints_is_given_to_nobody_until_the_rule_goes(
    client: KubeClient, server: ApiGround, tmp_path: Path, healed: threading.Event
) -> None:
    publish(client, {"a": TWO})
    sick = device_name(TWO, 0)
    listed = threading.Event()

    def answer(request: Request) -> None:
        if request.path != RULES:
            request.answer(404, {"reason": "NotFound", "message": "the server could not find the requested resource"})
        elif not request.watching:
            listed.wait(20)
            request.answer(200, {"metadata": {"resourceVersion": "5"}, "items": [rule(sick, 5)]})
        else:
            request.begin_stream()
            healed.wait(20)
            request.send_event("DELETED", rule(sick, 6))
            request.end_stream()

    with ScriptedServer(answer) as rules:
        folder = tmp_path / "rules"
        folder.mkdir()
        connection = WithTaintRules.from_kubeconfig(str(tmp_path / "kubeconfig"), user_agent="tests")
        assert isinstance(connection, WithTaintRules)
        connection.rules = client_for(rules.url, folder)._transport
        ask(client, "p", {"c": 1})
        ask(client, "q", {"d": 1})
        with running_controller(connection) as controller:
            wait_for(lambda: len(rules.requests) == 2, "the rules to be asked for")
            assert controller.not_ready() is not None, "decisions wait for the rules"
            listed.set()
            wait_for(lambda: any(map(devices_of, claims_by_name(client).values())), "the healthy GPU to be given")
            held = [device for item in claims_by_name(client).values() for _, device in devices_of(item)]
            assert held == [device_name(TWO, 1)]
            healed.set()
            wait_for(lambda: allocated_all(client), "the healed GPU to be given")
            check_invariants(client)
    assert {request.path for request in rules.requests} == {RULES, RULES.replace("v1beta2", "v1")}
