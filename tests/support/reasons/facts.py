"""What a cluster is, from its objects as JSON: which devices a node has, who has them, and what keeps others off.

No code of the allocator is used; attributes are decoded by api.devicepool, expressions evaluated by the package cel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from dracaena.api.devicepool import device_problem
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import Device as PublishedDevice
from support.reasons.nodes import Json, tolerated
from support.slow_placement import SlowPlacement

UNKNOWN = "(unknown)"
"""Key for the fields of a slice or device that this version does not know: they are not kept."""

BLOCKING = ("NoSchedule", "NoExecute")


def nano(text: Any) -> int:
    return parse_quantity(str(text)).nano


@dataclass(frozen=True)
class Device:
    """One device of a node, and what is known of it."""

    name: str
    driver: str
    pool: str
    document: Json
    own_key: str
    taints: tuple[Json, ...]
    """Those of the slice and of rules, without ours."""
    holders: tuple[str, ...]
    taken: Mapping[str, int]
    """What shares of it take together, in billionths."""
    is_whole_held: bool
    modes: frozenset[str]
    """Of its shares."""
    lacks_counters: bool
    """Whether what is held of the pool leaves too little for it."""

    def attribute(self, name: str) -> Any:
        """The value of one of our attributes; None if it is not there."""
        value = self.document.get("attributes", {}).get(name, {})
        return next(iter(value.values()), None)

    @cached_property
    def is_readable(self) -> bool:
        known = {name: value for name, value in self.document.items() if name != UNKNOWN}
        return device_problem(msgspec.convert(known, PublishedDevice)) is None

    @property
    def is_ours(self) -> bool:
        return any(
            t["key"] == self.own_key and t.get("effect") == "NoSchedule" for t in self.document.get("taints", ())
        )

    @property
    def is_gpu(self) -> bool:
        return self.attribute("type") in ("gpu", "vfio")

    @property
    def is_offered_whole(self) -> bool:
        return self.is_ours and self.is_readable and self.is_gpu

    @property
    def is_unheld(self) -> bool:
        return not self.holders and not self.lacks_counters

    @property
    def allows_shares(self) -> bool:
        return bool(self.document.get("allowMultipleAllocations"))

    def left(self) -> dict[str, int]:
        """What is left of each capacity."""
        every = {name: nano(one["value"]) for name, one in self.document.get("capacity", {}).items()}
        if self.is_whole_held:
            return dict.fromkeys(every, 0)
        return {name: amount - self.taken.get(name, 0) for name, amount in every.items()}

    def is_kept_off(self, tolerations: Iterable[Json]) -> bool:
        """Whether it has a taint that these do not tolerate."""
        known = list(tolerations)
        return any(one.get("effect") in BLOCKING and not tolerated(one, known) for one in self.taints)


@dataclass(frozen=True)
class NodeFacts:
    """One node."""

    document: Json
    devices: tuple[Device, ...]
    """Of all drivers that count, those of usable pools only."""
    elsewhere: tuple[Device, ...]
    """Of the drivers that do not count: kube-scheduler allocates them."""
    published: tuple[Json, ...]
    """What the newest slices of our driver publish there, usable or not."""
    problem: str
    """Why no pool of ours is usable there; empty if one is."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(self.document["metadata"].get("labels") or {})


