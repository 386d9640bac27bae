"""PodGroups that compete for GPUs: a real reconciler over a fake API, and a kube-scheduler that binds all pods of a
group or none. One second a step."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.objects import ObjectMeta, Pod, PodCondition
from dracaena.api.workload_objects import PodGroup
from dracaena.controller.state.group_turns import GIVE_UP_S
from dracaena.process.clock import rfc3339
from support.allocation import blocks, claim, machine, pod, request
from support.quota_world import moved, namespace
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


def member(name: str, group: str, second: int, namespace: str = "default", priority: int = 0) -> Pod:
    """A pod of a group that asks for GPUs of its own."""
    document: dict[str, Any] = msgspec.to_builtins(moved(created(pod(name, name), second), namespace))
    document["spec"]["priority"] = priority
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
    """Whether it fits on the nodes, and into the quota of its namespace, while nobody else is there."""
    namespace: str = "default"
    priority: int = 0
    min_count: int | None = None
    """Of its PodGroup object; None: the server does not serve them."""
    missing: int = 0
    """How many of its pods, the last ones, nobody creates."""
    spread_s: int = 0
    """How much later than the first its last pods are created."""
    told_s: int = 0
    """How much later than the pods its PodGroup object is seen."""

    @property
    def coming(self) -> int:
        """How many of its pods are created."""
        return len(self.sizes) - self.missing


def pod_group(name: str, namespace: str, min_count: int | None, uid: str = "") -> PodGroup:
    """A PodGroup with a gang, None: of the policy `basic`."""
    return PodGroup(ObjectMeta(name, namespace, uid or f"uid-of-{name}"), min_count)


@dataclass
class GroupWorld:
    """`quotas`: namespace → the GPUs that it may have. `bound_s`: group → when it was bound."""

    machines: Mapping[str, Machine]
    groups: Sequence[Group]
    seed: int = 0
    quotas: Mapping[str, int] = field(default_factory=dict)
    now_s: int = 0
    bound_s: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bench = Bench(**self.machines)
        for name, gpus in sorted(self.quotas.items()):
            self.bench.cluster.intake.namespace_changed(None, namespace(name, json.dumps({"gpus": gpus})))
        self._said_at_s: dict[str, int] = {}
        self._ends: dict[str, int] = {}

    def step(self) -> None:
        """One second: pods come and end, kube-scheduler tries, decisions are made."""
        self.now_s += 1
        come = [
            (number, index)
            for number, group in enumerate(self.groups)
            for index in range(group.coming)
            if group.at_s + index % (group.spread_s + 1) == self.now_s
        ]
        come.sort(key=lambda one: random.Random(f"{self.seed} {one}").random())  # whoever else comes
        self._tell_of_groups()
        for number, index in come:
            group, name = self.groups[number], f"g{number}-{index}"
            gang = f"g{number}" if group.is_gang else ""
            waiting = member(name, gang, self.now_s, group.namespace, group.priority)
            self.bench.add(moved(claim(name, request(count=group.sizes[index])), group.namespace), waiting)
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

        Whoever comes first may have to give up, and comes first again only after everybody else did; and what is taken
        back takes a proof.
        """
        round_s = int(sum(GIVE_UP_S for group in self.groups if group.is_gang) + GIVE_UP_S)
        until_s = 2 * round_s + sum(group.life_s + PROOF_S for group in self.groups if group.fits)
        while (left := self.not_bound()) and self.now_s < until_s:
            self.step()
        return left

    def not_bound(self) -> Sequence[Group]:
        """The groups that fit and were not bound yet."""
        return [group for number, group in enumerate(self.groups) if group.fits and number not in self.bound_s]

    def _tell_of_groups(self) -> None:
        if self.now_s == 1 and any(group.min_count is not None for group in self.groups):
            self.bench.cluster.intake.workloads_listed("PodGroup", is_read=True)
        for number, group in enumerate(self.groups):
            if group.min_count is not None and group.at_s + group.told_s == self.now_s:
                item = pod_group(f"g{number}", group.namespace, group.min_count)
                self.bench.cluster.intake.workload_changed(None, item)

    def holders(self) -> Mapping[int, Sequence[str]]:
        """Return for each group that was never bound its pods that have their devices."""
        found = {}
        for number, group in enumerate(self.groups):
            keys = [f"{group.namespace}/g{number}-{index}" for index in range(group.coming)]
            there = [key for key in keys if key in self.bench.api.claims and number not in self.bound_s]
            found[number] = [key for key in there if self.bench.api.claims[key].status.allocation is not None]
        return found

    def _try(self, number: int, group: Group) -> None:
        keys = [f"{group.namespace}/g{number}-{index}" for index in range(group.coming)]
        if group.is_gang and group.min_count is not None and len(keys) < group.min_count:
            return  # not even tried before all are there
        unbound = [key for key in keys if key in self.bench.api.pods and not self.bench.api.pods[key].spec.node_name]
        ready = [key for key in unbound if self._has_its_devices(key)]
        if not unbound or (group.is_gang and len(unbound) < len(keys)):
            return
        bound = ready if len(ready) == len(unbound) or not group.is_gang else []
        for key in bound:
            allocation = self.bench.api.claims[key].status.allocation
            assert allocation is not None
            stored = self.bench.api.pods[key]
            spec = msgspec.structs.replace(stored.spec, node_name=allocation.devices.results[0].pool)
            self.bench.add(msgspec.structs.replace(stored, spec=spec))
            self._ends[key] = self.now_s + group.life_s
        if len(bound) == len(unbound):
            self.bound_s.setdefault(number, self.now_s)
            return
        for key in unbound:
            if key not in bound and self.now_s - self._said_at_s.get(key, -TRY_S) >= TRY_S:
                self._said_at_s[key] = self.now_s
                self._refuse(key)

    def _has_its_devices(self, key: str) -> bool:
        return any(
            f"{key.partition('/')[0]}/{user.name}" == key for user in self.bench.api.claims[key].status.reserved_for
        )

    def _refuse(self, key: str) -> None:
        if self.bench.cluster._state.records.unbound(key) is None:
            return
        stored = self.bench.api.pods[key]
        said = PodCondition(
            "PodScheduled", "False", "Unschedulable", "0/2 nodes are available: the group does not fit."
        )
        self.bench.add(
            msgspec.structs.replace(stored, status=msgspec.structs.replace(stored.status, conditions=[said]))
        )

    def _end(self, key: str) -> None:
        del self._ends[key]
        self.bench.remove_pod(key)
        stored = self.bench.api.claims.pop(key)
        self.bench.claim_changed(stored, None)


