from __future__ import annotations

import io
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.api.names import DEFAULT_DRIVER_NAME, quota_annotation
from dracaena.api.reasons import foreign_config
from support.page_cluster import node_divided_on_demand, page_cluster
from support.simulated import CLASSES, Run, claim, devices, generated, named, outcomes, pod, template, written

NOTHING = "nothing to decide: the input has no pending pod with claims, and no claim without devices"


def test_a_pod_gets_the_best_linked_pair_of_its_node(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", pod("train", generated("two")), template("two", 2))
    (outcome,) = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert (outcome["pod"], outcome["claim"], outcome["node"]) == ("default/train", "default/train-gpus", "worker-1")
    assert [result["request"] for result in outcome["devices"]] == ["gpus", "gpus"]
    assert {result["driver"] for result in outcome["devices"]} == {"gpu.dracaena.dev"}
    assert outcome["score"]["bandwidth_gb_s"] == 50  # two NVLinks of 25 GB/s: the best pair of a DGX-1V


def test_pods_are_decided_by_age_and_those_never_created_last(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    ages = {"mine": None, "young": "2026-01-02T00:00:00Z", "mine-too": None, "old": "2026-01-01T00:00:00Z"}
    pods = [pod(name, generated("four")) for name in ages]
    for each in pods:
        each["metadata"]["creationTimestamp"] = ages[each["metadata"]["name"]]
    files = written(tmp_path / "pods.yaml", template("four", 4), *pods)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [outcome["pod"] for outcome in decided] == [
        f"default/{name}" for name in ("old", "young", "mine", "mine-too")
    ]
    assert [outcome["node"] for outcome in decided] == ["worker-1", "worker-1", None, None]
    assert not devices(decided[0]) & devices(decided[1])


def test_pods_of_higher_priority_are_decided_before_older_ones(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    pods = [pod("old", generated("four")), pod("high", generated("four"), priority=2), pod("low", generated("four"))]
    pods[2]["spec"]["priority"] = -1
    pods[0]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    files = written(tmp_path / "pods.yaml", template("four", 4), *pods)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [outcome["pod"] for outcome in decided] == ["default/high", "default/old", "default/low"]


def test_two_entries_of_a_pod_may_name_one_claim(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    entries = [{"name": name, "resourceClaimName": "both"} for name in ("one", "two")]
    files = written(tmp_path / "pods.yaml", claim("both", 2), pod("a", *entries))
    (outcome,) = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert (outcome["claim"], len(devices(outcome))) == ("default/both", 2)
    assert outcome["reason"].startswith("2 of the GPUs of worker-1")


def test_a_claim_without_requests_is_left_to_kube_scheduler(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    empty = claim("empty", 1) | {"spec": {}}
    entries = [{"name": name, "resourceClaimName": name} for name in ("empty", "two")]
    for pods, wanted in (([], 1), ([pod("a", *entries)], 2)):
        decided = outcomes(
            run, node("worker-1", "dgx-1v"), written(tmp_path / "c.yaml", empty, *pods, *[claim("two", 2)] * len(pods))
        )
        assert len(decided) == wanted
        assert {each["reason"] for each in decided if each["claim"] == "default/empty"} == {
            "left to kube-scheduler: asks for no device of gpu.dracaena.dev"
        }


def test_a_claim_that_is_being_deleted_gets_nothing(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    going = claim("going", 2, deletionTimestamp="2026-01-01T00:00:00Z")
    named_by_a_pod = claim("named", 2, deletionTimestamp="2026-01-01T00:00:00Z")
    files = written(tmp_path / "c.yaml", going, named_by_a_pod, pod("a", named("named")))
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["node"], outcome["reason"]) for outcome in decided] == [
        ("default/a", None, "claim default/named is being deleted"),
        (None, None, "claim default/going is being deleted"),
    ]


def test_a_claim_generated_for_another_pod_is_not_taken(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u-before", "controller": True}
    status = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "a-gpus-1"}]}
    again = pod("a", generated("two")) | {"metadata": {"name": "a", "uid": "u-now"}, "status": status}
    files = written(tmp_path / "p.yaml", template("two", 2), claim("a-gpus-1", 2, ownerReferences=[owner]), again)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert decided[0]["reason"] == "claim default/a-gpus-1 was generated for another owner (Pod a)"
    assert decided[0]["node"] is None


def test_a_pod_sees_only_claims_of_its_namespace(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    there = pod("a", named("both"))
    there["metadata"]["namespace"] = "team"
    decided = outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "p.yaml", claim("both", 2), there))
    assert [(outcome["claim"], outcome["pod"], outcome["node"]) for outcome in decided] == [
        ("team/both", "team/a", None),
        ("default/both", None, "worker-1"),
    ]


def test_the_same_object_may_stand_in_two_files(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    again = written(tmp_path / "again.yaml", claim("two", 2))
    decided = outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "c.yaml", claim("two", 2)), again)
    assert [outcome["claim"] for outcome in decided] == ["default/two"]


