from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.store.own_places import SETTLED_S, OwnPlaces
from support.clock import FakeClock
from support.mig_node import instance, mig_node
from support.plugin import FakeClaims, PluginNode, prepared_claim

PLACE = DeviceName("mig-1-1g-10gb-0")


def test_what_the_journal_of_a_claim_names_is_ours(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, FakeClaims())
    places = OwnPlaces(FakeClock(), node.node_claims)
    with mig_node() as mig:
        effect = instance(mig, "1g.10gb", 4)
    claim = prepared_claim()
    started = node.node_claims.start(claim)
    assert places.names() == frozenset()
    node.node_claims.journal(started, [effect])
    assert places.names() == {effect.device}


def test_a_device_must_be_there_once_it_was_made_and_a_reading_can_show_it(tmp_path: Path) -> None:
    clock = FakeClock()
    node = PluginNode(tmp_path, FakeClaims())
    places = OwnPlaces(clock, node.node_claims)
    with mig_node() as mig:
        effect = instance(mig, "1g.10gb", 4)
    started = node.node_claims.start(prepared_claim())
    outcomes: list[dict[str, str | int | bool] | None] = [None, {"making": True}, {"making": True, "uuid": "MIG-1"}]
    for outcome, expected in zip(outcomes, (False, False, True), strict=True):
        node.node_claims.journal(started, [replace(effect, outcome=outcome)])
        assert (effect.device in places.made()) is expected
    assert places.made() == {effect.device: MadeDevice(str(effect.parameters["gpu"]), "MIG-1")}
    places.touch(effect.device)
    assert places.made() == {}
    clock.advance(SETTLED_S + 1)
    assert effect.device in places.made()


def test_a_device_for_which_its_claim_was_set_aside_is_known_to_be_gone(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, FakeClaims())
    places = OwnPlaces(FakeClock(), node.node_claims)
    with mig_node() as mig:
        effect = replace(instance(mig, "1g.10gb", 4), outcome={"making": True, "uuid": "MIG-1"})
    claim = prepared_claim()
    for index, planned, expected in ((0, True, False), (None, True, True), (None, False, False)):
        device = replace(claim.devices[0], device=effect.device, index=index)
        lost = replace(claim, devices=(device,), effects=(effect,))
        node.node_claims.set_aside(lost, "it is gone", planned=planned)
        assert places.made()[effect.device].known_gone is expected


def test_what_was_touched_a_moment_ago_is_ours_because_a_reading_may_be_older(tmp_path: Path) -> None:
    clock = FakeClock()
    places = OwnPlaces(clock, PluginNode(tmp_path, FakeClaims()).node_claims)
    places.touch(PLACE)
    clock.advance(SETTLED_S)
    assert places.names() == {PLACE}
    clock.advance(1)
    assert places.names() == frozenset()
