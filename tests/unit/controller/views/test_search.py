"""Nodes, GPUs, pods, claims and teams are found by a part of their names, by readers who may see them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Namespace, ObjectMeta
from dracaena.controller.views.search import MOST_HITS, search_in_turns
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, WaitingPod, Watched
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice

FOUR = machine("four", blocks(4, inside="NV18", outside="SYS"), product_name="H100")


def cluster(nodes: int = 1) -> ClusterSnapshot:
    names = [f"worker-{number:03}" for number in range(nodes)]
    held = holding(claim("trains"), names[0], device_name(FOUR, 1))
    assert held.status.allocation is not None
    claims = [allocated(claim("trains"), msgspec.to_builtins(held.status.allocation), pod("runner"))]
    waits = (WaitingPod("default", "waiter", "quota", None, 1.0),)
    idle = Namespace(ObjectMeta("idle-team", annotations={f"{DRIVER}/quota": '{"gpus": 4}'}))
    slices = [pool_slice(name, FOUR) for name in names]
    watched = Watched([*map(node, names)], slices, claims, waits, namespaces=(idle,))
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    return snapshot


def found(text: str, snapshot: ClusterSnapshot | None = None, *, sees: bool = True) -> dict[str, Any]:
    *_, answer = search_in_turns(snapshot or cluster(), lambda namespace: sees, text, {"unasked": 0})
    assert answer is not None
    return dict(json.loads(answer))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("WAIT", "pod/default/waiter"),
        ("runn", "pod/default/runner"),
        ("train", "pod/default/runner"),
        ("defau", "team/default"),
        ("idle", "team/idle-team"),
        ("ker-0", "node/worker-000"),
        (FOUR.gpus[2].uuid[:12].lower(), "node/worker-000"),
    ],
)
def test_each_kind_is_found_by_a_part_of_its_name(text: str, place: str) -> None:
    assert place in [hit["open"] for hit in found(text)["hits"]]


@pytest.mark.parametrize("text", ["w", "", "  ", "nothing like this", FOUR.gpus[2].uuid[4:]])
def test_nothing_is_found_by_too_little_or_by_what_is_not_there(text: str) -> None:
    assert found(text) == {"unasked": 0, "hits": [], "more": False}


def test_who_may_see_no_names_finds_nodes_and_gpus_alone() -> None:
    hidden = [found(text, sees=False)["hits"] for text in ("wait", "runn", "train", "defau", "idle")]
    assert hidden == [[], [], [], [], []]
    assert [hit["kind"] for hit in found("worker", sees=False)["hits"]] == ["node"]
    assert found(FOUR.gpus[0].uuid, sees=False)["hits"][0]["kind"] == "GPU"


def test_an_answer_is_cut_and_says_so() -> None:
    answer = found("worker", cluster(40))
    assert (len(answer["hits"]), answer["more"]) == (MOST_HITS, True)


def test_a_search_that_finds_nothing_rests_on_its_way() -> None:
    turns = [*search_in_turns(cluster(600), lambda namespace: True, "gpu-0000nothing", {})]
    assert turns[:-1] == [None] * (len(turns) - 1)
    assert len(turns) > 5
