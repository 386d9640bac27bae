"""How many pods fit, beside pods that are simulated one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceClaimTemplate, ResourceClaimTemplateSpec
from dracaena.cli.cluster_objects import ClusterObjects
from dracaena.cli.document import read_documents
from dracaena.cli.manifests import Manifest, Source
from dracaena.cli.what_fits import MOST_COPIES, Fit, fit_document, fit_table, fits, pod_templates
from dracaena.cli.workloads import workload_pods
from dracaena.controller.simulation import Outcome, Simulation
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    policy,
    pool_slice,
    request,
)

MACHINES = {name: machine(name, blocks(2, 2, inside="NV2", outside="SYS")) for name in ("n1", "n2")}
NODES = tuple(node(name) for name in MACHINES)
SLICES = tuple(pool_slice(name, made) for name, made in MACHINES.items())


def template(name: str, *requests: dict[str, Any], **devices: Any) -> ResourceClaimTemplate:
    spec = {"devices": {"requests": list(requests), **devices}}
    return ResourceClaimTemplate(ObjectMeta(name=name, namespace="default"), ResourceClaimTemplateSpec(spec))


def objects(**kinds: Any) -> ClusterObjects:
    return ClusterObjects(nodes=NODES, slices=SLICES, classes=(device_class(),), **kinds)


def started(given_objects: ClusterObjects, templates: Iterable[ResourceClaimTemplate]) -> Simulation:
    return Simulation(
        DRIVER,
        nodes=given_objects.nodes,
        slices=given_objects.slices,
        classes=given_objects.classes,
        claims=given_objects.claims,
        templates=templates,
    )


def found(given_objects: ClusterObjects, made: Sequence[Pod] = ()) -> list[Fit]:
    templates = pod_templates(given_objects, made)
    return list(fits(templates, given_objects, lambda own: started(given_objects, own)))


def one_by_one(given_objects: ClusterObjects, name: str) -> list[Outcome]:
    """What many pods of one claim template get that are all there at once."""
    pods = [pod(f"p{number}", templates=[name]) for number in range(12)]
    outcomes = list(started(given_objects, given_objects.templates).outcomes([*given_objects.pods, *pods]))
    return [outcome for outcome in outcomes if outcome.node is not None]


HELD = st.lists(st.tuples(st.sampled_from(sorted(MACHINES)), st.integers(0, 3)), max_size=6, unique=True)
CONFIGS = st.sampled_from([[], [{"opaque": {"driver": DRIVER, "parameters": policy("NVLink")}}]])


@given(HELD, st.integers(1, 4), CONFIGS)
def test_as_many_fit_as_get_their_devices_one_by_one(
    held: list[tuple[str, int]], gpus: int, config: list[dict[str, Any]]
) -> None:
    claims = tuple(
        holding(claim(f"held{number}"), name, device_name(MACHINES[name], ordinal))
        for number, (name, ordinal) in enumerate(held)
    )
    given_objects = objects(claims=claims, templates=(template("t", request(count=gpus), config=config),))
    (fit,) = found(given_objects)
    expected = one_by_one(given_objects, "t")
    assert fit.template == "ResourceClaimTemplate default/t"
    assert len(fit.pods) == len(expected)
    assert fit.nodes == Counter(outcome.node for outcome in expected)
    assert fit.reason
    assert (fit.best is None) == (fit.last is None) == (not expected)
    if expected:
        assert fit.best
        assert fit.last
        assert fit.last.decision
        assert expected[-1].decision
        assert fit.last.decision.links == expected[-1].decision.links
        bandwidths = [dict(each.decision.score)["bandwidth_gb_s"] for each in expected if each.decision]
        assert fit.best.decision
        assert dict(fit.best.decision.score)["bandwidth_gb_s"] == max(bandwidths)


def test_each_template_is_asked_of_the_cluster_as_it_is() -> None:
    templates = (template("one", request()), template("two", request(count=2)))
    assert [(fit.template, len(fit.pods)) for fit in found(objects(templates=templates))] == [
        ("ResourceClaimTemplate default/one", 8),
        ("ResourceClaimTemplate default/two", 4),
    ]


def test_a_claim_that_a_pod_names_is_taken_as_if_each_copy_had_one() -> None:
    given_objects = objects(claims=(claim("mine", request(count=2)),), pods=(pod("p", "mine"),))
    assert [(fit.template, len(fit.pods)) for fit in found(given_objects)] == [("Pod default/p", 4)]


def test_what_is_missing_is_the_reason() -> None:
    (fit,) = found(objects(pods=(pod("p", "gone"),)))
    assert (len(fit.pods), fit.reason) == (0, "claim default/gone does not exist: create it")


def test_gates_and_claims_that_are_there_do_not_count_and_pods_without_claims_are_left_out() -> None:
    gated = pod("gated", templates=["one"], schedulingGates=[{"name": "example.com/later"}])
    running = msgspec.structs.replace(
        pod("r", templates=["one"]), status=msgspec.convert({"phase": "Running"}, type(gated.status))
    )
    given_objects = objects(templates=(template("one", request()),), pods=(gated, running, pod("plain")))
    assert [(fit.template, len(fit.pods)) for fit in found(given_objects)] == [("Pod default/gated", 8)]


def test_pods_of_one_controller_are_one_template() -> None:
    owner = {"uid": "rs", "kind": "ReplicaSet", "name": "rs", "controller": True}
    pods = [msgspec.to_builtins(pod(f"p{number}", templates=["one"])) for number in range(3)]
    for each in pods:
        each["metadata"]["ownerReferences"] = [owner]
    given_objects = objects(templates=(template("one", request()),), pods=tuple(msgspec.convert(pods, list[Pod])))
    assert [fit.template for fit in found(given_objects)] == ["Pod default/p0"]


def workload(kind: str, api_version: str, spec: dict[str, Any]) -> Manifest:
    document = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    (read,) = read_documents(yaml.safe_dump(document).encode())
    return Manifest(read.value, Source("w.yaml", 1, read.place))


def test_workloads_are_asked_about_by_their_templates() -> None:
    one, two = (
        {"spec": {"containers": [], "resourceClaims": [{"name": "g", "resourceClaimTemplateName": name}]}}
        for name in ("one", "two")
    )
    group = {"leaderTemplate": one, "workerTemplate": two}
    jobs = [
        {"name": "a", "template": {"spec": {"template": one}}},
        {"name": "b", "template": {"spec": {"template": two}}},
    ]
    workloads = (
        workload("Deployment", "apps/v1", {"replicas": 0, "template": two}),
        workload("DaemonSet", "apps/v1", {"template": one}),
        workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", {"leaderWorkerTemplate": group}),
        workload("JobSet", "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": jobs}),
    )
    given_objects = objects(
        workloads=workloads, templates=(template("one", request()), template("two", request(count=2)))
    )
    made = workload_pods(workloads, NODES, ()).pods
    assert [(fit.template, len(fit.pods)) for fit in found(given_objects, made)] == [
        ("Deployment default/w", 4),
        ("DaemonSet default/w", 2),
        ("LeaderWorkerSet default/w leaderTemplate", 8),
        ("LeaderWorkerSet default/w workerTemplate", 4),
        ("JobSet default/w a", 8),
        ("JobSet default/w b", 4),
    ]


def test_copies_that_are_never_refused_come_to_an_end() -> None:
    outcome = Outcome("default/c", "default/p", "", ())
    fit = Fit("Pod default/p", (outcome,) * MOST_COPIES, "")
    assert fit_document(fit)["more"] is True
    assert "10000+" in "\n".join(fit_table([fit]))


@pytest.mark.parametrize("form", ["table", "json"])
def test_table_and_json_say_the_same(form: str) -> None:
    (fit,) = found(objects(templates=(template("two", request(count=2)),)))
    if form == "json":
        document = fit_document(fit)
        assert (document["pods"], document["more"], document["nodes"]) == (4, False, {"n1": 2, "n2": 2})
        assert document["best"]["links"] == document["last"]["links"] == "1 pair NV2"
        assert document["best"]["score"]["bandwidth_gb_s"] > 0
        assert document["reason"] == "0/2 nodes fit: 2 with 2 or more GPUs, fewer than 2 of them free (n1, n2)"
        return
    lines = list(fit_table([fit]))
    assert lines[0].split() == ["TEMPLATE", "PODS", "NODES", "BEST", "LAST"]
    assert re.split("  +", lines[1]) == [
        "ResourceClaimTemplate default/two",
        "4",
        "n1 (2), n2 (2)",
        "1 pair NV2",
        "1 pair NV2",
    ]
    assert lines[2] == "    the next: 0/2 nodes fit: 2 with 2 or more GPUs, fewer than 2 of them free (n1, n2)"


def test_nothing_to_try_is_said() -> None:
    assert list(fit_table([])) == [
        "nothing to try: the input has no pending pod, workload or template that asks for devices"
    ]
