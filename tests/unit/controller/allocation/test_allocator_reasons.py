"""Why nodes were not taken, and why none is: each node is counted once, for its first reason in a fixed order.

The slow version here asks node by node and check by check. Where devices are chosen by the rules themselves (joint)
the words for nodes that the walk does not come to are others, and their number is the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dracaena.api.decision import part_in_words
from dracaena.api.device_id import DeviceId
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.effort import OverdueError, never
from dracaena.controller.allocation.explanation import AtOnce, Pace, Unsatisfied
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.nodes.pod_resources import pod_resources
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.score.order import LATER_BY_NAME
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk import walk
from dracaena.controller.allocation.walk.answers import NOT_SELECTED
from dracaena.controller.allocation.walk.judgements import UNSCORED
from dracaena.controller.allocation.walk.lasting import LastingLacks
from dracaena.controller.allocation.walk.node_rules import NodeRules
from dracaena.controller.allocation.walk.pod_demand import facts_of
from dracaena.controller.allocation.walk.walk import NO_ROOM, NOT_BETTER, NOT_IN_TIME
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice, request
from support.allocation import pod as plain_pod
from support.clusters import CLASSES, SICK, SMALL, SWITCHED, random_claims, random_cluster, random_pod
from support.inventories import filled
from support.node_fit import unfit_reason
from support.seeds import sampled
from support.slow_nodes import SlowVersion

AHEAD = "that come after the winner"
"""Stands for whatever is said of nodes that have something to give, and no more than the winner."""

FITS = "fits"

ENGINE = Engine()


class World:
    """A random cluster with cpu, some of it taken, and nodes that the pod must not use."""

    def __init__(self, seed: int, most_nodes: int = 12) -> None:
        self.rng = rng = random.Random(seed)
        self.cluster = random_cluster(rng, most_nodes)
        self.cpu = {item.metadata.name: rng.choice([2, 4, 8, 8]) for item in self.cluster.nodes}
        self.used = {name: rng.choice([0, 0, 0, 2, 7]) for name in self.cpu}
        self.cluster.nodes = [with_cpu(item, self.cpu[item.metadata.name]) for item in self.cluster.nodes]
        self.slow = SlowVersion(self.cluster, ENGINE)

    def inventory(self, *allowed_drivers: str) -> Inventory:
        empty = Inventory(DRIVER, allowed_drivers)
        slices = self.cluster.slices.values()
        inventory = filled(empty, nodes=self.cluster.nodes, slices=slices, classes=CLASSES)
        inventory.hold("others", self.cluster.held)
        for name, cpu in self.used.items():
            inventory.resources.place_pod(f"hog-{name}", name, pod_resources(with_requests(plain_pod("hog"), cpu)))
        return inventory

    def question(self) -> tuple[Pod, list[ResourceClaim], dict[str, str]]:
        rng = self.rng
        asking = with_requests(random_pod(rng), rng.choice([0, 1, 3, 3, 6]))
        names = [item.metadata.name for item in self.cluster.nodes]
        barred = {name: rng.choice(["kept for another pod", "tried before"]) for name in names if rng.random() < 0.15}
        return asking, random_claims(rng, self.cluster), barred

    def change(self, inventory: Inventory) -> None:
        """Let something happen: GPUs are taken or freed, cpu is, or a node goes."""
        if not self.cluster.nodes:
            return
        name = self.rng.choice(self.cluster.nodes).metadata.name
        what = self.rng.random()
        if what < 0.6 and self.cluster.taken.get(name) is not None:
            gpus, busy = range(len(self.cluster.machines[name].gpus)), self.rng.choice([0, 0.5, 0.9])
            self.cluster.taken[name] = {ordinal for ordinal in gpus if self.rng.random() < busy}
            inventory.hold("others", self.cluster.held)
        elif what < 0.9:
            self.used[name] = self.rng.choice([0, 2, 7])
            resources = pod_resources(with_requests(plain_pod("hog"), self.used[name]))
            inventory.resources.place_pod(f"hog-{name}", name, resources)
        else:
            self.cluster.nodes = [item for item in self.cluster.nodes if item.metadata.name != name]
            inventory.remove_node(name)

    def room(self, item: Node, asking: Pod) -> str | None:
        name, asked = item.metadata.name, cpu_of(asking)
        if not asked or asking.spec.node_name or self.cpu[name] - self.used[name] >= asked:
            return None
        if self.cpu[name] < asked:
            return "that have less cpu than the pod needs, even when nothing else runs there"
        return "with too little free cpu"

    def fits_nowhere(self, asking: Pod, claims: Sequence[ResourceClaim], barred: dict[str, str]) -> dict[str, str]:
        """Each node with its first reason, in the order of Allocator.explain()."""
        found = {}
        for item in self.cluster.nodes:
            name, slow = item.metadata.name, self.slow
            if slow.is_pinned_elsewhere(item, claims):
                found[name] = "other than the node of a claim that is already allocated"
            elif (outside := slow.outside(item)) is not None:
                found[name] = outside
            elif name in barred:
                found[name] = barred[name]
            elif (unfit := unfit_reason(asking, item)) is not None:
                found[name] = unfit
            elif isinstance(given := slow.lack(item, claims), str):
                found[name] = given
            else:
                found[name] = self.room(item, asking) or FITS
        return found

    def beside(
        self, inventory: Inventory, asking: Pod, claims: Sequence[ResourceClaim], barred: dict[str, str], node_name: str
    ) -> Counter[str]:
        """Count the nodes beside the one that was taken by their first reason, in the order of Walk.census()."""
        taken = next(item for item in self.cluster.nodes if item.metadata.name == node_name)
        best = self.slow.devices(taken, claims)
        assert isinstance(best, Choice)
        selected = NodeFilter(asking, pins_of(claims)).narrowed(inventory.nodes)
        counts: Counter[str] = Counter()
        for item in self.cluster.nodes:
            name = item.metadata.name
            if name == node_name:
                continue
            if (outside := self.slow.outside(item)) is not None:
                counts[outside] += 1
            elif selected is not None and name not in selected:
                counts[NOT_SELECTED] += 1
            elif isinstance(given := self.slow.devices(item, claims), str):
                # What is said of all nodes of a kind comes first, and what only the node itself can tell last.
                why = self.room(item, asking) or self.unfit(item, asking, claims, barred)
                counts[given if not is_mixed(inventory, name) or why == FITS else why] += 1
            elif (given.score.node_rank(), name) > (best.score.node_rank(), node_name):
                part = best.score.first_difference(given.score)
                counts[LATER_BY_NAME if part is None else f"worse in {part_in_words(part)}"] += 1
            else:
                counts[self.room(item, asking) or self.unfit(item, asking, claims, barred)] += 1
        return counts

    def unfit(self, item: Node, asking: Pod, claims: Sequence[ResourceClaim], barred: dict[str, str]) -> str:
        if self.slow.is_pinned_elsewhere(item, claims):
            return "other than the node of a claim that is already allocated"
        return barred.get(item.metadata.name) or unfit_reason(asking, item) or FITS


def is_mixed(inventory: Inventory, name: str) -> bool:
    state = inventory.state(name)
    return not isinstance(state, str) and inventory.is_mixed(state.kind)


def ask_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer for a kind of node be all there is to know."""
    place = "dracaena.controller.allocation.allocator.facts_of"
    monkeypatch.setattr(place, lambda *args: dataclasses.replace(facts_of(*args), exact=False))


