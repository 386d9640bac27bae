"""What each pod has, after gpu-manager's /usage: JSON, made in turns, so that no other thread waits for all of it."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dracaena.api.resource_objects import DeviceResult, ResourceClaim
from dracaena.controller.views.names import Sight
from dracaena.controller.views.snapshot import ClusterSnapshot

MOST_USAGE_DEVICES: Final = 2_000
"""Devices of one answer: some 250 KiB."""

STEPS_A_TURN: Final = 250
"""Claims, their pods and their devices between two turns: each takes a few µs, so a turn takes about a millisecond."""

_PodKey = tuple[str, str, str]
"""Namespace, name and UID of a pod."""


class _Chosen:
    """The pods of one answer: the first after a key, as many as could each have a device."""

    def __init__(self, after: str) -> None:
        self._behind = _pod_key(after)
        self.claims_of: dict[_PodKey, list[ResourceClaim]] = {}
        """Of all pods after the key."""
        self.first: list[_PodKey] = []

    def add(self, key: _PodKey, claim: ResourceClaim) -> None:
        if key <= self._behind:
            return
        known = self.claims_of.get(key)
        if known is not None:
            known.append(claim)
            return
        self.claims_of[key] = [claim]
        if len(self.first) < MOST_USAGE_DEVICES or key < self.first[-1]:
            insort(self.first, key)
            del self.first[MOST_USAGE_DEVICES:]


def namespaces_in_turns(snapshot: ClusterSnapshot) -> Iterator[frozenset[str] | None]:
    """Yield None after each turn, and finally the namespaces of all allocated claims."""
    found = set()
    for count, claim in enumerate(snapshot.claims, start=1):
        if claim.status.allocation is not None:
            found.add(claim.metadata.namespace)
        if count % STEPS_A_TURN == 0:
            yield None
    yield frozenset(found)


def usage_in_turns(
    snapshot: ClusterSnapshot, sight: Sight, *, after: str = "", more: Mapping[str, Any] | None = None
) -> Iterator[bytes | None]:
    """Yield None after each turn, and finally the JSON of what each pod has, followed by `more`. Pods that may not be
    seen are only counted.

    It has MOST_USAGE_DEVICES devices at most, or one pod. `left` is how many pods come after them, and `next` the
    `after` that returns these.
    """
    chosen = _Chosen(after)
    hidden: set[str] = set()
    hidden_devices = steps = 0
    for claim in snapshot.claims:
        ours = len(_devices(snapshot.driver, claim))
        users = [user for user in claim.status.reserved_for if user.resource == "pods"] if ours else ()
        if not sight(claim.metadata.namespace):
            hidden.update(user.uid for user in users)
            hidden_devices += ours
        else:
            for user in users:
                chosen.add((claim.metadata.namespace, user.name, user.uid), claim)
        steps += 1 + ours + len(users)
        if steps >= STEPS_A_TURN:
            steps = 0
            yield None
    pods: list[str] = []
    shown = 0
    for part in _used_in_turns(snapshot.driver, chosen):
        pods.append(json.dumps(part)[1:-1])  # no other thread runs within this call
        shown += len(part)
        yield None
    left = len(chosen.claims_of) - shown
    rest = {
        "left": left,
        "next": "/".join(chosen.first[shown - 1]) if left else None,
        "hidden": {"pods": len(hidden), "devices": hidden_devices},
        **(more or {}),
    }
    while chosen.claims_of:  # freed in one go, 40,000 of them would hold up all other threads for 10 ms
        for _ in range(min(STEPS_A_TURN, len(chosen.claims_of))):
            chosen.claims_of.popitem()
        yield None
    yield f'{{"pods": [{", ".join(pods)}], {json.dumps(rest)[1:]}\n'.encode()


def _used_in_turns(driver: str, chosen: _Chosen) -> Iterator[list[dict[str, Any]]]:
    """Yield some pods in each turn."""
    turn: list[dict[str, Any]] = []
    room, steps = MOST_USAGE_DEVICES, 0
    for place, key in enumerate(chosen.first):
        devices = [
            {"claim": claim.metadata.name, "pool": one.pool, "device": one.device}
            for claim in chosen.claims_of[key]
            for one in _devices(driver, claim)
        ]
        room -= len(devices)
        if room < 0 and place:
            break
        namespace, name, uid = key
        turn.append({"namespace": namespace, "pod": name, "uid": uid, "devices": sorted(devices, key=str)})
        steps += 1 + len(devices)
        if steps >= STEPS_A_TURN:
            yield turn
            turn, steps = [], 0
    if turn:
        yield turn


def _devices(driver: str, claim: ResourceClaim) -> list[DeviceResult]:
    allocation = claim.status.allocation
    results = () if allocation is None else allocation.devices.results
    return [one for one in results if one.driver == driver and not one.admin_access]


def _pod_key(text: str) -> _PodKey:
    namespace, _, rest = text.partition("/")
    name, _, uid = rest.partition("/")
    return namespace, name, uid
