"""Files of vgpu-device-manager, and what they make of GPUs: each refusal names file, entry, GPU, what was seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import (
    OfferedType,
    OurVgpu,
    VgpuFunction,
    VgpuGpu,
    VgpuLayout,
    VgpuOnGpu,
    function_with_room,
    has_vgpu_layout,
    made_by_others,
    read_vgpu_layouts,
    vgpu_layout_problem,
    vgpu_layouts,
    vgpu_steps,
)

TYPES = {
    "A100-4C": OfferedType("nvidia-468", 10),
    "A100-1-5C": OfferedType("nvidia-475", 7),
    "A100-3-20C": OfferedType("nvidia-477", 2),
}
A100 = VgpuGpu("0000:41:00.0", 0, 0x20B010DE, functions=(VgpuFunction("0000:41:00.0"),), types=TYPES)
FUNCTIONS = tuple(VgpuFunction(f"0000:81:00.{n}", {"1414": 1}, has_type_file=True) for n in range(4, 7))
H200 = VgpuGpu("0000:81:00.0", 1, 0x233510DE, functions=FUNCTIONS, types={"H200X-1-18C": OfferedType("1414", 7)})
BARE = VgpuGpu("0000:c1:00.0", 2, 0x233510DE)
NODE = (A100, H200, BARE)


def entry(**changes: Any) -> dict[str, Any]:
    all_of_it: dict[str, Any] = {"devices": [0], "vgpu-devices": {"A100-4C": 2}}
    all_of_it |= {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in all_of_it.items() if value is not ...}


def file(*entries: object) -> dict[str, Any]:
    return {"version": "v1", "vgpu-configs": {"mine": list(entries)}}


def chosen(*entries: object, gpus: tuple[VgpuGpu, ...] = NODE, first: Any = None) -> dict[int, dict[str, int]]:
    found = vgpu_layouts("mine", read_vgpu_layouts(file(*entries)), gpus, first or {})
    assert {layout.name for layout in found.values()} == {"mine"}
    return {gpu.index: dict(found[gpu.address].counts) for gpu in gpus if gpu.address in found}


def refusal(*entries: object, gpus: tuple[VgpuGpu, ...] = NODE) -> str:
    with pytest.raises(BadInputError) as caught:
        chosen(*entries, gpus=gpus)
    return str(caught.value)


def test_each_product_gets_its_own_types_by_the_filter_and_gpus_that_offer_nothing_are_passed_over() -> None:
    assert chosen(
        entry(devices="all", device_filter="0x20B010DE", vgpu_devices={"A100-1-5C": 4, "A100-3-20C": 1}),
        entry(devices="all", device_filter=["0x233510DE"], vgpu_devices={"H200X-1-18C": 3}),
    ) == {0: {"A100-1-5C": 4, "A100-3-20C": 1}, 1: {"H200X-1-18C": 3}}


def test_a_gpu_can_be_cleared_and_gpus_that_no_entry_names_stay_as_they_are() -> None:
    assert chosen(entry(devices=[1], vgpu_devices={"H200X-1-18C": 0})) == {1: {}}
    assert chosen(entry(devices=[2], vgpu_devices=...)) == {2: {}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "the file: nothing, expected a map"),
        ({"version": "v1", "mig-configs": {}}, "unknown mig-configs, expected version, vgpu-configs"),
        ({"version": 1, "vgpu-configs": {}}, "version: 1, expected 'v1'"),
        (file("all"), "vgpu-configs: 'mine': entry 1: a str, expected a map"),
        (
            file(entry(), entry(vgpu_device={})),
            "entry 2: unknown vgpu-device, expected devices, device-filter, vgpu-dev",
        ),
        (file(entry(mig_enabled=True)), "unknown mig-enabled"),
        (file(entry(devices=...)), "devices: nothing, expected 'all' or a list of indices"),
        (file(entry(devices=["0000:41:00.0"])), "devices: a list, expected 'all' or a list of indices"),
        (file(entry(devices=[0, 0])), "names a GPU twice"),
        (file(entry(device_filter=[0x20B010DE])), "device-filter: a list, expected PCI IDs as '0x233010DE'"),
        (file(entry(vgpu_devices=["A100-4C"])), "vgpu-devices: a list, expected a map"),
        (file(entry(vgpu_devices={"A100-4C": "2"})), "'A100-4C': '2', expected a number of vGPUs"),
        (file(entry(vgpu_devices={"A100-4C": -1})), "'A100-4C': -1, expected a number of vGPUs"),
        (file(entry(vgpu_devices={"A100-4C": True})), "'A100-4C': True, expected a number of vGPUs"),
        (file(entry(vgpu_devices={"1g.10gb": 1})), "vgpu-devices: '1g.10gb', expected a type as 'A100-40C'"),
        (file(entry(vgpu_devices={"NVIDIA A100-4C": 1})), "vgpu-devices: 'NVIDIA A100-4C', expected a type"),
        (
            file(entry(vgpu_devices={"A100-4C": 1, "A100-8C": 1})),
            "'mine': entry 1: vgpu-devices: A100-4C, A100-8C for one GPU, expected one type: .*A100-4C is time-sliced",
        ),
        (file(entry(vgpu_devices={"A100-1-5C": 1, "A100-8C": 1})), "A100-8C is time-sliced"),
    ],
)
def test_a_file_is_refused_with_the_place_what_was_seen_and_what_was_expected(document: object, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        read_vgpu_layouts(document)


def test_a_type_is_the_last_word_and_its_attribute_counts_where_the_gpu_has_it() -> None:
    offered = {"DC-48C": OfferedType("1"), "DC-1-24Q": OfferedType("2"), "DC-2-48QME": OfferedType("3")}
    gpu = replace(A100, types=offered)
    for asked, meant in (("DC-48C", "DC-48C"), ("DC-1-24QGFX", "DC-1-24Q"), ("DC-2-48QME", "DC-2-48QME")):
        assert chosen(entry(vgpu_devices={asked: 1}), gpus=(gpu,)) == {0: {meant: 1}}
    assert "has no vGPU type DC-2-48QGFX" in refusal(entry(vgpu_devices={"DC-2-48QGFX": 1}), gpus=(gpu,))
    with pytest.raises(BadInputError, match=r"'RTX Pro 6000 Blackwell DC-48C', expected a type as .* the last word"):
        read_vgpu_layouts(file(entry(vgpu_devices={"RTX Pro 6000 Blackwell DC-48C": 1})))


def test_a_type_with_none_of_it_is_no_second_type() -> None:
    assert chosen(entry(vgpu_devices={"A100-4C": 2, "A100-8C": 0})) == {0: {"A100-4C": 2}}


def words_of(document: object) -> str:
    """Why a document is refused, empty where it is not."""
    try:
        read_vgpu_layouts(document)
    except BadInputError as error:
        return str(error)
    return ""


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                        ["version", "vgpu-configs", "v1", "devices", "vgpu-devices", "A100-4C"]), inner, max_size=4),
                    max_leaves=12))  # fmt: skip
def test_any_document_is_read_or_refused_in_one_short_line(document: object) -> None:
    for each in (document, {"version": "v1", "vgpu-configs": {"a": document}}, file(document)):
        words = words_of(each)
        assert "\n" not in words
        assert len(words) < 500


def test_what_this_node_cannot_have_is_refused_with_entry_gpu_and_what_it_has() -> None:
    assert refusal(entry(devices=[3])) == "layout mine: entry 1: this node has no GPU 3, it has 0, 1, 2"
    assert "entry 2: GPU 1 (0000:81:00.0) has no vGPU type A100-4C, it has H200X-1-18C" in refusal(
        entry(devices=[0]), entry(devices=[1])
    )
    assert "GPU 0 (0000:41:00.0) has room for at most 7 x A100-1-5C, 8 are asked for" in refusal(
        entry(vgpu_devices={"A100-1-5C": 8})
    )
    assert "GPU 1 (0000:81:00.0) has 3 virtual functions, each for one vGPU, 4 are asked for" in refusal(
        entry(devices=[1], vgpu_devices={"H200X-1-18C": 4})
    )
    assert "the vGPU manager offers no types on GPU 2 (0000:c1:00.0)" in refusal(entry(devices=[2]))
    assert "sriov-manage -e 0000:c1:00.0" in refusal(entry(devices=[2]))
    assert "GPU 0 is in entries 1 and 2" in refusal(entry(), entry(devices="all"))
    assert "names no GPU of this node" in refusal(entry(devices="all", device_filter="0x233010DE"))
    with pytest.raises(BadInputError, match="there is no layout 'other'; the file has mine"):
        vgpu_layouts("other", read_vgpu_layouts(file(entry())), NODE, {})


def test_a_type_that_may_be_there_is_not_said_to_be_missing() -> None:
    full = replace(H200, types={"H200X-1-18C": OfferedType("1414")}, knows_all_types=False)
    text = refusal(entry(devices=[1], vgpu_devices={"H200X-141C": 1}), gpus=(A100, full))
    assert "it is not known whether GPU 1 (0000:81:00.0) can have H200X-141C" in text
    assert vgpu_layout_problem(full, VgpuLayout("mine", {"H200X-1-18C": 3})) is None


def test_an_index_stands_for_the_gpu_that_had_it_first() -> None:
    gone = {0: "0000:21:00.0", 1: A100.address, 2: H200.address}
    here = (A100, replace(H200, index=1))
    assert chosen(entry(devices=[0, 1]), gpus=here, first=gone) == {0: {"A100-4C": 2}}
    assert "no GPU 7" in refusal(entry(devices=[7]))


def ours(*types: str) -> list[OurVgpu]:
    return [OurVgpu(f"uuid-{at}", name, TYPES[name].type_id) for at, name in enumerate(types)]


def with_vgpus(*vgpus: OurVgpu) -> VgpuGpu:
    return replace(A100, vgpus=tuple(VgpuOnGpu(each.identity, each.type_id) for each in vgpus))


def test_a_gpu_has_its_layout_whoever_made_it() -> None:
    there = with_vgpus(*ours("A100-4C", "A100-4C"))
    assert has_vgpu_layout(there, VgpuLayout("mine", {"A100-4C": 2}), [])
    assert not has_vgpu_layout(there, VgpuLayout("mine", {"A100-4C": 1}), [])
    assert not has_vgpu_layout(there, VgpuLayout("mine"), [])
    nameless = replace(there, types={})
    assert not has_vgpu_layout(nameless, VgpuLayout("mine", {"A100-4C": 2}), [])
    assert has_vgpu_layout(nameless, VgpuLayout("mine", {"A100-4C": 2}), ours("A100-4C"))
    assert has_vgpu_layout(BARE, VgpuLayout("mine"), [])


def test_a_function_that_has_another_type_by_now_is_somebody_elses() -> None:
    mine = OurVgpu("0000:81:00.4", "H200X-1-18C", "1414")
    there = replace(H200, vgpus=(VgpuOnGpu("0000:81:00.4", "1428"),))
    assert made_by_others(there, [mine]) == there.vgpus
    assert made_by_others(replace(there, vgpus=(VgpuOnGpu("0000:81:00.4", "1414"),)), [mine]) == ()


@given(st.lists(st.sampled_from(sorted(TYPES)), max_size=8), st.dictionaries(
    st.sampled_from(sorted(TYPES)), st.integers(1, 4), max_size=3), st.integers(0, 8))  # fmt: skip
def test_steps_keep_what_both_have_and_give_what_is_asked_for(
    there: list[str], counts: dict[str, int], gone: int
) -> None:
    mine = ours(*there)
    gpu = with_vgpus(*mine[gone:])
    steps = vgpu_steps(gpu, VgpuLayout("mine", counts), mine)
    assert Counter(each.type_name for each in steps.kept) + Counter(steps.made) == Counter(counts)
    assert {*steps.kept, *steps.removed} == set(mine[gone:])
    had, wanted = Counter(there[gone:]), Counter(counts)
    assert Counter(each.type_name for each in steps.kept) == had & wanted, "as much as both have stays"


def test_large_mig_backed_ones_are_made_first() -> None:
    steps = vgpu_steps(A100, VgpuLayout("mine", {"A100-1-5C": 2, "A100-3-20C": 1}), [])
    assert steps.made == ("A100-3-20C", "A100-1-5C", "A100-1-5C")


def test_the_function_with_the_most_room_is_taken_and_none_where_there_is_no_room() -> None:
    functions = tuple(VgpuFunction(f"f{n}", {"nvidia-468": room}) for n, room in enumerate((1, 3, 3)))
    gpu = replace(A100, functions=functions)
    assert function_with_room(gpu, "A100-4C") == (functions[1], TYPES["A100-4C"])
    assert function_with_room(gpu, "A100-1-5C") is None
    assert function_with_room(gpu, "A100-8C") is None
