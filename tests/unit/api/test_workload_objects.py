from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.workload_objects import (
    KINDS,
    OLDER,
    Job,
    JobSet,
    KaiPodGroup,
    MpiJob,
    PodGroup,
    PodGroupV1Alpha2,
    PyTorchJob,
    RayCluster,
    VolcanoPodGroup,
    WorkloadObject,
)

META = {"name": "x", "namespace": "team", "uid": "u", "resourceVersion": "7"}
POD = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}


def read(kind: type[WorkloadObject], spec: Any, **metadata: Any) -> WorkloadObject:
    return kind.from_json(msgspec.json.encode({"metadata": {**META, **metadata}, "spec": spec}))


def replicas(**roles: int) -> dict[str, Any]:
    return {role: {"replicas": count, **POD} for role, count in roles.items()}


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (PodGroup, {"schedulingPolicy": {"gang": {"minCount": 32}}}, 32),
        (PodGroup, {"schedulingPolicy": {"basic": {}}}, None),
        (PodGroup, {}, None),
        (PodGroup, {"schedulingPolicy": {"gang": {"minCount": -1}}}, -1),
        (PodGroup, {"schedulingPolicy": None}, None),
        (PodGroup, {"schedulingPolicy": {"gang": {"minCount": "three"}}}, None),
        (JobSet, {"replicatedJobs": {"w": 1}}, None),
        (PodGroupV1Alpha2, {"schedulingPolicy": {"gang": {"minCount": 4}}}, 4),
        (KaiPodGroup, {"minMember": 8, "queue": "q"}, 8),
        (KaiPodGroup, {}, None),
        (VolcanoPodGroup, {"minMember": 3, "minTaskMember": {"a": 1}}, 3),
        (Job, {"parallelism": 4, "completions": 8, **POD}, 4),
        (Job, {"parallelism": 8, "completions": 4}, 4),
        (Job, {"parallelism": 0, "completions": 4}, 0),
        (Job, {"parallelism": 5}, 5),
        (Job, {"completions": 5}, 1),
        (JobSet, {"replicatedJobs": []}, 0),
        (JobSet, {"replicatedJobs": [{"name": "w", "template": {"spec": {"parallelism": 4, **POD}}}]}, 4),
        (
            JobSet,
            {
                "replicatedJobs": [
                    {"name": "leader", "replicas": 1, "template": {"spec": {}}},
                    {"name": "w", "replicas": 3, "template": {"spec": {"parallelism": 4, "completions": 2}}},
                    {"name": "none", "replicas": -2, "template": {"spec": {"parallelism": 4}}},
                ]
            },
            7,
        ),
        (MpiJob, {"mpiReplicaSpecs": replicas(Launcher=1, Worker=16)}, 16),
        (MpiJob, {"mpiReplicaSpecs": {"Worker": POD}}, 1),
        (MpiJob, {"mpiReplicaSpecs": replicas(Launcher=1)}, None),
        (PyTorchJob, {"pytorchReplicaSpecs": replicas(Master=1, Worker=7)}, 8),
        (RayCluster, {"workerGroupSpecs": [{"replicas": 2, "numOfHosts": 4}, {"replicas": 3}, {}]}, 12),
        (RayCluster, {"headGroupSpec": POD}, 0),
    ],
)
def test_a_spec_says_how_many_pods_run_at_the_same_time(
    kind: type[WorkloadObject], spec: dict[str, Any], size: int | None
) -> None:
    assert read(kind, spec).size == size


def test_only_what_identifies_it_is_kept_beside_the_size() -> None:
    item = read(Job, {"parallelism": 2, **POD}, labels={"a": "b"}, annotations={"c": "d" * 9_999})
    assert msgspec.to_builtins(item) == {"metadata": META, "size": 2}
    jobs = [{"name": f"j{number}", "template": {"spec": {}}} for number in range(5_000)]
    assert msgspec.to_builtins(read(JobSet, {"replicatedJobs": jobs})) == {"metadata": META, "size": 5_000}


ODD = (
    b'{"metadata": {"name": "x"}, "spec": {"parallelism": "four", "minMember": {}, "replicatedJobs": 3, '
    b'"mpiReplicaSpecs": [], "pytorchReplicaSpecs": 1, "workerGroupSpecs": {}, "schedulingPolicy": 7}}'
)


@pytest.mark.parametrize("kind", [*KINDS.values(), *OLDER["PodGroup"]])
@pytest.mark.parametrize(
    "document", [b'{"metadata": {"name": "x"}, "spec": []}', b'{"metadata": {"name": "x"}, "spec": null}', ODD]
)
def test_an_object_whose_spec_has_another_shape_exists_and_says_no_size(
    kind: type[WorkloadObject], document: bytes
) -> None:
    item = kind.from_json(document)
    assert (item.metadata.name, item.size) == ("x", None)


@pytest.mark.parametrize("kind", [*KINDS.values(), *OLDER["PodGroup"]])
def test_metadata_of_another_shape_is_an_error_of_this_object_alone(kind: type[WorkloadObject]) -> None:
    with pytest.raises(msgspec.DecodeError):
        kind.from_json(b'{"spec": {}}')


def test_each_family_is_named_after_one_kind() -> None:
    assert [kind.FAMILY for kind in KINDS.values()] == list(KINDS)
    assert all(family == other.FAMILY for family, others in OLDER.items() for other in others)
