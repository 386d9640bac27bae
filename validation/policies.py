"""Checks that the policies that hold for one request do not contradict each other: those of its class and its claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config, merged
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference

Classes = Mapping[str, Any]
"""Name → spec of each DeviceClass that is known, as it was written."""

DEVICES: Mapping[str, tuple[str, ...]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
}
"""Kind → where it says which devices it wants."""


def check_policies(
    reference: ObjectReference, document: Mapping[str, Any], classes: Classes, driver: str
) -> list[Finding]:
    """Report contradictions between policies. A policy that is wrong by itself is reported elsewhere."""
    report = Report(reference)
    whole = Field(document, (), report)
    if reference.kind == "DeviceClass":
        _check_class(whole.at("spec"), driver)
    elif reference.kind in DEVICES:
        _check_requests(whole.at(*DEVICES[reference.kind]), classes, driver)
    return report.findings


def _check_class(spec: Field, driver: str) -> None:
    error = _contradiction(_policies(spec.value, driver), ())
    if error is not None:  # no error: a claim can still say otherwise
        config = Field(error.seen, (*spec.path, "config"), spec.report)
        config.warn(f"the policies of this class contradict each other: {_name(error)}", error.expected)


def _check_requests(devices: Field, classes: Classes, driver: str) -> None:
    for request, names, class_name in _requests(devices):
        of_class = _policies(classes.get(class_name), driver)
        error = _contradiction(of_class, _policies(devices.value, driver, names))
        if error is not None:
            whose = f"this request and of DeviceClass {class_name}" if of_class else "this request"
            seen = Field(error.seen, request.path, request.report)
            seen.error(f"the policies of {whose} contradict each other: {_name(error)}", error.expected)


def _contradiction(of_class: Sequence[TopologyPolicy], of_claim: Sequence[TopologyPolicy]) -> ConfigError | None:
    try:
        merged(of_class, of_claim)
    except ConfigError as error:
        return error
    return None


def _name(error: ConfigError) -> str:
    return error.path.removeprefix("$.")


def _requests(devices: Field) -> Iterator[tuple[Field, tuple[str, str], str]]:
    """Yield each request and alternative with the two names by which a configuration can mean it, and its class."""
    for request in devices.at("requests").objects():
        name = str(request.value.get("name"))
        exactly = request.at("exactly")
        alternatives = list(request.at("firstAvailable").objects())
        if isinstance(exactly.value, dict):
            yield exactly, (name, name), str(exactly.value.get("deviceClassName"))
        for alternative in alternatives:
            full_name = f"{name}/{alternative.value.get('name')}"
            yield alternative, (name, full_name), str(alternative.value.get("deviceClassName"))


def _policies(spec: Any, driver: str, names: tuple[str, str] | None = None) -> tuple[TopologyPolicy, ...]:
    """Return the policies in a class's spec, or in a claim's devices for the request of these names, in order."""
    found: list[TopologyPolicy] = []
    config = spec.get("config") if isinstance(spec, dict) else None
    for entry in config if isinstance(config, list) else ():
        match entry:
            case {"opaque": {"driver": str(of), "parameters": dict(parameters)}} if of == driver:
                requests = entry.get("requests")
                if names is None or not requests or (isinstance(requests, list) and any(n in requests for n in names)):
                    found.extend(_decoded(parameters))
    return tuple(found)


def _decoded(parameters: Mapping[str, Any]) -> Iterator[TopologyPolicy]:
    try:
        config = decode_config(parameters)
    except ConfigError:
        return
    if isinstance(config, TopologyPolicy):
        yield config