def test_what_does_not_fit_has_reasons_and_no_devices(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "claims.yaml", claim("nine", 9))
    (outcome,) = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert (outcome["pod"], outcome["node"], outcome["devices"], outcome["score"]) == (None, None, [], {})
    assert (
        outcome["reason"] == "0/1 nodes fit: no node has 9 GPUs, the largest has 8; 1 with fewer than 9 GPUs (worker-1)"
    )


def test_what_is_said_without_effect_is_reported_with_the_first_claim_of_the_pod(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    asked = claim("c", 1)
    asked["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}]
    files = written(tmp_path / "claims.yaml", asked, claim("d", 1))
    slices = node("worker-1", "dgx-1v")
    one, other = outcomes(run, slices, files)
    text = foreign_config("gpu.nvidia.com", "gpu.dracaena.dev")
    assert (one["ignored"], other["ignored"]) == ([f"claim default/c: {text}"], [])
    shown = " ".join(run("simulate", "-f", slices, "-f", files, "-f", CLASSES).out.split())
    assert shown.count(f"ignored: claim default/c: {text}") == 1


def test_a_claim_that_is_allocated_holds_its_devices(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    slices = node("worker-1", "dgx-1v")
    (first,) = outcomes(run, slices, written(tmp_path / "first.yaml", claim("first", 6)))
    taken = claim("first", 6) | {"status": {"allocation": {"devices": {"results": first["devices"]}}}}
    decided = outcomes(run, slices, written(tmp_path / "both.yaml", taken, claim("next", 2), claim("last", 1)))
    assert [outcome["claim"] for outcome in decided] == ["default/next", "default/last"]
    assert not devices(decided[0]) & devices(first)
    assert decided[1]["node"] is None


def test_pods_share_a_claim_and_only_the_first_is_decided(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", claim("both", 2), pod("a", named("both")), pod("b", named("both")))
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["claim"]) for outcome in decided] == [("default/a", "default/both")]


def test_two_claims_of_a_pod_are_decided_together(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    entries = [{"name": "one", "resourceClaimName": "one"}, {"name": "two", "resourceClaimName": "two"}]
    files = written(tmp_path / "pods.yaml", claim("one", 2), claim("two", 2), pod("a", *entries))
    one, two = outcomes(run, node("worker-1", "h100-pcie-bridged-numa-3-5"), node("worker-2", "dgx-1v"), files)
    assert (one["claim"], two["claim"]) == ("default/one", "default/two")
    assert one["node"] == two["node"]
    assert one["score"] == two["score"]


def test_a_pod_that_the_controller_would_not_look_at_says_why(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    gated = pod("gated", generated("two"), schedulingGates=[{"name": "example.com/later"}])
    lost = pod("lost", named("missing"))
    bare = pod("bare", generated("missing"))
    near = pod("near", generated("two-gpsu"))
    files = written(tmp_path / "pods.yaml", template("two", 2), template("two-gpus", 2), gated, lost, bare, near)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["reason"]) for outcome in decided] == [
        ("default/gated", "the pod waits at its scheduling gate example.com/later"),
        ("default/lost", "claim default/missing does not exist: create it"),
        ("default/bare", "ResourceClaimTemplate default/missing does not exist: create it"),
        ("default/near", "ResourceClaimTemplate default/two-gpsu does not exist: did you mean two-gpus?"),
    ]


def test_running_and_ended_pods_are_passed_over(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    pods = [pod(phase, generated("two")) | {"status": {"phase": phase}} for phase in ("Running", "Succeeded")]
    assert outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "pods.yaml", template("two", 2), *pods)) == []


def test_the_table_shows_ordinals_and_the_reason_below(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", pod("train", generated("two")), template("two", 2), claim("nine", 9))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", files)
    lines = result.out.splitlines()
    assert lines[0].split() == ["POD", "CLAIM", "NODE", "GPUS", "LINKS"]
    assert lines[1].split() == ["default/train", "default/train-gpus", "worker-1", "2,3", "1", "pair", "NV2"]
    assert lines[2].startswith("    2 of the GPUs of worker-1: 1 pair NV2 (levels to NICs: 2); next best: ")
    assert lines[3].startswith("    ")
    assert max(map(len, lines)) <= 118
    assert "    0/1 nodes fit: no node has 9 GPUs, the largest has 8; 1 with fewer than 9 GPUs (worker-1)" in lines
    assert lines[-1] == "1 of 2 claims get their devices"
    assert result.err == ""


def test_slices_without_their_node_are_taken_and_reported(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = node("worker-1", "dgx-1v", with_object=False)
    result = run("simulate", "-f", CLASSES, "-f", path, "-f", written(tmp_path / "c.yaml", claim("two", 2)))
    assert (result.code, "1 of 1 claims" in result.out) == (0, True)
    assert result.err == (
        "dracaena: not in the input, so assumed to have no labels and taints: 1 of the nodes (worker-1)\n"
    )


def test_a_broken_pool_is_named(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = node("worker-1", "dgx-1v")
    path.write_text(path.read_text(encoding="utf-8").replace("resourceSliceCount: 1", "resourceSliceCount: 2"))
    result = run("simulate", "-f", CLASSES, "-f", path, "-f", written(tmp_path / "c.yaml", claim("two", 2)))
    assert "pool worker-1 is left out of the choice: generation 1 has 1 of 2 slices" in result.err
    assert "1 without usable GPUs of gpu.dracaena.dev (worker-1)" in result.out


def test_nothing_to_decide_is_said(run: Run, node: Callable[..., Path]) -> None:
    result = run("simulate", "-f", node("worker-1", "dgx-1v"))
    assert result.out == f"{NOTHING}\n"


def test_other_kinds_are_left_out_and_named(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    services = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}} for name in ("web", "db")]
    made_of = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "train"}}
    path = written(tmp_path / "s.yaml", *services, made_of)
    result = run("simulate", "-f", node("worker-1", "dgx-1v"), "-f", path)
    assert result.code == 0
    services_told, template_told = result.err.splitlines()
    assert services_told == (f"dracaena: left out: 2 of kind Service, the first at {path}:1: not used in decisions")
    assert template_told.startswith(f"dracaena: left out: 1 of kind PodTemplate, the first at {path}:")


