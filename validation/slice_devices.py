"""Checks the devices of a ResourceSlice: attributes, capacities, taints, counters, nodes."""

from __future__ import annotations

from dracaena.api import limits
from dracaena.validation.capacities import check_capacity
from dracaena.validation.field import Field, Fields, check_distinct
from dracaena.validation.findings import Breach
from dracaena.validation.nodes import check_node_selector
from dracaena.validation.quantities import check_quantity
from dracaena.validation.syntax import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    LABEL_KEY,
    QUALIFIED_NAME,
    SEMVER,
)
from dracaena.validation.taints import check_taint

_DEVICE = (
    "name",
    "attributes",
    "capacity",
    "consumesCounters",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "taints",
    "bindsToNode",
    "bindingConditions",
    "bindingFailureConditions",
    "allowMultipleAllocations",
    "nodeAllocatableResourceMappings",
    "nodeAllocatableResources",
)
_NODES = ("nodeName", "nodeSelector", "allNodes")
_SCALARS = ("int", "bool", "string", "version")
_LISTS = ("ints", "bools", "strings", "versions")


def check_device(field: Field, *, per_device_nodes: bool) -> None:
    """Check one device; `per_device_nodes` is whether the slice leaves the choice of nodes to its devices."""
    device = field.fields(*_DEVICE)
    if device is None:
        return
    device["name"].name(DNS_LABEL)
    shared = device["allowMultipleAllocations"].boolean() is True
    _check_attributes(field, device)
    for name, capacity in (device["capacity"].entries() or {}).items():
        _check_key(name, capacity)
        check_capacity(capacity, shared=shared)
    for taint in device["taints"].items(limits.DEVICE_TAINTS) or ():
        check_taint(taint)
    _check_consumption(device["consumesCounters"])
    _check_nodes(field, device, per_device_nodes=per_device_nodes)
    device["bindsToNode"].boolean()
    check_binding_conditions(device["bindingConditions"], device["bindingFailureConditions"])
    _check_mappings(device["nodeAllocatableResourceMappings"], device["capacity"].value)
    _check_node_resources(device["nodeAllocatableResources"], device["capacity"].value)


def check_counters(field: Field, most: int) -> None:
    """Check the counters of one set: a map that is not empty, of at most so many."""
    if not field.required("counters with their values"):
        return
    entries = field.entries()
    if entries is None:
        return
    if len(entries) > most:
        field.error(f"{len(entries)} counters", f"at most {most}", breach=Breach.TOO_MANY)
        return
    for name, counter in entries.items():
        counter.check_form(name, DNS_LABEL, is_of_key=True)
        value = counter.fields("value")
        if value is not None:
            check_quantity(value["value"])


def _check_key(name: str, field: Field) -> None:
    if name.count("/") > 1:
        field.warn("more than one '/' in the key, no selector can name it", QUALIFIED_NAME.expected)
    else:
        field.check_form(name, QUALIFIED_NAME, is_of_key=True)


def _check_attributes(field: Field, device: Fields) -> None:
    attributes = device["attributes"].entries() or {}
    capacities = device["capacity"].value
    entries = len(attributes) + (len(capacities) if isinstance(capacities, dict) else 0)
    if entries > limits.DEVICE_ATTRIBUTES_AND_CAPACITIES:
        field.error(f"{entries} attributes and capacities", f"at most {limits.DEVICE_ATTRIBUTES_AND_CAPACITIES}")
    values = 0
    for name, attribute in attributes.items():
        _check_key(name, attribute)
        values += _check_attribute(attribute)
    if values > limits.DEVICE_ATTRIBUTE_VALUES:
        field.error(f"{values} values of attributes", f"at most {limits.DEVICE_ATTRIBUTE_VALUES}")


def _check_attribute(field: Field) -> int:
    """Check one attribute; return how many values it counts for."""
    attribute = field.fields(*_SCALARS, *_LISTS)
    if attribute is None:
        return 1
    given = [kind for kind in (*_SCALARS, *_LISTS) if not attribute[kind].absent]
    if len(given) != 1:
        field.error(", ".join(given) or "no value", f"exactly one of {', '.join((*_SCALARS, *_LISTS))}")
    count = 0
    for kind in given:
        if kind in _SCALARS:
            _check_value(attribute[kind], kind)
            continue
        items = attribute[kind].items()
        attribute[kind].warn(
            "dropped by servers whose gate DRAListTypeAttributes is off (it is in 1.36 and 1.37)", "one value"
        )
        if items == []:
            attribute[kind].error("an empty list", "a value, or no list")
        for item in items or ():
            _check_value(item, kind[:-1])
            count += 1
    return max(count, 1)


def _check_value(field: Field, kind: str) -> None:
    if kind == "int":
        field.whole_number()
    elif kind == "bool":
        field.boolean()
    elif kind == "version":
        field.name(SEMVER)
    else:
        text = field.text()
        if text is not None and (size := len(text.encode("utf-8", "replace"))) > limits.ATTRIBUTE_VALUE_BYTES:
            field.error(f"a text of {size} bytes", f"at most {limits.ATTRIBUTE_VALUE_BYTES}", breach=Breach.TOO_LONG)


