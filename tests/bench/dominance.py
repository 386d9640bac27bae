"""Every state of every machine: is any baseline ever better than our engine, and where are they worse?

A state is a set of free GPUs and a count. In each the slow, independent judge (worth) weighs what we take against what
a baseline hands out: first the bandwidth of the set, at equal bandwidth the slowest hop of its best ring, then the
damage to what stays free. Where these are equal, theirs is better if it is worse in none of worst pair, sum of pairs
and NUMA nodes and better in the worst pair or the NUMA nodes. A larger sum alone does not count: our order has other
things before it that the judge does not weigh (the levels of what stays free).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from bench import ours
from bench.baselines.answer import Choose, Fault
from bench.machines import BenchMachine
from bench.worth import GpuSet, collective_gb_s, damage_gb_s, pair_sum_gb_s, ring_gb_s, worst_pair_gb_s

State = tuple[GpuSet, int]
"""Free GPUs and count; the count is at least 1 and at most as many as are free."""

MOST_FREE_FOR_DAMAGE: Final = 10
"""With more free GPUs the slow judge weighs bandwidth only: it would walk thousands of groups for each state."""


@dataclass(slots=True)
class Verdict:
    """How one baseline did against ours over a number of states."""

    states: int = 0
    states_of_sets: int = 0
    """Those of two GPUs or more; one GPU has no bandwidth."""
    compared: int = 0
    """States in which it handed out a set of the size asked for."""
    lower_bandwidth: int = 0
    slower_ring: int = 0
    """At equal bandwidth."""
    more_damage: int = 0
    """At equal bandwidth and ring."""
    more_numa_nodes: int = 0
    """At equal bandwidth, ring and damage."""
    larger_sum: int = 0
    """At equal bandwidth and ring a larger sum of pairs than ours, for more damage."""
    ratio_sum: float = 0.0
    ratio_count: int = 0
    """Bandwidth over ours, over compared states of two GPUs or more."""
    faults: Counter[Fault] = field(default_factory=Counter)
    beaten: list[str] = field(default_factory=list)
    """States in which it is better than ours, in words. Must stay empty."""

    @property
    def mean_ratio(self) -> float | None:
        return self.ratio_sum / self.ratio_count if self.ratio_count else None

    @property
    def lower_share(self) -> float:
        """Return the share of all states of two GPUs or more in which its set has less bandwidth than ours."""
        return self.lower_bandwidth / self.states_of_sets if self.states_of_sets else 0.0

    def add(self, other: Verdict) -> None:
        self.states += other.states
        self.states_of_sets += other.states_of_sets
        self.compared += other.compared
        self.lower_bandwidth += other.lower_bandwidth
        self.slower_ring += other.slower_ring
        self.more_damage += other.more_damage
        self.more_numa_nodes += other.more_numa_nodes
        self.larger_sum += other.larger_sum
        self.ratio_sum += other.ratio_sum
        self.ratio_count += other.ratio_count
        self.faults.update(other.faults)
        self.beaten += other.beaten


def all_states(gpu_count: int) -> Iterator[State]:
    """Yield every set of free GPUs with every count that it can hold."""
    for free_count in range(1, gpu_count + 1):
        for free in combinations(range(gpu_count), free_count):
            for count in range(1, free_count + 1):
                yield free, count


def random_states(gpu_count: int, number: int, seed: int) -> list[State]:
    """Return states whose free sets and counts are drawn evenly by size."""
    chance = random.Random(seed)
    states = []
    for _ in range(number):
        free = tuple(sorted(chance.sample(range(gpu_count), chance.randint(1, gpu_count))))
        states.append((free, chance.randint(1, len(free))))
    return states


def compare(machine: BenchMachine, baselines: Mapping[str, Choose], states: Sequence[State]) -> dict[str, Verdict]:
    """Return the verdict on each baseline over these states.

    Raises AssertionError when our engine finds no set although enough GPUs are free, or weighs its set otherwise than
    the slow judge does.
    """
    verdicts = {name: Verdict() for name in baselines}
    for free, count in states:
        mine = ours.choose(machine, free, count)
        assert mine is not None, f"{machine.name}: free {free}, {count} wanted: ours finds no set"
        best = collective_gb_s(machine, mine.gpus)
        assert mine.score.bandwidth_gb_s == best, (
            f"{machine.name}: the engine says {mine.score.bandwidth_gb_s} GB/s of {mine.gpus}, the judge {best}"
        )
        ring = ring_gb_s(machine, mine.gpus)
        assert mine.score.ring_gb_s == ring, (
            f"{machine.name}: the engine says {mine.score.ring_gb_s} GB/s around {mine.gpus}, the judge {ring}"
        )
        if len(free) <= MOST_FREE_FOR_DAMAGE:
            damage = damage_gb_s(machine, free, mine.gpus)
            told = (*mine.score.damage_gb_s, mine.score.damage_ring_gb_s)
            assert told == damage, (
                f"{machine.name}: free {free}, {mine.gpus} taken: the engine says {told} GB/s are lost, the judge "
                f"{damage}"
            )
        for name, choose in baselines.items():
            _compare_one(verdicts[name], name, choose, machine, (free, count), mine.gpus)
    return verdicts


def _compare_one(
    verdict: Verdict, name: str, choose: Choose, machine: BenchMachine, state: State, mine: GpuSet
) -> None:
    free, count = state
    verdict.states += 1
    verdict.states_of_sets += count > 1
    answer = choose(machine.links, free, count)
    if answer.fault is not None:
        verdict.faults[answer.fault] += 1
        return
    theirs = answer.gpus
    assert len(theirs) == count, f"{name} hands out {theirs} for {count} without a fault"
    assert set(theirs) <= set(free), f"{name} hands out {theirs} of {free} without a fault"
    verdict.compared += 1
    our_gb_s, their_gb_s = collective_gb_s(machine, mine), collective_gb_s(machine, theirs)
    if count > 1:
        verdict.ratio_count += 1
        verdict.ratio_sum += their_gb_s / our_gb_s if our_gb_s else 1.0
    if theirs == mine:
        return
    if (better := _compare_sets(verdict, machine, free, mine, theirs)) is not None:
        verdict.beaten.append(f"{machine.name}: free {free}, {count} wanted: {name} takes {theirs} with {better}")


def _compare_sets(verdict: Verdict, machine: BenchMachine, free: GpuSet, mine: GpuSet, theirs: GpuSet) -> str | None:
    """Count by what their set is worse; return by what it is better instead, each with its figures."""
    ours_gb_s, theirs_gb_s = collective_gb_s(machine, mine), collective_gb_s(machine, theirs)
    if ours_gb_s != theirs_gb_s:
        verdict.lower_bandwidth += theirs_gb_s < ours_gb_s
        return f"{theirs_gb_s} GB/s, ours {mine} with {ours_gb_s}" if theirs_gb_s > ours_gb_s else None
    ours_gb_s, theirs_gb_s = ring_gb_s(machine, mine), ring_gb_s(machine, theirs)
    if ours_gb_s != theirs_gb_s:
        verdict.slower_ring += theirs_gb_s < ours_gb_s
        return f"{theirs_gb_s} GB/s around, ours {mine} with {ours_gb_s}" if theirs_gb_s > ours_gb_s else None
    if len(free) > MOST_FREE_FOR_DAMAGE:
        return None
    ours_sum, theirs_sum = pair_sum_gb_s(machine, mine), pair_sum_gb_s(machine, theirs)
    our_damage, their_damage = damage_gb_s(machine, free, mine), damage_gb_s(machine, free, theirs)
    if our_damage != their_damage:
        verdict.more_damage += their_damage > our_damage
        verdict.larger_sum += their_damage > our_damage and theirs_sum > ours_sum
        return f"damage {their_damage} GB/s, ours {mine} with {our_damage}" if their_damage < our_damage else None
    verdict.more_numa_nodes += _numa_nodes(machine, theirs) > _numa_nodes(machine, mine)
    ours_rest = worst_pair_gb_s(machine, mine), ours_sum, -_numa_nodes(machine, mine)
    theirs_rest = worst_pair_gb_s(machine, theirs), theirs_sum, -_numa_nodes(machine, theirs)
    if any(their < our for their, our in zip(theirs_rest, ours_rest, strict=True)):
        return None
    if theirs_rest[::2] == ours_rest[::2]:  # all but the sum
        return None
    return f"worst pair, sum and NUMA nodes {theirs_rest}, ours {mine} with {ours_rest}"


def _numa_nodes(machine: BenchMachine, gpus: GpuSet) -> int:
    return len({machine.links.numa_nodes[gpu] for gpu in gpus})
