from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from dracaena.api.fabric import PartitionedFabric
from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.health.links import KnownLinks, links_of
from support.passthrough import passthrough_gpu

SWITCHED, MESH = read_machine("hgx-h100"), read_machine("dgx-1v")


def with_links(machine: Machine, ordinal: int, count: int | None) -> Machine:
    """Return a machine of which one GPU has so many links: to switches, or to others while there are any."""
    gpus = tuple(replace(gpu, nvlink_count=count) if at == ordinal else gpu for at, gpu in enumerate(machine.gpus))
    left, pairs = count or 0, []
    for (one, other), link in zip(combinations(range(len(gpus)), 2), machine.topology.pairs, strict=True):
        there = min(left, link.nvlinks or 0) if ordinal in (one, other) else link.nvlinks
        left -= there or 0 if ordinal in (one, other) and machine is not SWITCHED else 0
        pairs.append(replace(link, nvlinks=there))
    return replace(machine, gpus=gpus, topology=replace(machine.topology, pairs=tuple(pairs)))


@pytest.mark.parametrize("machine", [SWITCHED, MESH, read_machine("h100-pcie-bridged-numa-3-5")])
def test_a_machine_as_it_was_read_first_has_no_links_down(machine: Machine) -> None:
    assert links_of(machine, links_of(machine, KnownLinks())).down == {}


@pytest.mark.parametrize("machine", [SWITCHED, MESH])
@pytest.mark.parametrize("left", [0, 2])
def test_links_that_a_gpu_had_are_down(machine: Machine, left: int) -> None:
    before = links_of(machine, KnownLinks())
    had = machine.gpus[3].nvlink_count or 0
    poorer = links_of(with_links(machine, 3, left), before)
    assert poorer.down == {machine.gpus[3].uuid: had - left}
    assert links_of(with_links(machine, 3, left), poorer).down == poorer.down, "it stays so"
    assert links_of(machine, poorer).down == {}


def test_at_switches_a_gpu_is_compared_with_its_peers_from_the_start() -> None:
    assert links_of(with_links(SWITCHED, 0, 15), KnownLinks()).down == {SWITCHED.gpus[0].uuid: 3}
    assert links_of(with_links(MESH, 0, 4), KnownLinks()).down == {}, "nobody knows what it should have"


def test_what_is_not_known_is_not_down() -> None:
    before = links_of(SWITCHED, KnownLinks())
    assert links_of(with_links(SWITCHED, 0, None), before).down == {}
    divided = tuple(replace(gpu, nvlink_count=0, mig_enabled=True) for gpu in SWITCHED.gpus)
    assert links_of(replace(SWITCHED, gpus=divided), before).down == {}


def test_links_that_come_and_go_with_claims_are_not_down() -> None:
    fabric = PartitionedFabric(())
    before = links_of(SWITCHED, KnownLinks())
    assert links_of(replace(with_links(SWITCHED, 0, 0), fabric=fabric), before) == before
    handed = replace(with_links(MESH, 0, 4), passthrough=(passthrough_gpu(0),))
    assert links_of(handed, links_of(MESH, KnownLinks())).down == {}
