"""Validation of resource.k8s.io/v1 ResourceSlice."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from dracaena.api import limits
from dracaena.api.quantity import Quantity, read_quantity
from dracaena.demo.apiserver.fields import (
    IMMUTABLE,
    declared,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from dracaena.demo.apiserver.golang import internal
from dracaena.demo.apiserver.validation.claim_status import check_binding_conditions
from dracaena.demo.apiserver.validation.claims import (
    TAINT_EFFECTS,
    check_items,
    check_pool_name,
    check_qualified_name,
    check_unique,
)
from dracaena.demo.apiserver.validation.metadata import check_metadata, check_metadata_update
from dracaena.demo.apiserver.validation.selectors import check_node_selector
from dracaena.demo.apiserver.validation.text import (
    Errors,
    check,
    check_driver_name,
    check_label_key,
    dns_label,
    dns_subdomain,
    label_value,
)

Document = dict[str, Any]


_ATTRIBUTE_FORMS: Final = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_NUMBER: Final = r"(0|[1-9]\d*)"
_PRE_RELEASE: Final = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD: Final = r"[0-9a-zA-Z-]+"
_SEMVER: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII
)
_ONE_NODE_CHOICE: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONE_DEVICE_CHOICE: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to "
    "true in "
    "the ResourceSlice spec"
)


def check_slice(resource_slice: Document) -> Errors:
    """A new slice."""
    errors = check_metadata(resource_slice, namespaced=False, name_rule=dns_subdomain)
    return errors + _check_spec(resource_slice["spec"], None)


def check_slice_update(new: Document, old: Document) -> Errors:
    """An update of a slice: driver, pool name and node name stay."""
    return check_metadata_update(new, old) + _check_spec(new["spec"], old["spec"])


def _check_spec(spec: Document, old: Document | None) -> Errors:
    pool = spec["pool"]
    errors = check_driver_name("spec.driver", spec["driver"]) + check_pool_name(pool["name"], "spec.pool.name")
    if pool["resourceSliceCount"] <= 0:
        errors.append(invalid("spec.pool.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero"))
    if pool["generation"] < 0:
        errors.append(invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero"))
    if old is not None:
        if pool["name"] != old["pool"]["name"]:
            errors.append(invalid("spec.pool.name", pool["name"], IMMUTABLE))
        errors += [
            invalid(f"spec.{name}", spec.get(name), IMMUTABLE)
            for name in ("driver", "nodeName")
            if spec.get(name) != old.get(name)
        ]
    errors += _check_node_choice(spec)
    if spec.get("sharedCounters") and spec.get("devices"):
        errors.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    errors += _check_devices(spec, old)
    return errors + check_unique(
        spec.get("sharedCounters") or (),
        limits.SLICE_COUNTER_SETS,
        _check_counter_set,
        lambda one: one["name"],
        "spec.sharedCounters",
    )


def _check_node_choice(spec: Document) -> Errors:
    errors, chosen = _node_fields(spec, "spec", empty_name="must be either unset or set to a non-empty string")
    terms = spec.get("nodeSelector", {}).get("nodeSelectorTerms")
    if "nodeSelector" in spec and len(terms or ()) != 1:
        shown = [internal("NodeSelectorTerm", term) for term in terms or ()]
        errors.append(invalid("spec.nodeSelector.nodeSelectorTerms", shown, "must have exactly one node selector term"))
    if "perDeviceNodeSelection" in spec:
        if spec["perDeviceNodeSelection"]:
            chosen.append("`perDeviceNodeSelection`")
        else:
            errors.append(invalid("spec.perDeviceNodeSelection", False, "must be either unset or set to true"))
    if not chosen:
        errors.append(required("spec", _ONE_NODE_CHOICE))
    elif len(chosen) > 1:
        errors.append(invalid("spec", f"{{{', '.join(chosen)}}}", f"{_ONE_NODE_CHOICE}, but multiple fields are set"))
    return errors


def _node_fields(holder: Document, path: str, *, empty_name: str) -> tuple[Errors, list[str]]:
    """The checks of nodeName, nodeSelector and allNodes, and which of them are set."""
    errors: Errors = []
    chosen = []
    if "nodeName" in holder:
        if holder["nodeName"]:
            chosen.append("`nodeName`")
            errors += check(f"{path}.nodeName", holder["nodeName"], dns_subdomain)
        else:
            errors.append(invalid(f"{path}.nodeName", "", empty_name))
    if "nodeSelector" in holder:
        chosen.append("`nodeSelector`")
        errors += check_node_selector(holder["nodeSelector"], f"{path}.nodeSelector")
    if "allNodes" in holder:
        if holder["allNodes"]:
            chosen.append("`allNodes`")
        else:
            errors.append(invalid(f"{path}.allNodes", False, "must be either unset or set to true"))
    return errors, chosen


def _check_devices(spec: Document, old: Document | None) -> Errors:
    devices = spec.get("devices") or []
    advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    before = {device["name"]: device for device in (old or {}).get("devices") or ()}
    per_device = bool(spec.get("perDeviceNodeSelection"))

    def one(device: Document, path: str) -> Errors:
        return _check_device(device, before.get(device["name"]), path, per_device=per_device)

    limit = limits.SLICE_ADVANCED_DEVICES if advanced else limits.SLICE_DEVICES
    return check_unique(devices, limit, one, lambda device: device["name"], "spec.devices", is_declared=False)


def _check_device(device: Document, old: Document | None, path: str, *, per_device: bool) -> Errors:
    errors = check(f"{path}.name", device["name"], dns_label)
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    count = len(attributes) + len(capacity)
    if count > limits.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        errors.append(
            invalid(
                path,
                count,
                (
                    "the total number of attributes and capacities must not exceed "
                    f"{limits.DEVICE_ATTRIBUTES_AND_CAPACITIES}"
                ),
            )
        )
    if len(attributes) > limits.DEVICE_ATTRIBUTE_VALUES:
        errors.append(
            invalid(
                path,
                len(attributes),
                (f"the total number of attribute values must not exceed {limits.DEVICE_ATTRIBUTE_VALUES}"),
            )
        )
    for name, value in attributes.items():
        errors += check_qualified_name(name, f"{path}.attributes")
        errors += _check_attribute(value, f"{path}.attributes[{name}]")
    shared = bool(device.get("allowMultipleAllocations"))
    for name, value in capacity.items():
        found = check_qualified_name(name, f"{path}.capacity")
        found += _check_capacity(value, f"{path}.capacity[{name}]", shared=shared)
        if found and old is not None and _amounts(capacity) == _amounts(old.get("capacity") or {}):
            # 1.37 does not check unchanged parts again, even if `allowMultipleAllocations` next to them changed.
            found = [replace(error, newer=()) for error in found]
        errors += found
    taints = device.get("taints") or []
    if old is None or taints != (old.get("taints") or []):
        errors += check_items(taints, limits.DEVICE_TAINTS, _check_taint, f"{path}.taints", is_declared=False)
    errors += check_unique(
        device.get("consumesCounters") or (),
        limits.DEVICE_CONSUMPTIONS,
        _check_consumption,
        lambda one: one["counterSet"],
        f"{path}.consumesCounters",
    )
    return errors + _check_device_nodes(device, path, per_device=per_device) + check_binding_conditions(device, path)


def _check_attribute(value: Document, path: str) -> Errors:
    errors: Errors = []
    if "string" in value and len(value["string"].encode()) > limits.ATTRIBUTE_VALUE_BYTES:
        errors.append(too_long(f"{path}.string", limits.ATTRIBUTE_VALUE_BYTES))
    if "version" in value:
        if not _SEMVER.fullmatch(value["version"]):
            errors.append(
                invalid(f"{path}.version", value["version"], "must be a string compatible with semver.org spec 2.0.0")
            )
        if len(value["version"].encode()) > limits.ATTRIBUTE_VALUE_BYTES:
            errors.append(too_long(f"{path}.version", limits.ATTRIBUTE_VALUE_BYTES))
    if len(value) != 1:
        shown = internal("DeviceAttribute", value) if value else ""
        error = invalid(path, shown, "exactly one value must be specified")
        forms = ", ".join(f"`{form}`" for form in _ATTRIBUTE_FORMS)
        newer = (
            invalid(path, f"{{{', '.join(value)}}}", f"must specify exactly one of: {forms}")
            if value
            else invalid(path, "", f"must specify one of: {forms}")
        )
        errors += declared([error], [newer])
    return errors


def _check_taint(taint: Document, path: str) -> Errors:
    errors = check_label_key(f"{path}.key", taint["key"]) + check(f"{path}.value", taint.get("value", ""), label_value)
    if not taint["effect"]:
        return [*errors, *declared([required(f"{path}.effect")])]
    if taint["effect"] not in TAINT_EFFECTS:
        errors += declared([not_supported(f"{path}.effect", taint["effect"], TAINT_EFFECTS)])
    return errors


def _check_device_nodes(device: Document, path: str, *, per_device: bool) -> Errors:
    if not per_device:
        if any(name in device for name in ("nodeName", "nodeSelector", "allNodes")):
            return [
                invalid(
                    path,
                    None,
                    (
                        "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is "
                        "set to true in "
                        "the ResourceSlice spec"
                    ),
                )
            ]
        return []
    errors, chosen = _node_fields(device, path, empty_name="must not be empty")
    if not chosen:
        errors.append(required(path, _ONE_DEVICE_CHOICE))
    elif len(chosen) > 1:
        errors.append(invalid(path, f"{{{', '.join(chosen)}}}", _ONE_DEVICE_CHOICE))
    return errors


def _check_counter_set(counter_set: Document, path: str) -> Errors:
    name = counter_set["name"]
    errors = declared(check(f"{path}.name", name, dns_label) if name else [required(f"{path}.name")])
    return errors + _check_counters(counter_set.get("counters") or {}, f"{path}.counters", limits.COUNTER_SET_COUNTERS)


def _check_consumption(consumption: Document, path: str) -> Errors:
    name = consumption["counterSet"]
    errors = declared(check(f"{path}.counterSet", name, dns_label) if name else [required(f"{path}.counterSet")])
    return errors + _check_counters(consumption.get("counters") or {}, f"{path}.counters", limits.CONSUMPTION_COUNTERS)


def _check_counters(counters: Document, path: str, limit: int) -> Errors:
    if not counters:
        return declared([required(path)])
    if len(counters) > limit:
        return [too_many(path, len(counters), limit)]
    return declared(error for name in counters for error in check(path, name, dns_label))


# ---- consumable capacity


def _amounts(value: Any) -> Any:
    """Return a document with each quantity as its amount: `1Gi` and `1024Mi` are the same."""
    if isinstance(value, dict):
        return {key: _amounts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_amounts(each) for each in value]
    return read_quantity(value).quantity


def _check_capacity(capacity: Document, path: str, *, shared: bool) -> Errors:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    here = f"{path}.requestPolicy"
    if not shared:
        return [forbidden(here, "allowMultipleAllocations must be true")]
    whole = read_quantity(capacity["value"]).quantity
    values, span = policy.get("validValues"), policy.get("validRange")
    if values and span is not None:
        return [
            forbidden(
                here,
                ('exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'),
            )
        ]
    default = policy.get("default")
    for name, given, rule in (("validValues", values, _check_values), ("validRange", span, _check_range)):
        if given or (given is not None and name == "validRange"):
            if default is None:
                return [required(f"{here}.default", f"required when {name} is defined")]
            return rule(given, read_quantity(default).quantity, whole, f"{here}.{name}")
    return []


def _check_values(texts: Any, default: Quantity, whole: Quantity, path: str) -> Errors:
    values = [read_quantity(text).quantity for text in texts]
    errors = [
        invalid(f"{path}[{i + 1}]", texts[i + 1], "values must be sorted in ascending order")
        for i in range(len(values) - 1)
        if values[i] > values[i + 1]
    ]

    def one(value: Quantity, here: str) -> Errors:
        return [invalid(here, str(value), f"option is larger than capacity value: {whole}")] if value > whole else []

    errors += check_unique(
        values, limits.CAPACITY_VALID_VALUES, one, lambda value: str(value.whole()), path, is_declared=False
    )
    if default not in values or len(values) > limits.CAPACITY_VALID_VALUES:
        errors.append(invalid(path, str(default), "default value is not valid according to the requestPolicy"))
    return errors


def _check_range(span: Any, default: Quantity, whole: Quantity, path: str) -> Errors:
    if span.get("min") is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    low = read_quantity(span["min"]).quantity
    rules: list[tuple[bool, str, Quantity, str]] = [
        (low > whole, "min", low, f"min is larger than capacity value: {whole}"),
        (default < low, "min", default, f"default is less than min: {low}"),
    ]
    high = read_quantity(span["max"]).quantity if "max" in span else None
    if high is not None:
        rules += [
            (low > high, "max", low, f"min is larger than max: {high}"),
            (high > whole, "max", high, f"max is larger than capacity value: {whole}"),
            (default > high, "max", default, f"default is more than max: {high}"),
        ]
    errors = [invalid(f"{path}.{name}", str(value), text) for broken, name, value, text in rules if broken]
    if "step" in span:
        errors += _check_step(read_quantity(span["step"]).quantity, low, [default, high], whole, f"{path}.step")
    return errors


def _check_step(step: Quantity, low: Quantity, points: list[Quantity | None], whole: Quantity, path: str) -> Errors:
    first = Quantity(low.nano + step.nano, low.notation)
    errors = (
        [invalid(path, str(step), f"one step {first} is larger than capacity value: {whole}")] if first > whole else []
    )
    if step.whole() == 0:
        # kube-apiserver divides by the step; a zero never gets past its own decoding of a sensible object.
        return [*errors, invalid(path, str(step), "must be greater than zero")]
    return errors + [
        invalid(path, str(point), f"value is not a multiple of a given step ({step}) from ({low})")
        for point in points
        if point is not None and (point.whole() - low.whole()) % step.whole()
    ]