def _check_consumption(field: Field) -> None:
    entries = field.items(limits.DEVICE_CONSUMPTIONS)
    if entries is None:
        return
    for entry in entries:
        fields = entry.fields("counterSet", "counters", "compatibilityGroups")
        if fields is not None:
            fields["counterSet"].name(DNS_LABEL, missing=Breach.REQUIRED)
            check_counters(fields["counters"], limits.CONSUMPTION_COUNTERS)
            _check_groups(fields["compatibilityGroups"])
    check_distinct(entries, "counterSet", "a second entry for this set", "one entry for each set")


def _check_nodes(field: Field, device: Fields, *, per_device_nodes: bool) -> None:
    present = [name for name in _NODES if not device[name].absent]
    if not per_device_nodes:
        if present:
            field.error(", ".join(present), "perDeviceNodeSelection: true in the slice, or no nodes of a device")
        return
    if not device["nodeName"].absent:
        device["nodeName"].name(DNS_SUBDOMAIN)
    check_node_selector(device["nodeSelector"])
    if device["allNodes"].boolean() is False and not device["allNodes"].absent:
        device["allNodes"].error("false", "true, or nothing")
    given = [name for name in present if device[name].value not in ("", False)]
    if len(given) != 1:
        breach = Breach.INVALID if given else Breach.REQUIRED
        field.error(", ".join(given) or "no nodes", f"exactly one of {', '.join(_NODES)}", breach=breach)


def check_binding_conditions(conditions: Field, failures: Field) -> None:
    """Check `bindingConditions` and `bindingFailureConditions`: both or none, few, no condition in both."""
    listed = [field.items(limits.BINDING_CONDITIONS) for field in (conditions, failures)]
    for items in listed:
        for item in items or ():
            item.name(LABEL_KEY)
        check_distinct(items or [], None, "named twice", "each condition once")
    wanted, failing = listed
    if wanted is None or failing is None:
        return
    names = {item.value for item in wanted if isinstance(item.value, str)}
    for item in failing:
        if isinstance(item.value, str) and item.value in names:
            item.error("also a binding condition", "a condition in one of the two lists")
    if bool(wanted) != bool(failing):
        absent = failures if wanted else conditions
        absent.error("missing", "bindingConditions and bindingFailureConditions together")


def _check_groups(field: Field) -> None:
    groups = field.items(limits.COMPATIBILITY_GROUPS)
    if field.absent or groups is None:
        return
    field.warn("unknown to 1.36, and dropped by 1.37 where DRADeviceCompatibilityGroups is off (it is)", "no groups")
    for group in groups:
        group.name(DNS_LABEL)
    check_distinct(groups, None, "named twice", "each group once")


def _check_mappings(field: Field, capacities: object) -> None:
    if not field.absent:
        field.warn("of 1.36 alone, which drops it where its gate is off (it is)", "nodeAllocatableResources, of 1.37")
    for name, mapping in (field.entries() or {}).items():
        _check_resource_name(name, mapping)
        fields = mapping.fields("capacityKey", "allocationMultiplier")
        if fields is not None:
            _check_multiplier(fields["allocationMultiplier"])
            _check_capacity_key(fields["capacityKey"], capacities)


def _check_node_resources(field: Field, capacities: object) -> None:
    if not field.absent:
        field.warn("unknown to 1.36, and dropped by 1.37 where DRANodeAllocatableResources is off (it is)", "nothing")
    for name, resource in (field.entries() or {}).items():
        _check_resource_name(name, resource)
        fields = resource.fields("mapping", "overhead")
        mapping = fields and fields["mapping"].fields("capacityKey", "capacityMultiplier", "deviceMultiplier")
        overhead = fields and fields["overhead"].fields("perPod", "perContainer")
        if mapping:
            _check_capacity_key(mapping["capacityKey"], capacities)
            for multiplier in ("capacityMultiplier", "deviceMultiplier"):
                _check_multiplier(mapping[multiplier])
        for part in ("perPod", "perContainer") if overhead else ():
            assert overhead is not None
            check_quantity(overhead[part])


def _check_resource_name(name: str, field: Field) -> None:
    if "/" in name and "kubernetes.io/" not in name:
        field.error("the key is not a resource of nodes", "cpu, memory or the like")


def _check_multiplier(field: Field) -> None:
    amount = check_quantity(field)
    if not field.absent and amount is not None and amount.nano <= 0:
        field.error("not positive", "a multiplier above 0")


def _check_capacity_key(field: Field, capacities: object) -> None:
    text = field.text()
    if not field.absent and text is not None and not (isinstance(capacities, dict) and text in capacities):
        field.error("no capacity of this device", "the key of one")
