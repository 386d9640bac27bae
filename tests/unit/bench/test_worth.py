from __future__ import annotations

from itertools import combinations

import pytest

from bench import ours
from bench.machines import BenchMachine, all_machines, recorded
from bench.worth import (
    collective_gb_s,
    damage_gb_s,
    groups_gb_s,
    has_nvlink_group,
    ideal_gb_s,
    is_one_nvlink_group,
)

DGX_1V = recorded("dgx-1v")
ALL_8 = tuple(range(8))


@pytest.mark.parametrize(
    ("gpus", "gb_s"),
    [((0,), 0), ((0, 3), 50), ((0, 1), 25), ((1, 2, 3), 75), ((0, 1, 2, 3), 100), (ALL_8, 150), ((0, 5), 9)],
)
def test_the_judge_knows_a_dgx_1v(gpus: tuple[int, ...], gb_s: int) -> None:
    assert collective_gb_s(DGX_1V, gpus) == gb_s


def test_behind_switches_every_set_has_one_uplink() -> None:
    hopper = recorded("hgx-h100")
    assert hopper.links.switched
    assert {collective_gb_s(hopper, gpus) for count in (2, 4, 8) for gpus in combinations(ALL_8, count)} == {450}


def test_the_ideal_is_that_of_the_empty_machine() -> None:
    assert [ideal_gb_s(DGX_1V, count) for count in (2, 3, 4, 8)] == [50, 75, 100, 150]


def test_damage_is_what_the_groups_lose() -> None:
    assert groups_gb_s(DGX_1V, (0, 1, 2, 3), 2) == 100
    assert damage_gb_s(DGX_1V, (0, 1, 2, 3), (2, 3)) == (0, 100, 75, 25)
    assert damage_gb_s(DGX_1V, (0, 1, 2, 3), (0, 3)) == (0, 100, 50, 25)


def test_an_nvlink_group_is_connected_by_its_own_links() -> None:
    assert is_one_nvlink_group(DGX_1V, (0, 3, 7))
    assert not is_one_nvlink_group(DGX_1V, (0, 7))
    assert has_nvlink_group(DGX_1V, (0, 3, 5), 2)
    assert not has_nvlink_group(DGX_1V, (0, 5, 6), 3)


@pytest.mark.parametrize("machine", all_machines(), ids=lambda machine: machine.name)
def test_the_engine_says_of_every_set_what_the_judge_says(machine: BenchMachine) -> None:
    """Of machines with more than 8 GPUs only pairs and threes."""
    gpus = range(machine.gpu_count)
    counts = gpus if machine.gpu_count <= 8 else range(3)
    for count in counts:
        for chosen in combinations(gpus, count + 1):
            assert ours.bandwidth_gb_s(machine, chosen) == collective_gb_s(machine, chosen), chosen


@pytest.mark.parametrize("machine", all_machines(), ids=lambda machine: machine.name)
def test_the_engine_knows_the_ideal_of_every_size(machine: BenchMachine) -> None:
    """Up to 3 GPUs of a machine with more than 8."""
    for count in range(2, machine.gpu_count + 1 if machine.gpu_count <= 8 else 4):
        assert ours.ideal_gb_s(machine, count) == ideal_gb_s(machine, count), count
