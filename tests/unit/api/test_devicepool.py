from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api import attributes as table
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.resource_objects import Device, DeviceAttribute, DeviceCapacity
from dracaena.api.resourceslice import decode_pool, encode_devices
from support.machines import divided_machine, machines
from support.topologies import topology_from_matrix

MACHINE = Machine(
    "three",
    tuple(Gpu(f"GPU-00000000-0000-4000-8000-{n:012x}", n, memory_bytes=2**30) for n in range(3)),
    topology_from_matrix([["X", "PIX", "SYS"], ["PIX", "X", "NV4"], ["SYS", "NV4", "X"]]),
)
DEVICES = encode_devices(MACHINE)


def changed(device: Device, **attributes: DeviceAttribute | None) -> Device:
    """The device with attributes set, or removed where None."""
    merged = device.attributes | attributes
    kept = {key: value for key, value in merged.items() if value is not None}
    return msgspec.structs.replace(device, attributes=kept)


def string(value: str) -> DeviceAttribute:
    return DeviceAttribute(string=value)


def integer(value: int) -> DeviceAttribute:
    return DeviceAttribute(int_value=value)


def test_a_gpu_whose_device_is_missing_keeps_its_ordinal_and_what_others_say_of_it() -> None:
    pool = decode_pool([DEVICES[0], DEVICES[2]])
    assert [gpu.ordinal for gpu in pool.gpus] == [0, 2]
    assert pool.topology == MACHINE.topology
    assert pool.problems == ()


def test_what_only_missing_devices_could_tell_is_unknown() -> None:
    pool = decode_pool([DEVICES[0]])
    assert pool.topology.gpu_count == 3
    assert pool.topology.link(0, 1) == Link(LinkLevel.PIX, 0)
    assert pool.topology.link(1, 2) == Link(None, None)


@pytest.mark.parametrize("ordinal", [256, 100_000, 2**62, 2**63 - 1])
def test_an_ordinal_that_no_machine_has_skips_its_device_and_costs_nothing(ordinal: int) -> None:
    """Without rows the ordinal alone would tell how many GPUs there are, and every pair of them would be made."""
    pool = decode_pool([changed(DEVICES[1], pcieLevels=None, nvlinks=None, ordinal=integer(ordinal))])
    assert pool.gpus == ()
    assert pool.topology.gpu_count == 0
    assert [(problem.attribute, problem.seen, problem.skipped) for problem in pool.problems] == [
        ("ordinal", str(ordinal), True)
    ]


def test_order_of_devices_does_not_matter() -> None:
    assert decode_pool(reversed(DEVICES)) == decode_pool(DEVICES)


def test_an_empty_pool_has_no_gpus() -> None:
    pool = decode_pool([])
    assert (pool.gpus, pool.topology.gpu_count, pool.problems) == ((), 0, ())


@pytest.mark.parametrize(
    ("device", "attribute", "seen"),
    [
        (changed(DEVICES[1], type=None), "type", "nothing"),
        (changed(DEVICES[1], type=string("gpus")), "type", "'gpus'"),
        (changed(DEVICES[1], type=string("mig")), "parentUUID", "nothing"),
        (changed(DEVICES[1], uuid=None), "uuid", "nothing"),
        (changed(DEVICES[1], uuid=string("GPU-other")), "uuid", "'GPU-other'"),
        (changed(DEVICES[1], index=string("1")), "index", "another type"),
        (changed(DEVICES[1], ordinal=integer(-1)), "ordinal", "-1"),
        (changed(DEVICES[1], ordinal=None), "ordinal", "nothing"),
        (changed(DEVICES[1], ordinal=integer(0)), "pcieLevels", "'11-?'"),
        (changed(DEVICES[1], pcieLevels=string("21-5")), "pcieLevels", "form version '2'"),
        (changed(DEVICES[1], pcieLevels=string("11-6")), "pcieLevels", "level 6"),
        (changed(DEVICES[1], pcieLevels=string("11-*")), "pcieLevels", "symbol '*'"),
        (changed(DEVICES[1], pcieLevels=string("11-55")), "nvlinks", "3 entries"),
        (changed(DEVICES[1], pcieLevels=integer(5)), "pcieLevels", "another type"),
        (changed(DEVICES[1], pcieLevels=string("11-55"), nvlinks=None), "pcieLevels", "a row of 4 GPUs"),
        (changed(DEVICES[1], pcieLevels=None, nvlinks=None, ordinal=integer(7)), "ordinal", "7"),
        (changed(DEVICES[1], pcieLevels=None, nvlinks=None, ordinal=integer(0)), "ordinal", "0"),
        (changed(DEVICES[1], nicLevels=string("1-")), "nicLevels", "'1-'"),
        (
            msgspec.structs.replace(DEVICES[1], capacity={"memory": DeviceCapacity(value="lots")}),
            "memory",
            "'lots'",
        ),
    ],
)
def test_a_device_that_does_not_decode_is_named_and_the_rest_stays(device: Device, attribute: str, seen: str) -> None:
    pool = decode_pool([DEVICES[0], device, DEVICES[2]])
    (problem,) = pool.problems
    assert (problem.device, problem.attribute, problem.seen, problem.skipped) == (device.name, attribute, seen, True)
    assert [gpu.ordinal for gpu in pool.gpus] == [0, 2]
    assert pool.topology.link(0, 2) == MACHINE.topology.link(0, 2)


