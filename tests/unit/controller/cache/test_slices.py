from __future__ import annotations

import msgspec

from dracaena.api.resource_objects import DeviceAttribute, ResourceSlice
from dracaena.controller.cache.slices import with_shared_values
from support.allocation import pool_slice
from support.clusters import SWITCHED


def watched(name: str) -> ResourceSlice:
    return msgspec.json.decode(msgspec.json.encode(pool_slice(name, SWITCHED)), type=ResourceSlice)


def test_equal_parts_of_two_slices_are_one_object_and_the_slices_say_what_they_said() -> None:
    first, second = watched("a"), watched("b")
    shared = with_shared_values(first), with_shared_values(second)
    assert shared == (first, second)
    for one, other in zip(shared[0].spec.devices, shared[1].spec.devices, strict=True):
        assert one.taints is other.taints
        assert one.capacity is other.capacity
        assert one.attributes["nvlinkCount"] is other.attributes["nvlinkCount"]
        assert one.attributes is not other.attributes


def test_values_that_cannot_be_looked_up_are_kept_as_they_are() -> None:
    item = watched("a")
    device = item.spec.devices[0]
    odd = msgspec.structs.replace(device, attributes={"list": DeviceAttribute(strings=["x", "y"])})
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=[odd]))
    assert with_shared_values(item) == item
