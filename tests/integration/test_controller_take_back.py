"""What happens after an allocation was written, over HTTP on an API server; the test is kube-scheduler."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import KubeClient
from support.allocation import DRIVER, blocks, device_name, machine
from support.api_ground import ApiGround
from support.controller import (
    NAMESPACE,
    DyingTransport,
    ask,
    check_invariants,
    claims_by_name,
    devices_of,
    publish,
    running_controller,
    transport,
)
from support.kube import wait_for

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


@pytest.fixture
def connection(server: ApiGround, tmp_path: Path) -> DyingTransport:
    return transport(server, tmp_path)


@pytest.fixture
def client(connection: DyingTransport) -> KubeClient:
    return KubeClient(connection)


def node_of(client: KubeClient, name: str) -> str:
    """The node of a claim's devices; nothing when it has none."""
    return next((pool for pool, _ in devices_of(claims_by_name(client)[name])), "")


def clear(client: KubeClient, name: str) -> None:
    """What kube-scheduler's PostFilter does with an allocation that no node can use."""
    status = {"allocation": None, "reservedFor": None, "devices": None}
    client.merge_patch(ResourceClaim, name, {"status": status}, namespace=NAMESPACE, subresource="status")


def test_an_allocation_that_was_cleared_is_made_on_another_node_and_then_nowhere(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": TWO, "b": TWO})
    with running_controller(connection):
        ask(client, "p", {"c": 1})
        wait_for(lambda: node_of(client, "c") == "a", "the first node")
        clear(client, "c")
        wait_for(lambda: node_of(client, "c") == "b", "the second node")
        clear(client, "c")
        ask(client, "q", {"d": 1})
        wait_for(lambda: node_of(client, "d"), "a later pod, so that the earlier one was looked at")
        assert node_of(client, "c") == ""
        check_invariants(client)


def test_a_device_that_somebody_else_has_too_is_given_up_for_another_one(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": TWO})
    registry = CollectorRegistry()
    with running_controller(connection, registry=registry, longest_bind_s=3.0):  # kube-scheduler says nothing here
        ask(client, "p", {"c": 1})
        ours = wait_for(lambda: devices_of(claims_by_name(client)["c"]), "our allocation")
        assert ours == (("a", device_name(TWO, 0)),)
        document = {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": DRIVER}}]}}
        client.create(ResourceClaim, {"metadata": {"name": "x"}, "spec": document}, namespace=NAMESPACE)
        stored = claims_by_name(client)["c"].status.allocation
        assert stored is not None
        allocation = msgspec.json.decode(msgspec.json.encode(stored))
        del allocation["devices"]["config"]  # the decision would say that it is ours
        allocation["devices"]["results"][0]["request"] = "g"
        user = {"resource": "pods", "name": "of-x", "uid": "uid-of-x"}
        status = {"allocation": allocation, "reservedFor": [user]}
        client.merge_patch(ResourceClaim, "x", {"status": status}, namespace=NAMESPACE, subresource="status")
        wait_for(lambda: devices_of(claims_by_name(client)["c"]) == (("a", device_name(TWO, 1)),), "the other device")
        assert devices_of(claims_by_name(client)["x"]) == ours
    assert registry.get_sample_value("dracaena_controller_collisions_total", {"kind": "own"}) == 1


def test_the_scheduler_is_told_the_node_before_the_claim_is_allocated(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": TWO})
    with running_controller(connection, nominate_above_nodes=0):
        ask(client, "p", {"c": 1})
        wait_for(lambda: node_of(client, "c") == "a", "the allocation")
        assert client.get(Pod, "p", namespace=NAMESPACE).status.nominated_node_name == "a"
