"""Claims and device classes as values, read strictly: all of resource.k8s.io/v1, and nothing newer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dracaena.api import limits, resource_objects
from dracaena.api.go_json import encode_as_go
from dracaena.api.objects import Toleration
from dracaena.api.packed import unpacked
from dracaena.api.quantity import Quantity, parse_quantity

MAX_DEVICES: Final = limits.CLAIM_DEVICES

UNKNOWN: Final = "unknown to this version: the claim is left alone"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The first thing in a spec that cannot be honoured.

    A request with a part that we do not understand must not be served as if that part were absent: the claim would get
    devices that its author excluded.
    """

    path: str
    """Where it is, for example `spec.devices.requests[0].exactly.selectors`."""
    what: str
    """What was seen there, in a few words."""
    why: str
    """UNKNOWN, or the rule that is broken."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Request:
    """Devices of one class: an exact request, or one alternative of a list."""

    name: str
    """`request`, or `request/subrequest`, as in the result."""
    main: str
    """Name of the request in the spec."""
    class_name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions; all must match."""
    all_devices: bool = False
    """Mode All: every device that matches, at least one."""
    count: int = 1
    """Devices wanted; meaningless in mode All."""
    admin_access: bool | None = None
    """None: not set, which means false but is accepted while the feature is off."""
    tolerations: tuple[Toleration, ...] = ()
    capacity: Mapping[str, Quantity] | None = None
    """Amount wanted of each capacity by name; None: no capacity requests at all."""
    derived: tuple[tuple[str, str], ...] = ()
    """Attributes that the claim derives from each device for its constraints: fully qualified name, CEL expression."""

    def derives(self, attribute: str) -> str | None:
        """Return the expression that derives an attribute of a device; None: the published value counts."""
        return next((expression for name, expression in self.derived if name == attribute), None)


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
    """All devices of the named requests agree on an attribute, or no two of them do."""

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


def read_claim(claim: resource_objects.ResourceClaim) -> Claim | Unsupported:
    """Read the spec of a claim, or return the first thing in document order that cannot be honoured. Never raises.

    Defaults are those of the API server (ExactCount, count 1), so a document that never passed a server reads the same.
    """
    if claim.problem:
        return Unsupported("it", claim.problem, _NOT_READ)
    try:
        return _claim(claim)
    except _StopReadingError as stopped:
        return stopped.found


def read_class(device_class: resource_objects.DeviceClass) -> ClassRequirements | Unsupported:
    """Read the spec of a device class, or return the first thing that cannot be honoured. Never raises."""
    if device_class.problem:
        return Unsupported("it", device_class.problem, _NOT_READ)
    try:
        return _class(device_class)
    except _StopReadingError as stopped:
        return stopped.found


_NOT_READ: Final = "it cannot be read"


def _claim(claim: resource_objects.ResourceClaim) -> Claim:
    _only(claim.spec, ("devices",), "spec")
    devices = _an_object(claim.spec.get("devices"), "spec.devices")
    _only(devices, ("requests", "constraints", "config"), "spec.devices")
    return Claim(
        key=claim.key,
        requests=_requests(unpacked(devices.get("requests")), "spec.devices.requests"),
        constraints=tuple(
            _constraint(entry, f"spec.devices.constraints[{index}]")
            for index, entry in enumerate(
                _a_list(unpacked(devices.get("constraints")), "spec.devices.constraints", limits.CLAIM_CONSTRAINTS)
            )
        ),
        configs=tuple(
            _config(entry, f"spec.devices.config[{index}]", ("requests", "opaque"))
            for index, entry in enumerate(_a_list(devices.get("config"), "spec.devices.config", limits.CONFIGS))
        ),
    )


def _class(device_class: resource_objects.DeviceClass) -> ClassRequirements:
    spec = device_class.spec
    # extendedResourceName says how pods may ask for the class without a claim; it selects no device.
    _only(spec, ("selectors", "config", "extendedResourceName"), "spec")
    return ClassRequirements(
        name=device_class.metadata.name,
        selectors=_selectors(spec.get("selectors"), "spec.selectors"),
        configs=tuple(
            _config(entry, f"spec.config[{index}]", ("opaque",))
            for index, entry in enumerate(_a_list(spec.get("config"), "spec.config", limits.CONFIGS))
        ),
    )


