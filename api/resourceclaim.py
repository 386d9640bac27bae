"""The specs of claims and device classes, read strictly: what is not understood is named, never skipped.

A request that this version cannot honour must not be allocated as if the unknown part were absent: the claim would
get devices that its author excluded. So each reader returns either the typed spec or the first `Unsupported` in
document order. Source: resource.k8s.io/v1, ResourceClaimSpec and DeviceClassSpec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from dracaena.api.objects import Toleration

MAX_RESULTS = 32
"""Devices that one claim can hold (AllocationResultsMaxSize of resource.k8s.io/v1)."""

NOT_YET: Final = "not supported yet: the claim waits"
UNKNOWN: Final = "not known to this version: the claim is left alone"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The first thing in a spec that cannot be honoured."""

    path: str
    """Where it stands, for example `spec.devices.requests[0].exactly.selectors`."""
    what: str
    """What was seen there, in a few words."""
    why: str
    """NOT_YET, UNKNOWN, or the rule that is broken."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One request for a number of whole devices of one class."""

    name: str
    device_class: str
    count: int
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class OpaqueEntry:
    """One entry of spec.devices.config (claim) or spec.config (class; `requests` is empty there)."""

    requests: tuple[str, ...]
    """Requests it is for; empty means all."""
    driver: str
    parameters: Mapping[str, Any]
    path: str
    """Where the parameters stand in the document, for messages."""


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim asks for, in the order of its spec."""

    requests: tuple[DeviceRequest, ...]
    configs: tuple[OpaqueEntry, ...]


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A device class without selectors: it matches every device."""

    configs: tuple[OpaqueEntry, ...]


def read_claim_spec(spec: Mapping[str, Any]) -> ClaimSpec | Unsupported:
    """Read the raw `spec` of a ResourceClaim. Never raises, whatever the document holds."""
    return _read(_claim_spec, spec)


def read_class_spec(spec: Mapping[str, Any]) -> ClassSpec | Unsupported:
    """Read the raw `spec` of a DeviceClass. Never raises, whatever the document holds."""
    return _read(_class_spec, spec)


class _StopReading(Exception):  # noqa: N818 - control flow inside this module, no error that anybody sees
    def __init__(self, found: Unsupported) -> None:
        super().__init__(str(found))
        self.found = found


def _read(reader: Callable[[Mapping[str, Any]], T], spec: Mapping[str, Any]) -> T | Unsupported:
    try:
        return reader(spec)
    except _StopReading as stop:
        return stop.found


def _stop(path: str, what: str, why: str) -> _StopReading:
    return _StopReading(Unsupported(path, what, why))


def _claim_spec(spec: Mapping[str, Any]) -> ClaimSpec:
    _only(spec, ("devices",), "spec")
    devices = _mapping(spec.get("devices"), "spec.devices")
    _only(devices, ("requests", "constraints", "config"), "spec.devices")
    entries = _list(devices.get("requests"), "spec.devices.requests")
    requests = tuple(_request(entry, f"spec.devices.requests[{index}]") for index, entry in enumerate(entries))
    total = sum(request.count for request in requests)
    if total > MAX_RESULTS:
        raise _stop("spec.devices.requests", f"{total} devices", f"one claim can hold at most {MAX_RESULTS}")
    for index, entry in enumerate(_list(devices.get("constraints"), "spec.devices.constraints")):
        _refuse_constraint(entry, f"spec.devices.constraints[{index}]")
    configs = _list(devices.get("config"), "spec.devices.config")
    return ClaimSpec(
        requests=requests,
        configs=tuple(_config(entry, f"spec.devices.config[{index}]") for index, entry in enumerate(configs)),
    )


def _class_spec(spec: Mapping[str, Any]) -> ClassSpec:
    # extendedResourceName says how pods may ask for the class without a claim; it selects no device.
    _only(spec, ("selectors", "config", "extendedResourceName"), "spec")
    if _list(spec.get("selectors"), "spec.selectors"):
        raise _stop("spec.selectors", "CEL selectors", NOT_YET)
    configs = _list(spec.get("config"), "spec.config")
    return ClassSpec(
        configs=tuple(
            _config(entry, f"spec.config[{index}]", with_requests=False) for index, entry in enumerate(configs)
        )
    )


