"""Kinds that create pods, as far as the API server makes them; who makes their pods is not there."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS, Document, deployment, job
from transcripts.scenarios.tables import KUBECTL
from transcripts.session import Session


def job_life(api: Session) -> None:
    """A job from its creation to its end: what its controller writes is written here."""
    path = f"{JOBS}/once"
    api.create("a job", JOBS, job("once", ttlSecondsAfterFinished=3600))
    running = {"active": 1, "ready": 0, "terminating": 0, "startTime": "2026-01-01T00:00:00Z"}
    api.merge("its controller has made a pod", f"{path}/status", {"status": running | {"uncountedTerminatedPods": {}}})
    api.merge("a status by the main path", path, {"status": {"active": 7}})
    api.merge("more pods at a time", path, {"spec": {"parallelism": 3, "suspend": True}})
    ended = [{"type": kind, "status": "True", "reason": "CompletionsReached"} for kind in _ENDS]
    done = {"active": 0, "succeeded": 1, "completionTime": "2026-01-01T00:01:05Z", "conditions": ended}
    api.merge("its controller has seen it end", f"{path}/status", {"status": done})
    api.send("as a table", "GET", JOBS, query={"includeObject": "None"}, accept=KUBECTL)
    api.delete("its deletion with its pods", path, propagationPolicy="Background")


_ENDS = ("SuccessCriteriaMet", "Complete")


def job_deletion(api: Session) -> None:
    """A job that is deleted without a word about its pods keeps them: somebody has to let them go first."""
    api.create("a job", JOBS, job("kept"))
    api.delete("its deletion", f"{JOBS}/kept")
    api.send("as a table", "GET", JOBS, query={"includeObject": "None"}, accept=KUBECTL)
    api.merge("its pods are let go", f"{JOBS}/kept", {"metadata": {"finalizers": None}})
    api.create("another", JOBS, job("asked"))
    api.delete("its deletion with a policy in the body", f"{JOBS}/asked", {"propagationPolicy": "Foreground"})
    api.merge("its pods are gone", f"{JOBS}/asked", {"metadata": {"finalizers": None}})


def job_defaults(api: Session) -> None:
    """What a job gets that does not say it."""
    labelled = job("labelled")
    labelled["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    api.create("labels of its pods become its own", JOBS, labelled)
    api.create("its own labels stay", JOBS, job("own", {"labels": {"a": "b"}}))
    api.create("only a number at a time", JOBS, job("queue", parallelism=2))
    api.create("only a number of ends", JOBS, job("three", completions=3, suspend=True))
    api.send("as a table", "GET", JOBS, query={"includeObject": "None"}, accept=KUBECTL)


def job_validation(api: Session) -> None:
    """Jobs that are refused."""
    always = job("j")
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    api.create("pods that never end", JOBS, always)
    api.create("counts below zero", JOBS, job("j", parallelism=-1, completions=-1, backoffLimit=-1))
    claimed = job("j")
    claimed["spec"]["template"]["spec"] |= {"resourceClaims": [{"name": "a"}]}
    claimed["spec"]["template"]["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "b"}]}}]
    api.create("a bad template", JOBS, claimed)
    api.create("a name that is no DNS label", JOBS, job("a.b"))
    api.create("an unknown field", JOBS, job("j", paralelism=1), fieldValidation="Strict")
    api.create("a job", JOBS, job("j"))
    api.merge("another number of ends", f"{JOBS}/j", {"spec": {"completions": 2}})


def deployment_life(api: Session) -> None:
    """A deployment from its creation to its deletion: what its controller writes is written here."""
    path = f"{DEPLOYMENTS}/web"
    api.create("a deployment", DEPLOYMENTS, deployment("web"))
    status = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    condition = {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": "m"}
    api.merge("its controller has made a pod", f"{path}/status", {"status": status | {"conditions": [condition]}})
    ready = {"readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": None}
    api.merge("the pod is ready", f"{path}/status", {"status": ready})
    api.strategic("another condition", f"{path}/status", {"status": {"conditions": [{"type": "X", "status": "True"}]}})
    api.merge("counts that do not fit", f"{path}/status", {"status": {"replicas": 0, "availableReplicas": 2}})
    api.merge("an annotation", path, {"metadata": {"annotations": {"a": "b"}}})
    api.merge("more pods", path, {"spec": {"replicas": 3}})
    api.strategic(
        "another image",
        path,
        {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}}},
    )
    api.merge("another selector", path, {"spec": {"selector": {"matchLabels": {"app": "x"}}}})
    for included in ("None", "Object"):
        api.send("as a table", "GET", DEPLOYMENTS, query={"includeObject": included}, accept=KUBECTL)
    api.delete("its deletion", path)


def scale(api: Session) -> None:
    """How many pods: a door of its own."""
    path = f"{DEPLOYMENTS}/web/scale"
    api.create("a deployment", DEPLOYMENTS, deployment("web"))
    api.get("its scale", path)
    api.merge("more", path, {"spec": {"replicas": 3}})
    api.merge(
        "more than that, from an old version", path, {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 4}}
    )
    api.merge("fewer than none", path, {"spec": {"replicas": -1}})
    api.get("the deployment", f"{DEPLOYMENTS}/web")
    api.merge("of nothing", f"{DEPLOYMENTS}/nothing/scale", {"spec": {"replicas": 3}})


def deployment_validation(api: Session) -> None:
    """Deployments that are refused, and defaults of those that are not."""
    recreated = {"type": "Recreate"}
    api.create("all at once", DEPLOYMENTS, deployment("d", strategy=recreated, replicas=0))
    both = recreated | {"rollingUpdate": {"maxSurge": 1}}
    api.create("both ways at once", DEPLOYMENTS, deployment("d", strategy=both))
    api.create("no selector", DEPLOYMENTS, deployment("d", selector=None))
    api.create("an empty selector", DEPLOYMENTS, deployment("d", selector={}))
    api.create("a selector of other pods", DEPLOYMENTS, deployment("d", selector={"matchLabels": {"app": "x"}}))
    for steps in ({"maxSurge": 0, "maxUnavailable": 0}, {"maxSurge": -1}, {"maxSurge": "x", "maxUnavailable": "101%"}):
        rolling = {"type": "RollingUpdate", "rollingUpdate": steps}
        api.create(f"steps of {steps}", DEPLOYMENTS, deployment("d", strategy=rolling))
    api.create("steps of one pod", DEPLOYMENTS, deployment("steps", strategy={"rollingUpdate": {"maxSurge": 1}}))
    bad = deployment("e", replicas=-1, revisionHistoryLimit=-1, progressDeadlineSeconds=0)
    bad["spec"]["template"]["spec"] = {"restartPolicy": "Never", "containers": []}
    api.create("more than one mistake", DEPLOYMENTS, bad)


def replica_sets(api: Session) -> None:
    """A replica set alone."""
    document = deployment("web") | {"kind": "ReplicaSet"}
    path = f"{REPLICA_SETS}/web"
    api.create("a replica set", REPLICA_SETS, document)
    api.create("one that selects other pods", REPLICA_SETS, deployment("d", selector={}) | {"kind": "ReplicaSet"})
    api.merge("its status", f"{path}/status", {"status": {"replicas": 1, "fullyLabeledReplicas": 1}})
    api.merge("counts that do not fit", f"{path}/status", {"status": {"readyReplicas": 2}})
    api.merge("more pods", path, {"spec": {"replicas": 2}})
    api.send("as a table", "GET", REPLICA_SETS, query={"includeObject": "None"}, accept=KUBECTL)
    api.delete("its deletion", path)


def stateful_sets(api: Session) -> None:
    """A stateful set from its creation to its deletion, and others that are refused."""

    def stateful_set(name: str, **spec: Any) -> Document:
        return deployment(name, **spec) | {"kind": "StatefulSet"}

    path = f"{STATEFUL_SETS}/web"
    api.create("a stateful set", STATEFUL_SETS, stateful_set("web"))
    parallel = stateful_set("p", podManagementPolicy="Parallel", updateStrategy={"type": "OnDelete"}, serviceName="s")
    api.create("all at once", STATEFUL_SETS, parallel)
    api.create("one that selects other pods", STATEFUL_SETS, stateful_set("d", selector={}))
    bad = {"podManagementPolicy": "x", "updateStrategy": {"type": "y"}, "replicas": -1, "revisionHistoryLimit": -1}
    api.create("more than one mistake", STATEFUL_SETS, stateful_set("d", **bad))
    both = {"type": "OnDelete", "rollingUpdate": {"partition": 1}}
    api.create("steps of none", STATEFUL_SETS, stateful_set("d", updateStrategy=both))
    below = {"type": "RollingUpdate", "rollingUpdate": {"partition": -1}}
    api.create("a partition below zero", STATEFUL_SETS, stateful_set("d", updateStrategy=below))
    status = {"observedGeneration": 1, "replicas": 1, "currentReplicas": 1, "currentRevision": "web-a"}
    api.merge("its status", f"{path}/status", {"status": status})
    api.merge("counts that do not fit", f"{path}/status", {"status": {"readyReplicas": 2}})
    api.merge("more pods", path, {"spec": {"replicas": 2}})
    api.get("its scale", f"{path}/scale")
    api.merge("its scale changed", f"{path}/scale", {"spec": {"replicas": 3}})
    api.send("as a table", "GET", STATEFUL_SETS, query={"includeObject": "None"}, accept=KUBECTL)
    api.delete("its deletion", path)
