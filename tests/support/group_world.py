"""PodGroups that compete for GPUs: a real reconciler over a fake API, and a kube-scheduler that binds all pods of a
group or none. One second a step."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.objects import Pod
from dracaena.controller.state.group_turns import GIVE_UP_S
from dracaena.process.clock import rfc3339
from support.allocation import blocks, claim, machine, pod, request
from support.reconciling import Bench
from support.starving_world import START, created

FOUR: Final = machine("four", blocks(4, inside="PIX", outside="PIX"))
EIGHT: Final = machine("eight", blocks(4, 4, inside="PIX", outside="SYS"))

PROOF_S: Final = 60
"""From the end of one group until the next has what it needs: what is taken back takes a proof."""

STARVATION_S: Final = 300
"""The controller's setting starvation_wait_s."""

TRY_S: Final = 10
"""kube-scheduler tries a group that did not fit again after its longest back-off."""


def member(name: str, group: str, second: int) -> Pod:
    """A pod of a group that asks for GPUs of its own."""
    document: dict[str, Any] = msgspec.to_builtins(created(pod(name, name), second))
    if group:
        document["spec"]["schedulingGroup"] = {"podGroupName": group}
    return msgspec.convert(document, Pod)


@dataclass(frozen=True)
class Group:
    """A gang: the GPUs of each of its pods, when it comes and how long it runs."""

    sizes: tuple[int, ...]
    at_s: int
    life_s: int
    is_gang: bool = True
    """Otherwise its pods are bound one by one, and have no group."""
    fits: bool = True
    """Whether it fits on the nodes while nobody else is there."""


@dataclass
class GroupWorld:
    """`bound_s`: group → when it was bound."""

    machines: Mapping[str, Machine]
    groups: Sequence[Group]
    seed: int = 0
    now_s: int = 0
    bound_s: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.bench = Bench(**self.machines)
        self._said_at_s: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def step(self) -> None:
        """One second: pods come and end, kube-scheduler tries, decisions are made."""
        self.now_s += 1
        coming = [(number, group) for number, group in enumerate(self.groups) if group.at_s == self.now_s]
        come = [(number, index) for number, group in coming for index in range(len(group.sizes))]
        self._rng.shuffle(come)
        for number, index in come:
            group, name = self.groups[number], f"g{number}-{index}"
            waiting = member(name, f"g{number}" if group.is_gang else "", self.now_s)
            self.bench.add(claim(name, request(count=group.sizes[index])), waiting)
        for key in sorted(key for key, end_s in self._ends.items() if end_s <= self.now_s):
            self._end(key)
        self.bench.cluster.review_groups(self.bench.clock.monotonic())
        before = rfc3339(START + timedelta(seconds=self.now_s - STARVATION_S))
        self.bench.cluster.keep_for_starving(before, now_s=self.bench.clock.monotonic())
        self.bench.advance(1.0)
        for number, group in enumerate(self.groups):
            self._try(number, group)
        self.bench.run()

    def run(self) -> Sequence[Group]:
        """Go on until every group that fits was bound, or long after it should have been; return those that were not.

        Whoever comes first may have to give up first, and gets nothing for as long again even when the others are gone;
        and what is taken back takes a proof.
        """
        until_s = sum(group.life_s + PROOF_S if group.fits else 2 * GIVE_UP_S for group in self.groups) + int(GIVE_UP_S)
        while (left := self._not_bound()) and self.now_s < until_s:
            self.step()
        return left

    def _not_bound(self) -> Sequence[Group]:
        return [group for number, group in enumerate(self.groups) if group.fits and number not in self.bound_s]

    def _try(self, number: int, group: Group) -> None:
        names = [f"g{number}-{index}" for index in range(len(group.sizes))]
        there = [name for name in names if f"default/{name}" in self.bench.api.pods]
        unbound = [name for name in there if not self.bench.api.pods[f"default/{name}"].spec.node_name]
        ready = [name for name in unbound if name in self.bench.users(name)]
        if not unbound or (group.is_gang and len(unbound) < len(names)):
            return
        bound = ready if len(ready) == len(unbound) or not group.is_gang else []
        for name in bound:
            node = self.bench.on_node(name)
            assert node is not None
            self.bench.bind(name, node)
            self._ends[f"default/{name}"] = self.now_s + group.life_s
        if len(bound) == len(unbound):
            self.bound_s.setdefault(number, self.now_s)
            return
        for name in unbound:
            if name not in bound and self.now_s - self._said_at_s.get(name, -TRY_S) >= TRY_S:
                self._said_at_s[name] = self.now_s
                if self.bench.cluster._state.records.unbound(f"default/{name}") is not None:
                    self.bench.say(name, "0/2 nodes are available: the group does not fit.")

    def _end(self, key: str) -> None:
        del self._ends[key]
        self.bench.remove_pod(key)
        stored = self.bench.api.claims.pop(key)
        self.bench.claim_changed(stored, None)


def any_world(seed: int) -> GroupWorld:
    """Two to five gangs that come at about the same time, on one to three nodes; each fits while the others are gone,
    but in some worlds the first fits never."""
    rng = random.Random(seed)
    made = rng.choice((FOUR, EIGHT))
    gpus, count = len(made.gpus), rng.randint(1, 3)
    groups = []
    for _ in range(rng.randint(2, 5)):
        size = rng.choice([size for size in (1, 2, 4, 8) if size <= gpus])
        most = count * (gpus // size)
        pods = rng.randint(max(1, most // 2), most)
        groups.append(Group((size,) * pods, rng.randint(1, 4), rng.randint(20, 200), is_gang=rng.random() < 0.85))
    if rng.random() < 0.3:
        size = rng.choice([size for size in (1, 2, 4) if size <= gpus])
        groups.insert(0, Group((size,) * (count * gpus // size + 1), 1, 60, fits=False))
    return GroupWorld({f"n{number}": made for number in range(count)}, groups, seed)
