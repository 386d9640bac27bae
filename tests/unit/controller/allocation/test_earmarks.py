"""Which node is kept for a pod that waits only because devices are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.earmarks import Earmark, node_to_keep
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices
from dracaena.controller.allocation.walk.pod_demand import turn
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    claim,
    device_class,
    device_name,
    holding,
    node,
    pod,
    pool_slice,
    request,
)
from support.inventories import free_mask
from support.starving_world import FOUR, created


def cel(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


def nodes(*held: int, **kinds: Any) -> Inventory:
    """Nodes a, b, … of four GPUs, of which so many are held each."""
    names = [chr(ord("a") + place) for place in range(len(held))]
    claims = [
        holding(claim(f"on-{name}-{ordinal}"), name, device_name(FOUR, ordinal))
        for name, count in zip(names, held, strict=True)
        for ordinal in range(count)
    ]
    return make_inventory(
        DRIVER,
        nodes=[node(name, **kinds.get(name, {})) for name in names],
        slices=[pool_slice(name, FOUR) for name in names],
        claims=claims,
        classes=[device_class()],
    )


def kept(inventory: Inventory, asked: ResourceClaim, waiting: Pod | None = None, **barred: str) -> str | None:
    found = node_for(inventory, waiting or pod("p", "c"), [asked], barred)
    inventory.check()
    return found


def node_for(
    inventory: Inventory, waiting: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str]
) -> str | None:
    questions = Allocator().questions(inventory, waiting, claims, barred=barred)
    return None if questions is None else node_to_keep(inventory, waiting, claims, *questions)


def test_the_node_with_the_fewest_devices_in_use_is_kept_and_of_equal_ones_the_first() -> None:
    asked = claim("c", request(count=4))
    assert kept(nodes(3, 1, 2), asked) == "b"
    assert kept(nodes(3, 2, 2), asked) == "b"


def test_a_node_that_could_not_serve_the_pod_when_empty_is_not_kept() -> None:
    asked = claim("c", request(count=4))
    assert kept(nodes(3, 1, b={"unschedulable": True}), asked) == "a"
    assert kept(nodes(3, 1), asked, b="set aside") == "a"
    assert kept(nodes(3, 1), asked, pod("p", "c", nodeSelector={"zone": "z"})) is None
    assert kept(nodes(3, 1), claim("c", request(count=5))) is None


def test_a_pod_that_names_a_device_gets_the_node_of_that_device_kept() -> None:
    inventory = nodes(1, 4, 2)
    uuid = f'device.attributes["{DRIVER}"].uuid == "{FOUR.gpus[3].uuid}"'
    asked = claim("c", request(count=1, selectors=cel(uuid)))
    before = {name: free_mask(inventory, name) for name in "abc"}
    assert kept(inventory, asked) == "a"  # all nodes of this test have GPUs of the same names
    assert {name: free_mask(inventory, name) for name in "abc"} == before
    assert kept(nodes(1, 4, 2, a={"unschedulable": True}, c={"unschedulable": True}), asked) == "b"


def test_what_the_pod_holds_itself_stays_held() -> None:
    mine = holding(claim("mine", request(count=2)), "a", device_name(FOUR, 0), device_name(FOUR, 1))
    inventory = nodes(0, 0)
    inventory.hold(claim_holder(mine), held_devices(mine, DRIVER))
    probe = [mine, claim("c", request(count=2))]
    assert node_for(inventory, pod("p", "mine", "c"), probe, {}) == "a"
    probe = [mine, claim("c", request(count=3))]
    assert node_for(inventory, pod("p", "mine", "c"), probe, {}) is None


def test_an_earmark_bars_those_who_come_later_only() -> None:
    first, second, high = created(pod("a"), 1), created(pod("b"), 1), created(pod("c", priority=1), 9)
    mark = Earmark(first.key, turn(first), "n")
    assert mark.bars(turn(second))
    assert not mark.bars(turn(first))
    assert not mark.bars(turn(high))
