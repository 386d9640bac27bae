from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dracaena.api.decision import Decision, decision_config, read_decision
from dracaena.api.names import DELETE_PROTECTION_FINALIZER, EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import ObjectMeta
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.adapters.kube import KubeClaimWrites
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.legal.read.claims import Claim, read_claim
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.request import ClaimDemand, Refused, class_names, names_selector
from dracaena.controller.allocation.result import Allocation, allocation_document, is_trimmed
from dracaena.controller.allocation.state.node_state import held_devices, other_holdings
from dracaena.controller.cache.claims import claim_stand_in, kept_claim
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    device_class,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
    requests_of,
)
from support.hostile_objects import short_claim

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
DEEP = "[" * 1_500 + "]" * 1_500
OTHERS = {"opaque": {"driver": "other.example.com", "parameters": {"any": "@"}}}

RESULT = {"request": "r", "driver": "gpu.dracaena.dev", "pool": "node", "device": "gpu-1"}


def text(*configs: dict[str, Any], status: dict[str, Any] | None = None, **meta: Any) -> bytes:
    metadata = {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": "1", **meta}
    spec = {"devices": {"requests": [request("a"), request("b")], "config": list(configs)}}
    document = {"metadata": metadata, "spec": spec, "status": status or {}}
    return json.dumps(document).encode().replace(b'"@"', DEEP.encode())


def kept(*configs: dict[str, Any], **more: Any) -> ResourceClaim:
    return kept_claim(DRIVER)(ResourceClaim.from_json(text(*configs, **more)))


def test_parameters_of_ours_stay_and_those_of_others_are_only_counted() -> None:
    claim = kept({**OTHERS, "requests": ["a"]}, own_config(policy("PIX"), "b"), OTHERS)
    read = read_claim(claim)
    assert isinstance(read, Claim)
    assert [config.requests for config in read.configs] == [("a",), ("b",), ()]
    assert [bytes(config.parameters)[:4] for config in read.configs] == [b"[0]", b'{"ap', b"[2]"]
    demands = requests_of([device_class()]).read([claim])
    assert not isinstance(demands, Refused)


def test_ours_that_are_too_deep_are_a_reason() -> None:
    refused = requests_of([device_class()]).read([kept(own_config({"any": "@"}))])
    assert isinstance(refused, Refused)
    assert "spec.devices.config[0].opaque.parameters: $: more than 32 levels deep" in refused.text


def test_annotations_labels_owners_and_device_status_that_nobody_reads_go() -> None:
    ours = {EXTENDED_RESOURCE_ANNOTATION: "true"}
    owners = [{"uid": "1", "controller": True}, {"uid": "2"}]
    results = [{"request": "a", "driver": DRIVER, "pool": "n", "device": "d"}]
    allocation = {"devices": {"results": results, "config": [{"source": "FromClaim", **OTHERS}]}}
    status = {"allocation": allocation, "devices": [{"driver": "o", "pool": "p", "device": "d", "data": {"a": "@"}}]}
    claim = kept(
        status=status,
        annotations={**ours, f"{DRIVER}/decision": "d"},
        labels={"a": "b"},
        ownerReferences=owners,
        finalizers=["f"],
    )
    assert claim.metadata.annotations == ours
    assert claim.metadata.labels == {}
    assert [owner.uid for owner in claim.metadata.owner_references] == ["1"]
    assert claim.metadata.finalizers == ["f"]
    assert claim.status.devices == []
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.config == []
    assert [device.device for device in held_devices(claim, DRIVER)] == ["d"]


def test_of_an_allocations_configs_the_decision_stays_once() -> None:
    """kube-scheduler and we copy the configs of classes and claims into an allocation."""
    entries = [decision_config(Decision(node, "", (), 1), DRIVER) for node in ("of-a-class", "n")]
    told = [json.loads(msgspec.json.encode(entry)) for entry in entries]
    configs = [told[0], {"source": "FromClass", **OTHERS}, {**told[1], "source": "FromClaim"}, told[1]]
    claim = kept(status={"allocation": {"devices": {"results": [RESULT], "config": configs}}})
    assert claim.status.allocation is not None
    assert [one.source for one in claim.status.allocation.devices.config] == ["FromClass"]
    decision = read_decision(claim, DRIVER)
    assert decision is not None
    assert decision.node == "n"


def demand_of(claim: ResourceClaim) -> ClaimDemand:
    demands = requests_of([device_class()]).read([claim])
    assert not isinstance(demands, Refused)
    return demands[0]


def test_an_allocation_has_the_parameters_of_others_as_the_server_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ResourceClaim.from_json(text(OTHERS, {**OTHERS, "requests": ["a"]}, own_config(policy("PIX"))))
    demand = demand_of(kept_claim(DRIVER)(whole))
    configs = demand.configs((one for alternatives in demand.requests for one in alternatives), Features())
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[pool_slice("n", TWO)], classes=[device_class()])
    plain = Allocator().allocate(inventory, pod("p", "c"), [kept()])
    assert isinstance(plain, Allocation)
    entry = replace(plain.claims[0], configs=configs)
    assert is_trimmed(entry)
    document = allocation_document(plain, entry, "2026-01-01T00:00:00Z", whole)
    found = [bytes(config["opaque"]["parameters"]) for config in document["devices"]["config"]]
    assert found[0] == found[1] == b'{"any": %s}' % DEEP.encode()
    assert json.loads(found[2]) == policy("PIX")


