"""resource.k8s.io/v1 ResourceSlice."""

from __future__ import annotations

import pytest

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES_PER_DEVICE = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
    "ResourceSlice spec"
)
ONE_FORM = "must specify one of: `int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`"
TAINT = {"key": "example.com/held", "value": "true", "effect": "NoSchedule"}


def test_a_slice_comes_back_canonical(api, resource_slice):
    device = {
        "name": "gpu-0",
        "attributes": {"index": {"int": 0}, "mig": {"bool": False}, "none": {"string": ""}, "v": {"version": "1.2.3"}},
        "capacity": {"memory": {"value": "81920Mi"}},
        "taints": [TAINT],
    }
    made = api.create(SLICES, resource_slice([device]))
    assert made.code == 201
    (stored,) = made.body["spec"]["devices"]
    assert stored["attributes"] == device["attributes"]
    assert stored["capacity"] == {"memory": {"value": "80Gi"}}
    assert stored["taints"] == [TAINT | {"timeAdded": "2026-11-21T12:00:00Z"}], "the server says since when"


def test_a_device_named_without_time_gets_a_new_one_at_every_write(api, resource_slice, clock):
    api.create(SLICES, resource_slice([{"name": "gpu-0", "taints": [TAINT]}]))
    clock.advance(60)
    again = api.put(f"{SLICES}/slice", resource_slice([{"name": "gpu-0", "taints": [TAINT]}]))
    assert again.body["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-11-21T12:01:00Z"
    assert again.body["metadata"]["generation"] == 2


def test_list_attributes_are_behind_a_gate_and_dropped(api, resource_slice):
    reply = api.create(SLICES, resource_slice([{"name": "d", "attributes": {"x": {"ints": [1]}}}]))
    assert reply.causes == [("spec.devices[0].attributes[x]", f'Invalid value: "": {ONE_FORM}')]
    good = {"name": "d", "attributes": {"x": {"int": 1, "ints": [1]}}}
    assert api.create(SLICES, resource_slice([good])).body["spec"]["devices"][0]["attributes"] == {"x": {"int": 1}}


@pytest.mark.parametrize(
    ("devices", "field", "message"),
    [
        ([{"name": f"d{i}"} for i in range(129)], "", "Too many: 129: must have at most 128 items"),
        (
            [{"name": f"d{i}", "taints": [TAINT]} for i in range(65)],
            "",
            "Too many: 65: must have at most 64 items",
        ),
        (
            [{"name": "d", "attributes": {f"a{i}": {"int": 1} for i in range(33)}}],
            "[0]",
            "Invalid value: 33: the total number of attributes and capacities must not exceed 32",
        ),
        (
            [{"name": "d", "attributes": {"s": {"string": "ä" * 33}}}],
            "[0].attributes[s].string",
            "Too long: may not be more than 64 bytes",
        ),
        (
            [{"name": "d", "attributes": {"v": {"version": "535.104.05"}}}],
            "[0].attributes[v].version",
            'Invalid value: "535.104.05": must be a string compatible with semver.org spec 2.0.0',
        ),
        (
            [{"name": "d", "attributes": {"n": {}}}],
            "[0].attributes[n]",
            f'Invalid value: "": {ONE_FORM}',
        ),
        ([{"name": "d"}, {"name": "d"}], "[1]", 'Duplicate value: "d"'),
        (
            [{"name": "d", "attributes": {"x" * 33: {"int": 1}}}],
            "[0].attributes",
            "Too long: may not be more than 32 bytes",
        ),
        ([{"name": "d", "taints": [{"key": "k"}]}], "[0].taints[0].effect", "Required value"),
        (
            [{"name": "d", "taints": [{"key": "k", "effect": "Foo"}]}],
            "[0].taints[0].effect",
            'Unsupported value: "Foo": supported values: "NoExecute", "NoSchedule", "None"',
        ),
        (
            [{"name": "d", "taints": [TAINT | {"key": f"k{i}"} for i in range(17)]}],
            "[0].taints",
            "Too many: 17: must have at most 16 items",
        ),
        (
            [{"name": "d", "nodeName": "x"}],
            "[0]",
            f"Invalid value: null: {NODES_PER_DEVICE}",
        ),
        (
            [{"name": "d", "bindingConditions": ["a"]}],
            "[0].bindingFailureConditions",
            "Invalid value: null: bindingFailureConditions are required to use bindingConditions",
        ),
        (
            [{"name": "d", "consumesCounters": [{"counterSet": "s", "counters": {}}]}],
            "[0].consumesCounters[0].counters",
            "Required value",
        ),
        (
            [{"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}],
            "[0].capacity[m].requestPolicy",
            "Forbidden: allowMultipleAllocations must be true",
        ),
    ],
)
def test_devices_are_checked(api, resource_slice, devices, field, message):
    reply = api.create(SLICES, resource_slice(devices))
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert (f"spec.devices{field}", message) in reply.causes


_NODE_CHOICE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"nodeName": None}, "spec", f"Required value: {_NODE_CHOICE}"),
        (
            {"allNodes": True},
            "spec",
            f'Invalid value: "{{`nodeName`, `allNodes`}}": {_NODE_CHOICE}, but multiple fields are set',
        ),
        ({"nodeName": ""}, "spec.nodeName", 'Invalid value: "": must be either unset or set to a non-empty string'),
        (
            {"nodeName": None, "allNodes": False},
            "spec.allNodes",
            "Invalid value: false: must be either unset or set to true",
        ),
        ({"driver": ""}, "spec.driver", "Required value"),
        ({"driver": "x" * 64}, "spec.driver", "Too long: may not be more than 63 bytes"),
        (
            {"pool": {"name": "p", "generation": -1, "resourceSliceCount": 1}},
            "spec.pool.generation",
            "Invalid value: -1: must be greater than or equal to zero",
        ),
        (
            {"pool": {"name": "p", "generation": 1, "resourceSliceCount": 0}},
            "spec.pool.resourceSliceCount",
            "Invalid value: 0: must be greater than zero",
        ),
        (
            {"devices": [{"name": "d"}], "sharedCounters": [{"name": "c", "counters": {"x": {"value": "1"}}}]},
            "spec",
            'Invalid value: "": only one of `sharedCounters` or `devices` is allowed',
        ),
        (
            {"sharedCounters": [{"name": f"c{i}", "counters": {"x": {"value": "1"}}} for i in range(9)]},
            "spec.sharedCounters",
            "Too many: 9: must have at most 8 items",
        ),
    ],
)
def test_the_slice_itself_is_checked(api, resource_slice, spec, field, message):
    reply = api.create(SLICES, resource_slice(**spec))
    assert reply.code == 422
    assert (field, message) in reply.causes


