"""What teams hold and may hold, and which workloads have it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dracaena.api.mig import profile_in
from dracaena.api.objects import Namespace, ObjectMeta
from dracaena.cli.namespace_quotas import quota_states
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, WaitingPod, Watched
from dracaena.controller.views.teams import MOST_LIMITS, MOST_WORKLOADS, team, teams
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice
from support.mig_nodes import mig_slices
from support.mig_tables import A100
from support.shares import holding_share, in_shares

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
    waits = (WaitingPod("default", "w", "quota", None, 1.0), WaitingPod("elsewhere", "w", "quota", None, 1.0))
    quota = '{"gpus": 4, "migSlices": 14, "shareMemory": "160Gi"}'
    found = teams(
        cluster(namespace("default", quota), namespace("idle", '{"gpus": 8}'), namespace("none"), waiting=waits),
        everything,
    )
    assert [each["namespace"] for each in found["teams"]] == ["default", "idle"]
    assert entry(found, "default") == {
        "namespace": "default",
        "holds": {"gpus": 3, "migSlices": 0, "shareMemoryGiB": 0},
        "limits": [
            {"counted": "gpus", "name": "", "limit": 4, "held": 3},
            {"counted": "migSlices", "name": "", "limit": 14, "held": 0},
            {"counted": "shareMemory", "name": "", "limit": 160 << 30, "held": 0},
        ],
        "moreLimits": 0,
        "problem": "",
        "nodes": 1,
        "waiting": 1,
        "products": [["H100", 3]],
    }
    assert limited(entry(found, "idle")) == {"gpus": (8, 0)}


def limited(team: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {f"{one['counted']}{one['name']}": (one["limit"], one["held"]) for one in team["limits"]}


def test_limits_on_a_product_on_cores_and_on_a_profile_are_limits_too() -> None:
    quota = '{"gpusByProduct": {"H100": 4, "T4": 1}, "shareCores": 400, "migDevicesByProfile": {"1g.10gb": 2}}'
    found = entry(teams(cluster(namespace("default", quota)), everything), "default")
    assert limited(found) == {
        "shareCores": (400, 0),
        "gpusByProductH100": (4, 3),
        "gpusByProductT4": (1, 0),
        "migDevicesByProfile1g.10gb": (2, 0),
    }
    assert [one["name"] for one in found["limits"]][:2] == ["", "H100"], "on everything, then the fullest"


def test_page_and_status_count_the_same_for_each_limit() -> None:
    quota: dict[str, Any] = {
        "gpus": 9,
        "gpusByProduct": {"H100": 9, "T4": 9},
        "shareMemory": "1Ti",
        "shareCores": 900,
        "migSlices": 9,
    }
    pair = machine("pair", blocks(4, inside="NV12", outside="SYS"), product_name="H100")
    shared = in_shares(pool_slice("m", machine("four", blocks(4, inside="NV12", outside="SYS"), product_name="T4")))
    cut = mig_slices("n", pair, [A100, A100, None, None])
    parts = [device.name for page in cut for device in page.spec.devices if "-1g-" in device.name]
    quota["migDevicesByProfile"] = {str(profile_in(parts[0])): 9}
    names = [device.name for device in shared.spec.devices]
    claims = [
        holding(claim("a"), "n", device_name(pair, 2)),
        holding(claim("b"), "n", parts[0]),
        holding(claim("c"), "n", parts[1]),
        holding(claim("d"), "m", names[0]),
        holding_share("e", "m", names[1], {"memory": "20Gi", "cores": "30"}, mode="MPS"),
        holding_share("f", "m", names[1], {"memory": "10Gi", "cores": "0"}, mode="MPS"),
        holding_share("g", "m", names[2], {"memory": "80Gi", "cores": "0"}),
    ]
    limits, nodes = (namespace("default", json.dumps(quota)),), [node("n"), node("m")]
    *_, snapshot = SnapshotMaker(DRIVER).turns(Watched(nodes, [*cut, shared], claims, (), namespaces=limits))
    assert snapshot is not None
    (state,) = quota_states(DRIVER, limits, nodes, [*cut, shared], claims)
    wanted = {f"{one.key}{one.name}": amounts for one, amounts in state.limits.items()}
    assert limited(entry(teams(snapshot, everything), "default")) == wanted
    assert 0 not in [held for _, held in wanted.values()], "each limit counts something"


def test_of_many_limits_the_fullest_are_shown_and_the_others_counted() -> None:
    products = {f"P{number:03}": 9 for number in range(200)} | {"H100": 3}
    found = entry(teams(cluster(namespace("default", json.dumps({"gpusByProduct": products}))), everything), "default")
    assert limited(found)["gpusByProductH100"] == (3, 3)
    assert (len(found["limits"]), found["moreLimits"]) == (MOST_LIMITS, 201 - MOST_LIMITS)


def test_a_quota_that_cannot_be_read_is_not_shown_as_none() -> None:
    found = entry(teams(cluster(namespace("default", '{"gpus": 4, "gpu": 1}')), everything), "default")
    assert limited(found) == {"gpus": (4, 3)}
    assert found["problem"].startswith("gpu: unknown, expected one of gpus, ")
    hostile = entry(teams(cluster(namespace("default", '{"\u202e\\ud800": 1}')), everything), "default")
    json.dumps(hostile).encode()
    assert hostile["problem"].isprintable()


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