def test_fat_claims_cost_a_fraction_of_their_size() -> None:
    """60 claims of 320 KB took 450 MiB: 32 configs, each a list of thousands of empty objects."""
    fat = [{"opaque": {"driver": "other", "parameters": {"a": [{}] * 3_300}}} for _ in range(32)]
    keep, raw = kept_claim(DRIVER), text(*fat).replace(b" ", b"")
    tracemalloc.start()
    try:
        claims = [keep(ResourceClaim.from_json(raw)) for _ in range(60)]
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(claims) == 60
    assert len(raw) > 300_000
    assert used < 60 * len(raw) / 10
    assert peak < 60 * len(raw) / 4


@pytest.mark.parametrize(
    ("finalizers", "distinct"), [(["a/b"] * 60_000, 1), ([f"a/{number}" for number in range(30_000)], 30_000)]
)
def test_many_finalizers_cost_a_few_times_their_text_and_stay_when_ours_is_written(
    finalizers: list[str], distinct: int
) -> None:
    keep, raw = kept_claim(DRIVER), text(finalizers=finalizers)
    tracemalloc.start()
    try:
        claim = keep(ResourceClaim.from_json(raw))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 4 * len(raw)
    assert keep(claim) == claim
    sent: list[dict[str, Any]] = []

    class Client:
        def merge_patch(self, kind: object, name: str, patch: dict[str, Any], **more: object) -> None:
            sent.append(patch)

    KubeClaimWrites(Client()).mark(claim)  # type: ignore[arg-type]
    assert sent[0]["metadata"]["finalizers"] == [*finalizers[:distinct], DELETE_PROTECTION_FINALIZER]


META = ObjectMeta(name="c", namespace="default", uid="u", resource_version="1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"requests"', b'"requests":\xff,"x"'),
        (b'"spec":', b'"spec":[],"x":'),
        (b'"config":', b'"config":"@","x":'),
    ],
)
def test_what_stands_in_holds_what_the_claim_holds(old: bytes, new: bytes) -> None:
    results = [{"request": "a", "driver": DRIVER, "pool": "n", "device": "d"}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "q"}],
    }
    broken = text(OTHERS, status=status).replace(old, new.replace(b'"@"', DEEP.encode()), 1)
    claim = claim_stand_in(META, broken, "the reason")
    assert [device.device for device in held_devices(claim, DRIVER)] == ["d"]
    assert [consumer.uid for consumer in claim.status.reserved_for] == ["q"]
    assert claim.problem == "the reason"
    assert str(read_claim(claim)) == "it: the reason: it cannot be read"


def test_parameters_in_the_allocation_are_no_hindrance_for_a_stand_in() -> None:
    config = {"source": "FromClass", "opaque": {"driver": "other.example.com", "parameters": {"a": [1]}}}
    allocation = {"devices": {"results": [RESULT], "config": [config]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    broken = json.dumps({"metadata": {"name": "c", "generation": "none"}, "status": {"allocation": allocation}})
    claim = claim_stand_in(META, broken.encode(), "the reason")
    assert claim.status.allocation is not None
    assert [result.device for result in claim.status.allocation.devices.results] == [RESULT["device"]]
    assert claim.status.allocation.allocation_timestamp == "2026-01-01T00:00:00Z"


def test_a_claim_whose_allocation_cannot_be_read_has_no_stand_in() -> None:
    broken = text(status={"allocation": {"devices": {"results": [{"device": 5}]}}})
    with pytest.raises(msgspec.ValidationError):
        claim_stand_in(META, broken, "the reason")


def test_a_claim_of_many_short_parts_costs_a_few_times_its_text_and_reads_the_same() -> None:
    """8,192 selectors and 4,096 tolerations: as objects they take thirteen times their text."""
    body = short_claim(1).body
    whole = ResourceClaim.from_json(body)
    tracemalloc.start()
    try:
        claims = [kept_claim(DRIVER)(ResourceClaim.from_json(body)) for _ in range(4)]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 4 * len(claims) * len(body)
    assert isinstance(read_claim(whole), Claim)
    for claim in claims:
        assert read_claim(claim) == read_claim(whole)
        assert class_names(claim) == class_names(whole) == (DRIVER,)
        assert names_selector(claim.spec, "true")


@pytest.mark.parametrize("constraints", [1, 32])
def test_constraints_read_the_same_however_many_there_are(constraints: int) -> None:
    document = json.loads(text())
    document["spec"]["devices"]["constraints"] = [
        {"requests": ["a", "b"] * 14, "matchAttribute": f"{DRIVER}/a{number}"} for number in range(constraints)
    ]
    whole = ResourceClaim.from_json(json.dumps(document).encode())
    read = read_claim(kept_claim(DRIVER)(whole))
    assert isinstance(read, Claim)
    assert len(read.constraints) == constraints
    assert read == read_claim(whole)


def test_of_the_configs_of_an_allocation_only_the_modes_of_shares_stay() -> None:
    parameters = {"kind": "GpuConfig", "sharing": {"strategy": "MPS"}, "any": "x" * 5_000}
    configs = [
        {"source": "FromClass", **own_config(policy("PIX"))},
        {"source": "FromClaim", **own_config(parameters, "r")},
        {"source": "FromClaim", **OTHERS},
    ]

    def stay(**result: Any) -> ResourceClaim:
        return kept(status={"allocation": {"devices": {"results": [{**RESULT, **result}], "config": configs}}})

    whole, shared = stay(), stay(shareID="s", consumedCapacity={"memory": "1Gi"})
    assert whole.status.allocation is not None
    assert shared.status.allocation is not None
    assert whole.status.allocation.devices.config == []
    (config,) = shared.status.allocation.devices.config
    assert (config.requests, len(msgspec.json.encode(config)) < 200) == (["r"], True)
    assert [one.mode for one in other_holdings(shared, DRIVER)] == ["MPS"]
