from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Node, Pod
from dracaena.demo.node_room import requested, shortages


def pod(**spec: Any) -> Pod:
    return msgspec.json.decode(json.dumps({"metadata": {"name": "p"}, "spec": spec}), type=Pod)


def node(**allocatable: Any) -> Node:
    document = {"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "3", **allocatable}}}
    return msgspec.json.decode(json.dumps(document), type=Node)


def container(restart_policy: str = "", **requests: Any) -> dict[str, Any]:
    return {"name": "c", "restartPolicy": restart_policy, "resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu="250m"), container(cpu=1)]}, 1.25),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]}, 3),
        ({"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="1")]}, 2),
        ({"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="1"), container(cpu="3")]}, 4),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container("Always", cpu="1")]}, 3),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "100m"}}, 1.1),
    ],
)
def test_a_pod_needs_what_runs_together_when_that_is_most(spec: dict[str, Any], cpu: float) -> None:
    assert requested(pod(**spec)) == {"cpu": cpu * 10**9}


def test_everything_that_is_lacking_is_named_and_pods_that_ended_take_nothing() -> None:
    wanted = pod(containers=[container(cpu="2", memory="1Gi", **{"example.com/nic": "1"})])
    there = [wanted, wanted]
    assert shortages(wanted, node(cpu="6", memory="4Gi", **{"example.com/nic": "4"}), there) == ()
    assert shortages(wanted, node(cpu="5", memory="2Gi"), there) == (
        "Insufficient cpu",
        "Insufficient example.com/nic",
        "Insufficient memory",
    )
    assert shortages(pod(containers=[container()]), node(), [wanted] * 3) == ("Too many pods",)
    ended = msgspec.structs.replace(wanted, status=msgspec.structs.replace(wanted.status, phase="Failed"))
    assert shortages(wanted, node(cpu="2", memory="1Gi", **{"example.com/nic": "1"}), [ended] * 9) == ()


def test_a_request_of_nothing_is_met_where_more_is_taken_than_there_is() -> None:
    greedy = pod(containers=[container(cpu="9")])
    assert shortages(pod(containers=[container(cpu="0")]), node(cpu="4"), [greedy]) == ()
    assert shortages(pod(containers=[container(cpu="1")]), node(cpu="4"), [greedy]) == ("Insufficient cpu",)
