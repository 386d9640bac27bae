from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.gang_label import GANG_LABEL
from dracaena.api.objects import Pod
from dracaena.api.workload_objects import KINDS, PodGroup, WorkloadObject
from dracaena.controller.allocation.state.families import Kin
from dracaena.controller.allocation.state.gangs import (
    FAMILY_ANNOTATIONS,
    FAMILY_LABELS,
    MOST_PODS,
    OWNERS,
    Family,
    Gang,
    Sizes,
    family_of,
    group_of,
    may_have_a_family,
)
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.cache.pods import kept_pod
from support.allocation import DRIVER
from support.families import GROUP, INDEX, JOB, JOB_SET, SIZE, in_family, owner

KUEUE = {"kueue.x-k8s.io/pod-group-name": "k"}
KUEUE_SIZE = "kueue.x-k8s.io/pod-group-total-count"
KAI = {"pod-group-name": "kai"}
VOLCANO = {"scheduling.k8s.io/group-name": "v"}


@pytest.mark.parametrize(
    ("pod", "kind", "name"),
    [
        (in_family(JOB), "Job", "j"),
        (in_family({**JOB, **JOB_SET}), "JobSet", "s"),
        (in_family(GROUP, owner("StatefulSet")), "LeaderWorkerSet", "g"),
        (in_family(None, owner("StatefulSet")), "StatefulSet", "o"),
        (in_family({**JOB, **GROUP, **JOB_SET}, owner("StatefulSet"), group="pg"), "PodGroup", "pg"),
        (in_family(None, owner("MPIJob", "kubeflow.org/v2beta1")), "MPIJob", "o"),
        (in_family(None, owner("PyTorchJob", "kubeflow.org/v1")), "PyTorchJob", "o"),
        (in_family(None, owner("RayCluster", "ray.io/v1")), "RayCluster", "o"),
        (in_family(KUEUE), "Kueue pod group", "k"),
        (in_family(annotations=KAI), "KAI PodGroup", "kai"),
        (in_family(annotations=VOLCANO), "Volcano PodGroup", "v"),
        (in_family(annotations={"scheduling.volcano.sh/group-name": "v"}), "Volcano PodGroup", "v"),
        (in_family(JOB, annotations={**KAI, **VOLCANO}), "Job", "j"),
        (in_family({GANG_LABEL: "4"}, owner("ReplicaSet")), "ReplicaSet", "o"),
        (in_family({GANG_LABEL: "4"}, owner("Thing", "example.com/v1")), "Thing", "o"),
        (in_family({GANG_LABEL: "4", **JOB}, owner("Job", "batch/v1")), "Job", "j"),
    ],
)
def test_a_pod_names_its_family_whole_and_as_it_is_kept(pod: Pod, kind: str, name: str) -> None:
    assert family_of(pod) == Family("team", kind, name)
    assert family_of(kept_pod(pod)) == family_of(pod)
    assert Inventory(DRIVER).kin(pod) is not None


@pytest.mark.parametrize(
    "pod",
    [
        in_family(),
        in_family({"batch.kubernetes.io/controller-uid": "", **INDEX}),
        in_family({"batch.kubernetes.io/controller-uid": "j"}),
        in_family(INDEX),
        in_family(None, owner("ReplicaSet")),
        in_family(None, owner("StatefulSet", "example.com/v1")),
        in_family(None, owner("StatefulSet", controller=False)),
        in_family(None, owner("StatefulSet", uid="u" * 65)),
        in_family(None, owner("MPIJob", "kubeflow.org.example.com/v1")),
        in_family({GANG_LABEL: "4"}),
        in_family({GANG_LABEL: "0"}, owner("ReplicaSet")),
        in_family({GANG_LABEL: "4097"}, owner("ReplicaSet")),
        in_family({GANG_LABEL: "four"}, owner("ReplicaSet")),
        in_family({GANG_LABEL: "4"}, owner("ReplicaSet", uid="u" * 65)),
        in_family(annotations={"pod-group-name": "x" * 254}),
        in_family(annotations={"pod-group-name": ""}),
    ],
)
def test_other_pods_have_none(pod: Pod) -> None:
    assert family_of(pod) is None
    assert family_of(kept_pod(pod)) is None
    assert Inventory(DRIVER).kin(pod) is None