def with_cpu(item: Node, cpu: int) -> Node:
    document = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": str(cpu), "pods": "110"}}}
    return msgspec.structs.replace(item, status=msgspec.json.decode(msgspec.json.encode(document), type=Node).status)


def with_requests(item: Pod, cpu: int) -> Pod:
    made = plain_pod("p", containers=[{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}])
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, containers=made.spec.containers))


def cpu_of(asking: Pod) -> int:
    return int(asking.spec.containers[0].resources.requests["cpu"])


def pins_of(claims: Sequence[ResourceClaim]) -> list[Any]:
    allocations = [asked.status.allocation for asked in claims if asked.status.allocation is not None]
    return [one.node_selector for one in allocations if one.node_selector is not None]


def in_few_words(counts: Mapping[str, int], way: str) -> Counter[str]:
    """Want of room is told in two ways, as the walk came to the node or not. A walk by the rules themselves does not
    know what those nodes give that it did not come to, and has its own words for devices."""
    few: Counter[str] = Counter()
    for text, count in counts.items():
        if text == NO_ROOM or text.endswith("free cpu") or text.startswith("that have less cpu"):
            few["room"] += count
        elif way != BY_KIND and (text in (NOT_BETTER, LATER_BY_NAME) or text.startswith("worse in ")):
            few[AHEAD] += count
        elif way == MIXED and (any(words in text for words in OF_DEVICES) or text.startswith("where ")):
            few["devices"] += count
        else:
            few[text] += count
    return few


