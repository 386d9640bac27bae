"""How many pods each replica set of a deployment gets next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dracaena.demo.objects import ReplicaSetDocument


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a deployment wants: its number of pods, and how many more or fewer there may be during a rollout."""

    replicas: int
    surge: int
    unavailable: int
    recreates: bool

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Rollout:
        """Read a deployment's spec. Percentages of the pods are rounded up for surge, down for unavailable."""
        replicas: int = spec.get("replicas", 0)
        steps = spec["strategy"].get("rollingUpdate")
        if steps is None:
            return cls(replicas, 0, 0, recreates=True)
        surge = _amount(steps["maxSurge"], replicas, rounded_up=True)
        unavailable = _amount(steps["maxUnavailable"], replicas, rounded_up=False)
        return cls(replicas, surge, unavailable if surge or unavailable else 1, recreates=False)


def _amount(value: int | str, replicas: int, *, rounded_up: bool) -> int:
    if isinstance(value, int):
        return value
    hundredths = int(value.removesuffix("%")) * replicas
    return -(-hundredths // 100) if rounded_up else hundredths // 100


def next_sizes(rollout: Rollout, new: ReplicaSetDocument, old: Sequence[ReplicaSetDocument]) -> dict[str, int]:
    """Return the number of pods of each replica set, by its UID.

    There are never more pods than replicas and surge together, and we never bring the available ones below replicas
    minus those that may be unavailable. A deployment that recreates waits until all old pods are gone.
    """
    if rollout.recreates:
        is_left = any(one.status.get("replicas") or one.status.get("terminatingReplicas") for one in old)
        is_left = is_left or any(one.spec.get("replicas") for one in old)
        sizes = {one.metadata.uid: 0 for one in old}
        return sizes | {new.metadata.uid: new.spec.get("replicas", 0) if is_left else rollout.replicas}
    sizes = {one.metadata.uid: one.spec.get("replicas", 0) for one in (*old, new)}
    total, mine = sum(sizes.values()), new.metadata.uid
    room = max(0, rollout.replicas + rollout.surge - total)
    grown = min(rollout.replicas, sizes[mine] + room)
    least = rollout.replicas - rollout.unavailable
    # Pods of the new template that do not run yet will be available: they must not be counted as spare.
    coming = max(0, sizes[mine] - new.status.get("availableReplicas", 0))
    spare = total - least - coming
    for one in old:
        uid = one.metadata.uid
        broken = min(sizes[uid], max(0, sizes[uid] - one.status.get("availableReplicas", 0)), max(0, spare))
        sizes[uid] -= broken
        spare -= broken
    available = sum(one.status.get("availableReplicas", 0) for one in (*old, new))
    spare = min(spare, available - least)
    for one in old:
        uid = one.metadata.uid
        taken = min(sizes[uid], max(0, spare))
        sizes[uid] -= taken
        spare -= taken
    return sizes | {mine: grown}
