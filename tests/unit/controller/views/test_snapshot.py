"""Snapshots are made in turns, and what has not changed is not read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceSlice
from dracaena.api.topology_levels import DEFAULT_LEVELS, TopologyLevels
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.views.node_line import PoolLine, pool_line
from dracaena.controller.views.snapshot import (
    CLAIMS_A_TURN,
    NODES_A_TURN,
    ClusterSnapshot,
    SnapshotMaker,
    WaitingPod,
    Watched,
)
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))


def watched(names: list[str], *held: str, pods: tuple[WaitingPod, ...] = ()) -> Watched:
    claims = [holding(claim(f"of-{name}"), name, device_name(FOUR, 0)) for name in held]
    nodes: list[Node] = [node(name) for name in names]
    return Watched(nodes, [pool_slice(name, FOUR) for name in names], claims, pods)


def made(maker: SnapshotMaker, what: Watched) -> tuple[ClusterSnapshot, int]:
    *turns, last = maker.turns(what)
    assert last is not None
    assert set(turns) == {None}
    return last, len(turns)


def test_a_snapshot_has_all_nodes_by_name_and_who_has_what() -> None:
    found, _ = made(SnapshotMaker(DRIVER), watched(["b", "a"], "b"))
    assert [(line.name, line.cells) for line in found.lines] == [("a", "...."), ("b", "#...")]
    seen = found.node("b")
    assert seen is not None
    assert [holder.claim for holder in seen.gpus[0].holders] == ["default/of-b"]
    assert found.node("c") is None


def test_many_nodes_take_many_turns() -> None:
    _, turns = made(SnapshotMaker(DRIVER), watched([f"n{number}" for number in range(4 * NODES_A_TURN)]))
    assert turns >= 4


def test_many_claims_take_many_turns() -> None:
    one = watched(["a"], "a")
    found, turns = made(SnapshotMaker(DRIVER), Watched(one.nodes, one.slices, 8 * CLAIMS_A_TURN * list(one.claims)))
    assert turns >= 8
    assert len(found.held["a", device_name(FOUR, 0)]) == 8 * CLAIMS_A_TURN


def test_only_what_changed_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(driver: str, pages: Sequence[ResourceSlice], seen: Node | None, levels: TopologyLevels) -> PoolLine:
        read.append(pages[0].spec.node_name or "")
        return pool_line(driver, pages, seen, levels)

    monkeypatch.setattr("dracaena.controller.views.snapshot.pool_line", noted)
    maker, first = SnapshotMaker(DRIVER), watched(["a", "b"])
    made(maker, first)
    assert read == ["a", "b"]
    changed = Watched(first.nodes, (first.slices[0], pool_slice("b", FOUR)), watched([], "a").claims)
    found, _ = made(maker, changed)
    assert read == ["a", "b", "b"]
    assert [line.cells.count(".") for line in found.lines] == [3, 4]
    made(maker, Watched((node("a"), *first.nodes[1:]), changed.slices, ()))
    assert read == ["a", "b", "b", "a"], "a Node that changed says whether pods may come"
    made(maker, Watched(first.nodes, first.slices[:1], ()))
    assert read[4:] == ["a"]
    made(maker, Watched(first.nodes, first.slices, ()))
    assert read[5:] == ["b"], "what had gone is read again"
    made(maker, Watched(first.nodes, first.slices, (), levels=DEFAULT_LEVELS))
    assert read[6:] == ["a", "b"], "other levels, other racks"


def test_who_waited_longest_comes_first_and_time_alone_is_no_change() -> None:
    pods = tuple(WaitingPod("team", name, "unsatisfiable", None, since_s) for name, since_s in (("a", 9.0), ("b", 1.0)))
    found, _ = made(SnapshotMaker(DRIVER), watched(["a"], pods=pods))
    assert [pod.name for pod in found.waiting or ()] == ["b", "a"]
    one = watched(["a"], pods=pods)
    assert one == Watched(one.nodes, one.slices, one.claims, tuple(map(replace, pods)))
    other = (WaitingPod("team", "a", "unsatisfiable", Reasons("0/1 nodes fit"), 9.0), pods[1])
    assert one != Watched(one.nodes, one.slices, one.claims, other)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=8))
def test_a_maker_that_keeps_lines_makes_what_a_new_one_makes(steps: list[tuple[str, bool, bool]]) -> None:
    maker, names = SnapshotMaker(DRIVER), ["a", "b"]
    nodes = {name: node(name) for name in "abc"}
    slices = {name: pool_slice(name, FOUR) for name in "abc"}
    held: set[str] = set()
    for name, is_held, is_there in steps:
        names = sorted({*names, name} if is_there else {*names} - {name})
        held = held | {name} if is_held else held - {name}
        claims = [holding(claim(f"of-{one}"), one, device_name(FOUR, 0)) for one in sorted(held)]
        seen = Watched([nodes[one] for one in names], [slices[one] for one in names], claims)
        kept, _ = made(maker, seen)
        new, _ = made(SnapshotMaker(DRIVER), seen)
        assert kept.lines == new.lines
