"""What the claims of a pod ask for, or why that cannot be told.

Which claims are ours, without CEL: a class without selectors matches every device, so also every device of ours; a
request for it is ours to serve. A class with selectors cannot be evaluated yet: its claims wait, whosoever they are.
Whether users are told that they wait is another question (`concerns_us`): only when the class is named like the driver,
or class or claim carry an opaque config for it, so that users of other drivers are not bothered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dracaena.api.config.v1alpha1 import ConfigError, Requirement, TopologyPolicy, decode_config
from dracaena.api.objects import DeviceClass, ResourceClaim, Toleration
from dracaena.api.resourceclaim import (
    ClaimSpec,
    ClassSpec,
    DeviceRequest,
    OpaqueEntry,
    Unsupported,
    read_claim_spec,
    read_class_spec,
)
from dracaena.controller.allocation.splitting import Demand


class RefusalKind(Enum):
    """Why no decision is possible until somebody changes something; values are metric labels."""

    CLASS_MISSING = "class-missing"
    CONFIG_BROKEN = "config-broken"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Refused:
    """No decision is possible until a person (or a later version) acts."""

    kind: RefusalKind
    text: str
    concerns_us: bool
    """Whether the pod's user expects our driver, and so is told."""


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """One request of a claim with the policy that holds for it."""

    name: str
    demand: Demand
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """One claim to be served."""

    claim: ResourceClaim
    requests: tuple[RequestDemand, ...]
    configs: tuple[Mapping[str, Any], ...]
    """Entries of status.allocation.devices.config: those of the classes, then those of the claim."""


def read_demands(
    driver: str, classes: Mapping[str, DeviceClass], claims: Iterable[ResourceClaim]
) -> tuple[ClaimDemand, ...] | Refused:
    """Read all claims that are to be allocated; the first that cannot be served refuses them all.

    A claim without requests is left out: it needs no device, and kube-scheduler serves it.
    """
    waiting = tuple(claims)
    ours = concerns_us(driver, classes, waiting)
    demands = []
    for claim in waiting:
        found = _claim_demand(driver, classes, claim)
        if isinstance(found, _Refusal):
            return Refused(found.kind, found.text, ours)
        if found.requests:
            demands.append(found)
    return tuple(demands)


def concerns_us(driver: str, classes: Mapping[str, DeviceClass], claims: Iterable[ResourceClaim]) -> bool:
    """Return whether the author of any of the claims visibly means our driver. Reads leniently, never raises."""
    for claim in claims:
        if driver in _config_drivers(_inside(claim.spec, "devices")):
            return True
        for name in class_names(claim):
            known = classes.get(name)
            if name.startswith(driver) or name.endswith(driver):
                return True
            if known is not None and driver in _config_drivers(known.spec):
                return True
    return False


def class_names(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the classes that a claim names anywhere, sorted. Reads leniently, never raises."""
    names = set()
    for request in _items(_inside(claim.spec, "devices"), "requests"):
        for entry in (_inside(request, "exactly"), *_items(request, "firstAvailable")):
            name = entry.get("deviceClassName")
            if isinstance(name, str):
                names.add(name)
    return tuple(sorted(names))


@dataclass(frozen=True, slots=True)
class _Refusal:
    kind: RefusalKind
    text: str


def _claim_demand(driver: str, classes: Mapping[str, DeviceClass], claim: ResourceClaim) -> ClaimDemand | _Refusal:
    spec = read_claim_spec(claim.spec)
    if isinstance(spec, Unsupported):
        return _Refusal(RefusalKind.UNSUPPORTED, f"claim {claim.key}: {spec}")
    known = _class_specs(classes, claim, spec)
    if isinstance(known, _Refusal):
        return known
    policies = _Policies(driver)
    for name, class_spec in known.items():
        users = [request.name for request in spec.requests if request.device_class == name]
        for entry in class_spec.configs:
            policies.add(entry, users, f"DeviceClass {name}")
    for entry in spec.configs:
        policies.add(entry, entry.requests or [request.name for request in spec.requests], f"claim {claim.key}")
    if policies.broken is not None:
        return _Refusal(RefusalKind.CONFIG_BROKEN, policies.broken)
    return ClaimDemand(
        claim=claim,
        requests=tuple(_request_demand(request, policies) for request in spec.requests),
        configs=(*_class_configs(spec, known), *_claim_configs(spec)),
    )


def _class_specs(
    classes: Mapping[str, DeviceClass], claim: ResourceClaim, spec: ClaimSpec
) -> dict[str, ClassSpec] | _Refusal:
    """Return the classes that the claim uses, in request order."""
    known: dict[str, ClassSpec] = {}
    for request in spec.requests:
        found = classes.get(request.device_class)
        if found is None:
            text = f"claim {claim.key}: DeviceClass {request.device_class} does not exist"
            return _Refusal(RefusalKind.CLASS_MISSING, text)
        class_spec = read_class_spec(found.spec)
        if isinstance(class_spec, Unsupported):
            return _Refusal(RefusalKind.UNSUPPORTED, f"DeviceClass {request.device_class}: {class_spec}")
        known.setdefault(request.device_class, class_spec)
    return known


class _Policies:
    """The policy of each request: later entries win, and those of a claim come after those of its classes."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._requirements: dict[str, Requirement] = {}
        self.broken: str | None = None

    def add(self, entry: OpaqueEntry, requests: Sequence[str], where: str) -> None:
        if entry.driver != self._driver or self.broken is not None:
            return
        try:
            config = decode_config(entry.parameters)
        except ConfigError as error:
            self.broken = f"{where}: {entry.path}: {error}"
            return
        if isinstance(config, TopologyPolicy):
            self._requirements.update(dict.fromkeys(requests, config.requirement))

    def requirement(self, request: str) -> Requirement:
        return self._requirements.get(request, Requirement.BEST_EFFORT)


def _request_demand(request: DeviceRequest, policies: _Policies) -> RequestDemand:
    demand = Demand(request.count, policies.requirement(request.name))
    return RequestDemand(request.name, demand, request.tolerations)


def _class_configs(spec: ClaimSpec, known: Mapping[str, ClassSpec]) -> Iterator[Mapping[str, Any]]:
    """Yield the configs of all classes once, each naming the requests that use its class."""
    for name, class_spec in known.items():
        users = [request.name for request in spec.requests if request.device_class == name]
        for entry in class_spec.configs:
            yield {"source": "FromClass", "requests": users, "opaque": _opaque(entry)}


def _claim_configs(spec: ClaimSpec) -> Iterator[Mapping[str, Any]]:
    for entry in spec.configs:
        requests = {"requests": list(entry.requests)} if entry.requests else {}
        yield {"source": "FromClaim", **requests, "opaque": _opaque(entry)}


def _opaque(entry: OpaqueEntry) -> Mapping[str, Any]:
    return {"driver": entry.driver, "parameters": entry.parameters}


def _config_drivers(document: Mapping[str, Any]) -> set[object]:
    return {_inside(entry, "opaque").get("driver") for entry in _items(document, "config")}


def _inside(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = document.get(key)
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