def test_a_family_that_tells_its_size_goes_where_all_of_it_has_room_and_a_deployment_does_not(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    nodes = [node(name, "dgx-1v") for name in ("worker-1", "worker-2")]
    (first,) = outcomes(run, nodes[0], written(tmp_path / "first.yaml", claim("first", 4)))
    taken = claim("first", 4) | {"status": {"allocation": {"devices": {"results": first["devices"]}}}}
    spec = {"resourceClaims": [generated("four")], "containers": [{"name": "main"}]}
    meta = {"metadata": {"name": "train"}}
    group = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": spec}}}
    kinds = (
        {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", **meta, "spec": group},
        {"apiVersion": "apps/v1", "kind": "Deployment", **meta, "spec": {"replicas": 2, "template": {"spec": spec}}},
    )
    of_group, of_deployment = (
        outcomes(run, *nodes, written(tmp_path / "w.yaml", taken, template("four", 4), kind)) for kind in kinds
    )
    assert [(each["pod"], each["node"]) for each in of_group] == [
        ("default/train-0", "worker-2"),
        ("default/train-0-1", "worker-2"),
    ]
    assert [each["node"] for each in of_deployment] == ["worker-1", "worker-2"]


def indexed_job(pods: int, template_name: str) -> dict[str, Any]:
    spec = {"resourceClaims": [generated(template_name)], "containers": [{"name": "main"}]}
    counts = {"completionMode": "Indexed", "parallelism": pods, "completions": pods}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {**counts, "template": {"spec": spec}},
    }


def test_the_pods_of_a_gang_are_placed_at_once_and_a_line_says_where(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    nodes = [node(name, "dgx-1v") for name in ("worker-1", "worker-2", "worker-3")]
    (one,) = outcomes(run, nodes[0], written(tmp_path / "one.yaml", claim("one", 2)))
    taken = claim("one", 2) | {"status": {"allocation": {"devices": {"results": one["devices"]}}}}
    job = written(tmp_path / "job.yaml", taken, template("four", 4), indexed_job(4, "four"))
    found = outcomes(run, *nodes, job)
    assert sorted(each["node"] for each in found) == ["worker-2", "worker-2", "worker-3", "worker-3"]
    assert {each["gang"]["placed"] for each in found} == {True}
    result = run("simulate", "-f", CLASSES, *[part for path in (*nodes, job) for part in ("-f", path)])
    assert "Job default/train: 4 pods × 4 GPUs → 2 nodes of the cluster, since no smaller domain holds it" in result.out
    assert "the controller decides for their pods one by one" in result.err


def test_a_gang_stays_in_one_rack_if_one_holds_it(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    names = [f"worker-{number}" for number in range(1, 5)]
    files = [node(name, "dgx-1v", with_object=False) for name in names]
    labels = zip(names, ("a", "b", "b", "c"), strict=True)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"example.com/row": row}}}
        for name, row in labels
    ]
    job = written(tmp_path / "job.yaml", *nodes, template("eight", 8), indexed_job(2, "eight"))
    files_given = [part for path in (CLASSES, *files, job) for part in ("-f", path)]
    result = run("simulate", *files_given, "--topology-levels", "example.com/row")
    assert "2 pods × 8 GPUs → row b (the only one that holds it; 0 free GPUs left), worker-2, worker-3" in result.out
    result = run("simulate", *files_given, "--topology-levels", "example.com/row,example.com/row")
    assert (result.code, result.err) == (
        2,
        "dracaena: --topology-levels names example.com/row twice: leave out one of them\n",
    )


