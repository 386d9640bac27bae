"""Section: what claims cost that say more than a number of GPUs, at 5,000 nodes and on one node.

Run alone with `PYTHONPATH=tests python -P -m bench.semantics`; `bench.run` calls rows().
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from bench.decision import KINDS, NODES, World, cpu_ns, filled, now_ns
from bench.report import Floor, Progress, Row, Section, Table, as_text, floors_as_text, number
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.outcome import DoesNotFit, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.search import solve
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.garbage import collect_between_decisions, freeze_what_stays
from support.allocation import DRIVER, claim, device_class, pod, request
from support.structured import CLASSES, device, exactly, published
from support.structured import World as NodeWorld
from support.structured import claim as one_claim

ROUNDS: Final = 50
"""Decisions of each form at 5,000 nodes, the forms in turn, so that all see the same states of the cluster."""

COUNT: Final = 2
"""GPUs that each form asks for."""

GOAL: Final = 1.5
"""Times the plain decision: kube-scheduler's throughput halves at 5,000 nodes with either (reference of the issue)."""

IS_GPU: Final = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
SWITCH: Final = f"{DRIVER}/pcieSwitch"
NUMA: Final = "resource.kubernetes.io/numaNode"


def cel(expression: str) -> list[dict[str, Any]]:
    """Return one selector as it stands in a document."""
    return [{"cel": {"expression": expression}}]


def _asked(name: str, *requests: dict[str, Any], **constraint: str) -> ResourceClaim:
    made = claim(name, *requests)
    if constraint:
        made.spec["devices"]["constraints"] = [constraint]
    return made


def _exactly(**fields: Any) -> dict[str, Any]:
    return {"name": "gpus", "exactly": {"deviceClassName": DRIVER, **fields}}


def _thrice(attribute: str) -> ResourceClaim:
    made = claim("free", request(count=COUNT))
    made.spec["devices"]["constraints"] = [{"matchAttribute": f"resource.kubernetes.io/{attribute}"}] * 3
    return made


FORMS: Final[Mapping[str, Callable[[str], ResourceClaim]]] = MappingProxyType(
    {
        "plain": lambda name: _asked(name, request(count=COUNT)),
        "class with a CEL selector": lambda name: _asked(name, request(count=COUNT, device_class="selected")),
        "class and request with CEL selectors": lambda name: _asked(
            name,
            request(
                count=COUNT,
                device_class="selected",
                selectors=cel(f'device.attributes["{DRIVER}"].pcieGeneration >= 3'),
            ),
        ),
        "matchAttribute on the NUMA node": lambda name: _asked(name, request(count=COUNT), matchAttribute=NUMA),
        "matchAttribute on the PCIe switch": lambda name: _asked(name, request(count=COUNT), matchAttribute=SWITCH),
        "CEL selector and matchAttribute": lambda name: _asked(
            name, request(count=COUNT, device_class="selected"), matchAttribute=NUMA
        ),
        "distinctAttribute on the NUMA node": lambda name: _asked(name, request(count=COUNT), distinctAttribute=NUMA),
        "two alternatives": lambda name: _asked(
            name,
            {
                "name": "gpus",
                "firstAvailable": [
                    {"name": "many", "deviceClassName": DRIVER, "count": 9},
                    {"name": "few", "deviceClassName": DRIVER, "count": COUNT},
                ],
            },
        ),
    }
)
"""What is asked, the plain form first."""

FREE_FORMS: Final[Mapping[str, tuple[Callable[[], ResourceClaim], type]]] = MappingProxyType(
    {
        "8 GPUs": (lambda: _asked("free", request(count=8)), Allocation),
        "all GPUs of a node": (lambda: _asked("free", _exactly(allocationMode="All")), Allocation),
        "adminAccess": (lambda: _asked("free", _exactly(count=1, adminAccess=True)), Allocation),
        "a GPU with 10 GiB": (
            lambda: _asked("free", _exactly(count=1, capacity={"requests": {"memory": "10Gi"}})),
            Allocation,
        ),
        "2 GPUs, one constraint three times, no node has them": (lambda: _thrice("pcieRoot"), NoFit),
        "2 GPUs, one constraint three times": (lambda: _thrice("numaNode"), Allocation),
    }
)
"""What is asked where every node could serve it, each by itself, and what the answer has to be."""

FREE_WARM: Final = 20
"""Decisions of each of these after the first."""

FREE_FLOOR_MS: Final = 250.0
FREE_GOAL_MS: Final = 50.0
"""What a claim may delay other pods by."""

HELD_TO_GOAL: Final = frozenset(
    {
        "class with a CEL selector",
        "class and request with CEL selectors",
        "matchAttribute on the NUMA node",
        "matchAttribute on the PCIe switch",
        "CEL selector and matchAttribute",
    }
)