OF_DEVICES = ("free GPU", "whole GPU", "untainted GPU", "fewer than", "without a GPU", "GPUs that", "whose GPUs do")
"""Stand in what is said of nodes without the devices, but not in what is said of those without usable ones."""

BY_KIND, BY_RULES, MIXED = "by kind", "by the rules", "beside devices of other drivers"


@pytest.mark.parametrize("first_seed", sampled(range(0, 200, 5), 1, 4))
@pytest.mark.parametrize("way", [BY_KIND, BY_RULES, MIXED])
def test_each_node_is_counted_once_for_its_first_reason(
    first_seed: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "PATIENCE", 2)  # so that nodes without room are left out beforehand here too
    if way == BY_RULES:
        ask_the_rules(monkeypatch)
    allocator = Allocator()
    for seed in range(first_seed, first_seed + 5):
        world = World(seed)
        inventory = world.inventory(*(["nic.example.com"] if way == MIXED else []))
        for _ in range(3):
            asking, claims, barred = world.question()
            decision = allocator.allocate(inventory, asking, claims, barred=barred)
            reasons = world.fits_nowhere(asking, claims, barred)
            assert isinstance(decision, Allocation) == (FITS in reasons.values()), seed
            if isinstance(decision, Allocation):
                told = Counter(dict(decision.census.reasons(decision.choice)))
                assert told.total() == len(world.cluster.nodes) - 1, seed
                slow = world.beside(inventory, asking, claims, barred, decision.node)
                assert in_few_words(told, way) == in_few_words(slow, way), seed
                assert explained(allocator, inventory, asking, claims, barred) is None
            else:
                assert isinstance(decision, NoFit)
                found = explained(allocator, inventory, asking, claims, barred)
                assert isinstance(found, Unsatisfied)
                told = Counter({one.text: one.count for one in found.reasons})
                assert found.nodes == told.total() == len(reasons)
                assert in_few_words(told, way) == in_few_words(Counter(reasons.values()), way), seed
                for one in found.reasons if way != MIXED else ():
                    assert list(one.nodes) == sorted(name for name, why in reasons.items() if why == one.text)[:3]


def explained(
    allocator: Allocator,
    inventory: Inventory,
    asking: Pod,
    claims: Sequence[ResourceClaim],
    barred: dict[str, str],
    pace: Pace | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Unsatisfied | Refused | None:
    """What Allocator.explain_in_turns() returns; between all turns something may happen."""
    turns = allocator.explain_in_turns(inventory, asking, claims, barred=barred, pace=pace or AtOnce())
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        meanwhile()


class OneNodeATurn:
    """Implements Pace: others have a turn after each node."""

    def begin_turn(self) -> Callable[[int], bool]:
        return never

    def turn_is_up(self) -> bool:
        return True

    def rest(self) -> None:
        raise AssertionError("it is not the allocator that rests")


def explained_in_turns(
    inventory: Inventory,
    asking: Pod,
    claims: Sequence[ResourceClaim],
    barred: dict[str, str],
    meanwhile: Callable[[], object],
) -> Unsatisfied | Refused | None:
    """The same, with a turn for each node."""
    return explained(Allocator(), inventory, asking, claims, barred, OneNodeATurn(), meanwhile)


def test_alternatives_are_looked_at_until_one_node_could_serve_one_and_not_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = 0

    class Counted(LastingLacks):
        def __init__(self, *arguments: Any) -> None:
            nonlocal built
            built += 1
            super().__init__(*arguments)

    monkeypatch.setattr("dracaena.controller.allocation.allocator.LastingLacks", Counted)
    names = [f"n{number}" for number in range(5)]
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in names],
        slices=[pool_slice(name, SMALL) for name in names],
        claims=[holding(claim(f"{name}-{o}"), name, device_name(SMALL, o)) for name in names for o in range(2)],
        classes=CLASSES,
    )
    alternatives = [{"name": f"a{number}", "deviceClassName": DRIVER} for number in range(8)]
    asked = claim("c", *({"name": name, "firstAvailable": alternatives} for name in ("x", "y")))
    found = explained_in_turns(inventory, plain_pod("p", "c"), [asked], {}, lambda: None)
    assert isinstance(found, Unsatisfied)
    assert (found.nodes, found.never) == (5, "")
    assert built == 8 * 8 + 4