def test_a_gang_does_not_leave_the_level_that_its_annotation_requires(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    files = [node(name, "dgx-1v", with_object=False) for name in ("worker-1", "worker-2")]
    labels = {"worker-1": "a", "worker-2": "b"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/rack": rack}},
        }
        for name, rack in labels.items()
    ]
    for level, reason in (
        ("topology.kubernetes.io/rack", "1 pod of 2 would fit in the best rack (a)"),
        ("example.com/row", "names example.com/row, which is no level that a node has"),
    ):
        job = indexed_job(2, "eight")
        annotations = {"kueue.x-k8s.io/podset-required-topology": level}
        job["spec"]["template"]["metadata"] = {"annotations": annotations}
        path = written(tmp_path / "job.yaml", *nodes, template("eight", 8), job)
        found = outcomes(run, *files, path)
        assert found[0]["gang"]["placed"] is False
        assert reason in found[0]["gang"]["reason"]


def test_a_gang_that_does_not_fit_says_how_close_each_level_comes_and_its_pods_are_decided_one_by_one(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    nodes = [node(name, "dgx-1v") for name in ("worker-1", "worker-2")]
    job = written(tmp_path / "job.yaml", template("four", 4), indexed_job(5, "four"))
    found = outcomes(run, *nodes, job)
    assert [each["node"] is not None for each in found] == [True] * 4 + [False]
    assert found[0]["gang"] == {
        "name": "Job default/train",
        "members": "5 pods × 4 GPUs",
        "placed": False,
        "reason": "4 pods of 5 would fit in the cluster; node: 0 of 2 have room for all, the best for 2",
    }


def test_a_gang_has_the_name_of_the_controller_of_its_pods(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    spec = {"resourceClaims": [generated("two")], "containers": [{"name": "main"}]}
    mpi = {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": spec}}}}
    labelled = {"metadata": {"labels": {"gpu.dracaena.dev/gang": "2"}}, "spec": spec}
    kinds = (
        {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "spec": mpi},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 2, "template": labelled}},
        indexed_job(2, "two"),
    )
    for kind in kinds:
        path = written(tmp_path / "w.yaml", template("two", 2), kind | {"metadata": {"name": "train"}})
        names = {each["gang"]["name"] for each in outcomes(run, node("worker-1", "dgx-1v"), path)}
        assert names == {f"{kind['kind']} default/train"}


def test_a_gang_whose_class_does_not_exist_is_not_said_to_want_no_gpus(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    job = written(tmp_path / "job.yaml", template("two", 2), indexed_job(2, "two"))
    result = run("simulate", "-f", node("worker-1", "dgx-1v"), "-f", job)
    assert "Job default/train: 2 pods are decided one by one: claim default/train-0-" in result.out


def test_a_gang_that_shares_a_claim_says_so(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    job = indexed_job(2, "two")
    job["spec"]["template"]["spec"]["resourceClaims"] = [named("two")]
    (found,) = outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "job.yaml", claim("two", 2), job))
    assert found["gang"]["reason"] == "several of its pods name one claim"


@pytest.mark.parametrize(
    ("label", "pods", "reason"),
    [
        ("3", 3, None),
        ("3", 2, "2 of 3 pods of its gang exist (label gpu.dracaena.dev/gang), and none gets devices before all exist"),
        ("three", 2, None),
    ],
)
def test_pods_with_the_label_of_a_gang_get_nothing_unless_all_of_them_are_in_the_input(
    run: Run, node: Callable[..., Path], tmp_path: Path, label: str, pods: int, reason: str | None
) -> None:
    job = indexed_job(pods, "two")
    job["spec"]["template"]["metadata"] = {"labels": {"gpu.dracaena.dev/gang": label}}
    found = outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "job.yaml", template("two", 2), job))
    assert [each["node"] for each in found] == [None if reason else "worker-1"] * pods
    assert reason is None or {each["reason"] for each in found} == {reason}


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha2"])
@pytest.mark.parametrize(("min_count", "is_served"), [(2, True), (3, False)])
def test_the_pods_of_a_pod_group_get_nothing_unless_as_many_as_it_needs_are_in_the_input(
    run: Run, node: Callable[..., Path], tmp_path: Path, version: str, min_count: int, *, is_served: bool
) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
    group = {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": spec,
    }
    members = [pod(name, named(name)) for name in ("a", "b")]
    for member in members:
        member["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    path = written(tmp_path / "group.yaml", group, claim("a", 2), claim("b", 2), *members)
    found = outcomes(run, node("worker-1", "dgx-1v"), path)
    assert [each["node"] for each in found] == ["worker-1" if is_served else None] * 2
    assert is_served or found[0]["reason"].startswith("2 of 3 pods of its gang exist (minCount of PodGroup train)")


def test_a_gang_beyond_the_quota_of_its_namespace_gets_nothing_as_a_whole(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "default", "annotations": {quota_annotation(DEFAULT_DRIVER_NAME): '{"gpus": 4}'}},
    }
    job = written(tmp_path / "job.yaml", namespace, template("four", 4), indexed_job(2, "four"))
    found = outcomes(run, node("worker-1", "dgx-1v"), job)
    assert [each["node"] is not None for each in found] == [True, False]
    assert found[0]["gang"]["reason"] == "namespace default may have 4 GPUs, holds 4, the pod wants 4"


