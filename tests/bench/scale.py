"""Section: what grows with the cluster. Decisions, DeviceTaintRules and explanations at 1,000 nodes and at 10,000.

Run alone with `PYTHONPATH=tests python -P -m bench.scale`; `bench.run` calls rows(). All times are CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bench.decision import CPU_OF_NODE, World, churn, containers, cpu_ns, never, percentile
from bench.lock_hold import timed_lock
from bench.report import Floor, Progress, Row, Section, Table, as_text, floors_as_text, number
from dracaena.api.resource_objects import DeviceTaintRule
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.garbage import freeze_what_stays
from dracaena.controller.queue.time_budgets import TurnDeadline
from dracaena.process.clock import SystemClock
from support.allocation import DRIVER, claim, pod, request
from support.bare_cluster import decide

FEW: Final = 1_000
MANY: Final = 10_000

MEASURED: Final = 2_000
"""Decisions at each size: 20 lie above p99."""

ROUNDS: Final = 4
"""Turns that the two clusters take, so that what else happens on the machine meets both."""

RULES: Final = 20
"""Pools that get a DeviceTaintRule of their own, one after the other."""

EXPLAINED: Final = 5
"""Explanations for each kind of pod that fits nowhere."""

FLOOR_MS: Final = 4.0
GOAL_MS: Final = 1.0

HELD_MS: Final = 50.0
"""An explanation begins with a decision, and holds the lock no longer than one may."""

TOLERATIONS: Final = [{"key": "nvidia.com/gpu", "operator": "Exists"}]

RULE: Final = "lock held for a DeviceTaintRule"

NOWHERE: Final[Mapping[str, tuple[int, Mapping[str, Any]]]] = MappingProxyType(
    {
        "16 GPUs, which no node has": (16, {}),
        "more cpu than any node has": (1, {"containers": containers(1, cpu=CPU_OF_NODE + 1)}),
        "a nodeSelector that no node matches": (1, {"nodeSelector": {"gpu.example.com/kind": "none"}}),
        "an affinity that refuses every node one by one": (1, {"affinity": never()}),
    }
)
"""Pods that fit nowhere: how many GPUs they ask for, and what else is in their spec."""


@dataclass(frozen=True, slots=True)
class TaintRules:
    """Milliseconds for which DeviceTaintRules hold the lock."""

    one_pool: Sequence[float]
    """Each time that a rule for one pool comes or goes."""
    all_pools: float
    """When a rule for all pools comes or goes, the longer of both."""
    status: float
    """When only the status of a rule for all pools is written."""


@dataclass(frozen=True, slots=True)
class Hopeless:
    """What one kind of pod that fits nowhere costs, in ms: the longest of each."""

    decision: float
    explanation: float
    lock_held: float
    """For which its explanation holds the lock without a break."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured in one cluster."""

    decisions: Sequence[float]
    rules: TaintRules
    hopeless: Mapping[str, Hopeless]

    @property
    def lock_held(self) -> float:
        return max(found.lock_held for found in self.hopeless.values())

    @property
    def explanation(self) -> float:
        return max(found.explanation for found in self.hopeless.values())


def rows(progress: Progress) -> Section:
    """Measure: a minute."""
    progress(f"scale: clusters of {FEW:,} and {MANY:,} nodes are filled")
    worlds = [World(FEW), World(MANY)]
    for world in worlds:
        world.fill()
    freeze_what_stays()
    progress(f"scale: {MEASURED:,} decisions under churn at each size")
    decisions = decisions_ms(worlds)
    progress("scale: DeviceTaintRules, explanations")
    few, many = (
        Figures(times, taint_rules(world), hopeless(world)) for world, times in zip(worlds, decisions, strict=True)
    )
    for world in worlds:
        world.cluster.check()
    return section(few, many)


