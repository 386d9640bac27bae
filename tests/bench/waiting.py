"""What one freed device costs when 10,000 pods wait: decisions, and time until the right pod has it.

The controller's own reconciler, queue and books over a fake API server in memory, so writes take no time. Run with
`PYTHONPATH=tests python -P -m bench.waiting`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from dracaena.controller.garbage import freeze_what_stays
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import claim, holding, node, pod, pool_slice, request
from support.reconciling import Bench

NODES: Final = 5_000
PODS: Final = 10_000
SHAPES: Final = (1, 2, 4)
"""GPUs of the pods that wait, in turn."""

FREED: Final = 50
"""Devices that are freed one after another, each when all is quiet."""


def main() -> int:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    machine = read_machine("hgx-h100")
    bench = Bench(**{"node-00000": machine})
    names = [f"node-{number:05}" for number in range(NODES)]
    for name in names[1:]:
        item = pool_slice(name, machine)
        bench.cluster.intake.slice_changed(None, item)
        bench.cluster.intake.node_changed(None, node(name))
    devices = [device.name for device in pool_slice(names[0], machine).spec.devices]
    for name in names:
        for place, device in enumerate(devices):
            bench.api.put(holding(claim(f"held-{name}-{place}", request(count=1)), name, device))
    freeze_what_stays()
    began = time.perf_counter()
    for number in range(PODS):
        name = f"waiting-{number:05}"
        waiting = pod(name, name)
        meta = msgspec.structs.replace(waiting.metadata, creation_timestamp=f"2026-01-01T00:00:{number // 1000:02}Z")
        bench.add(claim(name, request(count=SHAPES[number % 3])), msgspec.structs.replace(waiting, metadata=meta))
    bench.run()
    print(f"{PODS} pods came and wait: {time.perf_counter() - began:.1f} s, decisions {decisions(bench)}")
    firsts, wholes, looked = [], [], []
    for number in range(FREED):
        before = looks(bench)
        expected = f"default/waiting-{3 * number:05}"  # the oldest pod of one GPU
        began = time.perf_counter()
        bench.api.remove(f"default/held-{names[number]}-3")
        run_until(bench, lambda key=expected: bench.api.claims[key].status.allocation is not None)  # type: ignore[misc]
        firsts.append(1e3 * (time.perf_counter() - began))
        bench.run()
        wholes.append(1e3 * (time.perf_counter() - began))
        looked.append(looks(bench) - before)
        allocated = [key for key, item in bench.api.claims.items() if "waiting" in key and item.status.allocation]
        assert len(allocated) == number + 1, "nobody else got a device"
    print(f"{FREED} devices freed one by one, each given to the first in the queue that it fits:")
    print(f"  decisions that looked at nodes: {min(looked):.0f} to {max(looked):.0f} for each")
    print(f"  until the pod had it: median {median(firsts):.2f} ms, longest {max(firsts):.2f} ms")
    print(f"  until all was quiet again: median {median(wholes):.2f} ms, longest {max(wholes):.2f} ms")
    return 0


def decisions(bench: Bench) -> dict[str, int]:
    """Return how many decisions there were, by result."""
    results = ("allocated", "unsatisfied", "behind", "refused", "settled", "in-progress")
    return {result: int(bench.metric("decisions_total", result=result) or 0) for result in results}


def looks(bench: Bench) -> int:
    """Return how many decisions looked at nodes."""
    found = decisions(bench)
    return found["allocated"] + found["unsatisfied"]


def run_until(bench: Bench, done: Callable[[], bool]) -> None:
    """Do what workers do until something holds."""
    while not done():
        bench.step()


def median(values: list[float]) -> float:
    """Return the middle value."""
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    sys.exit(main())
