from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.kubelet_plugin.discovery.mig.layouts import (
    GpuLayout,
    asks_for_device_ids,
    gpu_instances,
    gpu_layouts,
    has_layout,
    mode_obstacle,
    read_layouts,
)
from support.mig_geometries import A100_40GB, divisible_machine

H100_ID, A100_ID = 0x233010DE, 0x20B010DE


def machine() -> Machine:
    """Two H100, an A100 in MIG mode, one that is not, and a GPU without MIG."""
    made = divisible_machine(5)
    ampere = {"architecture": "Ampere", "mig_profiles": A100_40GB}
    each: list[dict[str, Any]] = [
        {}, {}, {**ampere, "mig_enabled": True}, {**ampere, "mig_enabled": False},
        {"architecture": "Ada", "mig_profiles": (), "mig_enabled": None},
    ]  # fmt: skip
    return replace(made, gpus=tuple(replace(gpu, **facts) for gpu, facts in zip(made.gpus, each, strict=True)))


NODE = machine()
IDS = {gpu.uuid: H100_ID if gpu.index < 2 else A100_ID for gpu in NODE.gpus}


def entry(**changes: Any) -> dict[str, Any]:
    given = {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    given |= {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in given.items() if value is not ...}


def file(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "v1", "mig-configs": {"mine": list(entries)}}


def chosen(*entries: dict[str, Any]) -> dict[int, GpuLayout]:
    found = gpu_layouts("mine", read_layouts(file(*entries)), NODE, IDS)
    return {gpu.index: found[gpu.uuid] for gpu in NODE.gpus if gpu.uuid in found}


def test_an_index_stands_for_the_gpu_that_had_it_first() -> None:
    uuids = [gpu.uuid for gpu in NODE.gpus]
    first = {0: uuids[1], 1: uuids[0], 2: "GPU-lost"}

    def indices(*devices: int) -> set[int]:
        layouts = read_layouts(file(entry(devices=list(devices), mig_devices={})))
        found = gpu_layouts("mine", layouts, NODE, IDS, first)
        return {gpu.index for gpu in NODE.gpus if gpu.uuid in found}

    assert (indices(0), indices(1), indices(2, 3)) == ({1}, {0}, {3})
    with pytest.raises(BadInputError, match="names no GPU of this node that has MIG"):
        indices(2)
    with pytest.raises(BadInputError, match="this node has no GPU 7"):
        indices(2, 7)


def refusal(*entries: dict[str, Any]) -> str:
    with pytest.raises(BadInputError) as caught:
        chosen(*entries)
    return str(caught.value)


def test_a_balanced_file_of_mig_parted_gives_each_product_its_own_layout() -> None:
    """With one difference: there `all` fails on a node with a GPU that has no MIG, here it is passed over."""
    found = chosen(
        entry(devices="all", device_filter=["0x233010DE", "0x232110DE"], mig_devices={"1g.10gb": 2, "3g.40gb": 1}),
        entry(devices="all", device_filter="0x20B010DE", mig_devices={"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
    )
    assert {index: layout.counts for index, layout in found.items()} == {
        0: {"1g.10gb": 2, "3g.40gb": 1}, 1: {"1g.10gb": 2, "3g.40gb": 1},
        2: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}, 3: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1},
    }  # fmt: skip


def test_gpus_that_no_entry_names_stay_as_they_are() -> None:
    found = chosen(entry(devices=[1], mig_enabled=False, mig_devices=...), entry(devices=[2], mig_devices={}))
    assert found == {1: GpuLayout("mine", enabled=False), 2: GpuLayout("mine", enabled=True)}


def test_a_gpu_without_mig_is_whole_already() -> None:
    assert set(chosen(entry(devices=[0, 4], mig_enabled=False, mig_devices=None))) == {0}


def test_pci_ids_are_asked_for_where_a_layout_filters_by_them() -> None:
    layouts = read_layouts(file(entry()))
    assert not asks_for_device_ids("mine", layouts)
    assert asks_for_device_ids("mine", read_layouts(file(entry(), entry(devices=[1], device_filter="0x233010DE"))))
    assert not asks_for_device_ids("another", layouts)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "the file: nothing, expected a map"),
        ([], "the file: a list, expected a map"),
        ({"version": "v2", "mig-configs": {}}, "version: 'v2', expected 'v1'"),
        ({"mig-configs": {}}, "version: nothing, expected 'v1'"),
        ({"version": "v1"}, "mig-configs: nothing, expected a map"),
        ({"version": "v1", "mig-configs": {}, "hooks": {}}, "unknown hooks, expected version, mig-configs"),
        ({"version": "v1", "mig-configs": {7: []}}, "mig-configs: key 7, expected text"),
        ({"version": "v1", "mig-configs": {"": []}}, "mig-configs: '', expected the name of a layout"),
        ({"version": "v1", "mig-configs": {"a": {}}}, "'a': a dict, expected a list of entries"),
        ({"version": "v1", "mig-configs": {"a": ["x"]}}, "'a': entry 1: a str, expected a map"),
        (file(entry(), entry(mig_device={})), "'mine': entry 2: unknown mig-device"),
        (file(entry(mig_enabled="yes")), "mig-enabled: 'yes', expected true or false"),
        (file(entry(mig_enabled=...)), "mig-enabled: nothing, expected true or false"),
        (file(entry(mig_enabled=False)), "mig-devices with mig-enabled: false"),
        (file(entry(devices="0")), "devices: '0', expected 'all' or a list of indices"),
        (file(entry(devices=[True])), "devices: a list, expected 'all'"),
        (file(entry(devices=...)), "devices: nothing, expected 'all'"),
        (file(entry(devices=[0, 0])), "names a GPU twice"),
        (file(entry(device_filter="2330")), "device-filter: '2330', expected PCI IDs"),
        (file(entry(device_filter=[0x233010DE])), "device-filter: a list, expected PCI IDs"),
        (file(entry(mig_devices=["1g.10gb"])), "mig-devices: a list, expected a map"),
        (file(entry(mig_devices={"1g.10gb": True})), "'1g.10gb': True, expected a number of instances"),
        (file(entry(mig_devices={"1g.10gb": -1})), "'1g.10gb': -1, expected a number of instances"),
        (file(entry(mig_devices={"1g.10gb": 1 << 100_000})), "a number beyond all bounds"),
        (file(entry(mig_devices={"x" * 10_000: "y" * 10_000})), "..."),
    ],
)  # fmt: skip
def test_a_file_that_is_no_file_of_layouts_is_refused_with_the_place(document: object, words: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_layouts(document)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry(mig_devices={"1g.5gb": 1})], "GPU 0 has no profile 1g.5gb, it has 1g.10gb, 1g.10gb+me, 1g.20gb"),
        ([entry(mig_devices={"1c.2g.20gb": 1})], "compute instances that share a GPU instance"),
        ([entry(mig_devices={"1g.10gb": 8})], "no room for 8 x 1g.10gb (1g.10gb at most 7)"),
        ([entry(mig_devices={"4g.40gb": 1, "3g.40gb": 2})], "no room for 1 x 4g.40gb + 2 x 3g.40gb together"),
        ([entry(mig_devices={"1g.10gb+me": 2})], "1g.10gb+me at most 1"),
        ([entry(devices=[9])], "entry 1: this node has no GPU 9, it has 0, 1, 2, 3, 4"),
        ([entry(devices=[4])], "GPU 4 has no MIG"),
        ([entry(), entry(devices="all")], "GPU 0 is in entries 1 and 2"),
        ([entry(device_filter="0x111110DE")], "names no GPU of this node that has MIG"),
        ([], "names no GPU of this node that has MIG"),
    ],
)
def test_a_layout_that_this_node_cannot_have_is_refused_as_a_whole(entries: list[dict[str, Any]], words: str) -> None:
    assert words in refusal(*entries)