def _requests(value: Any, path: str) -> tuple[ClaimRequest, ...]:
    return tuple(
        _claim_request(entry, f"{path}[{index}]")
        for index, entry in enumerate(_a_list(value, path, limits.CLAIM_REQUESTS))
    )


def _claim_request(entry: Any, path: str) -> ClaimRequest:
    request = _an_object(entry, path)
    _only(request, ("name", "exactly", "firstAvailable"), path)
    name = _a_text(request.get("name"), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is not None and alternatives:
        raise _stop(path, "both exactly and firstAvailable", "the API allows one of them")
    if exactly is not None:
        where = f"{path}.exactly"
        return ClaimRequest(name, (_request(_an_object(exactly, where), where, name, name, _EXACTLY_FIELDS),))
    entries = _a_list(alternatives, f"{path}.firstAvailable", limits.REQUEST_ALTERNATIVES)
    if not entries:
        raise _stop(path, "neither exactly nor firstAvailable")
    choices = tuple(_subrequest(entry, f"{path}.firstAvailable[{index}]", name) for index, entry in enumerate(entries))
    return ClaimRequest(name, choices, prioritized=True)


_SHARED_FIELDS: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "tolerations",
    "capacity",
    "derivedAttributes",
)
_EXACTLY_FIELDS: Final = (*_SHARED_FIELDS, "adminAccess")
_SUBREQUEST_FIELDS: Final = (*_SHARED_FIELDS, "name")


def _subrequest(entry: Any, path: str, main: str) -> Request:
    document = _an_object(entry, path)
    name = _a_text(document.get("name"), f"{path}.name")
    return _request(document, path, f"{main}/{name}", main, _SUBREQUEST_FIELDS)


def _request(document: Mapping[str, Any], path: str, name: str, main: str, known: tuple[str, ...]) -> Request:
    _only(document, known, path)
    mode = document.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise _stop(f"{path}.allocationMode", f"mode {mode!r}"[:80])
    return Request(
        name=name,
        main=main,
        class_name=_a_text(document.get("deviceClassName"), f"{path}.deviceClassName"),
        selectors=_selectors(document.get("selectors"), f"{path}.selectors"),
        all_devices=mode == "All",
        count=_count(document.get("count"), f"{path}.count"),
        admin_access=_a_truth(document.get("adminAccess"), f"{path}.adminAccess"),
        tolerations=_tolerations(document.get("tolerations"), f"{path}.tolerations"),
        capacity=_capacity(document.get("capacity"), f"{path}.capacity"),
        derived=_derived(document.get("derivedAttributes"), f"{path}.derivedAttributes"),
    )


