"""What `dracaena explain` has found out about a pod or a claim, as text and as JSON. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dracaena.cli.columns import wrapped

if TYPE_CHECKING:
    from dracaena.api.decision import Decision


@dataclass(frozen=True, slots=True)
class LastEvent:
    """An Event of the controller."""

    reason: str
    message: str
    warning: bool
    count: int
    last: str
    """When it was last reported, as the API writes it."""


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """What is known about one claim."""

    name: str
    """`namespace/name`; for a claim that does not exist yet, the pod's name for it."""
    state: str
    """`allocated`, `waiting`, `deleting` or `missing`."""
    devices: tuple[str, ...] = ()
    """`pool/device` of our driver."""
    other_devices: tuple[str, ...] = ()
    """`driver/pool/device` of other drivers."""
    users: tuple[str, ...] = ()
    """Names of the pods that it is reserved for."""
    decision: Decision | None = None
    reasons: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    """The GPUs that are cut on demand, of which it has parts; only in text."""


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What is known about one pod."""

    name: str
    state: str
    """`running`, `ended`, `deleting`, `bound`, `allocated`, `waiting` or `no-claims`."""
    node: str
    claims: tuple[ClaimAnswer, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """What is known about the pods of a workload."""

    kind: str
    name: str
    count: int
    """Number of its pods, of which `pods` may be fewer."""
    pods: tuple[PodAnswer, ...]


def workload_lines(workload: WorkloadAnswer, *, wide: bool = False) -> Iterator[str]:
    """Yield how many of a workload's pods wait, and everything about each that was looked at."""
    waiting = sum(pod.state == "waiting" for pod in workload.pods)
    looked = len(workload.pods)
    of_these = "" if looked == workload.count else f" of the {looked} that were looked at"
    yield f"{workload.kind} {workload.name} has {workload.count} pod{'' if workload.count == 1 else 's'}"
    yield f"  {waiting or 'none'}{of_these} {'waits' if waiting == 1 else 'wait'}"
    for pod in workload.pods:
        yield ""
        yield from pod_lines(pod, wide=wide)


def workload_document(workload: WorkloadAnswer) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    return {
        "kind": workload.kind,
        "name": workload.name,
        "podCount": workload.count,
        "pods": [pod_document(pod) for pod in workload.pods],
    }


def pod_lines(pod: PodAnswer, *, claims: bool = True, wide: bool = False) -> Iterator[str]:
    """Yield everything about one pod; `claims` adds its claims, `wide` all parts of their scores."""
    from dracaena.api.pod_states import POD_STATES

    where = f" on {pod.node}" if pod.node and pod.state != "no-claims" else ""
    yield f"pod {pod.name} {POD_STATES[pod.state]}{where}"
    for reason in pod.reasons:
        yield from wrapped(reason, first=2, rest=4)
    if claims:
        known: dict[tuple[str, ...], str] = {}
        for claim in pod.claims:
            yield ""
            yield from claim_lines(claim, known, wide=wide)


def claim_lines(claim: ClaimAnswer, known: dict[tuple[str, ...], str], *, wide: bool) -> Iterator[str]:
    """Yield everything about one claim. `known` maps what was said about a decision to the claim that it was about."""
    users = f", reserved for {', '.join(claim.users)}" if claim.users else ""
    count = len(claim.devices) + len(claim.other_devices)
    words = {
        "allocated": f"has {count} device{'' if count == 1 else 's'}{users}",
        "waiting": "has no devices yet",
        "deleting": "is being deleted",
        "missing": "is not there",
    }
    yield f"claim {claim.name} {words[claim.state]}"
    yield from (f"  {line}" for line in (*claim.devices, *claim.other_devices, *claim.drawn))
    for reason in claim.reasons:
        yield from wrapped(reason, first=2, rest=4)
    if claim.decision is not None:
        lines = tuple(_decision_lines(claim.decision, wide=wide))
        first = known.setdefault(lines, claim.name)
        yield from lines if first == claim.name else [f"  decided together with claim {first}"]


def _decision_lines(decision: Decision, *, wide: bool) -> Iterator[str]:
    from dracaena.api.decision import describe, describe_one_gpu

    if decision.pod_devices == 1 and not wide:
        yield from wrapped(describe_one_gpu(decision), first=2, rest=4)
        return
    for part in describe(decision, wide=wide).split("; "):
        yield from wrapped(part, first=2, rest=4)


def pod_document(pod: PodAnswer) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    return {
        "pod": pod.name,
        "state": pod.state,
        "node": pod.node or None,
        "reasons": list(pod.reasons),
        "claims": [claim_document(claim) for claim in pod.claims],
    }


def claim_document(claim: ClaimAnswer) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    from dracaena.api.decision import decision_document

    return {
        "claim": claim.name,
        "state": claim.state,
        "devices": list(claim.devices),
        "otherDevices": list(claim.other_devices),
        "reservedFor": list(claim.users),
        "decision": decision_document(claim.decision) if claim.decision is not None else None,
        "reasons": list(claim.reasons),
    }
