"""The one place where reasons come out: Allocator.explain_in_turns(). Whatever world asks, what it is told is judged.

Events, the page's waiting list, `explain` and `simulate` all show what comes out here. What the judge reads are the
objects that the inventory was given, as JSON, who holds what, and what pods take of nodes.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from dracaena.api.device_id import PoolId
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.explanation import Pace, Unsatisfied
from dracaena.controller.allocation.nodes.placement.placed_pods import PodFacts
from dracaena.controller.allocation.nodes.placement.pod_terms import REQUIRED, LabelSelector
from dracaena.controller.allocation.nodes.pod_resources import UnreadableQuantityError, pod_resources
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from support.reasons.facts import UNKNOWN
from support.reasons.judge import judge, judge_census, judge_refusal

MOST_NODES = 64
"""Larger clusters are not judged: to judge a node takes a millisecond, and tests of size ask for nothing new."""

MOST_NODES_OF_CENSUS = 16
EACH = 25
"""Of so many decisions that give devices, one is judged: each would take as long as the decision many times."""


@dataclass
class Judged:
    """What was judged so far."""

    count: int = 0
    allocations: int = 0
    untrue: list[str] = field(default_factory=list)
    file: Path | None = None
    """Where a program that a test has started writes what is untrue, and its test looks for it."""

    def note(self, untrue: Sequence[str]) -> None:
        """Keep what is untrue."""
        if untrue and self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(one)}\n" for one in untrue))
        else:
            self.untrue += untrue


JUDGED = Judged()
"""Of this process."""

T = TypeVar("T")
Explained = Generator[None, None, Unsatisfied | Refused | None]

_right = Allocator.explain_in_turns
_allocate = Allocator.allocate


def explain_and_judge(
    self: Allocator,
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    *,
    barred: Mapping[str, str],
    pace: Pace,
) -> Explained:
    """Takes the place of Allocator.explain_in_turns()."""
    if len(inventory.nodes) > MOST_NODES:
        return (yield from _right(self, inventory, pod, claims, barred=barred, pace=pace))
    seen = [_with_room(objects_of, inventory, pod)]
    turns = _right(self, inventory, pod, claims, barred=barred, pace=pace)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found = end.value
            break
        yield
        seen.append(_with_room(objects_of, inventory, pod))
    JUDGED.count += found is not None
    if found is not None:
        case = _with_room(_case, seen, pod, claims, barred)
        is_refused = isinstance(found, Refused)
        untrue = _judged(judge_refusal, case, found.text) if is_refused else _judged(judge, case, plain(found))
        JUDGED.note([f"{one} -- in: {found}" for one in untrue])
    return found  # type: ignore[no-any-return]


def allocate_and_judge(
    self: Allocator,
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    *,
    barred: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Allocation | NoFit | Refused | Settled:
    """Takes the place of Allocator.allocate(): what is said of the nodes that were not taken is judged now and then."""
    found = _allocate(self, inventory, pod, claims, barred=barred, **more)
    if (
        isinstance(found, Allocation)
        and len(inventory.nodes) <= MOST_NODES_OF_CENSUS
        and not (more.get("within") or more.get("preempting"))
    ):
        JUDGED.allocations += 1
        if JUDGED.allocations % EACH == 1:
            told = [[text, count] for text, count in found.census.reasons(found.choice)]
            case = _with_room(_case, [_with_room(objects_of, inventory, pod)], pod, claims, barred)
            untrue = _judged(judge_census, case, found.node, told)
            JUDGED.note([f"{one} -- beside {found.node}: {told}" for one in untrue])
    return found


def _case(
    clusters: Sequence[Any], pod: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str]
) -> dict[str, Any]:
    distinct = [one for place, one in enumerate(clusters) if one not in clusters[:place]]
    return {"clusters": distinct, "pod": plain(pod), "claims": [plain(one) for one in claims], "barred": dict(barred)}


def _judged(judging: Callable[..., list[str]], *told: Any) -> list[str]:
    """What the judge says. It gets nothing but JSON, and a mistake of its own is no fault of whoever asked."""
    try:
        return _with_room(lambda: judging(*json.loads(json.dumps(told))))
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        return [f"the judge failed: {traceback.format_exc()}"]


def _with_room(work: Callable[..., T], *given: Any) -> T:
    """Return what `work` returns. Where the stack of who asks leaves too little room for objects that are nested as
    deeply as the product reads them, it is done in a thread of its own: its stack is shorter than any that reads."""
    try:
        return work(*given)
    except RecursionError:
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(work, *given).result()


@contextmanager
def judged_reasons(file: Path) -> Iterator[Judged]:
    """Judge all reasons that are given meanwhile, whatever thread or forked program asks; raise AssertionError at the
    end if one of them is untrue. `file`: where such programs write."""
    global FILE
    before, FILE = len(JUDGED.untrue), file
    yield JUDGED
    untrue = JUDGED.untrue[before:]
    del JUDGED.untrue[before:]
    if file.exists():
        untrue += map(json.loads, file.read_text(encoding="utf-8").splitlines())
        file.unlink()
    assert not untrue, "untrue reasons:\n" + "\n".join(dict.fromkeys(untrue))


FILE: Path | None = None
"""Where programs that are started now write what is untrue."""


@contextmanager
def untrue_reasons() -> Iterator[list[str]]:
    """Give what is found untrue within, for tests that plant faults: it does not count beyond."""
    found: list[str] = []
    before = len(JUDGED.untrue)
    try:
        yield found
    finally:
        found += JUDGED.untrue[before:]
        del JUDGED.untrue[before:]


def install(file: Path | None = None) -> None:
    """Judge from now on. `file`: for a program that a test starts, where it writes what is untrue."""
    JUDGED.file = file
    Allocator.explain_in_turns = explain_and_judge  # type: ignore[method-assign]
    Allocator.allocate = allocate_and_judge  # type: ignore[method-assign]


def plain(item: Any) -> Any:
    """An object as JSON."""
    return msgspec.json.decode(msgspec.json.encode(item))


def objects_of(inventory: Inventory, pod: Pod) -> dict[str, Any]:
    """Everything that decisions depend on, as JSON."""
    names = inventory.nodes.names
    ours = (page for pages in inventory._slices.values() for page in pages.values())
    foreign = {**inventory._foreign, **inventory.others._slices}.values()
    return {
        "driver": inventory.driver,
        "nodes": [plain(inventory.nodes.get(name).node) for name in names],
        "slices": [_slice(page) for page in (*ours, *foreign)],
        "classes": [plain(one) for one in inventory.classes.values()],
        "rules": [plain(one) for one in inventory._rules.every()],
        "held": list(_held(inventory)),
        "room": {name: _room(inventory, name, pod) for name in names},
        "allowed": sorted(inventory.allowed_drivers),
        "around": _around(inventory, pod),
    }


def _around(inventory: Inventory, pod: Pod) -> dict[str, Any]:
    """What rules about other pods and storage look at; nothing if none apply."""
    placed, storage, spec = inventory.placed, inventory.storage, pod.spec
    if not (spec.affinity or spec.topology_spread_constraints or spec.volumes or placed.keeps_pods_off):
        return {}
    return {
        "pods": [
            [node, _placed(name, facts)] for pods in placed._pods.values() for name, (node, facts) in pods.items()
        ],
        "namespaces": {name: dict(labels) for name, labels in placed._namespaces.items()},
        "claims": {key: plain(one) for key, one in storage.claims.items()},
        "volumes": {name: plain(one) for name, one in storage.volumes.items()},
        "classes": {name: plain(one) for name, one in storage.classes.items()},
    }


def _placed(name: str, facts: PodFacts) -> dict[str, Any]:
    """A pod that counts on a node, as far as rules read it. `name` is that under which it counts."""
    meta: dict[str, Any] = {"uid": name, "namespace": facts.namespace, "labels": dict(facts.labels)}
    if facts.leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    apart = [
        {
            "topologyKey": term.topology_key,
            "namespaces": sorted(term.pods.namespaces),
            "namespaceSelector": _selector(term.pods.namespace_selector),
            "labelSelector": _selector(term.pods.selector),
        }
        for term in facts.keeps_off
    ]
    return {
        "metadata": meta,
        "spec": {
            "affinity": {"podAntiAffinity": {REQUIRED: apart}},
            "volumes": [{"persistentVolumeClaim": {"claimName": claim}} for claim in facts.volume_claims],
        },
    }


def _selector(selector: LabelSelector | None) -> dict[str, Any] | None:
    if selector is None:
        return None
    return {
        "matchExpressions": [
            {"key": rule.key, "operator": rule.operator, "values": list(rule.values)} for rule in selector.rules
        ]
    }


def _slice(page: Any) -> dict[str, Any]:
    """A slice, with what this version does not know of it under `unknown`."""
    document: dict[str, Any] = plain(page)
    document["spec"][UNKNOWN] = page.spec.unknown
    for device, written in zip(page.spec.devices, document["spec"].get("devices", ()), strict=False):
        written[UNKNOWN] = device.unknown
    return document


def _held(inventory: Inventory) -> Iterator[dict[str, Any]]:
    shares = set()
    every = {holder: (devices, others) for holder, devices, others in inventory.holdings.every()}
    for holder, more in inventory.others.held_by.items():
        devices, others = every.get(holder, (frozenset(), frozenset()))
        every[holder] = devices, others | more
    for holder, (devices, others) in every.items():
        for holding in others:
            pool = PoolId(holding.device.driver, holding.device.pool)
            one: dict[str, Any] = {
                "holder": holder,
                "driver": pool.driver,
                "pool": pool.pool,
                "device": holding.device.device,
            }
            if holding.share_id is not None:
                one |= {"share": str(holding.share_id), "consumed": dict(holding.consumed), "mode": holding.mode or ""}
                shares.add((holder, holding.device))
            yield one
        for device in sorted(devices):
            if (holder, device) not in shares:
                yield {"holder": holder, "driver": device.driver, "pool": device.pool, "device": device.device}


def _room(inventory: Inventory, name: str, pod: Pod) -> dict[str, Any]:
    resources = inventory.resources
    try:
        wanted = pod_resources(pod)
    except UnreadableQuantityError:
        return {}
    has = resources._has.get(name)
    own = resources.counted(pod.metadata.uid or pod.key)
    used = dict(resources._used.get(name, {}))
    if own is not None and own[0] == name:
        for resource, amount in own[1].amounts:
            used[resource] = used.get(resource, 0) - amount
    return {
        "has": None if has is None else dict(has),
        "used": used,
        "wanted": dict(wanted.amounts),
        "ports": [[port.port, port.protocol] for port in resources._ports.get(name, ())],
        "wantsPorts": bool(wanted.ports),
    }
