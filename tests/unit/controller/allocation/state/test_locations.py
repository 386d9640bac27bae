from __future__ import annotations

import random
from dataclasses import replace

from dracaena.api.topology_levels import CLIQUE_LABEL, TopologyLevels
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.locations import Location, LocationIndex
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, node, pool_slice
from support.clusters import SMALL, SWITCHED

IN_CLIQUE = replace(SMALL, gpus=tuple(replace(gpu, fabric_clique="c.1") for gpu in SMALL.gpus))


def kinds() -> list[NodeState]:
    nodes = [node("a"), node("b")]
    slices = [pool_slice("a", SMALL), pool_slice("b", SWITCHED)]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices)
    states = [inventory.state(name) for name in ("a", "b")]
    return [replace(state, free=free) for state in states if isinstance(state, NodeState) for free in range(3)]


def test_locations_hold_what_the_last_calls_said() -> None:
    chance, states = random.Random(1), kinds()
    index, told = LocationIndex(), dict[str, tuple[Location | None, NodeState | None]]()
    for _ in range(2_000):
        name = f"n{chance.randrange(10)}"
        location: Location | None = chance.choice([None, ("b1", None), ("b1", "c.1"), (None, "c.1")])
        told[name] = location, chance.choice([None, *states])
        index.put(name, *told[name])
        expected: dict[Location, dict[object, dict[object, list[str]]]] = {}
        for name in sorted(told):
            location, state = told[name]
            is_in = location is not None and state is not None
            assert index.location(name) == (location if is_in else None)
            if location is not None and state is not None:
                by_state = expected.setdefault(location, {}).setdefault(state.kind, {})
                by_state.setdefault((state.free, state.rest), []).append(name)
        assert dict(index.locations()) == expected
        assert index.is_empty == (not expected)
        for kind in {state.kind for state in states}:
            assert index.count_of(kind) == sum(
                len(names) for buckets in expected.values() for names in buckets.get(kind, {}).values()
            )


def test_a_node_is_in_the_clique_that_all_its_gpus_name() -> None:
    torn = replace(SMALL, gpus=(IN_CLIQUE.gpus[0], *SMALL.gpus[1:]))
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in ("one", "torn", "none")],
        slices=[pool_slice("one", IN_CLIQUE), pool_slice("torn", torn), pool_slice("none", SMALL)],
    )
    inventory.check()
    assert [inventory.locations.location(name) for name in ("one", "torn", "none")] == [("c.1",), None, None]
    inventory.change_slice(pool_slice("one", IN_CLIQUE), pool_slice("one", SMALL, generation=2))
    inventory.check()
    assert inventory.locations.location("one") is None


def test_a_label_names_the_clique_where_the_slices_name_none() -> None:
    nodes = [node(name, labels={CLIQUE_LABEL: "c.2"}) for name in ("published", "labelled")]
    slices = [pool_slice("published", IN_CLIQUE), pool_slice("labelled", SMALL)]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices)
    inventory.check()
    assert [inventory.locations.location(name) for name in ("published", "labelled")] == [("c.1",), ("c.2",)]
    inventory.set_node(node("labelled"))
    inventory.check()
    assert inventory.locations.location("labelled") is None


def test_a_node_is_where_its_labels_say_from_when_they_do() -> None:
    """Nodes are labelled before and after their plugin publishes, labelled anew, and go."""
    chance = random.Random(2)
    inventory = Inventory(DRIVER, levels=TopologyLevels(("block", "rack")))
    published: dict[str, bool] = {}
    for _ in range(300):
        name = f"n{chance.randrange(4)}"
        page = pool_slice(name, IN_CLIQUE if name == "n0" else SMALL)
        match chance.choice(["label", "label", "publish", "retract", "go", "relevel"]):
            case "relevel":
                inventory.set_levels(TopologyLevels(chance.choice([(), ("rack",), ("rack", "block")])))
                inventory.check()
                inventory.set_levels(TopologyLevels(("block", "rack")))
            case "label":
                values = {key: chance.choice(["", "1", "2"]) for key in ("block", "rack")}
                inventory.set_node(node(name, labels={key: value for key, value in values.items() if value}))
            case "publish" if not published.get(name):
                inventory.change_slice(None, page)
                published[name] = True
            case "retract" if published.get(name):
                inventory.change_slice(page, None)
                published[name] = False
            case "go":
                inventory.remove_node(name)
        inventory.check()
        named = {key for known in inventory.nodes.names for key in inventory.nodes.get(known).labels}
        assert inventory.unused_levels() == tuple(key for key in ("block", "rack") if key not in named)
        for known in inventory.nodes.names:
            found = inventory.locations.location(known)
            labels = inventory.nodes.get(known).labels
            clique = "c.1" if known == "n0" else None
            if not published.get(known) or not (labels or clique):
                assert found is None
            else:
                block, rack = labels.get("block"), labels.get("rack")
                assert found == (block, None if rack is None else f"{block or '-'}/{rack}", clique)