@dataclass(frozen=True)
class Cluster:
    """All that there is."""

    driver: str
    nodes: tuple[Json, ...]
    slices: tuple[Json, ...]
    classes: tuple[Json, ...] = ()
    rules: tuple[Json, ...] = ()
    held: tuple[Json, ...] = ()
    """Each with `holder`, `driver`, `pool`, `device`; a share also with `share`, `consumed` (billionths) and `mode`."""
    room: Mapping[str, Json] = field(default_factory=dict)
    """Node → `used` by resource and `ports`, `has` by resource or None; in the units of the pods' own amounts."""
    allowed: tuple[str, ...] = ()
    """Other drivers whose devices count."""
    around: Json = field(default_factory=dict)
    """What kube-scheduler's rules about other pods and storage look at, where some may apply to the pod: `pods`, each
    with its node; labels of `namespaces`; `claims`, `volumes` and `classes` of storage."""

    @cached_property
    def own_key(self) -> str:
        return f"{self.driver}/controller-allocated"

    @cached_property
    def facts(self) -> dict[str, NodeFacts]:
        """Each node."""
        return {str(one["metadata"]["name"]): self._node(one) for one in self.nodes}

    @cached_property
    def placement(self) -> SlowPlacement:
        """What other pods and storage mean for a pod."""
        nodes = {str(one["metadata"]["name"]): one for one in self.nodes}
        pods = [(node, pod) for node, pod in self.around.get("pods", ())]
        return SlowPlacement(nodes, pods, **{name: one for name, one in self.around.items() if name != "pods"})

    def _node(self, document: Json) -> NodeFacts:
        name = document["metadata"]["name"]
        ours = [one for one in self.slices if one["spec"]["driver"] == self.driver]
        pools: dict[str, list[Json]] = {}
        for one in ours:
            pools.setdefault(one["spec"]["pool"]["name"], []).append(one)
        current = {pool: _newest(pages) for pool, pages in pools.items()}
        here = {pool: pages for pool, pages in current.items() if any(_on(page, name) for page in pages)}
        published = tuple(
            device for pages in here.values() for page in pages for device in page["spec"].get("devices", ())
        )
        usable = {pool: pages for pool, pages in here.items() if not _defect(pages)}
        problem = ""
        if len(usable) != 1:
            problem = "several pools" if len(usable) > 1 else next(map(_defect, here.values()), "") or "no pool"
            usable = {}
        devices = [d for pool, pages in usable.items() for d in self._devices(self.driver, pool, pages)]
        devices += self._of_others(name, counting=True)
        elsewhere = tuple(self._of_others(name, counting=False))
        return NodeFacts(document, tuple(devices), elsewhere, published, problem)

    def _of_others(self, node: str, *, counting: bool) -> list[Device]:
        found: list[Device] = []
        pools: dict[tuple[str, str], list[Json]] = {}
        for one in self.slices:
            driver = one["spec"]["driver"]
            if driver != self.driver and (driver in self.allowed) == counting:
                pools.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one)
        for (driver, pool), pages in pools.items():
            newest = [page for page in _newest(pages) if _on(page, node) or not page["spec"].get("nodeName")]
            found += self._devices(driver, pool, newest)
        return found

    def _devices(self, driver: str, pool: str, pages: Sequence[Json]) -> list[Device]:
        every = [device for page in pages for device in page["spec"].get("devices", ())]
        held: dict[str, list[Json]] = {}
        for one in self.held:
            if one["driver"] == driver and one["pool"] == pool:
                held.setdefault(one["device"], []).append(one)
        left = _counters_left(pages, every, held)
        found = []
        for device in every:
            if device.get(UNKNOWN):
                continue
            of = held.get(device["name"], [])
            taken: dict[str, int] = {}
            for one in of:
                for name, amount in one.get("consumed", {}).items():
                    taken[name] = taken.get(name, 0) + amount
            taints = [one for one in device.get("taints", ()) if one["key"] != self.own_key]
            taints += [one["spec"]["taint"] for one in self.rules if self._taints(one, driver, pool, device["name"])]
            found.append(
                Device(
                    device["name"],
                    driver,
                    pool,
                    device,
                    self.own_key,
                    tuple(taints),
                    tuple(sorted(one["holder"] for one in of)),
                    taken,
                    any("share" not in one for one in of),
                    frozenset(one.get("mode", "") for one in of if "share" in one),
                    any(
                        left.get((use["counterSet"], name), 0) < _counted(counter["value"], unusable=math.inf)
                        for use in device.get("consumesCounters", ())
                        for name, counter in use["counters"].items()
                    ),
                )
            )
        return found

    def _taints(self, rule: Json, driver: str, pool: str, device: str) -> bool:
        selector = rule["spec"].get("deviceSelector")
        if selector is None or rule["spec"]["taint"]["key"] == self.own_key:
            return False
        wanted = (selector.get("driver"), selector.get("pool"), selector.get("device"))
        return all(one in (None, has) for one, has in zip(wanted, (driver, pool, device), strict=True))


def _newest(pages: Sequence[Json]) -> list[Json]:
    newest = max(page["spec"]["pool"]["generation"] for page in pages)
    return [page for page in pages if page["spec"]["pool"]["generation"] == newest]


def _on(page: Json, node: str) -> bool:
    return bool(page["spec"].get("nodeName") == node)


def _defect(pages: Sequence[Json]) -> str:
    if len(pages) != pages[0]["spec"]["pool"]["resourceSliceCount"]:
        return "slices are missing"
    if len({page["spec"].get("nodeName", "") for page in pages}) != 1 or not pages[0]["spec"].get("nodeName"):
        return "not of one node"
    if any(page["spec"].get(UNKNOWN) or page["spec"].get("skipNodeOperations") for page in pages):
        return "unknown fields"
    names = [device["name"] for page in pages for device in page["spec"].get("devices", ())]
    return "a device is published twice" if len(set(names)) < len(names) else ""


def _counters_left(
    pages: Sequence[Json], devices: Sequence[Json], held: Mapping[str, Sequence[Json]]
) -> dict[tuple[str, str], float]:
    left = {
        (one["name"], name): _counted(counter["value"], unusable=-math.inf)
        for page in pages
        for one in page["spec"].get("sharedCounters", ())
        for name, counter in one["counters"].items()
    }
    for device in devices:
        if device["name"] in held:
            for use in device.get("consumesCounters", ()):
                for name, counter in use["counters"].items():
                    key = use["counterSet"], name
                    left[key] = left.get(key, 0) - _counted(counter["value"], unusable=0)
    return left


def _counted(text: Any, *, unusable: float) -> float:
    """An amount of a counter in billionths; `unusable` for one that cannot be read or is below 0."""
    try:
        amount = nano(text)
    except ValueError:
        return unusable
    return amount if amount >= 0 else unusable
