"""Places and links of GPUs, from what Fabric Manager says of its partitions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from dracaena.api.links import MAX_NVLINKS, Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.topology import Topology
from dracaena.kubelet_plugin.discovery.fabric_partitions import (
    FabricAnswer,
    ToldGpu,
    ToldPartition,
    place_troubles,
    places_read,
    with_partitions,
    without_partitions,
    without_places,
)
from support.fake_fabric_manager import HGX_H100
from support.machines import plain_machine


def answer(nvlinks: int = 18, **more: object) -> FabricAnswer:
    partitions = tuple(
        ToldPartition(
            number,
            False,
            tuple(
                ToldGpu(
                    module, nvlinks=0 if len(modules) == 1 else nvlinks, most_nvlinks=0 if len(modules) == 1 else 18
                )
                for module in modules
            ),
        )
        for number, modules in HGX_H100.items()
    )
    return FabricAnswer(partitions, **more)  # type: ignore[arg-type]


def address(ordinal: int) -> str:
    return f"0000:{0x18 + ordinal:02x}:00.0"


def board(modules: Mapping[int, int | None], *, handed: tuple[int, ...] = (), nvlinks: int | None = 18) -> Machine:
    """GPUs of the host by ordinal, with their module ids, and GPUs that VFIO has, or may have, by ordinal too."""
    machine = plain_machine(len(modules))
    gpus = tuple(
        replace(gpu, pci_bus_id=address(ordinal), module_id=module)
        for gpu, (ordinal, module) in zip(machine.gpus, modules.items(), strict=True)
    )
    vfio = tuple(
        PassthroughGpu(address(n), 0x10DE, 0x2330, 40 + n, "vfio-pci", is_bound=n not in modules, on_demand=True)
        for n in handed
    )
    count, first = len(gpus) + len(vfio), len(gpus)
    pairs = tuple(
        Link(LinkLevel.SYS, nvlinks if b < first else 0 if a < first else None)
        for a, b in combinations(range(count), 2)
    )
    return replace(machine, gpus=gpus, passthrough=vfio, topology=Topology(count, pairs, (None,) * count))


def nvlinks(machine: Machine) -> dict[tuple[int, int], int | None]:
    pairs = combinations(range(machine.topology.gpu_count), 2)
    return {pair: machine.topology.link(*pair).nvlinks for pair in pairs}


def places(machine: Machine) -> list[int | None]:
    return [*(gpu.module_id for gpu in machine.gpus), *(gpu.module_id for gpu in machine.passthrough)]


def test_gpus_are_linked_within_partitions_alone() -> None:
    machine = board({0: 1, 1: 3, 2: 2, 3: 5})
    without_eight = answer(unsupported=frozenset({0}))
    linked = with_partitions(machine, without_eight, {})
    assert nvlinks(linked) == {(0, 1): 18, (0, 2): 18, (1, 2): 18, (0, 3): 0, (1, 3): 0, (2, 3): 0}
    assert linked.fabric is not None
    assert [each.id for each in linked.fabric.partitions] == list(range(1, 15))
    only_pairs = replace(without_eight, unsupported=frozenset({0, 1, 2}))
    assert [pair for pair, count in nvlinks(with_partitions(machine, only_pairs, {})).items() if count] == [(0, 1)]
    linked.check()


def test_gpus_for_virtual_machines_are_linked_among_themselves() -> None:
    machine = board({0: 1, 1: 3}, handed=(0, 1, 2, 3))
    linked = with_partitions(machine, answer(), {address(2): 2, address(3): 5})
    assert [gpu.module_id for gpu in linked.passthrough] == [1, 3, 2, 5]
    found = nvlinks(linked)
    assert found[0, 1] == 18
    assert {found[a, b] for a in (0, 1) for b in range(2, 6)} == {0}
    assert {found[a, b] for a, b in combinations(range(2, 6), 2)} == {18}


@pytest.mark.parametrize(("told", "read", "expected"), [(16, 18, 16), (99, 18, MAX_NVLINKS), (0, 18, 0)])
def test_a_pair_has_as_many_nvlinks_as_fabric_manager_says(told: int, read: int, expected: int) -> None:
    assert nvlinks(with_partitions(board({0: 1, 1: 3}, nvlinks=read), answer(told), {})) == {(0, 1): expected}


def test_where_it_tells_no_number_that_of_nvml_stands() -> None:
    partition = ToldPartition(3, False, (ToldGpu(1), ToldGpu(3)))
    machine = board({0: 1, 1: 3}, handed=(2, 3))
    linked = with_partitions(machine, FabricAnswer((partition,)), {})
    assert nvlinks(linked)[0, 1] == 18
    handed = board({}, handed=(0, 1))
    known = {address(0): 1, address(1): 3}
    assert nvlinks(with_partitions(handed, FabricAnswer((partition,)), known)) == {(0, 1): None}


def test_what_it_says_of_a_gpu_itself_comes_before_what_nvml_says() -> None:
    machine = board({0: 7, 1: 8}, handed=(2,))
    gpus = (
        ToldGpu(1, uuid=machine.gpus[0].uuid, nvlinks=12, most_nvlinks=12),
        ToldGpu(2, pci_bus_id="00000000:19:00.0", nvlinks=12, most_nvlinks=12),
        ToldGpu(3, pci_bus_id="00000000:1A:00.0", nvlinks=12, most_nvlinks=12),
    )
    linked = with_partitions(machine, FabricAnswer((ToldPartition(7, False, gpus),)), {address(2): 9})
    assert places(linked) == [1, 2, 3]
    assert nvlinks(linked)[0, 1] == 12


def test_a_gpu_without_a_place_is_linked_with_nobody_and_told() -> None:
    linked = with_partitions(board({0: 1, 1: None}, handed=(1, 2)), answer(), {})
    assert places(linked) == [1, None, None, None]
    assert set(nvlinks(linked).values()) == {0}
    assert [found.subject for found in place_troubles(linked)] == [address(1), address(2)]


def test_a_place_that_two_gpus_have_is_nobodys() -> None:
    linked = with_partitions(board({0: 1, 1: 1, 2: 3}, handed=(0, 3)), answer(), {address(3): 3})
    assert places(linked) == [None, None, None, None, None]
    twin = with_partitions(board({0: 1, 1: 3}, handed=(0, 1)), answer(), {})
    assert places(twin) == [1, 3, 1, 3]


def test_without_an_answer_nothing_is_linked() -> None:
    machine = board({0: 1, 1: 3}, handed=(2, 3))
    silent = without_partitions(machine, "it does not answer")
    assert set(nvlinks(silent).values()) == {0}
    assert silent.fabric is not None
    assert (silent.fabric.problem, silent.fabric.partitions) == ("it does not answer", ())
    assert places_read(machine) == {address(0): 1, address(1): 3}
    assert places_read(without_places(machine)) == {}
    assert nvlinks(without_places(machine)) == nvlinks(machine)


def test_active_partitions_of_nobody_are_named_by_their_gpus() -> None:
    linked = with_partitions(board({0: 1}), answer(), {}, foreign=[3, 6])
    assert linked.fabric is not None
    assert linked.fabric.foreign == {1, 3, 6, 8}


@pytest.mark.parametrize("seed", range(30))
def test_any_board_is_linked_as_a_look_at_each_partition_says(seed: int) -> None:
    chance = random.Random(seed)
    modules = chance.sample(range(1, 9), 6)
    numbers = chance.sample(sorted(HGX_H100), chance.randrange(len(HGX_H100)))
    machine = board(dict(enumerate(modules[:3])), handed=(3, 4, 5))
    known = {address(n): modules[n] for n in (3, 4, 5)}
    told = answer(unsupported=frozenset(HGX_H100) - set(numbers))
    for (a, b), count in nvlinks(with_partitions(machine, told, known)).items():
        together = [n for n in numbers if {modules[a], modules[b]} <= set(HGX_H100[n])]
        assert count == (18 if together and (a < 3) == (b < 3) else 0)
