"""The rail of each GPU, by known machines and by what must hold for any."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.links import LinkLevel
from dracaena.api.rails import FARTHEST, rails

PIX, PXB, NODE, SYS = LinkLevel.PIX, LinkLevel.PXB, LinkLevel.NODE, LinkLevel.SYS

Levels = list[list[LinkLevel | None]]


def near(gpus: int, nics: int, *pairs: tuple[int, int]) -> Levels:
    """Levels of PIX for these pairs of a GPU and a NIC, and SYS for all others."""
    return [[PIX if (gpu, nic) in pairs else SYS for nic in range(nics)] for gpu in range(gpus)]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        # One NIC for each GPU, and two for storage in between.
        (near(4, 6, (0, 0), (1, 2), (2, 3), (3, 5)), (0, 2, 3, 5)),
        # NICs that are not in the order of their GPUs.
        (near(4, 4, (0, 1), (1, 0), (2, 3), (3, 2)), (1, 0, 3, 2)),
        # Two GPUs and two NICs behind each switch.
        (near(4, 4, *product((0, 1), (0, 1)), *product((2, 3), (2, 3))), (0, 1, 2, 3)),
        # Two GPUs and one NIC behind each switch.
        (near(4, 2, (0, 0), (1, 0), (2, 1), (3, 1)), (0, 0, 1, 1)),
        # Two NICs for each GPU.
        (near(2, 4, (0, 0), (0, 1), (1, 2), (1, 3)), (0, 3)),
        ([[PXB, PIX], [PIX, PXB]], (1, 0)),
        # All NICs on another board, or unknown.
        ([[NODE, SYS], [NODE, SYS]], (None, None)),
        ([[None, PIX], [None, None]], (1, None)),
        ([[], []], (None, None)),
        ([], ()),
    ],
)
def test_a_gpu_is_on_the_rail_of_its_nearest_nic(levels: Levels, expected: tuple[int | None, ...]) -> None:
    assert rails(levels) == expected


LEVELS = st.one_of(st.none(), st.sampled_from(list(LinkLevel)))
MACHINES = st.integers(0, 6).flatmap(lambda nics: st.lists(st.lists(LEVELS, min_size=nics, max_size=nics), max_size=8))


@given(MACHINES)
def test_a_gpu_has_a_rail_if_a_nic_is_its_own_and_then_no_other_nic_is_nearer(levels: Levels) -> None:
    for own, rail in zip(levels, rails(levels), strict=True):
        near_levels = [level for level in own if level is not None and level <= FARTHEST]
        assert (rail is None) == (not near_levels)
        assert rail is None or own[rail] == min(near_levels)


@given(MACHINES, st.integers(0, 7))
def test_a_gpu_keeps_its_rail_while_another_is_missing(levels: Levels, missing: int) -> None:
    known = [[] if place == missing else own for place, own in enumerate(levels)]
    assert [rail for place, rail in enumerate(rails(known)) if place != missing] == [
        rail for place, rail in enumerate(rails(levels)) if place != missing
    ]


@given(st.integers(1, 4), st.integers(1, 4))
def test_gpus_behind_one_switch_share_no_nic_while_there_are_enough(switches: int, nics: int) -> None:
    pairs = [
        (gpu, nic)
        for switch in range(switches)
        for gpu in range(switch * nics, switch * nics + nics)
        for nic in range(switch * nics, switch * nics + nics)
    ]
    assert rails(near(switches * nics, switches * nics, *pairs)) == tuple(range(switches * nics))
