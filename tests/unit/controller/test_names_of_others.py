"""Searches for names that reach another namespace: several teams live in one cluster, and whatever any of them is told
is looked through for the names of all others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import pytest

from dracaena.api.objects import Pod, PodCondition
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation import earmarks
from dracaena.controller.allocation.walk import pod_demand
from dracaena.controller.events.collision_reports import CollisionReports
from dracaena.controller.state import explanation_cache
from dracaena.kube.errors import error_for
from dracaena.process.clock import rfc3339
from support.allocation import blocks, claim, holding, machine, pod, request
from support.reconciling import Bench
from support.seeds import sampled
from support.watched_cluster import WatchedCluster

FOUR = machine("four", blocks(4, inside="PIX", outside="PHB"))
TEAMS = ("hush", "mute", "veil")
"""Names of namespaces, which no word of ours contains. Pods and claims begin with them."""

STEPS = 30
TOO_MUCH = {"requests": {"memory": "100Ti"}}


Owned = TypeVar("Owned", Pod, ResourceClaim)


class LeakError(AssertionError):
    """Somebody was told a name of another namespace."""


class Search:
    """One cluster with three teams, from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench(WatchedCluster, self.rng.choice([-1, 0]), a=FOUR, b=FOUR)
        self.bench.api.before = self.refuse
        self.made = 0
        self.read = 0
        self.reasons: Counter[str] = Counter()

    def run(self) -> None:
        actions = (self.come, self.come, self.collide, self.say, self.bind, self.go, self.wait, self.starve)
        for _ in range(STEPS):
            self.rng.choice(actions)()
            self.bench.advance(self.rng.choice([0.5, 1.0, 15.0]))
            self.bench.waiting.report_due()
            self.look()

    def refuse(self, verb: str, key: str) -> None:
        if self.rng.random() < 0.1:
            raise error_for(f"PATCH {key}", self.rng.choice([422, 429, 500]), b'{"message": "refused"}')

    def come(self) -> None:
        team, self.made = self.rng.choice(TEAMS), self.made + 1
        name = f"{team}-{self.made}"
        names = [f"{name}-claim-{number}" for number in range(self.rng.choice([1, 1, 2]))]
        asked = self.rng.choice([request(count=1), request(count=3), request(count=4), request(capacity=TOO_MUCH)])
        for made in names if self.rng.random() < 0.9 else ():
            self.bench.add(self.owned(claim(made, asked), team))
        waiting = self.owned(pod(name, *names, priority=self.rng.choice([0, 0, 5])), team)
        self.bench.add(waiting)

    def collide(self) -> None:
        """Somebody else allocates what may be in other hands."""
        team, self.made = self.rng.choice(TEAMS), self.made + 1
        held = [one for one in self.bench.api.claims.values() if one.status.allocation is not None]
        if held:
            allocation = self.rng.choice(held).status.allocation
            assert allocation is not None
            result = allocation.devices.results[0]
            made = holding(claim(f"{team}-{self.made}"), result.pool, result.device)
            self.bench.add(self.owned(made, team))

    def say(self) -> None:
        if (chosen := self.unbound()) is not None:
            message = (
                f"0/2 nodes are available: 1 Insufficient cpu, 1 {self.rng.choice(['cannot allocate', 'tainted'])}."
            )
            condition = PodCondition("PodScheduled", "False", "Unschedulable", message)
            status = msgspec.structs.replace(chosen.status, conditions=[condition])
            self.bench.add(msgspec.structs.replace(chosen, status=status))

    def bind(self) -> None:
        if (chosen := self.unbound()) is not None:
            spec = msgspec.structs.replace(chosen.spec, node_name=self.rng.choice("ab"))
            self.bench.add(msgspec.structs.replace(chosen, spec=spec))

    def go(self) -> None:
        if keys := sorted(self.bench.api.pods):
            self.bench.remove_pod(self.rng.choice(keys))

    def wait(self) -> None:
        self.bench.pass_time(self.rng.choice([12, 70]))

    def starve(self) -> None:
        clock = self.bench.clock
        self.bench.cluster.keep_for_starving(rfc3339(clock.now()), now_s=clock.monotonic())
        self.bench.run()

    def unbound(self) -> Pod | None:
        pods = [one for _, one in sorted(self.bench.api.pods.items()) if not one.spec.node_name]
        return self.rng.choice(pods) if pods else None

    def owned(self, item: Owned, team: str) -> Owned:
        created = rfc3339(self.bench.clock.now())
        meta = msgspec.structs.replace(
            item.metadata, namespace=team, uid=f"uid-{item.KIND}-{self.made}", creation_timestamp=created
        )
        return msgspec.structs.replace(item, metadata=meta)

    def look(self) -> None:
        """Look through all that was told since the last look, and all that stands in claims."""
        for subject, reason, text in self.bench.events.seen[self.read :]:
            self.reasons[reason] += 1
            search_through(subject.partition(" ")[2], text)
        self.read = len(self.bench.events.seen)
        for key, item in self.bench.api.claims.items():
            for text in item.metadata.annotations.values():
                search_through(key, text)


def search_through(key: str, text: str) -> None:
    own = key.partition("/")[0]
    for team in TEAMS:
        if team != own and team in text:
            raise LeakError(f"{key} is told: {text}")


def search_all(seeds: Iterable[int]) -> Counter[str]:
    """Return how often what was told."""
    told: Counter[str] = Counter()
    for seed in seeds:
        search = Search(seed)
        search.run()
        told += search.reasons
    return told


@pytest.mark.parametrize("first_seed", sampled(range(0, 1_000, 20), 1, 8))
def test_nobody_learns_a_name_of_another_namespace(first_seed: int) -> None:
    told = search_all(range(first_seed, first_seed + 20))
    for reason in ("WaitingForGPUs", "GPUsAllocated", "GPUsTakenBack", "DeviceCollision"):
        assert told[reason] > 1, f"{reason} was told {told[reason]} times: the search has to come to it"


def earmark_names_its_pod(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(earmarks.Earmark, "reason", property(lambda mark: f"kept for pod {mark.pod_key}"))


def collisions_name_both(patch: pytest.MonkeyPatch) -> None:
    class Named(CollisionReports):
        def seen(self, claim: ResourceClaim, found: Any) -> None:
            for one in found:
                self._events.record(claim, "Warning", "DeviceCollision", f"{one.name} is allocated to {one.rival.key}")

    patch.setattr("support.reconciling.CollisionReports", Named)


def equal_pods_share_a_reason_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Two teams' pods of one shape, and a reason that keeps the names of who asked first."""

    def of_all_namespaces(pod: Pod, *rest: Any, **more: Any) -> bytes:
        meta = msgspec.structs.replace(pod.metadata, namespace="", name="", uid="one")
        return pod_demand.shape(msgspec.structs.replace(pod, metadata=meta), *rest, **more)

    patch.setattr("dracaena.controller.state.decisions.shape", of_all_namespaces)
    patch.setattr(explanation_cache, "_without", lambda text, names: text)


@pytest.mark.search
@pytest.mark.parametrize(
    "plant", [earmark_names_its_pod, collisions_name_both, equal_pods_share_a_reason_as_it_is], ids=lambda p: p.__name__
)
def test_a_planted_leak_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(LeakError):
        search_all(range(50))