def test_objects_come_from_standard_input(run: Run, node: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = yaml.safe_dump(claim("two", 2)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", "-", "-o", "json")
    assert json.loads(result.out)[0]["node"] == "worker-1"


def test_the_same_input_gives_the_same_output(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    pods = [pod(f"p{number}", generated("two")) for number in range(6)]
    files = written(tmp_path / "pods.yaml", template("two", 2), *pods)
    nodes = [node("worker-1", "dgx-1v"), node("worker-2", "h100-pcie-bridged-numa-3-5")]
    assert outcomes(run, *nodes, files) == outcomes(run, files, *reversed(nodes))


def test_a_claim_that_its_template_has_made_is_decided_once_for_its_pod(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "u-1", "controller": True}
    annotations = {"resource.kubernetes.io/pod-claim-name": "gpus"}
    made = claim("train-gpus-x7k2p", 9, ownerReferences=[owner], annotations=annotations)
    train = pod("train", generated("nine")) | {"metadata": {"name": "train", "uid": "u-1"}}
    files = written(tmp_path / "pods.yaml", template("nine", 9), train, made)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["claim"]) for outcome in decided] == [
        ("default/train", "default/train-gpus-x7k2p")
    ]


def test_no_device_is_given_twice_and_what_is_given_can_be_given_back_as_input(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    chance = random.Random(7)
    nodes = [node("worker-1", "dgx-1v"), node("worker-2", "h100-pcie-bridged-numa-3-5"), node("worker-3", "hgx-h100")]
    wanted = {f"c{number}": claim(f"c{number}", chance.choice((1, 1, 2, 2, 3, 4, 8))) for number in range(14)}

    def decided(*claims: dict[str, Any]) -> dict[str, dict[str, Any]]:
        path = tmp_path / "claims.json"  # as kubectl writes it
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": claims}))
        return {each["claim"].removeprefix("default/"): each for each in outcomes(run, *nodes, path)}

    whole = decided(*wanted.values())
    given = [(each["pool"], each["device"]) for outcome in whole.values() for each in outcome["devices"]]
    assert len(given) == len(set(given)) > 16
    assert all(each["pool"] == outcome["node"] for outcome in whole.values() for each in outcome["devices"])
    assert any(outcome["node"] is None for outcome in whole.values())
    served = list(whole)[:6]
    for name in served:
        rule = {"key": "metadata.name", "operator": "In", "values": [whole[name]["node"]]}
        selector = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
        allocation = {"devices": {"results": whole[name]["devices"]}, "nodeSelector": selector}
        if whole[name]["devices"]:
            wanted[name]["status"] = {"allocation": allocation}
    rest = decided(*wanted.values())
    assert {name: outcome["devices"] for name, outcome in rest.items()} == {
        name: outcome["devices"] for name, outcome in whole.items() if name not in served or not outcome["devices"]
    }


def test_cpu_that_nodes_have_and_pods_take_counts_where_the_input_tells_it(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    def with_cpu(name: str, *entries: dict[str, str], cpu: str | int, **spec: Any) -> dict[str, Any]:
        main = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
        return pod(name, *entries, **spec) | {"spec": {"resourceClaims": [*entries], "containers": [main], **spec}}

    slices = node("worker-1", "dgx-1v", with_object=False)
    meta, room = {"name": "worker-1"}, {"cpu": 8, "pods": "110"}
    worker = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": room}}
    running = with_cpu("web", cpu="1500m", nodeName="worker-1")
    waiting = [with_cpu(name, generated("one"), cpu=cpu) for name, cpu in (("a", 4), ("b", "3"), ("c", "much"))]
    decided = outcomes(run, slices, written(tmp_path / "x.yaml", worker, running, template("one", 1), *waiting))
    assert [outcome["node"] for outcome in decided] == ["worker-1", None, None]
    assert decided[1]["reason"] == "0/1 nodes fit: 1 with too little free cpu (worker-1)"
    assert decided[2]["reason"] == "pod default/c: request for cpu: 'much' is not a quantity"


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_what_a_taint_rule_takes_out_of_use_is_given_to_no_pod(
    run: Run, node: Callable[..., Path], tmp_path: Path, version: str
) -> None:
    slices = node("worker-1", "dgx-1v")
    (before,) = outcomes(run, slices, written(tmp_path / "c.yaml", claim("two", 2)))
    rules = [
        {
            "apiVersion": f"resource.k8s.io/{version}",
            "kind": "DeviceTaintRule",
            "metadata": {"name": name},
            "spec": {
                "deviceSelector": {"pool": "worker-1", "device": name},
                "taint": {"key": "a", "effect": "NoSchedule"},
            },
        }
        for name in devices(before)
    ]
    path = written(tmp_path / "c.yaml", *rules, *(claim(f"c{number}", 1) for number in range(8)))
    decided = outcomes(run, slices, path)
    assert sum(outcome["node"] is not None for outcome in decided) == 6
    assert not set().union(*map(devices, decided)) & devices(before)


def test_pods_that_ask_for_the_extended_resource_learn_what_they_need(tmp_path: Path, run: Run) -> None:
    resources = {"limits": {"nvidia.com/gpu": 2}}
    container = {"name": "main", "image": "example/app:1.0", "resources": resources}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old"}, "spec": {"containers": [container]}}
    files = written(tmp_path / "pods.yaml", document)
    result = run("simulate", "-f", str(files))
    assert "asks for the extended resource nvidia.com/gpu" in result.err
    assert "gpu.dracaena.dev/rewrite=true on the namespace" in result.err
    assert result.out == f"{NOTHING}\n"


def test_pods_in_a_namespace_of_the_input_with_the_label_get_what_the_chart_s_policy_makes_of_them(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    resources = {"limits": {"nvidia.com/gpu": 2}}
    spec = {"containers": [{"name": "main", "image": "example/app:1.0", "resources": resources}]}
    old = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old", "namespace": "team"}, "spec": spec}
    workload = {"metadata": {"name": "train", "namespace": "team"}, "spec": {"replicas": 2, "template": {"spec": spec}}}
    labels = {"gpu.dracaena.dev/rewrite": "true", "gpu.dracaena.dev/class": "nvlink"}
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", **workload}
    torch = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **workload}
    files = written(tmp_path / "team.yaml", old, deployment, torch, team)
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", files, "-o", "json")
    decided = json.loads(result.out)
    assert [(one["pod"], one["claim"], len(devices(one))) for one in decided] == [
        ("team/old", "team/old-dracaena-0", 2),
        ("team/train-0", "team/train-0-dracaena-0", 2),
        ("team/train-1", "team/train-1-dracaena-0", 2),
        ("team/train-0", "team/train-0-dracaena-0-generated", 2),
        ("team/train-1", "team/train-1-dracaena-0-generated", 0),
    ]
    assert "asks for the extended resource" not in result.err
    assert "3 of the objects ask for nvidia.com/gpu in a namespace whose new pods get claims in its place" in result.err


def test_a_gpu_that_is_cut_on_demand_is_drawn_as_each_claim_leaves_it(run: Run, tmp_path: Path) -> None:
    def part(name: str, profile: str) -> dict[str, Any]:
        expression = f'device.attributes["gpu.dracaena.dev"].profile == "{profile}"'
        exactly = {"deviceClassName": "mig.gpu.dracaena.dev", "selectors": [{"cel": {"expression": expression}}]}
        document = claim(name, 1)
        document["spec"]["devices"]["requests"] = [{"name": "part", "exactly": exactly}]
        return document

    cluster = written(tmp_path / "cluster.yaml", *node_divided_on_demand())
    wanted = [part("large", "4g.40gb"), part("small", "1g.10gb"), part("third", "1g.10gb")]
    printed = run("simulate", "-f", CLASSES, "-f", cluster, "-f", written(tmp_path / "claims.yaml", *wanted)).out
    drawn = re.findall(r"^    (GPU-\S+)  (\[.*\])  (.*)$", printed, re.MULTILINE)
    assert len({gpu for gpu, _, _ in drawn}) == 1
    assert [line for _, line, _ in drawn] == [
        "[4g───────── ·  ·  ·  ·]",
        "[4g───────── ·  ·  1g ·]",
        "[4g───────── 1g ·  1g ·]",
    ]
    assert [own for _, _, own in drawn] == ["4g.40gb at 0", "1g.10gb at 6", "1g.10gb at 4"]


def test_pods_that_ask_for_the_resource_of_a_mig_profile_learn_how_to_ask_for_it(tmp_path: Path, run: Run) -> None:
    resources = {"limits": {"nvidia.com/mig-1g.10gb.me": 2}}
    container = {"name": "main", "image": "example/app:1.0", "resources": resources}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old"}, "spec": {"containers": [container]}}
    result = run("simulate", "-f", str(written(tmp_path / "pods.yaml", document)))
    assert 'the selector device.attributes["gpu.dracaena.dev"].profile == "1g.10gb+me"' in result.err
    assert "or the label gpu.dracaena.dev/rewrite=true on the namespace" in result.err
    assert result.out == f"{NOTHING}\n"


def test_a_template_that_the_controller_makes_for_mig_devices_gets_those_of_its_profile(
    run: Run, tmp_path: Path
) -> None:
    cluster = written(tmp_path / "cluster.yaml", *page_cluster())
    files = written(tmp_path / "pods.yaml", pod("train", generated("mig-1g.10gb.me-1.mig.gpu.dracaena.dev")))
    (outcome,) = outcomes(run, cluster, files)
    every = [device for document in page_cluster() for device in document["spec"]["devices"]]
    taken = [device["attributes"]["profile"] for device in every if device["name"] in devices(outcome)]
    assert taken == [{"string": "1g.10gb+me"}]


def test_a_template_that_the_controller_makes_when_it_is_named_need_not_be_there(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    files = written(tmp_path / "pods.yaml", pod("train", generated("gpus-2.gpu.dracaena.dev")))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", files)
    assert result.out.splitlines()[-1] == "1 of 1 claims get their devices"


def test_what_fits_is_asked_of_the_cluster_without_deciding_for_what_waits(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    waiting = [pod(f"p{number}", generated("four")) for number in range(2)]
    path = written(tmp_path / "p.yaml", template("four", 4), template("one", 1), *waiting)
    options = ("-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", path, "--what-fits")
    rows = json.loads(run("simulate", *options, "-o", "json").out)
    assert [(row["template"], row["pods"], row["nodes"]) for row in rows] == [
        ("Pod default/p0", 2, {"worker-1": 2}),
        ("Pod default/p1", 2, {"worker-1": 2}),
        ("ResourceClaimTemplate default/one", 8, {"worker-1": 8}),
    ]
    lines = run("simulate", *options).out.splitlines()
    assert lines[0].split() == ["TEMPLATE", "PODS", "NODES", "BEST", "LAST"]
    assert lines[1].split()[:5] == ["Pod", "default/p0", "2", "worker-1", "(2)"]
