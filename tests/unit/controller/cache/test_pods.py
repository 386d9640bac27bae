from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Node, NodeSpec, ObjectMeta, Pod, Taint
from dracaena.controller.allocation.nodes.pod_resources import pod_resources
from dracaena.controller.allocation.walk.pod_demand import shape
from dracaena.controller.cache.pods import MOST_NAMED, kept_pod
from support.node_fit import unfit_reason

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def watched(name: str, *, claims: bool = False, **metadata: Any) -> Pod:
    resources = {"requests": {"cpu": "250m", "memory": "1.5Gi"}}
    spec: dict[str, Any] = {
        "nodeName": "n",
        "nodeSelector": {"zone": "x"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "overhead": {"cpu": "1m"},
        "priority": 7,
        "containers": [
            {"name": "a", "resources": resources, "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}]},
            {"name": "b", "resources": resources},
        ],
        "initContainers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
    }
    if claims:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": "c"}]
    document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "x"},
            "annotations": {"note": "y" * 100},
            **metadata,
        },
        "spec": spec,
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.json.decode(json.dumps(document), type=Pod)


def test_of_a_pod_without_claims_only_what_it_takes_is_kept() -> None:
    first, second = kept_pod(watched("p")), kept_pod(watched("q"))
    assert (first.key, first.metadata.uid, first.metadata.resource_version) == ("default/p", "uid-p", "5")
    assert (first.spec.node_name, first.status.phase) == ("n", "Running")
    assert pod_resources(first) == pod_resources(watched("p"))
    assert dict(pod_resources(first).amounts) == {"cpu": 2001, "memory": 3 << 30, "pods": 1}
    assert (first.metadata.annotations, first.spec.node_selector) == ({}, {})
    assert first.spec.containers is second.spec.containers
    assert first.metadata.labels == {"app": "x"}
    assert first.metadata.labels is second.metadata.labels
    assert first.status is second.status
    assert len(msgspec.json.encode(first)) < len(msgspec.json.encode(watched("p"))) / 2


def test_of_a_pod_with_claims_all_that_decides_about_it_is_kept() -> None:
    pod = watched("p", claims=True, deletionTimestamp="2026-01-02T00:00:00Z")
    kept = kept_pod(pod)
    assert pod_resources(kept) == pod_resources(pod)
    for name in ("node_selector", "tolerations", "resource_claims", "priority", "node_name"):
        assert getattr(kept.spec, name) == getattr(pod.spec, name)
    assert kept.status.conditions == []
    assert kept.metadata.creation_timestamp == pod.metadata.creation_timestamp
    assert kept.metadata.deletion_timestamp == pod.metadata.deletion_timestamp
    assert kept.metadata.annotations == {}
    assert kept_pod(kept) == kept


def test_of_a_pod_with_claims_what_each_container_names_of_them_is_kept() -> None:
    def container(*uses: tuple[str, str]) -> dict[str, Any]:
        claims = [{"name": name, **({"request": request} if request else {})} for name, request in uses]
        return {"name": "c", "resources": {"claims": claims}}

    document = msgspec.to_builtins(watched("p", claims=True))
    document["spec"]["initContainers"] = [container(("g", "a"))]
    both = container(("g", "a"), ("g", "b"), ("g", "a"))
    document["spec"]["containers"] = [both, container(("h", "")), container(), both, container(("h", ""))]
    kept = kept_pod(msgspec.convert(document, Pod))
    named = [[(use.name, use.request) for use in each.resources.claims] for each in kept.spec.containers]
    assert named == [[("g", "a")], [("g", "a"), ("g", "b")], [("h", "")]]
    assert kept_pod(kept) == kept
    entry = document["spec"]["resourceClaims"][0]["name"]
    document["spec"]["containers"] = [container(*((entry, f"r{number}") for number in range(MOST_NAMED + 1)))]
    (only,) = kept_pod(msgspec.convert(document, Pod)).spec.containers
    assert [(use.name, use.request) for use in only.resources.claims] == [(entry, "")]


def test_a_quantity_that_cannot_be_read_leaves_the_pod_as_it_came() -> None:
    document = {"metadata": {"name": "p"}, "spec": {"overhead": {"cpu": "much"}}}
    odd = msgspec.convert(document, Pod)
    assert kept_pod(odd) == odd


def test_of_an_affinity_only_what_must_hold_of_nodes_is_kept() -> None:
    required: dict[str, Any] = {"nodeSelectorTerms": [{"matchFields": []}]}
    document = msgspec.to_builtins(watched("p", claims=True))
    wide = [{"weight": 1, "preference": {}}] * 100
    document["spec"]["affinity"] = {
        "nodeAffinity": {REQUIRED: required, PREFERRED: wide},
        "podAffinity": {REQUIRED: wide[:1], PREFERRED: wide},
        "podAntiAffinity": {REQUIRED: wide[:2]},
    }
    kept = kept_pod(msgspec.convert(document, Pod))
    assert kept.spec.affinity == {
        "nodeAffinity": {REQUIRED: required},
        "podAffinity": {REQUIRED: wide[:1]},
        "podAntiAffinity": {REQUIRED: wide[:2]},
    }
    assert kept_pod(kept) == kept
    document["spec"]["affinity"] = {"podAffinity": {PREFERRED: wide}}
    assert kept_pod(msgspec.convert(document, Pod)).spec.affinity == {}


