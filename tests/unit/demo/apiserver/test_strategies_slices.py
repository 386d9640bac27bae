"""resource.k8s.io/v1 ResourceSlice."""

from __future__ import annotations

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
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


def test_a_slice_is_refused_by_the_rules_of_the_product(api, resource_slice):
    reply = api.create(SLICES, resource_slice([{"name": "d"}, {"name": "d"}], driver="", allNodes=True))
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert reply.mistakes == {
        ("spec", "FieldValueInvalid"),
        ("spec.driver", "FieldValueRequired"),
        ("spec.devices[1]", "FieldValueDuplicate"),
    }


def test_driver_pool_and_node_stay(api, resource_slice):
    api.create(SLICES, resource_slice())
    change = {"driver": "other.example.com", "nodeName": "node-b", "pool": {"name": "other"}}
    reply = api.patch(f"{SLICES}/slice", {"spec": change})
    assert [field for field, _ in reply.causes] == ["spec.pool.name", "spec.driver", "spec.nodeName"]


def test_upper_case_in_a_driver_name_is_warned_about(api, resource_slice):
    reply = api.create(SLICES, resource_slice(driver="GPU.example.com"))
    assert reply.code == 201
    assert "driver names should be lowercase" in reply.headers["warning"]


def test_a_good_request_policy_is_kept(api, resource_slice):
    capacity = {
        "m": {"value": "10", "requestPolicy": {"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}}}
    }
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": capacity}
    assert api.create(SLICES, resource_slice([device])).body["spec"]["devices"] == [device]