MADE = {
    "PodGroup": {"schedulingPolicy": {"gang": {"minCount": 7}}},
    "JobSet": {"replicatedJobs": [{"replicas": 7, "template": {"spec": {}}}]},
    "Job": {"parallelism": 7},
    "MPIJob": {"mpiReplicaSpecs": {"Worker": {"replicas": 7}}},
    "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 7}}},
    "RayCluster": {"workerGroupSpecs": [{"replicas": 7}]},
    "KAI PodGroup": {"minMember": 7},
    "Volcano PodGroup": {"minMember": 7},
}
OF = {
    "PodGroup": in_family(group="x"),
    "JobSet": in_family({"jobset.sigs.k8s.io/jobset-uid": "u"}),
    "Job": in_family({"batch.kubernetes.io/controller-uid": "u", **INDEX}),
    "MPIJob": in_family(None, owner("MPIJob", "kubeflow.org/v2beta1", uid="u")),
    "PyTorchJob": in_family(None, owner("PyTorchJob", "kubeflow.org/v1", uid="u")),
    "RayCluster": in_family(None, owner("RayCluster", "ray.io/v1", uid="u")),
    "KAI PodGroup": in_family(annotations={"pod-group-name": "x"}),
    "Volcano PodGroup": in_family(annotations={"scheduling.k8s.io/group-name": "x"}),
}


def workload(family: str, spec: Any = None, *, uid: str = "u", namespace: str = "team") -> WorkloadObject:
    meta = {"name": "x", "namespace": namespace, "uid": uid}
    return KINDS[family].from_json(msgspec.json.encode({"metadata": meta, "spec": spec or MADE[family]}))


def known(*items: WorkloadObject) -> Sizes:
    sizes = Sizes()
    for item in items:
        sizes.put(item)
    return sizes


@pytest.mark.parametrize("family", sorted(KINDS))
def test_an_object_says_the_size_of_the_family_that_is_named_after_it(family: str) -> None:
    pod, item = OF[family], workload(family)
    gang = known(item).gang_of(kept_pod(pod))
    assert gang is not None
    assert (gang.size, gang.uid, gang.is_hard) == (7, "u", family == "PodGroup")
    stranger = workload(family, namespace="other")
    (unknown,) = {gang.size for gang in [known(stranger).gang_of(pod)] if gang}
    assert unknown is None, "members of other namespaces are in no group of this one"
    inventory = Inventory(DRIVER)
    inventory.families.sizes.put(item)
    assert inventory.kin(pod) == Kin({}, 7)


GANG_4 = {GANG_LABEL: "4"}


@pytest.mark.parametrize(
    ("pod", "items", "size", "is_hard"),
    [
        (in_family(GROUP, annotations={SIZE: "4"}), [], 4, False),
        (in_family(GROUP, annotations={SIZE: "0"}), [], None, False),
        (in_family(KUEUE, annotations={KUEUE_SIZE: "5"}), [], 5, False),
        (in_family(KUEUE, annotations={KUEUE_SIZE: "-5"}), [], None, False),
        (in_family(JOB, annotations={SIZE: "4", KUEUE_SIZE: "4"}), [], None, False),
        (in_family({**JOB, **GANG_4}), [workload("Job", uid="j")], 4, True),
        (in_family(GANG_4, group="x"), [], 4, True),
        (in_family(GANG_4, group="x"), [workload("PodGroup")], 7, True),
        (in_family(group="x"), [workload("PodGroup", {"schedulingPolicy": {"basic": {}}})], None, False),
        (in_family(GANG_4, group="x"), [workload("PodGroup", {"schedulingPolicy": {"basic": {}}})], None, False),
        (in_family(group="x"), [workload("PodGroup", {"schedulingPolicy": {"gang": {"minCount": 0}}})], None, False),
        (in_family({**JOB, **INDEX}), [workload("Job", {"parallelism": MOST_PODS + 1}, uid="j")], None, False),
        (in_family({**JOB, **INDEX}), [workload("Job", {"parallelism": -1}, uid="j")], None, False),
    ],
)
def test_who_says_the_size_first_and_whether_fewer_are_of_no_use(
    pod: Pod, items: list[WorkloadObject], size: int | None, *, is_hard: bool
) -> None:
    for each in (pod, kept_pod(pod)):
        gang = known(*items).gang_of(each)
        assert gang is not None
        assert (gang.size, gang.is_hard) == (size, is_hard)
        assert (group_of(each) == gang.family) == (is_hard or each.spec.scheduling_group is not None)


