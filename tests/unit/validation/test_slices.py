"""ResourceSlices. Each rule has what just passes and what breaks it; limits are those of kube-apiserver 1.36."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_documents import ABSENT, counter_slice, edited, errors, node_slice, resource_slice, warnings

DEVICE = "spec.devices[0]"
RANGE = "spec.devices[1].capacity.bandwidth.requestPolicy"
VALUES = "spec.devices[1].capacity.memory.requestPolicy"


def devices(count: int, **fields: Any) -> list[Any]:
    return [{"name": f"d{index}"} for index in range(count - 1)] + [{"name": "last", **fields}]


def attributes(count: int) -> dict[str, Any]:
    return {f"a{index}": {"int": index} for index in range(count)}


def counters(count: int) -> dict[str, Any]:
    return {f"c{index}": {"value": "1"} for index in range(count)}


TAINT = {"key": "k", "effect": "NoSchedule"}
CONSUMED = {"counterSet": "slots", "counters": counters(1)}

GOOD = [
    ("spec.devices", devices(128)),
    ("spec.devices", devices(64, taints=[TAINT])),
    ("spec.devices", []),
    ("spec.driver", "x" * 63),
    ("spec.nodeName", "node.example.com"),
    ("spec.pool.name", "a/b.c/" + "x" * 247),
    ("spec.pool.generation", 0),
    (f"{DEVICE}.name", "x" * 63),
    (f"{DEVICE}.attributes", attributes(31)),
    (f"{DEVICE}.attributes.model.string", "é" * 32),
    (f"{DEVICE}.attributes.model.string", ""),
    (f"{DEVICE}.attributes.driverVersion.version", "1.0.0-alpha.1+build.5"),
    (f"{DEVICE}.attributes.index.int", -(2**63)),
    (f"{DEVICE}.taints", [TAINT] * 16),
    (f"{DEVICE}.taints[0].effect", "None"),
    (f"{DEVICE}.taints[0].timeAdded", "2026-01-31T12:00:00.5+01:00"),
    (f"{DEVICE}.consumesCounters", [CONSUMED, {**CONSUMED, "counterSet": "other"}]),
    (f"{DEVICE}.consumesCounters[0].counters", counters(32)),
    (f"{DEVICE}.bindingConditions", ["a", "b", "c", "d"]),
    (f"{RANGE}.validRange.max", ABSENT),
    (f"{RANGE}.validRange.step", ABSENT),
    (f"{RANGE}.default", "9"),
    (f"{VALUES}.validValues", ["2Gi"]),
    (VALUES, {"default": "5"}),
    (VALUES, None),
    ("metadata.name", "a.b"),
]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_the_server_takes_has_no_error(path: str, value: Any) -> None:
    assert errors(edited(resource_slice(), path, value)) == []


BAD = [
    ("spec.devices", devices(129), "spec.devices: too many entries: a list of 129, expected at most 128"),
    ("spec.devices", devices(65, taints=[TAINT]), "spec.devices: too many entries: a list of 65, expected at most 64"),
    ("spec.devices", devices(65, consumesCounters=[CONSUMED]), "expected at most 64"),
    ("spec.devices", devices(65, attributes={"a": {"ints": [1]}}), "expected at most 64"),
    ("spec.driver", ABSENT, "spec.driver: missing"),
    ("spec.driver", "x" * 64, "spec.driver: too long"),
    ("spec.pool", ABSENT, "spec.pool.name: missing"),
    ("spec.pool.name", "a//b", "spec.pool.name: not a pool name"),
    ("spec.pool.name", "x" * 254, "spec.pool.name: not a pool name"),
    ("spec.pool.generation", -1, "spec.pool.generation: negative"),
    ("spec.pool.resourceSliceCount", 0, "spec.pool.resourceSliceCount: not positive"),
    ("spec.nodeName", ABSENT, "spec: no nodes: an object, expected exactly one of nodeName"),
    ("spec.nodeName", "", "spec.nodeName: missing"),
    ("spec.nodeName", "a_b", "spec.nodeName: not a DNS name"),
    ("spec.allNodes", True, "spec: nodeName, allNodes: an object, expected exactly one of"),
    ("spec.allNodes", False, "spec.allNodes: false"),
    ("spec.perDeviceNodeSelection", False, "spec.perDeviceNodeSelection: false"),
    ("spec.sharedCounters", [], "spec: both devices and sharedCounters"),
    ("spec.skipNodeOperations", ["All"], 'spec.skipNodeOperations[0]: unknown value: "All", expected one of Node'),
    ("spec.skipNodeOperations", ["*", "*"], "spec.skipNodeOperations[1]: named twice"),
    ("spec.partitionTypeAttribute", "nodomain", "spec.partitionTypeAttribute: not a fully qualified name"),
    ("spec.tiers", [], "spec.tiers: unknown field"),
    ("status", {}, "status: unknown field"),
    (f"{DEVICE}.basic", {}, f"{DEVICE}.basic: unknown field"),
    (f"{DEVICE}.name", "gpu-1", "spec.devices[1]: a second device of this name"),
    (f"{DEVICE}.name", "GPU", f"{DEVICE}.name: not a DNS label"),
    (f"{DEVICE}.attributes", attributes(32), f"{DEVICE}: 33 attributes and capacities"),
    (f"{DEVICE}.attributes", {"a": {"ints": list(range(49))}}, f"{DEVICE}: 49 values of attributes"),
    (f"{DEVICE}.attributes", {"1a": {"int": 1}}, f'{DEVICE}.attributes["1a"]: the key is not a qualified name'),
    (f"{DEVICE}.attributes.index", {}, f"{DEVICE}.attributes.index: no value"),
    (f"{DEVICE}.attributes.index.bool", True, f"{DEVICE}.attributes.index: int, bool"),
    (f"{DEVICE}.attributes.index.int", 1.5, f"{DEVICE}.attributes.index.int: wrong type"),
    (f"{DEVICE}.attributes.model.string", "é" * 32 + "x", f"{DEVICE}.attributes.model.string: a text of 65 bytes"),
    (f"{DEVICE}.attributes.driverVersion.version", "535.104.05", ".version: not a semantic version"),
    (f"{DEVICE}.attributes.driverVersion.version", "1.2.3-" + "x" * 59, ".version: too long"),
    (f"{DEVICE}.attributes", {"a": {"strings": []}}, f"{DEVICE}.attributes.a.strings: an empty list"),
    (f"{DEVICE}.capacity.memory.value", "80 GB", f"{DEVICE}.capacity.memory.value: not a quantity"),
    (f"{DEVICE}.capacity.memory.requestPolicy", {}, "requestPolicy: a request policy of a device that is not shared"),
    (f"{DEVICE}.taints", [TAINT] * 17, f"{DEVICE}.taints: too many entries"),
    (f"{DEVICE}.taints[0].key", "", f"{DEVICE}.taints[0].key: missing"),
    (f"{DEVICE}.taints[0].effect", ABSENT, f"{DEVICE}.taints[0].effect: unknown value"),
    (f"{DEVICE}.taints[0].value", "-", f"{DEVICE}.taints[0].value: not a label value"),
    (f"{DEVICE}.taints[0].timeAdded", "yesterday", f"{DEVICE}.taints[0].timeAdded: not a time"),
    (f"{DEVICE}.taints[0].timeAdded", "2026-01-31T12:00:00", f"{DEVICE}.taints[0].timeAdded: not a time"),
    (f"{DEVICE}.consumesCounters", [CONSUMED] * 3, f"{DEVICE}.consumesCounters: too many entries"),
    (f"{DEVICE}.consumesCounters", [CONSUMED] * 2, f"{DEVICE}.consumesCounters[1]: a second entry for this set"),
    (f"{DEVICE}.consumesCounters[0].counters", {}, "counters: missing"),
    (f"{DEVICE}.consumesCounters[0].counters", counters(33), "counters: 33 counters"),
    (f"{DEVICE}.consumesCounters[0].counters", {"a_b": {"value": 1}}, "the key is not a DNS label"),
    (f"{DEVICE}.bindingConditions", [*"abcde"], f"{DEVICE}.bindingConditions: too many entries"),
    (f"{DEVICE}.bindingConditions", [], f"{DEVICE}.bindingConditions: missing"),
    (f"{DEVICE}.bindingFailureConditions", ABSENT, f"{DEVICE}.bindingFailureConditions: missing"),
    (f"{DEVICE}.bindingFailureConditions", ["Ready"], "bindingFailureConditions[0]: also a binding condition"),
    (f"{DEVICE}.bindingConditions", ["a", "a"], f"{DEVICE}.bindingConditions[1]: named twice"),
    (f"{DEVICE}.nodeName", "node-1", f"{DEVICE}: nodeName"),
    (f"{DEVICE}.nodeAllocatableResourceMappings", {"a.b/c": {"allocationMultiplier": 1}}, "the key is not a resource"),
    (f"{DEVICE}.nodeAllocatableResourceMappings", {"cpu": {"capacityKey": "cores"}}, "no capacity of this device"),
    (f"{DEVICE}.nodeAllocatableResourceMappings", {"cpu": {"allocationMultiplier": "0"}}, "not positive"),
    (f"{DEVICE}.nodeAllocatableResources", {"a.b/c": {}}, "the key is not a resource"),
    (
        f"{DEVICE}.nodeAllocatableResources",
        {"cpu": {"mapping": {"capacityKey": "cores"}}},
        "no capacity of this device",
    ),
    (f"{DEVICE}.nodeAllocatableResources", {"cpu": {"mapping": {"deviceMultiplier": "0"}}}, "not positive"),
    (f"{DEVICE}.nodeAllocatableResources", {"cpu": {"overhead": {"perPod": "x"}}}, "perPod: not a quantity"),
    (f"{DEVICE}.nodeAllocatableResources", {"cpu": {"share": 1}}, "cpu.share: unknown field"),
    (f"{RANGE}.validValues", ["1"], f"{RANGE}: both validValues and validRange"),
    (f"{RANGE}.default", ABSENT, f"{RANGE}.default: missing"),
    (f"{RANGE}.default", "10", f"{RANGE}.validRange.max: less than the default"),
    (f"{RANGE}.default", "2", f"{RANGE}.validRange.step: default or max is not whole steps above min"),
    (f"{RANGE}.validRange.min", ABSENT, f"{RANGE}.validRange.min: missing"),
    (f"{RANGE}.validRange.min", "11", f"{RANGE}.validRange.max: less than the minimum"),
    (f"{RANGE}.validRange.max", "11", f"{RANGE}.validRange.max: more than the capacity"),
    (f"{RANGE}.validRange.step", "10", f"{RANGE}.validRange.step: one step is more than the capacity"),
    (f"{RANGE}.validRange.step", "0", f"{RANGE}.validRange.step: not positive"),
    (f"{VALUES}.default", "3Gi", f"{VALUES}.validValues: the default is not among them"),
    (f"{VALUES}.validValues", ["2Gi", "1Gi"], f"{VALUES}.validValues[1]: less than the value before it"),
    (f"{VALUES}.validValues", ["2Gi", "2048Mi"], f"{VALUES}.validValues[1]: a value for the second time"),
    (f"{VALUES}.validValues", ["2Gi", "11Gi"], f"{VALUES}.validValues[1]: more than the capacity"),
    (f"{VALUES}.validValues", [f"{n}" for n in range(11)], f"{VALUES}.validValues: too many entries"),
    (f"{VALUES}.validValues", "2Gi", f"{VALUES}.validValues: wrong type"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_what_the_server_refuses_is_an_error_with_its_place(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(resource_slice(), path, value)))


BAD_COUNTERS = [
    ("spec.sharedCounters", [{"name": f"s{n}", "counters": counters(1)} for n in range(9)], "too many entries"),
    ("spec.sharedCounters[1]", {"name": "slots", "counters": counters(1)}, "[1]: a second set of this name"),
    ("spec.sharedCounters[0].name", "", "spec.sharedCounters[0].name: missing"),
    ("spec.sharedCounters[0].counters", counters(33), "33 counters"),
    ("spec.sharedCounters[0].counters", ABSENT, "spec.sharedCounters[0].counters: missing"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD_COUNTERS)
def test_shared_counters_have_their_limits(path: str, value: Any, found: str) -> None:
    assert errors(counter_slice()) == []
    assert any(found in error for error in errors(edited(counter_slice(), path, value)))


TERM = "spec.devices[2].nodeSelector.nodeSelectorTerms[0]"
BAD_NODES = [
    ("spec.devices[0].allNodes", ABSENT, "spec.devices[0]: no nodes"),
    ("spec.devices[0].allNodes", False, "spec.devices[0].allNodes: false"),
    ("spec.devices[0].nodeName", "n", "spec.devices[0]: nodeName, allNodes"),
    ("spec.devices[1].nodeName", "", "spec.devices[1].nodeName: missing"),
    ("spec.devices[2].nodeSelector.nodeSelectorTerms", [], "nodeSelectorTerms: missing"),
    (f"{TERM}.matchExpressions[0].values", [], "values: missing: [], expected values for operator In"),
    (f"{TERM}.matchExpressions[0].values", ["-"], "values[0]: not a label value"),
    (f"{TERM}.matchExpressions[1].values", ["a"], "values beside operator Exists"),
    (f"{TERM}.matchExpressions[2].values", ["1", "2"], "2 values: a list of 2, expected one value for operator Gt"),
    (f"{TERM}.matchExpressions[0].operator", "Is", "operator: unknown value"),
    (f"{TERM}.matchExpressions[0].key", "", "key: missing"),
    (f"{TERM}.matchFields[0].key", "metadata.uid", "key: unknown value"),
    (f"{TERM}.matchFields[0].operator", "Exists", "operator: unknown value"),
    (f"{TERM}.matchFields[0].values", [], "0 values: [], expected the name of one node"),
    (f"{TERM}.matchFields[0].values", ["a_b"], "values[0]: not a DNS name"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD_NODES)
def test_nodes_of_devices_have_their_rules(path: str, value: Any, found: str) -> None:
    assert errors(node_slice()) == []
    assert any(found in error for error in errors(edited(node_slice(), path, value)))


def test_a_node_selector_of_a_slice_has_exactly_one_term() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    document = edited(resource_slice(), "spec.nodeName", ABSENT)
    assert errors(edited(document, "spec.nodeSelector", {"nodeSelectorTerms": [term]})) == []
    (error,) = errors(edited(document, "spec.nodeSelector", {"nodeSelectorTerms": [term, term]}))
    assert error.startswith("spec.nodeSelector.nodeSelectorTerms: too many terms")


def test_a_list_is_warned_of_because_servers_drop_it() -> None:
    (warning,) = warnings(edited(resource_slice(), f"{DEVICE}.attributes", {"a": {"ints": [1, 2]}}))
    assert warning.startswith(f"{DEVICE}.attributes.a.ints: dropped by servers whose gate")


def test_what_we_publish_is_valid() -> None:
    import msgspec

    from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
    from dracaena.kubelet_plugin.device_kinds.allocatable import slice_specs

    for name in machine_names():
        for spec in slice_specs(read_machine(name), driver="gpu.dracaena.dev", node_name="node-1", tainted=True):
            document = {**resource_slice(), "spec": msgspec.to_builtins(spec)}
            assert errors(document) + warnings(document) == []


def test_the_attribute_of_a_partitions_type_needs_devices_that_consume_counters() -> None:
    """kube-apiserver 1.37 refuses it elsewhere (seen with DRAPartitionableDevicesType on)."""
    partitions = edited(resource_slice(), "spec.partitionTypeAttribute", "gpu.example.com/profile")
    assert errors(partitions) == []
    whole = edited(partitions, "spec.devices", devices(2))
    (found,) = errors(whole)
    assert found.startswith("spec.partitionTypeAttribute: no device of the slice consumes counters")
