"""The obvious allocator: it writes down every assignment of devices and takes the first that breaks no rule.

It shares nothing with the product. It reads the documents themselves, counts in Fractions, and looks at whole
assignments only, so it needs no undo. Cost: exponential; for a handful of devices. Cases must be free of mistakes that
need a person; selectors are those of SELECTORS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations, product
from typing import Any

Document = dict[str, Any]
Choice = tuple[str, Document, tuple[int, ...]]
"""Name of the (sub)request, its document, and the places of the devices."""

SUFFIXES = {"": Fraction(1), "m": Fraction(1, 1000)}


def numa_of_driver_a(device: Document) -> Any:
    found = device["attributes"].get("driver-a/numa")
    if found is None and device["driver"] == "driver-a":
        found = device["attributes"].get("numa")
    return (found or {}).get("int")


NUMA_ONE = '"numa" in device.attributes["driver-a"] && device.attributes["driver-a"].numa == 1'
SELECTORS: dict[str, Callable[[Document], bool]] = {
    'device.driver == "driver-a"': lambda device: device["driver"] == "driver-a",
    'device.driver == "driver-b"': lambda device: device["driver"] == "driver-b",
    "true": lambda _: True,
    "false": lambda _: False,
    NUMA_ONE: lambda device: numa_of_driver_a(device) == 1,
    "device.allowMultipleAllocations": lambda device: device["shareable"],
}


def number(text: str) -> Fraction:
    digits = text.rstrip("m")
    return Fraction(digits) * SUFFIXES[text[len(digits) :]]


class SlowAllocator:
    """One case, with everything that its node can reach."""

    def __init__(self, case: Document) -> None:
        self.case = case
        self.on = {gate.split("+")[0] for gate in case["features"]}
        self.held = {key(entry) for entry in case["allocatedDevices"]}
        self.shares: dict[tuple[str, str, str], dict[str, Fraction]] = {}
        for entry in case["aggregatedCapacity"]:
            taken = self.shares.setdefault(key(entry), {})
            for name, text in entry["Capacity"].items():
                taken[name] = taken.get(name, Fraction(0)) + number(text)
        self.unfinished = False
        self.devices: list[Document] = []
        self.pools: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        self.drawing: dict[tuple[str, str], list[Document]] = {}
        self._gather()

    def allocate(self) -> list[list[tuple[str, tuple[str, str, str]]]] | None:
        """The first legal assignment: of each claim, (request, device) in order; None when there is none."""
        if "DRAConsumableCapacity" not in self.on and self.shares:
            raise ValueError("shares without the feature are a case of their own")
        options = [list(self._options(request)) for claim in self._claims() for request in claim["requests"]]
        for choices in product(*options):
            assignment = self._by_claim(choices)
            if self._is_legal(assignment):
                return [
                    [(name, self.devices[place]["id"]) for name, _, places in claim for place in places]
                    for claim in assignment
                ]
        return None

    # what the node can reach

    def _gather(self) -> None:
        by_pool: dict[tuple[str, str], list[Document]] = {}
        for one in self.case["slices"]:
            spec = one["spec"]
            by_pool.setdefault((spec["driver"], spec["pool"]["name"]), []).append(one)
        ordered = []
        for pool in sorted(by_pool):
            found = self._reach(pool, by_pool[pool])
            if found is not None:
                ordered.append((any(device["device"].get("bindingConditions") for device in found), pool, found))
        for _, _, found in sorted(ordered, key=lambda entry: entry[:2]):
            self.devices += found

    def _reach(self, pool: tuple[str, str], slices: list[Document]) -> list[Document] | None:
        partitions = "DRAPartitionableDevices" in self.on
        seen = [one for one in slices if self._sees(one, partitions)]
        if not seen:
            return None
        newest = max(one["spec"]["pool"]["generation"] for one in seen)
        kept = [one for one in seen if one["spec"]["pool"]["generation"] == newest]
        # Where slices disagree, Kubernetes believes the first, and looks at those of its own node first.
        own = [one for one in kept if one["spec"].get("nodeName") and not one["spec"].get("sharedCounters")]
        wanted = (own or kept)[0]["spec"]["pool"]["resourceSliceCount"]
        everywhere = [one for one in slices if one["spec"]["pool"]["generation"] == newest]
        if len(kept) != wanted:
            if any(one["spec"]["pool"]["generation"] > newest for one in slices):
                return None
            if len(everywhere) != wanted:
                self.unfinished = True
                return None
        kept.sort(key=lambda one: one["metadata"]["name"])
        names = [device["name"] for one in kept for device in one["spec"].get("devices", [])]
        if len(names) != len(set(names)):
            self.unfinished = True
            return None
        others = everywhere if len(kept) != wanted else kept
        if partitions and not self._counters(pool, kept, others):
            self.unfinished = True
            return None
        return [self._device(pool, one, device) for one in kept for device in one["spec"].get("devices", [])]

    def _sees(self, one: Document, partitions: bool) -> bool:
        spec = one["spec"]
        if spec.get("sharedCounters"):
            return partitions
        if spec.get("perDeviceNodeSelection"):
            return partitions and any(self._is_here(device) for device in spec.get("devices", []))
        return self._is_here(spec)

    def _is_here(self, place: Document) -> bool:
        if place.get("nodeName"):
            return bool(place["nodeName"] == self.case["node"]["metadata"]["name"])
        if place.get("allNodes"):
            return True
        terms = place.get("nodeSelector", {}).get("nodeSelectorTerms", [])
        return any(self._term_matches(term) for term in terms)

    def _term_matches(self, term: Document) -> bool:
        labels = self.case["node"]["metadata"]["labels"]
        rules = term.get("matchExpressions", [])
        fields = term.get("matchFields", [])
        if not rules and not fields:
            return False
        tests = {
            "In": lambda rule: labels.get(rule["key"]) in rule["values"],
            "NotIn": lambda rule: labels.get(rule["key"]) not in rule["values"],
            "Exists": lambda rule: rule["key"] in labels,
            "DoesNotExist": lambda rule: rule["key"] not in labels,
        }
        name = self.case["node"]["metadata"]["name"]
        return all(tests[rule["operator"]](rule) for rule in rules) and all(rule["values"] == [name] for rule in fields)

    def _counters(self, pool: tuple[str, str], kept: list[Document], everywhere: list[Document]) -> bool:
        declared: dict[tuple[str, str], Fraction] = {}
        sets = set()
        for one in kept:
            for entry in one["spec"].get("sharedCounters", []):
                if entry["name"] in sets:
                    return False
                sets.add(entry["name"])
                for name, value in entry["counters"].items():
                    declared[entry["name"], name] = number(value["value"])
        for one in everywhere:
            for device in one["spec"].get("devices", []):
                for counter, amount in consumption(device):
                    if counter not in declared:
                        return False
                    if self._is_allocated((*pool, device["name"])):
                        declared[counter] -= amount
                if self._is_allocated((*pool, device["name"])):
                    self.drawing.setdefault(pool, []).append(device)
        self.pools[pool] = declared
        return True

    def _is_allocated(self, device: tuple[str, str, str]) -> bool:
        return device in self.held or device in self.shares

    def _device(self, pool: tuple[str, str], one: Document, device: Document) -> Document:
        spec = one["spec"]
        shareable = bool(device.get("allowMultipleAllocations"))
        return {
            "id": (*pool, device["name"]),
            "driver": pool[0],
            "pool": pool,
            "device": device,
            "attributes": device.get("attributes", {}),
            "shareable": shareable,
            "shared": shareable and "DRAConsumableCapacity" in self.on,
            "here": not spec.get("perDeviceNodeSelection") or self._is_here(device),
        }

    def allows(self, found: list[list[tuple[str, tuple[str, str, str]]]]) -> bool:
        """Whether a result, of each claim (request, device) in order, breaks no rule."""
        places = {device["id"]: place for place, device in enumerate(self.devices)}
        assignment = []
        for claim, results in zip(self._claims(), found, strict=True):
            chosen = [self._taken(request, results, places) for request in claim["requests"]]
            if None in chosen or sum(len(one[2]) for one in chosen if one) != len(results):
                return False
            assignment.append([one for one in chosen if one])
        return self._is_legal(assignment)

    def every_legal(self) -> Iterator[list[list[Choice]]]:
        """All legal assignments, in the order of allocate()."""
        options = [list(self._options(request)) for claim in self._claims() for request in claim["requests"]]
        return (one for one in map(self._by_claim, product(*options)) if self._is_legal(one))

    def _taken(
        self, request: Document, results: list[tuple[str, tuple[str, str, str]]], places: dict[Any, int]
    ) -> Choice | None:
        """What a result gives a request, None when that is none of its options."""
        for option in self._options(request):
            given = tuple(sorted(places[device] for name, device in results if name == option[0]))
            if given == option[2]:
                return option
        return None

    # what the claims may choose from

    def _claims(self) -> list[Document]:
        return [claim["spec"]["devices"] for claim in self.case["claims"]]

    def _options(self, request: Document) -> Iterator[Choice]:
        if "exactly" in request:
            yield from self._option(request["name"], request["exactly"])
        for entry in request.get("firstAvailable", []):
            yield from self._option(f"{request['name']}/{entry['name']}", entry)

    def _option(self, name: str, wish: Document) -> Iterator[Choice]:
        meant = [place for place, device in enumerate(self.devices) if self._is_meant(wish, device)]
        if wish.get("allocationMode") == "All":
            if meant and not self.unfinished:
                yield name, wish, tuple(meant)
            return
        for places in combinations(meant, wish.get("count", 1)):
            yield name, wish, places

    def _is_meant(self, wish: Document, device: Document) -> bool:
        if device["device"].get("bindingConditions") and "DRADeviceBindingConditions" not in self.on:
            return False
        class_spec = next(
            one["spec"] for one in self.case["classes"] if one["metadata"]["name"] == wish["deviceClassName"]
        )
        expressions = [
            entry["cel"]["expression"] for entry in (*class_spec.get("selectors", []), *wish.get("selectors", []))
        ]
        if not device["here"] or not all(SELECTORS[expression](device) for expression in expressions):
            return False
        return "DRAConsumableCapacity" not in self.on or self._fits(device, self._takes(wish, device))

    # capacity

    def _takes(self, wish: Document, device: Document) -> dict[str, Fraction] | None:
        """What the request takes of every capacity, None when it cannot be served."""
        wanted = wish.get("capacity", {}).get("requests", {})
        capacities = device["device"].get("capacity", {})
        if not set(wanted) <= set(capacities):
            return None
        taken = {}
        for name, capacity in capacities.items():
            amount = take(capacity, wanted.get(name))
            if amount is None:
                return None
            taken[name] = amount
        return taken

    def _fits(self, device: Document, *taken: dict[str, Fraction] | None) -> bool:
        total = dict(self.shares.get(device["id"], {}))
        for one in taken:
            if one is None:
                return False
            for name, amount in one.items():
                total[name] = total.get(name, Fraction(0)) + amount
        capacities = device["device"].get("capacity", {})
        return all(total.get(name, 0) <= number(capacity["value"]) for name, capacity in capacities.items())

    # the rules about whole assignments

    def _by_claim(self, choices: tuple[Choice, ...]) -> list[list[Choice]]:
        left = iter(choices)
        return [[next(left) for _ in claim["requests"]] for claim in self._claims()]

    def _is_legal(self, assignment: list[list[Choice]]) -> bool:
        return (
            all(sum(len(places) for _, _, places in claim) <= 32 for claim in assignment)
            and self._nobody_is_disturbed(assignment)
            and self._capacities_suffice(assignment)
            and self._counters_suffice(assignment)
            and self._groups_are_compatible(assignment)
            and self._taints_are_tolerated(assignment)
            and self._constraints_hold(assignment)
        )

    def _uses(self, assignment: list[list[Choice]]) -> Iterator[tuple[int, Document, int]]:
        for index, claim in enumerate(assignment):
            for _, wish, places in claim:
                for place in places:
                    yield index, wish, place

    def _nobody_is_disturbed(self, assignment: list[list[Choice]]) -> bool:
        users: dict[int, list[int]] = {}
        for claim, wish, place in self._uses(assignment):
            device, earlier = self.devices[place], users.setdefault(place, [])
            if wish.get("adminAccess"):
                if claim in earlier:
                    return False
            elif device["id"] in self.held or earlier or (device["id"] in self.shares and not device["shared"]):
                return False
            if not device["shared"]:
                earlier.append(claim)
        return True

    def _capacities_suffice(self, assignment: list[list[Choice]]) -> bool:
        if "DRAConsumableCapacity" not in self.on:
            return True
        takers: dict[int, list[dict[str, Fraction] | None]] = {}
        for _, wish, place in self._uses(assignment):
            takers.setdefault(place, []).append(self._takes(wish, self.devices[place]))
        return all(
            self._fits(self.devices[place], *taken)
            if self.devices[place]["shared"]
            else all(self._fits(self.devices[place], one) for one in taken)
            for place, taken in takers.items()
        )

    def _counters_suffice(self, assignment: list[list[Choice]]) -> bool:
        used: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        paid = set()
        for _, _, place in self._uses(assignment):
            device = self.devices[place]
            amounts = consumption(device["device"])
            if not amounts:
                continue
            if "DRAPartitionableDevices" not in self.on:
                return False
            if device["shared"] and (place in paid or device["id"] in self.shares):
                continue
            paid.add(place)
            if any(left < 0 for left in self.pools[device["pool"]].values()):
                return False
            for counter, amount in amounts:
                taken = used.setdefault(device["pool"], {})
                taken[counter] = taken.get(counter, Fraction(0)) + amount
        return all(
            amount <= self.pools[pool][counter] for pool, taken in used.items() for counter, amount in taken.items()
        )

    def _groups_are_compatible(self, assignment: list[list[Choice]]) -> bool:
        """Whether in each counter set that a new device draws on, all devices have a group in common, or all none."""
        new: dict[tuple[str, str], list[Document]] = {}
        for _, _, place in self._uses(assignment):
            device = self.devices[place]
            if not (device["shared"] and device["id"] in self.shares):
                new.setdefault(device["pool"], []).append(device["device"])
        for pool, devices in new.items():
            every = [*self.drawing.get(pool, []), *devices]
            for name in {entry["counterSet"] for device in devices for entry in device.get("consumesCounters", [])}:
                groups = [
                    set(entry.get("compatibilityGroups", []))
                    for device in every
                    for entry in device.get("consumesCounters", [])
                    if entry["counterSet"] == name
                ]
                if any(groups) and not set.intersection(*groups):
                    return False
        return True

    def _taints_are_tolerated(self, assignment: list[list[Choice]]) -> bool:
        if "DRADeviceTaints" not in self.on:
            return True
        return all(
            any(tolerates(toleration, taint) for toleration in wish.get("tolerations", []))
            for _, wish, place in self._uses(assignment)
            for taint in self.devices[place]["device"].get("taints", [])
            if taint["effect"] in ("NoSchedule", "NoExecute")
        )

    def _constraints_hold(self, assignment: list[list[Choice]]) -> bool:
        for claim, choices in zip(self._claims(), assignment, strict=True):
            for constraint in claim.get("constraints", []):
                devices = [
                    self.devices[place]
                    for name, _, places in choices
                    if not constraint.get("requests") or {name, name.split("/")[0]} & set(constraint["requests"])
                    for place in places
                ]
                if not self._holds(constraint, devices):
                    return False
        return True

    def _holds(self, constraint: Document, devices: list[Document]) -> bool:
        name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        values = [self._values(device, name) for device in devices]
        if not all(values):
            return False
        sets = [value for value in values if value]
        if "matchAttribute" in constraint:
            return not sets or bool(set.intersection(*sets))
        return all(not (one & other) for one, other in combinations(sets, 2))

    def _values(self, device: Document, name: str) -> set[tuple[str, Any]] | None:
        domain, identifier = name.split("/")
        found = device["attributes"].get(name)
        if found is None and domain == device["driver"]:
            found = device["attributes"].get(identifier)
        if found is None:
            return None
        ((kind, value),) = found.items()
        if isinstance(value, list):
            return {(kind.removesuffix("s"), entry) for entry in value}
        return {(kind, value)}


def key(entry: Mapping[str, str]) -> tuple[str, str, str]:
    return entry["Driver"], entry["Pool"], entry["Device"]


def consumption(device: Document) -> list[tuple[tuple[str, str], Fraction]]:
    return [
        ((entry["counterSet"], name), number(value["value"]))
        for entry in device.get("consumesCounters", [])
        for name, value in entry["counters"].items()
    ]


def take(capacity: Document, wanted: str | None) -> Fraction | None:
    """The amount that a request takes of a capacity, None when its policy refuses."""
    policy = capacity.get("requestPolicy", {})
    if wanted is None:
        return number(policy.get("default", capacity["value"]))
    amount = number(wanted)
    if "validRange" in policy:
        return take_of_range(policy, amount)
    if "validValues" in policy:
        valid = sorted(number(value) for value in policy["validValues"])
        return min((value for value in valid if value >= amount), default=None)
    return amount


def take_of_range(policy: Document, amount: Fraction) -> Fraction | None:
    bounds = {name: number(text) for name, text in policy["validRange"].items()}
    if amount < bounds["min"]:
        amount = bounds["min"]
    elif "step" in bounds:
        whole = Fraction(-(-amount.numerator // amount.denominator))
        while (whole - bounds["min"]) % bounds["step"]:
            whole += 1
        amount = whole
    return amount if amount <= bounds.get("max", amount) or amount == number(policy["default"]) else None


def tolerates(toleration: Document, taint: Document) -> bool:
    return bool(
        toleration.get("effect", taint["effect"]) == taint["effect"]
        and toleration.get("key", taint["key"]) == taint["key"]
        and (toleration["operator"] == "Exists" or toleration.get("value", "") == taint.get("value", ""))
    )
