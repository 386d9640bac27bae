"""What the claims of a pod ask for, or why that cannot be told.

Whether users are told that their claims wait is a question of its own (`concerns_us`): only when the class is named
like the driver or its selectors name it, or class or claim carry an opaque config for it, so that users of other
drivers are not bothered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config, merged
from dracaena.api.objects import DeviceClass, ResourceClaim, Toleration
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.effort import CLAIM_STEPS, Effort, Work
from dracaena.controller.allocation.structured import claims as structured
from dracaena.controller.allocation.structured.claims import MAX_DEVICES, Claim, Config, Request, read_claim, read_class
from dracaena.controller.allocation.structured.documents import Unsupported


class RefusalKind(Enum):
    """Why no decision is possible until somebody changes something; values are metric labels."""

    CLASS_MISSING = "class-missing"
    CONFIG_BROKEN = "config-broken"
    UNSUPPORTED = "unsupported"
    SELECTOR = "selector"
    LIMIT = "limit"
    OTHER_DRIVER = "other-driver"
    TOO_LONG = "took-too-long"
    """Nothing is wrong, but working it out takes longer than one pod may take; it is tried again after all others."""
    MISTAKE = "mistake"
    """Another object that a person has to mend, for example a slice."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No decision is possible until a person (or a later version) acts."""

    kind: RefusalKind
    text: str
    concerns_us: bool
    """Whether the pod's user expects our driver, and so is told."""
    goes_on: bool = False
    """Of the kind TOO_LONG: whether the next try begins with nodes that no earlier one has asked."""


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """One request of a claim, or one alternative of it, with the class and the policy that hold for it."""

    request: Request
    policy: TopologyPolicy
    device_class: structured.DeviceClass

    @property
    def name(self) -> str:
        """`request`, or `request/subrequest`."""
        return self.request.name

    @property
    def count(self) -> int:
        """Devices; without meaning in mode All."""
        return self.request.count

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """What the request tolerates."""
        return self.request.tolerations


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """One claim to be served."""

    claim: ResourceClaim
    spec: Claim
    requests: tuple[tuple[RequestDemand, ...], ...]
    """Of each request its alternatives in order of preference; an exact request has one."""

    def configs(self, chosen: Iterable[RequestDemand]) -> tuple[Mapping[str, Any], ...]:
        """Return status.allocation.devices.config when these alternatives are taken: classes' entries, then its own."""
        taken = tuple(chosen)
        return (*_class_configs(taken), *_claim_configs(self.spec, taken))


def read_demands(
    driver: str, classes: Mapping[str, DeviceClass], claims: Iterable[ResourceClaim], effort: Effort | None = None
) -> tuple[ClaimDemand, ...] | Refused:
    """Read all claims that are to be allocated; the first that cannot be served refuses them all. Each is charged.

    A claim without requests is left out: it needs no device, and kube-scheduler serves it.
    """
    waiting = tuple(claims)
    ours = concerns_us(driver, classes, waiting)
    demands = []
    for claim in waiting:
        if effort is not None:
            effort.charge(CLAIM_STEPS, Work.CLAIMS)
        found = _claim_demand(driver, classes, claim)
        if isinstance(found, _Refusal):
            return Refused(found.kind, found.text, ours)
        if found.requests:
            demands.append(found)
    return tuple(demands)


def concerns_us(driver: str, classes: Mapping[str, DeviceClass], claims: Iterable[ResourceClaim]) -> bool:
    """Return whether the author of any of the claims visibly means our driver. Reads leniently, never raises."""
    return any(
        driver in _config_drivers(_inside(claim.spec, "devices"))
        or any(class_concerns_us(driver, classes, name) for name in class_names(claim))
        for claim in claims
    )


def class_concerns_us(driver: str, classes: Mapping[str, DeviceClass], name: str) -> bool:
    """Return whether a class visibly means our driver, by its name, configs or selectors. Never raises."""
    known = classes.get(name)
    return (
        name.startswith(driver)
        or name.endswith(driver)
        or (known is not None and (driver in _config_drivers(known.spec) or _selectors_name(known.spec, driver)))
    )


def tolerates_anything(claim: ResourceClaim) -> bool:
    """Return whether any request of a claim has a toleration. Reads leniently, never raises."""
    requests = _items(_inside(claim.spec, "devices"), "requests")
    entries = (entry for one in requests for entry in (_inside(one, "exactly"), *_items(one, "firstAvailable")))
    return any(entry.get("tolerations") for entry in entries)


