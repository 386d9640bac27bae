"""Claims and device classes as values, read strictly: all of resource.k8s.io/v1, and nothing that is newer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dracaena.api import limits, objects
from dracaena.api.go_json import encode_as_go
from dracaena.api.objects import Toleration
from dracaena.api.packed import unpacked
from dracaena.api.quantity import Quantity, parse_quantity
from dracaena.controller.allocation.legal.read.documents import (
    Unsupported,
    a_list,
    a_text,
    a_truth,
    an_object,
    only,
    reading,
    stop,
)

MAX_DEVICES: Final = limits.CLAIM_DEVICES


@dataclass(frozen=True, slots=True)
class Request:
    """Devices of one class: an exact request, or one alternative of a list."""

    name: str
    """`request`, or `request/subrequest`: what stands in the result."""
    main: str
    """Name of the request in the spec."""
    class_name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions; all must match."""
    all_devices: bool = False
    """Mode All: every device that matches, at least one."""
    count: int = 1
    """Devices wanted; without meaning in mode All."""
    admin_access: bool | None = None
    """None: not set, which means false but passes while the feature is off."""
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None
    """Amount wanted of each capacity by name; None: no capacity requests at all."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One entry of spec.devices.requests."""

    name: str
    alternatives: tuple[Request, ...]
    """In order of preference; an exact request has one."""
    prioritized: bool = False
    """Whether it is a firstAvailable list."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """All devices of the named requests agree in an attribute, or no two of them do."""

    attribute: str
    """Fully qualified: `domain/id`."""
    distinct: bool = False
    requests: frozenset[str] = frozenset()
    """`request` or `request/subrequest`; empty: all of the claim."""

    def applies_to(self, request: Request) -> bool:
        """Return whether devices for this request count."""
        return not self.requests or request.main in self.requests or request.name in self.requests


@dataclass(frozen=True, slots=True)
class Config:
    """One entry of spec.devices.config (claim) or spec.config (class)."""

    driver: str
    parameters: msgspec.Raw
    """A JSON object as text, or opaque.left_out() where a claim's were not kept."""
    requests: tuple[str, ...] = ()
    """`request` or `request/subrequest`; empty: all of the claim. Always empty in a class."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim asks for."""

    key: str
    """`namespace/name`."""
    requests: tuple[ClaimRequest, ...]
    constraints: tuple[Constraint, ...] = ()
    configs: tuple[Config, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassRequirements:
    """A device class."""

    name: str
    selectors: tuple[str, ...] = ()
    configs: tuple[Config, ...] = ()


def read_claim(claim: objects.ResourceClaim) -> Claim | Unsupported:
    """Read the spec of a claim, or return the first thing in document order that cannot be honoured. Never raises.

    Defaults are those of the API server (ExactCount, count 1), so a document that never saw a server reads the same.
    """
    return Unsupported("it", claim.problem, _NOT_READ) if claim.problem else reading(lambda: _claim(claim))


def read_class(device_class: objects.DeviceClass) -> ClassRequirements | Unsupported:
    """Read the spec of a device class, or return the first thing that cannot be honoured. Never raises."""
    problem = device_class.problem
    return Unsupported("it", problem, _NOT_READ) if problem else reading(lambda: _class(device_class))


_NOT_READ: Final = "it cannot be read"


def _claim(claim: objects.ResourceClaim) -> Claim:
    only(claim.spec, ("devices",), "spec")
    devices = an_object(claim.spec.get("devices"), "spec.devices")
    only(devices, ("requests", "constraints", "config"), "spec.devices")
    return Claim(
        key=claim.key,
        requests=_requests(unpacked(devices.get("requests")), "spec.devices.requests"),
        constraints=tuple(
            _constraint(entry, f"spec.devices.constraints[{index}]")
            for index, entry in enumerate(
                a_list(unpacked(devices.get("constraints")), "spec.devices.constraints", limits.CLAIM_CONSTRAINTS)
            )
        ),
        configs=tuple(
            _config(entry, f"spec.devices.config[{index}]", ("requests", "opaque"))
            for index, entry in enumerate(a_list(devices.get("config"), "spec.devices.config", limits.CONFIGS))
        ),
    )


def _class(device_class: objects.DeviceClass) -> ClassRequirements:
    spec = device_class.spec
    # extendedResourceName says how pods may ask for the class without a claim; it selects no device.
    only(spec, ("selectors", "config", "extendedResourceName"), "spec")
    return ClassRequirements(
        name=device_class.metadata.name,
        selectors=_selectors(spec.get("selectors"), "spec.selectors"),
        configs=tuple(
            _config(entry, f"spec.config[{index}]", ("opaque",))
            for index, entry in enumerate(a_list(spec.get("config"), "spec.config", limits.CONFIGS))
        ),
    )


def _requests(value: Any, path: str) -> tuple[ClaimRequest, ...]:
    return tuple(
        _claim_request(entry, f"{path}[{index}]")
        for index, entry in enumerate(a_list(value, path, limits.CLAIM_REQUESTS))
    )


def _claim_request(entry: Any, path: str) -> ClaimRequest:
    request = an_object(entry, path)
    only(request, ("name", "exactly", "firstAvailable"), path)
    name = a_text(request.get("name"), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is not None and alternatives:
        raise stop(path, "both exactly and firstAvailable", "the API allows one of them")
    if exactly is not None:
        where = f"{path}.exactly"
        return ClaimRequest(name, (_request(an_object(exactly, where), where, name, name, _EXACTLY_FIELDS),))
    entries = a_list(alternatives, f"{path}.firstAvailable", limits.REQUEST_ALTERNATIVES)
    if not entries:
        raise stop(path, "neither exactly nor firstAvailable")
    choices = tuple(_subrequest(entry, f"{path}.firstAvailable[{index}]", name) for index, entry in enumerate(entries))
    return ClaimRequest(name, choices, prioritized=True)


_SHARED_FIELDS: Final = ("deviceClassName", "selectors", "allocationMode", "count", "tolerations", "capacity")
_EXACTLY_FIELDS: Final = (*_SHARED_FIELDS, "adminAccess")
_SUBREQUEST_FIELDS: Final = (*_SHARED_FIELDS, "name")


def _subrequest(entry: Any, path: str, main: str) -> Request:
    document = an_object(entry, path)
    name = a_text(document.get("name"), f"{path}.name")
    return _request(document, path, f"{main}/{name}", main, _SUBREQUEST_FIELDS)


def _request(document: Mapping[str, Any], path: str, name: str, main: str, known: tuple[str, ...]) -> Request:
    only(document, known, path)
    mode = document.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise stop(f"{path}.allocationMode", f"mode {mode!r}"[:80])
    return Request(
        name=name,
        main=main,
        class_name=a_text(document.get("deviceClassName"), f"{path}.deviceClassName"),
        selectors=_selectors(document.get("selectors"), f"{path}.selectors"),
        all_devices=mode == "All",
        count=_count(document.get("count"), f"{path}.count"),
        admin_access=a_truth(document.get("adminAccess"), f"{path}.adminAccess"),
        tolerations=_tolerations(document.get("tolerations"), f"{path}.tolerations"),
        capacity=_capacity(document.get("capacity"), f"{path}.capacity"),
    )


def _count(value: Any, path: str) -> int:
    # A 0 is an absent count: the API leaves it out when it writes.
    if value is None or value == 0:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise stop(path, repr(value)[:80], "expected a whole number above 0")
    return value


def _selectors(value: Any, path: str) -> tuple[str, ...]:
    expressions = []
    for index, entry in enumerate(a_list(value, path, limits.SELECTORS)):
        where = f"{path}[{index}]"
        selector = an_object(entry, where)
        only(selector, ("cel",), where)
        if selector.get("cel") is None:
            raise stop(where, "a selector that is not CEL")
        cel = an_object(selector["cel"], f"{where}.cel")
        only(cel, ("expression",), f"{where}.cel")
        expressions.append(a_text(cel.get("expression"), f"{where}.cel.expression"))
    return tuple(expressions)


def _tolerations(value: Any, path: str) -> tuple[Toleration, ...]:
    tolerations = []
    for index, entry in enumerate(a_list(value, path, limits.TOLERATIONS)):
        where = f"{path}[{index}]"
        document = an_object(entry, where)
        only(document, Toleration.__struct_encode_fields__, where)
        present = {key: field for key, field in document.items() if field is not None}
        try:
            tolerations.append(msgspec.convert(present, Toleration))
        except msgspec.ValidationError as error:
            raise stop(where, "a toleration that does not decode", str(error)) from None
    return tuple(tolerations)


def _capacity(value: Any, path: str) -> Mapping[str, Quantity] | None:
    if value is None:
        return None
    capacity = an_object(value, path)
    only(capacity, ("requests",), path)
    wanted = an_object(capacity.get("requests"), f"{path}.requests")
    return {str(name): _quantity(amount, f"{path}.requests[{name}]") for name, amount in sorted(wanted.items())}


def _quantity(value: Any, path: str) -> Quantity:
    # The API takes a bare number for a quantity too.
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise stop(path, repr(value)[:80], "expected a quantity")
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise stop(path, repr(value)[:80], str(error)) from None
    if quantity.nano < 0:
        # It would give to others what the device does not have.
        raise stop(path, repr(value)[:80], "expected an amount of at least 0")
    return quantity


def _constraint(entry: Any, path: str) -> Constraint:
    constraint = an_object(entry, path)
    only(constraint, ("requests", "matchAttribute", "distinctAttribute"), path)
    kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if constraint.get(kind) is not None]
    if not kinds:
        raise stop(path, "a constraint of a kind that is not named")
    if len(kinds) > 1:
        raise stop(path, "both matchAttribute and distinctAttribute", "the API allows one of them")
    return Constraint(
        attribute=a_text(constraint[kinds[0]], f"{path}.{kinds[0]}"),
        distinct=kinds[0] == "distinctAttribute",
        requests=frozenset(_names(constraint.get("requests"), f"{path}.requests")),
    )


def _config(entry: Any, path: str, known: tuple[str, ...]) -> Config:
    config = an_object(entry, path)
    only(config, known, path)
    if config.get("opaque") is None:
        raise stop(path, "a configuration that is not opaque")
    opaque = an_object(config["opaque"], f"{path}.opaque")
    only(opaque, ("driver", "parameters"), f"{path}.opaque")
    return Config(
        driver=a_text(opaque.get("driver"), f"{path}.opaque.driver"),
        parameters=_parameters(opaque.get("parameters"), f"{path}.opaque.parameters"),
        requests=_names(config.get("requests"), f"{path}.requests"),
    )


def _parameters(value: Any, path: str) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    # The document was never text on the wire: it is from a manifest.
    return msgspec.Raw(encode_as_go(an_object(value, path)))


def _names(value: Any, path: str) -> tuple[str, ...]:
    # A claim has at most 32 requests with 8 alternatives each to name.
    entries = a_list(value, path, limits.CLAIM_REQUESTS * (limits.REQUEST_ALTERNATIVES + 1))
    return tuple(a_text(name, f"{path}[{index}]") for index, name in enumerate(entries))
