"""What teams hold and may hold, and which workloads have it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dracaena.api.objects import Namespace, ObjectMeta
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, WaitingPod, Watched
from dracaena.controller.views.teams import MOST_WORKLOADS, team, teams
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice

EIGHT = machine("eight", blocks(8, inside="NV18", outside="SYS"), product_name="H100")
QUOTA = f"{DRIVER}/quota"


def namespace(name: str, quota: str | None = None) -> Namespace:
    return Namespace(ObjectMeta(name, annotations={} if quota is None else {QUOTA: quota}))


def everything(_namespace: str) -> bool:
    return True


def cluster(*namespaces: Namespace, waiting: tuple[WaitingPod, ...] = ()) -> ClusterSnapshot:
    claims = []
    for ordinal, (name, user) in enumerate((("a", "p"), ("b", "p"), ("c", "q"))):
        held = holding(claim(name), "n", device_name(EIGHT, ordinal))
        assert held.status.allocation is not None
        claims.append(allocated(claim(name), msgspec.to_builtins(held.status.allocation), pod(user)))
    watched = Watched([node("n")], [pool_slice("n", EIGHT)], claims, waiting, namespaces=namespaces)
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    return snapshot


def entry(found: dict[str, Any], name: str) -> Any:
    return next(each for each in found["teams"] if each["namespace"] == name)


def test_a_team_is_a_namespace_that_holds_gpus_or_has_a_quota() -> None:
    waits = (WaitingPod("default", "w", "quota", "", 1.0), WaitingPod("elsewhere", "w", "quota", "", 1.0))
    limited = '{"gpus": 4, "migSlices": 14, "shareMemory": "160Gi"}'
    found = teams(
        cluster(namespace("default", limited), namespace("idle", '{"gpus": 8}'), namespace("none"), waiting=waits),
        everything,
    )
    assert [each["namespace"] for each in found["teams"]] == ["default", "idle"]
    assert entry(found, "default") == {
        "namespace": "default",
        "holds": {"gpus": 3, "migSlices": 0, "shareMemoryGiB": 0},
        "limits": {"gpus": 4, "migSlices": 14, "shareMemoryGiB": 160},
        "nodes": 1,
        "waiting": 1,
        "products": [["H100", 3]],
    }
    assert entry(found, "idle")["limits"] == {"gpus": 8}
    assert teams(cluster(namespace("default", "nonsense")), everything)["teams"][0]["limits"] == {}


def test_what_a_reader_may_not_see_is_summed() -> None:
    found = teams(cluster(namespace("idle", '{"gpus": 8}')), lambda name: name == "idle")
    assert [each["namespace"] for each in found["teams"]] == ["idle"]
    assert found["hidden"] == {"namespaces": 1, "gpus": 3}
    assert "default" not in json.dumps(found)


def test_a_team_has_its_workloads_those_with_the_most_devices_first() -> None:
    found = team(cluster(), "default", lambda key: None)
    assert found is not None
    assert [(one["kind"], one["name"], one["pods"], one["devices"]) for one in found["workloads"]] == [
        ("Pod", "p", 1, 2),
        ("Pod", "q", 1, 1),
    ]
    assert len(found["workloads"]) <= MOST_WORKLOADS
    assert team(cluster(), "elsewhere", lambda key: None) is None
