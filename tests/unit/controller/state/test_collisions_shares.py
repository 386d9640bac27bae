"""Which shares of one GPU are a collision: those that take more of it than it has."""

from __future__ import annotations

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.simulation import make_inventory
from dracaena.controller.state.collisions import find_collisions
from support.allocation import DRIVER, blocks, claim, device_class, device_name, holding, machine, node, pool_slice
from support.shares import holding_share, in_shares

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


def share_of(name: str, memory: str, cores: str = "0") -> ResourceClaim:
    return holding_share(name, "a", device_name(TWO, 0), {"memory": memory, "cores": cores})


def rivals(claim_key: str, *claims: ResourceClaim) -> list[str]:
    inventory = make_inventory(
        DRIVER, nodes=[node("a")], slices=[in_shares(pool_slice("a", TWO))], claims=claims, classes=[device_class()]
    )
    by_key = {one.key: one for one in claims}
    return [one.rival.key for one in find_collisions(by_key[claim_key], inventory, by_key.get)]


def test_shares_within_what_the_gpu_has_are_none() -> None:
    assert rivals("default/x", share_of("x", "40Gi", "50"), share_of("y", "40Gi", "50")) == []


def test_whole_next_to_a_share_is_one_whichever_came_first() -> None:
    part, whole = share_of("x", "40Gi", "50"), holding(claim("y"), "a", device_name(TWO, 0))
    for order in ((part, whole), (whole, part)):
        assert rivals("default/y", *order) == ["default/x"]
        assert rivals("default/x", *order) == ["default/y"]


def test_next_to_a_whole_holder_two_shares_that_fit_are_none_with_one_another() -> None:
    whole = holding(claim("z"), "a", device_name(TWO, 0))
    parts = share_of("x", "40Gi", "50"), share_of("y", "40Gi", "50")
    assert rivals("default/x", *parts, whole) == ["default/z"]
    assert rivals("default/z", *parts, whole) == ["default/x", "default/y"]


@pytest.mark.parametrize("other", [share_of("y", "41Gi"), share_of("y", "1Gi", "51")])
def test_shares_beyond_it_are_one(other: ResourceClaim) -> None:
    mine = share_of("x", "40Gi", "50")
    assert rivals("default/x", mine, other) == ["default/y"]
    assert rivals("default/y", mine, other) == ["default/x"]


def test_a_share_of_a_gpu_that_is_not_published_is_none() -> None:
    gone = [holding_share(name, "b", "gpu-gone", {"memory": "80Gi"}) for name in ("x", "y")]
    assert rivals("default/x", *gone) == []
