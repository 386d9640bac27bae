"""What the claims of a pod ask for, or why that cannot be told.

Which claims are ours, without CEL: a class without selectors matches every device, so also every device of ours; a
request for it is ours to serve. A class with selectors cannot be evaluated yet: its claims wait, whosoever they are.
Whether users are told that they wait is another question (`concerns_us`): only when the class is named like the driver,
or class or claim carry an opaque config for it, so that users of other drivers are not bothered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config, merged
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
    count: int
    """GPUs."""
    policy: TopologyPolicy
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
    try:
        for name, class_spec in known.items():
            policies.add_class(name, class_spec)
        policies.add_claim(claim, spec)
        requests = tuple(
            RequestDemand(request.name, request.count, policies.of_request(request), request.tolerations)
            for request in spec.requests
        )
    except _BrokenConfigError as error:
        return _Refusal(RefusalKind.CONFIG_BROKEN, str(error))
    return ClaimDemand(
        claim=claim,
        requests=requests,
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


class _BrokenConfigError(Exception):
    """A policy cannot be read, or contradicts itself; the text says where and what was expected."""


class _Policies:
    """The policies that classes and claim give, and what holds for a request: a claim's word over its class's."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._of_class: dict[str, list[TopologyPolicy]] = {}
        self._of_claim: list[tuple[tuple[str, ...], TopologyPolicy]] = []
        self._where = ""

    def add_class(self, name: str, spec: ClassSpec) -> None:
        where = f"DeviceClass {name}"
        self._of_class[name] = [policy for _, policy in self._read(spec.configs, where)]

    def add_claim(self, claim: ResourceClaim, spec: ClaimSpec) -> None:
        self._where = f"claim {claim.key}"
        self._of_claim = list(self._read(spec.configs, self._where))

    def of_request(self, request: DeviceRequest) -> TopologyPolicy:
        of_claim = [policy for requests, policy in self._of_claim if not requests or request.name in requests]
        try:
            return merged(self._of_class[request.device_class], of_claim)
        except ConfigError as error:
            text = f"{self._where}: request {request.name}, the policies of claim and DeviceClass together: {error}"
            raise _BrokenConfigError(text) from error

    def _read(self, entries: Iterable[OpaqueEntry], where: str) -> Iterator[tuple[tuple[str, ...], TopologyPolicy]]:
        for entry in entries:
            if entry.driver != self._driver:
                continue
            try:
                config = decode_config(entry.parameters)
            except ConfigError as error:
                raise _BrokenConfigError(f"{where}: {entry.path}: {error}") from error
            if isinstance(config, TopologyPolicy):
                yield entry.requests, config


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
