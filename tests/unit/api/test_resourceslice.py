from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given

from dracaena.api import attributes as table
from dracaena.api import limits
from dracaena.api.links import UNKNOWN_LINK, Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import Counter, CounterConsumption, Device
from dracaena.api.resourceslice import (
    decode_pool,
    encode_devices,
    encode_gpus,
    encode_mig_places,
    mig_counter_set,
    with_whole_consumption,
)
from dracaena.api.topology import Nic, Topology, TopologyError
from dracaena.api.versions import is_semver
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from support.machines import divided_machine, machines
from support.mig_geometries import H100_80GB
from support.topologies import topology_from_matrix

KEY = re.compile(r"(?:[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")


def machine_of(rows: Sequence[str], **facts: object) -> Machine:
    """A machine drawn as rows of tokens; facts go to each GPU."""
    topology = topology_from_matrix([row.split() for row in rows])
    gpus = tuple(
        Gpu(uuid=f"GPU-00000000-0000-4000-8000-{ordinal:012x}", index=ordinal, **facts)  # type: ignore[arg-type]
        for ordinal in range(len(rows))
    )
    return Machine("drawn", gpus, topology)


def ints(devices: Sequence[Device], name: str) -> list[int | None]:
    return [device.attributes[name].int_value if name in device.attributes else None for device in devices]


def as_carried(machine: Machine) -> tuple[tuple[Gpu, ...], Topology]:
    """What of a machine a pool carries: everything but MIG mode and profiles, and names and NUMA nodes of NICs."""
    nics = tuple(Nic(f"nic{place}", nic.levels) for place, nic in enumerate(machine.topology.nics))
    gpus = tuple(replace(gpu, mig_enabled=None, mig_profiles=()) for gpu in machine.gpus)
    return gpus, replace(machine.topology, nics=nics)


def assert_round_trip(machine: Machine) -> None:
    pool = decode_pool(encode_devices(machine))
    assert pool.problems == ()
    assert (tuple(gpu.gpu for gpu in pool.gpus), pool.topology) == as_carried(machine)
    assert [gpu.ordinal for gpu in pool.gpus] == list(range(len(machine.gpus)))
    assert {(gpu.driver_version, gpu.cuda_driver_version) for gpu in pool.gpus} <= {
        (machine.driver_version, machine.cuda_driver_version)
    }


def assert_within_the_limits_of_the_api(device: Device) -> None:
    assert DNS_LABEL.fullmatch(device.name)
    assert len(device.attributes) + len(device.capacity) <= limits.DEVICE_ATTRIBUTES_AND_CAPACITIES
    assert [key for key in (*device.attributes, *device.capacity) if not KEY.fullmatch(key)] == []
    for attribute in device.attributes.values():
        values = [attribute.int_value, attribute.bool_value, attribute.string, attribute.version]
        assert sum(value is not None for value in values) == 1
        assert len((attribute.string or "").encode()) <= limits.ATTRIBUTE_VALUE_BYTES
        assert attribute.version is None or is_semver(attribute.version)
    assert all(QUANTITY.fullmatch(capacity.value) for capacity in device.capacity.values())


@pytest.mark.parametrize("name", machine_names())
def test_recorded_machines_come_back(name: str) -> None:
    machine = read_machine(name)
    assert_round_trip(machine)
    for device in encode_devices(machine):
        assert_within_the_limits_of_the_api(device)


@given(machines())
def test_any_machine_comes_back(machine: Machine) -> None:
    assert_round_trip(machine)
    for device in encode_devices(machine):
        assert_within_the_limits_of_the_api(device)


def test_a_gpu_with_every_fact_uses_the_whole_table() -> None:
    facts = {
        "minor": 3, "product_name": "P", "brand": "B", "architecture": "A", "cuda_compute_capability": "9.0",
        "memory_bytes": 81559 * 2**20, "pci_bus_id": "0000:01:00.0", "pcie_root": "pci0000:00", "pcie_generation": 5,
        "pcie_width": 16, "nvlink_count": 18, "nvlink_generation": 4, "fabric_clique": "c.1",
        "cc_capable": False, "cc_mode": "off",
    }  # fmt: skip
    machine = machine_of(["X"], **facts)
    topology = replace(machine.topology, numa_nodes=(1,), nics=(Nic("mlx5_0", (LinkLevel.PIX,)),))
    machine = replace(machine, topology=topology, driver_version="535.104.05", cuda_driver_version="12.2")
    (device,) = encode_devices(machine)
    of_partitions = {table.GPU_MODULE_ID, *table.PARTITION_SIZES.values()}
    assert list(device.attributes) == [spec.name for spec in table.GPU_ATTRIBUTES if spec not in of_partitions]
    assert device.attributes["driverVersion"].version == "535.104.5"
    assert device.attributes["driverVersionText"].string == "535.104.05"
    assert device.attributes["cudaDriverVersion"].version == "12.2.0"
    assert device.attributes["resource.kubernetes.io/pciBusID"].string == "0000:01:00.0"
    assert device.attributes["ccCapable"].bool_value is False
    assert device.attributes["ccMode"].string == "off"
    assert device.capacity["memory"].value == "81559Mi"
    assert_within_the_limits_of_the_api(device)