def rows(progress: Progress) -> Section:
    """Measure everything in one run and return the rows."""
    progress(f"semantics: {NODES} nodes")
    free_world = World(NODES, KINDS)
    free = {name: free_ms(free_world, make(), expected) for name, (make, expected) in FREE_FORMS.items()}
    del free_world
    times = decisions_ms(filled())
    plain = statistics.median(times["plain"])
    lines, floors = [], []
    for name, measured in times.items():
        median = statistics.median(measured)
        worst = sorted(measured)[len(measured) * 99 // 100]
        lines.append((name, number(median), number(worst), f"{median / plain:.2f}"))
        if name in HELD_TO_GOAL:
            floors.append(Floor(f"{name}, times the plain decision", median / plain, 2.0, goal=GOAL))
    slowest = max(itertools.chain.from_iterable(free.values()))
    floors.append(
        Floor(f"a claim of any form at {NODES:,} free nodes, slowest", slowest, FREE_FLOOR_MS, "ms", goal=FREE_GOAL_MS)
    )
    progress("semantics: one node")
    return Section(
        title="Claims that say more than a number",
        tables=(
            Table(f"one decision at {NODES} nodes, ms", ("claim", "median", "p99", "times plain"), tuple(lines)),
            Table(
                f"one decision at {NODES:,} free nodes, ms",
                ("claim", "the very first", "then: median", "then: longest"),
                tuple(
                    (name, number(first), number(statistics.median(then)), number(max(then)))
                    for name, (first, *then) in free.items()
                ),
            ),
            Table(
                "the first legal allocation on one node, ms",
                ("devices", "requests", "constraints", "time", "steps", "answer"),
                tuple(_one_node(*size) for size in SIZES),
            ),
        ),
        rows=(Row("plain decision", plain, unit="ms"),),
        floors=tuple(floors),
        notes=(
            f"Each claim is for {COUNT} GPUs. Nothing is committed: all forms see one state.",
            "A form was decided once before it is measured: what is remembered between pods counts.",
            "Decisions are measured in CPU time of the thread.",
        ),
    )


def free_ms(world: World, asked: ResourceClaim, expected: type) -> list[float]:
    """Return the CPU times of decisions about one claim on free nodes: first that of an allocator that remembers
    nothing, then FREE_WARM more."""
    allocator = Allocator()
    return [_decide(world, allocator, asked, expected) for _ in range(1 + FREE_WARM)]


def decisions_ms(world: World) -> dict[str, list[float]]:
    """Return the CPU times of decisions about each form, in turn, in a filled cluster in which jobs come and go."""
    world.cluster.intake.class_changed(None, device_class("selected", selectors=cel(IS_GPU)))
    freeze_what_stays()
    allocator = Allocator()
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    for turn in range(-1, ROUNDS):
        world.leave()
        waiting, asked = world.job()
        world.arrive(waiting, asked)
        forms = list(FORMS.items())
        # Who comes first after a change pays for what the others find in memory.
        for name, form in forms[turn % len(forms) :] + forms[: turn % len(forms)]:
            spent_ms = _decide(world, allocator, form(f"{name}-{turn}".replace(" ", "-").lower()))
            if turn >= 0:
                times[name].append(spent_ms)
    return times


def _decide(world: World, allocator: Allocator, asked: ResourceClaim, expected: type = Allocation) -> float:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    waiting: Pod = pod("p", asked.metadata.name, tolerations=tolerations)
    collect_between_decisions()  # as the worker does that decides next
    began = cpu_ns()
    decision = allocator.allocate(world.inventory, waiting, [asked])
    spent = cpu_ns() - began
    assert isinstance(decision, expected), decision
    return spent / 1e6


SIZES: Final = (
    (8, 1, 0),
    (8, 4, 1),
    (16, 4, 1),
    (64, 1, 0),
    (64, 8, 2),
    (64, 32, 0),
    (64, 32, 2),
)
"""Devices, requests of one device, constraints: the last with the most that the API allows of both."""


def _one_node(devices: int, requests: int, constraints: int) -> tuple[str, ...]:
    made = [device(f"dev-{place:02}", attributes={"a": place % 4, "b": place % 8}) for place in range(devices)]
    entries: Sequence[dict[str, Any]] = [{"matchAttribute": "driver-a/a"}, {"matchAttribute": "driver-a/b"}]
    document = one_claim(*(exactly(f"r{place}") for place in range(requests)), constraints=list(entries[:constraints]))
    world = NodeWorld([published("slice-1", *made)], classes=CLASSES)
    began = now_ns()
    problem = world.problem(document)
    outcome = solve(problem) if isinstance(problem, Problem) else problem
    spent_ms = (now_ns() - began) / 1e6
    assert isinstance(outcome, Plan | DoesNotFit)
    answer = "fits" if isinstance(outcome, Plan) else "cut off" if outcome.cut_off else "does not fit"
    return (str(devices), str(requests), str(constraints), number(spent_ms), str(outcome.steps), answer)


if __name__ == "__main__":
    found = rows(print)
    print(as_text(found), floors_as_text(found.floors), sep="\n", end="")
