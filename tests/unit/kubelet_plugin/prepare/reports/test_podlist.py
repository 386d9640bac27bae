"""Which container has which GPUs (kubelet_plugin/prepare/reports/podlist.py)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import msgspec
import pytest

from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import (
    ContainerRequestMapping,
    ContainerState,
    ContainerStatus,
    ExtendedResourceClaimStatus,
    Pod,
)
from dracaena.kubelet_plugin.pods.transform import kept_pod
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.dcgm_job_mapping import is_job_file, job_files
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.prepare.reports.podlist import (
    annotation_changes,
    by_name,
    claim_names,
    has_claims,
    pod_annotations,
    pod_entries,
    unknown_claims,
    with_users,
)
from support.plugin import DRIVER, gpu_uuid, make_pod, prepared_claim


def listed(pods: Sequence[Pod], *prepared: PreparedClaim) -> list[tuple[str, str, tuple[str, ...]]]:
    entries = [entry for pod in pods for entry in pod_entries(pod, by_name(prepared))]
    return [(e.name, e.container, e.gpu_list) for e in sorted(entries, key=lambda entry: entry.order)]


def uuids(*numbers: int) -> tuple[str, ...]:
    return tuple(gpu_uuid(n) for n in numbers)


def test_a_container_lists_its_claims_gpus_in_the_order_of_the_allocation() -> None:
    assert listed([make_pod()], prepared_claim("claim", (3, 1))) == [("pod", "main", uuids(3, 1))]


def test_several_containers_and_init_containers_are_listed_sorted() -> None:
    pod = make_pod(
        containers={"z": [("claim", "")], "a": [("claim", "")], "none": []},
        init={"m": [("claim", "")]},
        phase="Pending",
    )
    assert [container for _, container, _ in listed([pod], prepared_claim())] == ["a", "m", "z"]


def in_states(pod: Pod, **states: str) -> Pod:
    """A pod whose containers are in these states (running, terminated, waiting)."""
    found = {
        name: ContainerStatus(name, msgspec.convert({state: {}}, ContainerState)) for name, state in states.items()
    }
    status = msgspec.structs.replace(
        pod.status,
        init_container_statuses=[found[c.name] for c in pod.spec.init_containers if c.name in found],
        container_statuses=[found[c.name] for c in pod.spec.containers if c.name in found],
    )
    return msgspec.structs.replace(pod, status=status)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({}, ["main", "side", "warmup"]),
        ({"warmup": "waiting", "main": "waiting", "side": "waiting"}, ["main", "side", "warmup"]),
        ({"warmup": "running", "main": "waiting", "side": "waiting"}, ["warmup"]),
        ({"warmup": "terminated", "main": "waiting", "side": "waiting"}, ["main", "side"]),
        ({"warmup": "terminated", "main": "running", "side": "waiting"}, ["main"]),
        ({"warmup": "terminated", "main": "running", "side": "running"}, ["main", "side"]),
        ({"warmup": "terminated", "main": "terminated", "side": "running"}, ["side"]),
        ({"warmup": "running", "main": "running", "side": "running"}, ["main", "side", "warmup"]),  # a sidecar
        ({"warmup": "terminated", "main": "terminated", "side": "terminated"}, []),
    ],
)
def test_containers_that_ended_or_wait_for_others_leave_the_list_and_the_job_mapping(
    states: dict[str, str], expected: list[str]
) -> None:
    uses = [("claim", "")]
    pod = make_pod(containers={"main": uses, "side": uses}, init={"warmup": uses}, phase="Pending")
    pod = kept_pod(DRIVER)(in_states(pod, **states))  # as the plugin keeps it
    claim = prepared_claim("claim", (4,), index=3)
    assert [container for _, container, _ in listed([pod], claim)] == expected
    jobs = {"3": "".join(f"default/pod/{name}\n" for name in expected).encode()} if expected else {}
    assert job_files([pod], [claim]) == jobs
    told = pod_annotations(pod, by_name([claim]), DRIVER)["gpu.dracaena.dev/devices"]
    assert told is not None
    assert set(json.loads(told)) == {"main", "side", "warmup"}  # what was granted does not change with that


def test_init_containers_of_a_pod_that_runs_have_ended_but_its_sidecars() -> None:
    pod = make_pod(init={"warmup": [("claim", "")], "proxy": [("claim", "")]})
    proxy = msgspec.structs.replace(pod.spec.init_containers[1], restart_policy="Always")
    spec = msgspec.structs.replace(pod.spec, init_containers=[pod.spec.init_containers[0], proxy])
    pod = msgspec.structs.replace(pod, spec=spec)
    assert [container for _, container, _ in listed([pod], prepared_claim())] == ["main", "proxy"]


def test_a_running_container_without_gpus_hides_nobody() -> None:
    pod = make_pod(containers={"main": [("claim", "")], "none": []}, init={"warmup": [("claim", "")]})
    pod = in_states(pod, warmup="terminated", main="waiting", none="running")
    assert [container for _, container, _ in listed([pod], prepared_claim())] == ["main"]


def test_a_container_that_names_a_request_has_only_its_gpus() -> None:
    claim = prepared_claim("claim", (0,), request="small")
    more = prepared_claim("claim", (1, 2), request="large/four")
    both = dataclasses.replace(claim, devices=(*claim.devices, *more.devices))
    pod = make_pod(containers={"a": [("claim", "small")], "b": [("claim", "large")], "c": [("claim", "other")]})
    assert listed([pod], both) == [("pod", "a", uuids(0)), ("pod", "b", uuids(1, 2))]


def test_a_container_with_two_claims_has_both() -> None:
    pod = make_pod(containers={"main": [("x", ""), ("y", "")]}, claims={"x": "claim-x", "y": "claim-y"})
    entries = pod_entries(pod, by_name([prepared_claim("claim-y", (2,)), prepared_claim("claim-x", (5,))]))
    assert entries[0].gpu_list == uuids(5, 2)
    assert entries[0].claims == ("claim-x-uid", "claim-y-uid")


def test_a_claim_made_from_a_template_is_found_by_its_generated_name() -> None:
    pod = make_pod(generated={"claim": "pod-claim-x7k2p"})
    assert listed([pod], prepared_claim("pod-claim-x7k2p")) == [("pod", "main", uuids(0))]


def test_pods_that_share_a_claim_are_each_listed() -> None:
    claim = with_users(prepared_claim(), {ClaimUid("claim-uid"): frozenset({PodUid("b-uid")})})
    assert [name for name, _, _ in listed([make_pod("pod"), make_pod("b")], claim)] == ["b", "pod"]


def test_a_pod_that_only_has_the_name_of_a_prepared_claim_is_not_listed() -> None:
    assert listed([make_pod("stranger")], prepared_claim()) == []


def test_pods_that_name_a_prepared_claim_without_being_its_consumer_are_to_be_asked_about() -> None:
    pods = [make_pod(), make_pod("later"), make_pod("other", claims={"x": "y"}), make_pod("ended", phase="Failed")]
    claims = by_name([prepared_claim()])
    assert [unknown_claims(pod, claims) for pod in pods] == [(), ("claim-uid",), (), ()]


def test_a_consumer_of_one_claim_is_not_asked_about_for_another_of_that_name() -> None:
    old = prepared_claim("claim", (0,))
    new = dataclasses.replace(
        old, claim=dataclasses.replace(old.claim, uid=ClaimUid("new")), consumers=(PodUid("later-uid"),)
    )
    assert [unknown_claims(pod, by_name([old, new])) for pod in (make_pod(), make_pod("later"))] == [(), ()]


def test_users_are_added_to_their_own_claim_alone() -> None:
    users = {ClaimUid("claim-uid"): frozenset({PodUid("a-uid")}), ClaimUid("other"): frozenset({PodUid("b-uid")})}
    assert with_users(prepared_claim(), users).consumers == ("a-uid", "pod-uid")


def test_a_claim_that_is_not_prepared_lists_nothing() -> None:
    assert listed([make_pod()]) == []


def test_a_claim_of_the_same_name_in_another_namespace_is_another_claim() -> None:
    claim = prepared_claim()
    elsewhere = dataclasses.replace(claim, claim=dataclasses.replace(claim.claim, namespace="other"))
    assert listed([make_pod()], elsewhere) == []


def test_finished_pods_have_nothing_any_more() -> None:
    assert listed([make_pod(phase="Succeeded"), make_pod("b", phase="Failed")], prepared_claim()) == []


def test_devices_for_admin_access_are_left_out() -> None:
    assert listed([make_pod()], prepared_claim(admin_access=True)) == []


def test_of_two_claims_of_one_name_the_one_reserved_for_the_pod_counts() -> None:
    old = prepared_claim("claim", (0,))
    new = dataclasses.replace(
        prepared_claim("claim", (1,)),
        claim=dataclasses.replace(old.claim, uid=ClaimUid("new")),
        consumers=(PodUid("later-uid"),),
    )
    assert listed([make_pod("later"), make_pod("pod"), make_pod("stranger")], old, new) == [
        ("later", "main", uuids(1)),
        ("pod", "main", uuids(0)),
    ]


def test_annotations_say_per_container_what_each_request_of_each_claim_gave() -> None:
    pod = make_pod(containers={"main": [("claim", "")], "side": [("claim", "")]})
    wanted = pod_annotations(pod, by_name([prepared_claim("claim", (2, 0))]), DRIVER)
    entry = {"claim": "claim", "request": "gpus", "uuids": list(uuids(2, 0))}
    assert json.loads(wanted["gpu.dracaena.dev/devices"] or "") == {"main": [entry], "side": [entry]}
    assert wanted["gpu.dracaena.dev/uuids"] == ",".join(uuids(2, 0))


def test_a_pod_without_prepared_claims_has_no_annotations() -> None:
    assert set(pod_annotations(make_pod(), {}, DRIVER).values()) == {None}


def test_only_annotations_that_differ_are_changed() -> None:
    wanted = {"d/devices": None, "d/uuids": "GPU-1"}
    pod = make_pod(annotations={"d/uuids": "GPU-1", "mine": "x"})
    assert annotation_changes(pod, wanted) == {}
    assert annotation_changes(pod, {"d/uuids": None}) == {"d/uuids": None}
    assert annotation_changes(make_pod(), wanted) == {"d/uuids": "GPU-1"}


def mig_claim(**device: object) -> PreparedClaim:
    known = {"uuid": "MIG-1", "parent_uuid": "GPU-9", "index": 2, "minor": 5, "gpu_instance_id": 7}
    return dataclasses.replace(prepared_claim("claim", (0,), **{**known, **device}), consumers=(PodUid("pod-uid"),))


def test_a_mig_device_is_listed_with_its_own_uuid_and_its_parent_beside_it() -> None:
    (entry,) = pod_entries(make_pod(), by_name([mig_claim()]))
    assert (entry.gpu_list, entry.mig) == (("MIG-1",), {"MIG-1": "GPU-9"})


@pytest.mark.parametrize(
    ("form", "whole", "part"),
    [
        (GpuNameFormat.UUID, gpu_uuid(3), "MIG-1"),
        (GpuNameFormat.INDEX, "1", "2-7"),
        (GpuNameFormat.MINOR, "3", "5-7"),
        (GpuNameFormat.DEVICE_NAME, "nvidia3", "nvidia5/gi7"),
    ],
)
def test_gpus_are_named_in_the_form_that_a_reader_needs(form: GpuNameFormat, whole: str, part: str) -> None:
    (entry,) = pod_entries(make_pod(), by_name([prepared_claim("claim", (3,), index=1)]), form)
    assert (entry.gpu_list, entry.mig) == ((whole,), {})
    (entry,) = pod_entries(make_pod(), by_name([mig_claim()]), form)
    assert (entry.gpu_list, entry.mig) == ((part,), {part: "GPU-9"})


def test_a_number_that_was_not_kept_is_not_guessed() -> None:
    (entry,) = pod_entries(make_pod(), by_name([prepared_claim("claim", (3,))]), GpuNameFormat.INDEX)
    assert entry.gpu_list == uuids(3)
    old = mig_claim(parent_uuid=None, index=None, gpu_instance_id=None, access_minors=(30, 31))
    for form in GpuNameFormat:
        (entry,) = pod_entries(make_pod(), by_name([old]), form)
        assert entry.gpu_list == ("MIG-1",)


def extended_pod(*mappings: tuple[str, str]) -> Pod:
    """A pod with GPUs by extended resources: kube-scheduler made the claim and says what it is for."""
    pod = make_pod(containers={"main": [], "side": []}, claims={}, generated={})
    mapped = [ContainerRequestMapping(container, request) for container, request in mappings]
    extended = ExtendedResourceClaimStatus("claim", mapped)
    spec = msgspec.structs.replace(pod.spec, resource_claims=[])
    status = msgspec.structs.replace(pod.status, extended_resource_claim_status=extended)
    return msgspec.structs.replace(pod, spec=spec, status=status)


def test_gpus_of_extended_resources_are_listed_for_the_containers_that_the_scheduler_names() -> None:
    claim = prepared_claim("claim", (0, 1))
    first, second = (dataclasses.replace(d, request=f"container-{n}-request-0") for n, d in enumerate(claim.devices))
    claim = dataclasses.replace(claim, devices=(first, second))
    pod = extended_pod(("side", "container-1-request-0"), ("main", "container-0-request-0"))
    assert has_claims(pod)
    assert claim_names(pod) == ("claim",)
    assert listed([pod], claim) == [("pod", "main", uuids(0)), ("pod", "side", uuids(1))]
    assert listed([extended_pod(("main", "other"))], claim) == []
    assert listed([pod], dataclasses.replace(claim, consumers=())) == []


def test_a_pod_without_any_claim_has_none() -> None:
    pod = make_pod(claims={}, generated={"later": "made-later"})
    assert claim_names(pod) == ("made-later",)
    bare = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=[]))
    assert not has_claims(bare)
    assert claim_names(bare) == ()


def test_each_gpu_has_a_file_of_the_containers_that_have_it() -> None:
    pods = [make_pod("b"), make_pod("a", {"x": [("claim", "")]}, init={"i": [("claim", "")]}, phase="Pending")]
    claim = dataclasses.replace(prepared_claim("claim", (4,), index=3), consumers=(PodUid("a-uid"), PodUid("b-uid")))
    assert job_files(pods, [claim]) == {"3": b"default/a/i\ndefault/a/x\ndefault/b/main\n"}
    assert job_files([make_pod()], [mig_claim()]) == {"2.7": b"default/pod/main\n"}
    assert job_files([make_pod()], [prepared_claim("claim", (4,))]) == {}


@pytest.mark.parametrize(
    ("name", "is_job"), [("0", True), ("12.7", True), (".0.tmp", False), ("0.", False), ("a", False), ("1.2.3", False)]
)
def test_only_names_that_the_exporter_reads_are_job_files(name: str, is_job: bool) -> None:
    assert is_job_file(name) is is_job


def test_each_share_is_told_with_its_memory_and_cores_behind_the_published_keys() -> None:
    share = prepared_claim("claim", share_id="one", memory_bytes=20 << 30, cores=30, index=0)
    two = dataclasses.replace(share.devices[0], share_id="two", memory_bytes=None, cores=0)
    claim = dataclasses.replace(share, devices=(*share.devices, two), consumers=(PodUid("pod-uid"),))
    (entry,) = pod_entries(make_pod(), by_name([claim]))
    told = json.loads(msgspec.json.encode(entry))
    assert list(told) == ["name", "namespace", "container", "gpu_list", "uid", "claims", "shares"]
    assert told["gpu_list"] == [gpu_uuid(0)]
    shares = [
        {"gpu": gpu_uuid(0), "share_id": "one", "memory": "20Gi", "cores": 30},
        {"gpu": gpu_uuid(0), "share_id": "two", "memory": "", "cores": 0},
    ]
    assert told["shares"] == shares
    (by_index,) = pod_entries(make_pod(), by_name([claim]), GpuNameFormat.INDEX)
    assert [each.gpu for each in by_index.shares] == ["0", "0"]
    annotation = pod_annotations(make_pod(), by_name([claim]), DRIVER)[f"{DRIVER}/devices"]
    assert annotation is not None
    ((given,),) = json.loads(annotation).values()
    assert (given["uuids"], given["shares"]) == ([gpu_uuid(0)], shares)