def test_turns_in_which_nothing_happens_change_nothing() -> None:
    known = 0
    for seed in range(60):
        world = World(seed)
        inventory = world.inventory()
        asking, claims, barred = world.question()
        found = explained(Allocator(), inventory, asking, claims, barred)
        known += found is not None
        assert explained_in_turns(inventory, asking, claims, barred, lambda: None) == found, seed
    assert known > 20


@pytest.mark.parametrize("first_seed", sampled(range(0, 150, 5), 1, 5))
def test_each_node_counts_under_the_reason_that_held_when_it_was_looked_at(first_seed: int) -> None:
    """One step of the slow version for each turn, on the cluster as it is then."""
    for seed in range(first_seed, first_seed + 5):
        world = World(seed)
        inventory = world.inventory()
        asking, claims, barred = world.question()
        now = world.fits_nowhere(asking, claims, barred)
        if not now or FITS in now.values():
            continue
        left = sorted(now)
        slow: list[str] = []

        def look_and_go_on() -> None:
            there = world.fits_nowhere(asking, claims, barred)  # noqa: B023 - called within this step of the loop
            gone = next((place for place, name in enumerate(left) if name in there), len(left))  # noqa: B023
            slow.extend(there[name] for name in left[gone : gone + 1])  # noqa: B023
            del left[: gone + 1]  # noqa: B023
            world.change(inventory)  # noqa: B023

        found = explained_in_turns(inventory, asking, claims, barred, look_and_go_on)
        look_and_go_on()
        inventory.check()
        if found is None:
            assert FITS in slow, seed
            continue
        assert isinstance(found, Unsatisfied)
        told = Counter({one.text: one.count for one in found.reasons})
        assert in_few_words(told, BY_KIND) == in_few_words(Counter(slow), BY_KIND), seed


@pytest.mark.parametrize("freed", ["node-0", "node-1", "node-2"])
def test_a_pod_for_which_room_comes_meanwhile_fits_after_all(freed: str) -> None:
    """Unless it comes where it was looked for already: the pod is woken by that as ever."""
    names = ("node-0", "node-1", "node-2")
    inventory = make_inventory(
        DRIVER, nodes=list(map(node, names)), slices=[pool_slice(name, SMALL) for name in names], classes=CLASSES
    )
    for name in names:
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device_name(SMALL, o)) for o in range(len(SMALL.gpus))))
    asked = [claim("c", request(count=2))]
    found = explained_in_turns(inventory, plain_pod("p"), asked, {}, lambda: inventory.release(freed))
    assert (found is None) == (freed != "node-0")
    assert isinstance(Allocator().allocate(inventory, plain_pod("p"), asked), Allocation)


def test_a_class_that_goes_between_two_turns_is_said() -> None:
    world = World(3)
    inventory = world.inventory()
    found = explained_in_turns(
        inventory,
        plain_pod("p"),
        [claim("c", request(count=31))],
        {},
        lambda: inventory.remove_class(CLASSES[0].metadata.name),
    )
    assert isinstance(found, Refused)
    assert found.kind is RefusalKind.CLASS_MISSING


