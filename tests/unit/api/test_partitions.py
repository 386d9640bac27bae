"""Which counter sets are read as those of GPUs that are cut on demand."""

from __future__ import annotations

import pytest

from dracaena.api.partitions import MAX_PLACES, partitioned_sets
from dracaena.api.resource_objects import Counter, CounterConsumption, Device, DeviceAttribute


def place(number: int) -> Device:
    return Device(
        name=f"part-{number}",
        attributes={
            "profile": DeviceAttribute(string="1g.10gb"),
            "placementStart": DeviceAttribute(int_value=0),
            "placementSize": DeviceAttribute(int_value=1),
        },
        consumes_counters=[CounterConsumption("gpu-0", {"slices": Counter("1")})],
    )


@pytest.mark.parametrize(("count", "is_read"), [(1, True), (MAX_PLACES, True), (MAX_PLACES + 1, False)])
def test_a_set_that_thousands_of_devices_draw_on_is_left_to_the_rules(count: int, *, is_read: bool) -> None:
    devices = [place(number) for number in range(count)]
    names = [one.name for one in devices]
    assert partitioned_sets(devices, (), names) == (frozenset({"gpu-0"}) if is_read else frozenset())
