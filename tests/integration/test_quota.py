"""A quota on the embedded cluster, with the real programs: a pod beyond it waits, and says why."""

from __future__ import annotations

import json

from dracaena.api.names import DEFAULT_DRIVER_NAME, quota_annotation
from dracaena.api.objects import Pod
from dracaena.demo.cluster import DemoCluster
from dracaena.demo.objects import NamespaceDocument
from dracaena.kube.events import Event
from support.embedded_cluster import TWO_NODES, wait_settled
from support.forked_programs import begin_forked
from support.workload import NAMESPACE, create_class, create_pod, create_template


def set_quota(cluster: DemoCluster, text: str) -> None:
    annotations = {quota_annotation(DEFAULT_DRIVER_NAME): text}
    cluster.client.merge_patch(NamespaceDocument, NAMESPACE, {"metadata": {"annotations": annotations}})


def wait_told(cluster: DemoCluster, namespace: str, words: str) -> None:
    def missing() -> str | None:
        told = [item.message for item in cluster.client.list(Event, namespace=namespace).items]
        return None if any(words in text for text in told) else f"Events say {told}"

    cluster.wait(f"an Event with {words!r}", missing, 40.0)


def test_a_pod_beyond_the_quota_waits_until_the_quota_grows_or_something_is_let_go() -> None:
    with DemoCluster(TWO_NODES, begin=begin_forked) as cluster:
        create_class(cluster.client)
        for count in (1, 2):
            create_template(cluster.client, f"gpus-{count}", count)
        set_quota(cluster, json.dumps({"gpus": 2}))
        create_pod(cluster.client, "first", template="gpus-2")
        wait_settled(cluster, pods=1)
        create_pod(cluster.client, "second", template="gpus-1")
        wait_told(cluster, NAMESPACE, f"namespace {NAMESPACE} may have 2 GPUs, holds 2, the pod wants 1")
        wait_settled(cluster, waiting=("second",), pods=2)
        set_quota(cluster, "{gpus: 3}")
        wait_told(cluster, "default", "cannot be read; the last valid quota stays in force. not JSON")
        wait_settled(cluster, waiting=("second",), pods=2)
        set_quota(cluster, json.dumps({"gpus": 3}))
        wait_settled(cluster, pods=2)
        create_pod(cluster.client, "third", template="gpus-2")
        wait_told(cluster, NAMESPACE, f"namespace {NAMESPACE} may have 3 GPUs, holds 3, the pod wants 2")
        cluster.client.delete(Pod, "first", namespace=NAMESPACE)
        wait_settled(cluster, pods=2)
