"""Who holds how much, and how much they may: one entry for each namespace that holds GPUs or has a quota."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from dracaena.api.gpu_quota import (
    GPUS,
    GPUS_BY_PRODUCT,
    MIG_SLICES,
    SHARE_MEMORY,
    Amounts,
    QuotaItem,
    QuotaProblem,
    read_leniently,
)
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.node_line import GIB
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.controller.views.workloads import Workload, workload_of

MOST_TEAMS: Final = 1_000
"""Of one answer, those that hold the most GPUs: 200 KB."""

MOST_LIMITS: Final = 20
"""Of one team: those on everything, then the ones of a product or profile that are most used up."""

MOST_WORKLOADS: Final = 30
"""Of one team."""

PodOf = Callable[[str], Pod | None]
"""Returns a pod by `namespace/name`."""


def teams(snapshot: ClusterSnapshot, sight: Sight) -> dict[str, Any]:
    """Return the JSON form; docs/page.md promises it. Cost: O(nodes + namespaces), and a
    step for each namespace of each node."""
    found = {name: _team(name) for name in team_names(snapshot)}
    _count_nodes(snapshot, found)
    for pod in snapshot.waiting or ():
        if pod.namespace in found:
            found[pod.namespace]["waiting"] += 1
    seen = sorted((team for name, team in found.items() if sight(name)), key=_most_first)
    hidden = [team for name, team in found.items() if not sight(name)]
    return {
        "teams": seen[:MOST_TEAMS],
        "more": max(len(seen) - MOST_TEAMS, 0),
        "hidden": {"namespaces": len(hidden), "gpus": sum(team["holds"]["gpus"] for team in hidden)},
    }


def team_names(snapshot: ClusterSnapshot) -> Sequence[str]:
    """Return the namespaces that hold GPUs or have a quota, by name."""
    holding = {namespace for line in snapshot.lines for namespace in line.holds}
    annotation = quota_annotation(snapshot.driver)
    return sorted(
        holding | {one.metadata.name for one in snapshot.namespaces if annotation in one.metadata.annotations}
    )


def team(snapshot: ClusterSnapshot, namespace: str, pod_of: PodOf) -> dict[str, Any] | None:
    """Return the JSON form of one team with its workloads, those with the most GPUs first; None if there is no such
    team. Cost: O(nodes + claims)."""
    if namespace not in team_names(snapshot):
        return None
    found = _team(namespace)
    _count_nodes(snapshot, {namespace: found})
    found["waiting"] = sum(pod.namespace == namespace for pod in snapshot.waiting or ())
    claims = (claim for claim in snapshot.claims if claim.metadata.namespace == namespace)
    return {**found, "workloads": _workloads(snapshot.driver, claims, pod_of)}


def _team(name: str) -> dict[str, Any]:
    return {"namespace": name, "nodes": 0, "waiting": 0}


def _count_nodes(snapshot: ClusterSnapshot, found: Mapping[str, dict[str, Any]]) -> None:
    held: dict[str, Counter[QuotaItem]] = {name: Counter() for name in found}
    for line in snapshot.lines:
        for name, amounts in line.holds.items():
            if name in found:
                found[name]["nodes"] += 1
                held[name].update(amounts)
    quotas = _quotas(snapshot)
    for name, entry in found.items():
        amounts = held[name]
        entry["holds"] = {
            "gpus": amounts[QuotaItem(GPUS)],
            "migSlices": amounts[QuotaItem(MIG_SLICES)],
            "shareMemoryGiB": amounts[QuotaItem(SHARE_MEMORY)] // GIB,
        }
        entry["products"] = [
            [shown_text(one.name), count] for one, count in amounts.most_common() if one.key == GPUS_BY_PRODUCT
        ]
        entry.update(_quota(quotas.get(name, "{}"), amounts))


def _quotas(snapshot: ClusterSnapshot) -> Mapping[str, str]:
    annotation = quota_annotation(snapshot.driver)
    texts = ((one.metadata.name, one.metadata.annotations.get(annotation)) for one in snapshot.namespaces)
    return {name: text for name, text in texts if text is not None}


def _quota(text: str, held: Amounts) -> Mapping[str, Any]:
    """Return the limits of a quota as `dracaena status -o json` has them, the fullest first. Limits on everything, four
    at most, come before those on one product or profile."""
    limits, problems = _read(text)
    shown = sorted(limits.items(), key=lambda item: _fullest_first(item, held))
    return {
        "limits": [
            {"counted": one.key, "name": shown_text(one.name), "limit": limit, "held": held.get(one, 0)}
            for one, limit in shown[:MOST_LIMITS]
        ],
        "moreLimits": max(len(shown) - MOST_LIMITS, 0),
        "problem": shown_text("; ".join(map(str, problems))),
    }


def _fullest_first(item: tuple[QuotaItem, int], held: Amounts) -> tuple[bool, float, QuotaItem]:
    one, limit = item
    return bool(one.name), -(held.get(one, 0) / limit if limit else math.inf), one


@lru_cache(1_024)
def _read(text: str) -> tuple[Amounts, tuple[QuotaProblem, ...]]:
    return read_leniently(text)


def _workloads(driver: str, claims: Iterable[ResourceClaim], pod_of: PodOf) -> list[dict[str, Any]]:
    gpus: Counter[Workload] = Counter()
    pods: dict[Workload, set[str]] = {}
    for claim in claims:
        allocation = claim.status.allocation
        results = () if allocation is None else allocation.devices.results
        devices = sum(one.driver == driver and not one.admin_access for one in results)
        users = [user.name for user in claim.status.reserved_for if user.resource == "pods"]
        if not devices or not users:
            continue
        whose = workload_of(pod_of(f"{claim.metadata.namespace}/{users[0]}"), users[0])
        gpus[whose] += devices
        pods.setdefault(whose, set()).update(users)
    return [
        {"kind": one.kind, "name": one.name, "pods": len(pods[one]), "first": min(pods[one]), "devices": count}
        for one, count in sorted(gpus.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORKLOADS]
    ]


def _most_first(entry: Mapping[str, Any]) -> tuple[int, str]:
    return (-entry["holds"]["gpus"], entry["namespace"])
