from __future__ import annotations

import random
from dataclasses import replace

from dracaena.controller.allocation.state.families import CliqueIndex
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, node, pool_slice
from support.clusters import SMALL, SWITCHED


def kinds() -> list[NodeState]:
    nodes = [node("a"), node("b")]
    slices = [pool_slice("a", SMALL), pool_slice("b", SWITCHED)]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices)
    states = [inventory.state(name) for name in ("a", "b")]
    return [replace(state, free=free) for state in states if isinstance(state, NodeState) for free in range(3)]


def test_cliques_hold_what_the_last_calls_said() -> None:
    chance, states = random.Random(1), kinds()
    index, told = CliqueIndex(), dict[str, tuple[str | None, NodeState | None]]()
    for _ in range(2_000):
        name = f"n{chance.randrange(10)}"
        told[name] = chance.choice([None, "c.1", "c.2"]), chance.choice([None, *states])
        index.put(name, *told[name])
        expected: dict[str, dict[object, dict[object, list[str]]]] = {}
        for name in sorted(told):
            clique, state = told[name]
            is_in = clique is not None and state is not None
            assert index.clique(name) == (clique if is_in else None)
            if clique is not None and state is not None:
                by_state = expected.setdefault(clique, {}).setdefault(state.kind, {})
                by_state.setdefault((state.free, state.rest), []).append(name)
        assert dict(index.cliques()) == expected
        for kind in {state.kind for state in states}:
            assert index.count_of(kind) == sum(
                len(names) for buckets in expected.values() for names in buckets.get(kind, {}).values()
            )


def test_a_node_is_in_the_clique_that_all_its_gpus_name() -> None:
    gpus = SMALL.gpus
    in_one = tuple(replace(gpu, fabric_clique="c.1") for gpu in gpus)
    torn = (in_one[0], *gpus[1:])
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in ("one", "torn", "none")],
        slices=[
            pool_slice("one", replace(SMALL, gpus=in_one)),
            pool_slice("torn", replace(SMALL, gpus=torn)),
            pool_slice("none", SMALL),
        ],
    )
    inventory.check()
    assert [inventory.cliques.clique(name) for name in ("one", "torn", "none")] == ["c.1", None, None]
    inventory.change_slice(pool_slice("one", replace(SMALL, gpus=in_one)), pool_slice("one", SMALL, generation=2))
    inventory.check()
    assert inventory.cliques.clique("one") is None
