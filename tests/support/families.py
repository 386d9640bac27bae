"""Pods that name a family, as their controllers write it."""

from __future__ import annotations

from typing import Any

import msgspec

from dracaena.api.objects import Pod

INDEX = {"batch.kubernetes.io/job-completion-index": "0"}
JOB = {"batch.kubernetes.io/controller-uid": "j", **INDEX}
JOB_SET = {"jobset.sigs.k8s.io/jobset-uid": "s"}
GROUP = {"leaderworkerset.sigs.k8s.io/group-key": "g"}
SIZE = "leaderworkerset.sigs.k8s.io/size"


def owner(kind: str, api_version: str = "apps/v1", *, controller: bool = True, uid: str = "o") -> dict[str, Any]:
    return {"uid": uid, "kind": kind, "apiVersion": api_version, "controller": controller, "name": "o"}


def in_family(
    labels: dict[str, str] | None = None,
    *owners: dict[str, Any],
    group: str = "",
    annotations: dict[str, str] | None = None,
    name: str = "p",
) -> Pod:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": name,
        "labels": labels or {},
        "annotations": annotations or {},
        "ownerReferences": list(owners),
    }
    spec: dict[str, Any] = {"resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}]}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)
