"""What a pod asks for, from its objects as JSON: requests by the first alternatives, and where it may run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dracaena import cel
from support.reasons.facts import Cluster, Device, nano
from support.reasons.nodes import Json


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
            for entry in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
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
    for entry in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
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
