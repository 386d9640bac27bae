"""Buckets keep their place for a question while nodes come to other states: what a decision says after any number of
changes is what it says of a cluster that was only now read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.effort import Effort, OverdueError
from dracaena.controller.allocation.request import Eligibility, Question
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.state import node_state
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeBuckets, NodeState
from dracaena.controller.allocation.state.pool import read_pool
from dracaena.controller.allocation.walk.answers import Answers, KindAnswers, NodeAnswer, Ranking
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_name, own_config, pod, pool_slice, request
from support.clusters import CLASSES, MACHINES, SWITCHED, ZONES, random_cluster, random_node, random_slice
from support.seeds import sampled

CHANGES = 40
"""Of each world: each node comes to some other states, and buckets become empty and fill again."""

NVLINK = own_config({"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": "NVLink"})
CLAIMS = (
    claim("c"),
    claim("c", request(count=2)),
    claim("c", request(count=4)),
    claim("c", request(count=2), configs=[NVLINK]),
)
PODS = (pod("p"), pod("p"), pod("p", nodeSelector={"zone": ZONES[0]}))


class ChangingCluster:
    """A cluster whose inventory is told of each change, and that can be read anew."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.objects = random_cluster(self.rng)
        for name in self.objects.machines:
            self.objects.taken.setdefault(name, set())
        self.inventory = self.read()

    def read(self) -> Inventory:
        """Return an inventory that knows nothing but what is there now."""
        objects = self.objects
        inventory = make_inventory(DRIVER, nodes=objects.nodes, slices=objects.slices.values(), classes=CLASSES)
        for name in objects.taken:
            inventory.hold(name, self._taken(name))
        return inventory

    def change(self) -> None:
        """Let devices of a node come free or be taken; now and then let a node or its slice come, go or change."""
        name, what = f"node-{self.rng.randrange(12):02}", self.rng.random()
        if name not in self.objects.machines:
            self._publish(name)
        elif what < 0.8:
            gpus = len(self.objects.machines[name].gpus)
            count = self.rng.choice([0, 0, gpus, self.rng.randint(0, gpus)])
            self.objects.taken[name] = set(self.rng.sample(range(gpus), count))
            self.inventory.hold(name, self._taken(name))
        elif what < 0.85:
            self._withdraw(name)
        else:
            self._set_node(name, goes=what < 0.9)

    def _set_node(self, name: str, *, goes: bool) -> None:
        self.objects.nodes = [item for item in self.objects.nodes if item.metadata.name != name]
        if goes:
            self.inventory.remove_node(name)
        else:
            self.objects.nodes.append(random_node(self.rng, name))
            self.inventory.set_node(self.objects.nodes[-1])

    def _publish(self, name: str) -> None:
        made = self.objects.machines[name] = self.rng.choice(MACHINES)
        item = self.objects.slices[name] = random_slice(self.rng, name, made)
        self.objects.taken[name] = set()
        self.inventory.change_slice(None, item)

    def _withdraw(self, name: str) -> None:
        self.inventory.change_slice(self.objects.slices.pop(name), None)
        del self.objects.machines[name], self.objects.taken[name]
        self.inventory.release(name)

    def _taken(self, name: str) -> frozenset[DeviceId]:
        made, taken = self.objects.machines[name], self.objects.taken[name]
        return frozenset(DeviceId(DRIVER, name, device_name(made, ordinal)) for ordinal in taken)


def told(allocator: Allocator, inventory: Inventory, number: int) -> object:
    """Return all that a decision says."""
    decision = allocator.allocate(inventory, PODS[number % len(PODS)], [CLAIMS[number % len(CLAIMS)]])
    if not isinstance(decision, Allocation):
        return type(decision)
    second = decision.runner_up
    other = second and (second.pool.node, second.choice, second.lost_by)
    return decision.node, decision.choice, other, decision.census.reasons(decision.choice)


@pytest.mark.parametrize("spare", [0, node_state.SPARE_EMPTY])
@pytest.mark.parametrize("seed", sampled(range(100), 1, 10))
def test_after_any_changes_a_decision_is_that_of_a_cluster_that_was_only_now_read(
    seed: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spare`: with none, empty buckets are forgotten every few changes."""
    monkeypatch.setattr(node_state, "SPARE_EMPTY", spare)
    cluster, allocator = ChangingCluster(seed), Allocator()
    for number in range(CHANGES):
        cluster.change()
        asked = cluster.rng.randrange(len(CLAIMS) * len(PODS))
        assert told(allocator, cluster.inventory, asked) == told(Allocator(), cluster.read(), asked), number
    cluster.inventory.check()


@pytest.mark.parametrize("seed", sampled(range(20), 1, 4))
def test_one_allocator_tells_inventories_apart(seed: int) -> None:
    allocator, clusters = Allocator(), [ChangingCluster(seed), ChangingCluster(seed + 1000)]
    for number in range(CHANGES):
        cluster = clusters[number % 2]
        cluster.change()
        asked = number // 2  # the same of each
        assert told(allocator, cluster.inventory, asked) == told(Allocator(), cluster.read(), asked)


def ranked(ranking: Ranking[NodeAnswer]) -> tuple[Sequence[int], Sequence[object]]:
    assert len(ranking.ranks) == len(ranking.names) == len(ranking.answers)
    there = zip(ranking.ranks, ranking.answers, ranking.names, strict=True)
    return ranking.ranks, sorted((rank, answer.rank, tuple(names)) for rank, answer, names in there)


def full_of_states() -> NodeBuckets:
    """One node in each state of a machine of 8 GPUs."""
    reading = read_pool(DRIVER, [pool_slice("n", SWITCHED)])
    assert reading.pool is not None
    buckets = NodeBuckets(remembers_empty=True)
    for free in range(1 << len(SWITCHED.gpus)):
        buckets.add(f"n{free}", NodeState(reading.pool.kind, free))
    return buckets


def asked(*counts: int) -> Question:
    return Question(counts, (NO_POLICY,) * len(counts), Eligibility(((),) * len(counts)))


def test_a_ranking_that_was_cut_short_by_the_deadline_goes_on_where_it_was() -> None:
    buckets, effort, times_over = full_of_states(), Effort(), 0
    answers = Answers(Engine(effort=effort)).to(asked(4))
    while True:
        left = iter((False,))
        effort.begin(lambda _, left=left: next(left, True))  # type: ignore[misc]
        try:
            found = answers.ranking(buckets, effort)
            break
        except OverdueError:
            times_over += 1
    assert times_over
    assert ranked(found) == ranked(Answers(Engine()).to(asked(4)).ranking(buckets, Effort()))
    assert len(found.ranks) + len(found.reasons) == 1 << len(SWITCHED.gpus)
    assert list(found.ranks) == sorted(found.ranks)


def test_nothing_is_worked_out_for_a_state_that_no_node_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of states come and go between two pods that ask alike."""
    buckets, seen, real = full_of_states(), list[int](), KindAnswers.of
    (kind,) = buckets.by_kind

    def noted(answers: KindAnswers, free: int) -> NodeAnswer:
        seen.append(free)
        return real(answers, free)

    monkeypatch.setattr(KindAnswers, "of", noted)
    for free in range(100):
        buckets.take_out(f"n{free}", NodeState(kind, free))
    answers = Answers(Engine()).to(asked(2))
    answers.ranking(buckets, Effort())
    assert sorted(seen) == list(range(100, 256))
    buckets.add("again", NodeState(kind, 7))
    seen.clear()
    answers.ranking(buckets, Effort())
    answers.ranking(buckets, Effort())
    assert seen == [7]
