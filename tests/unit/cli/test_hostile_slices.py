"""What a node may cost those who look at it: each number of its slices with values that no real node publishes."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from dracaena.api import attributes as table
from dracaena.api import node_status, slice_drawing
from dracaena.api.attributes import AttributeSpec, AttributeType
from dracaena.api.devicepool import decode_pool
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import DeviceAttribute, ResourceSlice, ResourceSliceSpec
from dracaena.controller.allocation.state import partition_kinds
from support.counted_work import TooMuchWorkError, work_of
from support.slice_numbers import INTEGERS, SAMPLES, Path, changed, number_paths, values_for
from support.slice_readers import READERS, holders_of_all

MOST_STEPS: Final = 200_000
"""Lines of Python for one answer, a fiftieth of a second. What is shown of these samples takes 30,000, and 34 GPUs, the
most that any of INTEGERS makes of one, take 160,000."""

MOST_BYTES: Final = 64 << 20
MOST_CHARACTERS: Final = 1 << 20

CASES: Final = [
    (f"{sample}-{name}", sample, path) for sample, slices in SAMPLES.items() for name, path in number_paths(slices)
]
EACH_ONCE: Final = {case.partition("-")[2]: (sample, path) for case, sample, path in reversed(CASES)}
"""The first sample that has a number: it is the same field in the others."""
SPECS: Final = {
    spec.name: spec
    for kind in (
        table.GPU_ATTRIBUTES,
        table.MIG_ATTRIBUTES,
        table.MIG_PLACE_ATTRIBUTES,
        table.VFIO_ATTRIBUTES,
        table.VGPU_ATTRIBUTES,
    )
    for spec in kind
    if spec.type is AttributeType.INT
}
TEXTS: Final = {
    "DeviceAttribute": {"string", "version"},
    "CounterConsumption": {"counterSet"},
    "CounterSet": {"name"},
    "Device": {"name", "nodeName", "\ufdd0device"},
    "Taint": {"key", "value", "effect", "timeAdded"},
    "ResourcePool": {"name"},
    "ResourceSliceSpec": {"driver", "nodeName", "partitionTypeAttribute", "\ufdd0spec"},
}
"""Texts of the wire that say no amount. All others do, and are among the numbers of SAMPLES."""


def check(slices: Sequence[ResourceSlice], reader: str) -> None:
    claims, told = holders_of_all(slices), []
    work = work_of(lambda: told.append(READERS[reader](slices, claims)), most_steps=MOST_STEPS)
    assert work.peak_bytes <= MOST_BYTES
    assert len(told[0]) <= MOST_CHARACTERS


LARGE: Final[tuple[int | str, ...]] = (1 << 22, "4194304")
"""More than any loop may take, and less than any limit of the language."""


def with_large_number(sample: str, path: Path) -> list[ResourceSlice]:
    (large,) = set(LARGE) & set(values_for(SAMPLES[sample], path))
    return changed(SAMPLES[sample], path, large)


@pytest.mark.parametrize("reader", ["page", "status", "explain"])
@pytest.mark.parametrize("number", EACH_ONCE)
def test_no_number_of_a_slice_makes_an_answer_costly(number: str, reader: str) -> None:
    check(with_large_number(*EACH_ONCE[number]), reader)


@pytest.mark.parametrize("number", [name for name in EACH_ONCE if "ounters" in name or "lacement" in name])
def test_no_number_of_a_part_makes_a_decision_costly(number: str) -> None:
    check(with_large_number(*EACH_ONCE[number]), "simulate")


@pytest.mark.parametrize("value", ["-1", "1" + "0" * 2_000])
@pytest.mark.parametrize(
    "number",
    [
        "devices.capacity.multiprocessors.value",
        "devices.consumesCounters.counters.memory-slice-.value",
        "sharedCounters.counters.memory-slice-.value",
    ],
)
def test_an_amount_of_a_part_that_cannot_be_read_ends_no_decision_and_is_said_truly(number: str, value: str) -> None:
    path = dict(number_paths(SAMPLES["cut on demand"]))[number]
    check(changed(SAMPLES["cut on demand"], path, value), "simulate")


@pytest.mark.search
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_no_value_of_any_number_of_any_sample_does(case: tuple[str, str, Path], reader: str) -> None:
    _, sample, path = case
    for value in values_for(SAMPLES[sample], path):
        check(changed(SAMPLES[sample], path, value), reader)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_samples_themselves_are_read(sample: str, reader: str) -> None:
    slices = [msgspec.convert(page, ResourceSlice) for page in SAMPLES[sample]]
    assert not decode_pool(device for page in slices for device in page.spec.devices).problems
    check(slices, reader)


def numbers_of_the_wire(kind: Any) -> Iterator[tuple[str, str]]:
    """Yield what a slice can say in numbers, by the type and the name on the wire: integers, and texts that are not
    known to be no amount."""
    seen: set[Any] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for field in msgspec.structs.fields(one):
            leaves = set(leaves_of(field.type))
            waiting += [leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, msgspec.Struct)]
            name = field.encode_name
            is_text = str in leaves and name not in TEXTS.get(one.__name__, set())
            if int in leaves or (is_text and not is_list_of_names(one.__name__, name)):
                yield one.__name__, name


def leaves_of(annotation: Any) -> Iterator[Any]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        yield from leaves_of(arguments[0])
    elif isinstance(annotation, types.UnionType) or arguments:
        origin = typing.get_origin(annotation)
        for each in arguments[1:] if origin is dict else arguments:
            yield from leaves_of(each)
    else:
        yield annotation


def is_list_of_names(struct: str, name: str) -> bool:
    lists = {"bindingConditions", "bindingFailureConditions", "compatibilityGroups", "skipNodeOperations"}
    return name in lists or (struct, name) in {("DeviceAttribute", "strings"), ("DeviceAttribute", "versions")}


def test_every_number_that_a_slice_can_carry_is_in_a_sample() -> None:
    in_samples = {path[-1] if isinstance(path[-1], str) else path[-2] for *_, path in CASES}
    lists_behind_a_gate = {"ints"}
    assert {name for _, name in numbers_of_the_wire(ResourceSliceSpec)} - lists_behind_a_gate == in_samples


def test_every_number_of_the_attribute_table_is_in_a_sample() -> None:
    in_samples = {
        name
        for slices in SAMPLES.values()
        for page in slices
        for device in page["spec"].get("devices", ())
        for name, attribute in device["attributes"].items()
        if "int" in attribute
    }
    assert in_samples == set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_every_number_of_the_attribute_table_is_bounded_where_it_is_decoded(name: str) -> None:
    spec = SPECS[name]
    assert spec.most is not None
    found = set()
    for slices in SAMPLES.values():
        pages = [msgspec.convert(page, ResourceSlice) for page in slices]
        for device in (device for page in pages for device in page.spec.devices if name in device.attributes):
            for value in (spec.most + 1, -1, *(number for number in INTEGERS if number > spec.most)):
                attributes = {**device.attributes, name: DeviceAttribute(int_value=value)}
                decoded = decode_pool([msgspec.structs.replace(device, attributes=attributes)])
                found |= {(problem.attribute, problem.skipped) for problem in decoded.problems} or {("", False)}
    assert found <= {(name, True), ("", False)}
    if name in READ:
        assert found == {(name, True)}


READ: Final = frozenset(
    spec.name
    for spec in SPECS.values()
    if spec.gpu_field is not None
    or spec
    in (table.ORDINAL, table.NUMA_NODE, table.PLACEMENT_START, table.PLACEMENT_SIZE, *table.PARTITION_SIZES.values())
) - {table.NUMA_NODE.name}
"""What decode_pool() reads: the others are for selectors alone. A vGPU's NUMA node is not read, a GPU's is."""


def test_an_integer_of_the_wire_is_one_of_the_api() -> None:
    for path in (("pool", "generation"), ("pool", "resourceSliceCount")):
        with pytest.raises(msgspec.ValidationError):
            changed(SAMPLES["whole"], (0, "spec", *path), 2**63)


def test_an_integer_without_a_largest_value_is_no_attribute() -> None:
    with pytest.raises(ValueError, match="largest value"):
        AttributeSpec("lanes", AttributeType.INT, "lanes")


def test_many_slices_many_taints_and_many_bad_devices_are_shown_in_part() -> None:
    (page,) = SAMPLES["whole"]
    device = msgspec.convert(page, ResourceSlice).spec.devices[0]
    bad = {**device.attributes, "index": DeviceAttribute(int_value=2**40)}
    taints = [Taint(key=f"t{place}.example.com", value="", effect="NoSchedule") for place in range(16)]
    base = msgspec.convert(page, ResourceSlice)
    slices = []
    for number in range(200):
        devices = [
            msgspec.structs.replace(device, name=f"d-{number}-{place}", attributes=bad, taints=taints)
            for place in range(64)
        ]
        pool = msgspec.structs.replace(base.spec.pool, resource_slice_count=200)
        spec = msgspec.structs.replace(base.spec, pool=pool, devices=devices)
        metadata = msgspec.structs.replace(base.metadata, name=f"n-{number:03}")
        slices.append(msgspec.structs.replace(base, metadata=metadata, spec=spec))
    (found,) = node_status.node_statuses("gpu.dracaena.dev", [], slices, [])
    assert "the devices of 168 more slices of its pool are not shown" in found.remarks
    assert found.remarks[-1].endswith(" more remarks")
    assert len(found.remarks) == node_status.MOST_REMARKS + 1


# planted faults: bounds that are missing


def unbounded(spec: AttributeSpec) -> AttributeSpec:
    return replace(spec, most=2**63 - 1)


def found_in(sample: str, name: str, reader: str) -> bool:
    try:
        check(with_large_number(sample, dict(number_paths(SAMPLES[sample]))[name]), reader)
    except AssertionError:
        return True
    return False


@pytest.mark.search
@pytest.mark.parametrize("reader", ["page", "status", "explain"])
def test_a_part_of_any_size_would_be_seen(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(table, "PLACEMENT_SIZE", unbounded(table.PLACEMENT_SIZE))
    monkeypatch.setattr(table, "MAX_MEMORY_SLICES", 2**63 - 1)
    assert not found_in("cut on demand", "devices.attributes.placementSize.int", reader), (
        "the drawing has its own limit"
    )
    monkeypatch.setattr(slice_drawing, "MAX_MEMORY_SLICES", 2**63 - 1)
    assert found_in("cut on demand", "devices.attributes.placementSize.int", reader)


@pytest.mark.search
@pytest.mark.parametrize("reader", ["page", "status"])
def test_an_ordinal_of_any_size_would_be_seen(monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(table, "ORDINAL", unbounded(table.ORDINAL))
    assert found_in("without links", "devices.attributes.ordinal.int", reader)


@pytest.mark.search
def test_a_memory_slice_that_is_there_many_times_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    number = "sharedCounters.counters.memory-slice-.value"
    assert not found_in("cut on demand", number, "simulate")
    monkeypatch.setattr(partition_kinds, "NANO", 2**63)
    assert found_in("cut on demand", number, "simulate"), "ranks hold amounts of some size only"


def test_a_call_that_does_not_end_is_ended() -> None:
    def endless() -> None:
        while True:
            pass

    with pytest.raises(TooMuchWorkError, match="more than 1000 steps"):
        work_of(endless, most_steps=1_000)


def test_the_counts_are_the_same_each_time() -> None:
    slices = [msgspec.convert(page, ResourceSlice) for page in SAMPLES["cut on demand"]]
    claims = holders_of_all(slices)
    # The first call of a process also imports and fills caches.
    _, first, second = (work_of(lambda: READERS["page"](slices, claims), most_steps=MOST_STEPS) for _ in range(3))
    assert first.steps == second.steps