def test_rows_that_contradict_each_other_make_the_pair_unknown_and_keep_both_gpus() -> None:
    pool = decode_pool([DEVICES[0], changed(DEVICES[1], pcieLevels=string("12-?")), DEVICES[2]])
    assert pool.topology.link(0, 1) == Link(None, 0)
    assert [gpu.ordinal for gpu in pool.gpus] == [0, 1, 2]
    (problem,) = pool.problems
    assert (problem.device, problem.attribute, problem.skipped) == (DEVICES[1].name, "pcieLevels", False)
    assert "PXB" in problem.text
    assert "PIX as ordinal 0 says" in problem.text


def test_what_one_side_does_not_know_the_other_side_tells() -> None:
    pool = decode_pool([DEVICES[0], changed(DEVICES[1], pcieLevels=string("1?-?")), DEVICES[2]])
    assert pool.topology == MACHINE.topology
    assert pool.problems == ()


def test_a_second_device_of_one_name_is_left_out() -> None:
    pool = decode_pool([*DEVICES, DEVICES[0]])
    assert len(pool.gpus) == 3
    assert [problem.seen for problem in pool.problems] == ["a second device of this name"]


def test_attributes_of_others_are_ignored() -> None:
    foreign = changed(DEVICES[0], **{"example.com/pcieLevels": string("whatever"), "colour": integer(1)})
    assert decode_pool([foreign, *DEVICES[1:]]) == decode_pool(DEVICES)


VALUES = st.one_of(
    st.integers(-2, 70).map(integer),
    st.text(alphabet="01234?-Zz!", max_size=8).map(string),
    st.booleans().map(lambda value: DeviceAttribute(bool_value=value)),
    st.none(),
)


@given(machines(largest=4), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(table.GPU_ATTRIBUTES), VALUES)))
def test_no_device_however_broken_breaks_the_pool(
    machine: Machine, breaks: list[tuple[int, table.AttributeSpec, DeviceAttribute | None]]
) -> None:
    devices = list(encode_devices(machine))
    for place, spec, value in breaks:
        if place < len(devices):
            devices[place] = changed(devices[place], **{spec.name: value})
    pool = decode_pool(devices)
    pool.topology.check()
    assert len(pool.gpus) + len([problem for problem in pool.problems if problem.skipped]) == len(devices)
    assert all(gpu.ordinal < pool.topology.gpu_count for gpu in pool.gpus)


def test_mig_devices_are_read_next_to_the_gpus() -> None:
    machine = divided_machine()
    pool = decode_pool(encode_devices(machine))
    assert pool.problems == ()
    assert [gpu.gpu.uuid for gpu in pool.gpus] == [gpu.uuid for gpu in machine.gpus]
    assert {(mig.name, mig.uuid, mig.parent_uuid, mig.profile, mig.memory_bytes) for mig in pool.mig_devices} == {
        (mig.device_name, mig.uuid, mig.parent_uuid, mig.profile, mig.memory_bytes) for mig in machine.mig_devices
    }


def test_mig_devices_say_nothing_about_links() -> None:
    devices = [device for device in encode_devices(divided_machine()) if device.name.startswith("mig-")]
    pool = decode_pool(devices)
    assert (pool.gpus, pool.topology.gpu_count, len(pool.mig_devices)) == ((), 0, 3)


def test_a_second_mig_device_of_one_name_is_named_and_left_out() -> None:
    devices = [device for device in encode_devices(divided_machine()) if device.name.startswith("mig-")]
    pool = decode_pool([*devices, devices[0]])
    assert len(pool.mig_devices) == 3
    assert [problem.seen for problem in pool.problems] == ["a second device of this name"]
