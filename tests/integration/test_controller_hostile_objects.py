"""Objects that any user may send, on an API server: each costs itself and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.state.intake import Intake
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from support.allocation import DRIVER, blocks, machine, own_config, request
from support.api_ground import ApiGround
from support.controller import (
    NAMESPACE,
    DyingTransport,
    ask,
    check_invariants,
    claims_by_name,
    create_pod,
    devices_of,
    publish,
    running_controller,
    transport,
)
from support.kube import wait_for

pytestmark = pytest.mark.embedded_only(
    reason="the clean-up of these tests cannot read such objects; e2e/test_hostile_input.py has a real server"
)

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
LEVELS = 1_500
"""What stopped everything on Python 3.11 and 3.12, in a claim of 3 KB."""


@pytest.fixture
def connection(server: ApiGround, tmp_path: Path) -> DyingTransport:
    return transport(server, tmp_path)


@pytest.fixture
def client(connection: DyingTransport) -> KubeClient:
    return KubeClient(connection)


def post_claim(connection: DyingTransport, name: str, parameters: bytes, driver: str = "other.example.com") -> None:
    config = own_config({"X": 0})
    config["opaque"]["driver"] = driver
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request(count=1)], "config": [config]}},
    }
    body = msgspec.json.encode(document, order="sorted").replace(b'{"X":0}', parameters)
    connection.request("POST", CLAIMS, body=body)


def deep(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def messages(client: KubeClient, name: str) -> str:
    found = client.list(Event, namespace=NAMESPACE).items
    return "; ".join(item.message for item in found if item.involved_object.name == name)


def got(client: KubeClient, claim: str) -> bool:
    return bool(devices_of(claims_by_name(client)[claim]))


@pytest.mark.parametrize("first", [False, True], ids=["while it runs", "before it starts"])
def test_deep_parameters_stop_nobody_and_are_copied_as_they_are(
    first: bool, client: KubeClient, connection: DyingTransport
) -> None:
    """Also for the pod that has them: they are for another driver, and none of our business."""
    publish(client, {"n": TWO})
    if first:
        post_claim(connection, "deep", deep(LEVELS))
    with running_controller(connection):
        if not first:
            ask(client, "before", {"of-before": 1})
            wait_for(lambda: got(client, "of-before"), "a pod before it")
            post_claim(connection, "deep", deep(LEVELS))
        create_pod(client, "p", "deep")
        wait_for(lambda: got(client, "deep"), "the GPU of the claim with deep parameters")
        if first:
            ask(client, "after", {"of-after": 1})
            wait_for(lambda: got(client, "of-after"), "a pod behind it")
        check_invariants(client)
    stored = claims_by_name(client)["deep"]
    assert stored.status.allocation is not None
    (config, _) = stored.status.allocation.devices.config
    assert config.opaque is not None
    assert bytes(config.opaque.parameters) == deep(LEVELS)


def test_deep_parameters_of_ours_are_a_reason_that_the_pod_is_told(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": TWO})
    post_claim(connection, "deep", deep(LEVELS), driver=DRIVER)
    with running_controller(connection):
        create_pod(client, "p", "deep")
        wait_for(lambda: "more than 32 levels deep" in messages(client, "p"), "the reason")
        ask(client, "other", {"of-other": 1})
        wait_for(lambda: got(client, "of-other"), "another pod's GPU")


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the claims of a name lead to an error that nobody thought of, as long as the test lasts."""
    plain = ResourceClaim._from_json.__func__  # type: ignore[attr-defined]

    def from_json(cls: type[ResourceClaim], text: Any, as_sent: Any) -> ResourceClaim:
        if json.dumps(name).encode() in bytes(text)[:400]:
            raise RuntimeError("a newer server's claim")
        found: ResourceClaim = plain(cls, text, as_sent)
        return found

    monkeypatch.setattr(ResourceClaim, "_from_json", classmethod(from_json))


def test_what_a_claim_holds_that_cannot_be_read_at_the_start_is_given_to_nobody(
    client: KubeClient, connection: DyingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, {"n": TWO})
    with running_controller(connection):
        ask(client, "odd", {"odd-claim": 1})
        wait_for(lambda: got(client, "odd-claim"), "its GPU")
    held = devices_of(claims_by_name(client)["odd-claim"])
    unreadable(monkeypatch, "odd-claim")
    registry = CollectorRegistry()
    with running_controller(connection, registry=registry):
        ask(client, "one", {"of-one": 1})
        wait_for(lambda: got(client, "of-one"), "the GPU that is free")
        ask(client, "two", {"of-two": 1})
        wait_for(lambda: "0/1 nodes fit" in messages(client, "two"), "the pod to be told that none is free")
        wait_for(lambda: "a newer server's claim" in messages(client, "odd-claim"), "an Event on the claim")
        labels = {"resource": "resourceclaims"}
        assert registry.get_sample_value("dracaena_controller_unreadable_objects", labels) == 1
    monkeypatch.undo()
    claims = claims_by_name(client)
    assert devices_of(claims["odd-claim"]) == held
    assert not set(devices_of(claims["of-one"])) & set(held)
    assert not devices_of(claims["of-two"])


def test_nothing_is_allocated_while_what_a_claim_holds_is_not_known(
    client: KubeClient, connection: DyingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, {"n": TWO})
    ask(client, "odd", {"odd-claim": 1})
    ask(client, "one", {"of-one": 1})
    unreadable(monkeypatch, "odd-claim")
    monkeypatch.setattr("dracaena.controller.watches.claim_stand_in", _no_stand_in)
    with running_controller(connection) as controller:
        cache = next(each for each in controller.parts.watches.all if each.resource == "resourceclaims")
        wait_for(lambda: cache.last_error, "the list that fails")
        assert cache.last_error is not None
        assert "ResourceClaim odd-claim cannot be read, nor what it holds: no results" in cache.last_error
        assert controller.not_ready() is not None
    monkeypatch.undo()
    assert not any(devices_of(claim) for claim in claims_by_name(client).values())


def _no_stand_in(*_: Any) -> ResourceClaim:
    raise ValueError("no results")


def test_a_claim_that_cannot_be_taken_in_keeps_its_devices_and_stops_nobody(
    client: KubeClient, connection: DyingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, {"n": TWO})
    with running_controller(connection):
        ask(client, "odd", {"odd-claim": 1})
        wait_for(lambda: got(client, "odd-claim"), "its GPU")
    plain = Intake.claim_changed
    fails = [True]

    def claim_changed(self: Intake, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if fails[0] and new is not None and new.metadata.name == "odd-claim":
            raise ZeroDivisionError("a bug")
        plain(self, old, new)

    monkeypatch.setattr(Intake, "claim_changed", claim_changed)
    with running_controller(connection) as controller:
        ask(client, "one", {"of-one": 1})
        wait_for(lambda: got(client, "of-one"), "the GPU that is free")
        ask(client, "two", {"of-two": 1})
        wait_for(lambda: "0/1 nodes fit" in messages(client, "two"), "the pod to be told that none is free")
        fails[0] = False
        wait_for(lambda: controller.parts.cluster.claim(f"{NAMESPACE}/odd-claim"), "the retry", timeout_s=20)
        check_invariants(client)
