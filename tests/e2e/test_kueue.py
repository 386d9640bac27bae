"""Kueue lends GPUs between queues, and our quota limits what a namespace holds: a pod has to pass both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.installation import DRIVER
from e2e.kueue import QUEUE_LABEL, borrowed, condition, kueue, make_queues
from e2e.pods import EVENTS, NAMESPACE, PODS, Pod, claim_spec, create_template
from e2e.run import KUEUE, LOGS
from e2e.waiting import eventually

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
THIS_NAMESPACE = f"/api/v1/namespaces/{NAMESPACE}"
DONE_S = 60.0


@pytest.fixture
def queues(installed: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Give the cluster with two queues of one cohort, a namespace that may hold two GPUs, and a template for one."""
    api = installed.api
    template = create_template(api, "one", claim_spec())
    _set_quota(installed, '{"gpus": 2}')
    with kueue(Path(os.environ[KUEUE]), tmp_path, Path(os.environ[LOGS]), installed):
        make_queues(api, "lab", {"research": 1, "teaching": 3})
        yield installed
        for job in api.items(JOBS):
            path = f"{JOBS}/{job['metadata']['name']}"
            api.send("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"})
        eventually(lambda: not api.items(JOBS), "the Jobs are gone", within_s=DONE_S)
    _set_quota(installed, None)
    api.delete(template)


def _set_quota(cluster: Cluster, text: str | None) -> None:
    cluster.api.patch(THIS_NAMESPACE, {"metadata": {"annotations": {f"{DRIVER}/quota": text}}})


def create_job(cluster: Cluster, name: str, pods: int) -> None:
    """Create a Job of so many pods with a GPU each, as Kueue's webhook leaves it: suspended."""
    spec: dict[str, Any] = Pod(name, templates={"gpus": "one"}).document()["spec"]
    template = {"metadata": {"labels": {"of": name}}, "spec": spec}
    job = {"suspend": True, "parallelism": pods, "completions": pods, "template": template}
    metadata = {"name": name, "labels": {QUEUE_LABEL: "research"}}
    cluster.api.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job})


def phases(cluster: Cluster, job: str) -> list[str]:
    pods = cluster.api.items(PODS)
    return [pod["status"].get("phase", "") for pod in pods if pod["metadata"].get("labels", {}).get("of") == job]


def told(cluster: Cluster, job: str) -> list[str]:
    """Return what our controller tells of pods that wait."""
    found = cluster.api.items(EVENTS)
    of_job = (one for one in found if one["involvedObject"].get("name", "").startswith(f"{job}-"))
    return [one["message"] for one in of_job if one.get("reason") == "WaitingForGPUs"]


def test_a_job_that_borrows_runs_one_beyond_our_quota_waits_and_one_beyond_the_cohort_is_not_admitted(
    queues: Cluster,
) -> None:
    api = queues.api
    create_job(queues, "borrows", 2)
    eventually(lambda: phases(queues, "borrows") == ["Running"] * 2, "the Job that borrows runs", within_s=DONE_S)
    eventually(lambda: borrowed(api, "research") == 1, "one of its GPUs is borrowed", within_s=DONE_S)

    create_job(queues, "waits", 1)
    words = f"namespace {NAMESPACE} may have 2 GPUs, holds 2, the pod wants 1"
    eventually(lambda: any(words in text for text in told(queues, "waits")), "our quota is told", within_s=DONE_S)
    assert condition(api, "waits", "Admitted").get("status") == "True", "Kueue has let it pass"
    assert phases(queues, "waits") == ["Pending"]

    create_job(queues, "beyond", 2)
    eventually(
        lambda: "insufficient unused quota" in condition(api, "beyond", "QuotaReserved").get("message", ""),
        "Kueue says that the cohort has too little",
        within_s=DONE_S,
    )
    assert phases(queues, "beyond") == [], "no pod of it is made"

    _set_quota(queues, '{"gpus": 3}')
    eventually(lambda: phases(queues, "waits") == ["Running"], "it runs with a larger quota", within_s=DONE_S)
    eventually(lambda: borrowed(api, "research") == 2, "two are borrowed", within_s=DONE_S)
    assert len(phases(queues, "borrows")) == 2