def _derived(value: Any, path: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for index, entry in enumerate(_a_list(value, path, limits.REQUEST_DERIVED_ATTRIBUTES)):
        where = f"{path}[{index}]"
        document = _an_object(entry, where)
        _only(document, ("name", "expression"), where)
        # The last one of a name counts, as in Kubernetes.
        found[_a_text(document.get("name"), f"{where}.name")] = _a_text(
            document.get("expression"), f"{where}.expression"
        )
    return tuple(found.items())


def _count(value: Any, path: str) -> int:
    # A 0 is an absent count: the API leaves it out when it writes.
    if value is None or value == 0:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _stop(path, repr(value)[:80], "expected a whole number above 0")
    return value


def _selectors(value: Any, path: str) -> tuple[str, ...]:
    expressions = []
    for index, entry in enumerate(_a_list(value, path, limits.SELECTORS)):
        where = f"{path}[{index}]"
        selector = _an_object(entry, where)
        _only(selector, ("cel",), where)
        if selector.get("cel") is None:
            raise _stop(where, "a selector that is not CEL")
        cel = _an_object(selector["cel"], f"{where}.cel")
        _only(cel, ("expression",), f"{where}.cel")
        expressions.append(_a_text(cel.get("expression"), f"{where}.cel.expression"))
    return tuple(expressions)


def _tolerations(value: Any, path: str) -> tuple[Toleration, ...]:
    tolerations = []
    for index, entry in enumerate(_a_list(value, path, limits.TOLERATIONS)):
        where = f"{path}[{index}]"
        document = _an_object(entry, where)
        _only(document, Toleration.__struct_encode_fields__, where)
        present = {key: field for key, field in document.items() if field is not None}
        try:
            tolerations.append(msgspec.convert(present, Toleration))
        except msgspec.ValidationError as error:
            raise _stop(where, "a toleration that does not decode", str(error)) from None
    return tuple(tolerations)


def _capacity(value: Any, path: str) -> Mapping[str, Quantity] | None:
    if value is None:
        return None
    capacity = _an_object(value, path)
    _only(capacity, ("requests",), path)
    wanted = _an_object(capacity.get("requests"), f"{path}.requests")
    return {str(name): _quantity(amount, f"{path}.requests[{name}]") for name, amount in sorted(wanted.items())}


def _quantity(value: Any, path: str) -> Quantity:
    # The API takes a bare number for a quantity too.
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise _stop(path, repr(value)[:80], "expected a quantity")
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise _stop(path, repr(value)[:80], str(error)) from None
    if quantity.nano < 0:
        # It would give to others what the device does not have.
        raise _stop(path, repr(value)[:80], "expected an amount of at least 0")
    return quantity


def _constraint(entry: Any, path: str) -> Constraint:
    constraint = _an_object(entry, path)
    _only(constraint, ("requests", "matchAttribute", "distinctAttribute"), path)
    kinds = [kind for kind in ("matchAttribute", "distinctAttribute") if constraint.get(kind) is not None]
    if not kinds:
        raise _stop(path, "a constraint of a kind that is not named")
    if len(kinds) > 1:
        raise _stop(path, "both matchAttribute and distinctAttribute", "the API allows one of them")
    return Constraint(
        attribute=_a_text(constraint[kinds[0]], f"{path}.{kinds[0]}"),
        distinct=kinds[0] == "distinctAttribute",
        requests=frozenset(_names(constraint.get("requests"), f"{path}.requests")),
    )


def _config(entry: Any, path: str, known: tuple[str, ...]) -> Config:
    config = _an_object(entry, path)
    _only(config, known, path)
    if config.get("opaque") is None:
        raise _stop(path, "a configuration that is not opaque")
    opaque = _an_object(config["opaque"], f"{path}.opaque")
    _only(opaque, ("driver", "parameters"), f"{path}.opaque")
    return Config(
        driver=_a_text(opaque.get("driver"), f"{path}.opaque.driver"),
        parameters=_parameters(opaque.get("parameters"), f"{path}.opaque.parameters"),
        requests=_names(config.get("requests"), f"{path}.requests"),
    )


def _parameters(value: Any, path: str) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return value
    # The document was never text on the wire: it is from a manifest.
    return msgspec.Raw(encode_as_go(_an_object(value, path)))


def _names(value: Any, path: str) -> tuple[str, ...]:
    # A claim has at most 32 requests with 8 alternatives each to name.
    entries = _a_list(value, path, limits.CLAIM_REQUESTS * (limits.REQUEST_ALTERNATIVES + 1))
    return tuple(_a_text(name, f"{path}[{index}]") for index, name in enumerate(entries))


class _StopReadingError(Exception):
    """The first thing that cannot be honoured."""

    def __init__(self, found: Unsupported) -> None:
        super().__init__(str(found))
        self.found = found


def _stop(path: str, what: str, why: str = UNKNOWN) -> _StopReadingError:
    """Return the exception to raise."""
    return _StopReadingError(Unsupported(path, what, why))


def _only(document: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    """Stop at a field that this version does not know. A null counts as absent, as everywhere in the API."""
    names = frozenset(known)
    unknown = sorted(str(key) for key, value in document.items() if value is not None and key not in names)
    if unknown:
        raise _stop(f"{path}.{unknown[0]}", f"field {unknown[0]!r}")


def _an_object(value: Any, path: str) -> Mapping[str, Any]:
    """Read an object; absent is empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _stop(path, f"a {type(value).__name__}", "expected an object")
    return value


def _a_list(value: Any, path: str, limit: int) -> list[Any]:
    """Read a list of at most `limit` entries; absent is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _stop(path, f"a {type(value).__name__}", "expected a list")
    if len(value) > limit:
        raise _stop(path, f"{len(value)} entries", f"the API allows {limit}")
    return value


def _a_text(value: Any, path: str) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise _stop(path, repr(value)[:80], "expected a text that is not empty")
    return value


def _a_truth(value: Any, path: str) -> bool | None:
    """Read true, false or nothing."""
    if value is not None and not isinstance(value, bool):
        raise _stop(path, repr(value)[:80], "expected true or false")
    return value