def test_compact_strings_read_as_one_row_a_gpu() -> None:
    devices = encode_devices(machine_of(["X PIX NV12", "PIX X SYS", "NV12 SYS X"]))
    assert [device.attributes["pcieLevels"].string for device in devices] == ["1-1?", "11-5", "1?5-"]
    assert [device.attributes["nvlinks"].string for device in devices] == ["1-0C", "10-0", "1C0-"]


def test_groups_are_named_by_their_lowest_ordinal() -> None:
    devices = encode_devices(machine_of(["X PIX PHB SYS", "PIX X PHB SYS", "PHB PHB X SYS", "SYS SYS SYS X"]))
    assert ints(devices, "pcieSwitch") == [0, 0, 2, 3]
    assert ints(devices, "hostBridge") == [0, 0, 0, 3]
    assert ints(devices, "nvlinkGroup") == [0, 1, 2, 3]


def test_a_group_that_an_unknown_pair_could_enlarge_is_left_out() -> None:
    devices = encode_devices(machine_of(["X PIX NV2 SYS", "PIX X SYS SYS", "NV2 SYS X SYS", "SYS SYS SYS X"]))
    assert ints(devices, "pcieSwitch") == [None, None, None, 3]
    assert ints(devices, "nvlinkGroup") == [0, 1, 0, 3]


def test_an_unknown_pair_inside_one_group_leaves_it_certain() -> None:
    devices = encode_devices(machine_of(["X PIX PIX", "PIX X NV2", "PIX NV2 X"]))
    assert ints(devices, "pcieSwitch") == [0, 0, 0]


@given(machines(largest=6))
def test_a_published_group_holds_whatever_unknown_pairs_turn_out_to_be(machine: Machine) -> None:
    """Slow version: the group is the same with every unknown pair near and with every unknown pair far."""
    topology = machine.topology
    for name, level in (("pcieSwitch", LinkLevel.PIX), ("hostBridge", LinkLevel.PHB)):
        near, far = (slow_groups(topology, level, guess) for guess in (LinkLevel.PSB, LinkLevel.SYS))
        expected = [min(a) if a == b else None for a, b in zip(near, far, strict=True)]
        assert ints(encode_devices(machine), name) == expected


def slow_groups(topology: Topology, level: LinkLevel, guess: LinkLevel) -> list[set[int]]:
    groups = [{ordinal} for ordinal in range(topology.gpu_count)]
    for _ in range(topology.gpu_count):
        for a, b in combinations(range(topology.gpu_count), 2):
            known = topology.link(a, b).level
            if (guess if known is None else known) <= level:
                groups[a] = groups[b] = groups[a] | groups[b]
    return groups


def test_text_for_people_is_cut_between_characters_and_identifiers_drop_out() -> None:
    machine = machine_of(["X"], product_name="é" * 40, fabric_clique="c" * 65, pcie_root="r" * 64)
    (device,) = encode_devices(machine)
    assert device.attributes["productName"].string == "é" * 32
    assert "fabricClique" not in device.attributes
    assert device.attributes["resource.kubernetes.io/pcieRoot"].string == "r" * 64


def test_a_cut_never_leaves_half_a_character() -> None:
    (device,) = encode_devices(machine_of(["X"], product_name="a" + "é" * 40))
    assert device.attributes["productName"].string == "a" + "é" * 31


@pytest.mark.parametrize(
    "facts", [{"product_name": "\ud800"}, {"nvlink_count": 2**63}, {"cuda_compute_capability": "new"}]
)
def test_a_bad_value_drops_itself_and_nothing_else(facts: dict[str, object]) -> None:
    plain, (device,) = encode_devices(machine_of(["X"])), encode_devices(machine_of(["X"], **facts))
    assert {key: device.attributes[key] for key in plain[0].attributes} == plain[0].attributes
    assert_within_the_limits_of_the_api(device)


def test_a_version_that_is_no_semver_keeps_its_text() -> None:
    (device,) = encode_devices(replace(machine_of(["X"]), driver_version="1.2.3.4"))
    assert "driverVersion" not in device.attributes
    assert device.attributes["driverVersionText"].string == "1.2.3.4"


def test_numa_nodes_beyond_the_standard_attribute_are_left_out() -> None:
    machine = machine_of(["X"])
    (device,) = encode_devices(replace(machine, topology=replace(machine.topology, numa_nodes=(1024,))))
    assert "resource.kubernetes.io/numaNode" not in device.attributes


def test_a_uuid_that_names_no_device_is_refused() -> None:
    machine = Machine("m", (Gpu("GPU-1_2", 0),), topology_from_matrix([["X"]]))
    with pytest.raises(TopologyError, match="'GPU-1_2' makes no device name"):
        encode_devices(machine)


