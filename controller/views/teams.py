"""Who holds how much, and how much they may: one entry for each namespace that holds GPUs or has a quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from dracaena.api.gpu_quota import GPUS, MIG_SLICES, SHARE_MEMORY, Amounts, QuotaItem, read_leniently
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.node_line import GIB, NodeLine
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.controller.views.workloads import Workload, workload_of

MOST_TEAMS: Final = 1_000
"""Of one answer, those that hold the most GPUs: 200 KB."""

MOST_WORKLOADS: Final = 30
"""Of one team."""

PodOf = Callable[[str], Pod | None]
"""Returns a pod by `namespace/name`."""


def teams(snapshot: ClusterSnapshot, sight: Sight) -> dict[str, Any]:
    """Return the JSON form; docs/page.md promises it. Cost: O(nodes), and a step for each namespace of each."""
    found = {name: _team(name, snapshot) for name in team_names(snapshot)}
    _count_nodes(snapshot.lines, found)
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
    found = _team(namespace, snapshot)
    _count_nodes(snapshot.lines, {namespace: found})
    found["waiting"] = sum(pod.namespace == namespace for pod in snapshot.waiting or ())
    claims = (claim for claim in snapshot.claims if claim.metadata.namespace == namespace)
    return {**found, "workloads": _workloads(snapshot.driver, claims, pod_of)}


def _team(name: str, snapshot: ClusterSnapshot) -> dict[str, Any]:
    holds = {"gpus": 0, "migSlices": 0, "shareMemoryGiB": 0}
    limits = _shown_limits(_limits(snapshot, name))
    return {"namespace": name, "holds": holds, "limits": limits, "nodes": 0, "waiting": 0, "products": []}


def _count_nodes(lines: Iterable[NodeLine], found: Mapping[str, dict[str, Any]]) -> None:
    products: dict[str, Counter[str]] = {name: Counter() for name in found}
    share_bytes: Counter[str] = Counter()
    for line in lines:
        for name, amounts in line.holds.items():
            if name not in found:
                continue
            found[name]["nodes"] += 1
            found[name]["holds"]["gpus"] += amounts.gpus
            found[name]["holds"]["migSlices"] += amounts.mig_slices
            share_bytes[name] += amounts.share_bytes
            if amounts.gpus:
                products[name][line.product] += amounts.gpus
    for name, entry in found.items():
        entry["holds"]["shareMemoryGiB"] = share_bytes[name] // GIB
        entry["products"] = [[shown_text(product), gpus] for product, gpus in products[name].most_common()]


def _limits(snapshot: ClusterSnapshot, name: str) -> Amounts:
    annotation = quota_annotation(snapshot.driver)
    namespace = next((one for one in snapshot.namespaces if one.metadata.name == name), None)
    text = None if namespace is None else namespace.metadata.annotations.get(annotation)
    return {} if text is None else _read(text)


@lru_cache(1_024)
def _read(text: str) -> Amounts:
    return read_leniently(text)[0]


def _shown_limits(limits: Amounts) -> dict[str, int]:
    names = {GPUS: "gpus", MIG_SLICES: "migSlices", SHARE_MEMORY: "shareMemoryGiB"}
    found = {}
    for key, name in names.items():
        limit = limits.get(QuotaItem(key))
        if limit is not None:
            found[name] = limit // GIB if key == SHARE_MEMORY else limit
    return found


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