def _request(entry: Any, path: str) -> DeviceRequest:
    request = _mapping(entry, path)
    _only(request, ("name", "exactly", "firstAvailable"), path)
    if request.get("firstAvailable"):
        raise _stop(f"{path}.firstAvailable", "a list of alternatives", NOT_YET)
    if request.get("exactly") is None:
        raise _stop(path, "neither exactly nor firstAvailable", UNKNOWN)
    name = _text(request.get("name"), f"{path}.name")
    return _exactly(name, _mapping(request["exactly"], f"{path}.exactly"), f"{path}.exactly")


_EXACTLY_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)


def _exactly(name: str, exactly: Mapping[str, Any], path: str) -> DeviceRequest:
    _only(exactly, _EXACTLY_FIELDS, path)
    if _list(exactly.get("selectors"), f"{path}.selectors"):
        raise _stop(f"{path}.selectors", "CEL selectors", NOT_YET)
    # false means the same as absent: an ordinary request.
    if exactly.get("adminAccess") not in (None, False):
        raise _stop(f"{path}.adminAccess", "admin access", NOT_YET)
    for field, words in (("capacity", "capacity requests"), ("derivedAttributes", "derived attributes")):
        if exactly.get(field):
            raise _stop(f"{path}.{field}", words, NOT_YET)
    mode = exactly.get("allocationMode") or "ExactCount"
    if mode == "All":
        raise _stop(f"{path}.allocationMode", "mode All", NOT_YET)
    if mode != "ExactCount":
        raise _stop(f"{path}.allocationMode", f"mode {mode!r}", UNKNOWN)
    return DeviceRequest(
        name=name,
        device_class=_text(exactly.get("deviceClassName"), f"{path}.deviceClassName"),
        count=_count(exactly.get("count"), f"{path}.count"),
        tolerations=_tolerations(exactly.get("tolerations"), f"{path}.tolerations"),
    )


def _tolerations(value: Any, path: str) -> tuple[Toleration, ...]:
    entries = []
    for index, entry in enumerate(_list(value, path)):
        _only(_mapping(entry, f"{path}[{index}]"), Toleration.__struct_encode_fields__, f"{path}[{index}]")
        try:
            entries.append(msgspec.convert(entry, Toleration))
        except msgspec.ValidationError as error:
            raise _stop(f"{path}[{index}]", "a toleration that does not decode", str(error)) from None
    return tuple(entries)


def _refuse_constraint(entry: Any, path: str) -> None:
    constraint = _mapping(entry, path)
    _only(constraint, ("requests", "matchAttribute", "distinctAttribute"), path)
    for field in ("matchAttribute", "distinctAttribute"):
        if constraint.get(field) is not None:
            raise _stop(f"{path}.{field}", f"constraint on {constraint[field]!r}", NOT_YET)
    raise _stop(path, "a constraint of a kind that is not named", UNKNOWN)


def _config(entry: Any, path: str, *, with_requests: bool = True) -> OpaqueEntry:
    config = _mapping(entry, path)
    _only(config, ("requests", "opaque") if with_requests else ("opaque",), path)
    if config.get("opaque") is None:
        raise _stop(path, "a configuration that is not opaque", UNKNOWN)
    opaque = _mapping(config["opaque"], f"{path}.opaque")
    _only(opaque, ("driver", "parameters"), f"{path}.opaque")
    requests = _list(config.get("requests"), f"{path}.requests")
    return OpaqueEntry(
        requests=tuple(_text(name, f"{path}.requests") for name in requests),
        driver=_text(opaque.get("driver"), f"{path}.opaque.driver"),
        parameters=_mapping(opaque.get("parameters"), f"{path}.opaque.parameters"),
        path=f"{path}.opaque.parameters",
    )


def _only(document: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    # A null counts as absent, as everywhere in the API.
    unknown = sorted(key for key, value in document.items() if value is not None and key not in set(known))
    if unknown:
        raise _stop(f"{path}.{unknown[0]}", f"field {unknown[0]!r}", UNKNOWN)


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _stop(path, f"a {type(value).__name__}", "expected an object")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _stop(path, f"a {type(value).__name__}", "expected a list")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise _stop(path, repr(value), "expected a text that is not empty")
    return value


def _count(value: Any, path: str) -> int:
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _stop(path, repr(value), "expected a whole number above 0")
    return value
