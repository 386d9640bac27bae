"""Section: where all pods of a gang go at once (docs/design/gangs.md), at 5,000 nodes.

A fat tree of HGX nodes in blocks of 32, 8 blocks a spine; and racks of 18 trays of 4 GPUs, each an NVLink clique, 8
racks a group. Nodes are full, empty or partly used, and blocks differ in load. Beside the choice for all at once stands
the decision pod by pod, with the size of the gang known.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from bench.machines import recorded
from bench.report import Floor, Progress, Section, Table
from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.topology_levels import TopologyLevels
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.gang.gang_allocator import (
    GangAllocation,
    GangAllocator,
    GangRules,
    PodClaims,
    domains_of,
)
from dracaena.controller.allocation.gang.question import Rails
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state.gangs import GROUP_LABEL, GROUP_SIZE_ANNOTATION
from dracaena.controller.allocation.state.inventory import Inventory
from support.allocation import DRIVER, claim, device_class, give_back, node, pod, pool_slice, request
from support.random_gangs import rails_by_ordinal

LEVELS: Final = TopologyLevels(("spine", "block"))
LOADS: Final = (0.7, 0.8, 0.9)
LONG_LOADS: Final = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
GOAL_MS: Final = 50.0
"""Of CPU, p99 over all gangs and fillings; twice as much with required rails."""
FLOOR_MS: Final = 200.0
"""Only tables that are unknown may take so long, on a machine that does something else too."""


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    machine: str
    nodes: int
    nodes_of_a_block: int
    with_cliques: bool
    gangs: Sequence[tuple[int, int]]
    """Pods, and GPUs of each."""


CLUSTERS: Final = (
    Cluster("HGX, blocks of 32", "hgx-h100", 5_000, 32, False, ((2, 8), (16, 8), (64, 8), (16, 4), (64, 4), (64, 2))),
    Cluster("racks of 18 × 4", "gb200-tray", 5_004, 18, True, ((8, 4), (18, 4), (32, 4), (8, 2), (64, 2))),
)


@dataclass(slots=True)
class Times:
    """Milliseconds of CPU."""

    first: list[float]
    again: list[float]
    railed: list[float]
    pod_by_pod: list[float]
    domains: list[tuple[int, int]]
    """Blocks used by the choice at once, and pod by pod; only where both place all."""


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Measure all clusters; `long`: at more loads."""
    shown: list[tuple[str, ...]] = []
    every_first: list[float] = []
    every_again: list[float] = []
    every_railed: list[float] = []
    for cluster in CLUSTERS:
        inventory = built(cluster)
        times = {gang: Times([], [], [], [], []) for gang in cluster.gangs}
        for seed, load in enumerate(LONG_LOADS if long else LOADS):
            progress(f"gangs: {cluster.name}, load {load}")
            fill(inventory, load, seed)
            gc.collect()
            gc.freeze()
            for gang in cluster.gangs:
                one_filling(inventory, gang, times[gang])
        for (pods, gpus), of_gang in times.items():
            shown.append(
                (
                    f"{cluster.name}: {pods} × {gpus}",
                    f"{statistics.median(of_gang.first):.1f} / {max(of_gang.first):.1f}",
                    f"{statistics.median(of_gang.again):.1f} / {max(of_gang.again):.1f}",
                    f"{statistics.median(of_gang.railed):.1f} / {max(of_gang.railed):.1f}" if of_gang.railed else "-",
                    f"{statistics.median(of_gang.pod_by_pod):.1f}",
                    ", ".join(f"{ours}:{theirs}" for ours, theirs in of_gang.domains) or "-",
                )
            )
            every_first += of_gang.first
            every_again += of_gang.again
            every_railed += of_gang.railed
    header = ("gang", "first ms", "again ms", "rails required ms", "pod by pod ms", "blocks, at once : pod by pod")
    floors = (
        Floor("gang of up to 64 pods at 5,000 nodes, first", max(every_first), FLOOR_MS, "ms CPU", GOAL_MS),
        Floor("gang of up to 64 pods at 5,000 nodes, again", max(every_again), GOAL_MS * 2, "ms CPU", GOAL_MS),
        Floor("the same with required rails, again", max(every_railed), FLOOR_MS * 4, "ms CPU", GOAL_MS * 2),
    )
    table = Table("Choice for all pods of a gang at once, median / most over fillings, CPU", header, tuple(shown))
    return Section("Gangs", tables=(table,), floors=floors)


