"""Random clusters with random claims, as cases for the allocators: small, free of mistakes, rich in rules.

Every snapshot has a theme that its rules come from, so that each rule decides often. Same seed, same snapshot.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from support.slow_allocator import NUMA_ONE, SELECTORS

Document = dict[str, Any]

GATES: Final = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAListTypeAttributes",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
)
THEMES: Final = (
    "plain",
    "constraints",
    "capacity",
    "counters",
    "pools",
    "taints",
    "admin",
    "all",
    "lists",
    "nodes",
    "mixed",
)
LABELS: Final = {"region": "r1", "zone": "z1"}
EXPRESSIONS: Final = (*sorted(SELECTORS), *3 * (NUMA_ONE, "true"))
"""What most requests ask for stands there more often."""
MAX_DEVICES: Final = 6
"""Devices in a snapshot: what the slow allocator can go through."""


class Snapshots:
    """Makes one snapshot."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.group_random = Random(f"compatibility groups {seed}")
        self.theme = self.random.choice(THEMES)
        self.gates = [gate for gate in GATES if self.random.random() < 0.95]
        self.devices: list[tuple[str, str, Document]] = []
        self.names = self.random.sample(range(100), 40)

    def make(self) -> Document:
        slices = [one for index in range(self.random.choice((1, 1, 2))) for one in self._pool(index)]
        self.random.shuffle(slices)
        grouped = any("compatibilityGroups" in one for *_, device in self.devices for one in _consumptions(device))
        return {
            "features": [*self.gates, "DRADeviceCompatibilityGroups"] if grouped else self.gates,
            "node": {"metadata": {"name": "node-1", "labels": LABELS}},
            "classes": [
                self._class("class-a", 'device.driver == "driver-a"'),
                self._class("class-b", 'device.driver == "driver-b"'),
                self._class("class-any", "true"),
            ],
            "slices": slices,
            "claims": self._claims(),
            **self._holdings(),
        }

    def _likely(self, theme: str, otherwise: float = 0.08) -> bool:
        chance = 0.75 if theme == self.theme else 0.3 if self.theme == "mixed" else otherwise
        return self.random.random() < chance

    def _on(self, gate: str) -> bool:
        return any(one.startswith(gate) for one in self.gates)

    def _pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    # slices

    def _pool(self, index: int) -> list[Document]:
        driver = self._pick("driver-a", "driver-a", "driver-a", "driver-a", "driver-a", "driver-b")
        pool = self._pick("pool-1", "pool-2") if self._likely("pools") else f"pool-{index}"
        sets = self._counter_sets() if self._likely("counters", 0.1) else {}
        device_slices = self._pick(1, 2)
        count = device_slices + bool(sets)
        if self._likely("pools", 0.01) and self._pick(True, False, False):
            count = self._pick(1, 2, 3)
        head = {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": count}}
        slices = [self._slice(head, sets, part) for part in range(device_slices)]
        if sets:
            counters = [
                {"name": name, "counters": {counter: {"value": value} for counter, value in values.items()}}
                for name, values in sets.items()
            ]
            slices.append(self._named({**head, "allNodes": True, "sharedCounters": counters}))
        return slices

    def _counter_sets(self) -> dict[str, dict[str, str]]:
        return {
            f"set-{number}": {f"c{counter}": self._pick("2", "3", "4") for counter in range(self._pick(1, 2))}
            for number in range(self._pick(1, 1, 2))
        }

    def _slice(self, head: Document, sets: dict[str, dict[str, str]], part: int) -> Document:
        spec = {**head, "pool": dict(head["pool"])}
        if self._likely("pools", 0.0) and self._pick(True, False, False, False):
            spec["pool"]["generation"] = self._pick(0, 2)
        spec.update(self._nodes() if self._likely("nodes") else {"nodeName": "node-1"})
        devices = []
        for number in range(self._pick(2, 3)):
            if len(self.devices) < MAX_DEVICES:
                device = self._device(f"dev-{part}-{number}", sets, has_nodes="perDeviceNodeSelection" in spec)
                self.devices.append((head["driver"], head["pool"]["name"], device))
                devices.append(device)
        if devices and self._likely("pools", 0.0) and self._pick(True, False, False, False, False):
            devices[-1]["name"] = "dev-0-0"
        return self._named({**spec, "devices": devices})

    def _group(self, consumptions: list[Document]) -> None:
        for one in consumptions:
            groups = self.group_random.choice(((), (), ("a",), ("a", "b"), ("b", "c"), ("c",)))
            if groups and self.theme in ("counters", "mixed"):
                one["compatibilityGroups"] = list(groups)

    def _named(self, spec: Document) -> Document:
        return {"metadata": {"name": f"slice-{self.names.pop():02d}"}, "spec": spec}

    def _nodes(self) -> Document:
        nodes: Document = self._pick(
            {"nodeName": self._pick("node-1", "node-2")},
            {"allNodes": True},
            {"nodeSelector": {"nodeSelectorTerms": [self._term()]}},
            {"perDeviceNodeSelection": True},
        )
        return nodes

    def _term(self) -> Document:
        rules = [
            {"key": "region", "operator": "In", "values": [self._pick("r1", "r2")]},
            {"key": self._pick("zone", "planet"), "operator": self._pick("Exists", "DoesNotExist")},
            {"key": "zone", "operator": "NotIn", "values": [self._pick("z1", "z2")]},
        ]
        term: Document = {"matchExpressions": self.random.sample(rules, self._pick(1, 2))}
        if self._pick(True, False, False):
            term["matchFields"] = [
                {"key": "metadata.name", "operator": "In", "values": [self._pick("node-1", "node-2")]}
            ]
        return term

    # devices

    def _device(self, name: str, sets: dict[str, dict[str, str]], *, has_nodes: bool) -> Document:
        device: Document = {"name": name, "attributes": self._attributes()}
        if self._likely("capacity", 0.1):
            device["capacity"] = {
                name: self._capacity() for name in self.random.sample(("mem", "cores"), self._pick(1, 2))
            }
        if self._likely("capacity"):
            device["allowMultipleAllocations"] = True
        if sets and self._pick(True, True, True, False):
            device["consumesCounters"] = [
                {"counterSet": name, "counters": {counter: {"value": self._pick("1", "1", "2")} for counter in values}}
                for name, values in sets.items()
            ]
            self._group(device["consumesCounters"])
        if self._likely("taints"):
            device["taints"] = [self._taint() for _ in range(self._pick(1, 2))]
        if self._likely("binding", 0.04):
            device["bindingConditions"] = ["ready"]
            device["bindingFailureConditions"] = ["broken"]
        if has_nodes:
            device.update(
                self._pick(
                    {"nodeName": self._pick("node-1", "node-2")},
                    {"allNodes": True},
                    {"nodeSelector": {"nodeSelectorTerms": [self._term()]}},
                )
            )
        return device

    def _attributes(self) -> Document:
        attributes: Document = {}
        if self._pick(*9 * (True,), False):
            attributes[self._pick("numa", "numa", "driver-a/numa")] = {"int": self._pick(0, 1)}
        if self._pick(True, True, True, False):
            attributes["model"] = {"string": self._pick("x", "y", "z")}
        if self._pick(True, False, False):
            attributes["dom.org/flag"] = {"bool": self._pick(True, False)}
        if self._pick(True, False, False):
            attributes["version"] = {"version": self._pick("1.0.0", "1.0.1")}
        if self._on("DRAListTypeAttributes") and self._likely("lists", 0.0):
            kind, values = self._pick(("ints", (0, 1, 2)), ("strings", ("x", "y", "z")), ("bools", (True, False)))
            chosen = self.random.sample(values, self._pick(1, 2))
            attributes[self._pick("model", "tags", "tags")] = {kind: chosen}
        return attributes

    def _capacity(self) -> Document:
        policy = self._pick(
            {},
            {},
            {"default": "2"},
            {"default": "1", "validRange": {"min": "1"}},
            {"default": "2", "validRange": {"min": "2", "max": "6", "step": "2"}},
            {"default": "2", "validRange": {"min": "1", "max": "4", "step": "1"}},
            {"default": "2", "validValues": ["1", "2", "4"]},
        )
        value = self._pick("4", "8", "10", "6500m")
        return {"value": value, "requestPolicy": policy} if policy else {"value": value}

    def _taint(self) -> Document:
        effect = self._pick("NoSchedule", "NoSchedule", "NoExecute", "None", "Later")
        return {"key": self._pick("t1", "t2"), "value": self._pick("", "v"), "effect": effect}

    # claims

    def _class(self, name: str, expression: str) -> Document:
        return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}

    def _claims(self) -> list[Document]:
        return [self._claim(f"claim-{index}", self._pick(1, 1, 2)) for index in range(self._pick(1, 1, 2))]

    def _claim(self, name: str, size: int) -> Document:
        requests, names = [], []
        for index in range(size):
            request = self._request(f"req-{index}")
            requests.append(request)
            names += [request["name"]] + [
                f"{request['name']}/{entry['name']}" for entry in request.get("firstAvailable", [])
            ]
        devices: Document = {"requests": requests}
        if self._likely("constraints", 0.2) or self.theme == "lists":
            devices["constraints"] = [self._constraint(names) for _ in range(self._pick(1, 1, 2))]
        return {"metadata": {"name": name}, "spec": {"devices": devices}}

    def _request(self, name: str) -> Document:
        if self._on("DRAPrioritizedList") and self._pick(True, False, False, False):
            entries = [{"name": f"sub-{number}", **self._body()} for number in range(self._pick(1, 2))]
            return {"name": name, "firstAvailable": entries}
        body = self._body()
        if self._on("DRAAdminAccess") and self._likely("admin", 0.03):
            body["adminAccess"] = True
        return {"name": name, "exactly": body}

    def _body(self) -> Document:
        body: Document = {"deviceClassName": self._pick(*5 * ("class-a",), *3 * ("class-any",), "class-b")}
        if self._likely("all"):
            body["allocationMode"] = "All"
        else:
            body["count"] = self._pick(1, 2, 2, 3) if self.theme in ("constraints", "lists") else self._pick(1, 1, 2)
        if self._pick(True, False, False, False):
            body["selectors"] = [{"cel": {"expression": self.random.choice(EXPRESSIONS)}}]
        if self._likely("taints"):
            body["tolerations"] = [self._toleration() for _ in range(self._pick(1, 2))]
        if self._on("DRAConsumableCapacity") and self._likely("capacity", 0.02):
            amounts = ("1", "2", "3", "5", "500m", "2500m")
            wanted = self.random.sample(("mem", "cores"), self._pick(1, 1, 2))
            body["capacity"] = {"requests": {name: self.random.choice(amounts) for name in wanted}}
        return body

    def _toleration(self) -> Document:
        toleration: Document = self._pick({"operator": "Exists"}, {"operator": "Equal", "value": self._pick("", "v")})
        if toleration["operator"] == "Equal" or self._pick(True, False):
            toleration["key"] = self._pick("t1", "t2")
        if self._pick(True, False):
            toleration["effect"] = self._pick("NoSchedule", "NoExecute")
        return toleration

    def _constraint(self, names: list[str]) -> Document:
        kinds = ["matchAttribute"]
        if self._on("DRAConsumableCapacity"):
            kinds += ["distinctAttribute"] * 2
        attributes = ["driver-a/numa", "driver-a/numa", "driver-a/model", "dom.org/flag", "driver-a/version"]
        if self.theme == "lists":
            attributes += ["driver-a/tags", "driver-a/model"]
        constraint: Document = {self.random.choice(kinds): self.random.choice(attributes)}
        if self._pick(True, False):
            constraint["requests"] = self.random.sample(names, self.random.randint(1, len(names)))
        return constraint

    # what is held

    def _holdings(self) -> Document:
        held, shares = [], []
        for driver, pool, device in self.devices:
            entry = {"Driver": driver, "Pool": pool, "Device": device["name"], "ShareID": ""}
            shareable = device.get("allowMultipleAllocations") and device.get("capacity")
            if shareable and self._on("DRAConsumableCapacity") and self._pick(True, False):
                amounts = {name: self._pick("1", "2") for name in device["capacity"]}
                shares.append({**entry, "Capacity": amounts})
            elif self.random.random() < 0.08:
                held.append(entry)
        return {"allocatedDevices": held, "allocatedShared": [], "aggregatedCapacity": shares}


def _consumptions(device: Document) -> list[Document]:
    return device.get("consumesCounters") or []


def random_snapshot(seed: int) -> Document:
    """Return the case of a seed."""
    return Snapshots(seed).make()
