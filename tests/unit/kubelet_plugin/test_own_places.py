from __future__ import annotations

from pathlib import Path

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.own_places import SETTLED_S, OwnPlaces
from support.clock import FakeClock
from support.mig_node import instance, mig_node
from support.plugin import FakeClaims, PluginNode, ThreadLock, prepared_claim

PLACE = DeviceName("mig-1-1g-10gb-0")


def test_what_the_journal_of_a_claim_names_is_ours(tmp_path: Path) -> None:
    places = OwnPlaces(FakeClock())
    assert places.names() == frozenset()
    node = PluginNode(tmp_path, FakeClaims())
    places.follow(node.checkpoints, ThreadLock())
    with mig_node() as mig:
        effect = instance(mig, "1g.10gb", 4)
    claim = prepared_claim()
    started = node.checkpoints.start(claim)
    assert places.names() == frozenset()
    node.checkpoints.look_at_each()
    node.checkpoints.journal(started, [effect])
    node.checkpoints.look_at_each()
    assert places.names() == {effect.device}


def test_what_was_touched_a_moment_ago_is_ours_because_a_reading_may_be_older() -> None:
    clock = FakeClock()
    places = OwnPlaces(clock)
    places.touch(PLACE)
    clock.advance(SETTLED_S)
    assert places.names() == {PLACE}
    clock.advance(1)
    assert places.names() == frozenset()