def section(few: Figures, many: Figures) -> Section:
    """Lay out the figures of both clusters beside each other."""
    name, against = f"one decision, {MANY:,} nodes x 8 GPUs, warm", f"{FEW:,} nodes"
    p99 = percentile(many.decisions, 99)
    header = ("a pod that asks for", "nodes", "decision", "explanation", "lock held by the explanation")
    return Section(
        title=f"{MANY:,} nodes beside {FEW:,}",
        rows=(
            Row(f"{name}, p50", percentile(many.decisions, 50), percentile(few.decisions, 50), "ms", against=against),
            Row(f"{name}, p99", p99, percentile(few.decisions, 99), "ms", against=against),
            Row(
                f"{RULE} that taints one pool, {MANY:,} nodes, p50",
                percentile(many.rules.one_pool, 50),
                percentile(few.rules.one_pool, 50),
                "ms",
                against=against,
            ),
            Row("the same, longest", max(many.rules.one_pool), max(few.rules.one_pool), "ms", against=against),
            Row(
                f"{RULE} that taints all pools, {MANY:,} nodes",
                many.rules.all_pools,
                few.rules.all_pools,
                "ms",
                against=against,
            ),
            Row(
                f"{RULE} of which only the status is written, {MANY:,} nodes",
                many.rules.status,
                few.rules.status,
                "ms",
                against=against,
            ),
            *(
                Row(
                    f"lock held by an explanation, longest, {nodes:,} nodes",
                    found.lock_held,
                    found.explanation,
                    "ms",
                    against="the whole explanation",
                )
                for nodes, found in ((FEW, few), (MANY, many))
            ),
        ),
        tables=(
            Table(
                "Pods that fit nowhere: ms, the longest",
                header,
                tuple(
                    (kind, f"{nodes:,}", number(one.decision), number(one.explanation), number(one.lock_held))
                    for kind in NOWHERE
                    for nodes, one in ((FEW, few.hopeless[kind]), (MANY, many.hopeless[kind]))
                ),
            ),
        ),
        floors=(
            Floor(f"{name}, p99", p99, FLOOR_MS, "ms", goal=GOAL_MS),
            Floor(f"{RULE} that taints all pools, {MANY:,} nodes", many.rules.all_pools, HELD_MS, "ms"),
            Floor(f"lock held by an explanation, longest, {MANY:,} nodes", many.lock_held, HELD_MS, "ms", goal=5.0),
        ),
        notes=(
            f"{MEASURED:,} decisions at each size, in {ROUNDS} turns, while jobs come and go. CPU time of the thread.",
            f"{RULES} pools got a rule of their own, one after the other. A rule for all pools came and went once.",
        ),
    )


def decisions_ms(worlds: Sequence[World]) -> list[list[float]]:
    """Return the times of MEASURED decisions in each cluster, the clusters in turn, after as many that warm it up."""
    for world in worlds:
        churn(world, MEASURED, world.job)
        world.cpu.clear()
    for _ in range(ROUNDS):
        for world in worlds:
            churn(world, MEASURED // ROUNDS, world.job)
    return [list(world.cpu) for world in worlds]


def taint_rules(world: World) -> TaintRules:
    """Let rules for one pool each come and go, then one for all pools, whose status is written between."""
    pools = list(world.kind_of)
    some = pools[:: max(1, len(pools) // RULES)]
    one_pool = [held for pool in some for held in _come_and_go(world, {"pool": pool})]
    return TaintRules(one_pool, *_come_change_and_go(world))


def _come_and_go(world: World, selector: Mapping[str, str]) -> tuple[float, float]:
    rule = taint_rule("1", selector)
    return _held(world, None, rule), _held(world, rule, None)


def _come_change_and_go(world: World) -> tuple[float, float]:
    first, second = taint_rule("1", {}), taint_rule("2", {})
    came, status, went = (_held(world, *change) for change in ((None, first), (first, second), (second, None)))
    return max(came, went), status


def _held(world: World, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> float:
    """Return the longest time for which the lock is held while a change of a rule is taken in, in ms."""
    with timed_lock(world.cluster) as lock:
        world.cluster.intake.taint_rule_changed(old, new)
    return max(lock.held_ms)


def taint_rule(version: str, selector: Mapping[str, str]) -> DeviceTaintRule:
    """A rule that says that all devices are broken: of one pool, or of our driver."""
    spec = {"deviceSelector": {"driver": DRIVER, **selector}, "taint": {"key": "broken", "effect": "NoExecute"}}
    metadata = {"name": "broken", "uid": "broken", "resourceVersion": version}
    return msgspec.convert({"metadata": metadata, "spec": spec}, DeviceTaintRule)


def hopeless(world: World) -> dict[str, Hopeless]:
    """Let pods of each kind that fits nowhere be decided for and explained."""
    return {kind: _explained(world, kind, *asked) for kind, asked in NOWHERE.items()}


def _explained(world: World, kind: str, count: int, spec: Mapping[str, Any]) -> Hopeless:
    decisions, explanations, held = [], [], []
    for place in range(EXPLAINED):
        name = f"{kind.split(',', maxsplit=1)[0]}-{place}".replace(" ", "-").lower()
        waiting, asked = pod(name, name, tolerations=TOLERATIONS, **spec), claim(name, request(count=count))
        world.cluster.intake.claim_changed(None, asked)
        began = cpu_ns()
        decision = decide(world.cluster, waiting, asked)
        decisions.append((cpu_ns() - began) / 1e6)
        assert isinstance(decision, NoFit), decision
        with timed_lock(world.cluster) as lock:
            began = cpu_ns()
            # So long after the one before that nothing of it is used again.
            now_s = 1_000.0 * (place + 1)
            assert world.cluster.explain(waiting, [asked], now_s=now_s, pace=TurnDeadline(SystemClock()))
            explanations.append((cpu_ns() - began) / 1e6)
        held.append(max(lock.held_ms))
        world.cluster.leave(waiting.key)
        world.cluster.intake.claim_changed(asked, None)
    return Hopeless(max(decisions), max(explanations), max(held))


if __name__ == "__main__":
    measured = rows(lambda text: print(text, file=sys.stderr))
    print(as_text(measured))
    print(floors_as_text(measured.floors))
