from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.views import usage
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.controller.views.usage import namespaces_in_turns, usage_in_turns
from support.allocation import DRIVER, allocated, claim, holding, pod
from support.seeds import sampled


def everything(namespace: str) -> bool:
    return True


def used(name: str, device: str, *users: Pod, namespace: str = "default") -> ResourceClaim:
    held = holding(claim(name), "n", device)
    assert held.status.allocation is not None
    made = allocated(claim(name), msgspec.to_builtins(held.status.allocation), *users)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, namespace=namespace))


def cluster(*claims: ResourceClaim) -> ClusterSnapshot:
    return ClusterSnapshot(DRIVER, claims=claims)


def last(turns: Iterator[Any]) -> Any:
    *nothing, found = turns
    assert set(nothing) <= {None}
    return found


def document(snapshot: ClusterSnapshot, sight: Callable[[str], bool] = everything, after: str = "") -> Any:
    return json.loads(last(usage_in_turns(snapshot, sight, after=after)))


def slow_document(claims: list[ResourceClaim], sight: Callable[[str], bool], after: str, most: int) -> Any:
    """The same in one go."""
    devices: dict[tuple[str, ...], list[dict[str, str]]] = {}
    hidden_pods, hidden_devices = set(), 0
    for one in claims:
        found = [] if one.status.allocation is None else one.status.allocation.devices.results
        if not sight(one.metadata.namespace):
            hidden_devices += len(found)
        for user in one.status.reserved_for if found else ():
            if sight(one.metadata.namespace):
                key = (one.metadata.namespace, user.name, user.uid)
                told = [{"claim": one.metadata.name, "pool": each.pool, "device": each.device} for each in found]
                devices.setdefault(key, []).extend(told)
            else:
                hidden_pods.add(user.uid)
    behind = tuple([*after.split("/", 2), "", ""][:3])
    keys = sorted(key for key in devices if key > behind)
    shown = keys[:1]
    while len(shown) < len(keys) and sum(len(devices[key]) for key in keys[: len(shown) + 1]) <= most:
        shown = keys[: len(shown) + 1]
    return {
        "pods": [
            {"namespace": key[0], "pod": key[1], "uid": key[2], "devices": sorted(devices[key], key=str)}
            for key in shown
        ],
        "left": len(keys) - len(shown),
        "next": "/".join(shown[-1]) if len(shown) < len(keys) else None,
        "hidden": {"pods": len(hidden_pods), "devices": hidden_devices},
    }


def test_each_pod_is_named_once_with_all_that_it_has() -> None:
    both = pod("a")
    found = document(cluster(used("c", "gpu-1", both), used("d", "gpu-2", both, pod("b")), claim("e")))
    assert [(one["namespace"], one["pod"], len(one["devices"])) for one in found["pods"]] == [
        ("default", "a", 2),
        ("default", "b", 1),
    ]
    assert found["hidden"] == {"pods": 0, "devices": 0}


def test_of_pods_that_may_not_be_seen_the_number_is_reported_alone() -> None:
    snapshot = cluster(used("secret-claim", "gpu-1", pod("secret-pod")))
    found = document(snapshot, lambda namespace: False)
    assert found == {"pods": [], "left": 0, "next": None, "hidden": {"pods": 1, "devices": 1}}


def test_the_caller_adds_what_it_knows() -> None:
    assert json.loads(last(usage_in_turns(cluster(), everything, more={"unasked": 3})))["unasked"] == 3


@pytest.mark.parametrize("seed", sampled(range(400), 25, 100))
def test_it_says_what_a_slow_version_says_page_by_page(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    most = rng.randint(1, 6)
    monkeypatch.setattr(usage, "MOST_USAGE_DEVICES", most)
    monkeypatch.setattr(usage, "STEPS_A_TURN", rng.randint(1, 9))
    pods = [pod(f'p"{number}') for number in range(rng.randint(1, 8))]
    claims = []
    for number in range(rng.randint(0, 20)):
        users = rng.sample(pods, rng.randint(0, min(3, len(pods))))
        made = used(f"c{number}", f"gpu-{number}", *users, namespace=rng.choice("abc"))
        claims.append(made if rng.random() < 0.8 else claim(f"c{number}"))
    seen = frozenset(rng.sample("abc", rng.randint(0, 3)))
    snapshot, after = cluster(*claims), ""
    while True:
        found = document(snapshot, seen.__contains__, after)
        assert found == slow_document(claims, seen.__contains__, after, most)
        if found["next"] is None:
            break
        after = found["next"]
    allocated_in = {one.metadata.namespace for one in claims if one.status.allocation is not None}
    assert last(namespaces_in_turns(snapshot)) == allocated_in


def longest_turn(turns: Iterator[Any]) -> int:
    """Return how many lines of Python the longest turn runs: time would depend on the machine."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    longest, found = 0, None
    before = sys.gettrace()
    while found is None:
        lines = 0
        sys.settrace(count)
        try:
            found = next(turns)
        finally:
            sys.settrace(before)
        longest = max(longest, lines)
    return longest


MOST_LINES = 7_000
"""A line takes some 0.1 µs: far below 5 ms, after which Python lets another thread run that waits."""


def busy_cluster(claims: int, *, users: int = 1) -> ClusterSnapshot:
    """One in an order that is the worst for what is kept sorted."""
    pods = [[pod(f"p{number:06}-{user}") for user in range(users)] for number in range(claims)]
    return cluster(*(used(f"c{number}", f"gpu-{number}", *pods[number]) for number in reversed(range(claims))))


def test_what_was_kept_of_each_pod_is_freed_in_turns_too() -> None:
    turns = usage_in_turns(busy_cluster(1_000), everything)
    kept = [len(turns.gi_frame.f_locals["chosen"].claims_of) for found in turns if found is None]  # type: ignore[attr-defined]
    assert max(kept) == 1_000
    assert kept[-1] == 0
    assert max(before - after for before, after in pairwise(kept)) <= usage.STEPS_A_TURN


def test_no_turn_is_longer_where_the_cluster_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = busy_cluster(1_000), busy_cluster(5_000)
    for turns in (lambda one: usage_in_turns(one, everything), namespaces_in_turns):
        assert longest_turn(turns(large)) <= 1.1 * longest_turn(turns(small)) < MOST_LINES
    assert longest_turn(usage_in_turns(busy_cluster(300, users=50), everything)) < MOST_LINES
    monkeypatch.setattr(usage, "STEPS_A_TURN", 1 << 30)
    assert longest_turn(usage_in_turns(large, everything)) > 5 * MOST_LINES, "what is worked out in one go is found"