def names_selector(document: Mapping[str, Any], expression: str) -> bool:
    """Return whether the spec of a claim or class has this selector anywhere. Reads leniently, never raises."""
    requests = _items(_inside(document, "devices"), "requests")
    places = [
        document,
        *(entry for one in requests for entry in (_inside(one, "exactly"), *_items(one, "firstAvailable"))),
    ]
    return any(
        _inside(entry, "cel").get("expression") == expression
        for place in places
        for entry in _items(place, "selectors")
    )


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
    spec = read_claim(claim)
    if isinstance(spec, Unsupported):
        return _Refusal(RefusalKind.UNSUPPORTED, f"claim {claim.key}: {spec}")
    least = sum(min(0 if one.all_devices else one.count for one in entry.alternatives) for entry in spec.requests)
    if least > MAX_DEVICES:
        text = f"spec.devices.requests: {least} devices: one claim can hold at most {MAX_DEVICES}"
        return _Refusal(RefusalKind.UNSUPPORTED, f"claim {claim.key}: {text}")
    known = _read_classes(classes, claim, spec)
    if isinstance(known, _Refusal):
        return known
    policies = _Policies(driver)
    try:
        for device_class in known.values():
            policies.add_class(device_class)
        policies.add_claim(claim, spec)
        requests = tuple(
            tuple(
                RequestDemand(request, policies.of_request(request), known[request.class_name])
                for request in entry.alternatives
            )
            for entry in spec.requests
        )
    except _BrokenConfigError as error:
        return _Refusal(RefusalKind.CONFIG_BROKEN, str(error))
    return ClaimDemand(claim, spec, requests)


def _read_classes(
    classes: Mapping[str, DeviceClass], claim: ResourceClaim, spec: Claim
) -> dict[str, structured.DeviceClass] | _Refusal:
    """Return the classes that the claim uses, in request order."""
    known: dict[str, structured.DeviceClass] = {}
    for request in (request for entry in spec.requests for request in entry.alternatives):
        name = request.class_name
        if name in known:
            continue
        found = classes.get(name)
        if found is None:
            return _Refusal(RefusalKind.CLASS_MISSING, f"claim {claim.key}: DeviceClass {name} does not exist")
        device_class = read_class(found)
        if isinstance(device_class, Unsupported):
            return _Refusal(RefusalKind.UNSUPPORTED, f"DeviceClass {name}: {device_class}")
        known[name] = device_class
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

    def add_class(self, device_class: structured.DeviceClass) -> None:
        where = f"DeviceClass {device_class.name}: spec"
        self._of_class[device_class.name] = [policy for _, policy in self._read(device_class.configs, where)]

    def add_claim(self, claim: ResourceClaim, spec: Claim) -> None:
        self._where = f"claim {claim.key}"
        self._of_claim = list(self._read(spec.configs, f"{self._where}: spec.devices"))

    def of_request(self, request: Request) -> TopologyPolicy:
        names = {request.main, request.name}
        of_claim = [policy for requests, policy in self._of_claim if not requests or names & set(requests)]
        try:
            return merged(self._of_class[request.class_name], of_claim)
        except ConfigError as error:
            text = f"{self._where}: request {request.name}, the policies of claim and DeviceClass together: {error}"
            raise _BrokenConfigError(text) from error

    def _read(self, entries: Iterable[Config], where: str) -> Iterator[tuple[tuple[str, ...], TopologyPolicy]]:
        for index, entry in enumerate(entries):
            if entry.driver != self._driver:
                continue
            try:
                config = decode_config(entry.parameters)
            except ConfigError as error:
                raise _BrokenConfigError(f"{where}.config[{index}].opaque.parameters: {error}") from error
            if isinstance(config, TopologyPolicy):
                yield entry.requests, config


def _class_configs(chosen: Iterable[RequestDemand]) -> Iterator[Mapping[str, Any]]:
    """Yield the configs of all classes once, each naming the requests that use its class."""
    users: dict[str, list[RequestDemand]] = {}
    for demand in chosen:
        users.setdefault(demand.device_class.name, []).append(demand)
    for demands in users.values():
        for config in demands[0].device_class.configs:
            yield {"source": "FromClass", "requests": [demand.name for demand in demands], "opaque": _opaque(config)}


def _claim_configs(spec: Claim, chosen: Iterable[RequestDemand]) -> Iterator[Mapping[str, Any]]:
    names = {name for demand in chosen for name in (demand.request.main, demand.name)}
    for config in spec.configs:
        if not config.requests:
            yield {"source": "FromClaim", "opaque": _opaque(config)}
        elif names & set(config.requests):
            yield {"source": "FromClaim", "requests": list(config.requests), "opaque": _opaque(config)}


def _opaque(config: Config) -> Mapping[str, Any]:
    return {"driver": config.driver, "parameters": config.parameters}


def _config_drivers(document: Mapping[str, Any]) -> set[object]:
    return {_inside(entry, "opaque").get("driver") for entry in _items(document, "config")}


def _selectors_name(document: Mapping[str, Any], driver: str) -> bool:
    return any(driver in str(_inside(entry, "cel").get("expression", "")) for entry in _items(document, "selectors"))


def _inside(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = unpacked(document.get(key))
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