@pytest.mark.parametrize("count", [63, 64])
def test_rows_of_too_many_gpus_drop_themselves(count: int) -> None:
    gpus = tuple(Gpu(f"GPU-00000000-0000-4000-8000-{n:012x}", n) for n in range(count))
    link = Link(LinkLevel.PIX, 0)
    topology = Topology(count, (link,) * (count * (count - 1) // 2), (None,) * count)
    pool = decode_pool(encode_devices(Machine("big", gpus, topology)))
    assert pool.problems == ()
    assert len(pool.gpus) == pool.topology.gpu_count == count
    assert set(pool.topology.pairs) == ({link} if count == 63 else {UNKNOWN_LINK})


def test_a_mig_device_is_published_by_parent_profile_and_place() -> None:
    machine = divided_machine()
    devices = encode_devices(machine)
    assert [device.name for device in devices[2:]] == [mig.device_name for mig in machine.mig_devices]
    for device, mig in zip(devices[2:], machine.mig_devices, strict=True):
        assert_within_the_limits_of_the_api(device)
        texts = {name: value.string for name, value in device.attributes.items() if value.string is not None}
        assert texts == {
            "type": "mig",
            "uuid": mig.uuid,
            "parentUUID": machine.gpus[1].uuid,
            "profile": mig.profile,
            "productName": "NVIDIA H100 80GB HBM3",
            "architecture": "Hopper",
            "cudaComputeCapabilityText": "9.0",
            "driverVersionText": "580.65.06",
        }
        assert device.attributes["driverVersion"].version == "580.65.6"
        capacities = {name: capacity.value for name, capacity in device.capacity.items()}
        assert capacities == {"multiprocessors": "16", "memory": "9984Mi"}


def test_a_profile_that_makes_no_device_name_is_refused() -> None:
    machine = divided_machine()
    odd = replace(machine.mig_devices[0], profile="x" * 30)
    with pytest.raises(TopologyError, match="makes no device name"):
        encode_devices(replace(machine, mig_devices=(odd,)))


def h100(**changes: Any) -> Machine:
    machine = divided_machine()
    gpus = tuple(replace(gpu, mig_enabled=False, mig_profiles=H100_80GB, **changes) for gpu in machine.gpus)
    return replace(machine, gpus=gpus, mig_devices=())


def test_a_place_for_a_mig_device_is_published_with_what_it_takes_of_its_gpu() -> None:
    machine = h100()
    gpu = machine.gpus[1]
    devices = {device.name: device for device in encode_mig_places(machine, gpu)}
    assert len(devices) == 25
    for device in devices.values():
        assert_within_the_limits_of_the_api(device)
        assert list(device.attributes) == [spec.name for spec in table.MIG_PLACE_ATTRIBUTES if spec is not table.BRAND
                                           and "cudaDriver" not in spec.name]  # fmt: skip
        assert list(device.capacity) == list(table.MIG_PLACE_CAPACITIES)
    device = devices[f"mig-{gpu.uuid[4:]}-3g-40gb-4"]
    assert device.attributes["placementStart"].int_value == device.attributes["placementSize"].int_value == 4
    assert device.capacity["memory"].value == "40448Mi"
    assert device.capacity["decoders"].value == "3"
    assert device.capacity["ofaEngines"].value == "0"
    (taken,) = device.consumes_counters
    assert taken.counter_set == f"gpu-{gpu.uuid[4:]}"
    slices = {f"memory-slice-{number}": Counter("1") for number in range(4, 8)}
    assert taken.counters == {**slices, "compute-slices": Counter("3")}
    assert devices[f"mig-{gpu.uuid[4:]}-1g-10gb-me-2"].consumes_counters[0].counters == {
        "memory-slice-2": Counter("1"), "compute-slices": Counter("1"), "ofa-engines": Counter("1")
    }  # fmt: skip


def test_a_place_comes_back_without_uuid_and_with_its_slices() -> None:
    machine = h100()
    pool = decode_pool([*encode_gpus(machine), *encode_mig_places(machine, machine.gpus[0])])
    assert pool.problems == ()
    assert len(pool.gpus) == 2
    found = {(mig.profile, mig.start, mig.size) for mig in pool.mig_devices}
    assert found == {(each.name, place.start, place.size) for each in H100_80GB for place in each.placements}
    assert {mig.uuid for mig in pool.mig_devices} == {""}
    assert {mig.parent_uuid for mig in pool.mig_devices} == {machine.gpus[0].uuid}


def test_what_others_took_of_a_gpu_is_not_among_what_claims_can_have_and_the_whole_gpu_takes_all() -> None:
    machine = h100()
    gpu = machine.gpus[0]
    left = mig_counter_set(gpu, {"memory-slice-0": 1, "compute-slices": 1, "ofa-engines": 2, "unknown": 1})
    everything = mig_counter_set(gpu, {})
    assert left.name == everything.name == gpu_device_name(gpu.uuid)
    changed = {name: each.value for name, each in left.counters.items() if each != everything.counters[name]}
    assert changed == {"memory-slice-0": "0", "compute-slices": "6", "ofa-engines": "0"}
    whole = with_whole_consumption(encode_gpus(machine)[0], gpu)
    assert whole.consumes_counters == [CounterConsumption(everything.name, everything.counters)]


def test_a_gpu_whose_profiles_are_not_known_has_no_places() -> None:
    machine = divided_machine()
    assert encode_mig_places(machine, machine.gpus[0]) == ()
