"""What the worst of each kind of bad input costs: the delay that it adds to another pod's decision, and memory.

A real controller, threads and all, in a process of its own for each kind, on an API server in that same process that
only hands bytes on. Run alone with `PYTHONPATH=tests python -P -m bench.hostile`; `bench.run` calls rows().
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CollectorRegistry

from bench.decision import KINDS, SliceTemplate, node_document, percentile
from bench.in_memory_api import InMemoryApi
from bench.report import NOT_MEASURED, Floor, Progress, Section, Table, as_text, floors_as_text
from dracaena.controller.program import Controller
from dracaena.controller.settings import ControllerSettings
from dracaena.kube.client import KubeClient
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.process.clock import SystemClock
from dracaena.process.logs import configure_logs
from support.allocation import DRIVER, request
from support.hostile_objects import (
    CONFIGS_MAX,
    WORST,
    HostileObject,
    class_object,
    huge_slice,
    many_patterns,
    many_small,
    opaque,
    selectors,
)
from support.hostile_objects import KINDS as HOSTILE_KINDS

NODES: Final = 300
"""Of 8 GPUs each: what is asked of every device is asked 2,400 times."""

FEW_NODES: Final = 20
"""Where memory is measured."""

PACE_S: Final = 0.25
"""Between two bad objects: each is done with, when all goes well, before the next one comes."""

OBJECTS: Final = 12
"""Bad objects of a kind while honest pods are timed."""

BEFORE: Final = 100
"""Honest pods that are timed before there is anything bad."""

PATIENCE_S: Final = 15.0
"""For one honest pod. Who waits longer is not waited for any more, and the kind is given up."""

WEIGHED_BYTES: Final = 8_000_000
"""Stored bytes of a kind whose memory is measured: enough to see beside what the process takes anyway."""

WEIGHED_MAX: Final = 1_000
WEIGHED_USED: Final = 20
"""Pods that use the objects whose memory is measured: what is compiled for them is kept."""

LARGE_BYTES: Final = 10_000
"""From this size on memory per byte is judged: a claim of a hundred bytes takes what any claim takes."""

DELAY_FLOOR_MS: Final = 250.0
DELAY_GOAL_MS: Final = 50.0
MEMORY_FLOOR: Final = 4.0
TIMEOUT_S: Final = 120.0

Kind = Callable[[int], HostileObject]


def class_of_patterns(number: int) -> HostileObject:
    """A class that everybody may name; its selectors cost what those of a claim cost."""
    return class_object(
        "class of patterns", f"patterns-{number}", selectors(*(many_patterns(5_000 + 3 * number + n) for n in range(3)))
    )


def class_of_fat_configs(number: int) -> HostileObject:
    """A class with as much to keep as it may have."""
    configs = [opaque(many_small(number * CONFIGS_MAX + place)) for place in range(CONFIGS_MAX)]
    return class_object("class of fat configs", f"fat-{number}", {"config": configs})


ALL: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        **WORST,
        "class of patterns": class_of_patterns,
        "class of fat configs": class_of_fat_configs,
        "slice of 64 devices": lambda number: huge_slice(number, f"hostile-{number}", taints=True),
        "slice of 128 devices": lambda number: huge_slice(number, f"hostile-{number}", taints=False),
    }
)


def rows(progress: Progress) -> Section:
    """Measure all kinds: a minute and a half."""
    _PROCESSES.set_forkserver_preload(["bench.hostile"])
    table: list[tuple[str, ...]] = []
    worst_ms, worst_memory = 0.0, 0.0
    for name in ALL:
        progress(f"hostile: {name}")
        times = _measured("delay", name)
        with ThreadPoolExecutor() as both:  # of memory, which is the same whatever else runs
            seen, start = both.map(_measured, ("seen", "start"), (name, name))
        added = {key: max(0.0, times[key] - times["before_p50"]) for key in ("p99", "max")}
        size_bytes = seen["bytes"] / seen["objects"]
        per_byte = [max(0.0, found["grown"]) / found["bytes"] for found in (seen, start)]
        worst_ms = max(worst_ms, added["max"])
        worst_memory = max(worst_memory, *per_byte) if size_bytes >= LARGE_BYTES else worst_memory
        table.append(
            (
                name,
                f"{size_bytes / 1000:,.1f}",
                f"{times['before_p50']:.1f}",
                f"{times['before_max']:.1f}",
                f"{added['p99']:.1f}",
                f"{'over ' if times['lost'] else ''}{added['max']:.1f}",
                str(int(times["honest"])),
                *(
                    NOT_MEASURED if found["lost"] else f"{figure:.2f}"
                    for found, figure in zip((seen, start), per_byte, strict=True)
                ),
            )
        )
    header = (
        "bad input",
        "KB each",
        "before: p50, ms",
        "before: max, ms",
        "delay added: p99, ms",
        "delay added: max, ms",
        "honest pods beside it",
        "memory per byte",
        "memory per byte, at the start",
    )
    return Section(
        title="Hostile input: what it costs others",
        tables=(Table(f"{NODES} nodes x 8 GPUs, {OBJECTS} bad objects of a kind", header, tuple(table)),),
        floors=(
            Floor(
                "delay that bad input adds to another pod's decision",
                worst_ms,
                DELAY_FLOOR_MS,
                "ms",
                goal=DELAY_GOAL_MS,
            ),
            Floor(
                f"memory per byte of an object of {LARGE_BYTES // 1000} KB or more", worst_memory, MEMORY_FLOOR, "bytes"
            ),
        ),
        notes=(
            "A delay is the time from an honest pod's event to the patch of its claim, less the median before.",
            f"A bad object each {PACE_S} s, a claim with a pod that uses it; honest pods come one after the other.",
            "Memory is the peak of the process less what it took before; at the start all objects come in one list.",
            f"Load average {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} CPUs at the end.",
        ),
    )


_PROCESSES: Final = get_context("forkserver")
"""Makes each process as a copy of one that has imported what is measured: an import takes a second, and each of the
kinds needs three processes."""


def _measured(what: str, name: str) -> dict[str, float]:
    """Return what is measured in a process of its own."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_measure, args=(theirs, what, name), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(TIMEOUT_S):
            raise RuntimeError(f"{what} of {name}: nothing was found in {TIMEOUT_S:.0f} s")
        found: dict[str, float] = ours.recv()
    except EOFError:
        raise RuntimeError(f"{what} of {name} failed: its error is above") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    return found


