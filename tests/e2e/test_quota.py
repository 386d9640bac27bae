"""A namespace at its quota on the real control plane: its next pod waits and is told why, others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import delete_gpu_pod
from e2e.installation import DRIVER
from e2e.pods import NAMESPACE, Pod, claim_spec, create_pod, create_template, wait_event, wait_phase
from e2e.waiting import eventually

NAMESPACES = "/api/v1/namespaces"
TEACHING = "teaching"

RUN_S = 60.0
"""From a pod's creation until its container runs: 3 s on a free machine."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of the namespace in which the tests' pods are."""

    cluster: Cluster

    def set(self, gpus: int | None) -> None:
        """Annotate the Namespace; None: it has no quota."""
        text = None if gpus is None else json.dumps({"gpus": gpus})
        change = {"metadata": {"annotations": {f"{DRIVER}/quota": text}}}
        self.cluster.api.patch(f"{NAMESPACES}/{NAMESPACE}", change)


@pytest.fixture
def quota(installed: Cluster) -> Iterator[Quota]:
    """Give the quota, a template `one` in two namespaces, and take all of it away."""
    api = installed.api
    api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEACHING}})
    template = create_template(api, "one", claim_spec())
    copied = {"metadata": {"name": "one"}, "spec": {"spec": claim_spec()}}
    api.create(template.replace(f"/{NAMESPACE}/", f"/{TEACHING}/").rpartition("/")[0], copied)
    made = Quota(installed)
    yield made
    made.set(None)
    api.delete(template)
    api.delete(f"{NAMESPACES}/{TEACHING}")
    eventually(lambda: api.find(f"{NAMESPACES}/{TEACHING}") is None, "the namespace is gone", within_s=RUN_S)


def test_a_namespace_at_its_quota_waits_with_the_numbers_until_it_grows_and_others_go_on(quota: Quota) -> None:
    api = quota.cluster.api
    quota.set(1)
    first, second = Pod("first", templates={"gpus": "one"}), Pod("second", templates={"gpus": "one"})
    create_pod(api, first)
    wait_phase(api, first, "Running")
    create_pod(api, second)
    wait_event(api, second, "WaitingForGPUs", f"namespace {NAMESPACE} may have 1 GPUs, holds 1, the pod wants 1")

    elsewhere = f"/api/v1/namespaces/{TEACHING}/pods"
    api.create(elsewhere, first.document())
    eventually(
        lambda: api.get(f"{elsewhere}/first")["status"].get("phase") == "Running",
        "a pod of a namespace without a quota runs",
        within_s=RUN_S,
    )
    assert api.get(second.path)["status"]["phase"] == "Pending"
    api.delete(f"{elsewhere}/first", grace_s=0)

    quota.set(2)
    wait_phase(api, second, "Running")
    quota.set(0)
    assert api.get(first.path)["status"]["phase"] == "Running", "nobody who runs is evicted"
    delete_gpu_pod(quota.cluster, first)
    delete_gpu_pod(quota.cluster, second)
