"""How long one decision takes at 5,000 nodes × 8 GPUs while claims come and go, and what the books cost in memory.

Run alone with `PYTHONPATH=tests python -P -m bench.decision`; `bench.run` calls rows().
"""

from __future__ import annotations

import json
import os
import random
import subprocess  # memory is measured in a process of its own
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.garbage import look_seldom
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.api.decision import Decision, RunnerUp
from dracaena.api.device_id import DeviceId
from dracaena.api.machine import Machine
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.score.choices import Demand, Engine
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import held_devices
from dracaena.controller.cache.pods import kept_pod
from dracaena.controller.cache.slices import with_shared_values
from dracaena.controller.garbage import collect_between_decisions, freeze_what_stays
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, decided, device_class, holding, own_config, pod, pool_slice, request
from support.bare_cluster import bare_cluster, decide, land, written
from support.node_fit import unfit_reason

NODES: Final = 5_000
KINDS: Final = ("hgx-h100", "dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb")
"""Recorded machines of 8 GPUs: behind switches, an NVLink mesh, bridges across sockets, a PCIe tree."""

COUNTS: Final = (1,) * 45 + (2,) * 30 + (4,) * 20 + (8,) * 5
"""GPUs of a job, in percent: the mix of the queue simulation."""

FILL: Final = 0.75
"""Share of all GPUs in use while it is measured."""

MEASURED: Final = 2_000
"""Decisions in one state of the cluster: 20 lie above p99."""

WALKS: Final = 8
"""Decisions of the walk over all nodes: each takes a hundred times as long."""

FLOOR_MS: Final = 2.0
GOAL_MS: Final = 0.5
"""For the CPU time of one decision, p99: by the clock, whatever else runs on the machine would count."""

CPU_OF_NODE: Final = 190
"""Cores of a node that are left for pods."""

TIMESTAMP: Final = "2026-01-01T00:00:00Z"


def now_ns() -> int:
    """Return the clock on the wall: what a pod waits, also for whatever else runs on the machine."""
    return time.perf_counter_ns()


def cpu_ns() -> int:
    """Return the CPU time of this thread. A decision waits for nothing: on a machine of its own both are one."""
    return time.thread_time_ns()