def _measure(told: Connection, what: str, name: str) -> None:
    configure_logs("error", "json")
    told.send({key: float(value) for key, value in MEASURES[what](ALL[name]).items()})
    os._exit(0)  # threads that bad input holds up are not waited for


class World:
    """An API with nodes and GPUs, and a controller over it that runs inside controller()."""

    def __init__(self, nodes: int) -> None:
        self._allocated: set[str] = set()
        self._changed = threading.Condition()
        self._asked = 0
        self.api = InMemoryApi(self._saw)
        templates = [(kind, SliceTemplate(read_machine(kind))) for kind in KINDS]
        for place in range(nodes):
            name, (kind, template) = f"node-{place:05}", templates[place % len(templates)]
            self._put_node(name, kind, place)
            made = json.loads(template.text(name, place))
            self.api.put("resourceslices", "ResourceSlice", made["metadata"], _json(made["spec"]))
        self.api.put("deviceclasses", "DeviceClass", {"name": DRIVER})

    @contextmanager
    def controller(self) -> Iterator[Controller]:
        """Run a controller inside the block, from when it has seen everything."""
        controller = Controller(
            ControllerSettings(leader_elect=False),
            KubeClient(self.api),
            clock=SystemClock(),
            rng=random.Random(1),
            registry=CollectorRegistry(),
        )
        controller.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while controller.not_ready() is not None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if (trouble := controller.not_ready()) is not None:
            raise RuntimeError(f"the controller did not start: {trouble}")
        yield controller
        # Not stopped: what is bad about an object may keep it from ending. The process ends.

    def ask(self) -> float:
        """Let an honest pod come, get its GPU, and go; return the milliseconds it waited, PATIENCE_S at most."""
        self._asked += 1
        key = f"default/honest-{self._asked}"
        self.put_claim(key, {"requests": [request()]})
        began_s = time.monotonic()
        self.put_pod(key, key)
        with self._changed:
            self._changed.wait_for(lambda: key in self._allocated, PATIENCE_S)
        took_ms = (time.monotonic() - began_s) * 1000
        self.api.delete("pods", key)
        self.api.delete("resourceclaims", key)
        return took_ms

    def put_claim(self, key: str, devices: Mapping[str, Any]) -> None:
        """Store a claim."""
        namespace, name = key.split("/")
        metadata = {"name": name, "namespace": namespace}
        self.api.put("resourceclaims", "ResourceClaim", metadata, _json({"devices": devices}))

    def put_pod(self, key: str, claim_key: str) -> None:
        """Store a pod that uses a claim of its namespace."""
        namespace, name = key.split("/")
        spec = {
            "containers": [{"name": "main"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim_key.split("/")[1]}],
        }
        metadata = {"name": name, "namespace": namespace}
        self.api.put("pods", "Pod", metadata, _json(spec), _json({"phase": "Pending"}))

    def put_hostile(self, item: HostileObject) -> None:
        """Store a bad object in another namespace; a slice with its node."""
        if item.resource == "resourceslices":
            self._put_node(item.name.replace("huge", "hostile"), "hostile", 0)
        namespace = {"namespace": "hostile"} if item.is_claim else {}
        self.api.put(item.resource, HOSTILE_KINDS[item.resource], {**namespace, **item.metadata}, item.spec)

    def use_hostile(self, item: HostileObject) -> None:
        """Let a pod need a bad object: a claim, or a class by a claim."""
        if item.resource == "resourceslices":
            return  # its node is there
        if item.resource == "deviceclasses":
            self.put_claim(f"hostile/{item.name}", {"requests": [request(device_class=item.name)]})
        self.put_pod(f"hostile/{item.name}", f"hostile/{item.name}")

    def _put_node(self, name: str, kind: str, number: int) -> None:
        made = node_document(name, kind, number)
        self.api.put("nodes", "Node", made["metadata"], _json(made["spec"]), _json(made["status"]))

    def _saw(self, key: str) -> None:
        with self._changed:
            self._allocated.add(key)
            self._changed.notify_all()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def delay(kind: Kind) -> dict[str, float]:
    """Time honest pods before and beside bad objects, in ms. `lost`: one waited in vain."""
    items = [kind(place) for place in range(OBJECTS)]
    world = World(NODES)
    with world.controller():
        for _ in range(20):
            world.ask()  # warm
        before = [world.ask() for _ in range(BEFORE)]
        ended = threading.Event()

        def send() -> None:
            for item in items:
                if ended.is_set():
                    break
                world.put_hostile(item)
                world.use_hostile(item)
                ended.wait(PACE_S)
            ended.set()

        sender = threading.Thread(target=send, name="hostile")
        sender.start()
        beside: list[float] = []
        while not (ended.is_set() and len(beside) >= OBJECTS):
            beside.append(world.ask())
            if beside[-1] >= PATIENCE_S * 1000:
                ended.set()
                break
        sender.join()
        return {
            "before_p50": median(before),
            "before_max": max(before),
            "p99": percentile(beside, 99),
            "max": max(beside),
            "honest": len(beside),
            "lost": float(beside[-1] >= PATIENCE_S * 1000),
        }


