"""Sets of GPUs that Fabric Manager links."""

from __future__ import annotations

import pytest

from dracaena.api.fabric import FabricPartition, PartitionedFabric
from support.fake_fabric_manager import HGX_H100

HGX = PartitionedFabric(
    tuple(FabricPartition(number, frozenset(modules), 18) for number, modules in sorted(HGX_H100.items()))
)


def test_a_set_is_a_partition_only_if_it_is_all_of_one() -> None:
    found = [HGX.exactly(modules) for modules in ([1, 3], [1, 2], [1, 2, 3, 4], [1, 2, 3], [5], range(1, 9), [])]
    assert [None if each is None else each.id for each in found] == [3, None, 1, None, 11, 0, None]


@pytest.mark.parametrize(("number", "modules"), [(0, {1}), (3, {3, 1}), (17, set(range(1, 17)))])
def test_a_partition_is_known_by_its_name(number: int, modules: set[int]) -> None:
    partition = FabricPartition(number, frozenset(modules))
    assert FabricPartition.named(partition.name) == partition


def test_each_gpu_of_an_hgx_board_is_in_one_partition_of_each_size() -> None:
    found = [[HGX.of_size(module, size) for size in (1, 2, 4, 8, 16)] for module in (1, 8)]
    assert [[None if each is None else each.id for each in row] for row in found] == [
        [7, 3, 1, 0, None],
        [14, 6, 2, 0, None],
    ]


def test_two_gpus_are_joined_by_the_partitions_that_hold_both() -> None:
    assert [each.id for each in HGX.joining(1, 3)] == [0, 1, 3]
    assert [each.id for each in HGX.joining(1, 5)] == [0]
