"""Jobs, as far as the API server makes them what they are; who makes their pods is not there."""

from __future__ import annotations

from transcripts.scenarios.documents import JOBS, job
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
    by_hand = job("by-hand", selector={"matchLabels": {"app": "x"}}, manualSelector=True)
    by_hand["spec"]["template"]["metadata"] = {"labels": {"app": "x"}}
    api.create("a selector of its own", JOBS, by_hand)
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
    api.create("a name that is no DNS label", JOBS, job("a.b"), dryRun="All", fieldManager="x")
    api.create("an unknown field", JOBS, job("j", paralelism=1), fieldValidation="Strict")
    api.create("a job", JOBS, job("j"))
    api.merge("another number of ends", f"{JOBS}/j", {"spec": {"completions": 2}})
