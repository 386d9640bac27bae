"""Where pods of a family go, against a slow, obvious version that asks every node; and by example."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import msgspec
import pytest

from dracaena.api.decision import describe
from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.topology_levels import NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation, commit, decision_of
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.state.gangs import GROUP_LABEL, GROUP_SIZE_ANNOTATION, JOB_INDEX_LABEL, JOB_LABEL
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.node_rules import NodeRules
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_name, node, own_config, pod, pool_slice, request
from support.clusters import (
    BRIDGED,
    CLASSES,
    LEVELS,
    SWITCHED,
    put_into_cliques,
    put_into_racks,
    random_claims,
    random_cluster,
    random_pod,
)
from support.inventories import filled
from support.mig_nodes import mig_classes, mig_slices, part
from support.mig_tables import A100
from support.seeds import in_turn
from support.slow_nodes import SlowFamily, SlowVersion

SHARES = (None, (0, 0, 0), (16, 16, 16), (0, 60, 4))
WAYS = tuple(product(SHARES, [(), ("other.example.com",)]))
"""Prices, and the other drivers whose devices nodes may have."""


def of_family(base: Pod, name: str, size: int | None = None) -> Pod:
    """The pod as one of a family called f; with a size it is a group of a LeaderWorkerSet."""
    labels = {JOB_LABEL: "f", JOB_INDEX_LABEL: "0"} if size is None else {GROUP_LABEL: "f"}
    annotations = {} if size is None else {GROUP_SIZE_ANNOTATION: str(size)}
    meta = msgspec.structs.replace(base.metadata, name=name, uid=name, labels=labels, annotations=annotations)
    return msgspec.structs.replace(base, metadata=meta)


@pytest.mark.parametrize(("first_seed", "way"), in_turn(range(0, 120, 10), 2, 8, WAYS))
def test_the_answer_is_that_of_asking_every_node(
    first_seed: int, way: tuple[tuple[int, int, int] | None, tuple[str, ...]]
) -> None:
    """With other drivers allowed all nodes are asked by the rules, where scores are bounds."""
    shares, others = way
    allocator = Allocator()
    for seed in range(first_seed, first_seed + 10):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        put_into_cliques(rng, cluster)
        levels = LEVELS if rng.random() < 0.7 else NO_LEVELS
        put_into_racks(rng, cluster)
        inventory = Inventory(DRIVER, others, levels)
        filled(inventory, nodes=cluster.nodes, slices=cluster.slices.values(), classes=CLASSES)
        inventory.hold("others", cluster.held)
        inventory.check()
        if shares is not None:
            allocator.reprice(inventory, shares)
        slow = SlowVersion(cluster, Engine(allocator.engine.prices))
        for _ in range(3):
            size = rng.choice([None, None, 1, 3, 6])
            siblings: dict[str, int] = {}
            for number in range(rng.choice([0, 1, 3]) if cluster.nodes else 0):
                name = rng.choice(cluster.nodes).metadata.name
                siblings[name] = siblings.get(name, 0) + 1
                inventory.families.place(of_family(pod("s", "c"), f"s{number}", size), name)
            asking, claims = of_family(random_pod(rng), "p", size), random_claims(rng, cluster)
            family = SlowFamily(slow, siblings, size, levels)
            found = slow.by_node(asking, claims)
            keys = {
                name: family.key(name, claims, one.score) for name, one in found.items() if not isinstance(one, str)
            }
            order = sorted(keys, key=lambda name: (keys[name], name))
            decision = allocator.allocate(inventory, asking, claims)
            assert isinstance(decision, Allocation) == bool(order)
            if isinstance(decision, Allocation):
                best = found[order[0]]
                assert not isinstance(best, str)
                assert (decision.node, decision.choice.mask) == (order[0], best.mask)
                second = decision.runner_up
                if second is not None and second.pool.node != decision.node:
                    assert second.pool.node == order[1]
                counts = decision.census.reasons(decision.choice)
                assert sum(count for _, count in counts) == len(cluster.nodes) - 1
            for number in range(3):
                inventory.families.place(of_family(pod("s", "c"), f"s{number}", size), None)


def racks(*sizes: int, others: tuple[str, ...] = (), levels: TopologyLevels = NO_LEVELS) -> Inventory:
    """Cliques a, b, … of so many nodes of 8 GPUs each."""
    inventory = filled(Inventory(DRIVER, others, levels), nodes=(), slices=(), classes=CLASSES)
    for rack, size in zip("abcdef", sizes, strict=False):
        gpus = tuple(replace(gpu, fabric_clique=f"c.{rack}") for gpu in SWITCHED.gpus)
        for number in range(size):
            name = f"{rack}{number}"
            inventory.set_node(node(name))
            inventory.change_slice(None, pool_slice(name, replace(SWITCHED, gpus=gpus)))
    return inventory


def place(inventory: Inventory, name: str, *, size: int | None = None, count: int = 8, ignored: bool = False) -> str:
    """Decide for the next pod of the family, and let it have what it gets."""
    policy = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "siblings": "Ignored"}
    asked = claim(name, request(count=count), configs=[own_config(policy)] if ignored else [])
    asking = of_family(pod(name, name), name, size)
    decision = Allocator().allocate(inventory, asking, [asked])
    assert isinstance(decision, Allocation)
    commit(inventory, decision)
    inventory.families.place(asking, decision.node)
    return decision.node


def test_the_first_goes_where_most_have_room_and_the_others_follow() -> None:
    inventory = racks(1, 2, 3, 2)
    assert [place(inventory, f"p{number}") for number in range(4)] == ["c0", "c1", "c2", "b0"]


def test_a_family_of_known_size_goes_where_it_fits_tightly() -> None:
    inventory = racks(1, 3, 2, 4)
    assert [place(inventory, f"p{number}", size=2) for number in range(2)] == ["c0", "c1"]


def test_a_family_too_large_for_any_domain_begins_in_the_roomiest() -> None:
    inventory = racks(1, 3, 2)
    assert place(inventory, "p", size=4) == "b0"


def halls(*sizes: int) -> Inventory:
    """Racks a, b, … of so many nodes without cliques, two racks to a block."""
    inventory = filled(Inventory(DRIVER, (), LEVELS), nodes=(), slices=(), classes=CLASSES)
    block, rack = LEVELS.labels
    for place, (letter, size) in enumerate(zip("abcdef", sizes, strict=False)):
        for number in range(size):
            name = f"{letter}{number}"
            inventory.set_node(node(name, labels={block: f"block-{place // 2}", rack: letter}))
            inventory.change_slice(None, pool_slice(name, SWITCHED))
    return inventory


def test_pods_that_fill_a_rack_go_on_in_the_next_one_of_their_block() -> None:
    inventory = halls(1, 2, 2, 1)
    assert [place(inventory, f"p{number}") for number in range(5)] == ["b0", "b1", "a0", "c0", "c1"]


def test_a_family_of_known_size_goes_to_the_smallest_level_that_holds_it() -> None:
    """Racks of 3, 1, 2, 3: two fit tightest into the rack of 2, four into the first block, and six nowhere but in the
    second and beyond; there they begin in the roomiest rack."""
    inventory = halls(3, 1, 2, 3)
    assert [place(inventory, f"p{number}", size=2) for number in range(2)] == ["c0", "c1"]
    assert place(halls(3, 1, 2, 3), "p", size=4) == "a0"
    assert place(halls(3, 1, 2, 3), "p", size=5) == "d0"
    assert place(halls(3, 1, 2, 3), "p", size=9) == "a0"


def test_a_family_of_unknown_size_begins_in_the_roomiest_rack() -> None:
    assert place(halls(1, 3, 2, 2), "p") == "b0"


def test_the_nearest_sibling_counts_not_the_number_farther_away() -> None:
    inventory = halls(2, 2, 2)
    for number, name in enumerate(["a0", "a1", "b0", "c0"]):
        asking = of_family(pod("s", "c"), f"s{number}")
        inventory.families.place(asking, name)
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device_name(SWITCHED, gpu)) for gpu in range(8)))
    assert [place(inventory, f"p{number}") for number in range(2)] == ["b1", "c1"]


def test_at_one_distance_the_domain_with_the_most_siblings_counts() -> None:
    inventory = halls(3, 4)
    for number, name in enumerate(["a0", "b0", "b1"]):
        inventory.families.place(of_family(pod("s", "c"), f"s{number}"), name)
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device_name(SWITCHED, gpu)) for gpu in range(8)))
    assert place(inventory, "p") == "b2"


def test_of_equal_nodes_in_a_rack_the_one_with_a_sibling_counts() -> None:
    inventory = halls(2)
    for name in ("a0", "a1"):
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device_name(SWITCHED, gpu)) for gpu in range(4)))
    inventory.families.place(of_family(pod("s", "c"), "s"), "a1")
    assert place(inventory, "p", count=4) == "a1"


def test_the_roomiest_clique_counts_before_the_roomiest_block() -> None:
    inventory = racks(2, 2, 2, 3, levels=LEVELS)
    for name in inventory.nodes.names:
        inventory.set_node(
            node(name, labels={LEVELS.labels[0]: "block-1" if name in ("d0", "d1", "d2") else "block-0"})
        )
    assert place(inventory, "p") == "d0"


def test_where_one_node_has_room_for_all_it_does_not_matter_what_is_around_it() -> None:
    """Equal nodes go by name, however much room their racks have."""
    inventory = halls(1, 2)
    for name in ("a0", "b0"):
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device_name(SWITCHED, gpu)) for gpu in range(7)))
    assert place(inventory, "p", size=1, count=1) == "a0"


def test_nodes_without_a_clique_are_domains_of_their_own() -> None:
    nodes = [node(f"n{number}") for number in range(3)]
    slices = [pool_slice(item.metadata.name, SWITCHED) for item in nodes]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices, classes=CLASSES)
    inventory.families.place(of_family(pod("s", "c"), "s"), "n1")
    assert place(inventory, "p", count=2) == "n1"


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_siblings_come_before_what_others_lose_for_a_pod_with_parts_too(gpus: int) -> None:
    """Beside siblings a group of 8 is broken, elsewhere none is."""
    nodes = [node(name) for name in ("elsewhere", "siblings")]
    slices = [page for one in nodes for page in mig_slices(one.metadata.name, SWITCHED, [A100] * len(SWITCHED.gpus))]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices, classes=mig_classes())
    inventory.families.place(of_family(pod("s", "c"), "s"), "siblings")
    pool = inventory.pool("elsewhere")
    assert pool is not None
    inventory.hold("others", frozenset({DeviceId(DRIVER, "elsewhere", pool.devices[0] or "")}))
    asked = claim("p", part("part", "1g.10gb"), *([request("gpus", gpus)] if gpus else []))
    for asking, chosen in ((of_family(pod("p", "p"), "p"), "siblings"), (pod("p", "p"), "elsewhere")):
        decision = Allocator().allocate(inventory, asking, [asked])
        assert isinstance(decision, Allocation)
        assert decision.node == chosen


@pytest.mark.parametrize(("size", "node_name"), [(None, "fuller"), (3, "emptier"), (1, "fuller")])
def test_room_on_a_node_counts_only_where_the_size_of_the_family_is_known(size: int | None, node_name: str) -> None:
    """A lone pod of a Job finishes the node that is in use."""
    nodes = [node(name) for name in ("emptier", "fuller")]
    slices = [pool_slice(item.metadata.name, SWITCHED) for item in nodes]
    inventory = make_inventory(DRIVER, nodes=nodes, slices=slices, classes=CLASSES)
    for name, count in (("emptier", 5), ("fuller", 7)):
        pool = inventory.pool(name)
        assert pool is not None
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device or "") for device in pool.devices[:count]))
    allocator = Allocator()
    allocator.reprice(inventory, (0, 0, 0))
    asking = of_family(pod("p", "p"), "p", size)
    decision = allocator.allocate(inventory, asking, [claim("p", request(count=1))])
    assert isinstance(decision, Allocation)
    assert decision.node == node_name


def test_a_policy_turns_it_off() -> None:
    inventory = racks(1, 2, 3)
    assert [place(inventory, f"p{number}", ignored=True) for number in range(3)] == ["a0", "b0", "b1"]


def test_a_pod_without_a_family_goes_where_it_went_before() -> None:
    inventory = racks(1, 2, 3)
    inventory.families.place(of_family(pod("s", "c"), "s"), "b1")
    decision = Allocator().allocate(inventory, pod("p", "c"), [claim("c", request(count=8))])
    assert isinstance(decision, Allocation)
    assert decision.node == "a0"
    assert "sibling_pods" not in dict(decision.choice.score.parts())


def test_the_bandwidth_of_the_pods_own_set_comes_first() -> None:
    inventory = make_inventory(
        DRIVER,
        nodes=[node("bridged"), node("switched")],
        slices=[pool_slice("bridged", BRIDGED), pool_slice("switched", SWITCHED)],
        classes=CLASSES,
    )
    inventory.families.place(of_family(pod("s", "c"), "s"), "bridged")
    assert place(inventory, "p", count=4) == "switched"


def test_it_is_said_in_words() -> None:
    inventory = racks(2, 3)
    place(inventory, "p0")
    asked = claim("p1", request(count=8))
    decision = Allocator().allocate(inventory, of_family(pod("p1", "p1"), "p1"), [asked])
    assert isinstance(decision, Allocation)
    (entry,) = decision.claims
    assert describe(decision_of(decision, entry)).startswith("8 of the GPUs of b1")
    assert "worse in" not in describe(decision_of(decision, entry)).split("other nodes")[0]
    assert "2 worse in distance to its family" in describe(decision_of(decision, entry))


def test_the_rules_are_asked_about_no_node_that_cannot_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = NodeRules.ask

    def noted(self: NodeRules, name: str) -> object:
        asked.append(name)
        return ask(self, name)

    monkeypatch.setattr(NodeRules, "ask", noted)
    inventory = racks(1, 2, 3, others=("other.example.com",))
    inventory.families.place(of_family(pod("s", "c"), "s"), "b1")
    assert place(inventory, "p", count=2) == "b0"
    assert asked == ["b0", "b1"]  # the winner and the runner-up
