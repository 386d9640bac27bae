"""Warns of configurations for another type of device than their requests get: the plugin ignores them, or refuses the
claim because of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dracaena.api.attributes import GPU_TYPE, MIG_TYPE, VFIO_TYPE, VGPU_TYPE
from dracaena.api.config.v1alpha1 import NO_SHARING, ConfigError, GpuConfig, VfioConfig, decode_config
from dracaena.cel import DeviceView, NoMatch, Selector
from dracaena.validation.field import Field, Report
from dracaena.validation.findings import Finding, ObjectReference
from dracaena.validation.policies import DEVICES
from dracaena.validation.selectors import HONEST_COST, selector_in

TYPES: Final = frozenset((GPU_TYPE, MIG_TYPE, VFIO_TYPE, VGPU_TYPE))
_OF_GUESTS: Final = frozenset((VFIO_TYPE, VGPU_TYPE))
_SHARED: Final = frozenset((GPU_TYPE,))

SHIPPED_TYPES: Final[Mapping[str, str]] = {
    "": GPU_TYPE, "nvlink.": GPU_TYPE, "pcie-switch.": GPU_TYPE, "share.": GPU_TYPE, "confidential.": GPU_TYPE,
    "mig.": MIG_TYPE, "vfio.": VFIO_TYPE, "confidential-vfio.": VFIO_TYPE, "vgpu.": VGPU_TYPE,
}  # fmt: skip
"""Prefix of the driver's name in the classes of its chart → the type of device that each means."""


def check_config_types(
    reference: ObjectReference, document: Mapping[str, Any], classes: Mapping[str, Any], driver: str
) -> list[Finding]:
    """Warn of them in a class, claim or template. `classes`: name → spec of each in the input. A request that may get a
    device of the right type gives no warning; neither does one with an unknown class.
    """
    report = Report(reference)
    whole = Field(document, (), report)
    if reference.kind == "DeviceClass":
        spec = whole.at("spec")
        for config in spec.at("config").objects():
            _check(config, _left(spec, TYPES, driver), "this class means", driver)
    elif reference.kind in DEVICES:
        _check_devices(whole.at(*DEVICES[reference.kind]), classes, driver)
    return report.findings


def _check_devices(devices: Field, classes: Mapping[str, Any], driver: str) -> None:
    by_name: dict[str, set[str]] = {}
    for request in devices.at("requests").objects():
        name = str(request.value.get("name"))
        exactly = request.at("exactly")
        if isinstance(exactly.value, dict):
            by_name[name] = set(_types_of(exactly, classes, driver))
        for alternative in request.at("firstAvailable").objects():
            types = _types_of(alternative, classes, driver)
            by_name[f"{name}/{alternative.value.get('name')}"] = set(types)
            by_name.setdefault(name, set()).update(types)
    for config in devices.at("config").objects():
        named = config.at("requests").value
        names = list(map(str, named)) if isinstance(named, list) and named else list(by_name)
        if names and all(name in by_name for name in names):
            types = frozenset().union(*(by_name[name] for name in names))
            _check(config, types, "all of its requests get", driver)


def _check(config: Field, types: frozenset[str], who: str, driver: str) -> None:
    """Check one configuration for requests that get devices of these types; none: they get nothing, which is reported
    elsewhere.
    """
    opaque = config.at("opaque")
    if opaque.at("driver").value != driver or not types:
        return
    parameters = opaque.at("parameters")
    if not isinstance(parameters.value, dict):
        return
    try:
        read = decode_config(parameters.value)
    except ConfigError:
        return  # reported elsewhere
    got = f"{who} devices of type {' or '.join(sorted(types))}"
    if isinstance(read, VfioConfig) and not types & _OF_GUESTS:
        parameters.at("kind").warn(
            f"a VfioConfig does nothing here: {got}, which no virtual machine opens",
            f"requests for devices of type {VFIO_TYPE} or {VGPU_TYPE} (classes {VFIO_TYPE}.{driver}, "
            f"{VGPU_TYPE}.{driver})",
        )
    elif isinstance(read, GpuConfig) and read.sharing != NO_SHARING and not types & _SHARED:
        parameters.at("sharing").warn(
            f"sharing does nothing here, or has the claim refused on its node: {got}, and each is had as a whole",
            f"requests for devices of type {GPU_TYPE}",
        )


def _types_of(part: Field, classes: Mapping[str, Any], driver: str) -> frozenset[str]:
    """Return the types of device that a request or alternative may get, as far as its class is known."""
    class_name = str(part.value.get("deviceClassName"))
    if class_name in classes:
        spec = Field(classes[class_name], (), part.report)
        return _left(part, _left(spec, TYPES, driver), driver)
    shipped = {f"{before}{driver}": kind for before, kind in SHIPPED_TYPES.items()}.get(class_name)
    return _left(part, TYPES if shipped is None else frozenset((shipped,)), driver)


def _left(holder: Field, types: Iterable[str], driver: str) -> frozenset[str]:
    """Return the types that the selectors of a class or request do not exclude."""
    found = (selector_in(one.at("cel", "expression").value) for one in holder.at("selectors").objects())
    selectors = [one for one in found if one is not None]
    return frozenset(each for each in types if not any(_turns_away(one, each, driver) for one in selectors))


def _turns_away(selector: Selector, device_type: str, driver: str) -> bool:
    """Whether no device of a type matches. A selector that reads other attributes has no answer here."""
    views = (
        DeviceView.of_names(driver, {"type": device_type}, allow_multiple_allocations=shared)
        for shared in (False, True)
    )
    return all(isinstance(selector.evaluate(view, HONEST_COST), NoMatch) for view in views)