NAMESPACES: Final = ("default", "research", "teaching")


def with_hopeless(world: GroupWorld) -> GroupWorld:
    """The same world with the sizes of gangs known, and up to four gangs more of which some pods are never created,
    nor in time some of their PodGroups: they come first, have a higher priority, and would fit."""
    rng = random.Random(f"hopeless {world.seed}")
    known = [
        replace(one, min_count=len(one.sizes), spread_s=rng.choice((0, 0, 3))) if one.is_gang else one
        for one in world.groups
    ]
    gpus = max(len(made.gpus) for made in world.machines.values())
    for _ in range(rng.randint(1, 4)):
        size = rng.choice([size for size in (1, 2, 4) if size <= gpus])
        pods, priority = rng.randint(2, 4), rng.choice((0, 7))
        missing, namespace = rng.randint(1, pods - 1), rng.choice(NAMESPACES)
        known.append(
            Group(
                (size,) * pods,
                rng.randint(1, 4),
                60,
                fits=False,
                namespace=namespace,
                priority=priority,
                min_count=pods,
                missing=missing,
                told_s=rng.choice((0, 0, 20)),
            )
        )
    return GroupWorld(world.machines, known, world.seed, world.quotas)


def any_world(seed: int) -> GroupWorld:
    """Two to five gangs that come at about the same time, on one to three nodes, in up to three namespaces; each fits
    while the others are gone. In half of the worlds up to four more can never be complete: they ask for more than there
    is, or than the quota of their namespace, which the others of it may need whole."""
    rng = random.Random(seed)
    made = rng.choice((FOUR, EIGHT))
    gpus, count = len(made.gpus), rng.randint(1, 3)
    names = NAMESPACES[: rng.randint(1, len(NAMESPACES))]
    groups = []
    for _ in range(rng.randint(2, 5)):
        size = rng.choice([size for size in (1, 2, 4, 8) if size <= gpus])
        most = count * (gpus // size)
        pods = rng.randint(max(1, most // 2), most)
        life_s, is_gang = rng.randint(20, 200), rng.random() < 0.85
        groups.append(Group((size,) * pods, rng.randint(1, 4), life_s, is_gang, namespace=rng.choice(names)))
    limited = rng.choice(names) if rng.random() < 0.4 else ""
    quotas = (
        {limited: max((sum(one.sizes) for one in groups if one.namespace == limited), default=1)} if limited else {}
    )
    for _ in range(rng.choice((0, 0, 0, 1, 2, 4))):
        name, size = rng.choice(names), rng.choice([size for size in (1, 2, 4) if size <= gpus])
        beyond = quotas[limited] if name == limited and rng.random() < 0.7 else count * gpus
        never = Group(
            (size,) * (beyond // size + 1), rng.randint(1, 3), 60, True, False, name, rng.choice((0, 0, 0, 7))
        )
        groups.insert(rng.randint(0, len(groups)), never)
    return GroupWorld({f"n{number}": made for number in range(count)}, groups, seed, quotas)
