"""What a pod asks for, from its objects as JSON: requests by the first alternatives, and where it may run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dracaena import cel
from support.reasons.facts import Cluster, Device, Json, NodeFacts, nano, tolerated


@dataclass(frozen=True)
class Request:
    """One request of a claim that has no devices yet."""

    claim: str
    name: str
    expressions: tuple[str, ...]
    count: int
    takes_all: bool
    is_admin: bool
    tolerations: tuple[Json, ...]
    capacity: Mapping[str, int]
    """In billionths."""

    def matches(self, device: Device, *, tainted: bool = False) -> bool:
        """Whether it may have a device if that is free; with `tainted` whatever taints it has."""
        if not tainted and device.is_kept_off(self.tolerations):
            return False
        return all(evaluated(expression, device) is True for expression in self.expressions)


@dataclass(frozen=True)
class Asking:
    """A pod and its claims."""

    cluster: Cluster
    pod: Json
    claims: tuple[Json, ...]
    requests: tuple[Request, ...] | None
    """Of the claims without devices, by their first alternatives; None: they cannot be read, or a class is missing."""

    @classmethod
    def of(cls, cluster: Cluster, pod: Json, claims: Sequence[Json]) -> Asking:
        """Read what a pod asks for."""
        classes = {one["metadata"]["name"]: one for one in cluster.classes}
        found: list[Request] | None = []
        for claim in claims:
            if (claim.get("status") or {}).get("allocation"):
                continue
            for entry in claim["spec"].get("devices", {}).get("requests", ()):
                one = _request(claim, entry, classes)
                found = None if one is None or found is None else [*found, one]
        return cls(cluster, pod, tuple(claims), None if found is None else tuple(found))

    @property
    def spec(self) -> Json:
        """The pod's."""
        spec: Json = self.pod.get("spec") or {}
        return spec

    @property
    def allocated(self) -> list[Json]:
        return [one["status"]["allocation"] for one in self.claims if (one.get("status") or {}).get("allocation")]

    @property
    def open_claims(self) -> list[Json]:
        return [one for one in self.claims if not (one.get("status") or {}).get("allocation")]

    @property
    def is_plain(self) -> bool:
        """Whether nothing but counts, selectors, taints and amounts decides: no policies, constraints, mode All, admin
        access, alternatives or devices that the pod has already."""
        if not self.requests or self.allocated or self.cluster.allowed:
            return False
        for claim in self.open_claims:
            devices = claim["spec"].get("devices", {})
            if devices.get("constraints") or devices.get("config"):
                return False
            if any("firstAvailable" in one for one in devices.get("requests", ())):
                return False
        known = {entry for claim in self.open_claims for entry in _class_names(claim)}
        classes = (one for one in self.cluster.classes if one["metadata"]["name"] in known)
        if any((one.get("spec") or {}).get("config") for one in classes):
            return False
        return not any(one.takes_all or one.is_admin for one in self.requests)

    @property
    def count(self) -> int:
        """GPUs and parts that are asked for."""
        return sum(one.count for one in self.requests or () if not (one.takes_all or one.is_admin))


def _class_names(claim: Json) -> Iterator[str]:
    for entry in claim["spec"].get("devices", {}).get("requests", ()):
        yield from (one["deviceClassName"] for one in (entry.get("exactly"), *entry.get("firstAvailable", ())) if one)


def _request(claim: Json, entry: Json, classes: Mapping[str, Json]) -> Request | None:
    chosen = entry.get("exactly") or next(iter(entry.get("firstAvailable", ())), None)
    if chosen is None or chosen.get("deviceClassName") not in classes:
        return None
    spec = classes[chosen["deviceClassName"]].get("spec") or {}
    selectors = [*(spec.get("selectors") or ()), *(chosen.get("selectors") or ())]
    if any("cel" not in one for one in selectors):
        return None
    capacity = ((chosen.get("capacity") or {}).get("requests")) or {}
    return Request(
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}",
        entry["name"],
        tuple(one["cel"]["expression"] for one in selectors),
        chosen.get("count") or 1,
        chosen.get("allocationMode") == "All",
        bool(chosen.get("adminAccess")),
        tuple(chosen.get("tolerations") or ()),
        {name: nano(amount) for name, amount in capacity.items()},
    )


@lru_cache(maxsize=10_000)
def _compiled(expression: str) -> cel.Selector | None:
    try:
        return cel.compile_selector(expression)
    except cel.CompileError:
        return None


def evaluated(expression: str, device: Device) -> bool | None:
    """Whether an expression matches a device; None if it has no answer."""
    selector = _compiled(expression)
    if selector is None:
        return None
    outcome = selector.evaluate(
        cel.DeviceView.of_names(
            device.driver,
            {name: _value(one) for name, one in device.document.get("attributes", {}).items()},
            {name: str(one["value"]) for name, one in device.document.get("capacity", {}).items()},
            allow_multiple_allocations=device.allows_shares,
        )
    )
    return None if isinstance(outcome, cel.Failed) else outcome is cel.MATCH


def _value(attribute: Json) -> Any:
    kind, value = next(iter(attribute.items()))
    return cel.Version(value) if kind == "version" else tuple(value) if isinstance(value, list) else value


# Where a pod may run, as core/v1 says


def node_taint(asking: Asking, node: NodeFacts) -> list[str]:
    """The keys of the node's taints that keep the pod off."""
    tolerations = asking.spec.get("tolerations") or ()
    taints = node.document.get("spec", {}).get("taints") or ()
    blocking = (one for one in taints if one.get("effect") in ("NoSchedule", "NoExecute"))
    return [one["key"] for one in blocking if not tolerated(one, tolerations)]


def is_cordoned(asking: Asking, node: NodeFacts) -> bool:
    """Whether the node's cordon keeps the pod off."""
    cordon = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
    tolerations = asking.spec.get("tolerations") or ()
    return bool(node.document.get("spec", {}).get("unschedulable")) and not tolerated(cordon, tolerations)


def lacks_labels(asking: Asking, node: NodeFacts) -> bool:
    """Whether the node does not match the pod's nodeSelector."""
    wanted = asking.spec.get("nodeSelector") or {}
    return any(node.labels.get(key) != value for key, value in wanted.items())


def affinity_of(asking: Asking) -> Json | None:
    """What the pod's node affinity requires; None: nothing."""
    affinity = (asking.spec.get("affinity") or {}).get("nodeAffinity")
    if not isinstance(affinity, Mapping):
        return None if affinity is None else {}
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution")


def selects(selector: Json | None, node: NodeFacts) -> bool:
    """Whether a NodeSelector selects a node."""
    terms = (selector or {}).get("nodeSelectorTerms") or ()
    return any(_term(term, node) for term in terms)


def _term(term: Json, node: NodeFacts) -> bool:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    return all(_rule(one, node.labels.get(one["key"])) for one in labels) and all(
        _rule(one, node.name if one["key"] == "metadata.name" else "") for one in fields
    )


def _rule(rule: Json, value: str | None) -> bool:
    values: Sequence[str] = rule.get("values") or ()
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        found, wanted = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return found > wanted if rule["operator"] == "Gt" else found < wanted