def test_a_layout_that_the_file_lacks_is_said_with_those_it_has() -> None:
    with pytest.raises(BadInputError, match="there is no layout 'all-1g'; the file has mine"):
        gpu_layouts("all-1g", read_layouts(file(entry())), NODE, IDS)


def test_what_a_gpu_can_hold_is_left_open_while_its_places_are_not_told() -> None:
    dumb = replace(NODE, gpus=tuple(replace(gpu, mig_profiles=()) for gpu in NODE.gpus))
    assert set(gpu_layouts("mine", read_layouts(file(entry(mig_devices={"9g.90gb": 1}))), dumb, IDS)) == {
        NODE.gpus[0].uuid
    }


def test_a_gpu_has_its_layout_whoever_made_it_and_wherever_its_instances_lie() -> None:
    gpu, other = NODE.gpus[:2]
    parts = (("1g.10gb", 3, 1), ("1c.3g.40gb", 4, 4), ("1c.3g.40gb", 4, 4))
    migs = tuple(
        MigDevice(gpu.uuid, f"MIG-{number}", 1 + (number > 0), number, profile, start, size)
        for number, (profile, start, size) in enumerate(parts)
    )
    gpus = (replace(gpu, mig_enabled=True), *NODE.gpus[1:])
    divided = replace(NODE, gpus=gpus, mig_devices=migs)
    assert gpu_instances(divided, gpu) == {("1g.10gb", 3), ("3g.40gb", 4)}
    wanted = GpuLayout("mine", enabled=True, counts={"1g.10gb": 1, "3g.40gb": 1})
    assert has_layout(divided, gpus[0], wanted)
    assert not has_layout(divided, other, wanted)
    assert not has_layout(divided, gpus[0], GpuLayout("mine", enabled=True, counts={"1g.10gb": 1}))
    assert not has_layout(divided, gpus[0], GpuLayout("mine", enabled=False))
    assert has_layout(divided, other, GpuLayout("mine", enabled=False))


def test_ampere_changes_its_mode_by_a_reset_and_what_is_newer_at_once() -> None:
    on, off = GpuLayout("mine", enabled=True), GpuLayout("mine", enabled=False)
    obstacles = [[mode_obstacle(gpu, layout) is None for layout in (on, off)] for gpu in NODE.gpus[:4]]
    assert obstacles == [[True, True], [True, True], [True, False], [False, True]]
    text = mode_obstacle(NODE.gpus[3], on)
    assert text is not None
    assert f"nvidia-smi -i {NODE.gpus[3].uuid} -mig 1" in text
    assert "--gpu-reset" in text