def test_of_two_objects_of_one_name_in_time_the_later_one_counts() -> None:
    first, second = workload("PodGroup", uid="1"), workload("PodGroup", uid="2")
    sizes = known(first, second)
    sizes.take_out(first)
    assert sizes.gang_of(OF["PodGroup"]) == Gang(
        Family("team", "PodGroup", "x"), "2", 7, is_hard=True, said="minCount of PodGroup x"
    )
    sizes.take_out(second)
    gang = sizes.gang_of(OF["PodGroup"])
    assert gang is not None
    assert (gang.size, sizes._objects) == (None, {})


def test_only_a_known_group_is_basic() -> None:
    family, basic = Family("team", "PodGroup", "x"), workload("PodGroup", {"schedulingPolicy": {"basic": {}}})
    assert [known(*items).is_basic(family) for items in ([], [workload("PodGroup")], [basic])] == [False, False, True]


@pytest.mark.parametrize("text", ["0", "-4", "four", "", "٤", "9" * 5_000, "4.0", " 4", "+4", "1e3"])
def test_a_size_that_is_no_number_is_none(text: str) -> None:
    gang = Sizes().gang_of(in_family(GROUP, annotations={SIZE: text, "other": "x"}))
    assert gang is not None
    assert gang.size is None
    assert group_of(in_family({GANG_LABEL: text}, owner("ReplicaSet"))) is None


def test_of_other_annotations_nothing_is_kept() -> None:
    kept = kept_pod(in_family(GROUP, annotations={SIZE: "4", "other": "x", "pod-group-name": "y" * 254}))
    assert kept.metadata.annotations == {SIZE: "4"}


@pytest.mark.parametrize("label", [{}, {GANG_LABEL: "4"}])
def test_of_a_pod_without_claims_only_what_names_a_gang_is_kept(label: dict[str, str]) -> None:
    pod = in_family({**GROUP, **label}, owner("StatefulSet"), annotations={SIZE: "4"}, group="pg")
    kept = kept_pod(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=[])))
    assert bool(kept.metadata.annotations) == bool(kept.metadata.owner_references) == bool(label)
    assert group_of(kept) == Family("team", "PodGroup", "pg")


TEXTS = st.sampled_from(["", "a", "4", "x" * 70, "y" * 300])
LABELS = st.dictionaries(st.sampled_from([*sorted(FAMILY_LABELS), *INDEX]), TEXTS)
ANNOTATIONS = st.dictionaries(st.sampled_from(FAMILY_ANNOTATIONS), TEXTS)
KIND_OF_OWNER = st.sampled_from([*OWNERS, ("apps", "ReplicaSet"), ("", "Node"), ("ray.io", "k" * 600)])


@given(LABELS, ANNOTATIONS, st.lists(st.tuples(KIND_OF_OWNER, st.booleans(), TEXTS), max_size=3), TEXTS)
def test_whatever_a_pod_says_is_read_alike_whole_and_as_it_is_kept(
    labels: dict[str, str],
    annotations: dict[str, str],
    owners: list[tuple[tuple[str, str], bool, str]],
    group: str,
) -> None:
    written = [owner(kind, f"{of}/v1", controller=leads, uid=uid) for (of, kind), leads, uid in owners]
    pod = in_family(labels, *written, group=group, annotations=annotations)
    family = family_of(pod)
    assert family_of(kept_pod(pod)) == family
    assert family is None or (may_have_a_family(pod) and family.namespace == "team" and family.name)
    gang = Sizes().gang_of(pod)
    assert (gang is None) == (family is None)
    assert group_of(pod) in (None, family)
    hard = Sizes().hard(family, None) if family else None
    assert hard is None, "without an object and a label nothing is hard"


def test_a_podgroup_is_the_only_object_that_makes_a_gang() -> None:
    for family, item in ((name, workload(name)) for name in KINDS):
        gang = known(item).hard(Family("team", family, "u" if item.BY_UID else "x"), None)
        assert (gang is not None) == (family == PodGroup.FAMILY)
