from __future__ import annotations

import msgspec

from dracaena.api.names import devices_annotation, uuids_annotation
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.pods.transform import kept_pod
from support.plugin import DRIVER, make_pod


def test_what_is_read_of_a_pod_stays_and_what_anybody_may_write_goes() -> None:
    pod = make_pod("p", {"main": [("gpus", "")]}, claims={"gpus": "claim"})
    document = msgspec.to_builtins(pod)
    ours = {devices_annotation(DRIVER): "d", uuids_annotation(DRIVER): "u"}
    document["metadata"] |= {"labels": {"a": "b"}, "annotations": {**ours, "note": "x" * 100_000}}
    document["spec"]["affinity"] = {"podAffinity": {"wide": ["x"] * 1_000}}
    document["status"]["conditions"] = [{"type": "Ready", "message": "x" * 1_000}]
    kept = kept_pod(DRIVER)(msgspec.convert(document, Pod))
    assert len(msgspec.json.encode(kept)) < 1_000
    assert kept.metadata.annotations == ours
    assert (kept.key, kept.metadata.uid) == (pod.key, pod.metadata.uid)
    assert kept.spec.resource_claims == pod.spec.resource_claims
    assert kept.spec.containers == pod.spec.containers
    assert (kept.spec.node_name, kept.status.phase) == (pod.spec.node_name, pod.status.phase)