def test_of_the_affinity_of_a_pod_without_claims_what_keeps_others_off_is_kept() -> None:
    apart = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": {}}]}}
    document = msgspec.to_builtins(watched("p"))
    document["spec"]["affinity"] = {**apart, "podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}
    kept = kept_pod(msgspec.convert(document, Pod))
    assert kept.spec.affinity == apart
    assert kept_pod(msgspec.convert(document, Pod)).spec.affinity is kept.spec.affinity
    assert kept_pod(kept) == kept


@pytest.mark.parametrize("claims", [True, False])
def test_two_gates_are_kept_which_tell_whether_ours_is_the_only_one(claims: bool) -> None:
    document = msgspec.to_builtins(watched("p", claims=claims))
    for names in ([], ["a/b"], ["a/b", "c/d"], ["a/b", "c/d", "e/f"]):
        document["spec"]["schedulingGates"] = [{"name": name} for name in names]
        kept = kept_pod(msgspec.convert(document, Pod))
        assert [gate.name for gate in kept.spec.scheduling_gates] == names[:2]


TERMS = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [*([{}] * 50_000), *TERMS]}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": TERMS * 5_000}}}},
        {"tolerations": [{"operator": "Exists"}] * 20_000},
        {"tolerations": [{"operator": "Exists", "tolerationSeconds": number} for number in range(20_000)]},
        {"tolerations": [*({"key": f"k{number}"} for number in range(20_000)), {"operator": "Exists"}]},
        {"schedulingGates": [{"name": f"a/{number}"} for number in range(20_000)]},
    ],
    ids=["empty terms", "terms", "equal tolerations", "times", "distinct tolerations", "gates"],
)
def test_a_pod_of_many_short_parts_costs_a_few_times_its_text_and_fits_the_same_nodes(spec: dict[str, Any]) -> None:
    """740,000 empty terms took 51 MiB as objects."""
    document = msgspec.to_builtins(watched("p", claims=True))
    document["spec"] |= {"nodeName": "", "nodeSelector": {}, "tolerations": [], **spec}
    body = json.dumps(document, separators=(",", ":")).encode()
    whole = Pod.from_json(body)
    tracemalloc.start()
    try:
        kept = [kept_pod(Pod.from_json(body)) for _ in range(4)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 4 * len(kept) * len(body)
    assert kept_pod(kept[0]) == kept[0]
    assert shape(kept[0], ()) == shape(kept[1], ())
    assert bool(kept[0].spec.scheduling_gates) == bool(whole.spec.scheduling_gates)
    for labels in ({"zone": "a"}, {}):
        for taints in ([], [Taint(key="gpu", effect="NoSchedule")]):
            there = Node(metadata=ObjectMeta(name="n", labels=labels), spec=NodeSpec(taints=taints))
            assert unfit_reason(kept[0], there) == unfit_reason(whole, there)


def test_what_tells_of_the_schedulers_work_is_kept_of_all_pods() -> None:
    """It shows who was overtaken: by pods of which priority and scheduler, and when they were first tried."""
    waiting = watched("p")
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "PodScheduled", "status": "False", "reason": "x"}]
    document = msgspec.to_builtins(waiting)
    document["spec"] |= {"nodeName": "", "schedulerName": "another"}
    document["status"] = {"phase": "Pending", "conditions": conditions}
    kept = kept_pod(msgspec.convert(document, Pod))
    assert (kept.spec.priority, kept.spec.scheduler_name) == (7, "another")
    assert [(one.type, one.reason) for one in kept.status.conditions] == [("PodScheduled", "x")]
    assert kept_pod(waiting).spec.priority == 7
    assert kept_pod(waiting).status.conditions == []
    assert kept_pod(kept) == kept


def test_of_spread_constraints_those_are_kept_that_must_hold() -> None:
    must = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    document = msgspec.to_builtins(watched("p", claims=True))
    document["spec"]["topologySpreadConstraints"] = [{**must, "whenUnsatisfiable": "ScheduleAnyway"}, must]
    kept = kept_pod(msgspec.convert(document, Pod))
    assert kept.spec.topology_spread_constraints == [must]
    assert kept_pod(kept) == kept
    del document["spec"]["resourceClaims"]
    assert kept_pod(msgspec.convert(document, Pod)).spec.topology_spread_constraints == []


def test_of_volumes_those_with_claims_are_kept_and_of_pods_without_claims_for_devices_the_claims_alone() -> None:
    document = msgspec.to_builtins(watched("p", claims=True))
    own = {"name": "data", "persistentVolumeClaim": {"claimName": "x"}}
    document["spec"]["volumes"] = [{"name": "config"}, own, {"name": "scratch", "ephemeral": {}}]
    kept = kept_pod(msgspec.convert(document, Pod))
    assert [volume.name for volume in kept.spec.volumes] == ["data", "scratch"]
    assert kept_pod(kept) == kept
    del document["spec"]["resourceClaims"]
    (left,) = kept_pod(msgspec.convert(document, Pod)).spec.volumes
    assert left.persistent_volume_claim is not None
    assert left.persistent_volume_claim.claim_name == "x"
