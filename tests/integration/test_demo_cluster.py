"""The whole path on the embedded cluster: real processes, gRPC, HTTP and files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
import urllib3

from dracaena.api.gpu_templates import GpuTemplate
from dracaena.api.machine_json import encode_machine
from dracaena.api.names import DEFAULT_DRIVER_NAME, rewrite_label, uuids_annotation
from dracaena.api.objects import Namespace, Pod
from dracaena.api.podlist import decode_podlist
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dracaena.demo.cluster import DemoCluster, DemoNode
from dracaena.demo.objects import DeploymentDocument, JobDocument, NamespaceDocument
from dracaena.demo.observation import Observation, observe
from dracaena.kube.events import Event
from support.embedded_cluster import (
    TWO_NODES,
    checkpointed_claims,
    claims_in_use,
    devices_held,
    wait_all_free,
    wait_observed,
    wait_settled,
)
from support.forked_programs import ForkedProgram, begin_forked
from support.kube import wait_for
from support.mig_nodes import mig_classes
from support.page_cluster import divided_machine
from support.workload import NAMESPACE, create_claim, create_class, create_pod, create_template, pod_names

pytestmark = pytest.mark.xdist_group("one cluster for all tests of this file")


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[DemoCluster]:
    with DemoCluster(TWO_NODES, begin=begin_forked) as cluster:
        create_class(cluster.client)
        for count in (1, 2, 3, 4, 5, 6, 7, 8):
            create_template(cluster.client, f"gpus-{count}", count)
        yield cluster


@pytest.fixture
def cluster(running_cluster: DemoCluster) -> Iterator[DemoCluster]:
    """The cluster with nothing on it, before and after each test."""
    yield running_cluster
    client = running_cluster.client
    for name in pod_names(client):
        client.delete(Pod, name, namespace=NAMESPACE)
    for claim in client.list(ResourceClaim, namespace=NAMESPACE).items:
        if not claim.metadata.owner_references:
            client.delete(ResourceClaim, claim.metadata.name, namespace=NAMESPACE)
    for program in running_cluster.programs:
        if not program.is_running:
            program.start()
    wait_all_free(running_cluster)


def check_disks_agree(cluster: DemoCluster, seen: Observation) -> None:
    held = devices_held(seen)
    assert len(held) == len(set(held))
    assert checkpointed_claims(cluster) == claims_in_use(seen)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_pod_gets_as_many_gpus_as_it_asks_for(cluster: DemoCluster, count: int) -> None:
    create_pod(cluster.client, "p1", template=f"gpus-{count}")
    seen = wait_settled(cluster, pods=1)
    assert len(devices_held(seen)) == count
    check_disks_agree(cluster, seen)


def wait_allocated(cluster: DemoCluster, count: int) -> None:
    """Wait until so many claims are allocated."""
    wait_observed(
        cluster, f"{count} claims", lambda seen: None if len(claims_in_use(seen)) == count else str(claims_in_use(seen))
    )


def test_pods_of_all_sizes_share_the_nodes_and_give_everything_back(cluster: DemoCluster) -> None:
    # 15 GPUs: all there are, and only one packing of 7 and 8 is left at the end. One pod after the other: claims of
    # pods that come together are made in any order, and another order may leave 4 GPUs on no node.
    for number, count in enumerate((4, 3, 1, 2, 4, 1)):
        create_pod(cluster.client, f"p-{count}-{number}", template=f"gpus-{count}")
        wait_allocated(cluster, number + 1)
    create_pod(cluster.client, "late", template="gpus-8")
    seen = wait_settled(cluster, {"late"}, pods=7)
    check_disks_agree(cluster, seen)
    assert len(devices_held(seen)) == 15
    for name in pod_names(cluster.client):
        if name != "late":
            cluster.client.delete(Pod, name, namespace=NAMESPACE)
    check_disks_agree(cluster, wait_settled(cluster, pods=1))


def test_a_second_pod_on_a_prepared_claim_is_listed_and_annotated(cluster: DemoCluster) -> None:
    create_claim(cluster.client, "shared", count=2)
    create_pod(cluster.client, "p1", claim="shared")
    wait_settled(cluster, pods=1)
    create_pod(cluster.client, "p2", claim="shared")
    seen = wait_settled(cluster, pods=2)
    first, second = seen.pods
    assert first.uuids == second.uuids
    assert len(devices_held(seen)) == 2
    podlist = cluster.folders[first.pod.spec.node_name].podlist
    assert [entry.name for entry in decode_podlist(podlist.read_bytes())] == ["p1", "p2"]
    cluster.client.delete(Pod, "p1", namespace=NAMESPACE)
    left = wait_settled(cluster, pods=1)
    assert left.pods[0].uuids == second.uuids
    check_disks_agree(cluster, left)


def test_a_pod_deleted_by_force_frees_its_gpus(cluster: DemoCluster) -> None:
    create_pod(cluster.client, "p1", template="gpus-8")
    wait_settled(cluster, pods=1)
    create_pod(cluster.client, "p2", template="gpus-8")
    wait_settled(cluster, {"p2"}, pods=2)
    cluster.client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    seen = wait_settled(cluster, pods=1)
    assert seen.pods[0].name == "p2"
    check_disks_agree(cluster, seen)


def test_a_restarted_plugin_keeps_claims_podlist_and_annotations(cluster: DemoCluster) -> None:
    create_pod(cluster.client, "p1", template="gpus-3")
    before = wait_settled(cluster, pods=1)
    node = before.pods[0].pod.spec.node_name
    listed = cluster.folders[node].podlist.read_bytes()
    cluster.plugins[node].kill()
    cluster.plugins[node].start()
    create_pod(cluster.client, "p2", template="gpus-4")
    seen = wait_settled(cluster, pods=2)
    first = seen.pod("p1")
    assert first is not None
    assert first.uuids == before.pods[0].uuids
    assert decode_podlist(listed)[0] in decode_podlist(cluster.folders[node].podlist.read_bytes())
    assert first.pod.metadata.annotations[uuids_annotation(DEFAULT_DRIVER_NAME)] == ",".join(first.uuids)
    check_disks_agree(cluster, seen)


def test_slices_that_kubelet_deletes_are_published_again(cluster: DemoCluster) -> None:
    client = cluster.client
    before = {item.spec.node_name: item.metadata.uid for item in client.list(ResourceSlice).items}
    cluster.kubelets["dgx-1v"].stop()
    cluster.start_kubelet("dgx-1v")  # it deletes the slices of its node, as the real one does
    cluster.wait_published()

    def unchanged(_observation: Observation) -> str | None:
        after = {item.spec.node_name: item.metadata.uid for item in client.list(ResourceSlice).items}
        return None if after.keys() == before.keys() and after["dgx-1v"] != before["dgx-1v"] else f"slices {after}"

    wait_observed(cluster, "a new slice of dgx-1v", unchanged)
    create_pod(client, "p1", template="gpus-8")
    wait_settled(cluster, pods=1)


def test_a_restarted_kubelet_ends_a_pod_that_was_deleted_meanwhile(cluster: DemoCluster) -> None:
    create_pod(cluster.client, "p1", template="gpus-2")
    node = wait_settled(cluster, pods=1).pods[0].pod.spec.node_name
    cluster.kubelets[node].stop()
    cluster.client.delete(Pod, "p1", namespace=NAMESPACE)
    assert len(observe(cluster.client).pods) == 1
    cluster.start_kubelet(node)
    wait_all_free(cluster)


def test_a_claim_without_a_known_class_waits_and_says_so(cluster: DemoCluster) -> None:
    document = {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "other", "count": 1}}]}
    client = cluster.client
    client.create(ResourceClaim, {"metadata": {"name": "c"}, "spec": {"devices": document}}, namespace=NAMESPACE)
    create_pod(client, "p1", claim="c")
    create_pod(client, "p2", template="gpus-1")
    seen = wait_settled(cluster, {"p1"}, pods=2)
    waiting = seen.pod("p1")
    assert waiting is not None
    assert waiting.waits


def test_a_job_gets_gpus_ends_and_gives_them_back(cluster: DemoCluster) -> None:
    spec = {
        "restartPolicy": "Never",
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "gpus-2"}],
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "command": ["sleep", "1"],
                "resources": {"claims": [{"name": "gpus"}]},
            }
        ],
    }
    job = {"metadata": {"name": "j"}, "spec": {"completions": 2, "parallelism": 1, "template": {"spec": spec}}}
    cluster.client.create(JobDocument, job, namespace=NAMESPACE)

    def unfinished() -> str | None:
        status = cluster.client.get(JobDocument, "j", namespace=NAMESPACE).status
        return None if status.get("succeeded") == 2 else str(status)

    cluster.wait("the job to end", unfinished, 60.0)

    def untold() -> str | None:
        events = cluster.client.list(Event, namespace=NAMESPACE).items
        reasons = [event.reason for event in events if event.involved_object.name == "j"]
        return None if reasons.count("SuccessfulCreate") == 2 else str(reasons)

    cluster.wait("both pods to be told of", untold, 60.0)  # by a thread of its own
    cluster.client.delete(JobDocument, "j", namespace=NAMESPACE, propagation_policy="Foreground")
    wait_all_free(cluster)


def test_a_namespace_goes_with_pods_that_run_on_gpus(cluster: DemoCluster) -> None:
    client = cluster.client
    client.create(NamespaceDocument, {"metadata": {"name": "desk"}})
    devices = {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DEFAULT_DRIVER_NAME, "count": 2}}]}
    client.create(
        ResourceClaimTemplate, {"metadata": {"name": "two"}, "spec": {"spec": {"devices": devices}}}, namespace="desk"
    )
    pod = {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two"}],
        "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpus"}]}}],
    }
    metadata = {"name": "p", "finalizers": ["example.com/until-it-was-seen"]}
    client.create(Pod, {"metadata": metadata, "spec": pod}, namespace="desk")

    def phase() -> str | None:
        now = client.get(Pod, "p", namespace="desk").status.phase
        return None if now == "Running" else now

    cluster.wait("the pod to run", phase, 60.0)
    client.delete(NamespaceDocument, "desk")
    names = [item.metadata.name for item in client.list(NamespaceDocument).items]
    assert "desk" in names
    client.merge_patch(Pod, "p", {"metadata": {"finalizers": None}}, namespace="desk")

    def left() -> str | None:
        return "desk" if "desk" in [one.metadata.name for one in client.list(NamespaceDocument).items] else None

    cluster.wait("the namespace to go", left, 60.0)
    wait_all_free(cluster)


def test_a_cluster_is_ready_only_when_its_controller_sees_all_nodes() -> None:
    """A first pod cannot get what the controller does not see yet, and gets something worse instead."""
    programs: list[ForkedProgram] = []

    def begin(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> ForkedProgram:
        programs.append(begin_forked(arguments, log, environment))
        return programs[-1]

    def wait_published_unseen(self: DemoCluster) -> None:
        """The slices are published while the controller stands still; it goes on some time later."""
        controller = programs[0].pid
        wait_for(self.page_url, "the controller serves")
        os.kill(controller, signal.SIGSTOP)
        wait_published(self)
        threading.Timer(0.2, os.kill, (controller, signal.SIGCONT)).start()

    wait_published = DemoCluster.wait_published
    with (
        patch.object(DemoCluster, "wait_published", wait_published_unseen),
        DemoCluster(TWO_NODES, begin=begin) as cluster,
    ):
        rows = urllib3.request("GET", f"{cluster.page_url()}api/fleet", retries=False).json()["nodes"]
    assert [row[0] for row in rows] == sorted(node.name for node in TWO_NODES)


def test_a_rewritten_pod_gets_mig_devices_of_its_profile_from_a_template_made_for_it(tmp_path: Path) -> None:
    """The policy that rewrites it comes with the chart, so here the pod names the template itself."""
    machine = tmp_path / "divided.json"
    machine.write_bytes(encode_machine(divided_machine()))
    template = GpuTemplate(2, f"mig.{DEFAULT_DRIVER_NAME}", "1g.10gb")
    with DemoCluster((DemoNode("mig", str(machine)),), begin=begin_forked) as cluster:
        client = cluster.client
        (only_mig,) = (one.spec for one in mig_classes() if one.metadata.name == template.device_class)
        about = {"metadata": {"name": template.device_class}, "spec": msgspec.to_builtins(only_mig)}
        client.create(DeviceClass, about)
        client.merge_patch(Namespace, NAMESPACE, {"metadata": {"labels": {rewrite_label(DEFAULT_DRIVER_NAME): "true"}}})
        create_pod(client, "parts", template=template.name)

        def phase() -> str | None:
            now = client.get(Pod, "parts", namespace=NAMESPACE).status.phase
            return None if now == "Running" else now

        cluster.wait("the pod to run", phase, 60.0)
        (claim,) = client.list(ResourceClaim, namespace=NAMESPACE).items
        assert claim.status.allocation is not None
        taken = {result.device for result in claim.status.allocation.devices.results}
        (published,) = client.list(ResourceSlice).items
        profiles = [device.attributes["profile"].string for device in published.spec.devices if device.name in taken]
        assert profiles == ["1g.10gb", "1g.10gb"]
        (made,) = client.list(ResourceClaimTemplate, namespace=NAMESPACE).items
        assert made.spec.spec == template.spec()["spec"]


def test_a_deployment_gets_gpus_for_each_pod_and_gives_them_back(cluster: DemoCluster) -> None:
    claims = [{"name": "gpus", "resourceClaimTemplateName": "gpus-2"}]
    containers = [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpus"}]}}]
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"resourceClaims": claims, "containers": containers}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    cluster.client.create(DeploymentDocument, {"metadata": {"name": "d"}, "spec": spec}, namespace=NAMESPACE)

    def unready() -> str | None:
        status = cluster.client.get(DeploymentDocument, "d", namespace=NAMESPACE).status
        return None if status.get("availableReplicas") == 3 else str(status)

    cluster.wait("the deployment to be available", unready, 60.0)
    held = devices_held(observe(cluster.client))
    assert len(held) == len(set(held)) == 6
    cluster.client.delete(DeploymentDocument, "d", namespace=NAMESPACE, propagation_policy="Foreground")
    wait_all_free(cluster)