def with_mig_devices() -> Machine:
    """One GPU, and another one in two parts."""
    pair = machine("pair", blocks(2, inside="NV12", outside="NV12"))
    parent = pair.gpus[0].uuid
    parts = tuple(
        MigDevice(parent, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in range(2)
    )
    return dataclasses.replace(pair, mig_devices=parts)


def test_nodes_with_more_than_whole_gpus_are_counted_among_the_others() -> None:
    """Only the rules can tell what those give, and they are asked when no node has enough whole GPUs."""
    machines = {"mig-0": with_mig_devices(), "mig-1": with_mig_devices(), "small": SMALL, "cordoned": SWITCHED}
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name, unschedulable=name == "cordoned") for name in (*machines, "none")],
        slices=[pool_slice(name, made) for name, made in machines.items()],
        classes=CLASSES,
    )
    given = Allocator().allocate(inventory, plain_pod("p"), [claim("c", request(count=3))])
    assert isinstance(given, Allocation)
    assert given.node == "mig-0"
    assert dict(given.census.reasons(given.choice)) == {
        LATER_BY_NAME: 1,
        "cordoned": 1,
        "with fewer than 3 free GPUs": 1,
        f"without usable GPUs of {DRIVER}": 1,
    }
    found = Allocator().explain(inventory, plain_pod("p"), [claim("c", request(count=5))])
    assert isinstance(found, Unsatisfied)
    told = {one.text: one.count for one in found.reasons}
    assert sum(told.values()) == 5
    assert told["where there are fewer devices than requested"] == 2


def test_nodes_behind_the_winner_come_later_and_lack_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buckets of one rank are visited side by side, and nodes without room are left out after the first."""
    monkeypatch.setattr(walk, "PATIENCE", 1)
    one, other = (
        machine("one", blocks(2, inside="PIX", outside="PIX")),
        machine("other", blocks(2, inside="PIX", outside="PIX")),
    )
    names = {"a": 1, "b": 1, "d": 8, "e": 1, "f": 8}
    sick = {name: name in "bef" for name in names}
    inventory = make_inventory(
        DRIVER,
        nodes=[with_cpu(node(name), cpu) for name, cpu in names.items()],
        slices=[
            pool_slice(name, one, foreign={0: [SICK]}) if sick[name] else pool_slice(name, other) for name in names
        ],
        classes=CLASSES,
    )
    tolerant = request(count=2, tolerations=[{"key": "sick", "operator": "Exists"}])
    given = Allocator().allocate(inventory, with_requests(plain_pod("p"), 4), [claim("c", tolerant)])
    assert isinstance(given, Allocation)
    assert given.node == "d"
    assert len(inventory.buckets) == 2
    told = dict(given.census.reasons(given.choice))
    assert told == {
        "that have less cpu than the pod needs, even when nothing else runs there": 1,
        NO_ROOM: 1,
        LATER_BY_NAME: 2,
    }


def test_nodes_that_were_not_asked_in_time_are_not_said_to_be_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node gives less than it seemed to; the time is over before the second is asked, which may give more."""
    ask_the_rules(monkeypatch)
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in "abc"],
        slices=[pool_slice(name, SWITCHED) for name in "abc"],
        classes=CLASSES,
    )
    ask, asked = NodeRules.ask, []

    def worse_and_then_too_late(rules: NodeRules, name: str) -> Any:
        asked.append(name)
        if len(asked) == 2:
            raise OverdueError
        return ask(rules, name)

    monkeypatch.setattr(NodeRules, "are_alike", lambda *_: False)
    monkeypatch.setattr(NodeRules, "ask", worse_and_then_too_late)
    monkeypatch.setattr(NodeRules, "rank", lambda rules, choice: UNSCORED)
    given = Allocator().allocate(inventory, plain_pod("p"), [claim("c", request(count=2))])
    assert isinstance(given, Allocation)
    assert (given.node, asked[:2]) == ("a", ["a", "b"])
    assert dict(given.census.reasons(given.choice)) == {NOT_IN_TIME: 2}
    assert given.runner_up is None or given.runner_up.pool.node != "a"
