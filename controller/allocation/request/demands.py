"""What the claims of a pod ask for, or why that cannot be told.

Whether users are told that their claims wait is a question of its own (`concerns_us`): only when the class is named
like the driver or its selectors name it, or class or claim carry an opaque config for it, so that users of other
drivers are not bothered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dracaena.api.config.v1alpha1 import TopologyPolicy
from dracaena.api.objects import ResourceClaim, Toleration
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.legal.read import claims as legal
from dracaena.controller.allocation.legal.read.claims import Claim, Config, Request


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
    device_class: legal.DeviceClass

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


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequests:
    """The requests of a claim, read with the classes that they name. Claims with equal specs share one as long as the
    classes stay as they are, so its identity tells what is asked for."""

    spec: Claim
    """Without the claim's key and UID."""
    alternatives: tuple[tuple[RequestDemand, ...], ...]
    """Of each request its alternatives in order of preference; an exact request has one."""


@dataclass(frozen=True, slots=True)
class ClaimDemand:
    """One claim to be served."""

    claim: ResourceClaim
    read: ReadRequests
    spec: Claim = field(init=False)
    """With the claim's own key and UID."""

    def __post_init__(self) -> None:
        known = self.read.spec
        spec = Claim(self.claim.key, self.claim.metadata.uid, known.requests, known.constraints, known.configs)
        object.__setattr__(self, "spec", spec)

    @property
    def requests(self) -> tuple[tuple[RequestDemand, ...], ...]:
        """Of each request its alternatives in order of preference; an exact request has one."""
        return self.read.alternatives

    def configs(self, chosen: Iterable[RequestDemand]) -> tuple[Mapping[str, Any], ...]:
        """Return status.allocation.devices.config when these alternatives are taken: classes' entries, then its own."""
        taken = tuple(chosen)
        return (*_class_configs(taken), *_claim_configs(self.spec, taken))


def tolerates_anything(claim: ResourceClaim) -> bool:
    """Return whether any request of a claim has a toleration. Reads leniently, never raises."""
    requests = _items(inside(claim.spec, "devices"), "requests")
    entries = (entry for one in requests for entry in (inside(one, "exactly"), *_items(one, "firstAvailable")))
    return any(entry.get("tolerations") for entry in entries)


def names_selector(document: Mapping[str, Any], expression: str) -> bool:
    """Return whether the spec of a claim or class has this selector anywhere. Reads leniently, never raises."""
    requests = _items(inside(document, "devices"), "requests")
    places = [
        document,
        *(entry for one in requests for entry in (inside(one, "exactly"), *_items(one, "firstAvailable"))),
    ]
    return any(
        inside(entry, "cel").get("expression") == expression for place in places for entry in _items(place, "selectors")
    )


def config_drivers(document: Mapping[str, Any]) -> set[object]:
    """Return the drivers that the configs of a class, or of a claim's devices, are for. Lenient, never raises."""
    return {inside(entry, "opaque").get("driver") for entry in _items(document, "config")}


def selectors_name(document: Mapping[str, Any], driver: str) -> bool:
    """Return whether a selector of a class has the driver's name in it. Reads leniently, never raises."""
    return any(driver in str(inside(entry, "cel").get("expression", "")) for entry in _items(document, "selectors"))


def class_names(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the classes that a claim names anywhere, sorted. Reads leniently, never raises."""
    names = set()
    for request in _items(inside(claim.spec, "devices"), "requests"):
        for entry in (inside(request, "exactly"), *_items(request, "firstAvailable")):
            name = entry.get("deviceClassName")
            if isinstance(name, str):
                names.add(name)
    return tuple(sorted(names))


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


def inside(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object inside a document, an empty one where there is none."""
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _items(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = unpacked(document.get(key))
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