class World:
    """A controller's cluster of NODES nodes in memory, and the jobs on it. No API server: claims change as watched."""

    def __init__(self, nodes: int = NODES, kinds: Sequence[str] = KINDS, *, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.machines = {kind: read_machine(kind) for kind in kinds}
        self.cluster = bare_cluster()
        self.cluster.intake.class_changed(None, device_class())
        self.running: list[tuple[Pod, ResourceClaim]] = []
        self.gpus = self.in_use = self.number = 0
        self.kind_of: dict[str, str] = {}
        self.cpu: list[float] = []
        """Milliseconds of CPU time of each decision."""
        templates = {kind: SliceTemplate(machine) for kind, machine in self.machines.items()}
        for number in range(nodes):
            name = f"gpu-node-{number:05}.example.com"
            kind = kinds[number % len(kinds)]
            self.kind_of[name] = kind
            self.gpus += len(self.machines[kind].gpus)
            self.cluster.intake.node_changed(None, as_watched(node_document(name, kind, number), Node))
            item = msgspec.json.decode(templates[kind].text(name, number), type=ResourceSlice)
            self.cluster.intake.slice_changed(None, with_shared_values(item))

    @property
    def inventory(self) -> Inventory:
        """The books. Read only."""
        return self.cluster._state.inventory

    @property
    def allocator(self) -> Allocator:
        return self.cluster._state.decisions._allocator

    def job(self, **spec: Any) -> tuple[Pod, ResourceClaim]:
        """Return a new job, as its objects are seen by the watch."""
        self.number += 1
        policy: dict[str, Any] = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy"}
        wish = self.rng.random()
        configs = []
        if wish < 0.1:
            configs = [own_config({**policy, "requirement": "NVLink"})]
        elif wish < 0.2:
            configs = [own_config({**policy, "objective": "Pack"})]
        if not spec and self.rng.random() < 0.2:
            spec = {"nodeSelector": {"gpu.example.com/kind": self.rng.choice(list(self.machines))}}
        name = f"job-{self.number}"
        count = self.rng.choice(COUNTS)
        spec.setdefault("containers", containers(count))
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        asked = claim(name, request(count=count), configs=configs)
        return pod(name, name, tolerations=tolerations, **spec), asked

    def arrive(self, waiting: Pod, asked: ResourceClaim) -> tuple[Any, int, int]:
        """Take in a job, decide and take in what was written; return the decision, and ns for it and for the rest."""
        began = now_ns()
        collect_between_decisions()  # as the worker does that decides next
        self.cluster.intake.claim_changed(None, asked)
        self.cluster.intake.pod_changed(None, waiting)
        ready, ready_cpu = now_ns(), cpu_ns()
        decision = decide(self.cluster, waiting, asked)
        decided_cpu, decided = cpu_ns(), now_ns()
        self.cpu.append((decided_cpu - ready_cpu) / 1e6)
        if isinstance(decision, Allocation):
            (stored,) = written(decision, waiting, at=TIMESTAMP)
            sent = now_ns()
            land(self.cluster, stored)
            self.cluster.intake.claim_changed(asked, stored)
            rest = ready - began + now_ns() - sent
            self.running.append((waiting, stored))
            self.in_use += len(decision.claims[0].results)
        else:
            rest = ready - began
            self.cluster.intake.claim_changed(asked, None)
            self.cluster.intake.pod_changed(waiting, None)
        return decision, decided - ready, rest

    def leave(self) -> int:
        """Let a job end that the seed names; return the ns that it took to take that in."""
        place = self.rng.randrange(len(self.running))
        self.running[place], self.running[-1] = self.running[-1], self.running[place]
        waiting, stored = self.running.pop()
        self.in_use -= len(held_devices(stored, DRIVER))
        began = now_ns()
        self.cluster.intake.pod_changed(waiting, None)
        self.cluster.intake.claim_changed(stored, None)
        return now_ns() - began

    def fill(self, share: float = FILL) -> None:
        """Let jobs of all sizes hold all GPUs, then let them end at random until a share is in use: as after days."""
        for name, kind in self.kind_of.items():
            pool = self.inventory.pool(name)
            assert pool is not None
            free = [device for device in pool.devices if device is not None]
            while free:
                count = self.rng.choice([count for count in COUNTS if count <= len(free)])
                self._hold(name, kind, free[:count])
                del free[:count]
        while self.in_use > share * self.gpus:
            self.leave()

    def _hold(self, node: str, kind: str, devices: Sequence[str]) -> None:
        """Let a job run that was decided long ago."""
        self.number += 1
        name = f"job-{self.number}"
        decision = Decision(
            node=node,
            links="6 pairs NV12",
            score=tuple((f"part_{place}_gb_s", 100 + place) for place in range(12)),
            pod_devices=len(devices),
            runner_up=RunnerUp(node, "6 pairs NV12", "bandwidth_gb_s", tuple(devices)),
        )
        held = decided(holding(claim(name, request(count=len(devices))), node, *devices), decision)
        stored = as_watched(msgspec.json.decode(msgspec.json.encode(held)), ResourceClaim)
        running = pod(name, name, nodeName=node, containers=containers(len(devices)))
        waiting = kept_pod(as_watched(msgspec.to_builtins(running), Pod))
        self.cluster.intake.pod_changed(None, waiting)
        self.cluster.intake.claim_changed(None, stored)
        self.running.append((waiting, stored))
        self.in_use += len(devices)

    def scatter(self) -> None:
        """Take devices at random instead: every mask of free devices of every kind stands in a bucket of its own."""
        for name in self.kind_of:
            pool = self.inventory.pool(name)
            assert pool is not None
            taken = self.rng.getrandbits(len(pool.devices))
            devices = (device for ordinal, device in enumerate(pool.devices) if taken >> ordinal & 1)
            self.inventory.hold(
                f"scattered {name}", frozenset(DeviceId(DRIVER, name, device or "") for device in devices)
            )

    def buckets(self) -> int:
        """Return how many buckets there are."""
        return sum(map(len, self.inventory.buckets.values()))


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each decision, and of all that changed since the one before."""

    decisions: Sequence[float]
    changes: Sequence[float]


def churn(world: World, count: int, make: Callable[[], tuple[Pod, ResourceClaim]]) -> Times:
    """Let jobs come and go `count` times and measure each."""
    decisions, changes = [], []
    for _ in range(count):
        left_ns = 0
        while world.running and world.in_use >= FILL * world.gpus:
            left_ns += world.leave()
        _, decision_ns, rest_ns = world.arrive(*make())
        decisions.append(decision_ns / 1e6)
        changes.append((left_ns + rest_ns) / 1e6)
    return Times(decisions, changes)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many percent do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def walk(world: World, engine: Engine, waiting: Pod, count: int) -> tuple[str | None, float]:
    """Decide by a walk over all nodes, the books made afresh; return the node, and the milliseconds it took.

    What decided before there were buckets. The choice inside a node is looked up: only the walk is measured.
    """
    began = now_ns()
    used: dict[str, set[str]] = {}
    for _, stored in world.running:
        for device in held_devices(stored, DRIVER):
            used.setdefault(device.pool, set()).add(device.device)
    demands = (Demand(count, NO_POLICY),)
    best: tuple[tuple[int, ...], str] | None = None
    for name in sorted(world.kind_of):
        pool = world.inventory.pool(name)
        if pool is None or unfit_reason(waiting, world.inventory.nodes.get(name).node) is not None:
            continue
        taken = used.get(name, ())
        free = pool.offered & ~mask_of(ordinal for ordinal, device in enumerate(pool.devices) if device in taken)
        found = engine.best_two(pool.box, free, demands).best
        if found is not None and (best is None or (found.score.node_rank(), name) < best):
            best = found.score.node_rank(), name
    return best[1] if best is not None else None, (now_ns() - began) / 1e6


@cache
def filled() -> World:
    """Return the cluster of NODES nodes that the sections share which let jobs come and go in it: it takes a quarter of
    a minute to make. Whoever asks for it first finds it as it was made, the others as those before left it."""
    world = World()
    world.fill()
    world.cluster.reprice(now_s=0.0)
    freeze_what_stays()
    return world


def rows(progress: Progress) -> Section:
    """Measure all of it: a minute."""
    progress(f"decisions: {NODES:,} nodes of {len(KINDS)} kinds are filled by {FILL:.0%}; memory")
    with ThreadPoolExecutor(1) as beside:  # memory is the same whatever else runs, and nothing is timed meanwhile
        measuring = beside.submit(measured_memory)
        world = filled()
        memory = measuring.result()
    progress(f"decisions: {MEASURED:,} under churn")
    churn(world, MEASURED, world.job)  # warm
    world.cpu.clear()
    times = churn(world, MEASURED, world.job)
    cpu = list(world.cpu)
    live = world.buckets()
    began = now_ns()
    world.cluster.reprice(now_s=1.0)
    looked_ms = (now_ns() - began) / 1e6
    walked = list(_walks(world))
    short = churn(world, 300, lambda: world.job(containers=containers(1, cpu=CPU_OF_NODE + 1)))
    mixed = list(_short_of_memory(world))
    nowhere = churn(world, 300, lambda: world.job(nodeSelector={"gpu.example.com/kind": "none"}))
    picky = churn(world, 300, lambda: world.job(affinity=never()))
    explained = [_explain(world) for _ in range(10)]
    repriced = _after_other_prices(world)
    world.cluster.check()
    progress("decisions: devices taken at random, a bucket for every mask")
    scattered = World(seed=2)
    scattered.scatter()
    freeze_what_stays()
    cold = churn(scattered, 1_000, scattered.job)
    hot = churn(scattered, 1_000, scattered.job)
    progress("decisions: tables from nothing")
    p99 = percentile(times.decisions, 99)
    with_changes = [a + b for a, b in zip(times.decisions, times.changes, strict=True)]
    walk_ms = percentile(walked, 50)
    name = f"one decision, {NODES:,} nodes x 8 GPUs, warm"
    return Section(
        title="Decision time",
        rows=(
            Row(f"{name}, p50", percentile(times.decisions, 50), walk_ms, "ms", against="walk over all nodes"),
            Row(f"{name}, p99", p99, max(walked), "ms", against="walk over all nodes, slowest"),
            Row("the same, CPU time of the deciding thread, p50", percentile(cpu, 50), unit="ms"),
            Row("the same, CPU time of the deciding thread, p99", percentile(cpu, 99), unit="ms"),
            Row("by the clock, with the claims that came and went, p50", percentile(with_changes, 50), unit="ms"),
            Row("by the clock, with the claims that came and went, p99", percentile(with_changes, 99), unit="ms"),
            Row("slowest of all", max(with_changes), unit="ms"),
            Row("a look at the prices, once a second", looked_ms, unit="ms"),
            Row("the first 1,000 decisions after other prices, p99", percentile(repriced.decisions, 99), unit="ms"),
            Row("the same, the very first one", repriced.decisions[0], unit="ms"),
            Row("a pod that needs more cpu than any node has, p99", percentile(short.decisions, 99), unit="ms"),
            Row("a pod that half of the nodes have too little memory for, p99", percentile(mixed, 99), unit="ms"),
            Row("a pod whose nodeSelector no node matches, p99", percentile(nowhere.decisions, 99), unit="ms"),
            Row("a pod whose affinity refuses every node one by one, p99", percentile(picky.decisions, 99), unit="ms"),
            Row("reasons of a pod that fits nowhere (off the decision path)", max(explained), unit="ms"),
            Row("live buckets", live, NODES, "buckets", against="nodes"),
            Row(
                f"devices taken at random, {scattered.buckets():,} buckets, warm, p99",
                percentile(hot.decisions, 99),
                unit="ms",
            ),
            Row("the same, first 1,000 decisions, p99", percentile(cold.decisions, 99), unit="ms"),
            Row("the same, the very first decision", cold.decisions[0], unit="ms"),
            *(Row(f"table of {kind} from nothing", table_ms(world.machines[kind]), unit="ms") for kind in KINDS),
            *(Row(text, figure, unit="MiB") for text, figure in memory.items()),
        ),
        floors=(
            Floor(f"{name}, CPU time, p99", percentile(cpu, 99), FLOOR_MS, "ms", goal=GOAL_MS),
            Floor(f"controller memory, {NODES:,} nodes x 8 GPUs", memory[WHOLE], 500.0, "MiB", goal=350.0),
        ),
        notes=(
            f"{MEASURED:,} decisions, {FILL:.0%} of {world.gpus:,} GPUs in use, kinds {', '.join(KINDS)}.",
            "Times are by the clock on the wall where no row says CPU: they also count whatever else runs here.",
            f"Load average {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} CPUs at the end.",
            "The walk makes its books afresh and asks every node, as decisions were made before there were buckets.",
        ),
    )


def _after_other_prices(world: World) -> Times:
    """Decide when all answers have to be worked out anew, and once more with the prices from before."""
    before = world.allocator.engine.prices
    assert before is not None
    eights, fours, pairs = before.shares
    assert world.allocator.reprice(world.inventory, (pairs, fours, eights))
    times = churn(world, 1_000, world.job)
    world.allocator.reprice(world.inventory, before.shares)
    return times


def _walks(world: World) -> Iterator[float]:
    """Decide for jobs without wishes in both ways; the answers have to be one."""
    engine = Engine(world.allocator.engine.prices)
    for number in range(WALKS + 4):
        count = (1, 2, 4, 8)[number % 4]
        waiting, asked = pod(f"walk-{number}", f"walk-{number}"), claim(f"walk-{number}", request(count=count))
        waiting = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, tolerations=_TOLERATE))
        node, ms = walk(world, engine, waiting, count)
        decision, _, _ = world.arrive(waiting, asked)
        assert (decision.node if isinstance(decision, Allocation) else None) == node, "both ways give one answer"
        if number >= 4:
            yield ms


_TOLERATE: Final = pod("p", tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]).spec.tolerations


def _short_of_memory(world: World) -> Iterator[float]:
    """Decide while half of the nodes are full of memory, by pods of others."""
    hogs = [hog(f"hog-{name}", name) for name in list(world.kind_of)[::2]]
    for item in hogs:
        world.cluster.intake.pod_changed(None, item)
    yield from churn(world, 300, world.job).decisions
    for item in hogs:
        world.cluster.intake.pod_changed(item, None)


def hog(name: str, node: str) -> Pod:
    """A pod without claims that takes nearly all memory of its node."""
    requests = {"cpu": "1", "memory": "1700Gi"}
    running = pod(name, nodeName=node, containers=[{"name": "main", "resources": {"requests": requests}}])
    return kept_pod(as_watched(msgspec.to_builtins(running), Pod))


def containers(count: int, cpu: int = 0) -> list[dict[str, Any]]:
    """The container of a job of so many GPUs: an eighth of a node for each, less what the system takes."""
    requests = {"cpu": str(cpu or 20 * count), "memory": f"{100 * count}Gi"}
    return [{"name": "main", "resources": {"requests": requests}}]


def never() -> dict[str, Any]:
    """A node affinity that names no node, so that every one has to be asked."""
    rule = {"key": "topology.kubernetes.io/zone", "operator": "DoesNotExist"}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _explain(world: World) -> float:
    waiting, asked = world.job(affinity=never())
    world.cluster.intake.claim_changed(None, asked)
    assert isinstance(decide(world.cluster, waiting, asked), NoFit)
    began = now_ns()
    assert world.cluster.explain(waiting, [asked], now_s=10.0 * world.number)  # long after the one before
    took = (now_ns() - began) / 1e6
    world.cluster.leave(waiting.key)
    return took


def table_ms(machine: Machine) -> float:
    """Return the milliseconds for all answers about one kind of node: each mask of free GPUs, 1, 2, 4 and 8 of them."""
    inventory = Inventory(DRIVER)
    inventory.set_node(as_watched(node_document("n", machine.name, 0), Node))
    inventory.change_slice(None, as_watched(slice_document("n", machine, 0), ResourceSlice))
    pool = inventory.pool("n")
    assert pool is not None
    engine = Engine()
    began = now_ns()
    for free in range(1 << len(pool.devices)):
        for count in (1, 2, 4, 8):
            engine.best_two(pool.box, free, (Demand(count, NO_POLICY),))
    return (now_ns() - began) / 1e6


WHOLE: Final = "whole process: all objects, books, tables, after churn"


def measured_memory() -> Mapping[str, float]:
    """Measure memory in a process of its own, in MiB."""
    command = [sys.executable, "-P", "-m", "bench.decision", "--memory"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    return {str(name): float(value) for name, value in json.loads(found.stdout).items()}


def _memory() -> dict[str, float]:
    empty = resident_mib()
    look_seldom()
    world = World()
    built = resident_mib()
    world.fill()
    freeze_what_stays()
    churn(world, 2_000, world.job)
    full = resident_mib()
    return {
        "interpreter and code": empty,
        "nodes, slices and their books": built - empty,
        "claims, pods, tables of decisions": full - built,
        WHOLE: full,
    }


def resident_mib() -> float:
    """Return the memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def as_watched(document: Mapping[str, Any], kind: type[Any]) -> Any:
    """Return an object as the watch gives it: decoded from JSON, sharing nothing with any other."""
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)


