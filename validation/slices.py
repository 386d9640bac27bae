"""Checks ResourceSlices of resource.k8s.io/v1."""

from __future__ import annotations

from dracaena.api import limits
from dracaena.validation.field import Field, Fields, check_distinct
from dracaena.validation.findings import Breach
from dracaena.validation.metadata import check_metadata
from dracaena.validation.nodes import check_node_selector
from dracaena.validation.slice_devices import check_counters, check_device
from dracaena.validation.syntax import DNS_LABEL, DNS_SUBDOMAIN, DRIVER_NAME, FULLY_QUALIFIED_NAME, POOL_NAME

_SPEC = (
    "driver",
    "pool",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "perDeviceNodeSelection",
    "devices",
    "sharedCounters",
    "partitionTypeAttribute",
    "skipNodeOperations",
)
_OPERATIONS = ("NodePrepareResources", "NodeUnprepareResources", "*")
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_LISTS = ("bools", "ints", "strings", "versions")


def check_slice(field: Field) -> None:
    """Check a ResourceSlice."""
    resource_slice = field.fields("apiVersion", "kind", "metadata", "spec")
    if resource_slice is None:
        return
    check_metadata(resource_slice["metadata"], namespaced=False)
    check_slice_spec(resource_slice["spec"])


def check_slice_spec(field: Field) -> None:
    """Check the spec of a slice."""
    spec = field.fields(*_SPEC)
    if spec is None:
        return
    spec["driver"].name(DRIVER_NAME, missing=Breach.REQUIRED)
    _check_pool(spec["pool"])
    _check_nodes(field, spec)
    devices, counters = spec["devices"], spec["sharedCounters"]
    if not devices.absent and not counters.absent:
        field.error("both devices and sharedCounters", "a slice of its own for counters")
    _check_devices(devices, per_device_nodes=spec["perDeviceNodeSelection"].value is True)
    _check_counter_sets(counters)
    _check_partition_type(spec["partitionTypeAttribute"], devices)
    _check_skipped_operations(spec["skipNodeOperations"])


def _check_partition_type(field: Field, devices: Field) -> None:
    if field.absent:
        return
    field.warn("unknown to 1.36, and dropped by 1.37 where DRAPartitionableDevicesType is off (it is)", "nothing")
    field.name(FULLY_QUALIFIED_NAME)
    published = devices.value if isinstance(devices.value, list) else []
    if not any(isinstance(device, dict) and device.get("consumesCounters") for device in published):
        field.error("no device of the slice consumes counters", "a slice of partitions, or no such attribute")


def _check_skipped_operations(field: Field) -> None:
    operations = field.items()
    if field.absent or operations is None:
        return
    field.warn("unknown to 1.36, and dropped by 1.37 where DRAOptionalNodeOperations is off (it is)", "a node plugin")
    for operation in operations:
        operation.choice(_OPERATIONS)
    check_distinct(operations, None, "named twice", "each operation once")


def _check_pool(field: Field) -> None:
    pool = field.fields("name", "generation", "resourceSliceCount")
    if pool is None:
        return
    pool["name"].name(POOL_NAME, missing=Breach.REQUIRED)
    generation, count = pool["generation"].whole_number(), pool["resourceSliceCount"].whole_number()
    if generation is not None and generation < 0:
        pool["generation"].error("negative", "0 or more")
    if count is not None and count <= 0:
        pool["resourceSliceCount"].error("not positive", "the number of slices of the pool, this one included")


def _check_nodes(field: Field, spec: Fields) -> None:
    given = [name for name in _NODES if spec[name].value not in (None, "", False)]
    if not spec["nodeName"].absent:
        spec["nodeName"].name(DNS_SUBDOMAIN)
    check_node_selector(spec["nodeSelector"], most_terms=1)
    for name in ("allNodes", "perDeviceNodeSelection"):
        if spec[name].boolean() is False and not spec[name].absent:
            spec[name].error("false", "true, or nothing")
    if len(given) != 1:
        breach = Breach.INVALID if given else Breach.REQUIRED
        field.error(", ".join(given) or "no nodes", f"exactly one of {', '.join(_NODES)}", breach=breach)


def _check_devices(field: Field, *, per_device_nodes: bool) -> None:
    most = limits.SLICE_ADVANCED_DEVICES if _is_advanced(field.value) else limits.SLICE_DEVICES
    devices = field.items(most)
    if devices is None:
        return
    for device in devices:
        check_device(device, per_device_nodes=per_device_nodes)
    check_distinct(devices, "name", "a second device of this name", "a name for each device of the slice")


def _is_advanced(devices: object) -> bool:
    return any(
        isinstance(device, dict) and (device.get("taints") or device.get("consumesCounters") or _has_list(device))
        for device in (devices if isinstance(devices, list) else ())
    )


def _has_list(device: dict[str, object]) -> bool:
    attributes = device.get("attributes")
    return isinstance(attributes, dict) and any(
        isinstance(attribute, dict) and any(attribute.get(kind) is not None for kind in _LISTS)
        for attribute in attributes.values()
    )


def _check_counter_sets(field: Field) -> None:
    sets = field.items(limits.SLICE_COUNTER_SETS)
    if sets is None:
        return
    for entry in sets:
        fields = entry.fields("name", "counters")
        if fields is not None:
            fields["name"].name(DNS_LABEL, missing=Breach.REQUIRED)
            check_counters(fields["counters"], limits.COUNTER_SET_COUNTERS)
    check_distinct(sets, "name", "a second set of this name", "a name for each set of the slice")
