"""What rules about other pods cost a decision: pods with and without them, on 5,000 nodes with 50,000 pods."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bench.report import Row, Section
from dracaena.api.objects import Pod
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.nodes.placement.placed_pods import pod_facts
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.cache.pods import kept_pod
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, machine, node, pool_slice, request

NODES: Final = 5_000
PODS: Final = 50_000
A_TEMPLATE: Final = 25
"""Pods that have the same labels."""
DECISIONS: Final = 200
HOST: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
SWITCHED: Final = machine("switched", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, nvlink_generation=4)


def name_of(number: int) -> str:
    """Return the name of a node."""
    return f"n{number:04}"


LAST: Final = name_of(NODES - 1)
"""All others come before it, whatever is compared: by their names."""

ON_LAST: Final = f"that only the last of {NODES:,} nodes can take, near a pod there"


def rows(tell: Callable[[str], None]) -> Section:
    """Measure, and return the section."""
    tell("rules about other pods")
    inventory = cluster()
    plain = pod("plain")
    before = median_ms(inventory, plain)
    tracemalloc.start()
    for number in range(PODS):
        put(inventory, kept_pod(pod(f"w{number}", app=f"app{number // A_TEMPLATE}", nodeName=name_of(number % NODES))))
    memory = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    put(inventory, kept_pod(pod("one", app="one", nodeName=LAST)))
    after = median_ms(inventory, plain)
    ruled = {
        ON_LAST: {"podAffinity": {REQUIRED: [term(HOST, "one")]}},
        f"near pods that are on {A_TEMPLATE} nodes": {"podAffinity": {REQUIRED: [term(HOST, "app1")]}},
        "near pods of every zone": {"podAffinity": {REQUIRED: [term("zone", "app0")]}},
        "apart from others by node": {"podAntiAffinity": {REQUIRED: [term(HOST, "app0")]}},
    }
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term("zone", "app0")}
    asked = {name: pod("p", affinity=affinity) for name, affinity in ruled.items()}
    asked["spread over zones"] = pod("p", topologySpreadConstraints=[spread])
    return Section(
        title="Rules about other pods",
        rows=(
            Row(f"a pod without rules, {PODS:,} pods on nodes, p50", after, before, "ms", against="no pods on nodes"),
            *(
                Row(
                    f"a pod {name}, p50",
                    median_ms(inventory, one, LAST if name == ON_LAST else None),
                    after,
                    "ms",
                    against="a pod without rules",
                )
                for name, one in asked.items()
            ),
            Row(f"what is kept of {PODS:,} pods for rules", memory, unit="MiB"),
        ),
        notes=(f"{NODES:,} nodes in 3 zones, {A_TEMPLATE} pods of each set of labels, {DECISIONS} decisions each.",),
    )


def cluster() -> Inventory:
    """Make nodes in three zones, each with a machine that is free."""
    names = [name_of(number) for number in range(NODES)]
    return make_inventory(
        DRIVER,
        nodes=[node(name, labels={"zone": f"z{place % 3}", HOST: name}) for place, name in enumerate(names)],
        slices=[pool_slice(name, SWITCHED) for name in names],
        classes=[device_class()],
    )


def term(key: str, app: str) -> dict[str, Any]:
    """Make a term about the pods of an app."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def pod(name: str, *, app: str = "x", **spec: Any) -> Pod:
    """Make a pod."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": app, "tier": "y"}}
    return msgspec.convert({"metadata": meta, "spec": spec}, Pod)


def put(inventory: Inventory, item: Pod) -> None:
    """Let a pod count on its node."""
    inventory.placed.place(item.metadata.uid, item.metadata.namespace, item.spec.node_name, pod_facts(item))


def median_ms(inventory: Inventory, asking: Pod, expected: str | None = None) -> float:
    """Return what a decision takes once the pod was asked for before. It is for the node `expected`; None: for any."""
    allocator, asked = Allocator(), [claim("c", request(count=4))]
    times = []
    for _ in range(DECISIONS + 1):
        began = time.perf_counter()
        decision = allocator.allocate(inventory, asking, asked)
        times.append(1e3 * (time.perf_counter() - began))
        assert isinstance(decision, Allocation)
        assert expected is None or decision.node == expected
    return sorted(times[1:])[DECISIONS // 2]
