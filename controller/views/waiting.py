"""Who waits and why, a row for each workload: 69 pods of one Deployment wait for one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.explanation import Reason, Reasons, Unsatisfied
from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.snapshot import WaitingPod
from dracaena.controller.views.workloads import Workload, workload_of

MOST_GROUPS: Final = 200
"""Of one answer: those with the most pods."""

MOST_PODS: Final = 20
"""Named of one group, those that wait longest."""

MOST_REQUESTS: Final = 8
"""Named of what a pod asks for."""

MOST_OBSTACLES: Final = 20
"""Of one pod, those of the most nodes; a cluster with more has a taint of its own on each of many nodes."""

PodOf = Callable[[str], Pod | None]
ClaimOf = Callable[[str], ResourceClaim | None]

_Key = tuple[str, Workload, str]
"""Namespace, workload and reason."""


def waiting(pods: Sequence[WaitingPod], sight: Sight, now_s: float, pod_of: PodOf, claim_of: ClaimOf) -> dict[str, Any]:
    """Return the JSON form; docs/page.md promises it. `pods`: longest wait first. `now_s`: steady time. Pods that may
    not be seen are only counted. Cost: O(pods)."""
    groups: dict[_Key, list[WaitingPod]] = {}
    for pod in pods:
        if sight(pod.namespace):
            whose = workload_of(pod_of(f"{pod.namespace}/{pod.name}"), pod.name)
            groups.setdefault((pod.namespace, whose, pod.reason), []).append(pod)
    most = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0].since_s, item[0]))
    return {
        "total": len(pods),
        "hidden": len(pods) - sum(map(len, groups.values())),
        "reasons": reasons(pods),
        "groups": [_group(key, some, now_s, pod_of, claim_of) for key, some in most[:MOST_GROUPS]],
        "more": max(len(groups) - MOST_GROUPS, 0),
    }


def reasons(pods: Iterable[WaitingPod]) -> dict[str, int]:
    """Return how many pods wait for each reason, one word as in the metrics."""
    return dict(sorted(Counter(pod.reason for pod in pods).items()))


def waited_s(pod: WaitingPod, now_s: float) -> int:
    """Return for how many seconds a pod has waited. `now_s`: steady time."""
    return int(max(now_s - pod.since_s, 0.0))


def _group(key: _Key, pods: Sequence[WaitingPod], now_s: float, pod_of: PodOf, claim_of: ClaimOf) -> Mapping[str, Any]:
    namespace, whose, reason = key
    first = pods[0]
    return {
        "namespace": namespace,
        "kind": shown_text(whose.kind),
        "name": shown_text(whose.name),
        "pods": len(pods),
        "ask": shown_text(asked_for(pod_of(f"{namespace}/{first.name}"), claim_of)),
        "reason": reason,
        **why_and_help(next((pod.why for pod in pods if pod.why), None)),
        "oldestSeconds": waited_s(first, now_s),
        "newestSeconds": waited_s(pods[-1], now_s),
        "first": [pod.name for pod in pods[:MOST_PODS]],
    }


def why_and_help(found: Reasons | None) -> dict[str, Any]:
    """Return why a pod waits, in the words of its Event and as values, and what would help. None: not known yet."""
    found = found or Reasons("")
    about = Unsatisfied(0, ()) if isinstance(found.why, str) else found.why
    remarks = (*filter(None, (about.never,)), *about.unknown, *about.notes)
    return {
        "why": shown_text(found.text),
        "help": [*map(shown_text, found.remedies)],
        "nodes": about.nodes,
        "obstacles": [_obstacle(reason) for reason in about.reasons[:MOST_OBSTACLES]],
        "moreObstacles": max(len(about.reasons) - MOST_OBSTACLES, 0),
        "remarks": [*map(shown_text, remarks[:MOST_OBSTACLES])],
    }


def _obstacle(reason: Reason) -> dict[str, Any]:
    return {
        "text": shown_text(reason.text),
        "nodes": reason.count,
        "lasting": reason.lasting,
        "examples": [*reason.nodes],
    }


def asked_for(pod: Pod | None, claim_of: ClaimOf) -> str:
    """Return what the claims of a pod ask for, `4 × gpu.dracaena.dev`; empty if nothing is known. The rules are not
    asked (allocation.legal): a request that they refuse is shown as it is written."""
    named = [] if pod is None else pod_claims(pod)
    claims = [claim_of(one.key) for one in named[:MOST_REQUESTS] if one.key is not None]
    counts: Counter[str] = Counter()
    for claim in claims:
        for name, count in _requests(claim):
            counts[name] += count
    return ", ".join(f"{count} × {name}" if count else f"all of {name}" for name, count in counts.items())


def _requests(claim: ResourceClaim | None) -> Iterator[tuple[str, int]]:
    """Yield the class and the count of each request, 0 for all devices; of the first alternative if it has some."""
    requests = _member({} if claim is None else claim.spec, "devices", "requests")
    for request in requests[:MOST_REQUESTS] if isinstance(requests, list) else ():
        alternatives = _member(request, "firstAvailable")
        first = alternatives[0] if isinstance(alternatives, list) and alternatives else None
        wanted = _member(request, "exactly") if first is None else first
        name, count = _member(wanted, "deviceClassName"), _member(wanted, "count")
        if isinstance(name, str):
            number = count if isinstance(count, int) else 1
            yield (
                f"{name} or another" if first is not None else name,
                (0 if _member(wanted, "allocationMode") == "All" else number),
            )


def _member(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
