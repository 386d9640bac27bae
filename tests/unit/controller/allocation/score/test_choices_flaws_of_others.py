"""States in which other systems choose badly, as their published code was read: what ours takes there."""

from __future__ import annotations

from itertools import combinations

import pytest

from dracaena.api.config.v1alpha1 import Requirement, TopologyPolicy
from dracaena.api.machine import Gpu
from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Demand, Engine
from dracaena.controller.allocation.score.nominal_rates import make_box
from support.allocation import blocks, matrix
from support.recorded import recorded_machines

MACHINES = {machine.name: machine for machine in recorded_machines()}
NVLINK = TopologyPolicy(requirement=Requirement.NVLINK)


def recorded(name: str) -> Box:
    machine = MACHINES[name]
    return make_box(machine.topology, dict(enumerate(machine.gpus)))


def best(box: Box, free: int, count: int, policy: TopologyPolicy | None = None) -> tuple[int, ...] | None:
    answer = Engine().best_two(box, free, (Demand(count, policy or TopologyPolicy()),)).best
    return None if answer is None else ordinals_of(answer.mask)


def islands() -> Box:
    """Two meshes of four GPUs with double links, nothing between them but the sockets."""
    return make_box(blocks(4, 4, inside="NV2", outside="SYS"), {o: Gpu(f"{o}", o, nvlink_count=6) for o in range(8)})


# A component is no clique: GPUs that NVLinks connect over a third one are not linked.


def test_a_pair_with_a_direct_link_is_taken_out_of_a_chain() -> None:
    """0-1 and 1-5 are linked, 0-5 is not: any two of these are in one component."""
    assert best(recorded("dgx-1v"), mask_of((0, 1, 5)), 2) == (1, 5)


def test_two_gpus_that_are_only_connected_over_a_taken_one_do_not_meet_a_demand_for_nvlink() -> None:
    assert best(recorded("dgx-1v"), mask_of((0, 5)), 2, NVLINK) is None
    assert best(recorded("dgx-1v"), mask_of((0, 5, 6)), 2, NVLINK) == (5, 6)


def test_in_every_state_of_a_dgx_1v_a_pair_with_nvlink_is_linked_directly() -> None:
    box, engine = recorded("dgx-1v"), Engine()
    linked = {pair for pair in combinations(range(8), 2) if box.topology.link(*pair).nvlinks}
    for free in range(1, 256):
        found = engine.best_two(box, free, (Demand(2, NVLINK),)).best
        possible = any(pair in linked for pair in combinations(ordinals_of(free), 2))
        assert (found is not None) == possible
        assert found is None or ordinals_of(found.mask) in linked


def test_of_three_that_hang_together_those_are_taken_that_all_are_linked() -> None:
    """0, 3, 4 have the two double links, but only 0, 1, 3 are linked all with each other."""
    assert best(recorded("dgx-1v"), mask_of((0, 1, 3, 4)), 3) == (0, 1, 3)


# A group that is broken already is used up before an intact one is broken.


@pytest.mark.parametrize(("count", "expected"), [(1, (4,)), (2, (4, 6)), (3, (4, 6, 7))])
def test_a_broken_group_is_used_before_an_intact_one_of_lower_numbers(count: int, expected: tuple[int, ...]) -> None:
    assert best(islands(), 0b11011111, count) == expected


def test_an_intact_group_is_used_where_the_broken_one_does_not_suffice() -> None:
    assert best(islands(), 0b11011111, 4) == (0, 1, 2, 3)


# A GPU alone is no loss; one half of a bridge is.


@pytest.mark.parametrize(
    ("free", "expected"), [(0b111111, 4), (0b101111, 5), (0b011010, 4), (0b001110, 2), (0b001111, 0)]
)
def test_a_single_gpu_comes_from_next_to_the_bridges(free: int, expected: int) -> None:
    """Bridges 0-2 and 1-3 across the sockets; 4 and 5 have none. Half a bridge that is left over is no loss either."""
    rows = [["SYS"] * 6 for _ in range(6)]
    for gpu in range(6):
        rows[gpu][gpu] = "X"
    for a, b in ((0, 2), (1, 3)):
        rows[a][b] = rows[b][a] = "NV4"
    box = make_box(matrix("\n".join(map(" ".join, rows))), {o: Gpu(f"{o}", o) for o in range(6)})
    assert best(box, free, 1) == (expected,)
