"""Kinds that say the sizes of families are watched once there are pods of these; and Kueue's Topology if asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import Pod
from dracaena.api.topology_levels import TopologyLevels
from dracaena.api.workload_objects import KINDS
from dracaena.controller.state.intake import Intake
from dracaena.controller.watches import TopologyWatch, WorkloadWatches
from support.clock import FakeClock
from support.families import in_family, owner
from support.kube import client_for, wait_for
from support.reconciling import Bench
from support.scripted_server import Request, ScriptedServer
from support.scripted_watches import listing, open_watch

META = {"name": "x", "namespace": "team", "uid": "u", "resourceVersion": "5"}
INDEXED = {"batch.kubernetes.io/job-completion-index": "0"}
CASES: dict[str, tuple[Pod, str, dict[str, Any]]] = {
    "PodGroup": (
        in_family(group="x"),
        "scheduling.k8s.io/v1beta1/podgroups",
        {"schedulingPolicy": {"gang": {"minCount": 3}}},
    ),
    "JobSet": (
        in_family({"jobset.sigs.k8s.io/jobset-uid": "u"}),
        "jobset.x-k8s.io/v1alpha2/jobsets",
        {"replicatedJobs": [{"replicas": 3, "template": {}}]},
    ),
    "Job": (
        in_family({"batch.kubernetes.io/controller-uid": "u", **INDEXED}),
        "batch/v1/jobs",
        {"parallelism": 3},
    ),
    "MPIJob": (
        in_family(None, owner("MPIJob", "kubeflow.org/v2beta1", uid="u")),
        "kubeflow.org/v2beta1/mpijobs",
        {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}},
    ),
    "PyTorchJob": (
        in_family(None, owner("PyTorchJob", "kubeflow.org/v1", uid="u")),
        "kubeflow.org/v1/pytorchjobs",
        {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}},
    ),
    "RayCluster": (
        in_family(None, owner("RayCluster", "ray.io/v1", uid="u")),
        "ray.io/v1/rayclusters",
        {"workerGroupSpecs": [{"replicas": 3}]},
    ),
    "KAI PodGroup": (
        in_family(annotations={"pod-group-name": "x"}),
        "scheduling.run.ai/v2alpha2/podgroups",
        {"minMember": 3},
    ),
    "Volcano PodGroup": (
        in_family(annotations={"scheduling.k8s.io/group-name": "x"}),
        "scheduling.volcano.sh/v1beta1/podgroups",
        {"minMember": 3},
    ),
}


def intake_of(bench: Bench) -> Intake:
    return bench.cluster.intake


@pytest.mark.parametrize("family", sorted(KINDS))
def test_a_kind_is_watched_from_the_first_pod_on_whose_family_it_sizes(family: str, tmp_path: Path) -> None:
    pod, path, spec = CASES[family]
    bench = Bench()
    sizes = bench.cluster._state.inventory.families.sizes

    def answer(request: Request) -> None:
        if not request.path.startswith(f"/apis/{path}"):
            request.answer(404, {"reason": "NotFound", "message": "no such kind"})
        elif request.watching:
            open_watch()(request)
        else:
            request.answer(200, listing(10, {"metadata": META, "spec": spec}))

    with ScriptedServer(answer) as server:
        watches = WorkloadWatches(client_for(server.url, tmp_path), FakeClock(), intake_of(bench))
        try:
            watches.see(in_family({"app": "web"}, owner("ReplicaSet")))
            watches.see(in_family(None, owner("StatefulSet")))
            assert (watches.watched, server.requests) == ((), [])
            for _ in range(3):
                watches.see(pod)
            wait_for(lambda: (gang := sizes.gang_of(pod)) is not None and gang.size == 3, "the size")
            assert watches.watched == (family,)
            assert sum(not request.watching for request in server.requests) == 1
        finally:
            watches.stop()


def test_nothing_is_watched_for_pods_without_claims_or_after_the_end(tmp_path: Path) -> None:
    pod, _, _ = CASES["Job"]
    plain = Pod.from_json(b'{"metadata": {"name": "p"}, "spec": {"schedulingGroup": {"podGroupName": "x"}}}')
    with ScriptedServer(lambda request: request.answer(404, {})) as server:
        watches = WorkloadWatches(client_for(server.url, tmp_path), FakeClock(), intake_of(Bench()))
        watches.see(plain)
        watches.stop()
        watches.see(pod)
        assert (watches.watched, server.requests) == ((), [])


def test_pods_of_all_families_at_once_begin_each_watch_once(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: request.answer(403, {"reason": "Forbidden", "message": "no"})) as server:
        watches = WorkloadWatches(client_for(server.url, tmp_path), FakeClock(), intake_of(Bench()))
        threads = [threading.Thread(target=watches.see, args=(pod,)) for pod, _, _ in CASES.values() for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watches.watched == tuple(sorted(KINDS))
        wait_for(lambda: len(server.requests) == len(KINDS) + 1, "a list of each, and of the older PodGroup")
        watches.stop()


def test_the_levels_are_those_of_kueues_topology_while_there_is_one(tmp_path: Path) -> None:
    """A Kueue that serves the older version only; one Topology is there, goes, and another one comes."""
    bench = Bench()
    intake = intake_of(bench)
    intake.levels_changed(TopologyLevels(is_kueues=True))

    def topology(name: str, version: int, *labels: str) -> dict[str, Any]:
        levels = [{"nodeLabel": label} for label in labels]
        return {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": {"levels": levels}}

    def answer(request: Request) -> None:
        if not request.path.startswith("/apis/kueue.x-k8s.io/v1beta1/topologies"):
            request.answer(404, {"reason": "NotFound", "message": "no such version"})
        elif request.watching:
            gone, come = topology("a", 11), topology("b", 12, "rack", "kubernetes.io/hostname")
            open_watch(("DELETED", gone), ("ADDED", come))(request)
        else:
            request.answer(200, listing(10, topology("a", 5, "block", "rack")))

    seen: list[tuple[str, ...]] = []
    changed = intake.levels_changed

    def noted(levels: TopologyLevels) -> None:
        seen.append(levels.labels)
        changed(levels)

    intake.levels_changed = noted  # type: ignore[method-assign]
    with ScriptedServer(answer) as server:
        watch = TopologyWatch(client_for(server.url, tmp_path), FakeClock(), intake)
        watch.start()
        try:
            wait_for(lambda: len(seen) >= 3, "three sets of levels")
        finally:
            watch.stop()
    assert seen == [("block", "rack"), (), ("rack",)]
    assert watch.levels == intake.levels == TopologyLevels(("rack",), is_kueues=True)


@pytest.mark.parametrize(("status", "asked"), [(404, 2), (403, 2)])
def test_without_kueue_or_the_right_to_read_it_there_are_no_levels(status: int, asked: int, tmp_path: Path) -> None:
    intake = intake_of(Bench())
    intake.levels_changed(TopologyLevels(is_kueues=True))
    with ScriptedServer(lambda request: request.answer(status, {"reason": "No", "message": "no"})) as server:
        watch = TopologyWatch(client_for(server.url, tmp_path), FakeClock(), intake)
        watch.start()
        wait_for(lambda: len(server.requests) >= asked, "both versions to be asked for")
        watch.stop()
        assert watch.levels == TopologyLevels(is_kueues=True)


def test_kueue_is_not_asked_unless_a_setting_says_so(tmp_path: Path) -> None:
    with ScriptedServer(lambda request: request.answer(404, {})) as server:
        watch = TopologyWatch(client_for(server.url, tmp_path), FakeClock(), intake_of(Bench()))
        watch.start()
        watch.stop()
        assert server.requests == []