def memory_seen(kind: Kind) -> dict[str, float]:
    """Measure what objects cost that a running controller sees come: the peak, in bytes."""
    world, items = World(FEW_NODES), weighed(kind)
    with world.controller():
        world.ask()
        empty = begin_peak()
        for item in items:
            world.put_hostile(item)
        lost = world.ask() >= PATIENCE_S * 1000
        return {"grown": use_some(world, items) - empty, "lost": float(lost), **weight(items)}


def memory_at_start(kind: Kind) -> dict[str, float]:
    """Measure what objects cost a controller that starts with them: what it takes without them is not counted."""
    world, items = World(FEW_NODES), weighed(kind)
    with world.controller() as first:
        world.ask()
        first.stop()
    for item in items:
        world.put_hostile(item)
    empty = begin_peak()
    with world.controller():
        lost = world.ask() >= PATIENCE_S * 1000
        return {"grown": use_some(world, items) - empty, "lost": float(lost), **weight(items)}


def weighed(kind: Kind) -> list[HostileObject]:
    """Return so many objects of a kind that their memory can be seen."""
    return [kind(place) for place in range(max(WEIGHED_USED, min(WEIGHED_MAX, WEIGHED_BYTES // len(kind(0).body))))]


def weight(items: Sequence[HostileObject]) -> dict[str, float]:
    """Return what the objects weigh on the wire."""
    return {"bytes": sum(len(item.body) for item in items), "objects": len(items)}


def use_some(world: World, items: Sequence[HostileObject]) -> float:
    """Let pods need some of the objects, and return the most bytes that the process took."""
    for item in items[:WEIGHED_USED]:
        world.use_hostile(item)
    world.ask()
    return _status_bytes("VmHWM")


def begin_peak() -> float:
    """Let the kernel begin its peak anew (proc(5), clear_refs) and return what the process takes now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what others left free would be filled first
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> float:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(float(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{name}:"))


MEASURES: Final[Mapping[str, Callable[[Kind], dict[str, float]]]] = MappingProxyType(
    {"delay": delay, "seen": memory_seen, "start": memory_at_start}
)

if __name__ == "__main__":
    section = rows(lambda text: print(text, file=sys.stderr))
    print(as_text(section))
    print(floors_as_text(section.floors))
