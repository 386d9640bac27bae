"""Leases and Events."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import EVENTS, LEASES, event, lease
from transcripts.session import Session

PATH = f"{LEASES}/leader"
EARLY = "2026-01-01T00:00:00.000000Z"
LATE = "2026-01-01T00:00:15.000000Z"


def leader_election(api: Session) -> None:
    """Taking a lease, renewing it, losing it."""
    made = api.create("the first takes it", LEASES, _held("a", EARLY))
    made["spec"]["renewTime"] = LATE
    api.replace("renewed", PATH, made)
    api.replace("renewed with the version from before", PATH, made)
    api.merge("another takes it without a guard", PATH, {"spec": {"holderIdentity": "b", "leaseTransitions": 1}})
    api.replace("a PUT without a version", PATH, _held("c", LATE))
    api.create("a lease of no duration", LEASES, lease("none", leaseDurationSeconds=0, leaseTransitions=-1))
    api.create("a time in whole seconds", LEASES, lease("whole", renewTime="2026-01-01T00:00:00Z"))
    api.create("a time that is none", LEASES, lease("no-time", renewTime="yesterday"))


def events(api: Session) -> None:
    """An Event is counted up by a patch."""
    seen: dict[str, Any] = {
        "reason": "Allocated",
        "message": "4 GPUs of one NVLink group",
        "type": "Normal",
        "count": 1,
        "source": {"component": "dracaena"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    api.create("an event", EVENTS, event("pod-a.1", **seen))
    again = {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"}
    api.strategic("seen again", f"{EVENTS}/pod-a.1", again)
    api.merge("and again", f"{EVENTS}/pod-a.1", again | {"count": 3})
    elsewhere = event("pod-a.2") | {"involvedObject": {"namespace": "other"}}
    api.create("about an object elsewhere", EVENTS, elsewhere)
    by = "involvedObject.name=pod-a,involvedObject.kind=Pod,source=dracaena,reason=Allocated,type=Normal"
    api.get("by what they are about", EVENTS, fieldSelector=by)
    api.delete("its deletion", f"{EVENTS}/pod-a.1")


def _held(holder: str, renewed: str) -> dict[str, Any]:
    return lease(
        "leader",
        holderIdentity=holder,
        leaseDurationSeconds=15,
        acquireTime=EARLY,
        renewTime=renewed,
        leaseTransitions=0,
    )
