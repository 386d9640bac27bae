"""The controller over HTTP on an API server: what users and kube-scheduler find in the API afterwards."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.decision import read_decision
from dracaena.api.gpu_templates import GpuTemplate
from dracaena.api.names import DELETE_PROTECTION_FINALIZER, allocation_gate, rewrite_label
from dracaena.api.objects import KubeObject, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.resource_objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.demo.apiserver import Faults, InjectedFault
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from support.allocation import DRIVER, blocks, device_name, machine, own_config, policy, request
from support.api_ground import ApiGround
from support.clock import FakeClock
from support.controller import (
    NAMESPACE,
    DyingTransport,
    allocated_all,
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
from support.late_watch import late_watch
from support.other_drivers import nic, nic_class, nic_request, nic_slice

WATCHED: tuple[type[KubeObject], ...] = (
    Node, Namespace, PersistentVolumeClaim, PersistentVolume, StorageClass, DeviceClass, DeviceTaintRule, ResourceSlice,
    ResourceClaim, Pod,
)  # fmt: skip
SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"))
TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


@pytest.fixture
def connection(server: ApiGround, tmp_path: Path) -> DyingTransport:
    return transport(server, tmp_path)


@pytest.fixture
def client(connection: DyingTransport) -> KubeClient:
    return KubeClient(connection)


def events(client: KubeClient) -> list[str]:
    return [item.metadata.name.rsplit(".", 1)[0] for item in client.list(Event, namespace=NAMESPACE).items]


def test_a_pod_gets_the_four_gpus_that_are_linked_best(client: KubeClient, connection: DyingTransport) -> None:
    publish(client, {"n": SEVEN})
    waiting = ask(client, "p", {"c": 4})
    with running_controller(connection):
        stored = wait_for(lambda: allocated_all(client), "the claim to be allocated")["c"]
        wait_for(lambda: len(events(client)) == 2, "events on pod and claim")
    assert devices_of(stored) == tuple(("n", device_name(SEVEN, ordinal)) for ordinal in (3, 4, 5, 6))
    assert [(user.resource, user.name, user.uid) for user in stored.status.reserved_for] == [
        ("pods", "p", waiting.metadata.uid)
    ]
    assert DELETE_PROTECTION_FINALIZER in stored.metadata.finalizers
    decision = read_decision(stored, DRIVER)
    assert decision is not None
    assert (decision.node, decision.links) == ("n", "6 pairs PIX")
    assert sorted(events(client)) == ["c", "p"]
    check_invariants(client)


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.RESOURCE)
def test_whichever_watch_begins_last_a_waiting_pod_is_decided_without_a_pause(
    client: KubeClient, connection: DyingTransport, kind: type[KubeObject]
) -> None:
    publish(client, {"n": TWO})
    ask(client, "p", {"c": 2})
    with late_watch(kind) as begin, running_controller(connection, clock=FakeClock()) as controller:
        others = [each for each in controller.parts.watches.all if each.resource != kind.RESOURCE]
        wait_for(lambda: all(each.synced for each in others), "all else was seen")
        assert allocated_all(client) is None
        begin()
        wait_for(lambda: allocated_all(client), "the claim to be allocated")


def test_pods_that_were_there_before_and_that_come_later_share_the_devices(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": SEVEN, "b": TWO})
    ask(client, "early", {"e1": 2, "e2": 1})
    with running_controller(connection):
        wait_for(lambda: allocated_all(client), "the early pod's claims")
        for number in range(6):
            ask(client, f"late-{number}", {f"l{number}": 1})
        wait_for(lambda: allocated_all(client), "all claims")
        ask(client, "too-late", {"no": 1})
        wait_for(lambda: "too-late" in events(client), "an event for the pod that does not fit")
        check_invariants(client)
        nodes = {pool for name in ("e1", "e2") for pool, _ in devices_of(claims_by_name(client)[name])}
        assert len(nodes) == 1
        free(client, "late-3", "l3")
        wait_for(lambda: devices_of(claims_by_name(client)["no"]), "the freed device to be given on")
    held = [device for item in claims_by_name(client).values() for device in devices_of(item)]
    assert len(held) >= len(set(held)) == 9


def test_several_workers_serve_pods_in_the_order_of_their_turns(client: KubeClient, connection: DyingTransport) -> None:
    publish(client, {"n": SEVEN})
    pods = [ask(client, f"p{number:02}", {f"of-p{number:02}": 1}) for number in reversed(range(12))]
    with running_controller(connection):
        wait_for(
            lambda: len([c for c in claims_by_name(client).values() if devices_of(c)]) == 7, "all GPUs to be taken"
        )
    served = {name.removeprefix("of-") for name, item in claims_by_name(client).items() if devices_of(item)}
    assert served == {item.metadata.name for item in sorted(pods, key=turn)[:7]}
    check_invariants(client)


def test_a_pod_that_also_asks_for_a_network_card_goes_to_the_node_that_has_one(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"a": TWO, "b": TWO, "c": TWO})
    nics = nic_slice("b", [nic("0")])
    client.create(ResourceSlice, {"metadata": {"name": "nics"}, "spec": msgspec.to_builtins(nics.spec)})
    client.create(DeviceClass, {"metadata": {"name": "nic"}, "spec": nic_class().spec})
    for name, wanted in (("gpu", request()), ("card", nic_request())):
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [wanted]}}}
        client.create(ResourceClaim, document, namespace=NAMESPACE)
    create_pod(client, "p", "gpu", "card")
    with running_controller(connection):
        wait_for(lambda: devices_of(claims_by_name(client)["gpu"]), "the claim for a GPU to be allocated")
    ((pool, _),) = devices_of(claims_by_name(client)["gpu"])
    assert pool == "b"


def gates(client: KubeClient, name: str) -> list[str]:
    return [gate.name for gate in client.get(Pod, name, namespace=NAMESPACE).spec.scheduling_gates]


def template_names(client: KubeClient) -> list[str]:
    return [item.metadata.name for item in client.list(ResourceClaimTemplate, namespace=NAMESPACE).items]


def test_a_template_that_a_pod_names_is_made_once_its_namespace_has_opted_in(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": SEVEN})
    with running_controller(connection):
        entry = {"name": "gpus", "resourceClaimTemplateName": f"gpus-2.{DRIVER}"}
        spec = {"containers": [{"name": "main", "image": "example/app:1.0"}], "resourceClaims": [entry]}
        client.create(Pod, {"metadata": {"name": "p"}, "spec": spec}, namespace=NAMESPACE)
        ask(client, "other", {"c": 1})
        wait_for(lambda: devices_of(claims_by_name(client)["c"]), "a later pod to be served")
        assert template_names(client) == []
        label = {"metadata": {"labels": {rewrite_label(DRIVER): "true"}}}
        client.merge_patch(Namespace, NAMESPACE, label)
        wait_for(lambda: template_names(client) == [f"gpus-2.{DRIVER}"], "the template to be made")
    (made,) = client.list(ResourceClaimTemplate, namespace=NAMESPACE).items
    assert made.spec.spec == GpuTemplate(2, DRIVER).spec()["spec"]


def has_no_gate(client: KubeClient, name: str) -> bool:
    return not gates(client, name)


def test_pods_pass_our_gate_with_their_gpus_or_where_there_is_nothing_of_ours(
    client: KubeClient, connection: DyingTransport
) -> None:
    ours, theirs = {"name": allocation_gate(DRIVER)}, {"name": "example.com/quota"}
    publish(client, {"n": SEVEN})
    ask(client, "early", {"e": 2}, schedulingGates=[ours])
    create_pod(client, "early-plain", schedulingGates=[ours])
    with running_controller(connection):
        ask(client, "late", {"l": 1}, schedulingGates=[ours])
        create_pod(client, "late-plain", schedulingGates=[ours])
        ask(client, "quota", {"q": 1}, schedulingGates=[theirs, ours])
        ask(client, "huge", {"h": 9}, schedulingGates=[ours])
        for name in ("early", "early-plain", "late", "late-plain"):
            wait_for(partial(has_no_gate, client, name), f"{name} to pass the gate")
        wait_for(lambda: "huge" in events(client), "an event for the pod that does not fit")
        assert gates(client, "quota") == [theirs["name"], ours["name"]]
        assert gates(client, "huge") == [ours["name"]]
        held = {name for name, item in claims_by_name(client).items() if devices_of(item)}
        assert held == {"e", "l"}
        patch = {"spec": {"schedulingGates": [ours]}}
        client.merge_patch(Pod, "quota", patch, namespace=NAMESPACE)
        wait_for(partial(has_no_gate, client, "quota"), "the pod to pass our gate after the other one")
        assert devices_of(claims_by_name(client)["q"])
    check_invariants(client)


def free(client: KubeClient, pod: str, claim: str) -> None:
    """Do what kube-controller-manager does when the pod of a claim is gone."""
    client.delete(Pod, pod, namespace=NAMESPACE, grace_period_s=0)
    status = {"status": {"allocation": None, "reservedFor": None}}
    client.merge_patch(ResourceClaim, claim, status, namespace=NAMESPACE, subresource="status")


def messages(client: KubeClient, pod: str) -> list[str]:
    found = client.list(Event, namespace=NAMESPACE).items
    return [item.message for item in found if item.metadata.name.startswith(f"{pod}.")]


def test_a_node_is_kept_for_a_pod_that_has_waited_too_long_and_then_given_to_it(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": TWO})
    registry = CollectorRegistry()
    with running_controller(connection, registry=registry, starvation_wait_s=0.5):
        for name in ("a", "b"):
            ask(client, name, {f"of-{name}": 1})
        wait_for(lambda: allocated_all(client), "both GPUs to be taken")
        ask(client, "large", {"of-large": 2})
        kept = "dracaena_controller_earmarks"
        wait_for(lambda: registry.get_sample_value(kept) == 1, "the node to be kept")
        free(client, "a", "of-a")
        ask(client, "late", {"of-late": 1})
        told = "0/1 nodes fit: 1 kept for a pod of priority 0 that comes before this one and has waited long (n)"
        wait_for(lambda: told in messages(client, "late"), "the late pod to be told")
        assert not devices_of(claims_by_name(client)["of-late"])
        counts = [("gpus", {"state": "free"}), ("gpus", {"state": "used"}), ("most_free_gpus", {})]
        seen = [partial(registry.get_sample_value, f"dracaena_controller_{name}", of) for name, of in counts]
        wait_for(lambda: [value() for value in seen] == [1, 1, 1], "the free GPU to be counted")
        free(client, "b", "of-b")
        wait_for(lambda: len(devices_of(claims_by_name(client)["of-large"])) == 2, "the large pod's GPUs")
        check_invariants(client)


def test_a_claim_that_cannot_be_read_is_left_alone_and_its_pod_is_told_why(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": SEVEN})
    later = {"apiVersion": "gpu.dracaena.dev/v9", "kind": "TopologyPolicy"}
    document: dict[str, Any] = {"devices": {"requests": [request(count=2)], "config": [own_config(later)]}}
    client.create(ResourceClaim, {"metadata": {"name": "c"}, "spec": document}, namespace=NAMESPACE)
    create_pod(client, "p", "c")
    registry = CollectorRegistry()
    with running_controller(connection, registry=registry):
        wait_for(lambda: "p" in events(client), "an event on the pod")
    stored = claims_by_name(client)["c"]
    assert stored.status.allocation is None
    assert stored.metadata.finalizers == []
    labels = {"reason": "config-broken"}
    assert registry.get_sample_value("dracaena_controller_waiting_pods", labels) == 1


def test_a_claim_that_the_server_lets_nobody_patch_is_named_to_its_user(
    client: KubeClient, connection: DyingTransport
) -> None:
    """kube-apiserver compares opaque parameters as bytes: blanks, as many clients send JSON, make every patch fail."""
    publish(client, {"n": SEVEN})
    opaque = {"driver": DRIVER, "parameters": policy("PIX")}
    spec = {"devices": {"requests": [request(count=2)], "config": [{"opaque": opaque}]}}
    document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
    connection.request("POST", path, body=json.dumps(document).encode())  # with blanks after , and :
    create_pod(client, "p", "c")
    registry = CollectorRegistry()
    with running_controller(connection, registry=registry):
        wait_for(lambda: "p" in events(client), "an event on the pod")
        notes = client.list(Event, namespace=NAMESPACE).items
    (event,) = [item for item in notes if item.metadata.name.startswith("p.")]
    assert "claim default/c is refused by the API server" in event.message
    assert "create it again with compact JSON" in event.message
    assert claims_by_name(client)["c"].status.allocation is None


def test_a_claim_with_more_configs_than_an_allocation_has_room_for_is_refused_without_a_write(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": SEVEN})
    foreign = {"opaque": {"driver": "other.example.com", "parameters": {"any": "thing"}}}
    of_class = [{"opaque": {"driver": DRIVER, "parameters": policy("PIX")}}, *[foreign] * 31]
    client.create(DeviceClass, {"metadata": {"name": "full"}, "spec": {"config": of_class}})
    for name, count in (("crowded", 32), ("fitting", 31)):
        document = {"devices": {"requests": [request(device_class="full")], "config": [foreign] * count}}
        client.create(ResourceClaim, {"metadata": {"name": name}, "spec": document}, namespace=NAMESPACE)
        create_pod(client, f"of-{name}", name)
    before = claims_by_name(client)["crowded"].metadata.resource_version
    words = "an allocation has room for 64 configs, one of which says what was decided: leave out 1"
    with running_controller(connection):
        allocation = wait_for(lambda: claims_by_name(client)["fitting"].status.allocation, "the other claim")
        wait_for(lambda: any(words in item.message for item in client.list(Event, namespace=NAMESPACE).items), "why")
    assert len(allocation.devices.config) == 64
    assert claims_by_name(client)["crowded"].metadata.resource_version == before


def test_a_class_that_is_mended_lets_its_pods_go_on(client: KubeClient, connection: DyingTransport) -> None:
    publish(client, {"n": SEVEN})
    broken = {"config": [{"opaque": {"driver": DRIVER, "parameters": policy("fast")}}]}
    client.create(DeviceClass, {"metadata": {"name": "linked"}, "spec": broken})
    document = {"devices": {"requests": [request(count=4, device_class="linked")]}}
    client.create(ResourceClaim, {"metadata": {"name": "c"}, "spec": document}, namespace=NAMESPACE)
    create_pod(client, "p", "c")
    with running_controller(connection):
        wait_for(lambda: "p" in events(client), "an event on the pod")
        mended = {"spec": {"config": [{"opaque": {"driver": DRIVER, "parameters": policy("PIX")}}]}}
        client.merge_patch(DeviceClass, "linked", mended)
        stored = wait_for(lambda: allocated_all(client), "the claim")["c"]
    assert stored.status.allocation is not None
    configs = stored.status.allocation.devices.config
    assert [entry.source for entry in configs] == ["FromClass", "FromClass"]
    assert [entry.opaque and entry.opaque.driver for entry in configs] == [DRIVER, f"decision.{DRIVER}"]


@pytest.mark.embedded_only(reason="makes the server fail")
@pytest.mark.parametrize("subresource", ["c0", "status"])
def test_a_write_whose_answer_gets_lost_is_made_once(
    faults: Faults, client: KubeClient, connection: DyingTransport, subresource: str
) -> None:
    """The server carries the write out and closes the connection without an answer."""
    publish(client, {"n": SEVEN})
    path = r"/resourceclaims/c0\?" if subresource == "c0" else r"/resourceclaims/c0/status"
    faults.add(InjectedFault(method="PATCH", path=path, close=True, after=True))
    ask(client, "p", {"c0": 2})
    with running_controller(connection):
        wait_for(lambda: allocated_all(client), "the claim", timeout_s=30)
    assert faults.pending() == 0
    check_invariants(client)


@pytest.mark.embedded_only(reason="makes the server fail")
def test_a_server_that_answers_with_errors_for_a_while_is_borne(
    faults: Faults, client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": SEVEN})
    faults.add(InjectedFault(method="GET", path="watch=true", status=500, times=3))
    faults.add(InjectedFault(method="PATCH", path=r"/resourceclaims/c\?", status=409, message="changed", times=2))
    ask(client, "p", {"c": 4})
    with running_controller(connection) as controller:
        wait_for(lambda: allocated_all(client), "the claim", timeout_s=30)
        assert controller.not_ready() is None
    check_invariants(client)


def test_a_pod_on_a_claim_that_is_allocated_is_left_to_kube_scheduler(
    client: KubeClient, connection: DyingTransport
) -> None:
    publish(client, {"n": SEVEN})
    ask(client, "p", {"c": 1})
    with running_controller(connection):
        before = wait_for(lambda: allocated_all(client), "the claim")["c"]
        create_pod(client, "q", "c")
        ask(client, "r", {"d": 1})
        wait_for(lambda: allocated_all(client), "the other claim")
    assert claims_by_name(client)["c"].metadata.resource_version == before.metadata.resource_version
    assert [pod.metadata.name for pod in client.list(Pod, namespace=NAMESPACE).items] == ["p", "q", "r"]
