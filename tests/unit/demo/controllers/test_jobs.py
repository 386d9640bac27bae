"""The stand-in for the job controller against the embedded API server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.objects import Pod
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.controllers.garbage import GarbageCollector
from dracaena.demo.controllers.jobs import TRACKED, JobController, JobPods, end_of, wanted_active
from dracaena.demo.objects import JobDocument
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for
from support.pod_writes import PodWrites

NAMESPACE = "default"
BURST = 3
NO_PODS = JobPods((), (), ())


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        client = client_for(server.url, tmp_path)
        parts = (JobController(client, SystemClock()), GarbageCollector(client, SystemClock()))
        for part in parts:
            part.start()
        yield client
        for part in parts:
            part.stop()
            assert part.failure is None


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[tuple[KubeClient, KubeClient]]:
    """A client, and the client of a controller that runs and looks again after BURST pods."""
    with ApiServer() as server:
        own = client_for(server.url, tmp_path)
        part = JobController(own, SystemClock(), burst=BURST)
        part.start()
        yield client_for(server.url, tmp_path), own
        part.stop()
        assert part.failure is None


def create(client: KubeClient, **spec: Any) -> JobDocument:
    containers = [{"name": "main", "image": "busybox"}]
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"restartPolicy": "Never", "containers": containers}}
    document = {"metadata": {"name": "j"}, "spec": {"template": template} | spec}
    return client.create(JobDocument, document, namespace=NAMESPACE)


def job(client: KubeClient) -> JobDocument:
    return client.get(JobDocument, "j", namespace=NAMESPACE)


def pods(client: KubeClient, phase: str = "Pending") -> list[Pod]:
    return [pod for pod in client.list(Pod, namespace=NAMESPACE).items if pod.status.phase == phase]


def end(client: KubeClient, pod: Pod, phase: str) -> None:
    client.merge_patch(Pod, pod.metadata.name, {"status": {"phase": phase}}, namespace=NAMESPACE, subresource="status")


def conditions(client: KubeClient) -> list[tuple[str, str, str]]:
    return [(one["type"], one["status"], one.get("reason", "")) for one in job(client).status.get("conditions", ())]


def test_a_job_has_its_pod_with_labels_owner_and_finalizer_and_ends_with_it(client: KubeClient) -> None:
    made = create(client)
    wait_for(lambda: job(client).status.get("active") == 1, "the pod to be reported")
    (pod,) = pods(client)
    assert pod.metadata.name.startswith("j-")
    assert pod.metadata.labels["app"] == "x"
    assert pod.metadata.labels["batch.kubernetes.io/job-name"] == "j"
    assert pod.metadata.finalizers == [TRACKED]
    assert [(owner.kind, owner.uid) for owner in pod.metadata.owner_references] == [("Job", made.metadata.uid)]
    end(client, pod, "Succeeded")
    wait_for(lambda: len(conditions(client)) == 2, "the end")
    assert conditions(client) == [
        ("SuccessCriteriaMet", "True", "CompletionsReached"),
        ("Complete", "True", "CompletionsReached"),
    ]
    status = job(client).status
    assert (status.get("active"), status["succeeded"], status["uncountedTerminatedPods"]) == (None, 1, {})
    assert status["completionTime"] >= status["startTime"]
    assert [one.metadata.finalizers for one in pods(client, "Succeeded")] == [[]]
    wait_for(lambda: len(client.list(Event).items) == 2, "two Events")
    assert {one.reason for one in client.list(Event).items} == {"SuccessfulCreate", "Completed"}


def test_pods_run_side_by_side_and_none_is_made_that_cannot_be_needed(client: KubeClient) -> None:
    create(client, completions=3, parallelism=2)
    for ended in range(3):
        wait_for(lambda ended=ended: job(client).status.get("succeeded", 0) == ended, f"{ended} counted")  # type: ignore[misc]
        wait_for(lambda ended=ended: len(pods(client)) == min(2, 3 - ended), "the next pods")  # type: ignore[misc]
        end(client, pods(client)[0], "Succeeded")
    wait_for(lambda: ("Complete", "True", "CompletionsReached") in conditions(client), "the end")
    assert len(client.list(Pod).items) == 3


def test_a_job_fails_with_one_failure_more_than_its_limit(client: KubeClient) -> None:
    create(client, backoffLimit=1, completions=2, parallelism=2)
    for failed in range(2):
        wait_for(lambda failed=failed: job(client).status.get("failed", 0) == failed, "the count")  # type: ignore[misc]
        wait_for(lambda: len(pods(client)) == 2, "two pods")
        end(client, pods(client)[0], "Failed")
    wait_for(lambda: len(conditions(client)) == 2, "the end")
    assert conditions(client) == [
        ("FailureTarget", "True", "BackoffLimitExceeded"),
        ("Failed", "True", "BackoffLimitExceeded"),
    ]
    wait_for(lambda: not pods(client), "the pod that still ran to be deleted")


def test_a_job_that_is_suspended_loses_its_pods_and_gets_others_when_it_goes_on(client: KubeClient) -> None:
    create(client)
    wait_for(lambda: pods(client), "the pod")
    first = pods(client)[0].metadata.uid
    client.merge_patch(JobDocument, "j", {"spec": {"suspend": True}}, namespace=NAMESPACE)
    wait_for(lambda: conditions(client) == [("Suspended", "True", "JobSuspended")], "the condition")
    wait_for(lambda: first not in {pod.metadata.uid for pod in pods(client)}, "the pod to go")
    client.merge_patch(JobDocument, "j", {"spec": {"suspend": False}}, namespace=NAMESPACE)
    wait_for(lambda: conditions(client) == [("Suspended", "False", "JobResumed")], "the condition")
    wait_for(lambda: pods(client), "another pod")


def test_a_job_is_deleted_with_its_pods_or_without_them(client: KubeClient) -> None:
    create(client)
    wait_for(lambda: pods(client), "the pod")
    client.delete(JobDocument, "j", namespace=NAMESPACE)
    wait_for(lambda: not client.list(JobDocument).items, "the job to go")
    wait_for(lambda: [pod.metadata.finalizers for pod in pods(client)] == [[]], "the finalizer to go")
    (orphan,) = pods(client)
    assert orphan.metadata.owner_references == []
    create(client)
    wait_for(lambda: len(pods(client)) == 2, "the other job's pod")
    client.delete(JobDocument, "j", namespace=NAMESPACE, propagation_policy="Foreground")
    wait_for(lambda: not client.list(JobDocument).items, "the job to go")
    assert [pod.metadata.uid for pod in pods(client)] == [orphan.metadata.uid]


def test_a_job_goes_when_its_time_after_the_end_is_over(client: KubeClient) -> None:
    create(client, ttlSecondsAfterFinished=0)
    wait_for(lambda: pods(client), "the pod")
    end(client, pods(client)[0], "Succeeded")
    wait_for(lambda: not client.list(JobDocument).items, "the job to go")
    wait_for(lambda: not client.list(Pod).items, "its pod to go")


def test_a_parallelism_that_is_taken_back_is_seen_after_a_burst_of_pods_made(
    hasty: tuple[KubeClient, KubeClient],
) -> None:
    client, own = hasty
    one = {"spec": {"parallelism": 1}}
    made = PodWrites(own, "create", lambda: client.merge_patch(JobDocument, "j", one, namespace=NAMESPACE))
    create(client, parallelism=40, completions=40, backoffLimit=100)
    wait_for(lambda: made.count and job(client).status.get("active") == 1, "one pod")
    assert made.count == BURST


def test_a_suspension_that_is_taken_back_is_seen_after_a_burst_of_pods_deleted(
    hasty: tuple[KubeClient, KubeClient],
) -> None:
    client, own = hasty
    create(client, parallelism=10, completions=10, backoffLimit=100)
    wait_for(lambda: job(client).status.get("active") == 10, "ten pods, in four bursts")
    before = {pod.metadata.uid for pod in pods(client)}

    def suspend(suspended: bool) -> None:
        client.merge_patch(JobDocument, "j", {"spec": {"suspend": suspended}}, namespace=NAMESPACE)

    deleted = PodWrites(own, "delete", lambda: suspend(False))
    suspend(True)
    wait_for(lambda: job(client).status.get("failed", 0) >= BURST, "the deleted pods to be counted")
    wait_for(lambda: job(client).status.get("active") == 10, "ten pods again")
    assert deleted.count == BURST
    assert len(before & {pod.metadata.uid for pod in pods(client)}) == 10 - BURST


def test_a_job_without_a_number_of_ends_is_a_queue() -> None:
    spec = {"parallelism": 3, "backoffLimit": 6}
    assert wanted_active(spec, {}) == 3
    assert wanted_active(spec, {"succeeded": 1, "active": 2}) == 2
    assert end_of(spec, {"succeeded": 0}, NO_PODS) is None
    assert end_of(spec, {"succeeded": 1}, NO_PODS) is not None
