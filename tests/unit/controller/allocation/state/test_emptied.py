from __future__ import annotations

from dracaena.controller.allocation.state.emptied import emptied
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, device_name, holding, node, pool_slice
from support.inventories import free_mask
from support.starving_world import FOUR


def test_an_inventory_is_as_before_after_a_node_was_emptied_in_thought() -> None:
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in "ab"],
        slices=[pool_slice(name, FOUR) for name in "ab"],
        claims=[
            holding(claim("c"), "a", *(device_name(FOUR, ordinal) for ordinal in range(4))),
            holding(claim("d"), "b", device_name(FOUR, 0), device_name(FOUR, 1)),
        ],
        classes=[device_class()],
    )
    before = {name: free_mask(inventory, name) for name in "ab"}
    with emptied(inventory, "a", inventory.holdings.of_pool("a")):
        assert free_mask(inventory, "a") == 0b1111
        assert free_mask(inventory, "b") == before["b"]
    assert {name: free_mask(inventory, name) for name in "ab"} == before
    inventory.check()
