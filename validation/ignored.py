"""Warns of what is accepted and certainly does nothing: for requests that only devices of this driver serve.

The controller finds the same in a cluster (walk.ignored of its allocator) and reports it in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dracaena.api import reasons
from dracaena.api.attributes import (
    GPU_ATTRIBUTES,
    MIG_ATTRIBUTES,
    MIG_PLACE_ATTRIBUTES,
    MIG_PLACE_CAPACITIES,
    SHARED_GPU_CAPACITIES,
    VFIO_ATTRIBUTES,
    VGPU_ATTRIBUTES,
)
from dracaena.api.config.v1alpha1 import instead_of, is_of_nvidia
from dracaena.api.reasons import ReadName
from dracaena.cel import DeviceView, NoMatch
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference
from dracaena.validation.policies import DEVICES
from dracaena.validation.selectors import HONEST_COST, selector_in

SHIPPED: Final = (
    *("", "nvlink.", "pcie-switch.", "mig.", "share.", "vfio.", "vgpu."),
    *("confidential.", "confidential-vfio."),
)
"""Prefixes of the driver's name in the classes that its chart creates."""

_NO_CONFIG: Final = "no configuration for another driver, or one for this driver"
_CAPACITIES: Final = frozenset((*SHARED_GPU_CAPACITIES, *MIG_PLACE_CAPACITIES))
_PUBLISHED: Final = "what GPUs of this driver publish"


def check_ignored(
    reference: ObjectReference, document: Mapping[str, Any], classes: Mapping[str, Any], driver: str
) -> list[Finding]:
    """Warn of what has no effect in a class, claim or template. `classes`: name → spec of each in the input."""
    report = Report(reference)
    whole = Field(document, (), report)

    def is_ours(name: str) -> bool:
        return name.startswith(driver) or name.endswith(driver) or _means(classes.get(name), driver)

    if reference.kind == "DeviceClass":
        if is_ours(reference.name):
            _check_class(whole.at("spec"), driver)
    elif reference.kind in DEVICES:
        _check_devices(whole.at(*DEVICES[reference.kind]), is_ours, classes, driver)
    return report.findings


def _check_class(spec: Field, driver: str) -> None:
    """Check a class that means devices of this driver. It may also mean those of another."""
    compiled = [selector_in(one.at("cel", "expression").value) for one in spec.at("selectors").objects()]
    selectors = [one for one in compiled if one is not None]

    def may_be_of(other: str) -> bool:
        stranger = DeviceView(other)
        return bool(selectors) and not any(
            isinstance(one.evaluate(stranger, HONEST_COST), NoMatch) for one in selectors
        )

    for config in spec.at("config").objects():
        _check_config(config, driver, may_be_of)
    _check_selectors(spec, driver, may_be_of)


def _check_devices(devices: Field, is_ours: Callable[[str], bool], classes: Mapping[str, Any], driver: str) -> None:
    names = {f"{before}{driver}" for before in SHIPPED} | {*classes}
    by_request: dict[str, list[Field]] = {}
    for request in devices.at("requests").objects():
        parts = [request.at("exactly"), *request.at("firstAvailable").objects()]
        by_request[str(request.value.get("name"))] = [part for part in parts if isinstance(part.value, dict)]
    every = [part for parts in by_request.values() for part in parts]
    for part in every:
        _check_class_name(part.at("deviceClassName"), names, driver)
        if is_ours(_class_of(part)):
            _check_selectors(part, driver)
            _check_capacity(part.at("capacity", "requests"))
    for config in devices.at("config").objects():
        named = config.at("requests").value
        mains = {str(name).partition("/")[0] for name in named} if isinstance(named, list) and named else by_request
        parts = [part for name in mains for part in by_request.get(name, ())]
        if parts and all(is_ours(_class_of(part)) for part in parts):
            _check_config(config, driver)
    if every and all(is_ours(_class_of(part)) for part in every):
        _check_constraints(devices, every, driver)


def _check_class_name(name: Field, known: set[str], driver: str) -> None:
    if not isinstance(name.value, str) or name.value in known:
        return
    if text := reasons.class_not_in_input(name.value, known, driver):
        name.warn(text, "the name of a class")


def _never(_driver: str) -> bool:
    return False


def _check_config(config: Field, driver: str, may_be_of: Callable[[str], bool] = _never) -> None:
    other = config.at("opaque", "driver")
    if isinstance(other.value, str) and other.value and other.value != driver and not may_be_of(other.value):
        parameters = config.at("opaque", "parameters").value
        instead = ""
        if isinstance(parameters, dict) and is_of_nvidia(parameters):
            instead = f": {instead_of(parameters)}"
        other.warn(reasons.foreign_config(other.value, driver), f"{_NO_CONFIG}{instead}")


def _check_selectors(part: Field, driver: str, may_be_of: Callable[[str], bool] = _never) -> None:
    known = _known(driver)
    for selector in part.at("selectors").objects():
        expression = selector.at("cel", "expression")
        for read in _read_by(expression.value):
            if not read.is_among(known[read.group]) and not may_be_of(read.domain):
                expression.warn(reasons.unknown_name(read, known[read.group]), _PUBLISHED)


def _read_by(expression: Any) -> tuple[ReadName, ...]:
    selector = selector_in(expression)
    return () if selector is None else ReadName.of_paths(selector.footprint.paths)


def _check_constraints(devices: Field, parts: list[Field], driver: str) -> None:
    known = _known(driver)["attributes"]
    derived = {entry.value.get("name") for part in parts for entry in part.at("derivedAttributes").objects()}
    for constraint in devices.at("constraints").objects():
        for name in ("matchAttribute", "distinctAttribute"):
            attribute = constraint.at(name)
            if not isinstance(attribute.value, str) or attribute.value.count("/") != 1 or attribute.value in derived:
                continue
            read = ReadName.of_constraint(attribute.value)
            if not read.is_among(known):
                attribute.warn(reasons.unknown_name(read, known), _PUBLISHED)


def _check_capacity(requests: Field) -> None:
    for name in sorted(requests.value, key=str) if isinstance(requests.value, dict) else ():
        read = ReadName.of_request(str(name))
        if not read.is_among(_CAPACITIES):
            requests.below(str(name), requests.value[name]).warn(reasons.unknown_name(read, _CAPACITIES), _PUBLISHED)


def _known(driver: str) -> Mapping[str, frozenset[str]]:
    """Return the fully qualified names that devices of this driver may have."""

    def qualified(name: str) -> str:
        return name if "/" in name else f"{driver}/{name}"

    every = (*GPU_ATTRIBUTES, *MIG_ATTRIBUTES, *MIG_PLACE_ATTRIBUTES, *VFIO_ATTRIBUTES, *VGPU_ATTRIBUTES)
    attributes = frozenset(qualified(one.name) for one in every)
    return {
        "attributes": attributes,
        "capacity": frozenset(map(qualified, _CAPACITIES)),
    }


def _means(spec: Any, driver: str) -> bool:
    """Whether a class means devices of this driver: by a configuration or a selector."""
    if not isinstance(spec, dict):
        return False
    whole = Field(spec, (), Report(ObjectReference("", "", "", "")))
    drivers = [config.at("opaque", "driver").value for config in whole.at("config").objects()]
    expressions = [one.at("cel", "expression").value for one in whole.at("selectors").objects()]
    return driver in drivers or any(isinstance(text, str) and driver in text for text in expressions)


def _class_of(part: Field) -> str:
    return str(part.value.get("deviceClassName"))