def test_driver_pool_and_node_stay(api, resource_slice):
    api.create(SLICES, resource_slice())
    change = {"driver": "other.example.com", "nodeName": "node-b", "pool": {"name": "other"}}
    reply = api.patch(f"{SLICES}/slice", {"spec": change})
    assert [field for field, _ in reply.causes] == ["spec.pool.name", "spec.driver", "spec.nodeName"]


def test_upper_case_in_a_driver_name_is_warned_about(api, resource_slice):
    reply = api.create(SLICES, resource_slice(driver="GPU.example.com"))
    assert reply.code == 201
    assert "driver names should be lowercase" in reply.headers["warning"]


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"default": "3", "validRange": {"min": "2", "step": "2"}}, "validRange.step"),
        ({"default": "1", "validRange": {"min": "2"}}, "validRange.min"),
        ({"default": "2", "validRange": {"min": "2", "max": "20"}}, "validRange.max"),
        ({"default": "1", "validRange": {}}, "validRange.min"),
        ({"default": "1", "validValues": ["2", "1"]}, "validValues[1]"),
        ({"default": "3", "validValues": ["1", "2"]}, "validValues"),
        ({"default": "1", "validValues": ["1", "11"]}, "validValues[1]"),
        ({"validValues": ["1"]}, "default"),
    ],
)
def test_request_policies_are_checked(api, resource_slice, policy, field):
    capacity = {"m": {"value": "10", "requestPolicy": policy}}
    reply = api.create(SLICES, resource_slice([{"name": "d", "allowMultipleAllocations": True, "capacity": capacity}]))
    assert f"spec.devices[0].capacity[m].requestPolicy.{field}" in [name for name, _ in reply.causes]


def test_a_good_request_policy_is_kept(api, resource_slice):
    capacity = {
        "m": {"value": "10", "requestPolicy": {"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}}}
    }
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": capacity}
    assert api.create(SLICES, resource_slice([device])).body["spec"]["devices"] == [device]