def built(cluster: Cluster) -> Inventory:
    """Return the cluster without pods."""
    inventory = Inventory(DRIVER, levels=LEVELS)
    inventory.set_class(device_class())
    made = recorded(cluster.machine).machine
    for place in range(cluster.nodes):
        block = place // cluster.nodes_of_a_block
        gpus = tuple(
            replace(
                gpu,
                uuid=f"GPU-{place:08x}-0000-4000-8000-{gpu.index:012x}",
                fabric_clique=f"fabric.{block}" if cluster.with_cliques else None,
            )
            for gpu in made.gpus
        )
        name, labels = f"n{place:04}", {"block": f"b{block:03}", "spine": f"s{block // 8:02}"}
        inventory.set_node(node(name, labels=labels))
        inventory.change_slice(None, pool_slice(name, replace(made, gpus=gpus)))
    return inventory


def fill(inventory: Inventory, load: float, seed: int) -> None:
    """Let others hold GPUs: nodes are full, empty or partly used, and blocks differ in load."""
    rng = random.Random(seed)
    of_block: dict[str | None, float] = {}
    for name in inventory.nodes.names:
        block = inventory.domains(name)[-1]
        share = of_block.setdefault(block, min(1.0, max(0.0, rng.gauss(load, 0.15))))
        pool = inventory.pool(name)
        assert pool is not None
        count, draw = len(pool.devices), rng.random()
        taken = list(range(count)) if draw < share - 0.1 else []
        if share - 0.1 <= draw < share + 0.1:
            taken = rng.sample(range(count), rng.randint(1, count - 1))
        held = frozenset(DeviceId(DRIVER, pool.pool, str(pool.devices[ordinal])) for ordinal in taken)
        inventory.hold(f"others/{name}", held)


def one_filling(inventory: Inventory, gang: tuple[int, int], times: Times) -> None:
    """Decide for one gang in one state of the cluster, at once and pod by pod."""
    members = _members(*gang)
    gangs = GangAllocator(_priced(inventory))
    first_ms, found = _timed(gangs, inventory, members, GangRules())
    times.first.append(first_ms)
    times.again.append(statistics.median(_timed(gangs, inventory, members, GangRules())[0] for _ in range(3)))
    pool = inventory.pool(inventory.nodes.names[0])
    assert pool is not None
    if gang[1] < len(pool.devices):
        rules = GangRules(rails=Rails.REQUIRED, rails_of=rails_by_ordinal)
        _timed(gangs, inventory, members, rules)
        times.railed.append(_timed(gangs, inventory, members, rules)[0])
    one_by_one_ms, theirs = _pod_by_pod(inventory, members)
    times.pod_by_pod.append(one_by_one_ms)
    if isinstance(found, GangAllocation) and len(theirs) == len(members):
        ours = [one.node for one in found.allocations]
        times.domains.append((_blocks(inventory, ours), _blocks(inventory, theirs)))


def _timed(
    gangs: GangAllocator, inventory: Inventory, members: Sequence[PodClaims], rules: GangRules
) -> tuple[float, object]:
    began_s = time.process_time()
    found = gangs.allocate(inventory, members, domains_of(inventory), rules)
    return 1_000 * (time.process_time() - began_s), found


def _pod_by_pod(inventory: Inventory, members: Sequence[PodClaims]) -> tuple[float, list[str]]:
    """Return the time of all decisions, and the node of each pod until one fits nowhere."""
    allocator, spent_s = _priced(inventory), 0.0
    given: list[tuple[Pod, Allocation]] = []
    for one, claims in members:
        began_s = time.process_time()
        found = allocator.allocate(inventory, one, claims)
        spent_s += time.process_time() - began_s
        if not isinstance(found, Allocation):
            break
        commit(inventory, found)
        inventory.place(one, found.node)
        given.append((one, found))
    for one, found in given:
        give_back(inventory, found)
        inventory.place(one, None)
    return 1_000 * spent_s, [found.node for _, found in given]


def _members(pods: int, gpus: int) -> list[PodClaims]:
    """The pods of a group of a LeaderWorkerSet, which say how many they are."""
    made: list[PodClaims] = []
    for number in range(pods):
        one = pod(f"g{number}", f"g{number}")
        meta = msgspec.structs.replace(
            one.metadata, labels={GROUP_LABEL: "g"}, annotations={GROUP_SIZE_ANNOTATION: str(pods)}
        )
        made.append((msgspec.structs.replace(one, metadata=meta), [claim(f"g{number}", request(count=gpus))]))
    return made


def _priced(inventory: Inventory) -> Allocator:
    allocator = Allocator()
    allocator.reprice(inventory, (16, 16, 16))
    return allocator


def _blocks(inventory: Inventory, names: Sequence[str]) -> int:
    return len({inventory.domains(name) for name in names})