def node_document(name: str, kind: str, number: int) -> dict[str, Any]:
    """A node as clouds label it, with the taint that keeps other pods away."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": f"{kind}.large",
        "topology.kubernetes.io/region": "somewhere-1",
        "topology.kubernetes.io/zone": f"somewhere-1{'abc'[number % 3]}",
        "topology.example.com/rack": f"rack-{number // 16}",
        "gpu.example.com/kind": kind,
    }
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    metadata = {"name": name, "uid": f"node-{number}", "resourceVersion": str(number), "labels": labels}
    room = {"cpu": str(CPU_OF_NODE), "memory": "1800Gi", "ephemeral-storage": "3000Gi", "pods": "110"}
    return {"metadata": metadata, "spec": {"taints": taints}, "status": {"allocatable": room}}


def slice_document(name: str, machine: Machine, number: int) -> dict[str, Any]:
    """The slice of a node as a live one has it: each device with a UUID of its own, and everything that NVML tells."""
    gpus = tuple(
        replace(
            gpu,
            uuid=f"GPU-{number:08x}-0000-4000-8000-{gpu.index:012x}",
            brand=gpu.brand or "Nvidia",
            pci_bus_id=f"0000:{0x18 + gpu.index:02x}:00.0",
            pcie_root=f"pci0000:{gpu.index:02x}",
            pcie_generation=gpu.pcie_generation or 4,
            pcie_width=16,
            nvlink_generation=gpu.nvlink_generation or 4,
        )
        for gpu in machine.gpus
    )
    made = Machine(machine.name, gpus, machine.topology, "580.65.06", "13.0")
    document: dict[str, Any] = msgspec.to_builtins(pool_slice(name, made))
    return document


class SliceTemplate:
    """Slices of equal nodes as JSON, by filling in what tells them apart: to make one takes longer than to read it."""

    _NODE: Final = "the-one-node.example.com"
    _NUMBER: Final = 0x5EED5EED

    def __init__(self, machine: Machine) -> None:
        self._text = msgspec.json.encode(slice_document(self._NODE, machine, self._NUMBER)).decode()

    def text(self, name: str, number: int) -> str:
        """Return slice_document() of a node of the machine."""
        return self._text.replace(self._NODE, name).replace(f"{self._NUMBER:08x}", f"{number:08x}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--memory"]:
        print(json.dumps(_memory()))
    else:
        section = rows(lambda text: print(text, file=sys.stderr))
        print(as_text(section))
        print(floors_as_text(section.floors))
